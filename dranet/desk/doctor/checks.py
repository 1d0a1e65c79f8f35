"""What a check is: an id, what it looks at, why that matters, how to fix it, and the function that judges.

Pure. A judge receives :class:`Surroundings` and yields an :class:`Evaluation` for each thing it has found.
Texts that are the same for every node belong to the check, so that ``docs/commands/doctor.md`` and the
command explain a finding alike. Ids never change: automation names them (``--ignore``, ``--fail-on``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

from msgspec import Struct, field

from dranet.cluster.nodes import NodeDevice
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Gpu, Link, NodeFacts, RdmaDevice
from dranet.model.findings import Finding, HostFacts, PciFacts, Severity
from dranet.settings import Settings

FAST_MBPS = 100_000
"""From here on a CPU that dozes, or a clock that is low, shows in what a link carries."""


class DevicePlugin(Struct, frozen=True):
    """An extended resource of the node and the ids of what its device plugin gives out."""

    resource: str
    ids: tuple[str, ...] = ()


class ClusterFacts(Struct, frozen=True):
    """What the API server knows of this node; empty where it cannot be asked."""

    server_version: str = ""
    kubelet_version: str = ""
    runtime_version: str = ""
    """As the kubelet sees it: ``containerd://2.1.4``."""
    resources: tuple[str, ...] = ()
    others: tuple[NodeDevice, ...] = ()
    """Devices of other DRA drivers on this node."""


class Surroundings(Struct, frozen=True, dict=True):
    """Everything that a judge may know."""

    settings: Settings = field(default_factory=Settings)
    node: NodeFacts = field(default_factory=NodeFacts)
    host: HostFacts = field(default_factory=HostFacts)
    offered: tuple[Device, ...] = ()
    """What this driver would offer."""
    cluster: ClusterFacts = field(default_factory=ClusterFacts)
    plugins: tuple[DevicePlugin, ...] = ()
    expected_rails: Mapping[str, int] = field(default_factory=dict)
    """By interface or PCI address, as the administrator has written it."""
    shown: frozenset[str] = frozenset()
    """Ids of what the running driver has seen for itself, which takes precedence over configuration files."""

    @cached_property
    def rdma(self) -> tuple[RdmaDevice, ...]:
        """Adapters; a software device (rxe, siw) has no PCI function."""
        return tuple(device for device in self.node.rdma_devices if device.pci_address)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.node.gpus

    @cached_property
    def pci(self) -> dict[str, PciFacts]:
        return {function.address: function for function in self.host.pci}

    @cached_property
    def paths(self) -> dict[str, tuple[str, ...]]:
        """By PCI address: the bridges above a function, and itself."""
        return {function.address: function.path for function in self.node.pci_functions}

    @cached_property
    def models(self) -> dict[str, str]:
        """By PCI address: ``15b3:1021``."""
        return {f.address: f"{f.vendor_id:04x}:{f.device_id:04x}" for f in self.node.pci_functions}

    @cached_property
    def physical_links(self) -> tuple[Link, ...]:
        """Links of PCI functions, without virtual functions."""
        virtual = {f.address for f in self.node.pci_functions if f.physical_function}
        return tuple(
            link
            for link in self.node.links
            if link.pci_address and not link.kind and link.pci_address not in virtual
        )

    @property
    def is_fast(self) -> bool:
        """Whether tuning is worth a word: GPUs, RDMA, or links of 100 Gbit/s."""
        speeds = (link.speed_mbps or 0 for link in self.physical_links)
        return bool(self.rdma or self.gpus) or max(speeds, default=0) >= FAST_MBPS

    @cached_property
    def offered_links(self) -> frozenset[str]:
        return frozenset(d.ifname for d in self.offered if d.ifname and d.kind is DeviceKind.NIC)

    @cached_property
    def offered_addresses(self) -> frozenset[str]:
        """PCI addresses of what is offered, GPUs left out: whose they are is asked elsewhere."""
        nics = (device for device in self.offered if device.kind is not DeviceKind.GPU)
        return frozenset(device.pci_address for device in nics if device.pci_address)

    def process(self, name: str) -> bool | None:
        """Whether a program runs on the node; ``None``: cannot be seen."""
        if self.host.processes is None:
            return None
        return any(process.name == name for process in self.host.processes)


class Evaluation(Struct, frozen=True):
    """What a judge has found on this node; empty texts are those of the check."""

    severity: Severity
    seen: str
    matters: str = ""
    fix: str = ""


def fine(seen: str) -> Evaluation:
    return Evaluation(Severity.OK, seen)


def note(seen: str, *, matters: str = "", fix: str = "") -> Evaluation:
    return Evaluation(Severity.NOTE, seen, matters, fix)


def warning(seen: str, *, matters: str = "", fix: str = "") -> Evaluation:
    return Evaluation(Severity.WARNING, seen, matters, fix)


def problem(seen: str, *, matters: str = "", fix: str = "") -> Evaluation:
    return Evaluation(Severity.PROBLEM, seen, matters, fix)


Judge = Callable[[Surroundings], Iterator[Evaluation]]


class Entry(Struct, frozen=True):
    """What ``docs/commands/doctor.md`` explains of an id."""

    id: str
    part: str
    what: str
    """What it looks at, as a noun phrase."""
    matters: str
    fix: str


class Check(Struct, frozen=True):
    """An entry with its judge."""

    entry: Entry
    judge: Judge

    def run(self, surroundings: Surroundings) -> Iterator[Finding]:
        """Return its findings, with why and how where there is something to do."""
        entry = self.entry
        for evaluation in self.judge(surroundings):
            is_fine = evaluation.severity is Severity.OK
            matters = "" if is_fine else evaluation.matters or entry.matters
            fix = "" if is_fine else evaluation.fix or entry.fix
            yield Finding(entry.part, evaluation.severity, evaluation.seen, matters, fix, entry.id)


def check(id_: str, part: str, what: str, *, matters: str, fix: str) -> Callable[[Judge], Check]:
    """Declare a check; what it decorates becomes its judge."""
    return lambda judge: Check(Entry(id_, part, what, matters, fix), judge)


def join(items: Iterable[str], most: int = 4) -> str:
    """``eth0, eth1, eth2 and 5 more``."""
    names = list(items)
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"


VISIBILITY = "view"


@check(
    "not-visible",
    VISIBILITY,
    "what cannot be looked at from where the doctor runs",
    matters="It is not judged.",
    fix="On the node, as root: `dranet doctor`. In a debug container: `kubectl debug node/NODE -it "
    "--image=IMAGE --profile=sysadmin -- dranet doctor --host-root /host --procfs-root /host/proc "
    "--sysfs-root /host/sys`.",
)
def not_visible(seen: Surroundings) -> Iterator[Evaluation]:
    found = [f"{part.what} ({part.why})" for part in seen.host.unseen]
    if seen.host.runtime is None and not any("/etc" in text for text in found):
        found.append("the runtime's configuration (no file where it usually is)")
    if found:
        yield note(f"not visible from here: {'; '.join(found)}")
