"""What fields of routes, rules and neighbours say against each other. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.model.parameters.routing import SCOPE_LINK
from tools.manifests.cel_text import get, is_a, is_given, quote
from tools.manifests.parameter_conflict import Conflict, equals, has_entries, is_true, is_v6, text_of

_HOPS = f"({has_entries('o', 'nextHops')})"
_IS_LINK = equals("o", "scope", str(SCOPE_LINK))
_HAS_GATEWAY = f"{text_of('o', 'gateway')} != ''"
_IS_ONLINK = is_true("o", "onlink")
_VERSION = "'must be of the IP version of the destination '"


def iter_route_conflicts() -> Iterator[Conflict]:
    yield from _of_next_hops()
    yield from _of_scope()
    yield from _of_versions()
    yield _next_hops_of_other_version()


def _in_route(word: str, condition: str, path: str, text: str, *fields: str) -> Conflict:
    paths = tuple(f"routes[].{name}" for name in fields)
    return Conflict(word, "routes", condition, path, text, ("routes",), paths, is_list=True)


def _of_next_hops() -> Iterator[Conflict]:
    own = quote("must be absent with nextHops, each of which has its own")
    for name, given in (("gateway", _HAS_GATEWAY), ("onlink", _IS_ONLINK)):
        word = name[0].upper() + name[1:]
        yield _in_route(f"hops{word}", f"{_HOPS} && {given}", quote(f".{name}"), own, "nextHops", name)
    text = quote(f"must not be {SCOPE_LINK} (link) with nextHops")
    yield _in_route("hopsScope", f"{_HOPS} && {_IS_LINK}", quote(".scope"), text, "nextHops", "scope")


def _of_scope() -> Iterator[Conflict]:
    yield _in_route(
        "linkGateway",
        f"!{_HOPS} && {_IS_LINK} && ({_HAS_GATEWAY} || {_IS_ONLINK})",
        f"({_HAS_GATEWAY} ? '.gateway' : '.onlink')",
        quote(f"must be absent with scope {SCOPE_LINK} (link)"),
        "scope",
        "gateway",
        "onlink",
    )
    yield _in_route(
        "gatewayAbsent",
        f"!{_HOPS} && !({_IS_LINK}) && {get('o', 'gateway')} == null",
        quote(".gateway"),
        quote(f"is required unless scope is {SCOPE_LINK} (link) or there are nextHops"),
        "gateway",
    )


def _of_versions() -> Iterator[Conflict]:
    for name in ("gateway", "source"):
        differs = f"{is_v6('o', name)} != {is_v6('o', 'destination')}"
        word = name[0].upper() + name[1:]
        yield _in_route(
            f"version{word}",
            f"{text_of('o', name)} != '' && {text_of('o', 'destination')} != '' && {differs}",
            quote(f".{name}"),
            f"{_VERSION} + o.destination + ', not ' + o.{name}",
            "destination",
            name,
        )


def _next_hops_of_other_version() -> Conflict:
    """Of all next hops of a route the first."""
    differs = f"{is_v6('h', 'gateway')} != {is_v6('o', 'destination')}"
    wrong = f"type(h) == map && {text_of('h', 'gateway')} != '' && {differs}"
    places = f"o.nextHops.transformList(j, h, {wrong}, '.nextHops[' + string(j) + '].gateway')"
    has_hops = f"{is_a('list', 'o', 'nextHops')} && {text_of('o', 'destination')} != ''"
    return _in_route(
        "versionNextHops",
        f"{has_hops} && {places}.size() > 0",
        f"{places}[0]",
        f"{_VERSION} + o.destination",
        "destination",
        "nextHops[].gateway",
    )


def iter_entry_conflicts() -> Iterator[Conflict]:
    yield from _of_rules()
    yield from _of_absent()


def _of_rules() -> Iterator[Conflict]:
    version = "'must be of the IP version of the source '"
    yield Conflict(
        "versionRule",
        "rules",
        f"{text_of('o', 'source')} != '' && {text_of('o', 'destination')} != '' && "
        f"{is_v6('o', 'source')} != {is_v6('o', 'destination')}",
        quote(".destination"),
        f"{version} + o.source + ', not ' + o.destination",
        ("rules",),
        ("rules[].source", "rules[].destination"),
        is_list=True,
    )
    yield Conflict(
        "maskAlone",
        "rules",
        f"{is_given('o', 'mask')} && {get('o', 'mark')} == null",
        quote(".mask"),
        quote("must come with mark"),
        ("rules",),
        ("rules[].mark", "rules[].mask"),
        is_list=True,
    )


def _of_absent() -> Iterator[Conflict]:
    """What an entry cannot be without."""
    required = (("routes", "destination"), ("neighbors", "destination"), ("neighbors", "hardwareAddr"))
    for place, name in (*required, ("routesNextHops", "gateway")):
        outer = "routes[].nextHops" if place == "routesNextHops" else place
        yield Conflict(
            f"{place}{name[0].upper()}{name[1:]}Absent",
            place,
            f"{get('o', name)} == null",
            quote(f".{name}"),
            quote("is required"),
            (outer.partition("[")[0],),
            (f"{outer}[].{name}",),
            is_list=True,
        )
