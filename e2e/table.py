"""Which scenario can be walked where, and why not, by name.

Pure: an action that a lane cannot do skips the whole scenario, with the step that needs it, before anything
of it is begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.scenario import scenario as actions
from testbed.scenario.scenario import Action, Scenario, known_scenarios, load_scenario

_WITH_CONTROL: Mapping[type[Action], str] = {
    actions.HoldSandboxes: "sandboxes can be held on a node of the suite's own alone",
    actions.ReleaseSandboxes: "sandboxes can be held on a node of the suite's own alone",
    actions.WaitPodPrepared: "from outside it is not visible that a pod is prepared and has no sandbox yet",
    actions.StartVendorDriver: "a vendor's GPU driver is started on a node of the suite's own alone",
    actions.AddDevicePlugin: "a device plugin is started on a node of the suite's own alone",
}

_WITH_HANDS: Mapping[type[Action], str] = {
    actions.KillDriver: "no access to the node: cannot send SIGKILL",
    actions.ExpectInPod: "no access to the node: cannot look into a pod's network namespace",
    actions.ExpectContainer: "no access to the node: cannot look into a container",
    actions.ExpectNodeLink: "no access to the node: cannot look at its links",
}


@dataclass(frozen=True, slots=True)
class Reach:
    """What a lane has on the node besides the API server."""

    has_hands: bool
    has_layout: bool
    """It can put a scenario's hardware on the node."""
    has_control: bool = False
    """It has what :class:`~e2e.access.NodeControl` can do."""


def find_blocker(scenario: Scenario, reach: Reach) -> str:
    """Why a scenario cannot run, with the step that prevents it; empty if it can."""
    missing = {
        **({} if reach.has_control else _WITH_CONTROL),
        **({} if reach.has_hands else _WITH_HANDS),
    }
    for step in scenario.steps:
        if not reach.has_control and isinstance(step.action, actions.KillDriver) and step.action.stays_away:
            return f"step '{step.title}': a kubelet starts a killed driver again at once"
        if why := missing.get(type(step.action)):
            return f"step '{step.title}': {why}"
    if not reach.has_layout:
        return f"hardware {scenario.hardware}: this lane cannot put it on a node"
    return ""


def describe_table(lanes: Mapping[str, Reach]) -> str:
    """Every scenario by every kind of lane, as the documentation has it."""
    rows = [["scenario", *lanes], ["---"] * (len(lanes) + 1)]
    rows += [
        [scenario.name, *(find_blocker(scenario, reach) or "runs" for reach in lanes.values())]
        for scenario in map(load_scenario, (path.stem for path in known_scenarios()))
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
