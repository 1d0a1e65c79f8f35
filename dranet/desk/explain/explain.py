"""Why a claim, or a pod with all its claims, gets its devices or not, according to the allocator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dranet.desk.allocation.allocator import Attempt, ClusterDevices
from dranet.desk.allocation.devices import Node, matches_node, read_devices_in_use
from dranet.desk.allocation.failures import AllocationError, Cause
from dranet.desk.allocation.outcome import AttemptResult, Outcome, review, review_slot
from dranet.desk.allocation.pools import Inventory
from dranet.desk.allocation.taints import AppliedTaint, find_untolerated, is_tolerated
from dranet.desk.explain.alignment import align, find_fix, read_spots
from dranet.desk.explain.blockers import AttemptInputs
from dranet.desk.explain.explanation import (
    Alignment,
    AllocatedDevice,
    Conclusion,
    Excluded,
    Explanation,
    NodeGroup,
    NodeReport,
    Taken,
    group_reports,
)
from dranet.desk.explain.headline import describe_no_node, write_headline
from dranet.desk.explain.near_misses import FailedAttempt, find_misses
from dranet.desk.explain.node_report import report_node
from dranet.desk.explain.profiles import describe_profiles
from dranet.desk.explain.subject import (
    Subject,
    WantedClaim,
    class_names,
    label_of,
    near_names,
    with_label,
)
from dranet.desk.kubeapi.objects import JsonObject
from dranet.model.status import FAILING, ConditionReason, ConditionType
from dranet.terminal import join_words

GROUPS_WITH_MISSES = 3
"""Groups of nodes for which near misses are searched: each blocker costs an attempt."""

_UNHAPPY = (AttemptResult.UNSATISFIED, AttemptResult.POOL_INVALID)
_PROMISE = (
    AttemptResult.ALLOCATED,
    AttemptResult.UNSATISFIED,
    AttemptResult.POOL_INVALID,
    AttemptResult.BROKE_OFF,
)


@dataclass(frozen=True)
class ClusterView:
    """All that is known of the cluster, as raw objects."""

    slices: Sequence[JsonObject]
    classes: Sequence[JsonObject]
    claims: Sequence[JsonObject]
    nodes: Sequence[JsonObject] = ()
    taint_rules: Sequence[JsonObject] = ()
    only_node: str = ""
    """Look at this one alone."""
    not_offered: Mapping[str, tuple[tuple[JsonObject, str], ...]] = field(default_factory=dict)
    """By node: slices of devices that its driver keeps to itself, each with the reason."""
    assumed_classes: frozenset[str] = frozenset()
    """Names of classes that charts install: they were not given."""
    driver: str = ""
    """Whose configs are read."""

    @cached_property
    def classes_by_name(self) -> dict[str, JsonObject]:
        return {body["metadata"]["name"]: body for body in self.classes}

    @cached_property
    def cluster(self) -> ClusterDevices:
        claims = {label_of(claim): with_label(claim) for claim in self.claims}
        in_use = read_devices_in_use(claims.values())
        return ClusterDevices(self.slices, self.classes_by_name, in_use, self.taint_rules)

    @cached_property
    def known_nodes(self) -> dict[str, JsonObject | None]:
        """Nodes by name; ``None`` for a node that only a slice names."""
        named = {str(entry["spec"].get("nodeName") or "") for entry in self.slices} - {""}
        bodies = {str(body["metadata"].get("name")): body for body in self.nodes}
        return {name: bodies.get(name) for name in sorted({*bodies, *named})}

    @cached_property
    def nodes_by_name(self) -> dict[str, JsonObject | None]:
        """Those that are looked at."""
        known = self.known_nodes
        return {name: body for name, body in known.items() if self.only_node in ("", name)}


def explain(subject: Subject, view: ClusterView) -> Explanation:
    """Return the conclusion and a report for every node."""
    allocated = tuple(_read_allocated(subject))
    claims = tuple(with_label(claim.body) for claim in subject.waiting)
    if subject.problems:
        return _explain_problems(subject, allocated, view)
    nodes, excluded = _choose_nodes(subject, view)
    if not claims:
        return _explain_allocated(subject, allocated, excluded if not nodes else (), view)
    try:
        attempt = Attempt(claims, view.cluster)
    except AllocationError as error:
        return _explain_refusal(subject, allocated, error, view)
    outcomes = {node.name: attempt.on(node) for node in nodes}
    groups = tuple(_group(outcomes, allocated, claims, view))
    conclusion = judge(group.report for group in groups)
    reasons = [reason for reason, _ in excluded]
    headline, fix = write_headline(conclusion, groups, len(outcomes)) if groups else describe_no_node(reasons)
    if allocated and groups and groups[0].report.alignment:
        allocated = groups[0].report.alignment.taken[: len(allocated)]
    return Explanation(
        subject, conclusion, headline, fix, allocated, groups, excluded, _remarks(subject, view)
    )


def _choose_nodes(subject: Subject, view: ClusterView) -> tuple[list[Node], Excluded]:
    """The nodes whose devices the scheduler looks at, and the others by the reason."""
    nodes, excluded = list[Node](), dict[str, list[str]]()
    for name, body in view.nodes_by_name.items():
        node = _parse_node(name, body)
        reason = find_exclusion(subject, node, body)
        if reason:
            excluded.setdefault(reason, []).append(name)
        else:
            nodes.append(node)
    return nodes, tuple((reason, tuple(names)) for reason, names in excluded.items())


def _parse_node(name: str, body: JsonObject | None) -> Node:
    return Node.parse(body) if body else Node(name, {"kubernetes.io/hostname": name})


def judge(reports: Iterable[NodeReport]) -> Conclusion:
    """Conclude from all nodes. An error on one of them ends the attempt for the pod, whatever others have."""
    endings = list(reports)
    broken = [report for report in endings if report.ending is AttemptResult.BROKE_OFF]
    guessed = [s for s in broken if s.failure and s.failure.cause == Cause.NOT_MODELLED.name]
    if len(broken) > len(guessed):
        return Conclusion.BROKEN
    if any(report.ending is AttemptResult.ALLOCATED for report in endings):
        return Conclusion.POSSIBLE
    return Conclusion.UNKNOWN if guessed else Conclusion.IMPOSSIBLE


def _read_allocated(subject: Subject) -> Iterator[AllocatedDevice]:
    for claim in subject.claims:
        for result in ((claim.allocation or {}).get("devices") or {}).get("results") or ():
            device = result["driver"], result["pool"], result["device"]
            yield AllocatedDevice(claim.label, result["request"], device, bool(result.get("adminAccess")))


def _explain_problems(
    subject: Subject, allocated: tuple[AllocatedDevice, ...], view: ClusterView
) -> Explanation:
    """Something has to be created first."""
    headline = "; ".join(problem for problem, _ in subject.problems)
    fix = "; ".join(fix for _, fix in subject.problems)
    remarks = _remarks(subject, view)
    return Explanation(subject, Conclusion.IMPOSSIBLE, headline, fix, allocated, (), (), remarks)


def _explain_allocated(
    subject: Subject, allocated: tuple[AllocatedDevice, ...], excluded: Excluded, view: ClusterView
) -> Explanation:
    """Nothing is left to be allocated; a pod that may run on none of the nodes waits all the same.

    Args:
        excluded: all nodes; none where some node is left for it.
    """
    remarks = _remarks(subject, view)
    if not subject.claims:
        return Explanation(subject, Conclusion.ALLOCATED, "it has no claims", "", (), (), ())
    if excluded and subject.pod and not subject.pod["spec"].get("nodeName"):
        headline, fix = describe_no_node([reason for reason, _ in excluded])
        return Explanation(subject, Conclusion.IMPOSSIBLE, headline, fix, allocated, (), excluded, remarks)
    users = dict.fromkeys(user for claim in subject.claims for user in claim.reserved_for)
    headline = "it is allocated" + (f", and reserved for {', '.join(users)}" if users else "")
    fix = "" if users else "no pod uses it: the scheduler deallocates it when it needs the devices"
    alignment = _align_allocated(allocated, view)
    allocated = alignment.taken if alignment else allocated
    return Explanation(subject, Conclusion.ALLOCATED, headline, fix, allocated, (), (), remarks, alignment)


def _align_allocated(allocated: Taken, view: ClusterView) -> Alignment | None:
    """``None`` where the slices do not show one node for all."""
    pools = {device.id[:2] for device in allocated}
    slices = [s for s in view.slices if (s["spec"]["driver"], s["spec"]["pool"]["name"]) in pools]
    names = {s["spec"].get("nodeName") for s in slices} - {None, ""}
    if len(names) != 1:
        return None
    node = _parse_node(name := names.pop(), view.known_nodes[name])
    cluster = _narrow(view, node)
    found = align(allocated, read_spots(Inventory.read(cluster.slices).pools_for(node)), cluster.in_use)
    return _add_fix(found, node, view) if found and found.better else found


def _narrow(view: ClusterView, node: Node) -> ClusterDevices:
    """The cluster with the slices of this node, and those that name none."""
    slices = [s for s in view.slices if s["spec"].get("nodeName") in (None, "", node.name)]
    return replace(view.cluster, slices=slices)


def _explain_refusal(
    subject: Subject, allocated: tuple[AllocatedDevice, ...], error: AllocationError, view: ClusterView
) -> Explanation:
    """What is asked for makes no sense on any node."""
    fix = error.hint
    if error.cause is Cause.CLASS_MISSING:
        wanted = (name for claim in subject.waiting for name in class_names(claim.body))
        missing = next((name for name in wanted if name not in view.classes_by_name), "")
        own = view.classes_by_name.keys() - view.assumed_classes
        ways = (near_names(missing, names) for names in (own, view.classes_by_name))
        fix = next((way for way in ways if way.startswith("did you mean")), "") or near_names(missing, own)
        if view.assumed_classes and not fix.startswith("did you mean"):
            fix = "it was not given: give its file with -f"
    conclusion = Conclusion.UNKNOWN if error.cause is Cause.NOT_MODELLED else Conclusion.BROKEN
    headline = error.message.removeprefix(f"claim {subject.label}: ")
    return Explanation(subject, conclusion, headline, fix, allocated, (), (), _remarks(subject, view))


def _remarks(subject: Subject, view: ClusterView) -> tuple[str, ...]:
    """What to know of the answer."""
    made = tuple(_describe_origin(claim, subject) for claim in subject.claims if claim.origin)
    failures = (text for claim in subject.claims for text in _describe_failures(claim, view.driver))
    unknown = [name for name, body in view.nodes_by_name.items() if body is None]
    blind = bool(unknown) and subject.pod is not None and not view.nodes
    nodes = "no Node objects were given: labels and taints of nodes are not looked at"
    used = dict.fromkeys(name for claim in subject.waiting for name in class_names(claim.body))
    assumed = join_words([name for name in used if name in view.assumed_classes])
    classes = f"DeviceClasses not given (-f FILE): {assumed} assumed, as the charts install them"
    profiles = describe_profiles(subject.claims, view.classes_by_name, view.driver)
    return (
        *subject.remarks,
        *made,
        *failures,
        *_describe_start(subject),
        *((nodes,) if blind else ()),
        *((classes,) if assumed else ()),
        *profiles,
    )


def _describe_origin(claim: WantedClaim, subject: Subject) -> str:
    if subject.phase:
        missing = f"Kubernetes has not created claim {claim.label} of this pod"
        return f"{missing}: its Events have the reason, such as a quota; this explains the one {claim.origin}"
    return f"there is no claim {claim.label} yet: this explains the one {claim.origin}"


def _describe_failures(claim: WantedClaim, driver: str) -> Iterator[str]:
    """The devices that the driver could not give to the pod, in its own words; one line for each cause."""
    failed_by_cause: dict[tuple[ConditionType, str], list[str]] = {}
    for device in (claim.body.get("status") or {}).get("devices") or ():
        conditions = {one["type"]: one for one in device.get("conditions") or ()}
        ready = conditions.get(ConditionType.READY) or {}
        failed = [name for name in FAILING if (conditions.get(name) or {}).get("status") == "False"]
        is_released = ready.get("reason") == ConditionReason.DEVICE_RELEASED
        if failed and device["driver"] == driver and not is_released:
            first = conditions[failed[0]]
            cause = f"{first.get('reason') or 'no reason'}: {first.get('message') or 'no message'}"
            failed_by_cause.setdefault((failed[0], cause), []).append(device["device"])
    for (condition, cause), devices in failed_by_cause.items():
        yield f"the driver reports {condition} False for {join_words(devices)}: {cause}"


def _describe_start(subject: Subject) -> Iterator[str]:
    if subject.phase == "Pending" and subject.pod and subject.pod["spec"].get("nodeName"):
        namespace, _, name = subject.label.partition("/")
        yield f"the pod has not started; kubectl describe pod {name} -n {namespace} shows its Events"


def _group(
    outcomes: Mapping[str, Outcome], allocated: Taken, claims: tuple[JsonObject, ...], view: ClusterView
) -> Iterator[NodeGroup]:
    """Group nodes with equal reports, the most promising first, each with the full report of its first node;
    near misses are searched for the first few groups that need them."""
    grouped = group_reports(_report_blocked(outcome, allocated, view) for outcome in outcomes.values())
    grouped.sort(key=lambda group: (_rank(group[0]), -len(group), group[0].node))
    unhappy = 0
    for number, group in enumerate(grouped):
        outcome, names = outcomes[group[0].node], tuple(report.node for report in group)
        report = group[0] if outcome.blocked is None else report_node(outcome, review(outcome))
        if report.alignment and report.alignment.better and number < GROUPS_WITH_MISSES:
            report = replace(report, alignment=_add_fix(report.alignment, outcome.node, view))
        unhappy += report.ending in _UNHAPPY
        asked = report.ending in _UNHAPPY and unhappy <= GROUPS_WITH_MISSES
        yield NodeGroup(report, names, find_misses(_describe_attempt(report, claims, view)) if asked else ())


def _report_blocked(outcome: Outcome, allocated: Taken, view: ClusterView) -> NodeReport:
    """The story as far as it decides: to review every request of every node would take long."""
    blocked = outcome.blocked
    if blocked is not None:
        return report_node(outcome, (review_slot(outcome, blocked),))
    report = report_node(outcome, ())
    if outcome.ending is not AttemptResult.ALLOCATED:
        return report
    found = align((*allocated, *report.allocated), read_spots(outcome.pools), view.cluster.in_use)
    return replace(report, allocated=found.taken[len(allocated) :], alignment=found) if found else report


def _add_fix(alignment: Alignment, node: Node, view: ClusterView) -> Alignment:
    return replace(alignment, fix=find_fix(alignment, node, _narrow(view, node)))


def _rank(report: NodeReport) -> tuple[int, int, int, int]:
    """How far the search came there."""
    missing = min((max((r.wanted or 1) - len(r.left), 0) for r in report.blocked), default=0)
    return _PROMISE.index(report.ending), -report.reached, 0 if report.pools else 1, missing


def _describe_attempt(report: NodeReport, claims: tuple[JsonObject, ...], view: ClusterView) -> FailedAttempt:
    """Describe the node by itself: only the pools that reach it."""
    pools = {pool for pool, _, _ in report.pools}
    slices = [s for s in view.slices if f"{s['spec']['driver']}/{s['spec']['pool']['name']}" in pools]
    node = _parse_node(report.node, view.nodes_by_name[report.node])
    inputs = AttemptInputs(claims, node, replace(view.cluster, slices=slices))
    return FailedAttempt(inputs, report, view.not_offered.get(report.node, ()))


_CORDONED = AppliedTaint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""What a pod tolerates that runs on a cordoned node."""


def find_exclusion(subject: Subject, node: Node, body: JsonObject | None) -> str:
    """Why the scheduler does not look at the devices of this node at all; empty if it does."""
    for claim in subject.claims:
        selector = (claim.allocation or {}).get("nodeSelector")
        if selector and not matches_node(selector, node):
            return f"claim {claim.label} is allocated {_describe_place(selector)}"
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


def _describe_place(selector: JsonObject) -> str:
    """The node of a claim, where its selector names one as the scheduler writes it."""
    terms = selector.get("nodeSelectorTerms") or ()
    fields = [field for term in terms for field in term.get("matchFields") or ()]
    names = [name for field in fields if field["operator"] == "In" for name in field.get("values") or ()]
    return f"on node {names[0]}" if len(terms) == len(names) == 1 else "elsewhere"
