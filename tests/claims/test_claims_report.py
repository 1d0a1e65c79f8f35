"""Device status: DraNet's conditions on success, the error's reason on failure, the API's limits always."""

from __future__ import annotations

from dataclasses import replace

from dranet.claims.report import (
    find_attached,
    report_attach_failed,
    report_attached,
    report_prepare_failed,
    report_prepared,
)
from dranet.errors import KernelError, Reason
from dranet.model.claim import AllocationResult
from dranet.model.device import Device, DeviceKind
from dranet.model.plan import AttachPlan, MoveRdma, PreparedDevice
from dranet.model.status import AttachedLink, DeviceStatus

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


def test_a_prepared_nic_is_not_ready_yet() -> None:
    assert conditions(report_prepared("dra.net", NIC)) == [("Prepared", True, "DevicePrepared")]


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
        ("Ready", True, "NetworkDeviceReady"),
        ("NetworkReady", True, "NetworkDeviceReady"),
    ]


def test_links_on_top_of_one_device_are_told_apart_by_their_names_in_the_pod() -> None:
    nics = [replace(NIC, plan=AttachPlan("eth1", pod_ifname=name)) for name in ("net0", "net1")]
    links = [AttachedLink("eth1", name, f"02:00:00:00:00:0{name[-1]}", 1500) for name in ("net1", "net0")]

    assert [find_attached(nic, links) for nic in nics] == [links[1], links[0]]
    assert find_attached(replace(NIC, plan=AttachPlan("eth1", pod_ifname="net2")), links) is None
    assert find_attached(RDMA, links) is None
    assert find_attached(GPU, links) is None


def test_a_moved_rdma_link_has_a_condition_of_its_own() -> None:
    assert conditions(report_attached("dra.net", RDMA, None))[1:] == [
        ("Ready", True, "RDMAOnlyDeviceReady"),
        ("NetworkReady", True, "RDMAOnlyDeviceReady"),
        ("RDMALinkReady", True, "RDMALinkReady"),
    ]


def test_no_more_addresses_than_the_api_takes_and_none_twice() -> None:
    texts = tuple(f"10.0.{i}.1/24" for i in range(30))
    ips = report_attached("dra.net", NIC, AttachedLink("eth1", "net0", "", 1500, texts[:1] + texts)).ips

    assert ips == texts[:16]


def test_a_failed_attach_turns_every_condition_of_success_false() -> None:
    status = report_attach_failed("dra.net", RDMA, ERROR)

    assert conditions(status) == [
        ("Prepared", True, "DevicePrepared"),
        ("Ready", False, "AttachFailed"),
        ("NetworkReady", False, "AttachFailed"),
        ("RDMALinkReady", False, "AttachFailed"),
    ]
    assert status.conditions[1].message == "no such luck"


def test_a_failed_prepare_is_reported_for_the_result_it_was_asked_for() -> None:
    result = AllocationResult("nic", "dra.net", "node-1", "eth1", share_id="share")
    status = report_prepare_failed(result, ERROR)

    assert (status.device, status.share_id) == ("eth1", "share")
    assert conditions(status) == [("Prepared", False, "AttachFailed"), ("Ready", False, "AttachFailed")]
