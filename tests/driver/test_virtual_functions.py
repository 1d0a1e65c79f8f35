"""The loop that keeps virtual functions: the real controller, inventory, store and locks over a node whose
kernel is a few numbers. What a real kernel and driver make of the writes is in ``tests/machine``."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dranet.driver import virtual_functions
from dranet.driver.instances.members import Work, WorkLocks
from dranet.driver.publish import Inventory
from dranet.driver.reports.announcer import Announcer
from dranet.driver.virtual_functions import CHECK_SECONDS, RETRY_SECONDS, NodeState, VirtualFunctions
from dranet.inventory.policy import Policy
from dranet.kernel.discovery.watch import EVERYTHING, Changes
from dranet.kernel.netlink.socket import kernel_error
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.facts import NodeFacts
from dranet.model.plan import PreparedClaim, PreparedDevice
from dranet.model.virtual_functions import VfSettings
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics
from tests.inventory.sriov import PF, TOTAL, a_pf, some_rules, vf_address
from tests.support.waiting import SECONDS, until

OTHER_PF = "0000:3b:00.0"
NAME = "pci-0000-1a-00-0"


class Node:
    """What the kernel would show and do; ``written`` is what it was asked for."""

    is_live = True

    def __init__(self) -> None:
        self.counts = {PF: 0}
        self.settings: dict[str, VfSettings] = {}
        self.bound: dict[str, set[int]] = {}
        self.away: set[int] = set()
        """Functions of :data:`PF` that a pod or a virtual machine has."""
        self.most = TOTAL
        """What its driver makes, whatever it is asked for."""
        self.refusal = 0
        self.written: list[str] = []
        self.scans = 0
        self.works, self.goes_on = threading.Event(), threading.Event()
        """The writer gives defaults; it may go on with that."""
        self.goes_on.set()
        self.stopped = False
        """Whether the writer was told to stop."""

    # what the scan reads

    def set_protected_addresses(self, targets: object) -> None:
        del targets

    def read(self, changes: Changes = EVERYTHING) -> NodeFacts:
        del changes
        self.scans += 1
        found = [
            a_pf(count, pf=pf, ifindex=2 + 20 * place, away=self.away if pf == PF else (),
                 bound=self.bound.get(pf, ()))
            for place, (pf, count) in enumerate(self.counts.items())
        ]  # fmt: skip
        links = tuple(link for one in found for link in one.links)
        return NodeFacts(links=links, pci_functions=tuple(f for one in found for f in one.pci_functions))

    # what the driver writes

    def write_count(self, pf: str, count: int, *, autoprobe: bool) -> int:
        del autoprobe
        self.written.append(f"{pf}: {count}")
        if self.refusal:
            raise kernel_error(self.refusal, "", "write sriov_numvfs", needs="SYS_ADMIN")
        self.counts[pf], self.bound[pf] = min(count, self.most), set()
        self.settings.clear()
        return self.counts[pf]

    def complete(
        self,
        pf: str,
        functions: dict[str, tuple[int, VfSettings]],
        *,
        autoprobe: bool,
        is_stopping: Callable[[], bool],
    ) -> tuple[int, list[str]]:
        self.works.set()
        if not self.goes_on.is_set():
            self.goes_on.wait(SECONDS)
            self.stopped = is_stopping()
        if self.refusal:
            return 0, [kernel_error(self.refusal, "", "set vlan").message]
        missing = {a: wanted for a, (_, wanted) in functions.items() if self.settings.get(a) != wanted}
        unbound = {index for index, _ in functions.values() if autoprobe} - self.bound[pf]
        self.settings |= missing
        self.bound[pf] |= unbound
        if missing or unbound:
            self.written.append(f"{pf}: defaults of {len(missing)}, drivers of {len(unbound)}")
        return len(missing) + len(unbound), []


class Told(Announcer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def virtual_functions(self, note: str) -> None:
        self.notes.append(note)


class Bench:
    """A driver over the state folder and the node; another one is the driver restarted."""

    def __init__(
        self,
        folder: Path,
        node: Node,
        patch: pytest.MonkeyPatch,
        *entries: dict[str, Any],
        boot_id: str = "boot",
    ) -> None:
        self.node, self.told, self.metrics = node, Told(), Metrics()
        self.policy = Policy()
        self.set_rules(*entries)
        self.store = ClaimStore(folder / "claims")
        self.store.open()
        self.work = WorkLocks(self.store.folder)
        self.now = 0.0
        self.rescans = 0
        self.inventory = Inventory(node, lambda: self.policy, self.store, self.metrics)
        self.functions = VirtualFunctions(
            NodeState("node", folder / "virtual-functions.json", boot_id),
            self.inventory,
            self.store,
            self.work,
            self.told,
            self.metrics,
            self._changed,
        )
        patch.setattr(virtual_functions, "_open_writer", lambda: nullcontext(node))
        patch.setattr(virtual_functions, "_loop_time", lambda: self.now)

    def _changed(self) -> None:
        self.rescans += 1

    def set_rules(self, *entries: dict[str, Any]) -> None:
        self.policy = Policy(virtual_functions=some_rules(*entries))

    async def look(self) -> list[str]:
        """A scan and a round; returns what was written."""
        before = len(self.node.written)
        self.inventory.scan()
        await self.functions.reconcile()
        return self.node.written[before:]

    async def settle(self) -> list[str]:
        """Until nothing is written any more."""
        written: list[str] = []
        while news := await self.look():
            written += news
        return written

    def prepare(self, name: str) -> Callable[[], None]:
        """A claim has the device; returns what releases it."""
        device = self.inventory.view.offered[name]
        prepared = PreparedDevice("nic", "node", device)
        claim, pod = ClaimRef("default", "c", f"uid-{name}"), PodRef("default", "pod", "pod-uid")
        self.store.put(PreparedClaim(claim, pod, (prepared,), "boot"))
        return lambda: self.store.delete(claim.uid)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def start(tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    started: list[Bench] = []

    def make(*entries: dict[str, Any], boot_id: str = "boot") -> Bench:
        if started:
            started[-1].store.close()  # the driver before was killed
        started.append(Bench(tmp_path, node, monkeypatch, *entries, boot_id=boot_id))
        return started[-1]

    yield make
    for bench in started:
        bench.store.close()


def vf_name(index: int) -> str:
    return "pci-" + vf_address(index).replace(":", "-").replace(".", "-")


async def test_functions_are_made_get_their_defaults_and_are_then_left_alone(
    start: Callable[..., Bench], node: Node
) -> None:
    bench = start({"count": 4, "defaults": {"vlan": 7}, "macPrefix": "02:5a"})
    assert await bench.look() == [f"{PF}: 4"]
    assert bench.rescans == 1, "a scan finds them, and leads to the next round"
    assert await bench.look() == [f"{PF}: defaults of 4, drivers of 4"]
    assert {settings.vlan for settings in node.settings.values()} == {7}
    bench.now += CHECK_SECONDS
    assert await bench.look() == []
    assert bench.told.notes == []
    shown = bench.metrics.render().decode()
    assert f'dranet_virtual_functions{{physical_function="{NAME}"}} 4.0' in shown
    assert f'dranet_virtual_functions_blocked{{physical_function="{NAME}"}} 0.0' in shown


async def test_without_a_rule_nothing_is_touched_also_when_a_rule_goes(
    start: Callable[..., Bench], node: Node
) -> None:
    node.counts[PF], node.bound[PF] = 2, {0, 1}
    bench = start()
    assert await bench.look() == []
    bench.set_rules({"count": 3})
    assert (await bench.settle())[0] == f"{PF}: 3"
    bench.set_rules()
    assert await bench.look() == []
    assert node.counts[PF] == 3
    bench.set_rules({"count": 0})
    assert await bench.settle() == [f"{PF}: 0"]


async def test_a_physical_function_that_appears_later_gets_its_functions(
    start: Callable[..., Bench], node: Node
) -> None:
    del node.counts[PF]
    bench = start({"count": 2})
    assert await bench.look() == []
    assert bench.functions.states == ()
    node.counts[PF] = 0
    assert await bench.settle() == [f"{PF}: 2", f"{PF}: defaults of 2, drivers of 2"]


async def test_a_number_that_changes_while_a_claim_has_a_function_waits_for_its_release(
    start: Callable[..., Bench], node: Node
) -> None:
    bench = start({"count": 4})
    await bench.settle()
    release = bench.prepare(vf_name(1))
    bench.set_rules({"count": 2, "defaults": {"vlan": 9}})
    assert await bench.settle() == [f"{PF}: defaults of 3, drivers of 0"], "the free ones follow the rule"
    assert vf_address(1) not in {a for a, s in node.settings.items() if s.vlan == 9}
    (note,) = bench.told.notes
    assert note == (
        f"device {NAME}: 2 virtual functions wanted, {vf_name(1)} is prepared for pod default/pod"
    )
    bench.now += RETRY_SECONDS
    assert await bench.look() == []
    assert bench.told.notes == [note], "told once"
    release()
    assert await bench.settle() == [f"{PF}: 2", f"{PF}: defaults of 2, drivers of 2"]
    assert [state.problem for state in bench.functions.states] == [""]


@pytest.mark.parametrize("count", [0, 1, 5], ids=["none", "fewer", "more"])
async def test_a_function_that_a_virtual_machine_has_is_never_touched(
    start: Callable[..., Bench], node: Node, count: int
) -> None:
    bench = start({"count": 2})
    await bench.settle()
    node.away = {0}
    bench.set_rules({"count": count})
    assert await bench.look() == []
    assert node.counts[PF] == 2
    assert "a virtual machine or DPDK" in bench.told.notes[0]


async def test_a_function_taken_after_the_last_scan_is_not_touched(
    start: Callable[..., Bench], node: Node
) -> None:
    """By another program, which tells the driver nothing: the number changes only after one more look."""
    bench = start({"count": 2})
    await bench.settle()
    bench.set_rules({"count": 3})
    bench.inventory.scan()
    node.away = {0}
    written = len(node.written)
    await bench.functions.reconcile()
    await bench.functions.reconcile()
    assert node.written[written:] == []
    assert "no interface on the node" in bench.told.notes[0]


async def test_a_claim_that_is_being_prepared_comes_first(start: Callable[..., Bench], node: Node) -> None:
    bench = start({"count": 2})
    await bench.settle()
    bench.set_rules({"count": 3})
    bench.inventory.scan()
    async with bench.work.hold(Work.DEVICE, [vf_name(0)]):  # as Prepare does
        round_ = asyncio.create_task(bench.functions.reconcile())
        await asyncio.sleep(0)  # it has decided, and waits for the lock
        bench.prepare(vf_name(0))
    await round_
    assert await bench.look() == []
    assert node.counts[PF] == 2


async def test_a_driver_that_stops_keeps_its_locks_until_the_writer_has_stopped(
    start: Callable[..., Bench], node: Node
) -> None:
    """The next instance prepares and attaches a function as soon as it has the lock."""
    bench = start({"count": 2})
    await bench.look()
    bench.inventory.scan()
    node.goes_on.clear()
    round_ = asyncio.create_task(bench.functions.reconcile())
    await until(node.works.is_set, "the writer works")
    prepare = asyncio.create_task(_hold_a_moment(bench))
    for _ in range(2):  # a stop, and an impatient one
        round_.cancel()
        await asyncio.sleep(0)
    assert not round_.done()
    assert not prepare.done(), "the lock is the writer's"
    node.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await round_
    await prepare
    assert node.stopped


async def _hold_a_moment(bench: Bench) -> None:
    async with bench.work.hold(Work.DEVICE, [vf_name(0)]):
        pass


async def test_a_restart_keeps_what_is_there(start: Callable[..., Bench], node: Node) -> None:
    rules = {"count": 3, "macPrefix": "02:5a:10", "defaults": {"trust": False}}
    await start(rules).settle()
    before = dict(node.settings)
    assert await start(rules).settle() == []
    assert node.settings == before


async def test_a_restart_completes_what_a_killed_driver_left(start: Callable[..., Bench]) -> None:
    rules = {"count": 3, "macPrefix": "02:5a:10"}
    bench = start(rules)
    await bench.look()  # they are made, and it dies
    assert await start(rules).settle() == [f"{PF}: defaults of 3, drivers of 3"]


@pytest.mark.parametrize("number", [errno.EBUSY, errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
async def test_a_refusal_of_the_kernel_is_told_once_and_tried_again(
    start: Callable[..., Bench], node: Node, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = start({"count": 4})
    node.refusal = number
    assert await bench.look() == [f"{PF}: 4"]
    assert await bench.look() == [], "not with every scan"
    bench.now += RETRY_SECONDS
    assert await bench.look() == [f"{PF}: 4"], "but after a while"
    (note,) = bench.told.notes
    assert f"({errno.errorcode[number]})" in note
    assert sum("keeps 0 of 4" in record.getMessage() for record in caplog.records) == 1
    assert f'dranet_virtual_functions_blocked{{physical_function="{NAME}"}} 1.0' in (
        bench.metrics.render().decode()
    )
    node.refusal = 0
    bench.now += RETRY_SECONDS
    assert await bench.settle() == [f"{PF}: 4", f"{PF}: defaults of 4, drivers of 4"]
    assert [state.problem for state in bench.functions.states] == [""]


async def test_defaults_that_the_driver_of_the_nic_refuses_are_told_once_and_tried_again(
    start: Callable[..., Bench], node: Node
) -> None:
    bench = start({"count": 1, "defaults": {"vlan": 5}})
    await bench.look()
    node.refusal = errno.EBUSY
    for _ in range(3):
        assert await bench.look() == []
        bench.now += RETRY_SECONDS
    assert len(bench.told.notes) == 1
    node.refusal = 0
    assert await bench.look() == [f"{PF}: defaults of 1, drivers of 1"]


async def test_fewer_functions_than_asked_for_are_kept_and_told(
    start: Callable[..., Bench], node: Node
) -> None:
    """A driver may make fewer, and the kernel calls it a success. To ask again would remove those."""
    node.most = 3
    bench = start({"count": 4})
    assert await bench.settle() == [f"{PF}: 4", f"{PF}: defaults of 3, drivers of 3"]
    bench.now += RETRY_SECONDS
    assert await bench.settle() == []
    assert bench.told.notes == [f"device {NAME}: 4 virtual functions wanted, its driver makes 3 of 4"]
    bench.set_rules({"count": 2})
    assert (await bench.settle())[0] == f"{PF}: 2"


async def test_fewer_functions_than_asked_for_stay_when_the_driver_restarts(
    start: Callable[..., Bench], node: Node
) -> None:
    node.most = 3
    await start({"count": 4}).settle()
    bench = start({"count": 4})
    assert await bench.settle() == []
    assert bench.told.notes == [f"device {NAME}: 4 virtual functions wanted, its driver makes 3 of 4"]
    assert (await start({"count": 4}, boot_id="next").look()) == [f"{PF}: 4"], "its driver may be another"


async def test_what_was_made_is_asked_for_again_where_its_file_is_damaged(
    start: Callable[..., Bench], node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node.most = 3
    await start({"count": 4}).settle()
    for content in (b"{", b"[]", b'{"bootId": 1}', b"\xff"):
        (tmp_path / "virtual-functions.json").write_bytes(content)
        caplog.clear()
        assert (await start({"count": 4}).settle())[0] == f"{PF}: 4"
        assert "virtual-functions.json cannot be read" in caplog.text


async def test_each_physical_function_is_told_of(start: Callable[..., Bench], node: Node) -> None:
    bench = start({"count": TOTAL + 1})
    await bench.look()
    node.counts[OTHER_PF] = 0
    await bench.look()
    assert [note.partition(":")[0] for note in bench.told.notes] == [
        f"device {NAME}", "device pci-0000-3b-00-0",
    ]  # fmt: skip


async def test_one_that_refuses_keeps_no_other_from_its_functions(
    start: Callable[..., Bench], node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.counts[OTHER_PF] = 0
    real = node.write_count

    def write_count(pf: str, count: int, *, autoprobe: bool) -> int:
        node.refusal = errno.EIO if pf == PF else 0
        return real(pf, count, autoprobe=autoprobe)

    monkeypatch.setattr(node, "write_count", write_count)
    bench = start({"count": 2})
    await bench.look()
    node.refusal = 0
    await bench.look()
    assert node.counts == {PF: 0, OTHER_PF: 2}


async def test_the_loop_acts_after_scans_only(start: Callable[..., Bench], node: Node) -> None:
    bench = start({"count": 2})
    running = asyncio.create_task(bench.functions.run())
    await asyncio.sleep(0)
    assert node.written == [], "there was no scan"
    bench.inventory.scan()
    bench.functions.scanned()
    await until(lambda: bench.rescans == 1, "the functions are made")
    bench.inventory.scan()
    bench.functions.scanned()
    await until(lambda: bench.rescans == 2, "they are complete")
    assert node.written == [f"{PF}: 2", f"{PF}: defaults of 2, drivers of 2"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
