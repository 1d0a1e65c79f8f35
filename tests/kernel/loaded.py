"""Real BPF programs that do nothing, put on hooks of links of a test by each way that there is.

They go with the descriptors and links of the test. What the kernel does not have skips the test by name.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from dranet.errors import KernelError
from dranet.kernel.discovery.programs import BPF_PROG_TYPE_SCHED_CLS, call_bpf
from dranet.kernel.netlink.socket import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    Request,
    attribute,
    attribute_text,
    attribute_u32,
    nested,
)
from dranet.kernel.netlink.tc import RTM_NEWTFILTER, TCMSG
from tests.support.namespaces import Namespace

XDP = 6
"""``BPF_PROG_TYPE_XDP``."""
BPF_XDP = 37
"""The attach type."""

_BPF_PROG_LOAD, _BPF_PROG_ATTACH, _BPF_LINK_CREATE = 5, 8, 28
_ETH_P_ALL_PRIO_1 = 1 << 16 | 0x0300
_RETURN_0 = struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)  # mov r0, 0; exit


@contextmanager
def loader() -> Iterator[Loader]:
    with ExitStack() as stack:
        yield Loader(stack)


class Loader:
    """Loads and attaches; closes what it opened at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def load(self, name: str, kind: int = BPF_PROG_TYPE_SCHED_CLS) -> int:
        """BPF_PROG_LOAD; returns the descriptor."""
        instructions, licence = ctypes.create_string_buffer(_RETURN_0), ctypes.create_string_buffer(b"GPL")
        attributes = struct.pack(
            "=IIQQIIQII16s",
            *(kind, len(_RETURN_0) // 8),
            *(ctypes.addressof(instructions), ctypes.addressof(licence)),
            *(0, 0, 0, 0, 0),  # no verifier log, any kernel version, no flags
            name.encode(),
        )
        try:
            return self._keep(call_bpf(_BPF_PROG_LOAD, attributes, "load BPF program")[0])
        except KernelError as error:
            if error.errno in (errno.EPERM, errno.ENOSYS):
                pytest.skip(f"no right to load BPF programs: {error.message}")
            raise

    def attach_by_link(self, node: Namespace, fd: int, ifindex: int, hook: int, flags: int = 0) -> int:
        """A BPF link on a TCX hook, or on XDP with the flag of a mode; returns its descriptor."""
        attributes = struct.pack("=IIII48x", fd, ifindex, hook, flags)
        return self._keep(self._attach(node, _BPF_LINK_CREATE, attributes))

    def attach_to_hook(self, node: Namespace, fd: int, ifindex: int, hook: int) -> None:
        """On a TCX hook without a BPF link."""
        self._attach(node, _BPF_PROG_ATTACH, struct.pack("=IIIIIIQ", ifindex, fd, hook, 0, 0, 0, 0))

    def _attach(self, node: Namespace, command: int, attributes: bytes) -> int:
        try:
            return node.run(lambda: call_bpf(command, attributes, "attach"))[0]
        except KernelError as error:
            if error.errno == errno.EINVAL:
                pytest.skip("this kernel has no TCX (before Linux 6.6)")
            raise

    def _keep(self, fd: int) -> int:
        self._stack.callback(os.close, fd)
        return fd


def attach_filter(
    node: Namespace, fd: int, ifindex: int, parent: int, name: bytes | None, chain: int = 0
) -> None:
    """What ``tc filter add ... bpf`` does, with any bytes as the name."""
    options = attribute_u32(6, fd) + (attribute(7, name + b"\0") if name is not None else b"")
    body = TCMSG.pack(0, ifindex, 0, parent, _ETH_P_ALL_PRIO_1)
    body += attribute_text(1, "bpf") + nested(2, options)
    if chain:
        body += attribute_u32(11, chain)
    request = Request(RTM_NEWTFILTER, body, NLM_F_CREATE | NLM_F_EXCL, operation="add filter")
    with node.netns.open_netlink() as rtnl:
        (outcome,) = rtnl.batch([request])
    if isinstance(outcome, KernelError):
        if outcome.errno == errno.ENOENT:
            pytest.skip("this kernel has no BPF filters (cls_bpf)")
        raise outcome


def add_hook(node: Namespace, link: str, kind: str) -> None:
    """A clsact or ingress qdisc."""
    command = ["tc", "-n", node.name, "qdisc", "add", "dev", link, kind]
    done = subprocess.run(command, capture_output=True, text=True)
    if "kind is unknown" in done.stderr:
        pytest.skip("this kernel has no traffic hooks (sch_ingress)")
    assert done.returncode == 0, done.stderr


def tc(node: Namespace, *arguments: str) -> str:
    """``tc`` in the node; must succeed."""
    done = subprocess.run(["tc", "-n", node.name, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ifindex_of(node: Namespace, name: str) -> int:
    return int(node.read_raw("link", "show", "dev", name)[0]["ifindex"])
