"""What is installed: the driver's own image in the rendered DaemonSet, under its profile, in a containerd.

Its Python and C library make other system calls than this machine's, which the other tests of the profile
run.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.containerd.fetch import Toolchain
from testbed.driver.pod import DriverPod, DriverRuntime, driver_in_a_pod
from testbed.driver.pod_node import Programs
from testbed.driver.pod_spec import CONTAINER
from tests.runtime import fail_closed
from tests.runtime.conftest import ALL_LANES
from tests.runtime.private_node import REPOSITORY, in_own_private_node
from tests.runtime.rights import Trial, find_what_is_let_through
from tests.tools.image.conftest import build
from tools.image.build import Image, describe_image
from tools.image.slices import PYTHON

pytestmark = [pytest.mark.runtime, pytest.mark.usefixtures("image")]

DAEMONSET = REPOSITORY / "deploy" / "daemonset.yaml"
PYTHON_OF_IMAGE = f"/usr/bin/{PYTHON}"
_FOLDER = "TEST_IMAGE_FOLDER"


@pytest.fixture(scope="module")
def image() -> Image:
    """Built before the private tree, which has no network and finds it by the variable."""
    if _FOLDER not in os.environ:
        os.environ[_FOLDER] = str(build().folder)
    return describe_image(Path(os.environ[_FOLDER]))


async def the_image_does_its_work(pod: fail_closed.Pod) -> None:
    driver, runtime = pod.testbed.driver, pod.testbed.runtime
    assert isinstance(driver, DriverPod)
    assert isinstance(runtime, DriverRuntime)
    (container,) = (c for c in runtime.spec["containers"] if c["name"] == CONTAINER)
    async with asyncio.timeout(fail_closed.SECONDS):
        while (probe := await driver.run_in_container(*_read_probe(container))).exit_code:
            assert probe.stderr.startswith("not ready"), probe.stderr
            await asyncio.sleep(0.1)
    python = await driver.run_in_container(PYTHON_OF_IMAGE, "-c", "import sys; print(sys.prefix)")
    assert python.stdout == "/usr\n"
    assert await Trial(pod).tell_whole_story() == []


async def the_image_does_its_work_and_no_harm(pod: fail_closed.Pod) -> None:
    assert await find_what_is_let_through(pod, PYTHON_OF_IMAGE) == ""
    await the_image_does_its_work(pod)


def _read_probe(container: Mapping[str, Any]) -> list[str]:
    command: list[str] = container["readinessProbe"]["exec"]["command"]
    return command


async def with_the_profile_of_the_runtime(pod: fail_closed.Pod) -> None:
    """The chart offers it in place of the driver's own."""
    driver, runtime = pod.testbed.driver, pod.testbed.runtime
    assert isinstance(driver, DriverPod)
    assert isinstance(runtime, DriverRuntime)
    for container in runtime.spec["containers"]:
        container["securityContext"]["seccompProfile"] = {"type": "RuntimeDefault"}
    await driver.kill()
    await driver.renew()
    await driver.start()
    await the_image_does_its_work(pod)
    await driver.start()
    assert "unshare mounts: done" in await find_what_is_let_through(pod, PYTHON_OF_IMAGE)


STORIES = {
    story.__name__: story for story in (the_image_does_its_work_and_no_harm, with_the_profile_of_the_runtime)
}
IN_EACH_RUN = ("the_image_does_its_work_and_no_harm",)
"""All of them with ``make test-runtime``."""


@pytest.fixture(params=list(STORIES) if os.environ.get(ALL_LANES) else IN_EACH_RUN)
def story(request: pytest.FixtureRequest) -> fail_closed.Story:
    return STORIES[str(request.param)]


@pytest.mark.usefixtures("story")
@in_own_private_node
def test_the_image_runs_with_the_rights_of_the_daemonset(
    toolchain: Toolchain, folder: Path, image: Image, story: fail_closed.Story
) -> None:
    programs = Programs(image.name, image.archive)
    fail_closed.play(driver_in_a_pod(toolchain, DAEMONSET, programs), folder, story)
