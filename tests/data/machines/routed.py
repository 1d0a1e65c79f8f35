"""Nodes whose cards carry others' traffic too: pod networks by policy routing, and bonds with RDMA."""

from __future__ import annotations

from msgspec.structs import replace

from dranet.model.capture import Capture
from dranet.model.facts import Address, Host, Link, NumaNode, Route, RoutingRule
from tests.data import parts
from tests.data.authoring import Machine, two_sockets

_DEFAULT = RoutingRule(4, 253)
"""The kernel's own last rule; its table is empty."""


def eks_vpc_cni() -> Capture:
    """Pods on a secondary ENI, which has no address in use by the node; a third ENI is left alone."""
    machine = Machine(
        "Documentation: the CNI proposal in the repository of amazon-vpc-cni-k8s (docs/cni-proposal.md: "
        "main table, table of an ENI with its gateway and default route, rules of priority 512 and 1536),"
        " its pull requests #778 and #1813 (the rule without destination), and its source (an ENI with "
        "the tag node.k8s.amazonaws.com/no_manage is not managed). Filled in: addresses, the third ENI "
        "with that tag and the routing that amazon-ec2-net-utils makes for it, the bus numbers and names "
        "of all.",
        Host("ip-192-0-2-20", "6.12.0-aws", "x86_64", "Amazon EC2 m5.4xlarge"),
        (NumaNode(0, "0-15", (10,), 0),),
    )
    eth0, eth1, eth2 = (_ena(machine, number) for number in range(3))
    uplink = _address(machine, eth0, "192.0.2.20/24")
    machine.uplink(uplink, "192.0.2.1")
    _address(machine, eth2, "198.51.100.7/24")
    machine.link("pod-id-link0", kind="dummy", flags=0x82, operstate="down", addresses=())
    for pod in range(3):
        machine.link(f"eni{pod:011x}", kind="veth", lower=3, link_netnsid=pod, mtu=9001)
    machine.rules += [RoutingRule(4, 2, f"192.0.2.{30 + pod}/32") for pod in range(3)]
    machine.rules += [RoutingRule(4, 10003, "198.51.100.7/32"), _DEFAULT]
    _table(machine, 2, eth1, "192.0.2.1")
    _table(machine, 10003, eth2, "198.51.100.1")
    return machine.capture()


def cilium_eni() -> Capture:
    """As with the VPC CNI; the tables are numbered from 11, and each rule names the VPC's addresses."""
    machine = Machine(
        "Documentation: Cilium's source (pkg/datapath/linux/routing: for each pod a rule of priority 111 "
        "from its address to the VPC's, table 10 plus the number of the ENI, with its gateway and a "
        "default route) and its pull requests #14337 and #28358; issue #15808 for the tables 2004 and "
        "2005 of its proxy. Filled in: addresses, bus numbers and names, the spare ENI.",
        Host("ip-192-0-2-21", "6.12.0-aws", "x86_64", "Amazon EC2 m5.4xlarge"),
        (NumaNode(0, "0-15", (10,), 0),),
    )
    eth0, eth1, eth2 = (_ena(machine, number) for number in range(3))
    uplink = _address(machine, eth0, "192.0.2.21/24")
    machine.uplink(uplink, "192.0.2.1")
    _address(machine, eth1, "192.0.2.61/24")
    _address(machine, eth2, "198.51.100.7/24")
    peer = len(machine.links) + 2
    host = machine.link("cilium_host", kind="veth", lower=peer, addresses=(Address("192.0.2.99/32"),))
    machine.link("cilium_net", kind="veth", lower=host.ifindex)
    for pod in range(2):
        machine.link(f"lxc{pod:012x}", kind="veth", lower=3, link_netnsid=pod, mtu=9001)
    machine.rules += [RoutingRule(4, 2004), RoutingRule(4, 2005)]
    machine.rules += [RoutingRule(4, 11, f"192.0.2.{40 + pod}/32", "192.0.2.0/24") for pod in range(2)]
    machine.rules += [_DEFAULT]
    _table(machine, 11, eth1, "192.0.2.1")
    machine.policy_routes.append(Route("0.0.0.0/0", "192.0.2.99", host.ifindex, table=2005))
    return machine.capture()


def terway() -> Capture:
    """Pods with addresses of a secondary ENI, each routed by where it comes from and by its own veth."""
    machine = Machine(
        "Documentation: the source of Alibaba Cloud's Terway (plugin/datapath: rules of priority 512 to a"
        " pod and 2048 from it, by its host's veth; table 1000 plus the index of the ENI's link, with a "
        "default route) and its pull request #746, which repairs them when they are missing. Filled in: "
        "addresses, kernel, bus numbers.",
        Host("cn-hangzhou.192.0.2.22", "5.10.134-18.al8.x86_64", "x86_64", "Alibaba Cloud Alibaba Cloud ECS"),
        (NumaNode(0, "0-15", (10,), 0),),
    )
    eth0, eth1, eth2 = (_virtio(machine, number) for number in range(3))
    uplink = _address(machine, eth0, "192.0.2.22/24")
    machine.uplink(uplink, "192.0.2.253")
    _address(machine, eth2, "198.51.100.7/24")
    table = 1000 + eth1.ifindex
    for pod in range(2):
        veth = machine.link(f"cali{pod:011x}", kind="veth", lower=3, link_netnsid=pod)
        machine.rules.append(RoutingRule(4, table, f"192.0.2.{50 + pod}/32", input_interface=veth.ifname))
    machine.rules.append(_DEFAULT)
    machine.policy_routes.append(Route("0.0.0.0/0", "192.0.2.253", eth1.ifindex, table=table, flags=4))
    return machine.capture()


_LAG_CARDS = ((0, 0x7F), (0, 0xC7), (1, 0x08), (1, 0xA2))
"""PCI domain and bus of each dual-port card."""


def h20_roce_lag() -> Capture:
    """Four dual-port cards, the two ports of each in one bond with one RDMA device."""
    machine = Machine(
        "Documentation: kubernetes-sigs/dranet issue #239 (an H20 node: four ConnectX-7 with two ports, "
        "their PCI addresses, bond0 to bond3 in mode 802.3ad), NVIDIA/nccl pull request #2150 (the "
        "bonding of such a node, 400 Gb/s each port), deepseek-ai/DeepEP pull request #671 (mlx5_bond_N, "
        "one RDMA device for both ports, the rate of one port). Filled in: GPUs, one beside each card; "
        "bridges; NUMA nodes; the uplink; addresses; that the GID table names the bond.",
        Host("h20-00", "5.10.134-18.al8.x86_64", "x86_64", "H20 server"),
        two_sockets(("0-63,128-191", "64-127,192-255"), 32),
    )
    front = machine.function(parts.CX_VF_ETH, "pci0000:00", "00:03.0", 0)
    uplink = machine.nic(front, "eth0", addresses=(Address("192.0.2.22/24"),))
    machine.uplink(uplink, "192.0.2.1")
    for number, (domain, bus) in enumerate(_LAG_CARDS):
        _lag(machine, number, domain, bus)
    return machine.capture()


def _lag(machine: Machine, number: int, domain: int, bus: int) -> None:
    root, numa = f"pci{domain:04x}:{bus - 3:02x}", number // 2
    way = f"{bus - 3:02x}:01.0/{bus - 2:02x}:00.0"
    gpu = machine.function(parts.H20, root, f"{way}/{bus - 1:02x}:01.0/{bus + 1:02x}:00.0", numa)
    machine.gpu(gpu, "NVIDIA H20", number)
    functions = [
        machine.function(parts.CX7_ETH, root, f"{way}/{bus - 1:02x}:00.0/{bus:02x}:00.{port}", numa)
        for port in range(2)
    ]
    bond = machine.link(
        f"bond{number}",
        kind="bond",
        driver="bonding",
        mtu=9000,
        speed_mbps=800_000,
        duplex="full",
        netns_immutable=True,
        addresses=(Address(f"198.51.100.{10 + number}/24"),),
    )
    for port, function in enumerate(functions):
        machine.nic(
            function, f"reth{2 * number + port}", 400_000, master=bond.ifindex, mac=bond.mac, mtu=9000
        )
    names = (bond.ifname,)
    machine.rdma(functions[0], f"mlx5_bond_{number}", parts.CX7_ETH, "400 Gb/sec (4X NDR)", netdevs=names)


def _ena(machine: Machine, number: int) -> Link:
    function = machine.function(parts.ENA, "pci0000:00", f"00:{5 + number:02x}.0", 0)
    return machine.nic(function, f"eth{number}", mtu=9001, queues=8)


def _virtio(machine: Machine, number: int) -> Link:
    function = machine.function(parts.VIRTIO, "pci0000:00", f"00:{5 + number:02x}.0", 0)
    return machine.nic(function, f"eth{number}", parent_bus="virtio", parent_device=f"virtio{number}")


def _address(machine: Machine, link: Link, cidr: str) -> Link:
    """The link with an address, in place of the one without."""
    new = replace(link, addresses=(Address(cidr),))
    machine.links[machine.links.index(link)] = new
    return new


def _table(machine: Machine, table: int, link: Link, gateway: str) -> None:
    machine.policy_routes += [
        Route("0.0.0.0/0", gateway, link.ifindex, table=table),
        Route(f"{gateway}/32", "", link.ifindex, scope=253, table=table),
    ]
