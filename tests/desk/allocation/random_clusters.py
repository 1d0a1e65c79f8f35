"""Random small clusters and claims in which every rule of the allocator has something to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]
NODE = "node-1"


def _kind(body: Json) -> Json:
    kind: Json = body.get("attributes", {})["x.dev/kind"]
    return kind


def _is_slow(body: Json) -> bool:
    return "x.dev/kind" in body.get("attributes", {}) and _kind(body)["string"] == "slow"


DRIVERS = ("a.dev", "b.dev")
ATTRIBUTES = ("x.dev/root", "a.dev/num", "x.dev/kind")

PREDICATES: dict[str, Callable[[str, Json], bool]] = {
    'device.driver == "a.dev"': lambda driver, _: driver == "a.dev",
    'device.attributes["x.dev"].kind == "fast"': lambda _, body: _kind(body)["string"] == "fast",
    'device.attributes["x.dev"].?kind.orValue("") == "slow"': lambda _, body: _is_slow(body),
    "device.allowMultipleAllocations": lambda _, body: bool(body.get("allowMultipleAllocations")),
}
"""Selectors, and the same in Python; the second fails on a device without the attribute."""

_FAILING = 'device.attributes["x.dev"].kind == "fast"'
_KINDS = st.sampled_from(["fast", "slow"])
_ROOTS = st.one_of(
    st.sampled_from(["r0", "r1", "r2"]).map(lambda root: {"string": root}),
    st.lists(st.sampled_from(["r0", "r1", "r2"]), min_size=1, max_size=2, unique=True).map(
        lambda roots: {"strings": roots}
    ),
    st.sampled_from([{"int": 0}, {"ints": [0, 1]}]),
)
_TAINTS = st.builds(
    lambda key, value, effect: {"key": key, **({"value": value} if value else {}), "effect": effect},
    st.sampled_from(["t", "u"]),
    st.sampled_from(["", "v"]),
    st.sampled_from(["NoSchedule", "NoExecute", "None"]),
)
_TOLERATIONS = st.sampled_from(
    [
        {"operator": "Exists"},
        {"operator": "Exists", "key": "t"},
        {"operator": "Exists", "key": "u", "effect": "NoExecute"},
        {"operator": "Equal", "key": "t", "value": "v"},
        {"key": "t"},
    ]
)
_CAPACITIES = st.sampled_from(["bw", "bw", "bw", "a.dev/bw"])
_POLICIES = st.sampled_from(
    [
        {"default": "1"},
        {"default": "0", "validRange": {"min": "0", "max": "3"}},
        {"default": "1", "validRange": {"min": "1", "step": "2"}},
        {"default": "2", "validValues": ["1", "2", "4"]},
    ]
)


def rarely(
    strategy: st.SearchStrategy[Any], otherwise: Any = None, one_in: int = 4
) -> st.SearchStrategy[Any]:
    """Mostly ``otherwise``."""
    return st.integers(1, one_in).flatmap(lambda n: strategy if n == one_in else st.just(otherwise))


THEMES = ("everything", "constraints", "counters", "capacity", "selection")
"""Where everything may happen, one rule often hides another: four of five worlds are about one subject."""


@st.composite
def devices(draw: st.DrawFn, name: str, *, failing: bool, theme: str) -> Json:
    attributes: Json = {}
    mixed = theme == "everything"
    if draw(st.integers(0, 5)):
        attributes["x.dev/root"] = draw(_ROOTS)
    if draw(st.booleans()):
        attributes["num"] = {"int": draw(st.integers(0, 2))}
    if not failing or draw(st.integers(0, 3)):
        attributes["x.dev/kind"] = {"string": draw(_KINDS)}
    body: Json = {"name": name, "attributes": attributes}
    if draw(st.integers(0, 3)) == 0 if mixed else theme != "constraints" and draw(st.booleans()):
        body["allowMultipleAllocations"] = True
    if draw(st.integers(0, 2)) == 0 if mixed else theme == "capacity":
        capacity: Json = {"value": str(draw(st.integers(1, 5)))}
        policy = draw(rarely(_POLICIES, one_in=2))
        if policy and body.get("allowMultipleAllocations"):
            capacity["requestPolicy"] = policy
        body["capacity"] = {draw(_CAPACITIES): capacity}
    taint = draw(rarely(_TAINTS, one_in=6))
    if taint and mixed:
        body["taints"] = [taint]
    if draw(st.integers(0, 9)) == 0:
        body["bindingConditions"] = ["ready"]
        body["bindingFailureConditions"] = ["failed"]
    amounts = st.dictionaries(st.sampled_from(["m", "n"]), st.integers(0, 3), min_size=1)
    counters = draw(rarely(amounts) if mixed else amounts if theme == "counters" else st.none())
    if counters:
        taken = {counter: {"value": str(amount)} for counter, amount in counters.items()}
        body["consumesCounters"] = [{"counterSet": "set", "counters": taken}]
    return body


@st.composite
def slices(draw: st.DrawFn, *, failing: bool, theme: str) -> list[Json]:
    """Up to two drivers with a pool each; now and then incomplete, contradictory, old or of another node."""
    made = []
    mixed = theme == "everything"
    for driver in DRIVERS[: draw(st.integers(1, 2)) if mixed else 1]:
        count = draw(st.integers(1, 2))
        names = [f"d{n}" for n in range(draw(st.integers(2, 5)))]
        if draw(st.integers(0, 29)) == 0:
            names.append(names[0])
        bodies = [draw(devices(name, failing=failing, theme=theme)) for name in names]
        consumes = any("consumesCounters" in body for body in bodies) and draw(st.integers(0, 29))
        total = count + (1 if consumes else 0)
        expected = total + (draw(rarely(st.just(1), 0, one_in=20)) if mixed else 0)
        pool = {"name": "p", "generation": 2, "resourceSliceCount": expected}
        cut = draw(st.integers(0, len(bodies))) if count == 2 else len(bodies)
        for index, part in enumerate((bodies[:cut], bodies[cut:])[:count]):
            made.append(_slice(driver, pool, index, part, draw(_reach(part, theme))))
        if consumes:
            counters = {n: {"value": str(draw(st.integers(0 if mixed else 2, 6)))} for n in ("m", "n")}
            reach = {"nodeName": NODE}
            entry = _slice(driver, pool, 9, [], reach)
            entry["spec"]["sharedCounters"] = [{"name": "set", "counters": counters}]
            made.append(entry)
        if mixed and draw(st.integers(0, 9)) == 0:
            old = {**pool, "generation": draw(st.integers(1, 3))}
            where = draw(st.sampled_from([NODE, "node-2"]))
            made.append(_slice(driver, old, 7, [{"name": "old"}], {"nodeName": where}))
    return draw(st.permutations(made))


def _reach(part: list[Json], theme: str) -> st.SearchStrategy[Json]:
    """How a slice says where it reaches; with ``perDeviceNodeSelection`` its devices say it."""
    everywhere = st.sampled_from([{"nodeName": NODE}, {"allNodes": True}])
    near = rarely(st.just({"nodeName": "node-2"}), {"nodeName": NODE}, one_in=8)

    def each(choices: list[Json]) -> Json:
        for body, choice in zip(part, choices, strict=True):
            body.update(choice)
        return {"perDeviceNodeSelection": True}

    own_node: Json = {"nodeName": NODE}
    choice = st.sampled_from([own_node, {"nodeName": "node-2"}, {"allNodes": True}])
    own = st.lists(choice, min_size=len(part), max_size=len(part)).map(each)
    least = 3 if theme == "selection" else 9
    return st.integers(0, 9).flatmap(lambda n: own if n >= least and part else near if n == 2 else everywhere)


def _slice(driver: str, pool: Json, index: int, part: list[Json], reach: Json) -> Json:
    spec = {"driver": driver, "pool": pool, "devices": part, **reach}
    return {"metadata": {"name": f"{index:05x}-{driver}"}, "spec": spec}


@st.composite
def allocated(draw: st.DrawFn, published: list[Json]) -> list[Json]:
    """Claims that have some of the devices."""
    results = []
    for entry in published:
        for body in entry["spec"]["devices"]:
            if draw(st.integers(0, 4)):
                continue
            result = {"driver": entry["spec"]["driver"], "pool": "p", "device": body["name"], "request": "r"}
            shared = bool(body.get("allowMultipleAllocations"))
            if shared != (draw(st.integers(0, 9)) == 0):
                result["shareID"] = "12345678-0000-4000-8000-000000000000"
                if "capacity" in body:
                    result["consumedCapacity"] = {n: str(draw(st.integers(0, 3))) for n in body["capacity"]}
            if draw(st.integers(0, 5)) == 0:
                result["adminAccess"] = True
            results.append(result)
    return [{"metadata": {"name": "other"}, "status": {"allocation": {"devices": {"results": results}}}}]


@st.composite
def options(draw: st.DrawFn, *, failing: bool, top: bool, theme: str) -> Json:
    """What a request, or one of its alternatives, asks for."""
    mixed = theme == "everything"
    body: Json = {"deviceClassName": draw(st.sampled_from(["any", "any", "a-only"]))}
    expressions = [e for e in PREDICATES if failing or e != _FAILING]
    one_in = {"everything": 2, "selection": 1}.get(theme, 5)
    chosen = draw(rarely(st.sampled_from(expressions), one_in=one_in))
    if chosen:
        body["selectors"] = [{"cel": {"expression": chosen}}]
    mode = draw(st.integers(0, 9))
    if mode == 0:
        body["allocationMode"] = "All"
    elif mode > 6:
        body["count"] = draw(st.integers(2, 3))
    if draw(st.integers(0, 4)) == 0 if mixed else theme == "capacity" and draw(st.integers(0, 3)):
        body["capacity"] = {"requests": {draw(_CAPACITIES): str(draw(st.integers(0, 4)))}}
    if draw(st.integers(0, 3)) == 0:
        body["tolerations"] = [draw(_TOLERATIONS)]
    if top and draw(st.integers(0, 7 if mixed else 15)) == 0:
        body["adminAccess"] = True
    return body


@st.composite
def claims(draw: st.DrawFn, *, failing: bool, theme: str) -> list[Json]:
    made = []
    for number in range(draw(st.sampled_from([1, 1, 2]))):
        requests: list[Json] = []
        for name in [f"r{n}" for n in range(draw(st.integers(1, 3 if theme == "everything" else 4)))]:
            if draw(st.integers(0, 3)) == 0:
                subs = [draw(options(failing=failing, top=False, theme=theme)) for _ in range(2)]
                requests.append(
                    {"name": name, "firstAvailable": [{"name": f"s{i}", **s} for i, s in enumerate(subs)]}
                )
            else:
                requests.append(
                    {"name": name, "exactly": draw(options(failing=failing, top=True, theme=theme))}
                )
        devices_of_claim: Json = {"requests": requests}
        least = 1 if theme == "constraints" else 0
        constraints = draw(st.lists(constraint(len(requests)), min_size=least, max_size=2))
        if theme in ("counters", "capacity"):
            constraints = constraints[: draw(st.integers(0, 1))]
        if constraints:
            devices_of_claim["constraints"] = constraints
        made.append(
            {"metadata": {"name": f"c{number}", "namespace": "n"}, "spec": {"devices": devices_of_claim}}
        )
    return made


def constraint(requests: int) -> st.SearchStrategy[Json]:
    names = [f"r{n}" for n in range(requests)] + [f"r{n}/s0" for n in range(requests)]
    return st.builds(
        lambda kind, attribute, who: {kind: attribute, **({"requests": who} if who else {})},
        st.sampled_from(["matchAttribute", "matchAttribute", "distinctAttribute"]),
        st.sampled_from(ATTRIBUTES),
        st.lists(st.sampled_from(names), max_size=2, unique=True),
    )


RULES = rarely(
    st.builds(
        lambda selector, taint: [
            {"metadata": {"name": "rule"}, "spec": {"deviceSelector": selector, "taint": taint}}
        ],
        st.sampled_from([None, {}, {"driver": "a.dev"}, {"device": "d0"}]),
        _TAINTS,
    ),
    otherwise=[],
    one_in=6,
)

CLASSES: dict[str, Json] = {
    "any": {"spec": {}},
    "a-only": {"spec": {"selectors": [{"cel": {"expression": 'device.driver == "a.dev"'}}]}},
}
