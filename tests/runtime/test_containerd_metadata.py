"""What containers find about their devices under a real containerd and runc: the files are read inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dranet.claims.report import file_name, mount_file
from dranet.driver.metadata import MetadataFiles
from dranet.model.claim import ClaimRef, Mount, PodRef
from dranet.model.plan import PreparedClaim, RequestMetadata
from dranet.runtime.containers import CdiDevice, CdiSpecs
from testbed.containerd.fetch import ContainerdUnavailable, Toolchain
from testbed.containerd.runtime import ContainerdRuntime
from testbed.runtime.contract import (
    ContainerSpec,
    RunningContainer,
    RunningSandbox,
    RuntimeFailure,
    SandboxSpec,
)
from testbed.runtimes import containerd
from tests.runtime import metadata_story
from tests.runtime.private_node import in_own_private_node
from tests.support import metadata_reader

pytestmark = pytest.mark.runtime

OURS, OTHERS = "dra.net", "other.example"
UID = "0b51c6a2-7d3f-4c19-9e5c-000000000001"
RECORD = PreparedClaim(ClaimRef("default", "nics", UID), PodRef("default", "pod", "pod-uid"), (), "boot")
FOLDER = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/nics/nic"


@in_own_private_node
def test_a_training_pod_and_a_monitoring_pod_find_what_concerns_them(
    toolchain: Toolchain, folder: Path
) -> None:
    metadata_story.play(containerd(toolchain), folder)


@asynccontextmanager
async def a_sandbox(
    toolchain: Toolchain, folder: Path
) -> AsyncIterator[tuple[ContainerdRuntime, RunningSandbox]]:
    runtime = ContainerdRuntime(toolchain, folder, folder / "nri.sock", folder / "cdi")
    try:
        await runtime.start()
    except ContainerdUnavailable as error:
        pytest.skip(str(error))
    try:
        yield runtime, await runtime.run_sandbox(SandboxSpec("default", "pod", "pod-uid"))
    finally:
        await runtime.stop()


def write_request(folder: Path, driver: str, *, whole_folder: bool, generations: int = 1) -> str:
    """A driver's file of the request and its CDI device, whose name is returned."""
    files = MetadataFiles(folder / driver, driver)
    for number in range(generations):
        files.write(UID, "nic", a_document(number))
    wanted = RequestMetadata("nic", whole_folder=whole_folder)
    mount: Mount = mount_file(RECORD, wanted, str(files.folder_of(UID, "nic")), driver)
    specs = CdiSpecs(folder / "cdi", driver)
    specs.write(UID, [CdiDevice("metadata_nic", mounts=(mount,))])
    return specs.device_id(UID, "metadata_nic")


def a_document(number: int) -> dict[str, object]:
    device = {"driver": OURS, "pool": "node", "name": f"nic-{number}"}
    claim = {"name": "nics", "namespace": "default", "uid": UID}
    return {"metadata": claim, "requests": [{"name": "nic", "devices": [device]}]}


async def read_generation(runtime: ContainerdRuntime, container: RunningContainer, driver: str) -> int:
    done = await runtime.exec_in_container(container, ("cat", f"{FOLDER}/{file_name(driver)}"))
    assert done.exit_code == 0, done.stderr
    return int(metadata_reader.decode(done.stdout.encode())["metadata"]["generation"])


@in_own_private_node
def test_a_file_alone_leaves_room_for_that_of_another_driver_and_a_folder_does_not(
    toolchain: Toolchain, folder: Path
) -> None:
    """Why a request that two drivers serve gets its file alone (docs/decisions/028)."""

    async def scenario() -> None:
        async with a_sandbox(toolchain, folder) as (runtime, sandbox):
            theirs = write_request(folder, OTHERS, whole_folder=False)
            ours = write_request(folder, OURS, whole_folder=False, generations=2)
            container = await runtime.create_container(sandbox, ContainerSpec("both", (ours, theirs)))
            assert await read_generation(runtime, container, OURS) == 2
            assert await read_generation(runtime, container, OTHERS) == 1
            ours = write_request(folder, OURS, whole_folder=True)
            with pytest.raises(RuntimeFailure, match="mount"):
                await runtime.create_container(sandbox, ContainerSpec("covered", (ours, theirs)))

    asyncio.run(scenario())


@in_own_private_node
def test_a_running_container_sees_a_file_replaced_in_its_folder_and_cannot_write_there(
    toolchain: Toolchain, folder: Path
) -> None:
    async def scenario() -> None:
        async with a_sandbox(toolchain, folder) as (runtime, sandbox):
            ours = write_request(folder, OURS, whole_folder=True)
            container = await runtime.create_container(sandbox, ContainerSpec("main", (ours,)))
            assert await read_generation(runtime, container, OURS) == 1
            MetadataFiles(folder / OURS, OURS).write(UID, "nic", a_document(7))
            assert await read_generation(runtime, container, OURS) == 2
            done = await runtime.exec_in_container(container, ("touch", f"{FOLDER}/x"))
            assert "Read-only file system" in done.stderr

    asyncio.run(scenario())
