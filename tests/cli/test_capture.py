"""``dranet capture`` on the real kernel of this machine, with a sysfs of its own."""

from __future__ import annotations

import argparse
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dranet import __version__
from dranet.cli import look
from dranet.errors import SettingsError
from dranet.model.capture import decode_capture
from testbed.node.hardware import load_hardware
from testbed.node.sysfs_tree import SysfsTree

A_UUID = "GPU-5f3c1e0a-3d42-41c7-9b15-0c7a4f001b00"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> SysfsTree:
    tree = SysfsTree(tmp_path_factory.mktemp("tree"), load_hardware("dgx-h100"))
    tree.write()
    return tree


def run(tree: SysfsTree, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    look.add_parser(parser.add_subparsers())
    roots = (f"--sysfs-root={tree.sysfs_root}", f"--procfs-root={tree.procfs_root}")
    return int(look.run(parser.parse_args(["capture", *roots, *arguments])))


def test_everything_that_a_scan_finds_goes_to_standard_output(
    tree: SysfsTree, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(tree, "--source", "a test") == 0
    written = decode_capture(capsysbinary.readouterr().out.decode())

    assert written.source == "a test"
    assert "lo" in [link.ifname for link in written.facts.links]
    assert "0000:1b:00.0" in [function.address for function in written.facts.pci_functions]
    assert A_UUID in [gpu.uuid for gpu in written.facts.gpus]


def test_without_a_source_the_program_and_the_kernel_are_named(
    tree: SysfsTree, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(tree)
    written = decode_capture(capsysbinary.readouterr().out.decode())

    assert written.source.startswith(f"captured by dranet {__version__} from ")
    assert written.facts.host.kernel in written.source


def test_warnings_go_to_standard_error(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    odd = SysfsTree(tmp_path, load_hardware("two-nic"))
    odd.write()
    (odd.sysfs_root / "bus/pci/devices/nonsense").mkdir()
    run(odd)
    output = capsysbinary.readouterr()

    assert any("nonsense" in warning for warning in decode_capture(output.out.decode()).facts.warnings)
    assert b"warning: " in output.err
    assert b"bus/pci/devices/nonsense: not a PCI address" in output.err


def test_a_file_is_written_for_its_owner_alone_and_says_what_is_in_it(
    tree: SysfsTree, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "node.json"
    assert run(tree, "--output-file", str(file)) == 0
    output = capsysbinary.readouterr()
    facts = decode_capture(file.read_text()).facts

    assert output.out == b""
    assert f"{file}: {len(facts.links)} link".encode() in output.err
    assert b"8 GPUs" in output.err
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_redacted_file_may_be_read_by_others_and_holds_no_uuid(
    tree: SysfsTree, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "node.json"
    before = os.umask(0o022)
    try:
        run(tree, "--redact", "--output-file", str(file))
    finally:
        os.umask(before)
    capsysbinary.readouterr()

    assert file.stat().st_mode & 0o777 == 0o644
    assert A_UUID not in file.read_text()
    assert decode_capture(file.read_text()).source.endswith(", redacted")


def test_a_capture_that_was_there_is_replaced_only_by_force(tree: SysfsTree, tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    file.write_text("old")
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="exists already"):
        run(tree, "--output-file", str(file))
    assert file.read_text() == "old"
    run(tree, "--output-file", str(file), "--force")

    assert decode_capture(file.read_text()).facts.gpus
    assert file.stat().st_mode & 0o777 == 0o600


def test_through_a_symbolic_link_its_target_is_replaced(tree: SysfsTree, tmp_path: Path) -> None:
    file, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(file)
    file.touch()
    run(tree, "--output-file", str(link), "--force")

    assert link.is_symlink()
    assert decode_capture(file.read_text()).facts.gpus


@pytest.mark.parametrize("value", ["node.json", "xml"])
def test_o_is_the_format_and_never_a_file(
    tree: SysfsTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=f"to write a file: --output-file {value}"):
        run(tree, "-o", value)
    assert run(tree, "-o", "json") == 0
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_a_file_is_replaced(tree: SysfsTree, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(SettingsError, match="is not a regular file"):
        run(tree, "--output-file", str(tmp_path))
    with pytest.raises(SettingsError, match="is not a regular file"):
        run(tree, "--output-file", str(tmp_path / "fifo"))
    assert (tmp_path / "fifo").is_fifo()


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(
    tree: SysfsTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"there is no folder .*/none"):
        run(tree, "--output-file", str(tmp_path / "none" / "node.json"))

    with pytest.raises(SettingsError, match="File name too long"):
        run(tree, "--output-file", str(tmp_path / ("x" * 300)))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(SettingsError, match="No space left on device"):
        run(tree, "--output-file", str(tmp_path / "node.json"))
    assert list(tmp_path.iterdir()) == []


def test_the_help_says_what_is_in_a_capture_and_what_redaction_takes_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    look.add_parser(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["capture", "--help"])
    text = " ".join(capsys.readouterr().out.split())

    for word in (
        "PCIe tree",
        "RDMA devices",
        "hardware and IP addresses",
        "UUIDs",
        "topology -f",
        "--redact",
    ):
        assert word in text


@pytest.mark.process
def test_another_machine_lists_the_devices_of_a_redacted_capture(tree: SysfsTree, tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    roots = (f"--sysfs-root={tree.sysfs_root}", f"--procfs-root={tree.procfs_root}")
    for command in (
        ("capture", "--redact", "--output-file", file, *roots),
        ("devices", "--facts", file, "-o", "json"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "dranet", *map(str, command)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    names = [device["name"] for device in json.loads(done.stdout)]

    assert "gpu-0000-1b-00-0" in names
