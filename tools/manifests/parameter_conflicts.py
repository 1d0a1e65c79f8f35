"""Conflicts among fields of a claim's parameters that are certain at admission, as CEL.

The code finds conflicts in the merged parameters (``find_conflicts`` of the models). A DeviceClass may add
what a claim leaves out, and a later config of the claim may replace what an earlier one sets. So a conflict
is refused here only if the claim itself sets both sides and no later config for the same requests sets any of
them. Texts and paths are those of the code; a test compares both."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from dranet.model.parameters.interface import IPV6_MTU_MIN, RESERVED_TABLES, SCOPE_LINK, SUB_INTERFACE_TYPES
from dranet.model.parameters.network import CpuLocalityConfig
from dranet.model.parameters.part import fields_of
from tools.manifests.cel_text import get, is_a, is_set, join, quote
from tools.manifests.parameter_rules import Rule, rule_name


class Conflict(Struct, frozen=True):
    """A condition on the objects of a place."""

    word: str
    place: str
    """Variable with the objects; ``configs`` has the complete parameters."""
    condition: str
    """CEL over ``o``, the object; of an entry of ``configs`` over ``o.it``."""
    path: str
    """The field to correct: CEL that is appended to the path of the object."""
    text: str
    """CEL for the message, the same as in the code."""
    settled: tuple[str, ...]
    """The outermost fields that no later config may set; empty if no config can resolve the conflict."""
    fields: tuple[str, ...]
    """Paths of the fields, for people."""
    is_list: bool = False

    def build_rule(self) -> Rule:
        """Build the rule. In a DeviceClass only conflicts without ``settled`` fields are certain."""
        overridden = " || ".join(is_set("p", name) for name in self.settled)
        owner = "l" if self.is_list else "o"
        at = "l.at + '[' + string(i) + ']'" if self.is_list else "o.at"
        is_final = f"!{owner}.later.exists(p, {overridden})" if overridden else "true"
        message = f"{at} + {self.path} + ': ' + {self.text}"
        found = f"variables.{self.place}.filter({owner}, {is_final})"
        if self.is_list:
            inner = join(f"l.it.transformList(i, o, type(o) == map && ({self.condition}), {message})")
            texts = join(f"{found}.map(l, {inner})")
        else:
            texts = join(f"{found}.filter(o, {self.condition}).map(o, {message})")
        expression = f"variables.isClass ? '' : {texts}" if overridden else texts
        literals = (single or double for single, double in _LITERAL.findall(self.text))
        return Rule(rule_name(self.word), expression, "...".join(literals), self.fields)


_LITERAL = re.compile(r"""'([^']*)'|"([^"]*)\"""")


def equals(owner: str, name: str, value: str) -> str:
    """Compare a field with a value. ``dyn(null)`` because Kubernetes compares no typed null with a text."""
    return f"{owner}[?{quote(name)}].orValue(dyn(null)) == {value}"


def is_true(owner: str, name: str) -> str:
    return equals(owner, name, "true")


def text_of(owner: str, name: str) -> str:
    """A field that is text; empty for anything else and if it is absent."""
    return f"({is_a('string', owner, name)} ? string({owner}.{name}) : '')"


def is_v6(owner: str, name: str) -> str:
    return f"{text_of(owner, name)}.contains(':')"


def has_entries(owner: str, name: str) -> str:
    return f"{is_a('list', owner, name)} && {owner}.{name}.size() > 0"


_O = "o.it"
_IS_INTERFACE = is_a("map", _O, "interface")
_LISTS_ADDRESSES = is_a("list", _O, "addresses")
_HAS_V6_ADDRESS = f"{_LISTS_ADDRESSES} && {_O}.addresses.exists(a, type(a) == string && a.contains(':'))"
"""Whether an interface has an IPv6 address."""


def iter_conflicts() -> Iterator[Conflict]:
    """Yield every conflict that is certain."""
    yield from _of_envelope()
    yield from _of_interface_type()
    yield from _of_addresses()
    yield from _of_interface_parts()
    yield from iter_route_conflicts()
    yield from iter_entry_conflicts()
    yield from _of_vrf()
    yield from _of_ipv6()
    yield from _of_locality()


def _of_envelope() -> Iterator[Conflict]:
    for name, other in (("kind", "apiVersion"), ("apiVersion", "kind")):
        yield Conflict(
            f"{name}Absent",
            "configs",
            f"{is_set('o.it', other)} && {get('o.it', name)} == null",
            quote(f".{name}"),
            quote(f"is required with {other}"),
            (),
            (name,),
        )
    for name in ("field", "expression"):
        yield Conflict(
            f"policyRules{name[0].upper()}{name[1:]}Absent",
            "policyRules",
            f"{get('o', name)} == null",
            quote(f".{name}"),
            quote("is required"),
            (),
            (f"policy.rules[].{name}",),
            is_list=True,
        )


def _in_interface(word: str, condition: str, path: str, text: str, *fields: str) -> Conflict:
    paths = tuple(f"interface.{name}" for name in fields)
    return Conflict(word, "interface", condition, path, text, ("interface",), paths)


def _in_whole(word: str, condition: str, path: str, text: str, *fields: str) -> Conflict:
    """Settled by the outermost of the fields."""
    settled = dict.fromkeys(name.partition(".")[0].partition("[")[0] for name in fields)
    return Conflict(word, "configs", condition, path, text, tuple(settled), fields)


def _of_interface_type() -> Iterator[Conflict]:
    for kind in SUB_INTERFACE_TYPES:
        other = f"{is_a('map', _O, kind)} && {is_set(_O, 'type')} && {_O}.type != {quote(kind)}"
        text = quote(f"must come with type: {kind}")
        yield _in_interface(f"{kind}OfOther", other, quote(f".{kind}"), text, kind, "type")
    is_ipvlan, is_vlan = (equals(_O, "type", quote(kind)) for kind in ("ipvlan", "vlan"))
    yield _in_interface(
        "addressOfIpvlan",
        f"{is_ipvlan} && {text_of(_O, 'hardwareAddr')} != ''",
        quote(".hardwareAddr"),
        quote("must be absent with type: ipvlan, whose links have the address of their parent"),
        "type",
        "hardwareAddr",
    )
    yield _in_interface(
        "dhcpOfType",
        f"{is_true(_O, 'dhcp')} && ({is_ipvlan} || {is_vlan})",
        quote(".dhcp"),
        f"'must not be true with type: ' + {_O}.type + ': the lease is taken before the link exists'",
        "dhcp",
        "type",
    )


def _of_addresses() -> Iterator[Conflict]:
    yield _in_interface(
        "dhcpAndAddresses",
        f"{is_true(_O, 'dhcp')} && {has_entries(_O, 'addresses')}",
        quote(".dhcp"),
        quote("must not be true with addresses"),
        "dhcp",
        "addresses",
    )
    for word, other, condition in (
        ("ipamAndAddresses", "addresses", has_entries(_O, "addresses")),
        ("ipamAndDhcp", "dhcp: true", is_true(_O, "dhcp")),
    ):
        yield _in_interface(
            word,
            f"{text_of(_O, 'ipam')} != '' && {condition}",
            quote(".ipam"),
            quote(f"must be absent with {other}"),
            "ipam",
            other.partition(":")[0],
        )
    yield _in_interface(
        "mtuOfIpv6",
        f"{is_a('int', _O, 'mtu')} && {_O}.mtu < {IPV6_MTU_MIN} && {_HAS_V6_ADDRESS}",
        quote(".mtu"),
        f"'must be at least {IPV6_MTU_MIN} with an IPv6 address, not ' + string({_O}.mtu)",
        "mtu",
        "addresses",
    )
    yield _in_interface(
        "addressWithoutIpv6",
        f"{_is_without_ipv6(_O)} && {_HAS_V6_ADDRESS}",
        quote(".ipv6.enabled"),
        quote("must not be false with an IPv6 address"),
        "ipv6.enabled",
        "addresses",
    )


def _of_interface_parts() -> Iterator[Conflict]:
    yield Conflict(
        "tokenIgnored",
        "interfaceIpv6",
        f"{text_of(_O, 'token')} != '' && {equals(_O, 'acceptRA', '0')}",
        quote(".token"),
        quote("must come without acceptRA: 0, for it is about advertised prefixes"),
        ("interface",),
        ("interface.ipv6.token", "interface.ipv6.acceptRA"),
    )
    low, high = min(RESERVED_TABLES), max(RESERVED_TABLES)
    yield Conflict(
        "reservedTable",
        "interfaceVrf",
        f"{is_a('int', _O, 'table')} && {_O}.table >= {low} && {_O}.table <= {high}",
        quote(".table"),
        f'"must not be one of the kernel\'s own ({low} to {high}), not " + string({_O}.table)',
        ("interface",),
        ("interface.vrf.table",),
    )


def _of_vrf() -> Iterator[Conflict]:
    has_vrf = f"{_IS_INTERFACE} && {is_a('map', f'{_O}.interface', 'vrf')}"
    yield _in_whole(
        "rulesAndVrf",
        f"{has_vrf} && {has_entries(_O, 'rules')}",
        quote(".rules"),
        quote("must be empty with interface.vrf, which brings its own rule"),
        "rules",
        "interface.vrf",
    )
    table = f"{_O}.interface.vrf.table"
    other = f"type(r) == map && {is_a('int', 'r', 'table')} && r.table != 0 && r.table != {table}"
    places = f"{_O}.routes.transformList(i, r, {other}, '.routes[' + string(i) + '].table')"
    both = f"{is_a('int', f'{_O}.interface.vrf', 'table')} && {is_a('list', _O, 'routes')}"
    yield _in_whole(
        "routeTableAndVrf",
        f"{has_vrf} && {both} && {places}.size() > 0",
        f"{places}[0]",
        quote("must be absent with interface.vrf, which has one of its own"),
        "routes[].table",
        "interface.vrf.table",
    )


def _of_ipv6() -> Iterator[Conflict]:
    for name in ("routes", "neighbors"):
        v6 = f"{_O}.{name}.exists(e, type(e) == map && {is_v6('e', 'destination')})"
        yield _in_whole(
            f"{name}WithoutIpv6",
            f"{_IS_INTERFACE} && {_is_without_ipv6(f'{_O}.interface')} && {is_a('list', _O, name)} && {v6}",
            quote(".interface.ipv6.enabled"),
            quote("must not be false with an IPv6 route or neighbor"),
            "interface.ipv6.enabled",
            f"{name}[].destination",
        )


def _is_without_ipv6(interface: str) -> str:
    return f"{is_a('map', interface, 'ipv6')} && {equals(f'{interface}.ipv6', 'enabled', 'false')}"


def _of_locality() -> Iterator[Conflict]:
    """A pod cannot choose the CPUs of a device that stays on the node."""
    has_type = is_a("string", f"{_O}.interface", "type")
    is_shared = f"{_IS_INTERFACE} && {has_type} && {_O}.interface.type != 'passthrough'"
    for name in fields_of(CpuLocalityConfig):
        yield _in_whole(
            f"{name}OfOther",
            f"{is_shared} && {is_a('map', _O, 'cpuLocality')} && {is_true(f'{_O}.cpuLocality', name)}",
            quote(f".cpuLocality.{name}"),
            f"'must not be true with type: ' + {_O}.interface.type + \", whose device is not the pod's\"",
            f"cpuLocality.{name}",
            "interface.type",
        )


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
    for name, present in (("gateway", _HAS_GATEWAY), ("onlink", _IS_ONLINK)):
        word = name[0].upper() + name[1:]
        yield _in_route(f"hops{word}", f"{_HOPS} && {present}", quote(f".{name}"), own, "nextHops", name)
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
    """Report the first of the next hops with another IP version."""
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
        f"{is_set('o', 'mask')} && {get('o', 'mark')} == null",
        quote(".mask"),
        quote("must come with mark"),
        ("rules",),
        ("rules[].mark", "rules[].mask"),
        is_list=True,
    )


def _of_absent() -> Iterator[Conflict]:
    """Yield conflicts about required fields of an entry."""
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
