"""The store's disk is full, or read-only, and the driver has no file descriptor left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from dranet.cluster import paths
from testbed.cluster import NAMESPACE
from tests.survival.environment import Stage
from tests.survival.faults.common import MOVED_NIC, begin, end, wait_log
from tests.survival.objects import Way

DISK_BYTES = 2 << 20
"""Of the small disk: a store with a few claims takes some 100 KiB."""


async def full_disk(stage: Stage) -> None:
    """Prepare fails with the disk's word, and nothing else does: who ends meanwhile gives its NIC back."""
    async with _own_disk(stage) as disk:
        await begin(stage)
        filling = disk / "filling"
        await asyncio.to_thread(_fill, filling)
        since = stage.log_size()
        await stage.add_pod("late", Way.SHARED, number=2)
        await wait_log(stage, "STORE_UNWRITABLE|StoreUnwritable|disk is full", since)
        await stage.testbed.delete_pod("moved")
        await stage.until(lambda: _is_home(stage), "the NIC is back although the disk is full")
        assert stage.testbed.sandbox("shared")
        filling.unlink()
        await stage.wait_running("late")
        await stage.delete_pods("shared", "late")
        await stage.add_pod("moved-again")
        await stage.wait_running("moved-again")
        await stage.conclude("full disk")


async def read_only_store(stage: Stage) -> None:
    """As after an error of the disk. A driver that starts there serves: the pods keep their NICs, who ends
    gives its NIC back, and Prepare is refused until the disk is writable."""
    async with _own_disk(stage) as disk:
        await begin(stage)
        await stage.driver.kill()
        await asyncio.to_thread(_mount, "-o", f"remount,ro,size={DISK_BYTES}", str(disk))
        assert _refuses(disk / "probe") == errno.EROFS
        await stage.driver.start()
        await stage.driver.wait_ready(30)
        await stage.assert_well()
        await stage.add_pod("late", Way.SHARED, number=2)
        uid = stage.testbed.pod_uid("late")
        refusal = "Read-only file system"
        await stage.until(lambda: refusal in stage.testbed.kubelet.failure(uid), "Prepare is refused")
        await stage.testbed.delete_pod("moved")
        await stage.until(lambda: _is_home(stage), "the NIC is back although the disk is read-only")
        await asyncio.to_thread(_mount, "-o", f"remount,rw,size={DISK_BYTES}", str(disk))
        await stage.wait_running("late")
        await stage.testbed.kubelet.wait_gone(stage.testbed.pod_uid("moved"))
        await stage.delete_pods("late", "shared")
        await stage.testbed.api.delete(paths.resource_claim(NAMESPACE, "moved-1"))
        await begin(stage)
        await end(stage, "read-only store")


async def no_byte_to_any_file(stage: Stage) -> None:
    """The disk of a running driver takes nothing more (``RLIMIT_FSIZE``: a mount that is in use cannot be
    made read-only): Prepare fails, and who ends meanwhile gives its NIC back."""
    await begin(stage)
    pid = stage.driver.pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    await stage.add_pod("late", Way.SHARED, number=2)
    uid = stage.testbed.pod_uid("late")
    await stage.until(lambda: "cannot write" in stage.testbed.kubelet.failure(uid), "Prepare is refused")
    await stage.testbed.delete_pod("moved")
    await stage.until(lambda: _is_home(stage), "the NIC is back although nothing can be written")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    await stage.wait_running("late")
    assert stage.driver.pid == pid, "it lives on"
    await stage.testbed.kubelet.wait_gone(stage.testbed.pod_uid("moved"))
    await stage.delete_pods("late", "shared")
    await stage.testbed.api.delete(paths.resource_claim(NAMESPACE, "moved-1"))
    await begin(stage)
    await end(stage, "read-only store")


async def no_descriptors(stage: Stage) -> None:
    """The driver may open nothing more: no pod starts bare, and it goes on when it may."""
    await begin(stage)
    pid = stage.driver.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    since = stage.log_size()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (_count_open(pid), limits[1]))
    await stage.add_pod("late", Way.SHARED, number=2)
    uid = stage.testbed.pod_uid("late")
    await stage.until(lambda: bool(stage.testbed.kubelet.failure(uid)), "the kubelet cannot start it")
    await wait_log(stage, "(?i)too many open files", since)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    await stage.wait_running("late")
    assert stage.driver.pid == pid, "it lives on"
    await end(stage, "no file descriptors")


@contextlib.asynccontextmanager
async def _own_disk(stage: Stage) -> AsyncIterator[Path]:
    """The state folder on a small disk of its own. No pods, and no driver, before and afterwards."""
    await _end_driver(stage)
    folder = stage.testbed.places.work_dir / "state"
    folder.mkdir(exist_ok=True)
    await asyncio.to_thread(_mount, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        await _end_driver(stage)
        await asyncio.to_thread(subprocess.run, ["umount", str(folder)], check=True)


async def _end_driver(stage: Stage) -> None:
    if stage.driver.is_running:
        os.kill(stage.driver.pid, signal.SIGCONT)
        await stage.driver.stop(30)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def _fill(file: Path) -> None:
    """Until the disk refuses a single byte."""
    with file.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while out.write(bytes(4096)):
            pass
    assert _refuses(file.with_name("probe")) == errno.ENOSPC


def _refuses(file: Path) -> int:
    """The error number with which the disk refuses a byte in a new file; 0 where it takes it."""
    try:
        file.write_bytes(b"x")
    except OSError as error:
        return error.errno or 0
    finally:
        with contextlib.suppress(OSError):
            file.unlink()
    return 0


def _count_open(pid: int) -> int:
    """One more than its highest descriptor would be too many."""
    return max(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()) + 1


def _is_home(stage: Stage) -> bool:
    here = stage.testbed.node.nics_in("/proc/self/ns/net")
    return MOVED_NIC in {nic.nic.ifname for _, nic in here}
