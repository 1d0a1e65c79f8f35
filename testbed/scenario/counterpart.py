"""What the steps of a scenario need of the cluster that they are walked on.

The same files are walked on the testbed (``on_testbed``) and, by the end-to-end suite, on a cluster that is
known by its kubeconfig alone. Pods and claims are named without a namespace: which one it is, is the
counterpart's own affair. Whatever takes time has no deadline of its own; the step has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dranet.errors import DranetError
from dranet.inventory.policy import Decision
from testbed.node.hoststate import HostState
from testbed.runtime.contract import RunningContainer
from testbed.traffic import Endpoint

JsonObject = dict[str, Any]


class NotThere(DranetError):
    """A pod has no sandbox, no container or no such NIC; the text is for the reader of the scenario."""


class TheDriver(Protocol):
    """The driver's life on the counterpart's node."""

    async def start(self, settings: Mapping[str, str]) -> None:
        """Start it, this time also with ``settings``; does not wait."""
        ...

    async def check_ready(self) -> str:
        """What is not ready yet; empty when all is."""
        ...

    def describe(self) -> str:
        """What runs, in a few words."""
        ...

    async def stop(self, within: float) -> int | None:
        """SIGTERM, and wait for its end. The exit code; ``None`` if it is unknown."""
        ...

    async def kill(self, *, stays_away: bool) -> None:
        """SIGKILL, and wait until the kubelet has noticed. With ``stays_away`` no kubelet starts it again."""
        ...

    async def roll(self, within: float) -> str:
        """Update it with surge; return how long the parts took.

        Raises:
            DranetError: the old or the new one did not do its part.
        """
        ...

    def log_tail(self) -> str:
        """The end of its log, for the report of a failed step."""
        ...


class Pods(Protocol):
    """What becomes of pods, and what is inside them."""

    async def wait_prepared(self, pod: str) -> None: ...

    async def wait_running(self, pod: str) -> None: ...

    async def wait_gone(self, pod: str) -> None: ...

    def describe_start(self, pod: str) -> str:
        """How long the phases of its start took."""
        ...

    async def explain(self, pod: str) -> str:
        """Where it is stuck, and why."""
        ...

    def hold_sandboxes(self, hold: bool) -> None:
        """Hold pods after Prepare and before their sandbox, or let them go on."""
        ...

    async def find_nics(self, pod: str) -> list[JsonObject]:
        """Those of the node's NICs that are inside, as ``ip`` describes them; :class:`NotThere`."""
        ...

    async def run_inside(self, pod: str, command: Sequence[str]) -> str:
        """What a program prints in the pod's network namespace; :class:`NotThere`."""
        ...

    async def inspect_container(self, pod: str) -> RunningContainer:
        """What its first container was given; :class:`NotThere`."""
        ...

    async def find_endpoint(self, pod: str) -> Endpoint:
        """The first of its NICs that has an IPv4 address; :class:`NotThere`."""
        ...


class Counterpart(Protocol):
    """One cluster with one node, on which a scenario is walked."""

    @property
    def driver(self) -> TheDriver: ...

    @property
    def pods(self) -> Pods: ...

    @property
    def decisions(self) -> Sequence[Decision]:
        """What the node has, and what should be offered of it."""
        ...

    async def start_vendor_driver(self, driver: str) -> None: ...

    async def add_device_plugin(self, resource: str, ids: Sequence[str]) -> None: ...

    async def apply(self, manifests: Sequence[JsonObject]) -> None: ...

    async def allocate(self, claim: str, devices: Mapping[str, str]) -> None: ...

    async def delete_pod(self, name: str) -> None: ...

    async def fetch_pod(self, name: str) -> JsonObject: ...

    async def fetch_claim(self, name: str) -> JsonObject: ...

    async def fetch_pod_claims(self, name: str) -> list[JsonObject]: ...

    async def fetch_slices(self) -> list[JsonObject]: ...

    async def fetch_events(self, name: str) -> list[JsonObject]: ...

    async def read_node_links(self) -> list[JsonObject]:
        """The links in the node's own network namespace, with their addresses."""
        ...

    async def read_host_state(self) -> HostState:
        """The whole network state of the node."""
        ...
