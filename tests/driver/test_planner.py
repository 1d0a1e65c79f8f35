"""What a claim asks, what the node and the other claims allow, and the record that comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.plan.link import make_mac
from dranet.driver.ipam import Obtained
from dranet.driver.leases import LeaseRequest
from dranet.driver.node_reader import NodeReader
from dranet.driver.planner import Lookups, Planner
from dranet.errors import ClaimError, DeviceError, DeviceHeldError, DranetError, KernelError, Reason
from dranet.model.claim import AllocationResult, Claim, ClaimRef, ConfigSource, Consumer, OpaqueConfig
from dranet.model.device import Bandwidth, CounterUse, Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import (
    AddAddress,
    AddRule,
    CreateLink,
    DhcpLease,
    IpoibState,
    LimitRate,
    LinkState,
    MoveLink,
    MoveRdma,
    PreparedClaim,
    RdmaAccess,
    SetVf,
)
from dranet.model.virtual_functions import VfSettings
from dranet.store.claim_store import ClaimStore

RULE = AddRule(4, table=254, priority=500, input_interface="eth1")
"""Of the node."""
UVERBS, UMAD = CharDevice("/dev/infiniband/uverbs0", 231, 192), CharDevice("/dev/infiniband/umad0", 231, 0)
RAIL = Device("rail-0", DeviceKind.NIC, ifname="rail0", rdma_device="mlx5_0", char_devices=(UVERBS,))
ETH = Device("eth-1", DeviceKind.NIC, ifname="eth1")
PF_ADDRESS = "0000:1a:00.0"
VF = Device("vf-0", DeviceKind.NIC, ifname="vf0", physical_function=PF_ADDRESS, vf_index=0)
PART = CounterUse("pf-0", 1, 2)
VF_1 = replace(VF, name="vf-1", ifname="vf1", vf_index=1, counters=PART)
VF_2 = replace(VF, name="vf-2", ifname="vf2", vf_index=2, counters=PART)
PF = Device("pf-0", DeviceKind.NIC, ifname="pf0", pci_address=PF_ADDRESS, counters=CounterUse("pf-0", 2, 2))
BARE_ADDRESS = "0000:3b:00.0"
BARE_VF = replace(VF, name="bare-vf", ifname="barevf", physical_function=BARE_ADDRESS)
BARE_PF = replace(PF, name="bare-pf", ifname="barepf", pci_address=BARE_ADDRESS, counters=None)
"""Without a rule."""
AWAY = Device("away", DeviceKind.NIC)
HCA = Device("hca-0", DeviceKind.RDMA, rdma_device="mlx5_1", char_devices=(UVERBS,))
IB = replace(
    HCA, name="ib-0", rdma_device="mlx5_2", rdma_guid="0c42:a103:0021:1000", rdma_pci_address="0000:3b:00.0"
)
GPU = Device("gpu-0", DeviceKind.GPU, char_devices=(CharDevice("/dev/nvidia0", 195, 0),))
PARENT = Device("parent-0", DeviceKind.NIC, ifname="parent0", shared=True)
DEVICES = {
    device.name: device
    for device in (RAIL, ETH, VF, VF_1, VF_2, PF, BARE_VF, BARE_PF, AWAY, HCA, IB, GPU, PARENT)
}
POD = Consumer("pods", "pod", "pod-uid")

Given = dict[str, Any]


class Offered:
    def get_offered(self, name: str) -> Device:
        if name not in DEVICES:
            raise DeviceError(f"device {name} does not exist on this node")
        return DEVICES[name]


class FakeNode(NodeReader):
    """Links by name; what was asked is written down."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.exclusive = False
        self.mode_error: KernelError | None = None

    def _link(self, what: str, ifname: str) -> LinkState:
        self.asked.append(f"{what} {ifname}")
        index = 10 + sorted(d.ifname for d in DEVICES.values()).index(ifname)
        return LinkState(index, ifname, f"02:00:00:00:00:{index:02d}", 1500, up=True)

    def read_mac(self, ifname: str) -> str:
        return self._link("mac", ifname).mac

    def read_link(self, ifname: str) -> LinkState:
        return self._link("link", ifname)

    def read_parent(self, ifname: str) -> LinkState:
        return self._link("parent", ifname)

    def read_rules(self) -> tuple[AddRule, ...]:
        self.asked.append("rules")
        return (RULE,)

    def read_ipoib(self, pci_address: str) -> tuple[IpoibState, ...]:
        self.asked.append(f"ipoib {pci_address}")
        return (IpoibState(LinkState(7, "ib0", "00:00:01", 2044, up=True), port=0, mode=1),)

    def read_physical_function_mtu(self, pci_address: str) -> int | None:
        self.asked.append(f"mtu {pci_address}")
        return 1500

    def read_vf(self, physical_function: str, index: int) -> VfSettings:
        self.asked.append(f"vf {physical_function} {index}")
        return VfSettings(trust=False, spoof_check=True, vlan=7, qos=1, min_tx_rate=0, max_tx_rate=0)

    def read_rdma_exclusive(self) -> bool:
        if self.mode_error:
            raise self.mode_error
        return self.exclusive

    def read_management_nodes(self, rdma_device: str) -> tuple[CharDevice, ...]:
        self.asked.append(f"umad {rdma_device}")
        return (UMAD,)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.node = FakeNode()
        self.planner = Planner(
            "dra.net",
            "boot",
            Lookups(Offered().get_offered),
            self.store,
            lambda uid, name: f"dra.net/nic={uid}-{name}",
            self.node,
        )

    def plan(self, claim: Claim, **leases: DhcpLease) -> PreparedClaim:
        record = self.planner.plan(self.planner.decode(claim), Obtained(leases))
        self.store.put(record)
        return record

    def refusal(self, claim: Claim) -> DranetError:
        with pytest.raises(DranetError) as caught:
            self.plan(claim)
        return caught.value


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


def result(device: str, request: str = "nic", **fields: Any) -> AllocationResult:
    return AllocationResult(request, "dra.net", "node", device, **fields)


def a_claim(uid: str, *results: AllocationResult, pod: str = "pod-uid", **parameters: Any) -> Claim:
    """With one config for all of its requests, by name."""
    requests = tuple(one.request for one in results)
    config = OpaqueConfig(ConfigSource.CLAIM, "dra.net", parameters, requests)
    return Claim(
        ref=ClaimRef("default", f"claim-{uid}", uid),
        allocated=True,
        results=results,
        configs=(config,) if parameters else (),
        reserved_for=(replace(POD, uid=pod),),
    )


def share(uid: str, device: str = "eth-1", *, share_id: str = "", **interface: Any) -> Claim:
    """A claim of a pod of its own for a share of a device."""
    one = result(device, share_id=share_id or f"share-{uid}")
    return a_claim(uid, one, pod=f"pod-{uid}", interface=interface)


def lease(mac: str) -> DhcpLease:
    return DhcpLease("10.7.0.9/24", "10.7.0.1", "02:00:00:00:00:99", mac, 1.7e9, 600, 300, 525)


# --- one claim -----------------------------------------------------------------------------------------


def test_the_nodes_rules_are_read_once_for_a_claim_whose_links_may_bring_them(bench: Bench) -> None:
    two = a_claim("a", result("eth-1"), result("rail-0", "other"), interface={"name": "net1"})
    two = replace(two, configs=())
    record = bench.plan(two)
    assert bench.node.asked.count("rules") == 1
    (bringing,) = (plan for plan in record.plans if RULE in plan.steps)
    assert bringing.pod_ifname == "eth1"


def test_the_nodes_rules_are_not_read_where_none_may_come_along(bench: Bench) -> None:
    bench.plan(a_claim("a", result("eth-1"), interface={"inheritRouting": False}))
    bench.plan(a_claim("b", result("rail-0"), interface={"type": "macvlan", "name": "net1"}))
    assert "rules" not in bench.node.asked


def test_a_link_that_moves_is_read_whole_and_a_parent_in_part(bench: Bench) -> None:
    moved = bench.plan(a_claim("a", result("eth-1")))
    (carried,) = bench.plan(
        a_claim("b", result("rail-0"), interface={"type": "macvlan", "name": "net1"})
    ).plans

    assert bench.node.asked == ["rules", "link eth1", "parent rail0"]
    assert isinstance(moved.plans[0].steps[0], MoveLink)
    assert isinstance(carried.steps[0], CreateLink)
    assert carried.host is None


def test_a_device_that_went_away_after_its_allocation_is_not_there(bench: Bench) -> None:
    assert bench.refusal(a_claim("a", result("away"))).reason is Reason.DEVICE_NOT_FOUND
    dhcp = a_claim("b", result("away"), interface={"dhcp": True})
    assert bench.refusal(dhcp).reason is Reason.DEVICE_NOT_FOUND


def test_the_rdma_mode_is_asked_when_it_matters(bench: Bench) -> None:
    bench.node.exclusive = True
    (plan,) = bench.plan(a_claim("a", result("rail-0"))).plans
    assert plan.steps[-1] == MoveRdma("mlx5_0")

    bench.node.mode_error = KernelError("no answer")
    assert bench.plan(a_claim("b", result("eth-1"), pod="other")).plans
    assert bench.refusal(a_claim("c", result("hca-0"), pod="third")) is bench.node.mode_error


def test_what_ends_with_the_move_of_an_adapter_is_recorded_in_exclusive_mode(bench: Bench) -> None:
    (plan,) = bench.plan(a_claim("a", result("ib-0"))).plans
    assert (plan.steps, plan.ipoib, bench.node.asked) == ((), (), [])

    bench.node.exclusive = True
    bench.store.delete("a")
    (plan,) = bench.plan(a_claim("b", result("ib-0"), pod="other")).plans
    moved = MoveRdma("mlx5_2", node_guid="0c42:a103:0021:1000", pci_address="0000:3b:00.0")
    assert plan.steps == (moved,)
    assert [state.link.ifname for state in plan.ipoib] == ["ib0"]
    assert bench.node.asked == ["ipoib 0000:3b:00.0"]


def test_management_nodes_are_looked_up_for_those_who_ask(bench: Bench) -> None:
    plain = bench.plan(a_claim("a", result("rail-0"))).devices[0]
    assert plain.rdma == RdmaAccess((UVERBS,))
    assert not any(asked.startswith("umad") for asked in bench.node.asked)

    asking = bench.plan(
        a_claim("b", result("hca-0"), rdma={"managementDevices": True, "memlock": "unlimited"})
    ).devices[0]
    assert asking.rdma == RdmaAccess((UVERBS, UMAD), -1)


def test_the_mtu_of_the_physical_function_is_looked_up_for_a_claim_that_sets_one(bench: Bench) -> None:
    error = bench.refusal(a_claim("a", result("vf-0"), interface={"mtu": 9000}))
    assert "0000:1a:00.0" in error.message
    assert bench.plan(a_claim("b", result("vf-0"))).plans
    assert bench.node.asked.count("mtu 0000:1a:00.0") == 1


def test_the_problems_of_all_devices_are_one_error(bench: Bench) -> None:
    claim = a_claim(
        "a",
        result("eth-1", "one"),
        result("rail-0", "two"),
        routes=[{"destination": "::/0", "gateway": "fd00::1"}],
    )
    error = bench.refusal(claim)

    assert error.reason is Reason.INVALID_CONFIG
    for name in ("eth-1", "rail-0"):
        assert f"device {name}: routes[0].gateway" in error.message


def test_two_devices_of_a_claim_cannot_have_one_name(bench: Bench) -> None:
    claim = a_claim("a", result("eth-1", "one"), result("rail-0", "two"), interface={"name": "net1"})
    assert "eth-1, rail-0 would all be net1" in bench.refusal(claim).message


def test_claims_of_one_pod_share_its_names(bench: Bench) -> None:
    bench.plan(a_claim("a", result("eth-1"), interface={"name": "net1"}))
    assert "net1" in bench.refusal(a_claim("b", result("rail-0"), interface={"name": "net1"})).message
    assert bench.plan(a_claim("c", result("rail-0"), pod="other", interface={"name": "net1"})).plans


def test_admin_access_and_gpus_have_nothing_to_attach(bench: Bench) -> None:
    assert "gpu-0 is a GPU" in bench.refusal(a_claim("x", result("gpu-0"), interface={"mtu": 9000})).message
    bench.plan(a_claim("owner", result("eth-1")))
    admin = bench.plan(a_claim("admin", result("eth-1", admin_access=True))).devices[0]
    gpu = bench.plan(a_claim("gpu", result("gpu-0"))).devices[0]

    assert (admin.plan, admin.cdi_ids, admin.rdma) == (None, (), RdmaAccess())
    assert (gpu.plan, gpu.cdi_ids, gpu.rdma) == (None, ("dra.net/nic=gpu-gpu-0",), RdmaAccess())


# --- DHCP ----------------------------------------------------------------------------------------------


def test_a_lease_is_asked_for_the_address_that_the_link_will_have(bench: Bench) -> None:
    """The link's own, the claim's, or one that is made up for a macvlan."""
    own = bench.planner.decode(a_claim("a", result("eth-1"), interface={"dhcp": True}))
    set_by = {"dhcp": True, "hardwareAddr": "02:00:00:00:00:77"}
    given = bench.planner.decode(a_claim("a", result("eth-1"), interface=set_by))
    made_up = bench.planner.decode(a_claim("a", result("eth-1"), interface={"dhcp": True, "type": "macvlan"}))

    assert own.dhcp == (LeaseRequest("eth-1", "eth1", bench.node.read_mac("eth1")),)
    assert given.dhcp == (LeaseRequest("eth-1", "eth1", "02:00:00:00:00:77"),)
    assert made_up.dhcp == (LeaseRequest("eth-1", "eth1", make_mac("a/eth-1")),)

    record = bench.planner.plan(made_up, Obtained({"eth-1": lease(made_up.dhcp[0].mac)}))
    (plan,) = record.plans
    assert isinstance(plan.steps[0], CreateLink)
    assert plan.steps[0].mac == made_up.dhcp[0].mac
    assert [step.address.cidr for step in plan.steps if isinstance(step, AddAddress)] == ["10.7.0.9/24"]


def test_shares_of_one_device_have_leases_of_their_own(bench: Bench) -> None:
    shares = (result("eth-1", "one", share_id="s1"), result("eth-1", "two", share_id="s2"))
    claim = a_claim("a", *shares, interface={"dhcp": True, "type": "macvlan"})
    first, second = bench.planner.decode(claim).dhcp

    assert (first.device, second.device) == ("eth-1/s1", "eth-1/s2")
    assert first.mac != second.mac


def test_dhcp_needs_ethernet(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.node, "read_mac", lambda _: ":".join(["80"] * 20))
    with pytest.raises(ClaimError, match=r"interface\.dhcp: needs an Ethernet device"):
        bench.planner.decode(a_claim("a", result("eth-1"), interface={"dhcp": True}))


def test_nobody_asks_a_server_for_admin_access(bench: Bench) -> None:
    admin = a_claim("a", result("eth-1", admin_access=True), interface={"dhcp": True})
    assert bench.planner.decode(admin).dhcp == ()


# --- who may have a device -----------------------------------------------------------------------------


def test_a_device_is_free_both_when_decoded_and_when_planned(bench: Bench) -> None:
    """Between the two, DHCP servers are asked without a lock."""
    late = bench.planner.decode(a_claim("late", result("eth-1"), pod="other"))
    bench.plan(a_claim("first", result("eth-1")))

    with pytest.raises(DeviceError) as caught:
        bench.planner.plan(late, Obtained())
    assert caught.value.reason is Reason.DEVICE_BUSY
    assert isinstance(caught.value, DeviceHeldError)
    with pytest.raises(DeviceError, match="prepared for claim default/claim-first"):
        bench.planner.decode(a_claim("later", result("eth-1")))


def test_a_whole_device_is_its_claims_alone_also_below_a_macvlan(bench: Bench) -> None:
    bench.plan(a_claim("first", result("eth-1"), interface={"type": "macvlan"}))

    assert bench.refusal(a_claim("second", result("eth-1"), pod="other")).reason is Reason.DEVICE_BUSY
    assert bench.refusal(share("third", type="macvlan")).reason is Reason.DEVICE_BUSY


def test_shares_of_a_device_go_to_several_pods(bench: Bench) -> None:
    for uid in ("a", "b", "c"):
        (device,) = bench.plan(share(uid, type="macvlan")).devices
        assert device.share_id == f"share-{uid}"
    assert bench.refusal(a_claim("whole", result("eth-1"), pod="other")).reason is Reason.DEVICE_BUSY


def test_what_the_allocation_took_is_recorded_and_a_function_has_all_of_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = result("eth-1", share_id="s", bandwidth=10**9)
    (device,) = bench.plan(a_claim("a", taken, interface={"type": "macvlan"})).devices
    assert device.bandwidth == 10**9
    function = replace(DEVICES["rail-0"], bandwidth=Bandwidth(25 * 10**9, None))
    monkeypatch.setitem(DEVICES, "rail-0", function)
    (device,) = bench.plan(a_claim("b", result("rail-0"), pod="pod-b")).devices
    assert device.bandwidth == 25 * 10**9
    assert device.plan is not None
    assert not any(isinstance(step, LimitRate) for step in device.plan.steps)


def test_a_share_cannot_move(bench: Bench) -> None:
    error = bench.refusal(share("a"))
    assert error.reason is Reason.UNSUPPORTED_CLAIM
    assert "set interface.type" in error.hint
    assert bench.refusal(share("b", device="hca-0")).reason is Reason.UNSUPPORTED_CLAIM


def test_a_shared_device_does_not_move_where_the_cluster_knows_no_shares(bench: Bench) -> None:
    """The API server dropped ``allowMultipleAllocations``; others may have links on top all the same."""
    error = bench.refusal(a_claim("a", result("parent-0")))
    assert error.reason is Reason.UNSUPPORTED_CLAIM
    assert bench.plan(a_claim("b", result("parent-0"), interface={"type": "macvlan"})).plans


def test_a_device_twice_in_a_claim_must_be_two_shares(bench: Bench) -> None:
    twice = a_claim("a", result("eth-1", "one"), result("eth-1", "two"), interface={"type": "macvlan"})
    assert bench.refusal(twice).reason is Reason.DEVICE_BUSY


def test_links_on_one_parent_must_go_together(bench: Bench) -> None:
    bench.plan(share("a", type="ipvlan", ipvlan={"mode": "l2"}))
    busy = bench.refusal(share("b", type="ipvlan", ipvlan={"mode": "l3"}))

    assert busy.reason is Reason.DEVICE_BUSY
    assert "interface.ipvlan.mode: must be l2" in busy.message
    assert "claim default/claim-a (pod default/pod)" in busy.hint
    assert bench.refusal(share("c", type="macvlan")).reason is Reason.DEVICE_BUSY
    assert bench.plan(share("d", type="vlan", vlan={"id": 5})).plans
    assert bench.refusal(share("e", type="vlan", vlan={"id": 5})).reason is Reason.DEVICE_BUSY
    assert bench.plan(share("f", device="rail-0", type="macvlan")).plans


def test_what_an_earlier_boot_prepared_is_in_nobodys_way(bench: Bench) -> None:
    bench.plan(share("a", type="ipvlan"))
    bench.plan(a_claim("b", result("rail-0"), pod="other"))
    for record in bench.store.get_all():
        bench.store.put(replace(record, boot_id="earlier"))

    assert bench.plan(share("c", type="macvlan")).plans
    assert bench.plan(a_claim("d", result("rail-0"), pod="third")).plans


def test_a_setting_of_the_namespace_that_the_kernel_lacks_is_refused_by_name(bench: Bench) -> None:
    claim = a_claim(
        "c", result(ETH.name), sysctls={"net.ipv4.tcp_nonsense": 1, "net.ipv4.tcp_mtu_probing": 1}
    )
    error = bench.refusal(claim)
    assert error.message.endswith(
        'sysctls["net.ipv4.tcp_nonsense"]: the kernel of this node has no such setting'
    )


def test_a_physical_function_and_its_functions_are_never_prepared_together(bench: Bench) -> None:
    bench.plan(a_claim("a", result("vf-1")))
    assert bench.plan(a_claim("b", result("vf-2"), pod="other")).plans, "parts do not exclude each other"
    error = bench.refusal(a_claim("c", result("pf-0"), pod="third"))
    assert "pf-0 shares its hardware with vf-" in error.message
    for uid in ("a", "b"):
        bench.store.delete(uid)
    bench.plan(a_claim("c", result("pf-0"), pod="third"))
    assert "vf-1 shares its hardware with pf-0" in bench.refusal(a_claim("d", result("vf-1"))).message


@pytest.mark.parametrize(("first", "second"), [("vf-0", "pf-0"), ("pf-0", "vf-0")])
def test_a_physical_function_and_its_functions_are_never_prepared_together_also_where_one_was_not_counted(
    bench: Bench, first: str, second: str
) -> None:
    """The rule came, or went, while the first claim had its device."""
    bench.plan(a_claim("a", result(first)))
    error = bench.refusal(a_claim("b", result(second), pod="other"))
    assert f"{second} shares its hardware with {first}" in error.message


def test_a_physical_function_stays_while_a_function_has_settings_of_its_claim(bench: Bench) -> None:
    """They are restored through it: the next tenant would have them."""
    bench.plan(of_class("a", "bare-vf", vlan=100, trust=True))
    error = bench.refusal(a_claim("b", result("bare-pf"), pod="other"))
    assert "bare-pf shares its hardware with bare-vf" in error.message
    on_top = a_claim("c", result("bare-pf"), pod="other", interface={"type": "macvlan"})
    assert bench.plan(on_top).plans, "it stays on the node"


def test_without_rules_and_settings_a_physical_function_and_its_functions_are_apart(bench: Bench) -> None:
    bench.plan(a_claim("a", result("bare-vf")))
    assert bench.plan(a_claim("b", result("bare-pf"), pod="other")).plans


def of_class(uid: str, device: str, **vf: Any) -> Claim:
    claim = a_claim(uid, result(device))
    config = OpaqueConfig(ConfigSource.CLASS, "dra.net", {"interface": {"vf": vf}})
    return replace(claim, configs=(config,))


def test_what_a_virtual_function_had_is_recorded_with_what_comes_along(bench: Bench) -> None:
    (plan,) = bench.plan(of_class("a", "vf-1", vlan=100, trust=True)).plans
    assert SetVf(PF_ADDRESS, 1, VfSettings(vlan=100, trust=True)) in plan.steps
    assert plan.vf == VfSettings(trust=False, vlan=7, qos=1)
    assert bench.store.get("a") is not None
    assert [asked for asked in bench.node.asked if asked.startswith("vf ")] == [f"vf {PF_ADDRESS} 1"]


def test_the_rate_of_a_function_with_a_bandwidth_is_recorded_also_where_nothing_is_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEVICES, "vf-1", replace(VF_1, bandwidth=Bandwidth(10 * 10**9, None)))
    (plan,) = bench.plan(a_claim("a", result("vf-1"))).plans
    assert SetVf(PF_ADDRESS, 1, VfSettings(max_tx_rate=10_000)) in plan.steps
    assert plan.vf == VfSettings(min_tx_rate=0, max_tx_rate=0)


def test_a_device_that_is_no_virtual_function_is_not_administered(bench: Bench) -> None:
    error = bench.refusal(of_class("a", "eth-1", vlan=100))
    assert "interface.vf: the device is no SR-IOV virtual function" in error.message


def test_a_claim_administers_only_what_its_class_allows_by_name(bench: Bench) -> None:
    error = bench.refusal(a_claim("a", result("vf-1"), interface={"vf": {"vlan": 100}}))
    assert "interface.vf.vlan: must not be set by a claim: only a DeviceClass" in error.message
