"""For each rule of the parameters policy: parameters that it alone refuses, and the same ones mended.

Parameters are those of a claim's one config, or of a DeviceClass's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Json = dict[str, Any]

ROUTE = {"destination": "10.1.0.0/16", "gateway": "10.0.0.1"}
HOP = {"gateway": "10.0.0.1"}
HOPS = {"destination": "10.1.0.0/16", "nextHops": [HOP]}
NEIGHBOUR = {"destination": "10.0.0.9", "hardwareAddr": "02:00:00:00:00:09"}
POLICY_RULE = {"field": "interface.mtu", "expression": "value <= 9000"}
VERSION = {"apiVersion": "dra.net/v1alpha1", "kind": "NetworkConfig"}
VRF = {"name": "blue", "table": 1100}


class Case(NamedTuple):
    """What one rule is for."""

    bad: Json
    good: Json
    says: str
    """Part of the message for the bad one."""
    of_class: bool = False


def interface(**fields: Any) -> Json:
    return {"interface": fields}


def route(**fields: Any) -> Json:
    return {"routes": [{**ROUTE, **fields}]}


def hops(**fields: Any) -> Json:
    return {"routes": [{**HOPS, **fields}]}


def hop(**fields: Any) -> Json:
    return {"routes": [{**HOPS, "nextHops": [{**HOP, **fields}]}]}


def rule(**fields: Any) -> Json:
    return {"rules": [fields]}


def neighbour(**fields: Any) -> Json:
    return {"neighbors": [{**NEIGHBOUR, **fields}]}


def policy(**fields: Any) -> Json:
    return {"policy": fields}


def policy_rule(**fields: Any) -> Json:
    return policy(rules=[{**POLICY_RULE, **fields}])


def without(parameters: Json, *path: str | int) -> Json:
    """A copy in which the last step of the path is not there."""
    *outer, last = path
    copied: Any = _copy(parameters)
    found = copied
    for step in outer:
        found = found[step]
    del found[last]
    return copied  # type: ignore[no-any-return]


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


CASES = {
    "wrongUnknownFields": Case(interface(MTU=9000), interface(mtu=9000), "interface.MTU: unknown field"),
    "wrongEntryUnknownFields": Case(route(via="10.0.0.1"), route(), "routes[0].via: unknown field"),
    "wrongApiVersion": Case({**VERSION, "apiVersion": "dra.net/v2"}, VERSION, "must be 'dra.net/v1alpha1'"),
    "wrongKind": Case({**VERSION, "kind": "Network"}, VERSION, "must be 'NetworkConfig'"),
    "wrongObjects": Case({"interface": "net1"}, interface(name="net1"), "interface: must be an object"),
    "wrongTexts": Case({"profile": 5}, {"profile": ""}, "profile: must be text, not 5"),
    "wrongLists": Case({"routes": ROUTE}, {"routes": [ROUTE]}, "routes: must be a list, not an object"),
    "wrongListEntries": Case(
        {"routes": ["10.1.0.0/16"]}, {"routes": [ROUTE]}, "routes[0]: must be an object"
    ),
    "wrongSysctlsNames": Case(
        {"sysctls": {"": 1}}, {"sysctls": {"net.ipv4.tcp_ecn": 1}}, "must not be empty"
    ),
    "wrongSysctlsValues": Case(
        {"sysctls": {"net.ipv4.tcp_ecn": True}},
        {"sysctls": {"net.ipv4.tcp_ecn": "1"}},
        'sysctls["net.ipv4.tcp_ecn"]: must be text or a 64-bit integer, not true',
    ),
    "wrongName": Case(interface(name="net/1"), interface(name="net-1"), "must consist of ASCII letters"),
    "wrongType": Case(interface(type="veth"), interface(type="macvlan"), "must be 'passthrough'"),
    "wrongAddressesItems": Case(
        interface(addresses=["10.0.0.5"]),
        interface(addresses=["10.0.0.5/24"]),
        "addresses[0]: must be in CIDR",
    ),
    "wrongBools": Case(interface(dhcp="yes"), interface(dhcp=True), "dhcp: must be true or false, not 'yes'"),
    "wrongMtu": Case(interface(mtu=70000), interface(mtu=9000), "mtu: must be at most 65535, not 70000"),
    "wrongHardwareAddr": Case(
        interface(hardwareAddr="03:00:00:00:00:01"),
        interface(hardwareAddr="0200.0000.0001"),
        "must be a unicast hardware address",
    ),
    "wrongTxQueueLength": Case(interface(txQueueLength=-1), interface(txQueueLength=0), "must be at least 0"),
    "wrongGsoMaxSize": Case(interface(gsoMaxSize=0), interface(gsoMaxSize=1), "must be at least 1, not 0"),
    "wrongArpIgnore": Case(interface(arpIgnore=4), interface(arpIgnore=8), "must be 0, 1, 2, 3 or 8"),
    "wrongArpAnnounce": Case(interface(arpAnnounce=3), interface(arpAnnounce=2), "must be 0, 1 or 2"),
    "wrongMode": Case(
        interface(type="macvlan", macvlan={"mode": "passthru"}),
        interface(type="macvlan", macvlan={"mode": "vepa"}),
        "macvlan.mode: must be 'bridge', 'private' or 'vepa'",
    ),
    "wrongInterfaceIpvlanMode": Case(
        interface(type="ipvlan", ipvlan={"mode": "L3"}),
        interface(type="ipvlan", ipvlan={"mode": "l3"}),
        "must be 'l2', 'l3' or 'l3s', not 'L3'",
    ),
    "wrongId": Case(
        interface(type="vlan", vlan={"id": 4095}), interface(type="vlan", vlan={"id": 4094}), "at most 4094"
    ),
    "wrongProtocol": Case(
        interface(type="vlan", vlan={"id": 1, "protocol": "802.1q"}),
        interface(type="vlan", vlan={"id": 1, "protocol": "802.1Q"}),
        "must be '802.1Q' or '802.1ad'",
    ),
    "wrongInterfaceVrfName": Case(
        interface(vrf={"name": "default"}), interface(vrf={"name": "blue"}), "vrf.name: is a reserved name"
    ),
    "wrongToken": Case(
        interface(ipv6={"token": "fd00::1"}), interface(ipv6={"token": "::1:2"}), "64 leading zero bits"
    ),
    "wrongRate": Case(
        interface(rateLimit={"egress": {"rate": "1k"}}),
        interface(rateLimit={"egress": {"rate": "1.5M"}}),
        "egress.rate: must be at least 8000, not '1k'",
    ),
    "wrongBurst": Case(
        interface(rateLimit={"ingress": {"rate": 8000, "burst": "8Gi"}}),
        interface(rateLimit={"ingress": {"rate": 8000, "burst": "1Mi"}}),
        "burst: must be at most 4294967295",
    ),
    "wrongEntryDestination": Case(
        route(destination="10.1.0.0/33"), route(destination="10.1.0.0/32"), "must be a CIDR, e.g. 10.1.0.0/16"
    ),
    "wrongEntryGateway": Case(route(gateway="10.0.0.1/24"), route(), "without prefix or zone"),
    "wrongEntryScope": Case(route(scope=200), route(scope=0), "scope: must be 0 or 253, not 200"),
    "wrongEntryTable": Case(route(table=2**32), route(table=100), "table: must be at most 4294967295"),
    "wrongEntryMtu": Case(route(mtu=67), route(mtu=68), "routes[0].mtu: must be at least 68, not 67"),
    "wrongEntryBools": Case(route(onlink=1), route(onlink=True), "onlink: must be true or false, not 1"),
    "wrongEntryLists": Case(
        route(nextHops="none"), {"routes": [HOPS]}, "routes[0].nextHops: must be a list, not 'none'"
    ),
    "wrongEntryListEntries": Case(hops(nextHops=["10.0.0.1"]), hops(), "nextHops[0]: must be an object"),
    "wrongEntryInterface": Case(
        hop(interface="a/b"), hop(interface="net2"), "nextHops[0].interface: must consist"
    ),
    "wrongEntryWeight": Case(hop(weight=0), hop(weight=256), "weight: must be at least 1, not 0"),
    "wrongEntryPriority": Case(rule(priority=32768), rule(priority=32767), "must be at most 32767"),
    "wrongEntryMark": Case(rule(mark="0x1ffffffff"), rule(mark="0x10"), "a number, or text such as 0x10"),
    "wrongEntryInputInterface": Case(
        rule(inputInterface=""), rule(inputInterface="lo"), "inputInterface: must not be empty"
    ),
    "wrongEntryHardwareAddr": Case(
        neighbour(hardwareAddr="02:00"), neighbour(hardwareAddr="33-33-00-00-00-01"), "6 or 20 bytes"
    ),
    "wrongFeaturesNames": Case(
        {"ethtool": {"features": {"t" * 65: True}}},
        {"ethtool": {"features": {"tso": True}}},
        "must have at most 64 characters",
    ),
    "wrongFeaturesValues": Case(
        {"ethtool": {"features": {"tso": "on"}}},
        {"ethtool": {"features": {"tso": None}}},
        "features.tso: must be true or false, not 'on'",
    ),
    "wrongMinTxRate": Case(
        {"ethtool": {"coalesce": {"rxUsecs": 8.5}}},
        {"ethtool": {"coalesce": {"rxUsecs": 8}}},
        "rxUsecs: must be a whole number, not 8.5",
    ),
    "wrongMemlock": Case({"rdma": {"memlock": -1}}, {"rdma": {"memlock": "unlimited"}}, "64Mi, or unlimited"),
    "wrongGidIndex": Case(
        {"nccl": {"configFile": True, "gidIndex": 1024}},
        {"nccl": {"configFile": True, "gidIndex": "auto"}},
        "must be a number from 0 to 1023, or auto",
    ),
    "wrongCrossNic": Case(
        {"nccl": {"configFile": True, "crossNic": "Auto"}},
        {"nccl": {"configFile": True, "crossNic": 2}},
        "must be a number from 0 to 2, or auto",
    ),
    "wrongPolicy": Case({"memory": {"policy": "strict"}}, {"memory": {"policy": "bind"}}, "must be 'bind'"),
    "wrongAllowItems": Case(
        policy(allow=["mtu"]), policy(allow=["interface.mtu"]), "the path of a field", True
    ),
    "wrongEntryField": Case(
        policy_rule(field="mtu"), policy_rule(), "rules[0].field: must be the path", True
    ),
    "wrongEntryExpression": Case(policy_rule(expression=""), policy_rule(), "must not be empty", True),
    "wrongEntryTexts": Case(policy_rule(message=5), policy_rule(message="no"), "message: must be text", True),
    "wrongPolicyInClaim": Case(policy(lock=["sysctls"]), {}, "must not be in a claim"),
    "wrongKindAbsent": Case(without(VERSION, "kind"), VERSION, "kind: is required with apiVersion", True),
    "wrongApiVersionAbsent": Case(without(VERSION, "apiVersion"), VERSION, "is required with kind"),
    "wrongPolicyRulesFieldAbsent": Case(
        without(policy_rule(), "policy", "rules", 0, "field"),
        policy_rule(),
        "rules[0].field: is required",
        True,
    ),
    "wrongPolicyRulesExpressionAbsent": Case(
        without(policy_rule(), "policy", "rules", 0, "expression"),
        policy_rule(),
        "expression: is required",
        True,
    ),
    "wrongMacvlanOfOther": Case(
        interface(type="ipvlan", macvlan={}), interface(type="macvlan", macvlan={}), "with type: macvlan"
    ),
    "wrongIpvlanOfOther": Case(
        interface(type="macvlan", ipvlan={}),
        interface(type="ipvlan", ipvlan={}),
        "must come with type: ipvlan",
    ),
    "wrongVlanOfOther": Case(
        interface(type="passthrough", vlan={"id": 1}),
        interface(type="vlan", vlan={"id": 1}),
        "must come with type: vlan",
    ),
    "wrongAddressOfIpvlan": Case(
        interface(type="ipvlan", hardwareAddr="02:00:00:00:00:01"),
        interface(type="macvlan", hardwareAddr="02:00:00:00:00:01"),
        "must be absent with type: ipvlan",
    ),
    "wrongDhcpOfType": Case(
        interface(type="vlan", vlan={"id": 1}, dhcp=True),
        interface(type="vlan", vlan={"id": 1}, dhcp=False),
        "must not be true with type: vlan: the lease",
    ),
    "wrongDhcpAndAddresses": Case(
        interface(dhcp=True, addresses=["10.0.0.5/24"]),
        interface(dhcp=True, addresses=[]),
        "dhcp: must not be true with addresses",
    ),
    "wrongIpamAndAddresses": Case(
        interface(ipam="pool", addresses=["10.0.0.5/24"]),
        interface(ipam="pool", addresses=[]),
        "ipam: must be absent with addresses",
    ),
    "wrongIpamAndDhcp": Case(
        interface(ipam="pool", dhcp=True),
        interface(ipam="pool", dhcp=False),
        "ipam: must be absent with dhcp: true",
    ),
    "wrongIpam": Case(interface(ipam="a b"), interface(ipam="pool-1"), "must be a name of at most 63"),
    "wrongVlan": Case(
        interface(vf={"vlan": 4095}), interface(vf={"vlan": 4094}), "must be at most 4094", of_class=True
    ),
    "wrongQos": Case(
        interface(vf={"vlan": 1, "qos": 8}),
        interface(vf={"vlan": 1, "qos": 7}),
        "must be at most 7",
        of_class=True,
    ),
    "wrongLinkState": Case(
        interface(vf={"linkState": "up"}),
        interface(vf={"linkState": "auto"}),
        "must be 'auto'",
        of_class=True,
    ),
    "wrongMtuOfIpv6": Case(
        interface(mtu=1279, addresses=["fd00::5/64"]),
        interface(mtu=1280, addresses=["fd00::5/64"]),
        "mtu: must be at least 1280 with an IPv6 address, not 1279",
    ),
    "wrongAddressWithoutIpv6": Case(
        interface(ipv6={"enabled": False}, addresses=["fd00::5/64"]),
        interface(ipv6={"enabled": False}, addresses=["10.0.0.5/24"]),
        "ipv6.enabled: must not be false with an IPv6 address",
    ),
    "wrongTokenIgnored": Case(
        interface(ipv6={"token": "::5", "acceptRA": 0}),
        interface(ipv6={"token": "::5", "acceptRA": 1}),
        "must come without acceptRA: 0",
    ),
    "wrongReservedTable": Case(
        interface(vrf={**VRF, "table": 254}), interface(vrf={**VRF, "table": 252}), "(253 to 255), not 254"
    ),
    "wrongHopsGateway": Case(hops(gateway="10.0.0.1"), hops(), "must be absent with nextHops"),
    "wrongHopsOnlink": Case(hops(onlink=True), hops(onlink=False), "onlink: must be absent with nextHops"),
    "wrongHopsScope": Case(hops(scope=253), hops(scope=0), "must not be 253 (link) with nextHops"),
    "wrongLinkGateway": Case(
        route(scope=253), {"routes": [{"destination": "10.1.0.0/16", "scope": 253}]}, "with scope 253 (link)"
    ),
    "wrongGatewayAbsent": Case(
        {"routes": [{"destination": "10.1.0.0/16"}]}, route(), "is required unless scope"
    ),
    "wrongVersionGateway": Case(route(gateway="fd00::1"), route(), "version of the destination 10.1.0.0/16"),
    "wrongVersionSource": Case(
        route(source="fd00::1"), route(source="10.0.0.5"), "routes[0].source: must be of"
    ),
    "wrongVersionNextHops": Case(
        hop(gateway="fd00::1"), hop(), "nextHops[0].gateway: must be of the IP version"
    ),
    "wrongVersionRule": Case(
        rule(source="10.0.0.0/8", destination="fd00::/8"),
        rule(source="10.0.0.0/8", destination="10.0.0.0/8"),
        "must be of the IP version of the source 10.0.0.0/8, not fd00::/8",
    ),
    "wrongMaskAlone": Case(rule(mask="0xff"), rule(mask="0xff", mark=1), "mask: must come with mark"),
    "wrongRoutesDestinationAbsent": Case(
        without(route(), "routes", 0, "destination"), route(), "routes[0].destination: is required"
    ),
    "wrongNeighborsDestinationAbsent": Case(
        without(neighbour(), "neighbors", 0, "destination"),
        neighbour(),
        "neighbors[0].destination: is required",
    ),
    "wrongNeighborsHardwareAddrAbsent": Case(
        without(neighbour(), "neighbors", 0, "hardwareAddr"), neighbour(), "hardwareAddr: is required"
    ),
    "wrongRoutesNextHopsGatewayAbsent": Case(
        hops(nextHops=[{"weight": 2}]), hop(weight=2), "nextHops[0].gateway: is required"
    ),
    "wrongRulesAndVrf": Case(
        {**interface(vrf=VRF), **rule(mark=1)}, interface(vrf=VRF), "rules: must be empty with interface.vrf"
    ),
    "wrongRouteTableAndVrf": Case(
        {**interface(vrf=VRF), **route(table=100)},
        {**interface(vrf=VRF), **route(table=1100)},
        "routes[0].table: must be absent with interface.vrf",
    ),
    "wrongRoutesWithoutIpv6": Case(
        {**interface(ipv6={"enabled": False}), **route(destination="fd00::/8", gateway="fd00::1")},
        {**interface(ipv6={"enabled": False}), **route()},
        "must not be false with an IPv6 route",
    ),
    "wrongNeighborsWithoutIpv6": Case(
        {**interface(ipv6={"enabled": False}), **neighbour(destination="fd00::1")},
        {**interface(ipv6={"enabled": True}), **neighbour(destination="fd00::1")},
        "must not be false with an IPv6 route or neighbor",
    ),
    "wrongIrqOfOther": Case(
        {**interface(type="macvlan"), "cpuLocality": {"irq": True}},
        {**interface(type="macvlan"), "cpuLocality": {"irq": False}},
        "cpuLocality.irq: must not be true with type: macvlan",
    ),
    "wrongXpsOfOther": Case(
        {**interface(type="macvlan"), "cpuLocality": {"xps": True}},
        {"cpuLocality": {"xps": True}},
        "cpuLocality.xps: must not be true",
    ),
    "wrongRpsOfOther": Case(
        {**interface(type="ipvlan"), "cpuLocality": {"rps": True}},
        {**interface(type="passthrough"), "cpuLocality": {"rps": True}},
        "whose device is not the pod's",
    ),
}
