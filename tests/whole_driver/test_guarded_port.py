"""The port of a driver that works, with TLS and Kubernetes' authentication, and the doctor beside it."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dranet.settings import flag_name
from testbed.apiserver.identity import User
from testbed.cluster import Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.private_tree,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="no openssl program to make certificates with"
    ),
]

URL = "https://127.0.0.1:9177"
_FOR_DOCTOR = (
    "driver_name", "node_name", "kubeconfig", "kubelet_root", "state_dir", "cdi_dir", "nri_socket",
    "sysfs_root", "bind_address", "metrics_tls_cert", "metrics_tls_key", "metrics_authentication",
)  # fmt: skip


def make_pair(folder: Path) -> dict[str, str]:
    certificate, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=dranet",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return {"metrics_tls_cert": str(certificate), "metrics_tls_key": str(key)}


def fetch(path: str, certificate: str, token: str = "", host: str = "127.0.0.1:9177") -> tuple[int, str]:
    headers = {"Host": host} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(URL + path, headers=headers)
    tls = ssl.create_default_context(cafile=certificate)
    try:
        with urllib.request.urlopen(request, timeout=10, context=tls) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def examine(testbed: Testbed) -> dict[str, str]:
    settings = testbed._settings()
    flags = [part for name in _FOR_DOCTOR for part in (flag_name(name), settings[name])]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dranet",
        "doctor",
        "-o",
        "json",
        *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert output, errors.decode()
    document = json.loads(output)
    found = document if isinstance(document, list) else document["findings"]
    return {f"{finding['part']}: {finding['seen']}": finding["severity"] for finding in found}


def test_metrics_are_for_who_may_get_them_and_the_doctor_asks_the_port_all_the_same() -> None:
    async def scenario() -> None:
        WORK_DIR.mkdir(parents=True, exist_ok=True)
        pair = make_pair(WORK_DIR)
        certificate = pair["metrics_tls_cert"]
        settings = {**pair, "metrics_authentication": "kubernetes", "node_page": "all"}
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, settings) as testbed:
            testbed.server._tokens.users |= {
                "scraper": User("prometheus", ("system:masters",)),
                "reader": User("jane"),
            }
            await testbed.driver.start()
            await testbed.driver.wait_ready(30)

            async def ask(path: str, *given: str) -> tuple[int, str]:
                return await asyncio.to_thread(fetch, path, certificate, *given)

            assert (await ask("/healthz"))[0] == 200
            assert (await ask("/readyz"))[0] == 200
            assert (await ask("/metrics"))[0] == 401
            assert (await ask("/metrics", "made-up"))[0] == 401
            status, words = await ask("/metrics", "reader")
            assert (status, "user jane may not get /metrics" in words) == (403, True)
            status, words = await ask("/metrics", "scraper")
            assert (status, "dranet_ready" in words) == (200, True)
            assert (await ask("/", "", "10.0.0.9:9177"))[0] == 401, "a page for all asks who they are"
            assert (await ask("/", "scraper", "10.0.0.9:9177"))[0] == 200
            assert (await ask("/"))[0] == 200, "from the node itself"
            found = await examine(testbed)
            assert found["port: speaks TLS with the certificate that is in its file"] == "ok"
            assert any(seen.startswith("kubelet: registered since") for seen in found)
            assert found["permissions: all that the driver's role allows"] == "ok"

    asyncio.run(scenario())
