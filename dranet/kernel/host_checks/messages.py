"""Kernel messages about NICs, RDMA, PCIe and GPUs (``/dev/kmsg``), for a support bundle."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path

from dranet.kernel.netlink.socket import kernel_error

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
    """The last of them, ``seconds message``; what is not about such devices is left out.

    Raises:
        KernelError: they may not be read (``kernel.dmesg_restrict``), or do not exist here.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise kernel_error(error.errno or 0, "", f"read {path}") from error
    try:
        return list(_collect(descriptor))
    finally:
        os.close(descriptor)


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
