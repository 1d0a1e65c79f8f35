"""``dranet doctor`` as a person runs it, beside the real driver and where there is none."""

from __future__ import annotations

import asyncio
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.cluster import Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from tests.contract.calls import Calls
from tests.support.doctor_run import CLAIM, POD, a_pod_with_a_nic, run_doctor
from tests.support.probe_port import fetch

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]


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
    code, output, errors = await run_doctor(testbed, "-o", "json")
    assert not errors
    found = json.loads(output)["findings"]
    findings = {f"{finding['part']}: {finding['seen']}": finding["severity"] for finding in found}
    return Diagnosis(code, findings)


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


def read_bundle(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive]
        return {Path(name).name: file.read().decode() for name, file in members if file is not None}


def test_a_bundle_of_a_node_with_a_claim_is_whole_and_says_nothing_of_whose_it_is() -> None:
    async def scenario() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
            await testbed.driver.start()
            await testbed.driver.wait_ready(30)
            await testbed.apply(a_pod_with_a_nic())
            async with asyncio.timeout(30):
                await testbed.kubelet.wait_running(testbed.pod_uid(POD))
            secrets = [POD, CLAIM, testbed.pod_uid(POD), testbed._settings()["node_name"]]
            open_file, closed_file = WORK_DIR / "open.tgz", WORK_DIR / "closed.tgz"
            code, _, told = await run_doctor(testbed, "--bundle", str(closed_file))
            assert code == 0
            assert "Look at it before you send it." in told
            code, _, told = await run_doctor(testbed, "--bundle", str(open_file), "--no-redact")
            assert "NOT REDACTED" in told

            shown, redacted = read_bundle(open_file), read_bundle(closed_file)
            assert shown.keys() == redacted.keys()
            assert {
                "capture.json",
                "claims.json",
                "findings.json",
                "metrics.txt",
                "readyz.json",
            } <= shown.keys()
            for secret in secrets:
                assert any(secret in text for text in shown.values()), f"{secret} is nowhere to be hidden"
                assert [file for file, text in redacted.items() if secret in text] == []
            missing = json.loads(redacted["manifest.json"])["missing"]
            assert [item["file"] for item in missing] == ["events.json"], (
                "the driver's role may not list Events"
            )
            (claim,) = json.loads(redacted["claims.json"])["claims"]
            assert claim["pod"]["name"] in redacted["metrics.txt"], (
                "the same name is the same word everywhere"
            )

    asyncio.run(scenario())


async def refuse(testbed: Testbed) -> None:
    import grpc.aio

    registry = testbed.places.kubelet_root / "plugins_registry"
    socket = next(path for path in registry.iterdir() if path.name.endswith("-reg.sock"))
    with pytest.raises(grpc.aio.AioRpcError):
        await Calls(socket, socket).notify(registered=False, error="not today")
