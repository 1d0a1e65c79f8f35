"""What the container runtime tells of pods and containers, and what it takes back from us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dranet.model.facts import CharDevice
from dranet.model.record import Record


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
class Container(Record):
    """A container about to be created in a pod. ``mounts`` include those of its CDI devices."""

    id: str
    name: str
    pod_sandbox_id: str
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ContainerAdjustment(Record):
    """What the driver adds to a container."""

    devices: tuple[CharDevice, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
