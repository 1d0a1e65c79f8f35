"""The files about a claim's devices, from Prepare to Unprepare, on a real disk and in real namespaces.

Judged by ``tests.support.metadata_reader``, and by the testbed's runtime,
which resolves CDI names as containerd.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.claims.report import CONTAINER_FOLDER, LINK_IN_POD, RDMA_GIDS
from dranet.cluster.events import EventNote
from dranet.driver.attachments import Attachments
from dranet.driver.containers import ContainerFiles
from dranet.driver.hooks import ContainerServices, HookListeners, PodHooks
from dranet.driver.instances.members import WorkLocks
from dranet.driver.ipam import Ipam
from dranet.driver.leases import Leases
from dranet.driver.metadata import COUNTERS_FOLDER, DeviceMetadata, MetadataFiles
from dranet.driver.prepare import ClaimState, Preparer, PrepareSources
from dranet.driver.reports.announcer import Announcer
from dranet.driver.reports.reporter import Reporter
from dranet.driver.start_gate import StartGate
from dranet.errors import DeviceError, ProtocolError
from dranet.inventory.policy import DEFAULT_POLICY
from dranet.kubelet.plugin import PrepareOutcome
from dranet.model.claim import AllocationResult, Claim, ClaimRef, Consumer, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import CharDevice
from dranet.model.plan import AttachPlan, PreparedClaim, PreparedDevice, RdmaAccess, RequestMetadata
from dranet.model.status import AttachedLink
from dranet.runtime.containers import CdiSpecs
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from testbed.runtime.standin_cdi import Injection, resolve
from tests.driver.bench import Bench, Told, sandbox
from tests.support import metadata_reader
from tests.support.executed_lines import count_steps
from tests.support.namespaces import Namespace

DRIVER = "dra.net"
UID = "0b51c6a2-7d3f-4c19-9e5c-000000000001"
ADMIN_UID = "f0000000-7d3f-4c19-9e5c-000000000002"
BDF = "0000:21:00.0"
GPU = Device(
    "gpu-0",
    DeviceKind.GPU,
    attributes={"dra.net/type": "gpu"},
    char_devices=(CharDevice("/dev/nvidia0", 195, 0),),
)
HCAS = tuple(
    Device(
        f"hca-{number}",
        DeviceKind.RDMA,
        attributes={"dra.net/rdma": True, "dra.net/rdmaDevice": f"mlx5_{number}"},
        pci_address=BDF if number == 0 else "",
        rdma_device=f"mlx5_{number}",
        char_devices=(CharDevice(f"/dev/infiniband/uverbs{number}", 231, 192 + number),),
    )
    for number in range(3)
)
GID = "fe80:0000:0000:0000:0000:00ff:fe00:0001"


class Quiet(Told):
    """Nobody listens."""

    def prepared(self, record: PreparedClaim) -> None:
        pass

    def prepare_failed(self, ref: ClaimRef, claim: Claim | None, error: Exception) -> None:
        pass

    def unprepare_failed(self, ref: ClaimRef, error: Exception) -> None:
        pass


class Offered:
    """An inventory of fixed devices."""

    def get_offered(self, name: str) -> Device:
        for device in (GPU, *HCAS):
            if device.name == name:
                return device
        raise DeviceError(f"device {name} does not exist on this node")


class Events(Reporter):
    """Remembers Events."""

    def __init__(self) -> None:
        self.notes: list[EventNote] = []

    def add_event(self, event: EventNote) -> None:
        self.notes.append(event)


class Driver:
    """The part of the driver that prepares, over a folder; another one over the same is it restarted."""

    def __init__(self, folder: Path, *claims: Claim, enabled: bool = True) -> None:
        self.claims = {claim.ref.uid: claim for claim in claims}
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.cdi_dir, self.sysfs = folder / "cdi", folder / "sys"
        self.events = Events()
        cdi, gate, metrics = CdiSpecs(self.cdi_dir, DRIVER), StartGate(folder), Metrics()
        self.attachments = Attachments(self.store, gate)
        self.metadata = make_metadata(folder, self.store, self.events, enabled=enabled)
        self.preparer = Preparer(
            driver_name=DRIVER,
            boot_id="boot",
            sources=PrepareSources(
                fetch=self._fetch,
                get_offered=Offered().get_offered,
                is_runtime_ready=lambda: True,
                sysfs_root=self.sysfs,
            ),
            state=ClaimState(
                self.store,
                self.attachments,
                Leases(self.store, self.attachments, Quiet(), metrics),
                ContainerFiles(gate, cdi, self.metadata),
                WorkLocks(self.store.folder),
                Ipam(self.store, "boot", Quiet(), metrics),
            ),
            announcer=Quiet(),
            metrics=metrics,
        )

    async def _fetch(self, ref: ClaimRef) -> Claim:
        return self.claims[ref.uid]

    async def prepare(self, claim: Claim) -> PrepareOutcome:
        return (await self.preparer.prepare([claim.ref]))[claim.ref.uid]

    async def unprepare(self, claim: Claim) -> str:
        return (await self.preparer.unprepare([claim.ref]))[claim.ref.uid]

    async def give(self, claim: Claim, request: str = "") -> Injection:
        """What a container gets that names the claim, or one request of it."""
        outcome = await self.prepare(claim)
        assert outcome.error == ""
        return resolve(self.cdi_dir, names_for(outcome, request))

    def close(self) -> None:
        self.attachments.close()
        self.store.close()


def names_for(outcome: PrepareOutcome, request: str = "") -> list[str]:
    """As the kubelet chooses: by the names of requests."""
    chosen = [device for device in outcome.devices if not request or request in device.request_names]
    return [cdi_id for device in chosen for cdi_id in device.cdi_ids]


def make_metadata(folder: Path, store: ClaimStore, events: Events, *, enabled: bool = True) -> DeviceMetadata:
    return DeviceMetadata(
        store,
        MetadataFiles(folder, DRIVER),
        CdiSpecs(folder / "cdi", DRIVER),
        Announcer(DRIVER, "node-1", events, Metrics()),
        lambda: DEFAULT_POLICY,
        folder / "sys",
        enabled=enabled,
    )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    running: list[Driver] = []

    def make(*claims: Claim, enabled: bool = True) -> Driver:
        if running:
            running[-1].close()  # the driver before was killed
        running.append(Driver(tmp_path, *claims, enabled=enabled))
        return running[-1]

    yield make
    for driver in running:
        driver.close()


def a_claim(
    *results: tuple[str, str], uid: str = UID, admin: bool = False, pod_claim_name: str = "", other: str = ""
) -> Claim:
    """A claim for (request, device), and perhaps for a device of another driver by the request ``other``."""
    ours = [AllocationResult(request, DRIVER, "node", name, admin_access=admin) for request, name in results]
    others = [AllocationResult(other, "other.example", "pool", "thing")] if other else []
    annotation = {"resource.kubernetes.io/pod-claim-name": pod_claim_name} if pod_claim_name else {}
    return Claim(
        ClaimRef("default", f"claim-{uid[:4]}", uid),
        allocated=True,
        results=(*ours, *others),
        reserved_for=(Consumer("pods", "worker", "pod-uid"),),
        annotations=annotation,
    )


ONE = a_claim(("nic/fast", "hca-0"))
PATH = f"{CONTAINER_FOLDER}/resourceclaims/claim-0b51/nic/{DRIVER}-metadata.json"


def read(injection: Injection, path: str = PATH) -> dict[str, Any]:
    return metadata_reader.read_mounted(injection.mounts, path)


# --- Prepare --------------------------------------------------------------------------------------------


async def test_when_prepare_answers_a_container_can_be_given_the_file(run: Callable[..., Driver]) -> None:
    given = await run(ONE).give(ONE)
    found = read(given)
    assert found["metadata"] == {
        "name": "claim-0b51",
        "namespace": "default",
        "uid": UID,
        "generation": 1,
    }
    assert found["requests"] == [
        {
            "name": "nic/fast",
            "devices": [
                {
                    "driver": DRIVER,
                    "pool": "node",
                    "name": "hca-0",
                    "attributes": {
                        "dra.net/rdma": {"bool": True},
                        "dra.net/rdmaDevice": {"string": "mlx5_0"},
                    },
                }
            ],
        }
    ]


async def test_a_claim_from_a_template_is_found_under_the_name_in_the_pod(
    run: Callable[..., Driver],
) -> None:
    claim = a_claim(("nic", "hca-0"), pod_claim_name="rails")
    given = await run(claim).give(claim)
    path = f"{CONTAINER_FOLDER}/resourceclaimtemplates/rails/nic/{DRIVER}-metadata.json"
    assert read(given, path)["podClaimName"] == "rails"


async def test_a_container_that_names_one_request_sees_the_file_of_that_one_only(
    run: Callable[..., Driver],
) -> None:
    claim = a_claim(("nic", "hca-0"), ("gpu", "gpu-0"))
    driver = run(claim)
    given = await driver.give(claim, "gpu")
    files = [path for path in given.mounts if path.startswith(CONTAINER_FOLDER)]
    assert files == [f"{CONTAINER_FOLDER}/resourceclaims/claim-0b51/gpu"]
    both = await driver.give(claim)
    assert len([path for path in both.mounts if path.startswith(CONTAINER_FOLDER)]) == 2


async def test_two_devices_of_one_request_are_in_one_file_that_is_mounted_once(
    run: Callable[..., Driver],
) -> None:
    claim = a_claim(("nic", "hca-0"), ("nic", "hca-1"))
    driver = run(claim)
    outcome = await driver.prepare(claim)
    (request,) = read(await driver.give(claim))["requests"]
    assert [device["name"] for device in request["devices"]] == ["hca-0", "hca-1"]
    names = names_for(outcome)
    assert len(names) == len(set(names)) == 3  # two gates and the file


async def test_a_file_of_another_driver_has_room_beside_ours(run: Callable[..., Driver]) -> None:
    claim = a_claim(("nic", "hca-0"), other="nic")
    given = await run(claim).give(claim)
    assert PATH in given.mounts
    assert read(given)["requests"][0]["devices"][0]["name"] == "hca-0"


async def test_prepare_twice_answers_the_same_and_leaves_the_file_alone(run: Callable[..., Driver]) -> None:
    driver = run(ONE)
    first = await driver.prepare(ONE)
    assert await driver.prepare(ONE) == first
    assert read(await driver.give(ONE))["metadata"]["generation"] == 1


async def test_after_a_restart_the_answer_is_the_same_whatever_the_setting_says_now(
    run: Callable[..., Driver], tmp_path: Path
) -> None:
    first = await run(ONE).prepare(ONE)
    for file in (tmp_path / "cdi").iterdir():
        file.unlink()
    driver = run(enabled=False)
    assert await driver.prepare(ONE) == first
    assert read(await driver.give(ONE))["metadata"]["generation"] == 1


async def test_without_the_setting_there_are_no_files_and_nothing_to_resolve(
    run: Callable[..., Driver],
) -> None:
    driver = run(ONE, enabled=False)
    given = await driver.give(ONE)
    assert not [path for path in given.mounts if path.startswith(CONTAINER_FOLDER)]
    assert driver.metadata.list_claims() == frozenset()


async def test_a_file_that_cannot_be_written_fails_the_claim_and_says_the_mend(
    run: Callable[..., Driver], tmp_path: Path
) -> None:
    (tmp_path / "metadata").write_text("a file where the folder should be")
    driver = run(ONE)
    error = (await driver.prepare(ONE)).error
    assert f"device metadata {tmp_path}/metadata" in error
    assert "metadata is a file, which the driver did not make: move it away" in error
    assert not (tmp_path / "cdi").exists()  # no name that a container could not be given
    (tmp_path / "metadata").unlink()
    read(await driver.give(ONE))


async def test_whoever_a_container_runs_as_may_read_the_file_and_nobody_there_may_write_it(
    run: Callable[..., Driver], tmp_path: Path
) -> None:
    umask = os.umask(0o077)
    try:
        await run(ONE).prepare(ONE)
    finally:
        os.umask(umask)
    file = tmp_path / "metadata" / UID / "nic" / f"{DRIVER}-metadata.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    mounted, *above = [stat.S_IMODE(folder.stat().st_mode) for folder in file.parents[:3]]
    assert (mounted, above) == (0o755, [0o700, 0o700])
    (spec,) = (tmp_path / "cdi").glob("*.json")
    assert '"ro"' in spec.read_text()


# --- Unprepare ------------------------------------------------------------------------------------------


async def test_unprepare_removes_the_files_without_the_claim_and_may_be_repeated(
    run: Callable[..., Driver], tmp_path: Path
) -> None:
    claim = a_claim(("nic", "hca-0"), ("gpu", "gpu-0"))
    other = a_claim(("nic", "hca-1"), uid=ADMIN_UID)
    driver = run(claim, other)
    await driver.prepare(claim)
    await driver.prepare(other)
    driver.claims.clear()
    for _ in range(2):
        assert await driver.unprepare(claim) == ""
        assert driver.metadata.list_claims() == {ADMIN_UID}
    assert [path.name for path in (tmp_path / "metadata").iterdir()] == [ADMIN_UID]


async def test_files_that_cannot_be_removed_hold_up_no_pods_end(
    run: Callable[..., Driver], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = run(ONE)
    await driver.prepare(ONE)
    (tmp_path / "metadata").rename(tmp_path / "elsewhere")
    (tmp_path / "metadata").write_text("a file where the folder should be")
    assert await driver.unprepare(ONE) == ""
    assert driver.store.get_all() == ()
    assert driver.metadata.list_claims() == frozenset()
    assert "left behind: device metadata" in caplog.text


def test_what_a_crash_left_is_listed_and_removed_by_uid(tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path, DRIVER)
    assert files.list_claims() == frozenset()
    files.remove(UID)
    files.write(UID, "nic", DOCUMENT)
    (tmp_path / "metadata" / UID / ".nic.new").write_text('{"apiVer')
    assert files.list_claims() == {UID}
    files.remove(UID)
    files.remove(UID)
    assert files.list_claims() == frozenset()


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".lock", "a\n"])
def test_a_name_that_is_no_name_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    files = MetadataFiles(tmp_path, DRIVER)
    for call in (
        lambda: files.write(name, "nic", DOCUMENT),
        lambda: files.write(UID, name, DOCUMENT),
        lambda: files.remove(name),
    ):
        with pytest.raises(ProtocolError):
            call()
    assert [*tmp_path.iterdir()] == []


# --- what the page says ---------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs/guides/metadata.md"


@pytest.mark.process
@pytest.mark.parametrize(
    ("language", "command", "output"),
    [
        ("python", (sys.executable, "-c"), "nic/fast hca-0 - mlx5_0\n"),
        ("sh", ("sh", "-c"), "mlx5_0\n"),
    ],
)
async def test_a_snippet_of_the_page_reads_the_files(
    run: Callable[..., Driver], tmp_path: Path, language: str, command: tuple[str, ...], output: str
) -> None:
    if language == "sh" and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    mounts = (await run(ONE).give(ONE)).mounts
    (source,) = (mounts[path] for path in mounts if path.startswith(CONTAINER_FOLDER))
    root = tmp_path / "container" / "resourceclaims" / "claim-0b51"
    root.mkdir(parents=True)
    (root / "nic").symlink_to(source)
    block = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    snippet = block[1].replace(CONTAINER_FOLDER, str(tmp_path / "container"))
    done = await asyncio.to_thread(subprocess.run, [*command, snippet], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (output, "")


# --- one file, many hands -------------------------------------------------------------------------------

DOCUMENT: Mapping[str, Any] = {
    "metadata": {"name": "claim", "namespace": "default", "uid": UID},
    "requests": [{"name": "nic", "devices": []}],
}


def a_document(number: int, size: int = 1) -> Mapping[str, Any]:
    device = {"driver": DRIVER, "pool": "node", "name": "nic"}
    attributes = {f"a{n}": {"int": number} for n in range(size)}
    return {**DOCUMENT, "requests": [{"name": "nic", "devices": [{**device, "attributes": attributes}]}]}


def test_a_document_that_says_the_same_is_not_written_again(tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path, DRIVER)
    assert files.write(UID, "nic", a_document(1))
    file = files.folder_of(UID, "nic") / f"{DRIVER}-metadata.json"
    before = file.stat()
    assert not MetadataFiles(tmp_path, DRIVER).write(UID, "nic", a_document(1))
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert files.write(UID, "nic", a_document(2))
    assert metadata_reader.decode(file.read_bytes())["metadata"]["generation"] == 2


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path, DRIVER)
    files.write(UID, "nic", a_document(1))
    (files.folder_of(UID, "nic") / f"{DRIVER}-metadata.json").write_text("{")
    assert files.read(UID, "nic") is None
    assert files.write(UID, "nic", a_document(1))
    assert files.read(UID, "nic") == (a_document(1), 1)


_READ_ON = """
import sys
from pathlib import Path
from tests.support import metadata_reader
folder, until = Path(sys.argv[1]), int(sys.argv[2])
seen, reads = [0], 0
while seen[-1] < until:
    (found,) = metadata_reader.read_request(folder).values()
    values = {v["int"] for v in found["requests"][0]["devices"][0]["attributes"].values()}
    generation = found["metadata"]["generation"]
    assert values == {generation}, "half of one file and half of another"
    assert generation >= seen[-1], "the generation went back"
    reads += 1
    if generation != seen[-1]:
        seen.append(generation)
    if reads == 1:
        print("reading", flush=True)
print(reads, len(seen) - 1)
"""


@pytest.mark.process
def test_a_reader_never_meets_half_a_file_nor_an_older_one(tmp_path: Path) -> None:
    """Another process reads on and on while the file is replaced, as a container does that has its folder."""
    files, last = MetadataFiles(tmp_path, DRIVER), 250
    files.write(UID, "nic", a_document(1, 30))
    command = [sys.executable, "-c", _READ_ON, str(files.folder_of(UID, "nic")), str(last)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        for number in range(2, last + 1):
            files.write(UID, "nic", a_document(number, 30))
        output, errors = reader.communicate(timeout=60)
    assert reader.returncode == 0, errors
    reads, generations = map(int, output.split())
    assert reads >= generations > 1


def _write_many(folder: Path, first: int, count: int) -> None:
    files = MetadataFiles(folder, DRIVER)
    for number in range(first, first + count):
        files.write(UID, "nic", a_document(number))


def test_no_update_of_two_instances_is_lost_from_the_generation(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path, first, 80)) for first in (1000, 2000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    found = MetadataFiles(tmp_path, DRIVER).read(UID, "nic")
    assert found is not None
    assert found[1] == 160


# --- the pod has its devices ----------------------------------------------------------------------------


class Pods:
    """Attaches as the driver does, with files; over the bench of the other driver tests."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench, self.events = bench, Events()
        self.metadata = make_metadata(folder, bench.store, self.events)
        self.hooks = PodHooks(
            bench.store,
            bench.attachments,
            bench.told,
            HookListeners(bench.snapshots.append),
            30,
            containers=ContainerServices(bench.windows, self.metadata),
        )
        self.hooks.connected("bench", "1", 60.0)
        bench.hooks = self.hooks

    def prepare(self, ifname: str = "eth1", **fields: Any) -> PreparedClaim:
        """A claim for one NIC, as Prepare leaves it, with its file."""
        record = self.bench.prepare(ifname, "net1", **fields)
        record = replace(record, metadata=(RequestMetadata("nic"),))
        self.bench.store.put(record)
        self.metadata.prepare(record)
        return record

    def read(self, uid: str = "claim-uid") -> dict[str, Any]:
        folder = MetadataFiles(self.bench.gate._folder.parent, DRIVER).folder_of(uid, "nic")
        (found,) = metadata_reader.read_request(folder).values()
        return found

    def device(self, uid: str = "claim-uid") -> dict[str, Any]:
        found: dict[str, Any] = self.read(uid)["requests"][0]["devices"][0]
        return found


@pytest.fixture
def pods(start: Callable[..., Bench], tmp_path: Path, node: Namespace) -> Pods:
    node.ip("addr", "add", "10.9.0.1/24", "dev", "eth1")
    return Pods(start(), tmp_path)


@pytest.mark.kernel
def test_before_a_container_starts_the_file_has_the_link_as_the_pod_sees_it(
    pods: Pods, pod: Namespace
) -> None:
    pods.prepare()
    assert "networkData" not in pods.device()
    assert pods.bench.run_sandbox(sandbox(pod))
    (link,) = pod.read("addr", "show", "dev", "net1")
    assert pods.device()["networkData"] == {
        "interfaceName": "net1",
        "ips": ["10.9.0.1/24"],
        "hardwareAddress": link["address"],
    }
    assert pods.read()["metadata"]["generation"] == 2
    assert pods.events.notes == []


@pytest.mark.kernel
def test_a_second_instance_and_a_restart_find_the_file_as_it_should_be(
    pods: Pods, pod: Namespace, tmp_path: Path
) -> None:
    record = pods.prepare()
    pods.bench.run_sandbox(sandbox(pod))
    before = pods.read()
    other = Pods(pods.bench, tmp_path)  # nothing in memory
    current = pods.bench.store.get(record.claim.uid)
    assert current is not None
    other.metadata.prepare(current)  # the kubelet has restarted as well
    assert pods.read() == before
    pods.bench.run_sandbox(sandbox(pod))
    assert pods.read() == before


@pytest.mark.kernel
def test_a_device_that_was_put_back_into_its_pod_is_in_the_file_again(pods: Pods, pod: Namespace) -> None:
    pods.prepare()
    pods.bench.run_sandbox(sandbox(pod))
    pod.ip("addr", "del", "10.9.0.1/24", "dev", "net1")
    pods.bench.create_container(sandbox(pod))
    assert pods.device()["networkData"]["ips"] == ["10.9.0.1/24"]


@pytest.mark.kernel
def test_a_file_that_cannot_be_brought_up_to_date_is_an_event_and_the_pod_runs(
    pods: Pods, pod: Namespace, tmp_path: Path
) -> None:
    pods.prepare()
    folder = tmp_path / "metadata" / "claim-uid"
    for path in (*folder.rglob("*"),):
        if path.is_file():
            path.unlink()
    (folder / "nic").rmdir()
    (folder / "nic").write_text("in the way")
    assert pods.bench.run_sandbox(sandbox(pod))
    (note,) = pods.events.notes
    assert (note.regarding.kind, note.reason) == ("Pod", "StoreUnwritable")
    assert "not up to date" in note.note
    assert pod.read("link", "show", "dev", "net1")


@pytest.mark.kernel
def test_the_update_is_little_work_for_the_hook(pods: Pods, pod: Namespace) -> None:
    """What it takes on an idle machine is in docs/decisions/028."""
    records = [pods.prepare()]
    link = AttachedLink("dev-eth1", "net1", "02:00:00:00:00:01", 1500, ("10.9.0.1/24",))
    pods.metadata.attached(records, [link], str(pod.path))  # what it needs is loaded now
    fresh = [replace(link, addresses=("10.9.0.2/24",))]
    steps = count_steps(lambda: pods.metadata.attached(records, fresh, str(pod.path)))
    assert steps < 5_000


# --- RDMA -----------------------------------------------------------------------------------------------


def write_gids(sysfs: Path, device: str, *gids: str) -> None:
    folder = sysfs / f"class/infiniband/{device}/ports/1/gids"
    folder.mkdir(parents=True, exist_ok=True)
    for number, gid in enumerate(gids):
        (folder / str(number)).write_text(f"{gid}\n")


@pytest.fixture
def rdma_pod(run: Callable[..., Driver]) -> tuple[Driver, PreparedClaim]:
    """A pod with an RDMA device of which the host shows the GIDs (shared mode)."""
    driver = run()
    nic = replace(HCAS[0], kind=DeviceKind.NIC, ifname="eth1")
    record = prepared_record(nic, plan=AttachPlan(nic.name, pod_ifname="net1"), netns_path="/run/netns/pod")
    driver.store.put(record)
    driver.metadata.prepare(record)
    return driver, record


def prepared_record(
    device: Device, *, plan: AttachPlan | None, uid: str = UID, netns_path: str = "", admin: bool = False
) -> PreparedClaim:
    rdma = RdmaAccess() if admin else RdmaAccess(device.char_devices)
    prepared = PreparedDevice("nic", "node", device, plan=plan, rdma=rdma, admin_access=admin)
    claim, pod = ClaimRef("default", f"claim-{uid[:4]}", uid), PodRef("default", "pod", f"pod-{uid[:4]}")
    return PreparedClaim(
        claim, pod, (prepared,), "boot", netns_path=netns_path, metadata=(RequestMetadata("nic"),)
    )


NIC_LINK = AttachedLink("hca-0", "net1", "02:00:00:00:00:01", 9000, ("10.9.0.1/24",))


def attributes_of(driver: Driver, uid: str = UID) -> dict[str, Any]:
    found = MetadataFiles(driver.sysfs.parent, DRIVER).read(uid, "nic")
    assert found is not None
    attributes: dict[str, Any] = found[0]["requests"][0]["devices"][0]["attributes"]
    return attributes


def test_the_links_and_the_file_tell_the_rdma_device_and_its_gids(
    rdma_pod: tuple[Driver, PreparedClaim],
) -> None:
    driver, record = rdma_pod
    write_gids(driver.sysfs, "mlx5_0", GID, GID, "0000:" * 7 + "0000")
    (link,) = driver.metadata.attached([record], (NIC_LINK,), "/nowhere")
    assert (link.rdma_device, link.gids) == ("mlx5_0", (GID,))
    assert attributes_of(driver)[RDMA_GIDS] == {"strings": [GID]}


def test_gids_that_come_later_are_there_before_the_next_container(
    rdma_pod: tuple[Driver, PreparedClaim],
) -> None:
    """With RoCE the kernel fills the table in its own time, after the hook."""
    driver, record = rdma_pod
    write_gids(driver.sysfs, "mlx5_0", GID)
    driver.metadata.attached([record], (NIC_LINK,), "/nowhere")
    assert driver.metadata.refreshed([record], "/nowhere") is None
    late = "0000:0000:0000:0000:0000:ffff:0a09:0001"
    write_gids(driver.sysfs, "mlx5_0", GID, late)
    links = driver.metadata.refreshed([record], "/nowhere")
    assert links is not None
    assert links[0].gids == (GID, late)
    assert attributes_of(driver)[RDMA_GIDS] == {"strings": [GID, late]}
    assert driver.metadata.refreshed([record], "/nowhere") is None


def test_a_namespace_that_cannot_be_entered_for_once_takes_no_gids_out_of_the_file(
    rdma_pod: tuple[Driver, PreparedClaim], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, record = rdma_pod
    write_gids(driver.sysfs, "mlx5_0", GID)
    driver.metadata.attached([record], (NIC_LINK,), "/nowhere")
    monkeypatch.setattr("dranet.driver.metadata.read_from_rdma_devices", lambda *_: {})
    assert driver.metadata.refreshed([record], "/nowhere") is None
    assert attributes_of(driver)[RDMA_GIDS] == {"strings": [GID]}


def test_gids_that_come_later_are_news_to_one_of_two_instances(
    rdma_pod: tuple[Driver, PreparedClaim], tmp_path: Path
) -> None:
    driver, record = rdma_pod
    other = make_metadata(tmp_path, driver.store, driver.events)
    write_gids(driver.sysfs, "mlx5_0", GID)
    for metadata in (driver.metadata, other):
        metadata.attached([record], (NIC_LINK,), "/nowhere")
    write_gids(driver.sysfs, "mlx5_0", GID, "fe80:" + "0000:" * 6 + "0002")
    news = [metadata.refreshed([record], "/nowhere") for metadata in (driver.metadata, other)]
    assert [links is not None for links in news] == [True, False]
    assert [metadata.refreshed([record], "/nowhere") for metadata in (driver.metadata, other)] == [None, None]


def test_what_another_instance_has_given_back_is_in_no_pod_any_more(
    run: Callable[..., Driver], tmp_path: Path
) -> None:
    driver = run()
    other = make_metadata(tmp_path, driver.store, driver.events)
    moved = prepared_record(
        replace(HCAS[0], kind=DeviceKind.NIC), plan=AttachPlan("hca-0", pod_ifname="net1"), netns_path="/x"
    )
    watched = replace(prepared_record(HCAS[1], plan=None, admin=True).devices[0], request="watch")
    record = replace(moved, devices=(*moved.devices, watched))
    driver.store.put(record)
    for metadata in (driver.metadata, other):
        metadata.attached([record], (NIC_LINK,), "/nowhere")
    driver.store.put(replace(record, netns_path=""))
    driver.metadata.released(UID)
    after_release = MetadataFiles(tmp_path, DRIVER).read(UID, "nic")
    assert after_release is not None
    assert "net1" not in str(after_release[0])
    other.devices_moved()
    assert MetadataFiles(tmp_path, DRIVER).read(UID, "nic") == after_release


def test_an_rdma_device_without_a_link_has_its_gids_in_the_file(run: Callable[..., Driver]) -> None:
    driver = run()
    record = prepared_record(HCAS[1], plan=AttachPlan("hca-1"))
    driver.store.put(record)
    write_gids(driver.sysfs, "mlx5_1", GID)
    assert driver.metadata.attached([record], (), "/nowhere") == ()
    assert attributes_of(driver)[RDMA_GIDS] == {"strings": [GID]}


def test_facts_of_the_pod_take_the_place_of_the_least_published_attribute(
    run: Callable[..., Driver],
) -> None:
    """A reader may refuse more than 32."""
    driver = run()
    crowded = {f"operator.example/a{number}": number for number in range(40)}
    device = replace(HCAS[0], attributes={**HCAS[0].attributes, **crowded})
    record = prepared_record(device, plan=AttachPlan("hca-0"))
    driver.store.put(record)
    write_gids(driver.sysfs, "mlx5_0", GID)
    driver.metadata.attached([record], (), "/nowhere")
    found = attributes_of(driver)
    assert len(found) == 32
    assert {RDMA_GIDS, "dra.net/rdmaDevice", "dra.net/rdma"} <= set(found)


# --- admin access ---------------------------------------------------------------------------------------

ADMIN = a_claim(("watch", "hca-0"), uid=ADMIN_UID, admin=True)
HELD = a_claim(("nic", "hca-0"))
ADMIN_PATH = f"{CONTAINER_FOLDER}/resourceclaims/claim-f000/watch/{DRIVER}-metadata.json"


@pytest.fixture
def function(tmp_path: Path) -> Path:
    """A PCI function in sysfs with an interface and an RDMA device, below a virtio device as well."""
    home = tmp_path / "sys/devices/pci0000:20" / BDF
    for name in ("net/eth1/statistics/rx_bytes", "infiniband/mlx5_0/ports/1/counters/port_rcv_data"):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("42\n")
    (home / "config").write_text("secret")
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / BDF).symlink_to(home)
    return home


async def test_admin_access_gets_facts_and_counters_and_no_device_node(
    run: Callable[..., Driver], function: Path
) -> None:
    driver = run(HELD, ADMIN)
    assert (await driver.prepare(HELD)).error == ""
    given = await driver.give(ADMIN)
    assert given.devices == {}
    assert read(given, ADMIN_PATH)["requests"][0]["devices"][0]["name"] == "hca-0"
    counters = {path: source for path, source in given.mounts.items() if path.startswith(COUNTERS_FOLDER)}
    assert counters == {
        f"{COUNTERS_FOLDER}/hca-0/net": str(function / "net"),
        f"{COUNTERS_FOLDER}/hca-0/infiniband": str(function / "infiniband"),
    }
    net, rdma = map(Path, counters.values())
    assert (net / "eth1/statistics/rx_bytes").read_text() == "42\n"
    assert (rdma / "mlx5_0/ports/1/counters/port_rcv_data").read_text() == "42\n"
    assert set(given.mounts) == {*counters, ADMIN_PATH.rpartition("/")[0]}  # no ready gate: nothing moves


@pytest.mark.usefixtures("function")
async def test_the_holder_of_a_device_gets_no_counters_of_the_host(run: Callable[..., Driver]) -> None:
    given = await run(HELD).give(HELD)
    assert not [path for path in given.mounts if path.startswith(COUNTERS_FOLDER)]


async def test_the_container_of_a_monitor_starts_again_while_a_pod_has_the_link(
    run: Callable[..., Driver], function: Path
) -> None:
    """What the kernel takes out of the folder is gone from it; the folder, which is mounted, stays."""
    driver = run(ADMIN)
    outcome = await driver.prepare(ADMIN)
    (function / "net/eth1").rename(function / "in-another-namespace")
    given = resolve(driver.cdi_dir, names_for(outcome))
    assert all(map(os.path.exists, given.mounts.values()))


@pytest.mark.usefixtures("function")
async def test_prepare_and_unprepare_of_an_admin_claim_leave_the_holder_as_it_is(
    run: Callable[..., Driver],
) -> None:
    driver = run(HELD, ADMIN)
    await driver.prepare(HELD)
    before = driver.store.get(UID), read(await driver.give(HELD))
    assert (await driver.prepare(ADMIN)).error == ""
    record = driver.store.get(ADMIN_UID)
    assert record is not None
    assert record.plans == ()
    assert await driver.unprepare(ADMIN) == ""
    assert (driver.store.get(UID), read(await driver.give(HELD))) == before
    assert driver.metadata.list_claims() == {UID}


@pytest.mark.usefixtures("function")
async def test_several_claims_may_watch_one_device(run: Callable[..., Driver]) -> None:
    claims = [a_claim(("watch", "hca-0"), uid=f"{n}{ADMIN_UID[1:]}", admin=True) for n in range(3)]
    driver = run(HELD, *claims)
    assert [(await driver.prepare(claim)).error for claim in (*claims, HELD)] == [""] * 4


@pytest.mark.usefixtures("function")
async def test_the_file_of_an_admin_claim_follows_the_link_into_a_pod_and_back(
    run: Callable[..., Driver],
) -> None:
    driver = run(HELD, ADMIN)
    await driver.prepare(HELD)
    given = await driver.give(ADMIN)

    def is_in_pod() -> Any:
        attributes = read(given, ADMIN_PATH)["requests"][0]["devices"][0]["attributes"]
        return attributes[LINK_IN_POD]["bool"]

    assert is_in_pod() is False
    record = driver.store.get(UID)
    assert record is not None
    placed = replace(record, netns_path="/run/netns/pod", sandbox_id="sandbox-1")
    driver.store.put(placed)
    driver.metadata.attached([placed], (), "/nowhere")
    assert is_in_pod() is True
    driver.store.put(record)
    driver.metadata.released(UID)
    assert is_in_pod() is False


async def test_the_file_of_an_admin_claim_on_a_gpu_comes_with_its_nodes_as_before(
    run: Callable[..., Driver],
) -> None:
    claim = a_claim(("watch", "gpu-0"), uid=ADMIN_UID, admin=True)
    given = await run(claim).give(claim)
    assert given.devices == {"/dev/nvidia0": "195:0"}
    assert [*given.mounts] == [ADMIN_PATH.rpartition("/")[0]]
