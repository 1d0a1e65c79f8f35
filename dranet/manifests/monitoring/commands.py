"""First commands of the runbook, as they are typed: what Prometheus knows is filled in."""

from __future__ import annotations

NAMESPACE = "dranet-system"
"""Where the driver is installed by default; the chart puts its own in."""

_KUBECTL = f"kubectl -n {NAMESPACE}"
NODE = "{{ $labels.node }}"

_POD = f"$({_KUBECTL} get pods -o name --field-selector spec.nodeName={NODE} | head -n 1)"

PODS = f"{_KUBECTL} get pods -o wide"
PODS_OF_NODE = f"{_KUBECTL} get pods -o wide --field-selector spec.nodeName={NODE}"
LOGS = f"{_KUBECTL} logs {_POD} --tail=200"
LAST_WORDS = f"{_KUBECTL} logs {_POD} --previous --tail=50"


def on_node(command: str) -> str:
    """In the driver's pod of the alert's node."""
    return f"{_KUBECTL} exec {_POD} -- {command}"


DOCTOR = on_node("dranet doctor --config /etc/dranet/settings.yaml")
BUNDLE = on_node("dranet doctor --config /etc/dranet/settings.yaml --bundle -") + " > bundle.tgz"
DEVICES = on_node("dranet devices --all --config /etc/dranet/settings.yaml")
CLAIMS = on_node("dranet claims -o wide --config /etc/dranet/settings.yaml")
DESCRIBE_POD = "kubectl -n {{ $labels.namespace }} describe pod {{ $labels.pod }}"
