"""``dranet claim new`` against the real scheduler: each machine is filled with the pods that it writes.

The command reads the slices as the server keeps them. Beforehand it says how many pods fit, and which devices
each gets; ``explain`` says it again for each pod. What the command refuses the scheduler must not be able to
give, and the nearest that the refusal names must fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.desk.hardware.nodes import Hardware, read_hardware
from dranet.desk.templates.candidates import NotAvailable
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.request import ClaimRequest
from dranet.desk.templates.trial import Pod
from e2e.cluster.controlplane import ControlPlaneKit
from e2e.installation import read_manifests
from tests.data.gpu_drivers import device_classes
from tests.desk.scheduler.cases import Json
from tests.desk.scheduler.filling import Filling, Step, fill
from tests.desk.scheduler.layouts import Machine, build_node, list_machines, write_plain
from tests.desk.scheduler.predictions import find_difference
from tests.desk.scheduler.reasons import find_reason
from tests.desk.scheduler.settings import Setting, open_scheduler
from tests.desk.scheduler.submission import prepare
from tests.desk.templates.layout_clusters import Gpus

_PER_CLUSTER = 250
"""A scheduler looks at the slices of all machines for every pod."""
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
class Asked:
    """A machine that ``claim new`` was asked about, and that is filled with what it writes."""

    machine: Machine
    filling: Filling
    choice: Choice | None = None
    refusal: NotAvailable | None = None

    @property
    def expected(self) -> Sequence[Pod]:
        """What ``claim new`` says of each pod that fits."""
        return self.choice.attempt.trials[0].pods if self.choice else ()


async def fill_machines(
    kit: ControlPlaneKit, setting: Setting, publishers: Collection[Gpus], folder: Path
) -> ClaimReport:
    """Ask for claims on every machine and give them to the scheduler; inside a private tree only."""
    report = ClaimReport(setting)
    machines = list_machines(publishers, has_lists=setting.dialect.lists)
    async for filled in fill_all(kit, setting, machines, folder):
        for asked in filled:
            _compare(asked, report)
    return report


async def fill_all(
    kit: ControlPlaneKit, setting: Setting, machines: Sequence[Machine], folder: Path
) -> AsyncIterator[list[Asked]]:
    """Yield the filled machines, some at a time."""
    for start in range(0, len(machines), _PER_CLUSTER):
        async with open_scheduler(kit, setting, folder / f"{setting.slug}-layouts-{start}") as api:
            await prepare(api)
            classes = [
                await api.create(paths.DEVICE_CLASSES, item)
                for item in (*read_manifests("deviceclasses.yaml"), *device_classes())
            ]
            every = [
                asked
                for machine in machines[start : start + _PER_CLUSTER]
                for asked in await _begin(api, machine, classes)
            ]
            await fill(api, [asked.filling for asked in every], classes)
            yield every


async def _begin(api: ApiClient, machine: Machine, classes: Sequence[Json]) -> list[Asked]:
    """The machine, published and asked; with another one for the nearest that a refusal names."""
    nodes = [await api.create(paths.NODES, build_node(machine.node))]
    slices = [await api.create(paths.RESOURCE_SLICES, body) for body in machine.build_slices()]
    hardware = read_hardware(slices, nodes)
    try:
        choice = choose_claim(machine.ask, hardware, {item["metadata"]["name"]: item for item in classes})
    except NotAvailable as error:
        plain = write_plain(machine, _find_nic_class(machine.ask, hardware), _find_gpu_class(machine))
        nearest = [ClaimRequest(int(gpus), int(nics)) for gpus, nics in _NEAREST.findall(error.hint)]
        others = [
            asked
            for ask in nearest
            if ask.nics and ask != machine.ask
            for asked in await _begin(api, machine.for_ask(ask), classes)
        ]
        return [Asked(machine, Filling(machine.title, nodes, slices, plain), refusal=error), *others]
    return [Asked(machine, Filling(machine.title, nodes, slices, choice.manifests), choice)]


def _find_nic_class(ask: ClaimRequest, hardware: Hardware) -> str:
    has_rdma = any(nic.has_rdma for node in hardware.nodes for nic in node.nics)
    return "dranet-rdma" if has_rdma and ask.rdma is not False else "dranet-nic"


def _find_gpu_class(machine: Machine) -> str:
    return "dranet-gpu" if machine.gpus is Gpus.OURS else machine.world.gpu_driver


def _compare(asked: Asked, report: ClaimReport) -> None:
    """Add to the report what came of one machine."""
    report.counts["refused" if asked.refusal else "written"] += 1
    report.counts["pods"] += len(list(asked.filling.pods))
    if asked.refusal and asked.machine.is_nearest:
        report.differences.append(f"{asked.machine.title}: the nearest is refused, too: {asked.refusal}")
    pods = 0
    for step in asked.filling.steps:
        title = f"{asked.machine.title}, pod {pods}"
        if step.is_given_up:
            report.given_up.append(title)
            continue
        difference = find_difference(report.setting, step.given, step.foretold)
        if difference is not None and not find_reason(report.setting, step.given, step.foretold):
            report.differences.append(f"{title}: {difference.text}")
        if step.devices:
            report.differences += [f"{title}: {text}" for text in _judge(report.setting, asked, pods, step)]
        pods += bool(step.devices)
    if pods < len(asked.expected) and not any(step.is_given_up for step in asked.filling.steps):
        report.differences.append(
            f"{asked.machine.title}: {asked.filling.steps[-1].message}, but claim new says that "
            f"{len(asked.expected)} fit"
        )


def _judge(setting: Setting, asked: Asked, number: int, step: Step) -> Iterator[str]:
    """Where the scheduler gave other devices than ``claim new`` had said."""
    said = len(asked.expected)
    if number >= said:
        yield f"allocated, but claim new says {asked.refusal or f'that {said} fit'}"
    elif setting.is_ordered:
        pod = asked.expected[number]
        expected = {spot.name for spot in (*pod.nics, *pod.gpus)}
        if step.devices != expected:
            yield f"{sorted(step.devices)}, but claim new says {sorted(expected)}"
