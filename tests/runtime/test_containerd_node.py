"""Mounts, cgroups and processes that a containerd took, found by their marks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.containerd import node
from testbed.containerd.fetch import ContainerdUnavailable
from testbed.containerd.node import Mount

LINE = (
    r"36 35 98:0 /var/run\040x /mnt\0402 rw,noatime master:1 shared:2 - ext4 /dev/ro\134ot rw,errors=continue"
)

ROOT = Mount("8:1", "/", "/", "ext4", "/dev/sda1")
RUN = Mount("0:9", "/", "/run", "tmpfs", "tmpfs")
BOUND = Mount("8:1", "/var/lib/data", "/data", "ext4", "/dev/sda1")


def test_mountinfo_lines_are_unescaped_and_optional_fields_are_skipped() -> None:
    assert node.parse_mountinfo(LINE) == (Mount("98:0", "/var/run x", "/mnt 2", "ext4", "/dev/ro\\ot"),)


def test_our_own_mounts_can_be_read() -> None:
    assert "/" in {mount.target for mount in node.read_mounts()}


@pytest.mark.parametrize(
    ("inside", "source"),
    [
        (Mount("8:1", "/etc/hosts", "/etc/hosts", "ext4", "/dev/sda1"), "/etc/hosts"),
        (Mount("0:9", "/dranet/ready", "/ready", "tmpfs", "tmpfs"), "/run/dranet/ready"),
        (Mount("0:9", "/", "/host-run", "tmpfs", "tmpfs"), "/run"),
        (Mount("8:1", "/var/lib/data/a", "/a", "ext4", "/dev/sda1"), "/data/a"),
        (Mount("8:1", "/var/lib/database", "/a", "ext4", "/dev/sda1"), "/var/lib/database"),
        (Mount("0:77", "/", "/proc", "proc", "proc"), "proc"),
    ],
)
def test_a_mount_inside_is_traced_to_its_path_on_the_node(inside: Mount, source: str) -> None:
    assert node.find_source_on_node(inside, [ROOT, RUN, BOUND]) == source


@given(st.lists(st.text("abc", min_size=1), max_size=4))
def test_a_bind_of_any_folder_of_the_root_file_system_is_that_folder(parts: list[str]) -> None:
    folder = "/" + "/".join(parts)
    assert node.find_source_on_node(Mount("8:1", folder, "/m", "ext4", "x"), [ROOT]) == folder


def test_processes_outside_our_pid_namespace_are_never_touched(tmp_path: Path) -> None:
    """The kernel shows them as 0, which kill(2) takes for the caller's whole process group."""
    (tmp_path / "pod").mkdir()
    (tmp_path / "cgroup.procs").write_text("0\n")
    (tmp_path / "pod" / "cgroup.procs").write_text("12\n0\n")
    assert set(node._read_processes(tmp_path)) == {12}


def test_a_cgroup_that_goes_while_others_are_read_has_no_processes(tmp_path: Path) -> None:
    pods = [tmp_path / name for name in ("one", "two", "three")]
    for pod in pods:
        pod.mkdir()
        (pod / "cgroup.procs").write_text("12\n")
    found = node._read_processes(tmp_path)
    assert next(found) == 12
    for pod in pods:
        shutil.rmtree(pod)
    assert list(found) == []


@pytest.mark.process
def test_shims_are_found_by_the_socket_on_their_command_line(tmp_path: Path) -> None:
    shim = tmp_path / "containerd-shim-runc-v2"
    shim.symlink_to(sys.executable)
    wait = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [shim, "-c", wait, "-address", "/run/mine/c.sock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert node.find_shims(Path("/run/mine/c.sock")) == {process.pid}
            assert node.find_shims(Path("/run/mine/c.sock2")) == set()
        finally:
            os.kill(process.pid, signal.SIGKILL)


@pytest.mark.process
def test_killing_who_is_gone_already_is_fine() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    node.kill([child.pid])


def test_only_old_and_empty_cgroups_of_ours_are_swept(tmp_path: Path) -> None:
    for name in ("dranet-testbed-old", "dranet-testbed-new", "kubepods"):
        (tmp_path / name / "pod").mkdir(parents=True)
    (tmp_path / "dranet-testbed-busy").mkdir()
    (tmp_path / "dranet-testbed-busy" / "cgroup.procs").write_text("12\n")
    for name in ("dranet-testbed-old", "dranet-testbed-busy", "kubepods"):
        os.utime(tmp_path / name, (0, 0))
    node._sweep_stale_cgroups([tmp_path])
    assert {entry.name for entry in tmp_path.iterdir()} == {
        "dranet-testbed-new",
        "dranet-testbed-busy",
        "kubepods",
    }


def test_a_version_2_hierarchy_without_the_cpu_controller_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_UNIFIED_ROOT", tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpuset memory pids\n")
    with pytest.raises(ContainerdUnavailable, match=r"^NoCgroups: .* no cpu controller"):
        node._check_controllers(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    node._check_controllers(tmp_path)
