"""RDMA netlink: what we send and read, against recorded shapes; the moves need a kernel with RDMA."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from dranet.errors import KernelError
from dranet.kernel.discovery import watch
from dranet.kernel.discovery.watch import EVERYTHING, Changes, parse_rdma_changes
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink import rdma as rdmanl
from dranet.kernel.netlink.rdma import read_netns_exclusive
from dranet.kernel.netlink.socket import (
    NETLINK_RDMA,
    Message,
    NetlinkSocket,
    Request,
    attribute,
    attribute_text,
)
from dranet.model.device import RdmaIdentity

GUIDS = {4: 0x0C42A10300211000, 11: 0x0C42A10300212000}


class RecordedRdma(NetlinkSocket):
    """A node with two RDMA devices; keeps what it is asked to do."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def dump(self, request: Request) -> list[bytes]:
        assert (request.type, request.body) == (5 << 10 | 1, b"")
        names = {4: "mlx5_1", 11: "mlx5_10"}
        return [
            attribute(1, struct.pack("=I", index))
            + attribute_text(2, name)
            + attribute(6, struct.pack("=Q", GUIDS[index]))
            for index, name in names.items()
        ]

    def request(self, request: Request) -> tuple[Message, ...]:
        self.requests.append(request)
        return ()


@pytest.mark.kernel
@pytest.mark.parametrize(
    "identity",
    [
        RdmaIdentity("mlx5_10"),
        RdmaIdentity("mlx5_10", "0c42:a103:0021:2000"),
        RdmaIdentity("mlx5_1", "0c42:a103:0021:2000"),
        RdmaIdentity("renamed", "0c42:a103:0021:2000", "0000:3b:00.0"),
    ],
)
def test_a_move_names_the_device_by_index_and_the_target_by_descriptor(identity: RdmaIdentity) -> None:
    rdma = RecordedRdma()
    with NetworkNamespace.current() as target:
        assert rdmanl._move(rdma, identity, target, target)
        (request,) = rdma.requests
        assert request.type == 5 << 10 | 2
        assert request.body == struct.pack("=HHIHHI", 8, 1, 11, 8, 68, target.fileno())


@pytest.mark.kernel
@pytest.mark.parametrize("identity", [RdmaIdentity("mlx5_2"), RdmaIdentity("mlx5_1", "0c42:a103:0021:3000")])
def test_a_device_that_is_elsewhere_is_not_moved(identity: RdmaIdentity) -> None:
    rdma = RecordedRdma()
    with NetworkNamespace.current() as target:
        assert not rdmanl._move(rdma, identity, target, target)
    assert rdma.requests == []


@pytest.mark.kernel
def test_a_device_gets_its_recorded_name_again() -> None:
    rdma = RecordedRdma()
    with NetworkNamespace.current() as home:
        assert rdmanl._restore_name(rdma, RdmaIdentity("mlx5_9", "0c42:a103:0021:1000"), home)
        (request,) = rdma.requests
        assert request.type == 5 << 10 | 2
        assert request.body == struct.pack("=HHI", 8, 1, 4) + attribute_text(2, "mlx5_9")
        rdma.requests.clear()
        assert rdmanl._restore_name(rdma, RdmaIdentity("mlx5_1", "0c42:a103:0021:1000"), home)
        assert not rdmanl._restore_name(rdma, RdmaIdentity("mlx5_1", "0c42:a103:0021:3000"), home)
        assert rdma.requests == []


@pytest.mark.parametrize(("number", "text"), [(0, ""), (GUIDS[4], "0c42:a103:0021:1000")])
def test_a_guid_reads_as_in_sysfs(number: int, text: str) -> None:
    assert rdmanl.format_guid(number) == text


@pytest.mark.parametrize(("mode", "exclusive"), [(b"\0", True), (b"\1", False)])
def test_the_namespace_mode_is_read(mode: bytes, exclusive: bool) -> None:
    assert rdmanl._is_exclusive(Message(0, attribute(66, mode))) is exclusive


def test_an_answer_without_a_mode_reads_as_shared() -> None:
    assert not rdmanl._is_exclusive(Message(0, attribute(93, b"\0")))


def test_a_kernel_without_rdma_reads_as_shared_and_warns_of_nothing() -> None:
    try:
        NetlinkSocket.open(NETLINK_RDMA).close()
    except KernelError:
        pass
    else:
        pytest.skip("this kernel has RDMA netlink")
    warnings: list[str] = []
    assert not read_netns_exclusive(warnings)
    assert warnings == []


@pytest.mark.kernel
def test_the_mode_agrees_with_the_rdma_tool() -> None:
    if not Path("/sys/class/infiniband").is_dir() or shutil.which("rdma") is None:
        pytest.skip("this kernel has no RDMA core, or there is no rdma tool")
    # Not as JSON: iproute2 6.15 prints text all the same.
    told = subprocess.run(["rdma", "system", "show"], check=True, capture_output=True, text=True).stdout
    assert told.startswith("netns ")
    assert read_netns_exclusive([]) is told.startswith("netns exclusive")


# --- notifications (Linux 6.12; the layout is that of drivers/infiniband/core/nldev.c) ------------------


def notification(*attributes: bytes) -> bytes:
    payload = b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(payload), 5 << 10 | 28, 0, 0, 0) + payload


def test_a_notification_names_the_device_and_the_interface_on_it() -> None:
    device = attribute(1, struct.pack("=I", 4)) + attribute_text(2, "mlx5_1")
    interface = attribute(3, struct.pack("=I", 1)) + attribute(50, struct.pack("=I", 7))
    chunk = notification(device) + notification(device, interface)
    assert parse_rdma_changes(chunk) == Changes(links=frozenset({7}), hardware=frozenset({"mlx5_1"}))


def test_a_notification_without_a_name_may_be_anything() -> None:
    assert parse_rdma_changes(notification()) == EVERYTHING


def test_a_malformed_notification_is_refused() -> None:
    with pytest.raises(KernelError):
        parse_rdma_changes(notification(attribute_text(2, "mlx5_1"))[:-4] + b"\xff")


async def test_a_kernel_without_rdma_is_listened_to_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> socket.socket:
        raise KernelError("no such protocol")

    monkeypatch.setattr(watch, "open_notifications", refuse)
    listening = watch.ChangeWatch()
    listening._start_rdma_events()
    assert not listening._readers
