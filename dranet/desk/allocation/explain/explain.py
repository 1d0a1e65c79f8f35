"""Why a claim, or a pod with all its claims, gets its devices or not, as the allocator says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dranet.desk.allocation.allocator import Attempt, ClusterDevices
from dranet.desk.allocation.devices import JsonObject, Node, matches_node, read_devices_in_use
from dranet.desk.allocation.explain.explanation import (
    Excluded,
    Explanation,
    Given,
    NodeGroup,
    NodeStory,
    Verdict,
    group_stories,
)
from dranet.desk.allocation.explain.misses import Scene, find_misses
from dranet.desk.allocation.explain.obstacles import Case
from dranet.desk.allocation.explain.subject import (
    Subject,
    class_names,
    label_of,
    near_names,
    with_label,
)
from dranet.desk.allocation.explain.tell import tell
from dranet.desk.allocation.explain.words import say_headline, say_no_node
from dranet.desk.allocation.failures import AllocationError, Cause
from dranet.desk.allocation.outcome import Ending, Outcome, review, review_slot
from dranet.desk.allocation.taints import AppliedTaint, find_untolerated, is_tolerated

GROUPS_WITH_MISSES = 3
"""The nearest; to look for misses takes an attempt for each obstacle."""

_UNHAPPY = (Ending.UNSATISFIED, Ending.POOL_INVALID)
_PROMISE = (Ending.ALLOCATED, Ending.UNSATISFIED, Ending.POOL_INVALID, Ending.BROKE_OFF)


@dataclass(frozen=True)
class World:
    """All that is known of the cluster, as raw objects."""

    slices: Sequence[JsonObject]
    classes: Sequence[JsonObject]
    claims: Sequence[JsonObject]
    nodes: Sequence[JsonObject] = ()
    taint_rules: Sequence[JsonObject] = ()
    only_node: str = ""
    """Look at this one alone."""
    held_back: Mapping[str, tuple[tuple[JsonObject, str], ...]] = field(default_factory=dict)
    """By node: slices of devices that its driver keeps to itself, each with the reason."""

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
        """By name; those that no Node object tells of, but a slice does, have ``None``."""
        named = {str(entry["spec"].get("nodeName") or "") for entry in self.slices} - {""}
        told = {str(body["metadata"].get("name")): body for body in self.nodes}
        return {name: told.get(name) for name in sorted({*told, *named})}

    @cached_property
    def nodes_by_name(self) -> dict[str, JsonObject | None]:
        """Those that are looked at."""
        known = self.known_nodes
        return {name: body for name, body in known.items() if self.only_node in ("", name)}


def explain(subject: Subject, world: World) -> Explanation:
    """The verdict, and the story of every node."""
    given = tuple(_read_given(subject))
    claims = tuple(with_label(claim.body) for claim in subject.waiting)
    if subject.problems:
        return _explain_problems(subject, given, world)
    nodes, excluded = _choose_nodes(subject, world)
    if not claims:
        return _explain_allocated(subject, given, excluded if not nodes else (), world)
    try:
        attempt = Attempt(claims, world.cluster)
    except AllocationError as error:
        return _explain_refusal(subject, given, error, world)
    outcomes = {node.name: attempt.on(node) for node in nodes}
    groups = tuple(_group(outcomes, claims, world))
    verdict = judge(group.story for group in groups)
    reasons = [reason for reason, _ in excluded]
    headline, mend = say_headline(verdict, groups, len(outcomes)) if groups else say_no_node(reasons)
    return Explanation(subject, verdict, headline, mend, given, groups, excluded, _remarks(subject, world))


def _choose_nodes(subject: Subject, world: World) -> tuple[list[Node], Excluded]:
    """The nodes whose devices the scheduler looks at, and the others by the reason."""
    nodes, excluded = list[Node](), dict[str, list[str]]()
    for name, body in world.nodes_by_name.items():
        node = _parse_node(name, body)
        reason = excluded_by(subject, node, body)
        if reason:
            excluded.setdefault(reason, []).append(name)
        else:
            nodes.append(node)
    return nodes, tuple((reason, tuple(names)) for reason, names in excluded.items())


def _parse_node(name: str, body: JsonObject | None) -> Node:
    return Node.parse(body) if body else Node(name, {"kubernetes.io/hostname": name})


def judge(stories: Iterable[NodeStory]) -> Verdict:
    """Of all nodes together. An error on one of them ends the attempt for the pod, whatever others have."""
    endings = list(stories)
    broken = [story for story in endings if story.ending is Ending.BROKE_OFF]
    guessed = [s for s in broken if s.failure and s.failure.cause == Cause.NOT_MODELLED.name]
    if len(broken) > len(guessed):
        return Verdict.BROKEN
    if any(story.ending is Ending.ALLOCATED for story in endings):
        return Verdict.POSSIBLE
    return Verdict.UNKNOWN if guessed else Verdict.IMPOSSIBLE


def _read_given(subject: Subject) -> Iterator[Given]:
    for claim in subject.claims:
        for result in ((claim.allocation or {}).get("devices") or {}).get("results") or ():
            device = result["driver"], result["pool"], result["device"]
            yield Given(claim.label, result["request"], device)


def _explain_problems(subject: Subject, given: tuple[Given, ...], world: World) -> Explanation:
    """Something has to be created first."""
    headline = "; ".join(problem for problem, _ in subject.problems)
    mend = "; ".join(mend for _, mend in subject.problems)
    remarks = _remarks(subject, world)
    return Explanation(subject, Verdict.IMPOSSIBLE, headline, mend, given, (), (), remarks)


def _explain_allocated(
    subject: Subject, given: tuple[Given, ...], excluded: Excluded, world: World
) -> Explanation:
    """Nothing is left to be allocated; a pod that may run on none of the nodes waits all the same.

    Args:
        excluded: all nodes; none where some node is left for it.
    """
    remarks = _remarks(subject, world)
    if not subject.claims:
        return Explanation(subject, Verdict.ALLOCATED, "it has no claims", "", (), (), ())
    if excluded and subject.pod and not subject.pod["spec"].get("nodeName"):
        headline, mend = say_no_node([reason for reason, _ in excluded])
        return Explanation(subject, Verdict.IMPOSSIBLE, headline, mend, given, (), excluded, remarks)
    users = dict.fromkeys(user for claim in subject.claims for user in claim.reserved_for)
    headline = "it is allocated" + (f", and reserved for {', '.join(users)}" if users else "")
    mend = "" if users else "no pod uses it: it is given back when the scheduler needs to"
    return Explanation(subject, Verdict.ALLOCATED, headline, mend, given, (), (), remarks)


def _explain_refusal(
    subject: Subject, given: tuple[Given, ...], error: AllocationError, world: World
) -> Explanation:
    """What is asked for makes no sense on any node."""
    mend = error.hint
    if error.cause is Cause.CLASS_MISSING:
        wanted = (name for claim in subject.waiting for name in class_names(claim.body))
        missing = next((name for name in wanted if name not in world.classes_by_name), "")
        mend = near_names(missing, world.classes_by_name)
    verdict = Verdict.UNKNOWN if error.cause is Cause.NOT_MODELLED else Verdict.BROKEN
    headline = error.message.removeprefix(f"claim {subject.label}: ")
    return Explanation(subject, verdict, headline, mend, given, (), (), _remarks(subject, world))


def _remarks(subject: Subject, world: World) -> tuple[str, ...]:
    """What to know of the answer."""
    made = tuple(
        f"claim {claim.label} does not exist yet; it is taken {claim.origin}"
        for claim in subject.claims
        if claim.origin
    )
    unknown = [name for name, body in world.nodes_by_name.items() if body is None]
    blind = bool(unknown) and subject.pod is not None and not world.nodes
    nodes = "no Node objects were given: labels and taints of nodes are not looked at"
    return (*subject.remarks, *made, *((nodes,) if blind else ()))


def _group(
    outcomes: Mapping[str, Outcome], claims: tuple[JsonObject, ...], world: World
) -> Iterator[NodeGroup]:
    """The most promising first, each with the whole story of its first node; of those that need it the first
    few with their misses."""
    grouped = group_stories(_tell_blocked(outcome) for outcome in outcomes.values())
    grouped.sort(key=lambda group: (_rank(group[0]), -len(group), group[0].node))
    unhappy = 0
    for group in grouped:
        outcome, names = outcomes[group[0].node], tuple(story.node for story in group)
        story = group[0] if outcome.blocked is None else tell(outcome, review(outcome))
        unhappy += story.ending in _UNHAPPY
        asked = story.ending in _UNHAPPY and unhappy <= GROUPS_WITH_MISSES
        yield NodeGroup(story, names, find_misses(_scene(story, claims, world)) if asked else ())


def _tell_blocked(outcome: Outcome) -> NodeStory:
    """The story as far as it decides: to review every request of every node would take long."""
    blocked = outcome.blocked
    return tell(outcome, () if blocked is None else (review_slot(outcome, blocked),))


def _rank(story: NodeStory) -> tuple[int, int, int, int]:
    """How far the search came there."""
    missing = min((max((r.wanted or 1) - len(r.left), 0) for r in story.blocked), default=0)
    return _PROMISE.index(story.ending), -story.reached, 0 if story.pools else 1, missing


def _scene(story: NodeStory, claims: tuple[JsonObject, ...], world: World) -> Scene:
    """The node by itself: of the cluster only the pools that reach it."""
    pools = {pool for pool, _, _ in story.pools}
    slices = [s for s in world.slices if f"{s['spec']['driver']}/{s['spec']['pool']['name']}" in pools]
    node = _parse_node(story.node, world.nodes_by_name[story.node])
    case = Case(claims, node, replace(world.cluster, slices=slices))
    return Scene(case, story, world.held_back.get(story.node, ()))


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
