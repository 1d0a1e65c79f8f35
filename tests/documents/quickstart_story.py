"""The quickstart as it stands on its page, copied: the commands for the NIC, the settings, the manifests."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from testbed.cluster import RuntimeFactory, Testbed
from testbed.node.hardware import load_hardware
from testbed.scenario.on_testbed import OnTestbed
from testbed.scenario.scenario import DeletePods, ExpectClaimCondition, ExpectInPod, WaitPodRunning
from testbed.scenario.steps import perform
from testbed.scenario.walk import Walk

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/guides/quickstart.md"
FILES = PAGE.with_suffix("")

_ON_THE_NODE = re.compile(r"^docker exec \S+ (ip (?:link|address) (?:add|set) .*)$", re.MULTILINE)

_KNOCK = """
import errno, socket
with socket.socket() as one:
    one.settimeout(5)
    print(errno.errorcode[one.connect_ex(("10.99.0.1", 9))])
"""
"""In place of the page's ``ping``, which not every machine has: the node answers that nobody listens."""


def find_settings() -> dict[str, str]:
    """Of the values, as flags take them."""
    settings = yaml.safe_load((FILES / "values.yaml").read_text())["settings"]
    return {name: ",".join(given) if isinstance(given, list) else given for name, given in settings.items()}


def play(runtime: RuntimeFactory, work: Path) -> None:
    """From the NIC to the give-back, on one node with this runtime."""
    asyncio.run(_play(runtime, work))


async def _play(runtime: RuntimeFactory, work: Path) -> None:
    classes = yaml.safe_load_all((REPOSITORY / "deploy/deviceclasses.yaml").read_text())
    objects: list[dict[str, Any]] = [*classes, *yaml.safe_load_all((FILES / "pod.yaml").read_text())]
    async with Testbed(load_hardware("two-nic"), runtime, work) as testbed:
        for command in _ON_THE_NODE.findall(PAGE.read_text()):
            await asyncio.to_thread(subprocess.run, shlex.split(command), check=True)
        walk = Walk(OnTestbed(testbed), await asyncio.to_thread(testbed.node.snapshot))
        await testbed.driver.start(find_settings())
        await testbed.driver.wait_ready(60)
        offered = [device for one in await testbed.fetch_slices() for device in one["spec"]["devices"]]
        assert [device["attributes"]["dra.net/ifName"]["string"] for device in offered] == ["fast0"]
        await testbed.apply(objects)
        await _see_the_nic(walk)
        await perform(walk, DeletePods(pods=("first-nic",)))
        assert "10.99.0.2" not in _links()["fast0"]


async def _see_the_nic(walk: Walk) -> None:
    await perform(walk, WaitPodRunning(pods=("first-nic",), within=60))
    shown = ("ip", "address", "show", "net1")
    await perform(walk, ExpectInPod(pod="first-nic", command=shown, has=("UP", "10.99.0.2/24")))
    knock = (sys.executable, "-c", _KNOCK)
    await perform(walk, ExpectInPod(pod="first-nic", command=knock, has=("ECONNREFUSED",)))
    await perform(walk, ExpectClaimCondition(pod="first-nic", type="Ready", status="True"))
    assert "fast0" not in _links()


def _links() -> dict[str, str]:
    """Of the node: name -> state and addresses."""
    said = subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True, check=True)
    return {line.split()[0].partition("@")[0]: line for line in said.stdout.splitlines()}
