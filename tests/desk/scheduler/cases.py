"""Generated cases: what is published, what others have, and the pod with its claims; as the API takes them.

The worlds of the allocator's own property tests, each with names of its own, so that hundreds of them live in
one cluster and none sees another. What those worlds lack (nodeSelector, config, more of CEL) is added here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.desk.allocation import random_clusters

Json = dict[str, Any]

NAMESPACE = "cases"
EVERYTHING = {"operator": "Exists"}
"""The toleration of the cases' pods: no controller manager takes the taint of a new node away."""
_API = "resource.k8s.io/v1"
_WORDS = re.compile(r"\b([ab])\.dev\b|\bnode-([12])\b")

EXPRESSIONS = (
    'device.attributes["x.dev"].?root.orValue("") == "r0"',
    '"root" in device.attributes["x.dev"]',
    'has(device.attributes["x.dev"].kind) && device.attributes["x.dev"].kind.startsWith("f")',
    'device.attributes["a.dev"].num > 0',
    'device.attributes["a.dev"].?num.orValue(0) in [1, 2]',
    'device.attributes["a.dev"].?num.orValue(1) != 1 || device.driver.matches("^b")',
    'device.attributes["a.dev"].num == "one"',
    'device.capacity["a.dev"].bw.compareTo(quantity("2")) >= 0',
    '"bw" in device.capacity["a.dev"] && device.capacity["a.dev"].bw.isGreaterThan(quantity("1500m"))',
    'device.attributes["nobody.dev"].?x.hasValue()',
    'device.attributes.exists(d, d == "x.dev")',
    'device.attributes["x.dev"].exists(k, k == "kind")',
    'cel.bind(k, device.attributes["x.dev"], "kind" in k && k.kind.upperAscii() == "FAST")',
    '!(device.attributes["x.dev"].?kind.orValue("none") in ["slow", "none"])',
    'semver("1.2.3").isLessThan(device.attributes["a.dev"].?version.orValue(semver("2.0.0")))',
    'device.attributes["a.dev"].version.major() == 1',
    'device.attributes["a.dev"].?flag.orValue(false)',
    'device.attributes["a.dev"].flag ? true : device.attributes["a.dev"].num == 0',
    'device.attributes["a.dev"].num / device.attributes["a.dev"].num == 1',
)
"""What a request may ask besides; some fail where the attribute is missing, or is a list."""

_SELECTORS = (
    {"key": "rack", "operator": "In", "values": ["r1"]},
    {"key": "rack", "operator": "NotIn", "values": ["r2"]},
    {"key": "rack", "operator": "Exists"},
    {"key": "size", "operator": "Gt", "values": ["1"]},
    {"key": "size", "operator": "Lt", "values": ["2"]},
    {"key": "gone", "operator": "DoesNotExist"},
)


@dataclass(frozen=True)
class Dialect:
    """How a server wants what it knows."""

    lists: bool = True
    """Attributes may be lists; a server that does not know them refuses the slice."""
    counters_apart: bool = True
    """Counters have a slice of their own."""
    counters_stay: bool = True
    """Such a slice counts on its own nodes alone. Where it counts on every node, a pool with it that is being
    updated ends each request for all devices, also those of other cases."""


_SPREAD = 3
"""Of so many examples in a row one is taken: hypothesis draws some as variations of the one before."""


@dataclass(frozen=True)
class Case:
    """Everything that one pod meets."""

    number: int
    theme: str
    nodes: list[Json]
    classes: list[Json]
    rules: list[Json]
    slices: list[Json]
    holders: list[Json]
    """Claims with an allocation, of which the pod has none."""
    claims: list[Json]
    pod: Json

    @property
    def label(self) -> str:
        return f"{NAMESPACE}/{self.pod['metadata']['name']}"


@st.composite
def situations(draw: st.DrawFn) -> Json:
    failing = draw(st.integers(0, 3)) == 0
    theme = draw(st.sampled_from(random_clusters.THEMES))
    published = draw(random_clusters.slices(failing=failing, theme=theme))
    return {
        "slices": published,
        "holders": draw(random_clusters.allocated(published)) if draw(st.booleans()) else [],
        "rules": draw(random_clusters.RULES) if theme == "everything" else [],
        "claims": draw(random_clusters.claims(failing=failing, theme=theme)),
        "theme": theme,
    }


def generate(count: int, seed: int, dialect: Dialect) -> list[Case]:
    """The same cases for the same seed (and the same version of hypothesis)."""
    drawn: list[Json] = []

    @seeded(seed)
    @settings(
        max_examples=count * _SPREAD,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(situations())
    def collect(situation: Json) -> None:
        drawn.append(situation)

    collect()
    chances = [random.Random(f"{seed}/{number}") for number in range(count)]
    spread = [_translate(one, dialect) for one in drawn[::_SPREAD]]
    return [_build(number, *both) for number, both in enumerate(zip(spread, chances, strict=True))]


def _translate(situation: Json, dialect: Dialect) -> Json:
    if not dialect.lists:
        situation = _without_lists(situation)
    if not dialect.counters_apart:
        situation = {**situation, "slices": list(_merge_counters(situation["slices"]))}
    if not dialect.counters_stay:
        situation = {**situation, "slices": list(_drop_counters(situation["slices"]))}
    return situation


def _drop_counters(slices: list[Json]) -> Iterator[Json]:
    """Without the counters of drivers whose pools other cases must not see."""
    for entry in slices:
        own = [other for other in slices if other["spec"]["driver"] == entry["spec"]["driver"]]
        if _is_whole(own):
            yield entry
        elif "sharedCounters" not in entry["spec"]:
            pool, devices = entry["spec"]["pool"], entry["spec"]["devices"]
            dropped = sum("sharedCounters" in o["spec"] and o["spec"]["pool"] == pool for o in own)
            left = {**pool, "resourceSliceCount": pool["resourceSliceCount"] - dropped}
            free = [{k: v for k, v in device.items() if k != "consumesCounters"} for device in devices]
            yield {**entry, "spec": {**entry["spec"], "pool": left, "devices": free}}


def _merge_counters(slices: list[Json]) -> Iterator[Json]:
    """The counters in the slice with the devices that take of them, as 1.34 wants it; they are in one slice
    then."""
    for entry in slices:
        own = [other for other in slices if other["spec"]["driver"] == entry["spec"]["driver"]]
        counters = [other for other in own if "sharedCounters" in other["spec"]]
        if not counters:
            yield entry
        elif entry is counters[0]:
            parts = [o["spec"] for o in own if o is not entry and o["spec"]["pool"] == entry["spec"]["pool"]]
            alike = [p for p in parts if _is_per_device(p) == _is_per_device(parts[0])]
            devices = [device for spec in alike for device in spec["devices"]]
            pool = {**entry["spec"]["pool"], "resourceSliceCount": 1}
            counters_of = entry["spec"]["sharedCounters"]
            spec = {**parts[0], "pool": pool, "devices": devices, "sharedCounters": counters_of}
            yield {**entry, "spec": spec}


def _is_per_device(spec: Json) -> bool:
    return "perDeviceNodeSelection" in spec


def _without_lists(body: Any) -> Any:
    """The first of each list of values in its place."""
    if isinstance(body, list):
        return [_without_lists(item) for item in body]
    if not isinstance(body, dict):
        return body
    return {
        (key[:-1] if key in ("strings", "ints") else key): (
            value[0] if key in ("strings", "ints") else _without_lists(value)
        )
        for key, value in body.items()
    }


def _build(number: int, situation: Json, chance: random.Random) -> Case:
    """With the names of this case."""
    own = partial(_rename, number=number)
    everywhere = _is_whole(situation["slices"]) and bool(chance.randrange(2))
    slices = [_publish(entry, number, chance, everywhere) for entry in situation["slices"]]
    claims = [_claim(body, number, chance) for body in situation["claims"]]
    return Case(
        number,
        situation["theme"],
        nodes=[own(_node(index, number)) for index in (1, 2)],
        classes=own(list(_classes(number, chance))),
        rules=own([_rule(rule, number) for rule in situation["rules"]]),
        slices=own(slices),
        holders=own([h for h in (_holder(h, number) for h in situation["holders"]) if h]),
        claims=own(claims),
        pod=own(_pod(number, claims, chance)),
    )


def _is_whole(slices: list[Json]) -> bool:
    """Whether its pools may be seen from the nodes of other cases: a pool that has a defect ends every search
    for all devices there."""
    for driver in {entry["spec"]["driver"] for entry in slices}:
        own = [entry["spec"] for entry in slices if entry["spec"]["driver"] == driver]
        names = [device["name"] for spec in own for device in spec["devices"]]
        takes = any("consumesCounters" in device for spec in own for device in spec["devices"])
        gives = any("sharedCounters" in spec for spec in own)
        whole = all(
            spec["pool"]["resourceSliceCount"] == len(own)
            and spec["pool"]["generation"] == 2
            and "allNodes" in spec
            for spec in own
        )
        if not whole or len(set(names)) < len(names) or (takes and not gives):
            return False
    return True


def _rename(body: Any, number: int) -> Any:
    if isinstance(body, dict):
        return {_rename(key, number): _rename(value, number) for key, value in body.items()}
    if isinstance(body, list):
        return [_rename(item, number) for item in body]
    if not isinstance(body, str):
        return body
    return _WORDS.sub(lambda m: f"{m[1]}{number}.dev" if m[1] else f"n{number}-{m[2]}", body)


def _node(index: int, number: int) -> Json:
    name = f"node-{index}"
    labels = {"kubernetes.io/hostname": name, "rack": f"r{index}", "size": str(index), "case": str(number)}
    room = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def _classes(number: int, chance: random.Random) -> Iterator[Json]:
    for name, body in random_clusters.CLASSES.items():
        mine = {"cel": {"expression": 'device.driver in ["a.dev", "b.dev"]'}}
        spec = {**body["spec"], "selectors": [mine, *body["spec"].get("selectors", ())]}
        if not chance.randrange(3):
            spec["config"] = [_config("of-class")]
        yield {
            "apiVersion": _API,
            "kind": "DeviceClass",
            "metadata": {"name": f"{name}-{number}"},
            "spec": spec,
        }


def _config(word: str) -> Json:
    return {"opaque": {"driver": "a.dev", "parameters": {"from": word}}}


def _rule(rule: Json, number: int) -> Json:
    """For the drivers of this case alone: a rule for all devices would meet those of other cases."""
    selector = {"driver": "a.dev", **(rule["spec"]["deviceSelector"] or {})}
    taint = rule["spec"]["taint"]
    return {
        "kind": "DeviceTaintRule",
        "metadata": {"name": f"rule-{number}"},
        "spec": {"deviceSelector": selector, "taint": taint},
    }


def _publish(entry: Json, number: int, chance: random.Random, everywhere: bool) -> Json:
    spec = _select(dict(entry["spec"]), number, chance, everywhere)
    unique = {device["name"]: device for device in spec.pop("devices")}.values()
    devices = [_select(_more(device, chance), number, chance, everywhere) for device in unique]
    if devices:
        spec["devices"] = devices
    return {"apiVersion": _API, "kind": "ResourceSlice", "metadata": entry["metadata"], "spec": spec}


def _more(device: Json, chance: random.Random) -> Json:
    """With attributes that the selectors of this module ask for."""
    attributes = dict(device.get("attributes", {}))
    if not chance.randrange(3):
        attributes["version"] = {"version": chance.choice(["1.0.0", "1.10.2", "3.0.0-rc.1"])}
    if not chance.randrange(3):
        attributes["a.dev/flag"] = {"bool": bool(chance.randrange(2))}
    body = {**device, "attributes": attributes}
    if "capacity" in device:
        body["capacity"] = {name: _afford(entry) for name, entry in device["capacity"].items()}
    return body


def _afford(capacity: Json) -> Json:
    """At least what its policy allows to be asked for: the API server wants it so."""
    if "requestPolicy" not in capacity:
        return capacity
    return {**capacity, "value": str(max(int(capacity["value"]), 4))}


def _select(body: Json, number: int, chance: random.Random, everywhere: bool) -> Json:
    """In place of ``allNodes`` a selector, where it must not reach other cases."""
    if "allNodes" not in body or everywhere:
        return body
    del body["allNodes"]
    return {**body, "nodeSelector": _node_selector(number, chance)}


def _node_selector(number: int, chance: random.Random) -> Json:
    mine = {"key": "case", "operator": "In", "values": [str(number)]}
    requirements = [mine, *chance.sample(_SELECTORS, chance.choice([0, 1, 1, 2]))]
    if not chance.randrange(4):
        fields = [{"key": "metadata.name", "operator": "In", "values": [f"node-{chance.choice([1, 2])}"]}]
        return {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeSelectorTerms": [{"matchExpressions": requirements}]}


def _claim(body: Json, number: int, chance: random.Random) -> Json:
    devices = dict(body["spec"]["devices"])
    devices["requests"] = [_request(request, number, chance) for request in devices["requests"]]
    if not chance.randrange(4):
        names = [r["name"] for r in devices["requests"]] + [
            f"{r['name']}/s0" for r in devices["requests"] if "firstAvailable" in r
        ]
        chosen = chance.sample(names, chance.randrange(min(len(names), 2) + 1))
        devices["config"] = [_config("of-claim") | ({"requests": chosen} if chosen else {})]
    if "constraints" in devices:
        devices["constraints"] = [c for c in devices["constraints"] if _fits(c, devices["requests"])]
        if not devices["constraints"]:
            del devices["constraints"]
    return _claim_object(f"c{number}-{body['metadata']['name']}", {"devices": devices})


def _fits(constraint: Json, requests: list[Json]) -> bool:
    """Whether the API server takes it: alternatives are named where there are some."""
    names = {r["name"] for r in requests}
    names |= {f"{r['name']}/{s['name']}" for r in requests for s in r.get("firstAvailable", ())}
    return set(constraint.get("requests", ())) <= names


def _claim_object(name: str, spec: Json) -> Json:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": _API, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def _request(request: Json, number: int, chance: random.Random) -> Json:
    if "exactly" in request:
        return {**request, "exactly": _option(request["exactly"], number, chance)}
    options = [_option(option, number, chance) for option in request["firstAvailable"]]
    return {**request, "firstAvailable": options}


def _option(option: Json, number: int, chance: random.Random) -> Json:
    body = {**option, "deviceClassName": f"{option['deviceClassName']}-{number}"}
    if not chance.randrange(6):
        body["selectors"] = [
            *body.get("selectors", ()),
            {"cel": {"expression": chance.choice(EXPRESSIONS)}},
        ]
    return body


def _holder(holder: Json, number: int) -> Json:
    """A claim that has devices; the API server wants the requests that its results name."""
    results = [
        {**result, "request": "admin" if result.get("adminAccess") else "r"}
        for result in holder["status"]["allocation"]["devices"]["results"]
    ]
    if not results:
        return {}
    exactly = {"deviceClassName": f"any-{number}", "allocationMode": "All"}
    requests = [
        {"name": "r", "exactly": exactly},
        {"name": "admin", "exactly": {**exactly, "adminAccess": True}},
    ]
    body = _claim_object(f"c{number}-holder", {"devices": {"requests": requests}})
    return {**body, "status": {"allocation": {"devices": {"results": results}}}}


def _pod(number: int, claims: list[Json], chance: random.Random) -> Json:
    """On one node for the most part, so that the answer for each node is known; else on either."""
    one = [chance.choice(["node-1"] * 6 + ["node-2"])] if chance.randrange(4) else ["node-1", "node-2"]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": one}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    names = [claim["metadata"]["name"] for claim in claims]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "namespace": NAMESPACE},
        "spec": {
            "affinity": {"nodeAffinity": required},
            "tolerations": [EVERYTHING],
            "containers": [
                {"name": "main", "image": "none", "resources": {"claims": [{"name": n} for n in names]}}
            ],
            "resourceClaims": [{"name": n, "resourceClaimName": n} for n in names],
        },
    }
