"""Sysctls of a namespace and its links, read back from /proc/sys."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import KernelError
from dranet.kernel.sysfs.files import link_sysctl_path, read_link_sysctls, read_sysctl, write_sysctl
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel


def value_of(node: Namespace, path: str) -> str:
    return node.run(lambda: Path("/proc/sys/net", path).read_text().strip())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("ipv4/conf/eth1/rp_filter", "2"),
        ("ipv6/conf/eth1/accept_ra", "0"),
        ("ipv4/neigh/eth1/gc_stale_time", "77"),
        ("ipv4/ip_local_port_range", "20000\t30000"),
        ("ipv4/conf/all/forwarding", "1"),
    ],
)
def test_a_value_is_written_in_the_callers_namespace_and_the_old_one_told(
    node: Namespace, pod: Namespace, path: str, value: str
) -> None:
    before = value_of(node, path)
    assert before != value
    if "eth1" not in path:
        elsewhere = value_of(pod, path)
    assert node.run(lambda: write_sysctl(path, value)) == before
    assert (value_of(node, path), node.run(lambda: read_sysctl(path))) == (value, value)
    if "eth1" not in path:
        assert value_of(pod, path) == elsewhere


def test_the_name_of_a_link_may_have_dots(node: Namespace) -> None:
    node.ip("link", "set", "eth1", "name", "eth1.5.x")
    node.run(lambda: write_sysctl("ipv4/conf/eth1.5.x/rp_filter", "2"))
    assert value_of(node, "ipv4/conf/eth1.5.x/rp_filter") == "2"
    assert value_of(node, "ipv4/conf/eth2/rp_filter") == "0"


def test_of_a_value_that_the_kernel_does_not_tell_nothing_was_there(node: Namespace) -> None:
    path = "ipv6/conf/eth1/stable_secret"
    with pytest.raises(KernelError) as caught:
        node.run(lambda: read_sysctl(path))
    assert (caught.value.errno, caught.value.operation) == (errno.EIO, "read-sysctl")
    assert node.run(lambda: write_sysctl(path, "2001:db8::1")) == ""
    assert value_of(node, path).endswith("0001")


REFUSED = {
    "no such file": ("ipv4/conf/eth1/warp", "1", errno.ENOENT),
    "no such link": ("ipv4/conf/eth9/rp_filter", "1", errno.ENOENT),
    "not a number": ("ipv4/conf/eth1/rp_filter", "many", errno.EINVAL),
    "out of range": ("ipv6/conf/eth1/mtu", "1", errno.EINVAL),
    "nothing": ("ipv4/conf/eth1/rp_filter", "", errno.EINVAL),
    "read-only": ("ipv4/conf/eth1/mc_forwarding", "1", errno.EACCES),
    "a folder": ("ipv4/conf/eth1", "1", errno.EISDIR),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_operation_path_value_and_errno(node: Namespace, case: str) -> None:
    path, value, number = REFUSED[case]
    with pytest.raises(KernelError) as caught:
        node.run(lambda: write_sysctl(path, value))
    assert (caught.value.errno, caught.value.operation) == (number, "set-sysctl")
    assert path in caught.value.message
    assert repr(value) in caught.value.message
    assert errno.errorcode[number] in caught.value.message


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "..",
        "../kernel/hostname",
        "ipv4/../../kernel/hostname",
        "/etc/passwd",
        "ipv4//tcp_rmem",
        "./x",
        "a\0b",
    ],
)
def test_a_path_never_leaves_the_network_sysctls(path: str) -> None:
    with pytest.raises(KernelError) as caught:
        read_sysctl(path)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(KernelError) as caught:
        write_sysctl(path, "1")
    assert caught.value.errno == errno.EINVAL


@given(st.text(max_size=40))
def test_any_text_is_a_path_below_the_root_or_an_error_of_ours(path: str) -> None:
    with suppress(KernelError):
        read_sysctl(path)


@pytest.mark.parametrize("name", ["", ".", "..", "all", "default", "no-such-link", "a/b", "../lo"])
def test_what_is_no_link_has_no_sysctls(name: str) -> None:
    assert read_link_sysctls(name) == {}


def test_what_is_read_of_a_link_can_be_written_back(node: Namespace) -> None:
    found = node.run(lambda: read_link_sysctls("eth1"))
    assert len(found) > 90

    def write_all() -> None:
        for key, value in found.items():
            write_sysctl(link_sysctl_path("eth1", key), value)

    node.run(write_all)
    assert node.run(lambda: read_link_sysctls("eth1")) == found
