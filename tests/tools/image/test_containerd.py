"""A real containerd imports the archive and runs the driver from it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

import dranet
from testbed.cluster import Places
from testbed.containerd.fetch import ContainerdUnavailable, fetch_toolchain, find_toolchain
from testbed.containerd.runtime import ContainerdRuntime
from testbed.isolation import WORK_DIR
from tests.runtime.conftest import CACHE
from tests.tools.image.conftest import image_inside
from tools.image.build import Image

pytestmark = [pytest.mark.runtime, pytest.mark.private_tree, pytest.mark.usefixtures("containerd_here")]


@pytest.fixture
def containerd_here(image_here: Image) -> Image:
    """Both fetched, before the private tree, which has no network."""
    if os.geteuid() != 0:
        pytest.skip("NotRoot: containerd and runc need root")
    try:
        fetch_toolchain(CACHE, report=print)
    except ContainerdUnavailable as error:
        pytest.skip(str(error))
    return image_here


def test_a_container_of_the_archive_runs_the_driver_without_any_right() -> None:
    image, toolchain, places = image_inside(), find_toolchain(CACHE), Places(WORK_DIR)
    assert toolchain is not None
    places.make()
    runtime = ContainerdRuntime(toolchain, WORK_DIR / "containerd", places.nri_socket, places.cdi_dir)
    socket = str(runtime._layout.socket)
    ctr = (str(toolchain.bin_dir / "ctr"), "--address", socket, "--namespace", "k8s.io")
    environment = {**os.environ, "PATH": f"{toolchain.bin_dir}:{os.environ['PATH']}"}

    def call(*arguments: str | Path) -> str:
        command = [*ctr, *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def scenario() -> None:
        (WORK_DIR / "containerd").mkdir()
        await runtime.start()
        try:
            await asyncio.to_thread(call, "images", "import", "--digests", image.archive)
            images = await asyncio.to_thread(call, "images", "ls")
            assert f"{image.name} " in images
            assert image.digest in images
            run = ("run", "--rm", "--read-only", "--user", "65532:65532", image.name)
            said = await asyncio.to_thread(call, *run, "version", "/usr/bin/dranet", "--version")
            assert said.strip() == f"dranet {dranet.__version__}"
            help_text = await asyncio.to_thread(call, *run, "help")  # entry point and command of the image
            assert "Look after a node:" in help_text
        finally:
            await runtime.stop()

    asyncio.run(scenario())
