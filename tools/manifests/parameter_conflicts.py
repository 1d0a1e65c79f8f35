"""What fields of a claim's parameters say against each other, as far as it is sure at admission. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.model.parameters.interface import SUB_INTERFACE_TYPES
from dranet.model.parameters.part import fields_of
from dranet.model.parameters.routing import IPV6_MTU_MIN, RESERVED_TABLES
from dranet.model.parameters.workload import CpuLocalityConfig
from tools.manifests.cel_text import get, is_a, is_given, quote
from tools.manifests.parameter_conflict import Conflict, equals, has_entries, is_true, is_v6, text_of
from tools.manifests.parameter_route_conflicts import iter_entry_conflicts, iter_route_conflicts

_O = "o.it"
_IS_INTERFACE = is_a("map", _O, "interface")
_LISTS_ADDRESSES = is_a("list", _O, "addresses")
_HAS_V6_ADDRESS = f"{_LISTS_ADDRESSES} && {_O}.addresses.exists(a, type(a) == string && a.contains(':'))"
"""Of an interface."""


def iter_conflicts() -> Iterator[Conflict]:
    """Every conflict that is sure."""
    yield from _of_envelope()
    yield from _of_interface_type()
    yield from _of_addresses()
    yield from _of_interface_parts()
    yield from iter_route_conflicts()
    yield from iter_entry_conflicts()
    yield from _of_vrf()
    yield from _of_ipv6()
    yield from _of_locality()
    yield _of_profile()


def _of_envelope() -> Iterator[Conflict]:
    for name, other in (("kind", "apiVersion"), ("apiVersion", "kind")):
        yield Conflict(
            f"{name}Absent",
            "configs",
            f"{is_given('o.it', other)} && {get('o.it', name)} == null",
            quote(f".{name}"),
            quote(f"is required beside {other}"),
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
    """Settled by whatever is said of the outermost of the fields."""
    settled = dict.fromkeys(name.partition(".")[0].partition("[")[0] for name in fields)
    return Conflict(word, "configs", condition, path, text, tuple(settled), fields)


def _of_interface_type() -> Iterator[Conflict]:
    for kind in SUB_INTERFACE_TYPES:
        other = f"{is_a('map', _O, kind)} && {is_given(_O, 'type')} && {_O}.type != {quote(kind)}"
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
            quote("must not be false with an IPv6 route or neighbour"),
            "interface.ipv6.enabled",
            f"{name}[].destination",
        )


def _is_without_ipv6(interface: str) -> str:
    return f"{is_a('map', interface, 'ipv6')} && {equals(f'{interface}.ipv6', 'enabled', 'false')}"


def _of_locality() -> Iterator[Conflict]:
    """The CPUs of a device that stays on the node are not the pod's to choose."""
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


def _of_profile() -> Conflict:
    return _in_whole(
        "profileWithoutProvider",
        f"{text_of(_O, 'profile')} != ''",
        quote(".profile"),
        quote("must not be set: no profile provider is configured"),
        "profile",
    )
