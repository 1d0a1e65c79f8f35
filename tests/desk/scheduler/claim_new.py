"""``dranet claim new`` against the real scheduler: each machine is filled with the pods that it writes.

The command reads the slices as the server keeps them. Beforehand it says how many pods fit, and which devices
each gets; ``explain`` says it again for each pod. What the command refuses the scheduler must not be able to
give, and the nearest that the refusal names must fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.choose import choose_claim
from dranet.desk.templates.hardware import Hardware, read_hardware
from dranet.desk.templates.request import ClaimRequest
from dranet.desk.templates.trial import Pod
from e2e.cluster.controlplane import ControlPlaneKit
from e2e.installation import read_manifests
from tests.data.gpu_drivers import device_classes
from tests.desk.scheduler.cases import NAMESPACE, Case, Json
from tests.desk.scheduler.layouts import (
    Machine,
    build_node,
    instantiate,
    list_machines,
    write_plain,
)
from tests.desk.scheduler.predictions import find_difference, foretell
from tests.desk.scheduler.reasons import find_reason
from tests.desk.scheduler.settings import Setting, open_scheduler
from tests.desk.scheduler.submission import Given, await_seen, prepare, schedule
from tests.desk.templates.layout_clusters import Gpus

_PER_CLUSTER = 250
"""A scheduler looks at the slices of all machines for every pod."""
_PATIENCE_SECONDS = 400.0
"""Of one round; a scheduler takes ten seconds to give up on a pod."""
_TIMED_OUT = "timed out trying to allocate devices"
_NEAREST = re.compile(r"--gpus (\d+) --nics (\d+)")


@dataclass
class ClaimReport:
    """What came of all asks on all machines."""

    setting: Setting
    counts: Counter[str] = field(default_factory=Counter)
    """Claims that were ``written`` and asks that were ``refused``; ``pods`` that got devices."""
    differences: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    """Where the scheduler gave up after ten seconds: it tries what the allocator leaves out."""


@dataclass
class Filling:
    """A machine that gets one pod after the other until it is full."""

    machine: Machine
    nodes: list[Json]
    slices: list[Json]
    manifests: Sequence[Json]
    expected: Sequence[Pod] = ()
    """What ``claim new`` says of each pod that fits."""
    refusal: str = ""
    """What ``claim new`` says where none fits."""
    pods: int = 0
    holders: list[Json] = field(default_factory=list)
    """The claims of these pods."""
    is_over: bool = False

    def build_case(self, number: int) -> Case:
        machine = self.machine
        claims, pod = instantiate(self.manifests, f"{machine.node}-{self.pods}", machine.node)
        return Case(number, machine.title, self.nodes, [], [], self.slices, self.holders, claims, pod)


async def fill_machines(
    kit: ControlPlaneKit, setting: Setting, publishers: Collection[Gpus], folder: Path
) -> ClaimReport:
    """Ask for claims on every machine and give them to the scheduler; inside a private tree only."""
    report = ClaimReport(setting)
    machines = list_machines(publishers)
    for start in range(0, len(machines), _PER_CLUSTER):
        async with open_scheduler(kit, setting, folder / f"{setting.slug}-layouts-{start}") as api:
            await prepare(api)
            classes = [
                await api.create(paths.DEVICE_CLASSES, item)
                for item in (*read_manifests("deviceclasses.yaml"), *device_classes())
            ]
            fillings = [
                filling
                for machine in machines[start : start + _PER_CLUSTER]
                for filling in await _begin(api, machine, classes, report)
            ]
            await _fill(api, fillings, classes, report)
    return report


async def _begin(
    api: ApiClient, machine: Machine, classes: Sequence[Json], report: ClaimReport
) -> list[Filling]:
    """The machine, published and asked; with another one for the nearest that a refusal names."""
    nodes = [await api.create(paths.NODES, build_node(machine.node))]
    slices = [await api.create(paths.RESOURCE_SLICES, body) for body in machine.build_slices()]
    hardware = read_hardware(slices, nodes)
    try:
        choice = choose_claim(machine.ask, hardware, {item["metadata"]["name"]: item for item in classes})
    except NotAvailable as error:
        report.counts["refused"] += 1
        plain = write_plain(machine, _find_nic_class(machine.ask, hardware), _find_gpu_class(machine))
        refused = Filling(machine, nodes, slices, plain, refusal=str(error))
        nearest = [ClaimRequest(int(gpus), int(nics)) for gpus, nics in _NEAREST.findall(error.hint)]
        others = [
            filling
            for ask in nearest
            if ask.nics and ask != machine.ask
            for filling in await _begin(api, machine.for_ask(ask), classes, report)
        ]
        report.differences += [
            f"{machine.title}: {error}: the nearest is refused, too" for one in others if one.refusal
        ]
        return [refused, *others]
    report.counts["written"] += 1
    (trial,) = choice.attempt.trials
    return [Filling(machine, nodes, slices, choice.manifests, trial.pods)]


def _find_nic_class(ask: ClaimRequest, hardware: Hardware) -> str:
    has_rdma = any(nic.has_rdma for node in hardware.nodes for nic in node.nics)
    return "dranet-rdma" if has_rdma and ask.rdma is not False else "dranet-nic"


def _find_gpu_class(machine: Machine) -> str:
    return "dranet-gpu" if machine.gpus is Gpus.OURS else machine.world.gpu_driver


async def _fill(
    api: ApiClient, fillings: Sequence[Filling], classes: Sequence[Json], report: ClaimReport
) -> None:
    """A pod for each machine, and again, until each machine has refused one."""
    numbers = count()
    while left := [filling for filling in fillings if not filling.is_over]:
        given = [await _create_claims(api, one, classes, next(numbers)) for one in left]
        await await_seen(api, given)
        foretold = [foretell(one) for one in given]
        await schedule(api, given, _PATIENCE_SECONDS)
        for filling, one, said in zip(left, given, foretold, strict=True):
            assert one.answer is not None
            if _TIMED_OUT in one.answer.message:
                report.given_up.append(f"{filling.machine.title}, pod {filling.pods}")
                filling.is_over = True
                continue
            difference = find_difference(report.setting, one, said)
            if difference is not None and (report.setting.is_newest or not find_reason(one, said)):
                report.differences.append(f"{filling.machine.title}, pod {filling.pods}: {difference.text}")
            report.differences += _judge(report.setting, filling, one)
            await _note(api, filling, one, report)


async def _create_claims(api: ApiClient, filling: Filling, classes: Sequence[Json], number: int) -> Given:
    case = filling.build_case(number)
    collection = paths.resource_claims(NAMESPACE)
    return Given(
        case,
        nodes=filling.nodes,
        classes=list(classes),
        slices=filling.slices,
        holders=list(filling.holders),
        claims=[await api.create(collection, body) for body in case.claims],
    )


def _judge(setting: Setting, filling: Filling, one: Given) -> Iterator[str]:
    """Where the scheduler did not do what ``claim new`` had said."""
    assert one.answer is not None
    title, said = f"{filling.machine.title}, pod {filling.pods}", len(filling.expected)
    if not one.answer.allocations:
        if filling.pods < said:
            yield f"{title}: {one.answer.message}, but claim new says that {said} fit"
    elif filling.pods >= said:
        yield f"{title}: allocated, but claim new says {filling.refusal or f'that {said} fit'}"
    elif setting.is_newest:
        pod = filling.expected[filling.pods]
        expected = {spot.name for spot in (*pod.nics, *pod.gpus)}
        got = {r["device"] for entry in one.answer.allocations for r in entry["devices"]["results"]}
        if got != expected:
            yield f"{title}: {sorted(got)}, but claim new says {sorted(expected)}"


async def _note(api: ApiClient, filling: Filling, one: Given, report: ClaimReport) -> None:
    """The pod has its devices, or the machine is full."""
    assert one.answer is not None
    filling.is_over = not one.answer.allocations or filling.pods >= len(filling.expected)
    if one.answer.allocations:
        report.counts["pods"] += 1
        filling.pods += 1
        names = [claim["metadata"]["name"] for claim in one.claims]
        filling.holders += [await api.get(paths.resource_claim(NAMESPACE, name)) for name in names]
