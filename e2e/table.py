"""Which scenario can be walked where, and why not, by name.

Pure: an action that a lane cannot do skips the whole scenario, with the step that needs it, before anything
of it is begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dranet.testbed.scenario import scenario as actions
from dranet.testbed.scenario.scenario import Action, Scenario, known_scenarios, load_scenario

_NOWHERE: Mapping[type[Action], str] = {
    actions.HoldSandboxes: "no kubelet can be told to hold sandboxes",
    actions.ReleaseSandboxes: "no kubelet can be told to hold sandboxes",
    actions.WaitPodPrepared: "nobody can see from outside that a pod is prepared and has no sandbox yet",
    actions.StartVendorDriver: "a vendor's GPU driver is played by the testbed alone",
    actions.AddDevicePlugin: "a device plugin is played by the testbed alone",
}

_WITH_HANDS: Mapping[type[Action], str] = {
    actions.KillDriver: "nobody can send SIGKILL on the node",
    actions.ExpectInPod: "nobody can look into a pod's network namespace on the node",
    actions.ExpectContainer: "nobody can look into a container on the node",
    actions.ExpectNodeLink: "nobody can look at the node's links",
}


@dataclass(frozen=True, slots=True)
class Reach:
    """What a lane has on the node besides the API server."""

    has_hands: bool
    has_layout: bool
    """It can put a scenario's hardware on the node."""


def find_obstacle(scenario: Scenario, reach: Reach) -> str:
    """Why a scenario cannot be walked, with the step that says so; empty if it can."""
    if "containerd" not in scenario.runtimes:
        return f"only with the stand-in runtime: {scenario.why_not_everywhere}"
    if stays_down := _find_killed_and_left(scenario):
        return f"step '{stays_down}': a kubelet starts a killed driver again at once"
    missing = dict(_NOWHERE) if reach.has_hands else {**_NOWHERE, **_WITH_HANDS}
    for step in scenario.steps:
        if why := missing.get(type(step.action)):
            return f"step '{step.title}': {why}"
    if not reach.has_layout:
        return f"hardware {scenario.hardware}: this lane cannot put it on a node"
    return ""


def describe_table(lanes: Mapping[str, Reach]) -> str:
    """Every scenario by every kind of lane, as the documentation has it."""
    rows = [["scenario", *lanes], ["---"] * (len(lanes) + 1)]
    rows += [
        [scenario.name, *(find_obstacle(scenario, reach) or "runs" for reach in lanes.values())]
        for scenario in map(load_scenario, (path.stem for path in known_scenarios()))
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _find_killed_and_left(scenario: Scenario) -> str:
    """The step that kills the driver, where the next one counts on its staying away."""
    for step, following in zip(scenario.steps, scenario.steps[1:], strict=False):
        if isinstance(step.action, actions.KillDriver) and not isinstance(
            following.action, actions.StartDriver
        ):
            return step.title
    return ""
