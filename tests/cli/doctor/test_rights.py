"""What the doctor says of the rights of the driver's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.cli.doctor import examine as doctor_rights
from dranet.cli.doctor.examine import judge_rights, parse_mount_points
from dranet.desk.doctor.catalogue import CALL, CAPABILITY, FOLDER, GAIN
from dranet.kernel.netlink.socket import CAPABILITIES, Rights
from dranet.model.findings import Severity, find_worst
from dranet.security.context import CAPABILITIES as WANTED
from dranet.security.context import Capability
from dranet.settings import Settings

ALL = Rights(sum(1 << number for number in CAPABILITIES.values()), is_filtered=True, may_gain=False)
IN_A_POD = Settings(procfs_root=Path("/host/proc"))


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)


def have(monkeypatch: pytest.MonkeyPatch, rights: Rights, refused: dict[str, str] | None = None) -> None:
    monkeypatch.setattr(doctor_rights, "read_rights", lambda: rights)
    monkeypatch.setattr(doctor_rights, "try_calls", lambda: refused or {})


def test_numbers_of_capabilities_are_those_of_the_manifests() -> None:
    assert {each.name: each.number for each in WANTED} == dict(CAPABILITIES)


def test_all_rights_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, ALL)
    (finding,) = judge_rights(Settings())
    assert (finding.severity, finding.seen) == (Severity.OK, "all that the driver needs")


@pytest.mark.parametrize("capability", WANTED, ids=lambda each: each.name)
def test_a_capability_that_lacks_is_named_with_what_fails(
    monkeypatch: pytest.MonkeyPatch, capability: Capability
) -> None:
    have(monkeypatch, Rights(ALL.capabilities & ~(1 << capability.number), is_filtered=True, may_gain=False))
    (finding,) = judge_rights(Settings())
    assert finding.id == CAPABILITY
    assert f"CAP_{capability.name}" in finding.seen
    assert finding.matters == capability.without
    assert finding.severity is (Severity.WARNING if capability.feature else Severity.PROBLEM)


def test_a_call_that_is_refused_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, ALL, {"setns": "not permitted"})
    (finding,) = judge_rights(Settings())
    assert (finding.id, finding.severity) == (CALL, Severity.PROBLEM)
    lacks = Rights(ALL.capabilities & ~(1 << 21), is_filtered=True, may_gain=False)
    have(monkeypatch, lacks, {"setns": "not permitted", "bpf": "not permitted", "mount-sysfs": "x"})
    assert [finding.id for finding in judge_rights(Settings())] == [CAPABILITY]


def test_a_process_that_may_gain_rights_is_told_in_a_pod_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, Rights(ALL.capabilities, is_filtered=True, may_gain=True))
    assert find_worst(judge_rights(Settings())) is Severity.OK
    assert GAIN in [finding.id for finding in judge_rights(IN_A_POD)]


def test_on_this_machine_without_a_pod_no_folder_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, ALL)
    folders = [finding for finding in judge_rights(IN_A_POD) if finding.id == FOLDER]
    assert any("/host/proc" in finding.seen for finding in folders)
    assert not [finding for finding in judge_rights(Settings()) if finding.id == FOLDER]


def test_who_is_not_root_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    (finding,) = judge_rights(Settings())
    assert finding.severity is Severity.NOTE


def test_mounts_that_later_ones_come_to_are_told_apart() -> None:
    text = (
        "170 131 0:43 /netns /run/netns ro,relatime master:6 - tmpfs tmpfs rw\n"
        "171 131 0:43 /cdi /var/run/cdi rw - tmpfs tmpfs rw\n"
        "odd\n"
    )
    assert parse_mount_points(text) == {"/run/netns": True, "/var/run/cdi": False}
