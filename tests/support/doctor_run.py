"""``dranet doctor`` beside a driver of the testbed, and a pod for it to see."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from dranet.settings import flag_name
from testbed.cluster import Testbed
from tests.support.objects import device_class

_SETTINGS = ("driver_name", "node_name", "kubeconfig", "kubelet_root", "state_dir", "cdi_dir", "nri_socket")

POD, CLAIM = "customer-acme-trainer", "customer-acme-nics"


def a_pod_with_a_nic() -> list[dict[str, Any]]:
    return [
        device_class("any", 'device.attributes["dra.net"].rdma'),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": CLAIM},
            "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "any"}}]}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD},
            "spec": {
                "resourceClaims": [{"name": "nic", "resourceClaimName": CLAIM}],
                "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
            },
        },
    ]


async def run_doctor(testbed: Testbed, *arguments: str) -> tuple[int, str, str]:
    settings = testbed._settings()
    given = {name: settings[name] for name in (*_SETTINGS, "bind_address", "sysfs_root")}
    flags = [part for name, value in given.items() for part in (flag_name(name), value)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dranet", "doctor", *arguments, *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()
