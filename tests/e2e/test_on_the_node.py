"""What the lanes do on a node: with real processes, and with a real containerd and etcd as far as they carry.

Kubernetes' own programs cannot be had here. Ones that end by themselves stand at their places, so that
everything before them is shown, and how the lane ends when one of them does.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.programs import KUBERNETES
from e2e.hands import ProcHands

REPOSITORY = Path(__file__).parents[2]
_UID = "6e4b6f5d-0f4c-4b8e-9a39-3c1c5d2f7a10"
_SHORT = (
    '#!/bin/sh\n[ "$1" = --version ] && { echo "Kubernetes v1.36.2"; exit; }\necho "ends at once"; exit 1\n'
)


@pytest.mark.runtime
@pytest.mark.timeout(180)
def test_the_lane_of_programs_boots_as_far_as_they_carry_and_leaves_nothing(tmp_path: Path) -> None:
    for name in KUBERNETES:
        (tmp_path / name).write_text(_SHORT)
        (tmp_path / name).chmod(0o755)
    places = [Path("/var/lib/kubelet"), Path("/var/lib/dranet"), Path("/etc/cdi"), Path("/var/run/nri")]
    before = [place.exists() for place in places]
    done = subprocess.run(
        [sys.executable, "-m", "e2e", "uplink-refused"],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "KUBE_BIN_DIR": str(tmp_path),
            "E2E_LOGS": str(tmp_path / "logs"),
            "E2E_IMAGE": "",
        },
        capture_output=True,
        text=True,
        timeout=170,
    )
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Kubernetes 1.36.2, containerd " in done.stdout
    assert "kube-apiserver ended by itself: ends at once" in done.stdout, "etcd was well, the image imported"
    assert done.stdout.endswith("0 passed, 1 failed, 0 skipped\n")
    assert "Traceback" not in done.stderr
    assert [place.exists() for place in places] == before


@pytest.mark.private_tree
@pytest.mark.testbed
def test_a_pods_processes_are_found_by_its_uid_under_either_cgroup_driver() -> None:
    """Runs in a private tree: the processes of one cgroup are told apart from all others there."""
    for name in (f"kubepods-pod{_UID.replace('-', '_')}.slice", f"pod{_UID}"):
        asyncio.run(_look_at(name))


async def _look_at(cgroup: str) -> None:
    hands = ProcHands()
    assert await hands.find_netns(_UID) == ""
    folder = _make_cgroup(cgroup)
    own = _read_inode("/proc/self/ns/net")
    process = await asyncio.create_subprocess_exec(
        "sleep", "600", env={"MARK": "mine", "PATH": os.environ["PATH"]}
    )
    try:
        _join(folder, process.pid)
        assert _read_inode(await hands.find_netns(_UID)) == own
        found = await hands.inspect_container(_UID)
        assert found is not None
        assert (found.id, found.env["MARK"], found.devices["/dev/null"]) == (str(process.pid), "mine", "1:3")
        with pytest.raises(Exception, match="has no driver process on the node; it has"):
            await hands.kill_driver(_UID)
    finally:
        process.kill()
        await process.wait()
        folder.rmdir()


def _read_inode(path: str) -> int:
    return Path(path).stat().st_ino


def _join(folder: Path, pid: int) -> None:
    (folder / "cgroup.procs").write_text(str(pid))


def _make_cgroup(name: str) -> Path:
    """In the first hierarchy that lets us."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            try:
                (Path(place) / name).mkdir()
            except OSError:
                continue
            return Path(place) / name
    sys.stdout.write("no cgroup can be made here\n")
    sys.exit(3)
