"""The commands of the pages that install, or tidy up, by a real kubectl against the API server stand-in.

kubectl does the installing here, and nothing of ours is between it and the manifests. The stand-in has no
schemas to offer, so kubectl's own check of fields is off; ``tests/tools/manifests/chart`` checks them against
published ones.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest

from dranet.cluster.client import ApiClient
from e2e.installation import NAME, SYSTEM_NAMESPACE, read_manifests
from e2e.objects import collection
from e2e.standin import open_standin
from testbed.debian.packages import Unavailable
from testbed.debian.program import KUBECTL
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from tests.e2e.running import list_names, start_command

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.usefixtures("kubectl")]

REPOSITORY = Path(__file__).parents[2]
_VARIABLE = "E2E_TEST_KUBECTL"


@pytest.fixture
def kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetched once, before the private tree; skips by name where it cannot be had."""
    try:
        monkeypatch.setenv(_VARIABLE, str(KUBECTL.fetch()))
    except Unavailable as error:
        pytest.skip(str(error))


async def run_kubectl(kubeconfig: Path, *arguments: str) -> str:
    command = [
        os.environ[_VARIABLE],
        "--kubeconfig",
        str(kubeconfig),
        "--cache-dir",
        str(WORK_DIR / "kubectl"),
    ]
    done = await asyncio.to_thread(
        subprocess.run, [*command, *arguments], capture_output=True, text=True, timeout=60, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_manifests_are_applied_restarted_and_taken_away() -> None:
    async def story() -> None:
        async with (
            open_standin(load_hardware("two-nic"), WORK_DIR) as access,
            ApiClient.from_kubeconfig(access.kubeconfig, user_agent="test") as api,
        ):
            daemon_set = f"{collection('apps/v1', 'DaemonSet', SYSTEM_NAMESPACE)}/{NAME}"
            said = await run_kubectl(access.kubeconfig, "apply", "--validate=false", "-k", "deploy")
            assert f"daemonset.apps/{NAME} created" in said
            classes = [item["metadata"]["name"] for item in read_manifests("deviceclasses.yaml")]
            listed = await run_kubectl(access.kubeconfig, "get", "deviceclasses", "-o", "name")
            assert {line.partition("/")[2] for line in listed.split()} == set(classes)
            before = (await api.get(daemon_set))["metadata"]["generation"]
            await run_kubectl(
                access.kubeconfig, "-n", SYSTEM_NAMESPACE, "rollout", "restart", f"daemonset/{NAME}"
            )
            assert (await api.get(daemon_set))["metadata"]["generation"] > before
            await run_kubectl(access.kubeconfig, "delete", "--ignore-not-found", "-k", "deploy")
            listed = await run_kubectl(access.kubeconfig, "get", "deviceclasses", "-o", "name")
            assert listed.split() == []

    asyncio.run(story())


def test_what_a_killed_suite_leaves_goes_by_the_commands_of_the_page() -> None:
    page = (REPOSITORY / "docs" / "dev" / "e2e.md").read_text()
    commands = re.findall(r"`kubectl (delete [^`]*)`", page)

    async def story() -> None:
        async with (
            open_standin(load_hardware("two-nic"), WORK_DIR) as access,
            ApiClient.from_kubeconfig(access.kubeconfig, user_agent="test") as api,
        ):
            before = await list_names(api)
            process = await start_command(access, "basics")
            assert process.stdout is not None
            async with asyncio.timeout(60):
                while b"An update with surge" not in await process.stdout.readline():
                    assert process.returncode is None
            process.kill()
            await process.wait()
            assert {"Pod first", "DeviceClass dranet-e2e"} < set(await list_names(api))
            for command in commands:
                await run_kubectl(access.kubeconfig, *command.split())
            assert await list_names(api) == before

    asyncio.run(story())
