"""Whose refusal it was: a capability that lacks, a seccomp profile, or the kernel that has it not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranet.errors import KernelError
from dranet.kernel import host_trials
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink import socket as rights
from dranet.kernel.netlink.socket import CAPABILITIES, Rights, explain_refusal, is_refusal
from dranet.kernel.sysfs import files as node_proc

EVERY = sum(1 << number for number in CAPABILITIES.values())
PROFILE = "its seccomp profile may not let setns through: use the one of dranet seccomp"


def have(monkeypatch: pytest.MonkeyPatch, capabilities: int, *, is_filtered: bool) -> None:
    monkeypatch.setattr(rights, "read_rights", lambda: Rights(capabilities, is_filtered, may_gain=False))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENOSYS])
def test_a_profile_is_named_whatever_it_answers(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    have(monkeypatch, EVERY, is_filtered=True)
    assert explain_refusal(number, "SYS_ADMIN", "setns") == PROFILE
    assert is_refusal(number)


def test_without_a_profile_an_unknown_call_is_an_old_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, EVERY, is_filtered=False)
    assert explain_refusal(errno.ENOSYS, "SYS_ADMIN", "setns") == ""
    assert not is_refusal(errno.ENOSYS)
    assert is_refusal(errno.EPERM)
    assert not is_refusal(errno.ENOENT)


def test_a_capability_that_lacks_is_not_why_a_call_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 0, is_filtered=True)
    assert explain_refusal(errno.ENOSYS, "SYS_ADMIN", "setns") == PROFILE
    assert "lacks CAP_SYS_ADMIN" in explain_refusal(errno.EPERM, "SYS_ADMIN", "setns")


def test_a_call_that_a_profile_answers_with_enosys_is_one_that_the_doctor_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise KernelError("refused", errno=errno.ENOSYS, operation="try")

    monkeypatch.setattr(host_trials, "_TRIALS", {"bpf": refuse})
    have(monkeypatch, EVERY, is_filtered=True)
    assert list(host_trials.try_calls()) == ["bpf"]
    have(monkeypatch, EVERY, is_filtered=False)
    assert host_trials.try_calls() == {}


@pytest.fixture
def _own_proc_again() -> Iterator[None]:
    yield
    node_proc.use_node_proc(Path("/proc"))


@pytest.mark.kernel
@pytest.mark.usefixtures("_own_proc_again")
def test_a_process_that_the_runtime_names_is_one_of_the_nodes(tmp_path: Path) -> None:
    """Number 1 of the driver's container is the driver, on the node's network."""
    (tmp_path / "self").symlink_to("1")
    node_proc.use_node_proc(tmp_path)
    with pytest.raises(KernelError, match="/proc/1/ns/net: No such file"):
        NetworkNamespace.open("/proc/1/ns/net")
    NetworkNamespace.current().close()
    (tmp_path / f"{os.getpid()}/ns").mkdir(parents=True)
    (tmp_path / f"{os.getpid()}/ns/net").symlink_to("/proc/self/ns/net")
    with NetworkNamespace.open(f"/proc/{os.getpid()}/ns/net") as own, NetworkNamespace.current() as current:
        assert own == current


@pytest.mark.kernel
@pytest.mark.usefixtures("_own_proc_again")
def test_a_tree_without_processes_is_not_asked_for_them(tmp_path: Path) -> None:
    node_proc.use_node_proc(tmp_path)
    NetworkNamespace.open("/proc/self/ns/net").close()
    NetworkNamespace.open(f"/proc/{os.getpid()}/ns/net").close()
