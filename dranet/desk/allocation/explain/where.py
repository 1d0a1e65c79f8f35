"""Where the scheduler looks for the devices of a pod, and why not on the other nodes."""

from __future__ import annotations

from dranet.desk.allocation.explain.subject import Subject
from dranet.desk.allocation.nodes import JsonObject, Node, matches_node
from dranet.desk.allocation.taints import AppliedTaint, find_untolerated, is_tolerated

_CORDONED = AppliedTaint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""What a pod tolerates that runs on a cordoned node."""


def excluded_by(subject: Subject, node: Node, body: JsonObject | None) -> str:
    """Why the scheduler does not look at the devices of this node at all; empty if it does."""
    for claim in subject.claims:
        selector = (claim.allocation or {}).get("nodeSelector")
        if selector and not matches_node(selector, node):
            return f"claim {claim.label} is allocated {_say_where(selector)}"
    if subject.pod is None:
        return ""
    spec = subject.pod["spec"]
    if spec.get("nodeName"):
        return "" if spec["nodeName"] == node.name else f"the pod is bound to node {spec['nodeName']}"
    wanted = spec.get("nodeSelector") or {}
    if any(node.labels.get(key) != value for key, value in wanted.items() if body or key in node.labels):
        return "not selected by the pod's nodeSelector"
    return _excluded_by_node(spec, node, body) if body else ""


def _excluded_by_node(pod_spec: JsonObject, node: Node, body: JsonObject) -> str:
    affinity = ((pod_spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity and not matches_node(affinity, node):
        return "not selected by the pod's node affinity"
    node_spec = body.get("spec") or {}
    taints = [AppliedTaint.parse(taint) for taint in node_spec.get("taints") or ()]
    tolerations = pod_spec.get("tolerations") or ()
    taint = find_untolerated(taints, tolerations)
    if taint is not None:
        return f"the pod does not tolerate the node's taint {taint}"
    is_cordoned = node_spec.get("unschedulable") and not is_tolerated(_CORDONED, tolerations)
    return "the node is cordoned" if is_cordoned else ""


def _say_where(selector: JsonObject) -> str:
    """The node of a claim, where its selector names one as the scheduler writes it."""
    terms = selector.get("nodeSelectorTerms") or ()
    fields = [field for term in terms for field in term.get("matchFields") or ()]
    names = [name for field in fields if field["operator"] == "In" for name in field.get("values") or ()]
    return f"on node {names[0]}" if len(terms) == len(names) == 1 else "elsewhere"
