"""The node is rebooted, and things that a pod has vanish under it."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from pathlib import Path

from tests.survival.environment import Stage
from tests.survival.faults.common import MOVED_NIC, begin, end, in_pod
from tests.survival.faults.node_changes import (
    end_namespace,
    get_sandbox,
    send_uevent,
    set_up_again,
    unpin_namespace,
)
from tests.survival.verification import read_links


async def reboot(stage: Stage) -> None:
    """Once with the kubelet's checkpoint kept, once with it lost: the pods start anew."""
    for keeps_checkpoint in (True, False):
        await begin(stage)
        since, sandbox = stage.log_size(), get_sandbox(stage, "moved").id
        await _go_down(stage)
        await stage.driver.start()
        await stage.testbed.kubelet.start_after_reboot(keeps_checkpoint=keeps_checkpoint)
        await stage.ensure_driver()
        assert "prepared before the last reboot" in stage.log(since)
        await stage.wait_running("moved", "shared")
        assert get_sandbox(stage, "moved").id != sandbox
        await stage.assert_well()
        await stage.delete_all_pods()
    await begin(stage)
    await end(stage, "node reboot", tries=2)


async def _go_down(stage: Stage) -> None:
    """Driver and pods end without a word, ``/run`` is empty, the boot has another id, the NICs are set up."""
    testbed = stage.testbed
    await stage.driver.kill()
    sandboxes = [get_sandbox(stage, pod) for pod in ("moved", "shared")]
    await testbed.kubelet.stop()
    for sandbox in sandboxes:
        await asyncio.to_thread(testbed.node.reclaim, sandbox.netns_path)
        await stage.runtime.remove_sandbox(sandbox.id)
    for link, nic in await asyncio.to_thread(testbed.node.nics_in, "/proc/self/ns/net"):
        if nic.nic.ifname == MOVED_NIC:
            await asyncio.to_thread(set_up_again, nic, link["ifname"])
    shutil.rmtree(testbed.places.cdi_dir)
    testbed.places.cdi_dir.mkdir()
    boot_id = testbed.node.procfs_root / "sys/kernel/random/boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")


async def namespace_unpinned(stage: Stage) -> None:
    """Its name goes under a running pod, as some runtimes remove it before they tell of a pod's end."""
    await begin(stage)
    for pod in ("moved", "shared"):
        await unpin_namespace(Path(get_sandbox(stage, pod).netns_path))
    await stage.delete_all_pods()
    await begin(stage)
    await end(stage, "namespace deleted under a pod", tries=2)


async def namespace_gone(stage: Stage) -> None:
    """The namespace ends while the driver is dead, too: the NIC falls back under the name it had inside."""
    await begin(stage)
    await stage.driver.kill()
    await end_namespace(stage, "moved")
    await end_namespace(stage, "shared")
    assert "net1" in await asyncio.to_thread(_names_on_host, stage)
    await stage.start_driver()
    await stage.delete_all_pods()
    await begin(stage)
    await end(stage, "namespace gone, driver dead", tries=2)


def _names_on_host(stage: Stage) -> set[str]:
    return {link["ifname"] for link, _ in stage.testbed.node.nics_in("/proc/self/ns/net")}


async def link_deleted(stage: Stage) -> None:
    """A link on a shared NIC is deleted inside the pod: it comes back, and the status says so."""
    await begin(stage)
    before = await _read_ifindex(stage)
    await in_pod(stage, "shared", "ip", "link", "delete", "net1")
    await stage.assert_well()
    assert await _read_ifindex(stage) != before, "it is another one"
    await end(stage, "link deleted in the pod")


async def _read_ifindex(stage: Stage) -> int:
    links = await asyncio.to_thread(read_links, get_sandbox(stage, "shared").netns_path)
    return int(links["net1"]["ifindex"])


async def rdma_gone(stage: Stage) -> None:
    """An RDMA device disappears while its NIC is in a pod, stays away while that pod ends, and comes back."""
    await begin(stage)
    sysfs = stage.testbed.node.sysfs_root
    entries = [sysfs / "class/infiniband/mlx5_0", sysfs / "class/infiniband_verbs/uverbs0"]
    links = {entry: entry.readlink() for entry in entries}
    home = entries[0].resolve()
    for entry in entries:
        entry.unlink()
    hidden = home.parent.rename(stage.testbed.places.work_dir / "hidden")
    send_uevent("remove", f"/{home.relative_to(sysfs)}", "infiniband")
    await stage.delete_pods("moved")
    await stage.until(lambda: _count_rdma(stage) == 1, "one device with RDMA is offered")
    await stage.add_pod("moved")
    shutil.copytree(hidden, home.parent, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(hidden)
    for entry in entries:
        entry.symlink_to(links[entry])
    send_uevent("add", f"/{home.relative_to(sysfs)}", "infiniband")
    await stage.until(lambda: _count_rdma(stage) == 2, "both are again")
    await stage.wait_running("moved")
    await end(stage, "RDMA device gone")


def _count_rdma(stage: Stage) -> int:
    """Devices that the slices offer with RDMA."""
    return sum(
        device["attributes"].get("dra.net/rdma", device["attributes"].get("rdma", {})).get("bool", False)
        for content in stage.testbed.server.objects("resourceslices")
        for device in content["spec"].get("devices", ())
    )
