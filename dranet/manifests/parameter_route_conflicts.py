"""What fields of routes, rules and neighbours say against each other. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.manifests.cel_text import get, is_given, quote
from dranet.manifests.parameter_conflict import Conflict, equals, has_entries, is_true, is_v6, text_of
from dranet.model.network import SCOPE_LINK


def iter_route_conflicts() -> Iterator[Conflict]:
    def conflict(word: str, condition: str, path: str, text: str, *fields: str) -> Conflict:
        paths = tuple(f"routes[].{name}" for name in fields)
        return Conflict(word, "routes", condition, path, text, ("routes",), paths, is_list=True)

    hops, link = f"({has_entries('o', 'nextHops')})", equals("o", "scope", str(SCOPE_LINK))
    onlink = is_true("o", "onlink")
    own = quote("must be absent with nextHops, each of which has its own")
    is_link = quote(f"must be absent with scope {SCOPE_LINK} (link)")
    gateway = f"{text_of('o', 'gateway')} != ''"
    for name, given in (("gateway", gateway), ("onlink", onlink)):
        word = name[0].upper() + name[1:]
        yield conflict(f"hops{word}", f"{hops} && {given}", quote(f".{name}"), own, "nextHops", name)
    among = quote(f"must not be {SCOPE_LINK} (link) with nextHops")
    yield conflict("hopsScope", f"{hops} && {link}", quote(".scope"), among, "nextHops", "scope")
    yield conflict(
        "linkGateway",
        f"!{hops} && {link} && ({gateway} || {onlink})",
        f"({gateway} ? '.gateway' : '.onlink')",
        is_link,
        "scope",
        "gateway",
        "onlink",
    )
    yield conflict(
        "gatewayAbsent",
        f"!{hops} && !({link}) && {get('o', 'gateway')} == null",
        quote(".gateway"),
        quote(f"is required unless scope is {SCOPE_LINK} (link) or there are nextHops"),
        "gateway",
    )
    version = "'must be of the IP version of the destination '"
    for name in ("gateway", "source"):
        differs = f"{is_v6('o', name)} != {is_v6('o', 'destination')}"
        word = name[0].upper() + name[1:]
        yield conflict(
            f"version{word}",
            f"{text_of('o', name)} != '' && {text_of('o', 'destination')} != '' && {differs}",
            quote(f".{name}"),
            f"{version} + o.destination + ', not ' + o.{name}",
            "destination",
            name,
        )
    yield _next_hops_of_other_version(version)


def _next_hops_of_other_version(version: str) -> Conflict:
    """Of all next hops of a route the first."""
    differs = f"{is_v6('h', 'gateway')} != {is_v6('o', 'destination')}"
    wrong = f"type(h) == map && {text_of('h', 'gateway')} != '' && {differs}"
    places = f"o.nextHops.transformList(j, h, {wrong}, '.nextHops[' + string(j) + '].gateway')"
    has_hops = f"{has_entries('o', 'nextHops')} && {text_of('o', 'destination')} != ''"
    return Conflict(
        "versionNextHops",
        "routes",
        f"{has_hops} && {places}.size() > 0",
        f"{places}[0]",
        f"{version} + o.destination",
        ("routes",),
        ("routes[].destination", "routes[].nextHops[].gateway"),
        is_list=True,
    )


def iter_entry_conflicts() -> Iterator[Conflict]:
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
