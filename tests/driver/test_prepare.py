"""Prepare and Unprepare with the real store, CDI folder and gate; devices that need no kernel to plan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dranet.driver.attachments import Attachments
from dranet.driver.containers import ContainerFiles
from dranet.driver.instances.members import WorkLocks
from dranet.driver.ipam import Ipam
from dranet.driver.leases import Leases
from dranet.driver.prepare import ClaimState, Preparer, PrepareSources
from dranet.driver.reports.announcer import Announcer
from dranet.driver.start_gate import StartGate
from dranet.errors import ClaimError, DeviceError, DranetError, Reason
from dranet.model.claim import (
    AllocationResult,
    Claim,
    ClaimRef,
    ConfigSource,
    Consumer,
    OpaqueConfig,
)
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import PreparedClaim
from dranet.runtime.containers import CdiSpecs
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.support.records import refuse_writes

GPU = Device("gpu-0", DeviceKind.GPU, char_devices=(CharDevice("/dev/nvidia0", 195, 0),))
HCA = Device("hca-0", DeviceKind.RDMA, rdma_device="mlx5_0")
POD = Consumer(resource="pods", name="pod", uid="pod-uid")


class Told(Announcer):
    """Remembers what it was told instead of telling the API server."""

    def __init__(self) -> None:
        self.prepared_claims: list[PreparedClaim] = []
        self.failures: list[tuple[ClaimRef, Claim | None, DranetError]] = []

    def prepared(self, record: PreparedClaim) -> None:
        self.prepared_claims.append(record)

    def prepare_failed(self, ref: ClaimRef, claim: Claim | None, error: DranetError) -> None:
        self.failures.append((ref, claim, error))

    def unprepare_failed(self, ref: ClaimRef, error: DranetError) -> None:
        self.failures.append((ref, None, error))


class Offered:
    """An inventory of fixed devices."""

    def get_offered(self, name: str) -> Device:
        for device in (GPU, HCA):
            if device.name == name:
                return device
        raise DeviceError(f"device {name} does not exist on this node")


@pytest.fixture(autouse=True)
def _closed_stores() -> Iterator[None]:
    yield
    while Bench.opened:
        Bench.opened.pop().store.close()


class Bench:
    """A preparer over a state folder; a second one over the same folder is the driver restarted."""

    opened: ClassVar[list[Bench]] = []

    def __init__(
        self, folder: Path, *claims: Claim, boot_id: str = "boot", runtime_ready: bool = True
    ) -> None:
        self.claims = {claim.ref.uid: claim for claim in claims}
        self.fetched: list[ClaimRef] = []
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.opened.append(self)
        self.gate = StartGate(folder)
        self.cdi_dir = folder / "cdi"
        self.told = Told()
        attachments, metrics = Attachments(self.store, self.gate), Metrics()
        self.preparer = Preparer(
            driver_name="dra.net",
            boot_id=boot_id,
            sources=PrepareSources(
                fetch=self.fetch,
                get_offered=Offered().get_offered,
                is_runtime_ready=lambda: runtime_ready,
            ),
            state=ClaimState(
                self.store,
                attachments,
                Leases(self.store, attachments, self.told, metrics),
                ContainerFiles(self.gate, CdiSpecs(self.cdi_dir, "dra.net")),
                WorkLocks(self.store.folder),
                Ipam(self.store, boot_id, self.told, metrics),
            ),
            announcer=self.told,
            metrics=metrics,
        )

    async def fetch(self, ref: ClaimRef) -> Claim:
        self.fetched.append(ref)
        claim = self.claims.get(ref.uid)
        if claim is None:
            raise ClaimError(f"claim {ref} is gone", reason=Reason.CLAIM_NOT_FOUND)
        return claim

    async def prepare(self, claim: Claim) -> Any:
        return (await self.preparer.prepare([claim.ref]))[claim.ref.uid]

    def read_specs(self) -> list[Mapping[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted(self.cdi_dir.glob("*.json"))]


def a_claim(
    uid: str = "uid", device: str = GPU.name, *consumers: Consumer, admin: bool = False, **parameters: Any
) -> Claim:
    config = OpaqueConfig(ConfigSource.CLAIM, "dra.net", parameters)
    return Claim(
        ref=ClaimRef("default", f"claim-{uid}", uid),
        allocated=True,
        results=(AllocationResult("req/sub", "dra.net", "node", device, admin_access=admin),),
        configs=(config,) if parameters else (),
        reserved_for=consumers or (POD,),
    )


async def test_the_record_is_on_disk_before_the_answer(tmp_path: Path) -> None:
    bench = Bench(tmp_path, claim := a_claim())
    outcome = await bench.prepare(claim)
    assert outcome.error == ""
    other = ClaimStore(tmp_path / "claims")
    other.open()
    record = other.get("uid")
    other.close()
    assert record is not None
    assert record.pod.uid == "pod-uid"


async def test_the_answer_names_the_main_request_and_a_resolvable_cdi_device(tmp_path: Path) -> None:
    bench = Bench(tmp_path, claim := a_claim())
    (device,) = (await bench.prepare(claim)).devices
    assert device.request_names == ("req",)
    (spec,) = bench.read_specs()
    (entry,) = spec["devices"]
    assert device.cdi_ids == (f"{spec['kind']}={entry['name']}",)


async def test_a_gpu_brings_its_nodes_and_no_gate(tmp_path: Path) -> None:
    bench = Bench(tmp_path, claim := a_claim())
    await bench.prepare(claim)
    (entry,) = bench.read_specs()[0]["devices"]
    assert [node["path"] for node in entry["containerEdits"]["deviceNodes"]] == ["/dev/nvidia0"]
    assert "mounts" not in entry["containerEdits"]


async def test_a_network_device_brings_the_gate_which_is_shut(tmp_path: Path) -> None:
    bench = Bench(tmp_path, claim := a_claim(device=HCA.name))
    await bench.prepare(claim)
    (entry,) = bench.read_specs()[0]["devices"]
    (mount,) = entry["containerEdits"]["mounts"]
    assert mount["hostPath"] == bench.gate.mount_for("uid").source
    assert not bench.gate.is_open("uid")


async def test_prepare_twice_answers_the_same_and_asks_nobody(tmp_path: Path) -> None:
    bench = Bench(tmp_path, claim := a_claim())
    first = await bench.prepare(claim)
    second = await bench.prepare(claim)
    assert first == second
    assert len(bench.fetched) == 1
    assert len(bench.told.prepared_claims) == 1


async def test_prepare_after_a_restart_answers_the_same_and_mends_the_cdi_folder(tmp_path: Path) -> None:
    before = Bench(tmp_path, claim := a_claim())
    first = await before.prepare(claim)
    before.store.close()
    for file in before.cdi_dir.iterdir():
        file.unlink()
    after = Bench(tmp_path)  # the API server knows nothing of the claim any more: nobody asks it
    assert await after.prepare(claim) == first
    assert len(after.read_specs()) == 1


async def test_a_record_of_an_earlier_boot_is_planned_anew(tmp_path: Path) -> None:
    before = Bench(tmp_path, claim := a_claim())
    await before.prepare(claim)
    before.store.close()
    after = Bench(tmp_path, claim, boot_id="next boot")
    await after.prepare(claim)
    record = after.store.get("uid")
    assert record is not None
    assert record.boot_id == "next boot"
    assert after.fetched == [claim.ref]


async def test_one_claims_error_is_its_own(tmp_path: Path) -> None:
    good, bad = a_claim("good"), a_claim("bad", "no-such-device")
    bench = Bench(tmp_path, good, bad)
    outcomes = await bench.preparer.prepare([bad.ref, good.ref])
    assert "no-such-device" in outcomes["bad"].error
    assert outcomes["bad"].devices == ()
    assert outcomes["good"].error == ""
    assert [ref for ref, _, _ in bench.told.failures] == [bad.ref]


async def test_a_device_of_another_claim_is_busy(tmp_path: Path) -> None:
    first, second = a_claim("first"), a_claim("second")
    bench = Bench(tmp_path, first, second)
    await bench.prepare(first)
    outcome = await bench.prepare(second)
    assert "prepared for claim default/claim-first" in outcome.error
    assert bench.told.failures[0][2].reason is Reason.DEVICE_BUSY
    assert bench.store.get("second") is None


async def test_two_claims_for_one_device_at_the_same_time_never_both_succeed(tmp_path: Path) -> None:
    claims = [a_claim(f"uid-{number}") for number in range(8)]
    bench = Bench(tmp_path, *claims)
    outcomes = await bench.preparer.prepare([claim.ref for claim in claims])
    assert sorted(outcome.error == "" for outcome in outcomes.values()) == [False] * 7 + [True]


async def test_admin_access_takes_nothing_from_the_owner(tmp_path: Path) -> None:
    owner, admin = a_claim("owner", HCA.name), a_claim("admin", HCA.name, admin=True)
    bench = Bench(tmp_path, owner, admin)
    assert (await bench.prepare(owner)).error == ""
    assert (await bench.prepare(admin)).error == ""
    record = bench.store.get("admin")
    assert record is not None
    assert record.plans == ()
    assert record.devices[0].cdi_ids == ()  # nothing to add to a container, so nothing to resolve


@pytest.mark.parametrize(
    ("consumers", "complaint"),
    [
        ((POD, Consumer("pods", "other", "uid-2")), "used by 2 pods (pod, other)"),
        ((Consumer("jobs", "gang", "uid-3", "batch"),), "reserved for jobs.batch gang"),
    ],
)
async def test_a_claim_that_one_nic_cannot_serve_is_refused(
    tmp_path: Path, consumers: tuple[Consumer, ...], complaint: str
) -> None:
    bench = Bench(tmp_path, claim := a_claim("uid", HCA.name, *consumers))
    outcome = await bench.prepare(claim)
    assert complaint in outcome.error


async def test_a_claim_without_a_pod_is_refused(tmp_path: Path) -> None:
    claim = Claim(ClaimRef("default", "c", "uid"), allocated=True, results=a_claim().results)
    bench = Bench(tmp_path, claim)
    assert "not reserved for any pod" in (await bench.prepare(claim)).error


async def test_every_bad_field_is_named_in_the_claims_own_answer(tmp_path: Path) -> None:
    claim = a_claim("uid", HCA.name, interface={"mtu": 1, "nam": "x"}, speed=1)
    bench = Bench(tmp_path, claim)
    error = (await bench.prepare(claim)).error
    for path in ("interface.mtu", "interface.nam", "speed"):
        assert path in error
    assert bench.told.failures[0][2].reason is Reason.INVALID_CONFIG
    assert bench.store.get_all() == ()


async def test_without_the_runtime_a_nic_is_not_promised_but_a_gpu_is(tmp_path: Path) -> None:
    nic, gpu = a_claim("nic", HCA.name), a_claim("gpu")
    bench = Bench(tmp_path, nic, gpu, runtime_ready=False)
    assert "NRI" in (await bench.prepare(nic)).error
    assert (await bench.prepare(gpu)).error == ""


async def test_an_unwritable_store_fails_the_claim_and_nothing_else(tmp_path: Path) -> None:
    bench = Bench(tmp_path, claim := a_claim())
    with pytest.MonkeyPatch.context() as patch:
        refuse_writes(bench.store, patch)
        assert "store" in (await bench.prepare(claim)).error
    assert bench.read_specs() == []
    assert (await bench.prepare(claim)).error == ""


async def test_unprepare_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    bench = Bench(tmp_path, claim := a_claim())
    await bench.prepare(claim)
    for _ in range(2):
        assert await bench.preparer.unprepare([claim.ref]) == {"uid": ""}
        assert bench.store.get_all() == ()
        assert bench.read_specs() == []


async def test_unprepare_of_the_unknown_succeeds(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert await bench.preparer.unprepare([ClaimRef("x", "y", "z")]) == {"z": ""}
