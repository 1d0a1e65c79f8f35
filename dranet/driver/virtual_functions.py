"""Keep the virtual functions that the rules of a file ask for: after each scan, compare and act.

The number of a physical function changes only while nothing uses it or one of its virtual functions; until
then it waits, and log, metric, doctor and an Event name the user. What no rule names is never touched, also
when a rule is removed. Everything is compared with what is there, so a restart or a kill repeats nothing and
loses nothing. Only the leading instance acts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dranet import files
from dranet.decoding import decode
from dranet.driver.instances.members import Work, WorkLocks
from dranet.driver.publish import Inventory, View, warn_once
from dranet.driver.reports.announcer import Announcer
from dranet.errors import DranetError
from dranet.store.claim_store import ClaimStore
from dranet.telemetry import Metrics

if TYPE_CHECKING:
    from dranet.inventory.virtual_functions import PfTarget
    from dranet.kernel.virtual_functions import VfWriter

log = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_SECONDS = 300.0
"""After a refusal of the kernel: each try would be news for every scan."""
CHECK_SECONDS = 60.0
"""Between looks at what is as wanted: whether another program has changed it."""


_MOST_BYTES = 1 << 20


class NodeState(Struct, frozen=True):
    """The node, and where the driver keeps what it made there."""

    name: str
    path: Path
    boot_id: str


class _Made(Struct):
    boot_id: str
    made: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By PCI address: a number that was asked for, and the number that the driver made."""


class MadeFunctions:
    """What the drivers of physical functions made of the numbers that were asked for, of this boot. Best
    effort: what cannot be read or written is made again."""

    def __init__(self, node: NodeState) -> None:
        self._path = node.path
        self._made = self._read(node.boot_id)

    def _read(self, boot_id: str) -> _Made:
        try:
            found = decode(files.read_file(self._path, _MOST_BYTES), _Made)
            return found if found.boot_id == boot_id else _Made(boot_id)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read, what it names may be made again: %s", self._path, error)
        return _Made(boot_id)

    def get(self, address: str) -> tuple[int, int] | None:
        return self._made.made.get(address)

    def put(self, address: str, count: int, made: int) -> None:
        """Blocking."""
        self._made.made[address] = count, made
        files.save(self._path, msgspec.json.encode(self._made, order="deterministic"))


class PfState(Struct, frozen=True):
    """One physical function with a rule, for people."""

    device: str
    desired: int
    observed: int
    problem: str = ""
    """What it waits for, or what the kernel refused."""


def _open_writer() -> AbstractContextManager[VfWriter]:
    from dranet.kernel.virtual_functions import open_writer  # only where rules ask for it

    return open_writer()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class VirtualFunctions:
    def __init__(
        self,
        node: NodeState,
        inventory: Inventory,
        store: ClaimStore,
        work: WorkLocks,
        announcer: Announcer,
        metrics: Metrics,
        on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called when functions came or went."""
        self._node_name = node.name
        self._inventory = inventory
        self._store = store
        self._work = work
        self._announcer = announcer
        self._shown = metrics.virtual_functions
        self._on_change = on_change
        self._news = asyncio.Event()
        self._last: dict[str, tuple[PfTarget, str, float]] = {}
        """By PCI address: what was done or refused, the answer, and until when it counts."""
        self._made = MadeFunctions(node)
        self._warned: frozenset[str] = frozenset()
        self.states: tuple[PfState, ...] = ()

    def scanned(self) -> None:
        """The inventory has changed. On the event loop."""
        self._news.set()

    async def run(self) -> None:
        """Act after each scan, until cancelled."""
        self._news.set()
        while True:
            await self._news.wait()
            self._news.clear()
            await self.reconcile()

    async def reconcile(self) -> None:
        """Compare once, and act on each physical function that differs."""
        targets, warnings = self._plan(self._inventory.view)
        for target in targets:
            if target.changes_count or target.functions:
                await self._act(target)
        self._report(targets, warnings)

    def _plan(self, view: View) -> tuple[tuple[PfTarget, ...], tuple[str, ...]]:
        if view.policy.virtual_functions is None:
            return (), ()
        from dranet.inventory.virtual_functions import VfRules, plan_virtual_functions

        rules = view.policy.virtual_functions
        assert isinstance(rules, VfRules)
        devices = [*view.offered.values(), *(d.device for d in view.not_offered.values())]
        targets, warnings = plan_virtual_functions(
            view.facts, devices, rules, self._prepared(), self._node_name
        )
        return tuple(self._settle_for_fewer(target) for target in targets), warnings

    def _settle_for_fewer(self, target: PfTarget) -> PfTarget:
        """The number stays where its driver has made fewer: to ask again would remove those, and make as
        many."""
        if target.changes_count and self._made.get(target.address) == (target.count, target.observed):
            return replace(target, waits_for=f"its driver makes {target.observed} of {target.count}")
        return target

    def _prepared(self) -> Mapping[str, str]:
        return {
            device.device.name: str(record.pod)
            for record in self._store.get_all()
            for device in record.devices
            if not device.admin_access
        }

    async def _act(self, target: PfTarget) -> None:
        """Under the locks of all its devices, by which a Prepare of one waits; decided again with them. A
        change of the number takes functions away, so the node is scanned first: another program may have
        taken one since the last scan. Before it changes a function, the writer looks at that one."""
        last = self._last.get(target.address)
        now = _loop_time()
        if last is not None and last[0] == target and now < last[2]:
            return
        try:
            async with self._work.hold(Work.DEVICE, target.devices):
                if target.changes_count:
                    await asyncio.to_thread(self._inventory.scan)
                again = {t.address: t for t in self._plan(self._inventory.view)[0]}.get(target.address)
                if again != target:
                    self._news.set()
                    return
                changed, problems = await _run_to_end(partial(self._write, target))
        except DranetError as error:
            changed, problems = 0, [str(error)]
        until = now + (RETRY_SECONDS if problems else CHECK_SECONDS)
        self._last[target.address] = target, "; ".join(dict.fromkeys(problems)), until
        if changed:
            self._on_change()

    def _write(self, target: PfTarget, is_stopping: Callable[[], bool]) -> tuple[int, list[str]]:
        with _open_writer() as writer:
            if is_stopping():
                return 0, []
            if target.changes_count:
                made = writer.write_count(target.address, target.count, autoprobe=target.autoprobe)
                self._made.put(target.address, target.count, made)
                log.info(
                    "%s has %d virtual functions, before %d (%s)",
                    target.device,
                    made,
                    target.observed,
                    target.place,
                )
                return 1, []  # the next scan finds them, and they get their defaults and drivers then
            functions = {f.address: (f.index, f.settings) for f in target.functions}
            return writer.complete(
                target.address, functions, autoprobe=target.autoprobe, is_stopping=is_stopping
            )

    def _report(self, targets: tuple[PfTarget, ...], warnings: tuple[str, ...]) -> None:
        states = tuple(PfState(t.device, t.count, t.observed, self._problem_of(t)) for t in targets)
        reported = {(old.device, old.problem) for old in self.states}
        for state in states:
            if state.problem and (state.device, state.problem) not in reported:
                note = f"device {state.device}: {state.desired} virtual functions wanted, {state.problem}"
                self._announcer.virtual_functions(note)
        if states != self.states:
            self._shown.show((s.device, s.desired, s.observed, bool(s.problem)) for s in states)
            self.states = states
        waiting = [f"{s.device} keeps {s.observed} of {s.desired}: {s.problem}" for s in states if s.problem]
        self._warned = warn_once("virtual functions", (*warnings, *waiting), self._warned)

    def _problem_of(self, target: PfTarget) -> str:
        if target.waits_for:
            return target.waits_for
        last = self._last.get(target.address)
        return last[1] if last is not None and last[0] == target else ""


async def _run_to_end(work: Callable[[Callable[[], bool]], T]) -> T:
    """Do blocking work in a worker thread that a cancelled task waits for: the locks are the work's until it
    ends, and another instance has the devices right after. ``work`` gets a check whether to stop early."""
    stopping = threading.Event()
    thread = asyncio.ensure_future(asyncio.to_thread(work, stopping.is_set))
    try:
        return await asyncio.shield(thread)
    finally:
        stopping.set()
        while not thread.done():
            with contextlib.suppress(asyncio.CancelledError):  # the first one goes on when the thread is done
                await asyncio.wait([thread])
