"""``dranet doctor`` as a person runs it, beside the real driver and where there is none."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass

import pytest

from dranet.settings import flag_name
from dranet.testbed.cluster import Testbed
from dranet.testbed.isolation import WORK_DIR
from dranet.testbed.node.hardware import load_hardware
from dranet.testbed.runtimes import stand_in
from tests.contract.calls import Calls
from tests.probe_port import fetch

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]

_SETTINGS = ("driver_name", "node_name", "kubeconfig", "kubelet_root", "state_dir", "cdi_dir", "nri_socket")


@dataclass(frozen=True)
class Diagnosis:
    exit_code: int
    findings: dict[str, str]
    """Severity by ``part: seen``."""

    def severity_of(self, text: str) -> str:
        (severity,) = {severity for seen, severity in self.findings.items() if text in seen}
        return severity

    @property
    def unfit(self) -> list[str]:
        return [seen for seen, severity in self.findings.items() if severity in ("problem", "warning")]


async def examine(testbed: Testbed) -> Diagnosis:
    settings = testbed._settings()
    given = {name: settings[name] for name in (*_SETTINGS, "bind_address", "sysfs_root")}
    flags = [part for name, value in given.items() for part in (flag_name(name), value)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dranet", "doctor", "-o", "json", *flags, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    findings = {f"{found['part']}: {found['seen']}": found["severity"] for found in json.loads(output)}
    assert process.returncode is not None
    return Diagnosis(process.returncode, findings)


def test_the_doctor_beside_a_driver_that_is_away_that_works_and_that_is_refused() -> None:
    async def scenario() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
            alone = await examine(testbed)
            assert alone.exit_code == 0
            assert alone.severity_of("no driver answers on 127.0.0.1:9177") == "warning"
            assert alone.severity_of("all that the driver's role allows") == "ok"
            assert alone.severity_of("device taints") == "ok"

            await testbed.driver.start()
            await testbed.driver.wait_ready(30)
            healthy = await examine(testbed)
            assert (healthy.exit_code, healthy.unfit) == (0, [])
            assert healthy.severity_of("kubelet: registered since") == "ok"
            assert healthy.severity_of("kubelet: watches device health (v1.DRAResourceHealth)") == "ok"
            assert healthy.severity_of("runtime: stand-in") == "ok"
            page = await asyncio.to_thread(fetch, "/readyz?verbose")
            assert "[+] slices\n" in page
            assert "[+] kubelet: registered since" in page

            await refuse(testbed)
            sick = await examine(testbed)
            assert sick.exit_code == 1
            assert sick.unfit == ["kubelet: refuses to register the driver: not today"]

    asyncio.run(scenario())


async def refuse(testbed: Testbed) -> None:
    import grpc.aio

    registry = testbed.places.kubelet_root / "plugins_registry"
    socket = next(path for path in registry.iterdir() if path.name.endswith("-reg.sock"))
    with pytest.raises(grpc.aio.AioRpcError):
        await Calls(socket, socket).notify(registered=False, error="not today")
