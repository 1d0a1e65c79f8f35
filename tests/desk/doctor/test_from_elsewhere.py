"""The doctor beside the node: in a debug container, with a capture, without the right to look."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.cli.doctor import examine as examining
from dranet.cli.doctor.examine import examine, look_around, look_below
from dranet.desk.doctor.catalogue import run_checks
from dranet.desk.doctor.checks import ClusterFacts
from dranet.model.findings import Finding, Severity
from dranet.settings import Settings
from dranet.view.options import read_capture
from tests.desk.doctor.healthy import HEALTHY

DATA = Path(__file__).parents[2] / "data"
CAPTURES = sorted(path for path in DATA.glob("*/capture.json"))
NOBODY = "127.0.0.1:1"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node's file system below a folder, as ``kubectl debug node`` mounts it at /host."""
    for folder in (
        "var/lib/kubelet/plugins_registry",
        "var/lib/kubelet/plugins/dra.net",
        "var/lib/dranet",
        "run/cdi",
        "run/nri",
        "etc",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "var/run").symlink_to("/run")
    with socket.socket(socket.AF_UNIX) as nri:
        monkeypatch.chdir(tmp_path)  # pytest's paths can be too long for a socket
        nri.bind("run/nri/nri.sock")
        nri.listen()
        yield Path()


@pytest.mark.socket
def test_in_a_debug_container_the_nodes_folders_are_looked_for_below_the_host_root(host: Path) -> None:
    found = examine(Settings(bind_address=NOBODY), host)
    assert [f for f in found.findings if f.severity is Severity.PROBLEM] == []
    assert [f.severity for f in found.findings if f.part == "places"] == [Severity.OK] * 6


@pytest.mark.socket
def test_in_a_debug_container_neither_its_rights_nor_its_token_are_taken_for_the_drivers(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    settings = Settings(bind_address=NOBODY, procfs_root=Path("/host/proc"))
    told = {f.part: f for f in examine(settings, host).findings if f.part in ("rights", "api")}
    assert {part: finding.severity for part, finding in told.items()} == {
        "rights": Severity.NOTE,
        "api": Severity.NOTE,
    }


def test_only_the_nodes_own_folders_move_and_each_once() -> None:
    settings = Settings(state_dir=Path("/host/state"))
    below = look_below(settings, Path("/host"))
    assert below.nri_socket == Path("/host/run/nri/nri.sock")  # /host/var/run would lead to our own /run
    assert below.kubelet_root == Path("/host/var/lib/kubelet")
    assert below.state_dir == Path("/host/state")
    assert below.sysfs_root == settings.sysfs_root
    assert look_below(settings, Path("/")) == look_below(settings, None) == settings


def test_what_may_not_be_read_at_all_is_a_finding_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Settings) -> None:
        raise PermissionError(13, "Permission denied", "/proc/1/root/sys")

    monkeypatch.setattr(examining, "make_scanner", refuse)
    blind: list[Finding] = []
    look_around(Settings(), ClusterFacts(), [], Path("/nowhere"), blind)
    (finding,) = blind
    assert (finding.id, finding.severity) == ("doctor-blind", Severity.WARNING)
    assert "/proc/1/root/sys" in finding.seen
    assert finding.fix


def test_that_devices_are_those_of_a_capture_is_said() -> None:
    blind: list[Finding] = []
    look_around(Settings(facts_file=CAPTURES[0]), ClusterFacts(), [], None, blind)
    (finding,) = blind
    assert str(CAPTURES[0]) in finding.seen


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.parent.name)
def test_a_machine_as_its_maker_sells_it_is_not_warned_of(capture: Path) -> None:
    """Second ports without a cable, cards for storage beside those of the fabric, uplinks."""
    node = read_capture(str(capture), "test").facts
    found = run_checks(replace(HEALTHY, node=node))
    assert [(f.id, f.seen) for f in found if f.severity in (Severity.WARNING, Severity.PROBLEM)] == []
