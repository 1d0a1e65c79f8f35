"""How the tests start the suite as somebody does who types its command, and what they look for afterwards."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from pathlib import Path

from dranet.cluster.client import ApiClient
from e2e.access import Access
from e2e.objects import collection
from e2e.standin import open_standin
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware

REPOSITORY = Path(__file__).parents[2]
AS_IN_A_TERMINAL = ("env", "--default-signal=HUP,INT")
"""A test run in the background ignores these signals, and so would everything it starts."""


def without_own_variables() -> dict[str, str]:
    """The environment without what chooses a lane, or sets the driver."""
    ours = ("DRANET_", "KUBE", "E2E_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def on_standin(story: Callable[[Access, ApiClient], Awaitable[None]]) -> None:
    """Tell the story on a stand-in that is its own, in a private tree."""

    async def run() -> None:
        async with (
            open_standin(load_hardware("two-nic"), WORK_DIR) as access,
            ApiClient.from_kubeconfig(access.kubeconfig, user_agent="test") as api,
        ):
            await story(access, api)

    asyncio.run(run())


async def start_command(access: Access, *arguments: str) -> Process:
    wanted = {"KUBECONFIG": str(access.kubeconfig), "E2E_IMAGE": access.image}
    command = [*AS_IN_A_TERMINAL, sys.executable, "-u", "-m", "e2e", *arguments]
    return await asyncio.create_subprocess_exec(
        *command,
        cwd=REPOSITORY,
        env={**without_own_variables(), **wanted},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


async def list_names(api: ApiClient) -> list[str]:
    """Everything of the kinds that the suite makes, and the namespaces."""
    found = []
    for api_version, kind in [*_KINDS, ("v1", "Namespace")]:
        answer = await api.list(collection(api_version, kind))
        found += [f"{kind} {item['metadata']['name']}" for item in answer.get("items", ())]
    return sorted(found)


_KINDS = [
    ("v1", "ConfigMap"),
    ("v1", "Pod"),
    ("v1", "ServiceAccount"),
    ("apps/v1", "DaemonSet"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
    ("resource.k8s.io/v1", "DeviceClass"),
    ("resource.k8s.io/v1", "ResourceClaim"),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"),
]
