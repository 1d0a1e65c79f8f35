"""First commands of the runbook, as they are typed: what Prometheus knows is filled in."""

from __future__ import annotations

NAMESPACE = "dranet-system"
"""Where the driver is installed by default; the chart puts its own in."""

_KUBECTL = f"kubectl -n {NAMESPACE}"
NODE = "{{ $labels.node }}"

_OURS = "-l dra.net/pool"
"""Others may have pods in the namespace, too."""
_ON_NODE = f"{_OURS} --field-selector spec.nodeName={NODE}"
_POD = f"$({_KUBECTL} get pods -o name {_ON_NODE} | head -n 1)"

PODS = f"{_KUBECTL} get pods -o wide {_OURS}"
PODS_OF_NODE = f"{_KUBECTL} get pods -o wide {_ON_NODE}"
DAEMONSETS = f"{_KUBECTL} describe daemonset {_OURS}"
UNDO = f"{_KUBECTL} rollout undo daemonset {_OURS}"
"""Of all pools. What Helm installed, `helm rollback` puts back as well."""
LOGS = f"{_KUBECTL} logs {_POD} --tail=200"
LAST_WORDS = f"{_KUBECTL} logs {_POD} --previous --tail=50"


def on_node(command: str) -> str:
    """In the driver's pod of the alert's node."""
    return f"{_KUBECTL} exec {_POD} -- {command}"


DOCTOR = on_node("dranet doctor --config /etc/dranet/settings.yaml")
BUNDLE = on_node("dranet doctor --config /etc/dranet/settings.yaml --bundle -") + " > bundle.tgz"
DEVICES = on_node("dranet devices --all --config /etc/dranet/settings.yaml")
CLAIMS = on_node("dranet claims -o wide --config /etc/dranet/settings.yaml")
EVENTS = "kubectl get events -A --field-selector type=Warning,reportingComponent=dra.net"
"""All that the driver warns of; the chart puts in the driver's name."""
DESCRIBE_POD = "kubectl -n {{ $labels.namespace }} describe pod {{ $labels.pod }}"
