"""GPUs that claims have, while somebody else begins to serve them; with the real store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from dranet.driver.publish import Inventory, PublishLoop
from dranet.errors import DeviceError, Reason
from dranet.inventory.offer import NO_OTHER_SERVER, UNKNOWN, ServedGpus
from dranet.inventory.policy import Policy
from dranet.kernel.discovery.scan import ProtectedAddress
from dranet.kernel.discovery.watch import EVERYTHING, Changes
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Taint
from dranet.model.facts import CharDevice, Gpu, NodeFacts, PciFunction
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.driver.test_publish import Slices

ADDRESSES = ("0000:1b:00.0", "0000:1c:00.0")
UVM = CharDevice("/dev/nvidia-uvm", 508, 0)
FIRST, SECOND = "gpu-0000-1b-00-0", "gpu-0000-1c-00-0"
SERVED = ServedGpus(by_vendor={"nvidia": "the DRA driver gpu.nvidia.com"})


class Reader:
    """A node with two GPUs, which never changes."""

    is_live = True

    def __init__(self) -> None:
        self.reads = 0

    def set_protected_addresses(self, targets: Sequence[ProtectedAddress]) -> None:
        """There are none."""

    def read(self, _: Changes = EVERYTHING, /) -> NodeFacts:
        self.reads += 1
        return NodeFacts(
            pci_functions=tuple(
                PciFunction(a, 0x030200, 0x10DE, 0x2330, driver="nvidia", path=(a,)) for a in ADDRESSES
            ),
            gpus=tuple(
                Gpu(a, "nvidia", char_devices=(CharDevice(f"/dev/nvidia{n}", 195, n), UVM))
                for n, a in enumerate(ADDRESSES)
            ),
        )


class Bench:
    def __init__(self, store: ClaimStore) -> None:
        self.served = NO_OTHER_SERVER
        self.reader = Reader()
        self.store = store
        self.inventory = Inventory(self.reader, Policy, store, Metrics(), lambda _: self.served)
        self.inventory.scan()

    def offered(self) -> list[str]:
        return list(self.inventory.view.offered)

    def prepare(self, name: str, *, admin: bool = False) -> None:
        device = PreparedDevice("gpu", "node", self.inventory.get_offered(name), admin_access=admin)
        claim, pod = ClaimRef("default", "claim", "uid"), PodRef("default", "pod", "pod-uid")
        self.store.put(PreparedClaim(claim, pod, (device,), boot_id="boot"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    store = ClaimStore(tmp_path / "claims")
    store.open()
    yield Bench(store)
    store.close()


def test_the_gpu_of_a_prepared_claim_stays_listed_until_the_claim_is_released(bench: Bench) -> None:
    bench.prepare(FIRST)
    bench.served = SERVED
    bench.inventory.scan()
    assert bench.offered() == [FIRST]
    assert bench.inventory.view.offered[FIRST].char_devices[0].path == "/dev/nvidia0"
    bench.store.delete("uid")
    bench.inventory.scan()
    assert bench.offered() == []


def test_admin_access_keeps_no_gpu_listed(bench: Bench) -> None:
    bench.prepare(FIRST, admin=True)
    bench.served = SERVED
    bench.inventory.scan()
    assert bench.offered() == []


def test_a_gpu_that_was_listed_for_another_claim_only_is_refused_to_the_next(bench: Bench) -> None:
    bench.prepare(FIRST)
    bench.served = SERVED
    bench.inventory.scan()
    bench.store.delete("uid")
    with pytest.raises(DeviceError, match=r"left to the DRA driver gpu\.nvidia\.com") as caught:
        bench.inventory.get_offered(FIRST)
    assert caught.value.reason is Reason.DEVICE_EXCLUDED


def test_a_vendors_driver_that_has_just_come_is_seen_before_the_next_scan(bench: Bench) -> None:
    bench.served = SERVED
    with pytest.raises(DeviceError, match="left to"):
        bench.inventory.get_offered(SECOND)


def test_nothing_is_read_again_where_nothing_is_in_doubt(bench: Bench) -> None:
    reads = bench.reader.reads
    assert bench.inventory.get_offered(FIRST).name == FIRST
    assert bench.reader.reads == reads


class WhileHealthIsJudged:
    """Does something between a scan and its publication."""

    taints: Mapping[str, Sequence[Taint]] = {}

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    async def scanned(self, *, is_full: bool) -> None:
        assert is_full
        self._act()


def test_what_a_prepare_learns_meanwhile_publishes_no_slices_without_the_gpus(bench: Bench) -> None:
    """It looks at the node, too, and by then the API server has told who serves them: nobody."""
    bench.served = UNKNOWN

    def prepare() -> None:
        bench.served = NO_OTHER_SERVER
        bench.inventory.scan()

    slices = Slices()
    loop = PublishLoop(
        bench.inventory,
        slices,
        Metrics(),
        60,
        on_scan=lambda: None,
        health=WhileHealthIsJudged(prepare),
        may_publish=lambda served: served.is_known,
    )
    asyncio.run(loop.scan_and_publish())
    assert slices.pages == []
    asyncio.run(loop.scan_and_publish())
    assert slices.pages == [[[FIRST, SECOND]]]
