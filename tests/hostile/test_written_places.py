"""What the driver writes in a whole life of pods, and with which rights."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from testbed.cluster import DRIVER_NAME
from testbed.driver.process import COMMAND
from tests.contract.driver_node import READY_SECONDS, DrivenNode
from tests.hostile import fence

pytestmark = [pytest.mark.testbed, pytest.mark.shared_node, pytest.mark.timeout(300)]

SOCKETS = 2


def _rights(*folders: Path) -> dict[str, tuple[str, int]]:
    """Kind and mode of everything that lies there, the folders among it; links have no mode."""
    found = {}
    for path in (*folders, *_below(folders)):
        with contextlib.suppress(FileNotFoundError):  # the driver is at work: a passing name has passed
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode):
                found[str(path)] = (stat.filemode(mode)[0], stat.S_IMODE(mode))
    return found


def _below(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        for path, folders_there, files in os.walk(folder):
            yield from (Path(path, name) for name in (*folders_there, *files))


async def _live_with(node: DrivenNode, umask: int) -> dict[str, tuple[str, int]]:
    places, driver = node.testbed.places, node.testbed.driver
    await driver.stop()
    before = os.umask(umask)
    try:
        await node.start()
    finally:
        os.umask(before)
    await node.running_pod(f"pod-{umask:o}", f"claim-{umask:o}")
    plugin = places.kubelet_root / "plugins" / DRIVER_NAME
    return _rights(places.work_dir / "state", plugin, places.cdi_dir, node.calls.registration_socket)


async def test_sockets_files_and_folders_are_the_drivers_alone_whatever_its_umask(node: DrivenNode) -> None:
    for umask in (0o000, 0o077):
        found = await _live_with(node, umask)
        seen = _seen_by_containers(found)
        assert len([kind for kind, _ in found.values() if kind == "s"]) == SOCKETS
        for path, (kind, mode) in found.items():
            if path in seen or path == str(node.testbed.places.cdi_dir):
                continue
            assert mode & 0o077 == 0, (path, kind, oct(mode), oct(umask))
        assert set(seen.values()) == {0o755, 0o644}


def _seen_by_containers(found: dict[str, tuple[str, int]]) -> dict[str, int]:
    """What is mounted into containers: the folder of a request's metadata, and the file in it."""
    return {
        path: mode
        for path, (_, mode) in found.items()
        if "/metadata/" in path and len(path.partition("/metadata/")[2].split("/")) >= 2 and "/." not in path
    }


async def test_nothing_is_written_outside_of_the_drivers_own_folders(
    node: DrivenNode,
) -> None:
    places, driver = node.testbed.places, node.testbed.driver
    own = [
        places.work_dir / "state",
        places.cdi_dir,
        places.kubelet_root / "plugins",
        places.kubelet_root / "plugins_registry",
    ]
    await driver.stop()
    logged = driver.log_file.stat().st_size
    fence.share_root()
    fenced = (sys.executable, "-m", "tests.hostile.fence", *map(str, own), "--", *COMMAND)
    await _start(node, fenced)
    await node.running_pod("first", "first")
    await driver.kill()
    await _start(node, fenced)
    await node.testbed.delete_pod("first")
    await node.testbed.kubelet.wait_gone(node.testbed.pod_uid("first"))
    node.forget_pod("first")
    await node.running_pod("second", "second")
    asked = (places.work_dir, places.netns_dir, places.cdi_dir)
    writable = {folder: _can_write(driver.pid, folder) for folder in asked}
    assert writable == {places.work_dir: False, places.netns_dir: False, places.cdi_dir: True}
    await driver.stop()
    told = driver.log_file.read_bytes()[logged:].decode()
    assert "Read-only file system" not in told, told
    assert "Traceback" not in told, told


async def _start(node: DrivenNode, command: Sequence[str]) -> None:
    await node.testbed.driver.start({"kubeconfig": str(node._kubeconfig)}, command=command)
    await node.testbed.driver.wait_ready(READY_SECONDS)


def _can_write(pid: int, folder: Path) -> bool:
    """As the process sees the folder."""
    try:
        Path(f"/proc/{pid}/root{folder}/written").touch()
    except OSError as error:
        return error.errno != errno.EROFS
    return True
