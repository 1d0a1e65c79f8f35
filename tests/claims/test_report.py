"""Device status: DraNet's conditions on success, the error's reason on failure, the API's limits always."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from dranet.claims.alignment import AlignmentCandidate, Better, Measured, Verdict
from dranet.claims.report import (
    DATA_KEYS,
    add_alignment,
    find_attached,
    report_attach_failed,
    report_attached,
    report_lease_lost,
    report_prepare_failed,
    report_prepared,
    report_release_failed,
    report_released,
)
from dranet.errors import KernelError, Reason
from dranet.model.claim import AllocationResult
from dranet.model.device import Device, DeviceKind, Doubt, GpuSource, PodGpu
from dranet.model.facts import CharDevice, Distance, Route
from dranet.model.plan import (
    AddRoute,
    AddRule,
    AttachPlan,
    CreateLink,
    DhcpLease,
    JoinVrf,
    LinkState,
    MoveLink,
    MoveRdma,
    PreparedDevice,
    RdmaAccess,
)
from dranet.model.status import AttachedLink, AttachedRoute, ConditionType, DeviceStatus, EventReason
from tools.pages.conditions import CONDITIONS, OF_THE_ERROR

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "status.md"

NIC = PreparedDevice(
    "nic", "node-1", Device("eth1", DeviceKind.NIC), plan=AttachPlan("eth1"), share_id="share"
)
GPU = PreparedDevice("gpu", "node-1", Device("gpu-1", DeviceKind.GPU))
RDMA = PreparedDevice(
    "ib", "node-1", Device("ib1", DeviceKind.RDMA), plan=AttachPlan("ib1", (MoveRdma("mlx5_0"),))
)
ERROR = KernelError("no such luck", reason=Reason.ATTACH_FAILED)


def conditions(status: DeviceStatus) -> list[tuple[str, bool | None, str]]:
    return [(str(c.type), c.status, c.reason) for c in status.conditions]


def test_a_prepared_nic_waits_for_its_pod_and_is_neither_ready_nor_not() -> None:
    assert conditions(report_prepared("dra.net", NIC)) == [
        ("Prepared", True, "DevicePrepared"),
        ("Attached", None, "WaitingForPod"),
        ("Configured", None, "WaitingForPod"),
        ("NetworkReady", None, "WaitingForPod"),
        ("Ready", None, "WaitingForPod"),
    ]


def test_a_gpu_is_ready_once_prepared_and_says_nothing_of_a_network() -> None:
    assert conditions(report_prepared("dra.net", GPU)) == [
        ("Prepared", True, "DevicePrepared"),
        ("Ready", True, "DeviceReady"),
    ]


def test_admin_access_to_a_nic_makes_no_network_ready() -> None:
    status = report_prepared("dra.net", replace(NIC, plan=None, admin_access=True))

    assert conditions(status)[1:] == [("Ready", True, "DeviceReady")]


def test_an_attached_nic_reports_what_was_read_back_in_the_pod() -> None:
    link = AttachedLink("eth1", "net0", "02:00:00:00:00:01", 1500, ("10.0.0.5/24",))
    status = report_attached("dra.net", NIC, link)

    assert (status.driver, status.pool, status.device, status.share_id) == (
        "dra.net",
        "node-1",
        "eth1",
        "share",
    )
    assert (status.interface_name, status.hardware_address) == ("net0", "02:00:00:00:00:01")
    assert status.ips == ("10.0.0.5/24",)
    assert conditions(status) == [
        ("Prepared", True, "DevicePrepared"),
        ("Attached", True, "DeviceAttached"),
        ("Configured", True, "DeviceConfigured"),
        ("NetworkReady", True, "NetworkDeviceReady"),
        ("Ready", True, "NetworkDeviceReady"),
    ]


def test_links_on_top_of_one_device_are_told_apart_by_their_names_in_the_pod() -> None:
    nics = [replace(NIC, plan=AttachPlan("eth1", pod_ifname=name)) for name in ("net0", "net1")]
    links = [AttachedLink("eth1", name, f"02:00:00:00:00:0{name[-1]}", 1500) for name in ("net1", "net0")]

    assert [find_attached(nic, links) for nic in nics] == [links[1], links[0]]
    assert find_attached(replace(NIC, plan=AttachPlan("eth1", pod_ifname="net2")), links) is None
    assert find_attached(RDMA, links) is None
    assert find_attached(GPU, links) is None


def test_a_moved_rdma_link_has_a_condition_of_its_own() -> None:
    assert conditions(report_attached("dra.net", RDMA, None))[3:] == [
        ("RDMALinkReady", True, "RDMALinkReady"),
        ("NetworkReady", True, "RDMAOnlyDeviceReady"),
        ("Ready", True, "RDMAOnlyDeviceReady"),
    ]


def test_no_more_addresses_than_the_api_takes_and_none_twice() -> None:
    texts = tuple(f"10.0.{i}.1/24" for i in range(30))
    ips = report_attached("dra.net", NIC, AttachedLink("eth1", "net0", "", 1500, texts[:1] + texts)).ips

    assert ips == texts[:16]


def test_a_failed_attach_turns_every_condition_of_success_false() -> None:
    status = report_attach_failed("dra.net", RDMA, ERROR)

    assert conditions(status) == [
        ("Prepared", True, "DevicePrepared"),
        ("Attached", False, "AttachFailed"),
        ("Configured", False, "AttachFailed"),
        ("RDMALinkReady", False, "AttachFailed"),
        ("NetworkReady", False, "AttachFailed"),
        ("Ready", False, "AttachFailed"),
    ]
    assert status.conditions[1].message == "no such luck"


def test_a_failed_prepare_is_reported_for_the_result_it_was_asked_for() -> None:
    result = AllocationResult("nic", "dra.net", "node-1", "eth1", share_id="share")
    status = report_prepare_failed(result, ERROR)

    assert (status.device, status.share_id) == ("eth1", "share")
    assert conditions(status) == [("Prepared", False, "AttachFailed"), ("Ready", False, "AttachFailed")]


def test_a_gpu_of_a_claim_whose_nic_failed_is_ready_all_the_same() -> None:
    assert conditions(report_attach_failed("dra.net", GPU, ERROR))[1:] == [("Ready", True, "DeviceReady")]
    assert conditions(report_released("dra.net", GPU, ["dev-eth1: mtu"]))[1:] == [
        ("Ready", True, "DeviceReady")
    ]


def test_a_lease_that_has_ended_is_no_attach_that_failed() -> None:
    ended = KernelError("the lease of 10.7.0.9 has ended", reason=Reason.DHCP_LEASE_EXPIRED)
    attached = report_attached("dra.net", NIC, AttachedLink("eth1", "net0", "", 1500))

    assert conditions(report_lease_lost(attached, ended)) == [
        ("Prepared", True, "DevicePrepared"),
        ("Attached", True, "DeviceAttached"),
        ("Configured", False, "DHCPLeaseExpired"),
        ("NetworkReady", False, "DHCPLeaseExpired"),
        ("Ready", False, "DHCPLeaseExpired"),
    ]


def test_a_device_that_came_back_whole_is_released() -> None:
    assert conditions(report_released("dra.net", NIC, ())) == [
        ("Prepared", True, "DevicePrepared"),
        ("Attached", False, "DeviceReleased"),
        ("Configured", False, "DeviceReleased"),
        ("NetworkReady", False, "DeviceReleased"),
        ("Ready", False, "DeviceReleased"),
        ("Released", True, "DeviceReleased"),
    ]


def test_a_device_that_did_not_come_back_whole_says_what_differs() -> None:
    status = report_released("dra.net", NIC, ["eth1: mtu: wanted 1500, found 9000", "eth1: alias"])
    assert conditions(status)[-1] == ("Released", False, "HostStateNotRestored")
    assert status.conditions[-1].message == "eth1: mtu: wanted 1500, found 9000; eth1: alias"


def test_a_device_that_is_stuck_is_not_released() -> None:
    stuck = KernelError("eth1 is busy", reason=Reason.DETACH_FAILED)
    assert conditions(report_release_failed("dra.net", NIC, stuck))[-2:] == [
        ("Ready", False, "DeviceReleased"),
        ("Released", False, "DetachFailed"),
    ]


# --- what the pod got ----------------------------------------------------------------------------------

PLACED = Device(
    "eth1",
    DeviceKind.NIC,
    pci_address="0000:23:00.0",
    pcie_root="pci0000:20",
    numa_node=0,
    rdma_device="mlx5_0",
)
LINK = AttachedLink("eth1", "net0", "02:00:00:00:00:01", 9000, ("10.0.0.5/24", "fd00::5/64"))


def test_data_says_what_the_pod_got_and_from_where() -> None:
    """Routes and rules as they were read back, whatever the plan has."""
    steps = (
        MoveLink("net0"),
        JoinVrf("rail", 1100),
        AddRoute(Route("10.1.0.0/16", gateway="10.0.0.9")),
        AddRoute(Route("10.7.0.0/16", gateway="10.0.0.9")),
        AddRule(4, table=100, source="10.0.0.9/32"),
    )
    routes = (
        AttachedRoute("10.1.0.0/16", ("10.0.0.1",)),
        AttachedRoute("10.2.0.0/16", ("10.0.0.1", "10.0.0.2")),
        AttachedRoute("10.3.0.0/16"),
        AttachedRoute("::/0", ("fd00::1",), table=100),
    )
    rules = (
        AddRule(4, table=100, priority=500, source="10.0.0.5/32"),
        AddRule(6, table=100, priority=501, mark=16, mask=255, input_interface="net0"),
    )
    lease = DhcpLease("10.0.0.5/24", "10.0.0.1", "02:00:00:00:00:99", LINK.mac, 1.7e9, 600, 300, 525)
    plan = AttachPlan("eth1", steps, "net0", LinkState(7, "enp35s0np0", LINK.mac, 1500, True), lease)
    rdma = RdmaAccess((CharDevice("/dev/infiniband/uverbs0", 231, 192),))
    prepared = PreparedDevice("nic", "node-1", PLACED, plan=plan, rdma=rdma)
    gids = ("fe80:0000:0000:0000:0000:00ff:fe00:0001",)

    assert report_attached(
        "dra.net", prepared, replace(LINK, gids=gids, routes=routes, rules=rules)
    ).data == {
        "interfaceName": "net0",
        "hostInterfaceName": "enp35s0np0",
        "type": "passthrough",
        "hardwareAddress": "02:00:00:00:00:01",
        "mtu": 9000,
        "rdmaDevice": "mlx5_0",
        "pciAddress": "0000:23:00.0",
        "pcieRoot": "pci0000:20",
        "numaNode": 0,
        "vrf": "rail",
        "dhcp": {"server": "10.0.0.1", "leaseSeconds": 600},
        "routeCount": 4,
        "addresses": ["10.0.0.5/24", "fd00::5/64"],
        "gids": list(gids),
        "routes": [
            {"destination": "10.1.0.0/16", "gateway": "10.0.0.1"},
            {"destination": "10.2.0.0/16", "gateway": "10.0.0.1, 10.0.0.2"},
            {"destination": "10.3.0.0/16"},
            {"destination": "::/0", "gateway": "fd00::1", "table": 100},
        ],
        "rules": [
            {"priority": 500, "table": 100, "source": "10.0.0.5/32"},
            {
                "priority": 501,
                "table": 100,
                "mark": "0x10",
                "mask": "0xff",
                "inputInterface": "net0",
                "family": "IPv6",
            },
        ],
    }


def test_data_of_a_link_on_top_names_the_device_below_and_no_rdma_device_that_the_pod_lacks() -> None:
    step = CreateLink("net0", "macvlan", 7, "enp35s0np0", "02:00:00:00:00:07")
    prepared = PreparedDevice("nic", "node-1", PLACED, plan=AttachPlan("eth1", (step,), "net0"))
    data = report_attached("dra.net", prepared, LINK).data

    assert (data["type"], data["hostInterfaceName"]) == ("macvlan", "enp35s0np0")
    assert "rdmaDevice" not in data


def test_the_name_of_the_rdma_device_in_the_pod_counts() -> None:
    named = replace(LINK, rdma_device="mlx5_7")
    assert report_attached("dra.net", replace(NIC, device=PLACED), named).data["rdmaDevice"] == "mlx5_7"


def test_what_is_empty_is_not_in_the_data() -> None:
    assert report_attached("dra.net", RDMA, None).data == {}
    assert report_prepared("dra.net", NIC).data == {}


def test_the_data_is_in_the_declared_order() -> None:
    data = report_attached("dra.net", replace(NIC, device=PLACED), LINK).data
    assert list(data) == [key for key in DATA_KEYS if key in data]


# --- the page ------------------------------------------------------------------------------------------


def every_verdict() -> Iterator[Verdict]:
    """Each distance, as good as it gets; one that is not; and each kind of doubt."""
    gpu = PodGpu(Device("gpu", DeviceKind.GPU), GpuSource.CLAIM)
    better = Better(AlignmentCandidate(Device("other", DeviceKind.NIC)), gpu, Distance.PIX)
    for found in (*Distance, None):
        yield Verdict((Measured(gpu, found),), gpu, found, found)
    yield Verdict((Measured(gpu, Distance.SYS),), gpu, Distance.SYS, Distance.PIX, better, is_worse=True)
    for is_other in (True, False):
        yield Verdict((), None, None, None, doubts=(Doubt("somewhere", is_other),))


def every_status() -> Iterator[DeviceStatus]:
    """Each kind of device in each phase of its life."""
    verdicts = list(every_verdict())
    for kind in (NIC, RDMA, GPU):
        prepared = replace(kind, device=replace(kind.device, pcie_root="pci0000:20", numa_node=0))
        yield report_prepared("dra.net", prepared)
        yield report_attach_failed("dra.net", prepared, ERROR)
        yield report_released("dra.net", prepared, ())
        yield report_released("dra.net", prepared, ["mtu"])
        yield report_release_failed("dra.net", prepared, ERROR)
        attached = report_attached("dra.net", prepared, None)
        for verdict in verdicts if prepared.plan is not None else ():
            judged = add_alignment(attached, verdict)
            yield from (judged, report_lease_lost(judged, ERROR))
    yield report_prepare_failed(AllocationResult("nic", "dra.net", "p", "d"), ERROR)


def test_the_table_has_every_condition_that_is_written_and_no_other() -> None:
    written = {
        (c.type, c.status, OF_THE_ERROR if c.reason == ERROR.reason else c.reason)
        for status in every_status()
        for c in status.conditions
    }
    assert written == {(row.type, row.status, row.reason) for row in CONDITIONS}


def test_no_device_has_more_conditions_than_the_api_takes_nor_one_twice() -> None:
    for status in every_status():
        types = [condition.type for condition in status.conditions]
        assert len(types) == len(set(types)) <= 8


def rows_below(heading: str) -> list[tuple[str, ...]]:
    """Cells of the table below a heading of the page, without its head."""
    section = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def test_the_page_lists_every_condition_with_its_meaning() -> None:
    texts = {True: "True", False: "False", None: "Unknown"}
    assert rows_below("Conditions") == [
        (
            f"`{row.type}`",
            texts[row.status],
            f"`{row.reason}`" if row.reason else "the error's",
            row.meaning,
        )
        for row in CONDITIONS
    ]
    assert {row.type for row in CONDITIONS} == set(ConditionType)


def test_the_page_lists_every_key_of_the_data_in_the_order_of_their_worth() -> None:
    assert rows_below("Data") == [(f"`{key}`", meaning) for key, meaning in DATA_KEYS.items()]


def test_the_page_lists_every_reason_of_an_event_that_is_not_an_errors() -> None:
    listed = {reason for cells in rows_below("Events") for reason in re.findall(r"`(\w+)`", cells[0])}
    assert set(EventReason) <= listed
    assert listed <= {*EventReason, *Reason}
