"""Scenarios: YAML files of steps and expectations, the same for every runtime.

Pure: it declares what a file may contain and reads it. ``scenario_run`` walks through the steps. A step has
one action, a time limit (``within``, seconds) and perhaps a sentence (``summary``) for the reader on what is
going on. Pods are named without their namespace, which is ``default``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from testbed.faults import NOT_ONE_OF
from testbed.node.hardware import Hardware, load_hardware
from testbed.yamlfile import DATA, InvalidFile, find_file, read_model

SCENARIOS = DATA / "scenarios"


RuntimeName = Literal["stand-in", "containerd"]
RUNTIMES: tuple[RuntimeName, ...] = get_args(RuntimeName)

Names = Annotated[tuple[str, ...], Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Action(_Model):
    """What every action has."""

    within: Annotated[float, Field(gt=0, le=120)] = 20.0
    """Seconds until the action or expectation counts as failed."""


class ObjectMeta(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    name: Annotated[str, Field(min_length=1)]


class Manifest(BaseModel):
    """A Kubernetes object; the API server judges the rest of it."""

    model_config = ConfigDict(frozen=True, extra="allow")

    api_version: str = Field(alias="apiVersion")
    kind: Literal["ConfigMap", "DeviceClass", "Pod", "ResourceClaim", "ResourceClaimTemplate"]
    metadata: ObjectMeta

    @property
    def body(self) -> dict[str, Any]:
        """The object as it was written."""
        return self.model_dump(by_alias=True)


class Apply(Action):
    """Create these objects, as ``kubectl apply`` would."""

    objects: Annotated[tuple[Manifest, ...], Field(min_length=1)]


class AllocatedDevice(_Model):
    """One result of an allocation."""

    request: str
    device: str


class Allocate(Action):
    """Write a claim's allocation by hand, past the scheduler's rules."""

    claim: str
    devices: Annotated[tuple[AllocatedDevice, ...], Field(min_length=1)]


class StartDriver(Action):
    """Start the driver, with further settings if need be, and wait until it is ready."""

    settings: dict[str, str] = {}


class StartVendorDriver(Action):
    """Start a DRA driver of that name which publishes the node's GPUs, by their PCI addresses, and prepares
    whatever it is asked. It gives containers nothing, and lives until the scenario ends."""

    driver: str


class AddDevicePlugin(Action):
    """A device plugin: from now on the kubelet gives these ids to containers that ask for the resource by
    number. It lists them at its pod resources socket, and nowhere else."""

    resource: str
    ids: Names


class StopDriver(Action):
    """SIGTERM; the driver must drain and exit with this code."""

    exit_code: int = 0


class KillDriver(Action):
    """SIGKILL. On a cluster the kubelet starts it again, unless it ``stays_away`` until StartDriver."""

    stays_away: bool = False


class RollDriver(Action):
    """Start a successor alongside the driver, wait until it is ready, stop the old one; both must do well."""


class HoldSandboxes(Action):
    """From now on pods stop after Prepare and before RunPodSandbox."""


class ReleaseSandboxes(Action):
    """Let held pods, and later ones, go on."""


class ShowInventory(Action):
    """Print the node's topology with what is offered of it."""


class ExpectSlices(Action):
    """What the driver has published."""

    devices: int | None = None
    has: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class WaitPodPrepared(Action):
    """Every driver answered Prepare; the sandbox may be held."""

    pods: Names


class WaitPodRunning(Action):
    pods: Names


class WaitPodFailing(Action):
    """The pod does not come up, with the reason: each text is in its Events or its status."""

    pod: str
    texts: Names


class ExpectAligned(Action):
    """Each NIC of the pod is at most this far from the pod's nearest GPU."""

    pods: Names
    at_most: Literal["PIX", "PXB", "PHB", "NODE", "SYS"]


class ExpectVerdict(Action):
    """The alignment verdict in the claims' status (``TopologyAligned``), the same for every NIC of each pod,
    or for the ``device`` alone. ``better`` is the device that is named as the nearer one."""

    pods: Names
    device: str = ""
    status: Literal["True", "False", "Unknown"] = "True"
    reason: str = ""
    distance: Literal["PIX", "PXB", "PHB", "NODE", "SYS", "unknown", ""] = ""
    better: str = ""
    texts: tuple[str, ...] = ()


class Interface(_Model):
    """An interface inside a pod, as the kernel reports it."""

    name: str
    address: str | None = None
    mtu: int | None = None
    mac: str | None = None


class ExpectInterfaces(Action):
    """Exactly these of the node's NICs are inside the pod, and up."""

    pod: str
    interfaces: Annotated[tuple[Interface, ...], Field(min_length=1)]


class ExpectContainer(Action):
    """What the first container of the pod was actions: device nodes and environment."""

    pod: str
    devices: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)


class Traffic(Action):
    """TCP over the first NIC of each pod, proven to cross it."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    client: str = Field(alias="from")
    server: str = Field(alias="to")
    seconds: Annotated[float, Field(gt=0, le=10)] = 1.0
    round_trips: Annotated[int, Field(ge=1, le=100_000)] = 2000


class DeletePods(Action):
    """Delete, and wait until they are gone unless ``wait`` is false."""

    pods: Names
    wait: bool = True


class WaitPodsGone(Action):
    """Sandbox removed, claims unprepared, object deleted."""

    pods: Names


class ExpectClaimCondition(Action):
    """A condition on each of our devices in the status of a pod's claim (or of a claim by name)."""

    pod: str = ""
    claim: str = ""
    type: str
    status: Literal["True", "False"]
    reason: str = ""
    texts: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if bool(self.pod) == bool(self.claim):
            raise ValueError("give either pod or claim")
        return self


class ExpectEvent(Action):
    """An Event about an object."""

    name: str
    reason: str
    texts: tuple[str, ...] = ()


class ExpectInPod(Action):
    """What a program prints in the pod's network namespace (``ip``, ``tc``, ``ethtool``, ``sysctl``)."""

    pod: str
    command: Names
    has: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class ExpectNodeLink(Action):
    """A link in the node's own network namespace."""

    name: str
    up: bool
    mtu: int | None = None


class ExpectHostUnchanged(Action):
    """The node's links, addresses, routes, rules, neighbours and qdiscs equal those before the first step."""


class Step(_Model):
    """Exactly one action."""

    summary: str = ""
    apply: Apply | None = None
    allocate: Allocate | None = None
    start_driver: StartDriver | None = None
    start_vendor_driver: StartVendorDriver | None = None
    add_device_plugin: AddDevicePlugin | None = None
    stop_driver: StopDriver | None = None
    kill_driver: KillDriver | None = None
    roll_driver: RollDriver | None = None
    hold_sandboxes: HoldSandboxes | None = None
    release_sandboxes: ReleaseSandboxes | None = None
    show_inventory: ShowInventory | None = None
    expect_slices: ExpectSlices | None = None
    wait_pod_prepared: WaitPodPrepared | None = None
    wait_pod_running: WaitPodRunning | None = None
    wait_pod_failing: WaitPodFailing | None = None
    expect_aligned: ExpectAligned | None = None
    expect_verdict: ExpectVerdict | None = None
    expect_interfaces: ExpectInterfaces | None = None
    expect_container: ExpectContainer | None = None
    traffic: Traffic | None = None
    delete_pods: DeletePods | None = None
    wait_pods_gone: WaitPodsGone | None = None
    expect_claim_condition: ExpectClaimCondition | None = None
    expect_in_pod: ExpectInPod | None = None
    expect_node_link: ExpectNodeLink | None = None
    expect_event: ExpectEvent | None = None
    expect_host_unchanged: ExpectHostUnchanged | None = None

    @model_validator(mode="after")
    def _has_one_action(self) -> Self:
        actions = self._list_actions()
        if len(actions) != 1:
            raise PydanticCustomError(
                NOT_ONE_OF,
                "must have exactly one action, not {found}",
                {"found": ", ".join(actions) or "none", "besides": ("summary",)},
            )
        return self

    def _list_actions(self) -> dict[str, Action]:
        return {name: value for name, value in self if isinstance(value, Action)}

    @property
    def action(self) -> Action:
        (action,) = self._list_actions().values()
        return action

    @property
    def title(self) -> str:
        """The sentence, or the action's name in words."""
        (name,) = self._list_actions()
        return self.summary or name.replace("_", " ")


class Scenario(_Model):
    """A whole file."""

    name: str
    description: str
    hardware: str
    """A shipped hardware file's name, or a path."""
    runtimes: tuple[RuntimeName, ...] = RUNTIMES
    """Where it can run; by default everywhere."""
    why_not_everywhere: str = ""
    feature_gates: tuple[str, ...] = ()
    """Feature gates of Kubernetes that the cluster must have on; some versions have them off by default."""
    has_wrong_parameters: bool = False
    """The scenario shows the driver's own answer to them: the API server does not validate them."""
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_a_reason(self) -> Self:
        if set(self.runtimes) != set(RUNTIMES) and not self.why_not_everywhere:
            raise ValueError("why_not_everywhere must name why a runtime is left out")
        return self


def load_scenario(name_or_path: str) -> Scenario:
    """Read a shipped scenario by name or any by path.

    Raises:
        InvalidFile: every fault with its field path.
    """
    return read_model(find_file(name_or_path, SCENARIOS), Scenario)


def load_scenario_hardware(scenario: Scenario) -> Hardware:
    """The hardware that the scenario runs on.

    Raises:
        InvalidFile: unknown or not sound; names the scenario.
    """
    try:
        return load_hardware(scenario.hardware)
    except InvalidFile as error:
        raise InvalidFile(f"scenario {scenario.name}: hardware: {error.message}", hint=error.hint) from error


def known_scenarios() -> tuple[Path, ...]:
    """The files that the package ships."""
    return tuple(sorted(SCENARIOS.glob("*.yaml")))
