"""The support bundle: what is in it, who may read it, and what its maker is told."""

from __future__ import annotations

import gzip
import io
import json
import stat
import sys
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.cli.doctor import bundle
from dranet.cli.doctor.bundle import Piece, find_names, pack
from dranet.cli.doctor.examine import Examination
from dranet.cli.doctor.peers import trim_event
from dranet.cli.main import main
from dranet.desk.doctor.checks import ClusterFacts, Surroundings
from dranet.model.facts import Address, Host, Link, NodeFacts
from dranet.model.findings import Finding, HostFacts, Manager, Severity, TuningFacts, ok
from dranet.settings import Settings

NODE = NodeFacts(
    links=(Link(2, "eth0", mac="0c:42:a1:65:7b:22", addresses=(Address("10.20.30.40/24"),)),),
    host=Host("worker-7.corp.example"),
)
FINDINGS = (
    ok("settings", "driver dra.net on node worker-7.corp.example", "settings"),
    Finding("api", Severity.PROBLEM, "cannot reach https://api.corp.example:6443", "why", "do", "api-server"),
)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A node without a driver, whose findings and facts are known."""
    seen = Surroundings(Settings(), NODE, cluster=ClusterFacts("v1.36.0", "v1.36.0"))

    def examine(*_: object) -> Examination:
        return Examination(FINDINGS, seen)

    monkeypatch.setattr("dranet.cli.doctor.examine.examine", examine)
    monkeypatch.setenv("DRANET_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DRANET_KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("DRANET_BIND_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("DRANET_NODE_NAME", "worker-7.corp.example")


def read(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive]
        return {name.removeprefix("dranet-bundle/"): f.read().decode() for name, f in files if f is not None}


@pytest.mark.socket
@pytest.mark.usefixtures("look")
def test_it_is_whole_redacted_and_for_its_maker_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bundle.tgz"
    assert main(["doctor", "--bundle", str(file), "--fail-on", "never"]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file], "nothing is left beside it"
    files = read(file)
    manifest = json.loads(files["manifest.json"])
    assert next(iter(files)) == "manifest.json"
    assert [entry["file"] for entry in manifest["files"]] == sorted(set(files) - {"manifest.json"})
    assert {item["file"] for item in manifest["missing"]} >= {"claims.json", "metrics.txt", "readyz.json"}
    assert manifest["redacted"] is True
    for secret in ("corp", "worker-7", "65:7b:22", "10.20.30.40"):
        assert [name for name, text in files.items() if secret in text] == []
    told = capsys.readouterr().err
    assert f"{file}, readable by you alone: " in told
    assert "not collected: " in told
    assert "Look at it before you send it." in told


@pytest.mark.socket
@pytest.mark.usefixtures("look")
def test_who_asks_for_it_gets_it_as_it_is_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bundle.tgz"
    main(["doctor", "--bundle", str(file), "--no-redact"])
    files = read(file)
    assert "10.20.30.40" in files["capture.json"]
    assert "worker-7.corp.example" in files["findings.txt"]
    assert json.loads(files["manifest.json"])["redacted"] is False
    assert "NOT REDACTED" in capsys.readouterr().err


@pytest.mark.socket
@pytest.mark.usefixtures("look")
def test_it_can_go_to_standard_output_alone(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["doctor", "--bundle", "-", "--fail-on", "never"]) == 0
    sys.stdout.flush()
    shown = capfdbinary.readouterr()
    (tmp_path / "bundle.tgz").write_bytes(shown.out)
    assert "manifest.json" in read(tmp_path / "bundle.tgz")
    assert b"standard output: " in shown.err


@pytest.mark.socket
@pytest.mark.usefixtures("look")
def test_what_is_there_is_not_replaced_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bundle.tgz"
    file.write_text("mine")
    assert main(["doctor", "--bundle", str(file)]) == 2
    assert file.read_text() == "mine"
    assert "exists already" in capsys.readouterr().err
    assert main(["doctor", "--bundle", str(file), "--force", "--fail-on", "never"]) == 0
    assert "manifest.json" in read(file)


@pytest.mark.usefixtures("look")
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_or_a_place_that_is_none_is_refused_before_anything_is_collected(
    tmp_path: Path, force: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--bundle", str(tmp_path), *force]) == 2
    assert main(["doctor", "--bundle", str(tmp_path / "none/x.tgz"), *force]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.usefixtures("look")
def test_a_root_that_is_read_only_is_told_before_anything_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "dranet.view.output.os.access", lambda *_: False
    )  # root may write to each folder else
    assert main(["doctor", "--bundle", str(tmp_path / "bundle.tgz")]) == 2
    told = capsys.readouterr().err
    assert "cannot be written" in told
    assert "use --bundle - > bundle.tgz" in told
    assert "looking at" not in told


def test_of_an_event_goes_in_what_the_driver_said_and_nothing_that_others_wrote_at_it() -> None:
    event = {
        "metadata": {
            "name": "n.1",
            "namespace": "team",
            "annotations": {"acme.com/owner": "zeus"},
            "labels": {},
        },
        "reason": "Attached",
        "message": "words",
        "reportingComponent": "dra.net",
        "related": {"name": "zeus"},
    }
    assert trim_event(event) == {
        "metadata": {"name": "n.1", "namespace": "team"},
        "reason": "Attached",
        "message": "words",
        "reportingComponent": "dra.net",
    }
    assert trim_event({"metadata": 5}) == {"metadata": {}}


@pytest.mark.socket
@pytest.mark.usefixtures("look")
def test_findings_that_were_ignored_on_the_screen_are_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bundle.tgz"
    assert main(["doctor", "--bundle", str(file), "--ignore", "api-server"]) == 0
    assert "api-server" not in capsys.readouterr().out
    assert "api-server" in read(file)["findings.json"]


def test_the_same_pieces_in_any_order_make_the_same_archive() -> None:
    pieces = [Piece("b.txt", "b", "2"), Piece("a.txt", "a", "1"), Piece("c.txt", "c", missing="no")]

    def names(content: bytes) -> list[str]:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
            return [f"{m.name} {m.mtime} {m.uid} {m.mode:o}" for m in archive]

    first, second = pack(pieces, {}, True), pack(pieces[::-1], {}, True)
    assert names(first) == names(second)
    assert names(first)[1:] == ["dranet-bundle/a.txt 0 0 600", "dranet-bundle/b.txt 0 0 600"]


def test_it_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 10)
    monkeypatch.setattr(bundle, "MOST_TEXT", 5)
    content = pack([Piece("a", "a", "x" * 8), Piece("b", "b", "x" * 8)], {}, True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        manifest = archive.extractfile("dranet-bundle/manifest.json")
        assert manifest is not None
        document = json.load(manifest)
    assert [entry["file"] for entry in document["files"]] == ["a"]
    assert document["missing"][0]["why"] == "the bundle would exceed 10 bytes"
    assert bundle._try("a", "a", lambda: "x" * 8).text == "xxxxx\n... cut: 3 characters more\n"


def test_names_are_found_wherever_objects_are_named() -> None:
    claims = {
        "claims": [
            {"namespace": "team-a", "name": "nics", "pod": {"namespace": "team-a", "name": "trainer-0"}}
        ]
    }
    events = [{"metadata": {"name": "nics.17", "namespace": "team-b"}, "source": {"host": "worker-7"}}]
    texts = {
        "claims.json": json.dumps(claims),
        "events.json": json.dumps(events),
        "metrics.txt": 'dranet_x{pod="old-pod",device="pci-1"} 1',
        "findings.txt": "https://api.corp:6443 answers, https://10.0.0.1/ not",
    }
    cluster = ClusterFacts(resources=("acme.com/nics", "nvidia.com/gpu"))
    seen = Surroundings(Settings(node_name="n1"), replace(NODE, host=Host("n1.corp")), cluster=cluster)
    names = find_names(seen.settings, Examination((), seen), texts)
    expected = {
        "team-a": "namespace",
        "nics": "claim",
        "trainer-0": "pod",
        "nics.17": "object",
        "team-b": "namespace",
        "worker-7": "node",
        "old-pod": "pod",
        "api.corp": "host",
        "n1": "node",
        "n1.corp": "node",
        "acme.com": "domain",
    }
    assert expected.items() <= names.items()
    assert "pci-1" not in names
    assert "nvidia.com" not in names
    assert "10.0.0.1" not in names


def test_what_people_call_files_volumes_and_resources_is_found_and_usual_names_are_not() -> None:
    settings = Settings(kubeconfig="/root/initech-admin.conf", driver_name="nics.initech", node_name="n1")
    host = HostFacts(
        tuning=TuningFacts(swaps=("/dev/mapper/initech--vg-swap", "/swap.img", "/dev/sda2")),
        managers=(
            Manager("systemd-networkd", "eth0", "by /run/systemd/network/10-initech-rails.network"),
            Manager("systemd-networkd", "eth0", "by /run/systemd/network/10-netplan-eth0.network"),
            Manager("/etc/cni/net.d/00-multus.conf", "eth0", "macvlan"),
            Manager("NetworkManager", "eth0", "without a connection"),
        ),
    )
    cluster = ClusterFacts(resources=("nvidia.com/initech_vf", "nvidia.com/gpu"))
    seen = Surroundings(settings, NODE, host, cluster=cluster)
    names = find_names(settings, Examination((), seen), {})
    kinds = {name: kind for name, kind in names.items() if kind in ("file", "resource", "domain")}
    assert kinds == {
        "initech-admin": "file",
        "initech--vg-swap": "file",
        "10-initech-rails": "file",
        "initech_vf": "resource",
        "nics.initech": "domain",
    }


@pytest.mark.usefixtures("look")
def test_an_archive_is_not_written_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["doctor", "--bundle", "-"]) == 2
    told = capsys.readouterr()
    assert (told.out, "a terminal cannot show an archive" in told.err) == ("", True)
