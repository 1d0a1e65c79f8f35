// Asks a webhook provider with DraNet's own client, for a comparison of what is sent and understood.
//
//	ask URL < device.json
//
// The input has the device's identifiers, a claim's UID and its config; the output is what the client made
// of the answers.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/dranet/pkg/apis"
	"sigs.k8s.io/dranet/pkg/cloudprovider"
	"sigs.k8s.io/dranet/pkg/cloudprovider/webhook"
)

type question struct {
	Interface cloudprovider.DeviceIdentifiers `json:"interface"`
	Device    cloudprovider.DeviceIdentifiers `json:"device"`
	ClaimUID  types.UID                       `json:"claim_uid"`
	Config    apis.NetworkConfig              `json:"config"`
}

type answer struct {
	CloudProvider   bool                                                      `json:"cloudProvider"`
	ProfileProvider bool                                                      `json:"profileProvider"`
	Attributes      map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Config          *apis.NetworkConfig                                       `json:"config"`
	Profile         *apis.NetworkConfig                                       `json:"profile"`
}

func main() {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		log.Fatal(err)
	}
	provider, err := webhook.NewWebhookProvider(context.Background(), os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	told := answer{
		CloudProvider:   provider.HasCloudProvider(),
		ProfileProvider: provider.HasProfileProvider(),
		Attributes:      provider.GetDeviceAttributes(asked.Interface),
		Config:          provider.GetDeviceConfig(asked.Device),
	}
	if told.Profile, err = provider.GetProfileConfig(asked.Device, asked.ClaimUID, &asked.Config); err != nil {
		log.Fatal(err)
	}
	if err = provider.ReleaseProfileConfig(asked.Device, asked.ClaimUID, &asked.Config); err != nil {
		log.Fatal(err)
	}
	if err = json.NewEncoder(os.Stdout).Encode(told); err != nil {
		log.Fatal(err)
	}
}
