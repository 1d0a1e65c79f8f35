"""What ``dranet doctor`` asks of the running kernel: calls that the driver needs, and its messages. A seccomp
profile cannot be read back, so each call is tried where it changes nothing."""

from __future__ import annotations

import os
import re
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

from dranet.errors import KernelError
from dranet.kernel.discovery.programs import iter_program_ids
from dranet.kernel.namespaces.netns import NetworkNamespace, open_sysfs
from dranet.kernel.netlink.socket import is_refusal, kernel_error, open_raw_socket
from dranet.kernel.sysfs.files import closing_fd

_PROTOCOLS = (socket.NETLINK_ROUTE, 15, 16, 20)
"""Routing, uevents, generic, RDMA; a kernel without one returns another error."""


def try_calls() -> dict[str, str]:
    """What the kernel refused, by the name of the rule in the profile: the refusal in words."""
    refusals = {}
    for name, call in _TRIALS.items():
        try:
            call()
        except (KernelError, OSError) as error:
            if is_refusal(error.errno):
                refusals[name] = str(error)
    return refusals


def _enter_own_namespace() -> None:
    with NetworkNamespace.current() as own:
        own.run(lambda: None)


def _open_netlink() -> None:
    for protocol in _PROTOCOLS:
        try:
            open_raw_socket(protocol).close()
        except KernelError as error:
            if is_refusal(error.errno):
                raise


def _open_packet_socket() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0).close()


def _mount_own_sysfs() -> None:
    with NetworkNamespace.current() as own, open_sysfs(own):
        pass


_TRIALS: dict[str, Callable[[], object]] = {
    "socket-netlink": _open_netlink,
    "setns": _enter_own_namespace,
    "mount-sysfs": _mount_own_sysfs,
    "bpf": lambda: next(iter_program_ids(), None),
    "socket-packet": _open_packet_socket,
}


# --- kernel messages about NICs, RDMA, PCIe and GPUs (``/dev/kmsg``), for a support bundle -------------

KMSG = Path("/dev/kmsg")
MOST_LINES = 2000
_RECORD_BYTES = 8192
_MOST_RECORDS = 200_000
_ABOUT = re.compile(
    r"mlx|bnxt|\bice\b|\bi40e|\bixgbe|\bigb|\bena\b|\befa\b|gve|virtio_net|rdma|infiniband|\bib\d?[_:]|ib_|"
    r"roce|NVRM|nvidia|nvswitch|amdgpu|pcieport|\bAER\b|DMAR|AMD-Vi|iommu|link (?:is )?(?:up|down)|"
    r"renamed from|netdev|NETDEV|bond|dranet"
)


def read_kernel_messages(path: Path = KMSG) -> list[str]:
    """The last of them, ``seconds message``; what is not about such devices is left out. EPERM where they may
    not be read (``kernel.dmesg_restrict``)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise kernel_error(error.errno or 0, "", f"read {path}") from error
    with closing_fd(descriptor):
        return list(_collect(descriptor))


def _collect(descriptor: int) -> deque[str]:
    lines: deque[str] = deque(maxlen=MOST_LINES)
    for _ in range(_MOST_RECORDS):
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:  # all are read
            break
        except BrokenPipeError:  # the oldest were overwritten while we read
            continue
        except OSError as error:
            raise kernel_error(error.errno or 0, "", "read kernel messages") from error
        if not record:
            break
        line = parse_record(record.decode(errors="replace"))
        if _ABOUT.search(line):
            lines.append(line)
    return lines


def parse_record(record: str) -> str:
    """``6,1234,5678901,-;mlx5_core ...`` -> ``5.678901 mlx5_core ...``; the lines below are left out."""
    head, _, message = record.partition(";")
    fields = head.split(",")
    time = fields[2] if len(fields) > 2 and fields[2].isdecimal() else "0"
    return f"{int(time[:15]) / 1e6:.6f} {message.splitlines()[0] if message else ''}".rstrip()
