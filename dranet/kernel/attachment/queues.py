"""Which CPUs use the queues of a link: XPS and RPS (``Documentation/networking/scaling.rst``).

sysfs shows the queues of a link only in a mount made in the link's network namespace, so each look takes one
of its own (:mod:`~dranet.kernel.netns_sysfs`). The maps stay on a link that moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from dranet.errors import KernelError
from dranet.kernel.attachment.locate import Side
from dranet.kernel.netns_sysfs import open_sysfs
from dranet.kernel.sysfs import PseudoFiles
from dranet.model.cpus import format_cpu_mask, parse_cpu_list, parse_cpu_mask
from dranet.model.facts import Link
from dranet.model.plan import SetCpuLocality

_SEND_FILES = ("xps_cpus", "xps_rxqs")
"""The second, where it says anything, is asked before the first."""
_RECEIVE_FILES = ("rps_cpus", "rps_flow_cnt")
_OPERATION = "set queues"
_SYS = Path("/sys")


class Queues(Struct, frozen=True):
    """The files of one link's queues, below a sysfs that shows it."""

    root: Path
    sysfs: PseudoFiles
    ifname: str
    online: int
    """The CPUs that count when two masks are compared: the kernel leaves others out of what it is told."""

    @property
    def folder(self) -> str:
        return f"class/net/{self.ifname}/queues"

    def send_queues(self) -> list[int]:
        return self.sysfs.numbered(self.folder, "tx-")

    def receive_queues(self) -> list[int]:
        return self.sysfs.numbered(self.folder, "rx-")

    def read(self, *, xps: bool, rps: bool) -> dict[str, str]:
        """What the files say; those that the link does not have (XPS with a single queue) are left out."""
        names = [f"tx-{queue}/{name}" for queue in self.send_queues() for name in _SEND_FILES if xps]
        names += [f"rx-{queue}/{name}" for queue in self.receive_queues() for name in _RECEIVE_FILES if rps]
        texts = {name: self.read_one(name) for name in names}
        return {name: text for name, text in texts.items() if text}

    def read_one(self, name: str) -> str:
        """Empty where the link has no such queue, or the queue no such file."""
        return self.sysfs.text(f"{self.folder}/{name}")

    def write(self, name: str, value: str) -> None:
        """Write one file, if it is there and says something else.

        Raises:
            KernelError: the kernel refused, or took something else.
        """
        before = self.read_one(name)
        if not before or self._is_same(name, before, value):
            return
        try:
            Path(self.root, self.folder, name).write_text(value)
        except OSError as error:
            raise KernelError(
                f"{self.ifname} {name} to {value}: {error.strerror}",
                errno=error.errno or 0,
                operation=_OPERATION,
                link=self.ifname,
            ) from error
        found = self.read_one(name)
        if not self._is_same(name, found, value):
            told = f"{self.ifname} {name}: wanted {value}, found {found or 'nothing'}"
            raise KernelError(told, operation=_OPERATION, link=self.ifname)

    def _is_same(self, name: str, one: str, other: str) -> bool:
        return _is_same_mask(one, other, self.online if name.endswith("_cpus") else ~0)


def _is_same_mask(one: str, other: str, counting: int = ~0) -> bool:
    first, second = parse_cpu_mask(one), parse_cpu_mask(other)
    if one == other or first is None or second is None:
        return one == other
    return not (first ^ second) & counting


def queue_difference(wanted: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """One line for each file that says something else; a queue that the link no longer has is none."""
    return [
        f"{name}: wanted {value}, found {found[name]}"
        for name, value in wanted.items()
        if found.get(name) and not _is_same_mask(found[name], value)
    ]


@contextmanager
def open_queues(side: Side, ifname: str) -> Iterator[Queues]:
    """The queues of a link that is on this side.

    Raises:
        KernelError: no sysfs can be had there.
    """
    with open_sysfs(side, writable=True) as root:
        sysfs = PseudoFiles(root, [])
        online = sum(1 << cpu for cpu in parse_cpu_list(sysfs.text("devices/system/cpu/online")))
        yield Queues(root, sysfs, ifname, online or ~0)


@contextmanager
def look_at_queues(side: Side, link: Link) -> Iterator[Queues]:
    """As :func:`open_queues`, to read: through ``/sys`` where that shows this link, as on a node. To take a
    mount away waits for a grace period of RCU, some 20 ms.

    Raises:
        KernelError: no sysfs can be had there.
    """
    sysfs, folder = PseudoFiles(_SYS, []), f"class/net/{link.ifname}"
    told = sysfs.text(f"{folder}/ifindex"), sysfs.text(f"{folder}/address")
    if told == (str(link.ifindex), link.mac):
        yield Queues(_SYS, sysfs, link.ifname, ~0)
        return
    with open_queues(side, link.ifname) as queues:
        yield queues


def set_queues(queues: Queues, step: SetCpuLocality, places: Mapping[int, int]) -> None:
    """Let the CPUs of the step use the queues of the link.

    ``places`` says for a send queue whose interrupt was placed, where in the step's CPUs that is; the queue
    gets this one and, where there are more CPUs than queues, its share of the others.

    Raises:
        KernelError: the kernel refused.
    """
    send_queues = queues.send_queues() if step.xps else []
    for queue in send_queues:
        queues.write(f"tx-{queue}/xps_rxqs", "0")
        share = share_of(step.cpus, queue, places.get(queue, queue), len(send_queues))
        queues.write(f"tx-{queue}/xps_cpus", format_cpu_mask(share))
    for queue in queues.receive_queues() if step.rps else []:
        queues.write(f"rx-{queue}/rps_cpus", format_cpu_mask(step.cpus))


def share_of(cpus: Sequence[int], queue: int, place: int, count: int) -> tuple[int, ...]:
    """The CPU at ``place`` and each ``count``-th after it: one of ``count`` shares of all CPUs, none of which
    has a CPU of another, as long as the places of the queues follow each other."""
    start = (place - queue) % len(cpus)
    ordered = (*cpus[start:], *cpus[:start])
    return ordered[queue::count] or (ordered[queue % len(cpus)],)


def restore_queues(queues: Queues, wanted: Mapping[str, str]) -> list[str]:
    """What stood there at Prepare, whoever changed it: the pod had the link. Returns what does not; of a
    queue that the link has no more there is nothing to give back.
    """
    problems = []
    for name, value in wanted.items():
        try:
            queues.write(name, value)
        except KernelError as error:
            problems.append(error.message)
    return problems
