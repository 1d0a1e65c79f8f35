"""What the container runtime tells of pods and containers, and what it takes back from us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dranet.model.facts import CharDevice
from dranet.model.record import Record

UNLIMITED = -1
"""``RLIM_INFINITY``."""

MEMLOCK = "RLIMIT_MEMLOCK"
"""The OCI runtime spec's name; in bytes."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PodSandbox(Record):
    """A pod sandbox. ``netns_path`` is empty on host networking and, at Stop, on older runtimes."""

    id: str
    name: str
    namespace: str
    uid: str
    netns_path: str = ""
    pid: int = 0
    """0 once the sandbox has stopped."""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether the sandbox lives (only from Synchronize on: stopped ones are listed with pid 0)."""
        return self.pid > 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mount(Record):
    source: str
    destination: str
    type: str = "bind"
    options: tuple[str, ...] = ("ro", "bind")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rlimit(Record):
    """A resource limit of a container's processes (``getrlimit(2)``); -1 is unlimited."""

    type: str
    soft: int
    hard: int

    def permits(self, amount: int) -> bool:
        """Whether a process may take so much (-1: any amount) without asking for more."""
        return self.soft == UNLIMITED or (amount != UNLIMITED and amount <= self.soft)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Container(Record):
    """A container about to be created in a pod. ``mounts`` include those of its CDI devices; ``rlimits`` are
    those that its image or somebody before us set, not the ones that it inherits."""

    id: str
    name: str
    pod_sandbox_id: str
    mounts: tuple[Mount, ...] = ()
    rlimits: tuple[Rlimit, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ContainerAdjustment(Record):
    """What the driver adds to a container."""

    devices: tuple[CharDevice, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    rlimits: tuple[Rlimit, ...] = ()
