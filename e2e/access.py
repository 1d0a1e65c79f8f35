"""What a lane hands to the suite: a kubeconfig, and what it can do on the node besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dranet.errors import DranetError
from testbed.node.node import Node
from testbed.runtime.contract import RunningContainer


class LaneUnavailable(DranetError):
    """This machine, or this cluster, does not have what the lane needs; nothing was changed."""


class E2eFailed(DranetError):
    """The cluster did not do what the suite asked; the text describes what was seen."""


class Hands(Protocol):
    """What is done on the node itself, past the API server."""

    async def run(self, *command: str) -> str:
        """What a program prints that runs in the node's own namespaces."""
        ...

    async def find_netns(self, pod_uid: str) -> str:
        """A path, on the node, of the pod's network namespace; empty where it has none."""
        ...

    async def inspect_container(self, pod_uid: str) -> RunningContainer | None:
        """What the first container of the pod was given; ``None`` where none runs."""
        ...

    async def kill_driver(self, pod_uid: str) -> None:
        """SIGKILL for the driver of that pod."""
        ...


class NodeControl(Protocol):
    """What a lane can do with its own node and not with a user's."""

    def hold_sandboxes(self, hold: bool) -> None:
        """Let sandboxes of pods wait between Prepare and the runtime's hook; or let them go on."""
        ...

    def is_prepared(self, claim_uid: str) -> bool: ...

    async def start_vendor_driver(self, name: str) -> None: ...

    async def add_device_plugin(self, resource: str, ids: Sequence[str]) -> None:
        """Let the kubelet give these ids, the first ones first, to containers that ask for the resource."""
        ...


@dataclass(frozen=True, slots=True)
class Access:
    """One cluster, as a lane made or found it."""

    lane: str
    kubeconfig: Path
    node_name: str
    """The node that is looked at."""
    image: str
    """The driver's image; the nodes have it or can pull it."""
    pod_image: str
    """The image of the pods that claim NICs; it has ``sleep``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the driver, over those of the manifests."""
    host_paths: Mapping[str, str] = field(default_factory=dict)
    """Places on the node that are put in the place of those of the manifests."""
    mounts: Sequence[str] = ()
    """More of the node's folders that the driver is to see, where they are on the node."""
    hands: Hands | None = None
    control: NodeControl | None = None
    layout: Node | None = None
    """The hardware that the lane has put on the node; without it the node has what it has."""
    log_file: Path | None = None
    """Where the driver's log is, if the lane keeps one: a file, or a kubelet's folder of pods' logs."""
    may_replace: bool = False
    """The user allows an installed driver to be replaced and removed at the end."""
    patience: float = 1.0
    """How many times the scenarios' time limits a step may take here."""
