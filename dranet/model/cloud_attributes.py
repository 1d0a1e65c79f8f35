"""The attributes that clouds add to devices (``providers.cloud``), for the pages and the checks of claims.

Names and types are DraNet's where DraNet has them. All are left out where the cloud does not give them. Where
a device has more than a slice can take, DraNet's come before the catalogue of ``model.attributes``, and ours
after what claims align by, in the order of :data:`OURS`.
"""

from __future__ import annotations

from functools import partial

from dranet.model.attributes import ALIBABA_DOMAIN, Attribute, AttributeType, Stability

_S, _I = AttributeType.STRING, AttributeType.INT
_gce = partial(Attribute, domain="gce.dra.net", stability=Stability.DRANET)
_azure = partial(Attribute, domain="azure.dra.net", stability=Stability.DRANET)
_oke = partial(Attribute, domain="oke.dra.net", stability=Stability.DRANET)
_alibaba = partial(Attribute, domain=ALIBABA_DOMAIN)
_coreweave = partial(Attribute, domain="coreweave.dra.net", stability=Stability.DRANET)
_aws = partial(Attribute, domain="aws.dra.net")
_KEPT = Stability.KEPT
_NIC = "of the NIC, by its hardware address: "

CLOUD_CATALOGUE: tuple[Attribute, ...] = (
    _gce("machineType", _S, "machine type, `a3-megagpu-8g`"),
    _gce("block", _S, "block of the host, of machines with a known place"),
    _gce("subBlock", _S, "sub-block of the host"),
    _gce("host", _S, "the host"),
    _gce("networkName", _S, _NIC + "VPC network"),
    _gce("networkProjectNumber", _I, _NIC + "number of the network's project"),
    _gce("ipAliases", _S, _NIC + "alias ranges, joined by commas, as many as fit"),
    _aws("instanceType", _S, "instance type, `p5.48xlarge`"),
    _aws("networkNodeLayer3", _S, "network node of the third layer; instances that share it are close"),
    _aws(
        "capacityBlockId", _S, "capacity block of an UltraServer (label `topology.k8s.aws/capacity-block-id`)"
    ),
    _aws("networkNodeLayer2", _S, "network node of the second layer"),
    _aws(
        "networkNodeLayer1",
        _S,
        "network node of the top layer (label `topology.k8s.aws/network-node-layer-1`)",
    ),
    _aws("networkNodeLayer4", _S, "network node of the fourth layer, where there is one"),
    _aws("placementGroup", _S, "placement group"),
    _aws("partition", _I, "partition of a partition placement group"),
    _aws("availabilityZoneId", _S, "ID of the availability zone, which is the same in all accounts"),
    _aws("availabilityZone", _S, "availability zone"),
    _aws("subnetId", _S, _NIC + "subnet"),
    _aws("networkCard", _I, _NIC + "index of the network card"),
    _azure("vmSize", _S, "size, `Standard_ND96isr_H100_v5`"),
    _azure("placementGroupId", _S, "placement group of the scale set"),
    _azure("interconnectGroupId", _S, "interconnect group (NVLink domain of GB200 and GB300)"),
    _azure("interconnectSubgroupId", _S, "part of the interconnect group"),
    _azure("subnet", _S, _NIC + "subnet as CIDR", stability=_KEPT),
    _azure("faultDomain", _S, "fault domain: a rack with a power supply and a switch", stability=_KEPT),
    _azure("zone", _S, "availability zone of the subscription", stability=_KEPT),
    _azure("physicalZone", _S, "physical zone, which is the same in all subscriptions", stability=_KEPT),
    _oke("hpcIslandId", _S, "HPC island, the last part of its OCID"),
    _oke("networkBlockId", _S, "network block"),
    _oke("localBlockId", _S, "local block"),
    _oke("rackId", _S, "rack"),
    _oke("gpuMemoryFabricId", _S, "GPU memory fabric of GB200 and GB300"),
    _oke("shape", _S, "shape, `BM.GPU.H100.8`", stability=_KEPT),
    _oke("faultDomain", _S, "fault domain", stability=_KEPT),
    _oke("availabilityDomain", _S, "availability domain", stability=_KEPT),
    _alibaba("instanceType", _S, "instance type", stability=Stability.DRANET),
    _alibaba("zoneId", _S, "zone"),
    _alibaba("vswitchId", _S, _NIC + "vSwitch"),
    _coreweave("fabricFlavor", _S, "kind of the fabric (label `backend.coreweave.cloud/flavor`)"),
    _coreweave("fabric", _S, "fabric"),
    _coreweave("superpod", _S, "superpod"),
    _coreweave("leafgroup", _S, "leaf group"),
    _coreweave("leafgroupName", _S, "name of the leaf group"),
    _coreweave("rack", _S, "rack"),
    _coreweave("speedCurrent", _S, "speed of the fabric now"),
    _coreweave("speedExpected", _S, "speed that is expected"),
    _coreweave("instanceType", _S, "instance type"),
    _coreweave("leafSwitch", _S, "of the NIC, by its RDMA device: the leaf switch that is expected"),
)

OURS = tuple(one.qualified for one in CLOUD_CATALOGUE if one.stability is not Stability.DRANET)
"""Names that DraNet does not publish, those first by which a job is placed."""
