"""The container runtime as the testbed's kubelet sees it: pods and containers.

Two implementations keep each other honest: ``runtime_standin`` speaks NRI by itself and needs nothing
installed, ``runtime_containerd`` drives a real containerd and runc through the CRI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


class RuntimeFailure(Exception):
    """The runtime refused a pod or container; the text is what a kubelet would put into its Event."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container to create. ``cdi_devices`` are the fully qualified names that Prepare answered."""

    name: str
    cdi_devices: tuple[str, ...] = ()
    command: tuple[str, ...] = ("sleep", "infinity")
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """A pod to run."""

    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    host_network: bool = False
    attempt: int = 0
    """Which sandbox of this pod: the kubelet makes the next one while the last is stopped and still there."""


@dataclass(frozen=True, slots=True)
class RunningSandbox:
    """A pod sandbox; ``netns_path`` can be opened while it runs (empty on host networking)."""

    id: str
    netns_path: str


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A started container with what it was given, as seen from inside it.

    ``devices`` maps a path to ``"major:minor"``, ``mounts`` a destination to its source on the node.
    """

    id: str
    name: str
    devices: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    memory_nodes: str = ""
    """NUMA nodes that its memory may come from; empty without a limit."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    exit_code: int
    stdout: str
    stderr: str


class PodRuntime(Protocol):
    """What the testbed needs of a runtime. Every call raises :class:`RuntimeFailure` when it is refused."""

    @property
    def name(self) -> str:
        """``stand-in`` or e.g. ``containerd 1.7.24``; part of each result."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Remove every pod and leave nothing behind."""
        ...

    async def run_sandbox(self, spec: SandboxSpec) -> RunningSandbox: ...

    async def create_container(self, sandbox: RunningSandbox, spec: ContainerSpec) -> RunningContainer:
        """Create and start; fails when a CDI mount source is missing, as runc does."""
        ...

    async def exec_in_container(self, container: RunningContainer, command: Sequence[str]) -> ExecResult: ...

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop containers and sandbox, remove the network namespace. Repeatable."""
        ...

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Repeatable; an unknown id is fine."""
        ...


@runtime_checkable
class RestartableRuntime(PodRuntime, Protocol):
    """A runtime that can go away by itself; its pods live on, and give no Stop and Remove events any more."""

    async def restart(self) -> None:
        """End it in order, and start it on the same state."""
        ...

    async def crash(self) -> None:
        """Kill it, and start it on the same state."""
        ...
