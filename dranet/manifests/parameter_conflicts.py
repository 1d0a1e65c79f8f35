"""What fields of a claim's parameters say against each other, as far as it is sure at admission. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.manifests.cel_text import get, is_a, is_given, quote
from dranet.manifests.parameter_conflict import Conflict, equals, has_entries, is_true, is_v6, text_of
from dranet.manifests.parameter_route_conflicts import iter_entry_conflicts, iter_route_conflicts
from dranet.model.network import IPV6_MTU_MIN, RESERVED_TABLES, SUB_INTERFACE_TYPES


def iter_conflicts() -> Iterator[Conflict]:
    """Every conflict that is sure."""
    yield from _of_envelope()
    yield from _of_interface()
    yield from iter_route_conflicts()
    yield from iter_entry_conflicts()
    yield from _of_whole()


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


def _of_interface() -> Iterator[Conflict]:
    def conflict(word: str, condition: str, path: str, text: str, *fields: str) -> Conflict:
        paths = tuple(f"interface.{name}" for name in fields)
        return Conflict(word, "interface", condition, path, text, ("interface",), paths)

    o = "o.it"
    for kind in SUB_INTERFACE_TYPES:
        other = f"{is_a('map', o, kind)} && {is_given(o, 'type')} && {o}.type != {quote(kind)}"
        yield conflict(
            f"{kind}OfOther", other, quote(f".{kind}"), quote(f"must come with type: {kind}"), kind, "type"
        )
    parents = "must be absent with type: ipvlan, whose links have the address of their parent"
    has_address = f"{equals(o, 'type', quote('ipvlan'))} && {text_of(o, 'hardwareAddr')} != ''"
    yield conflict(
        "addressOfIpvlan", has_address, quote(".hardwareAddr"), quote(parents), "type", "hardwareAddr"
    )
    dhcp = is_true(o, "dhcp")
    early = "': the lease is taken before the link exists'"
    yield conflict(
        "dhcpOfType",
        f"{dhcp} && ({equals(o, 'type', quote('ipvlan'))} || {equals(o, 'type', quote('vlan'))})",
        quote(".dhcp"),
        f"'must not be true with type: ' + {o}.type + {early}",
        "dhcp",
        "type",
    )
    has_addresses = has_entries(o, "addresses")
    text = quote("must not be true with addresses")
    yield conflict(
        "dhcpAndAddresses", f"{dhcp} && {has_addresses}", quote(".dhcp"), text, "dhcp", "addresses"
    )
    v6 = f"{has_addresses} && {o}.addresses.exists(a, type(a) == string && a.contains(':'))"
    yield conflict(
        "mtuOfIpv6",
        f"{is_a('int', o, 'mtu')} && {o}.mtu < {IPV6_MTU_MIN} && {v6}",
        quote(".mtu"),
        f"'must be at least {IPV6_MTU_MIN} with an IPv6 address, not ' + string({o}.mtu)",
        "mtu",
        "addresses",
    )
    off = f"{is_a('map', o, 'ipv6')} && {equals(f'{o}.ipv6', 'enabled', 'false')}"
    yield conflict(
        "addressWithoutIpv6",
        f"{off} && {v6}",
        quote(".ipv6.enabled"),
        quote("must not be false with an IPv6 address"),
        "ipv6.enabled",
        "addresses",
    )
    yield Conflict(
        "tokenIgnored",
        "interfaceIpv6",
        f"{text_of(o, 'token')} != '' && {equals(o, 'acceptRA', '0')}",
        quote(".token"),
        quote("must come without acceptRA: 0, for it is about advertised prefixes"),
        ("interface",),
        ("interface.ipv6.token", "interface.ipv6.acceptRA"),
    )
    low, high = min(RESERVED_TABLES), max(RESERVED_TABLES)
    yield Conflict(
        "reservedTable",
        "interfaceVrf",
        f"{is_a('int', o, 'table')} && {o}.table >= {low} && {o}.table <= {high}",
        quote(".table"),
        f'"must not be one of the kernel\'s own ({low} to {high}), not " + string({o}.table)',
        ("interface",),
        ("interface.vrf.table",),
    )


def _of_whole() -> Iterator[Conflict]:
    def conflict(
        word: str, condition: str, path: str, text: str, settled: tuple[str, ...], *fields: str
    ) -> Conflict:
        return Conflict(word, "configs", condition, path, text, settled, fields)

    o = "o.it"
    interface = f"{is_a('map', o, 'interface')}"
    vrf = f"{interface} && {is_a('map', f'{o}.interface', 'vrf')}"
    yield conflict(
        "rulesAndVrf",
        f"{vrf} && {has_entries(o, 'rules')}",
        quote(".rules"),
        quote("must be empty with interface.vrf, which brings its own rule"),
        ("interface", "rules"),
        "rules",
        "interface.vrf",
    )
    table = f"{o}.interface.vrf.table"
    other = f"type(r) == map && {is_a('int', 'r', 'table')} && r.table != 0 && r.table != {table}"
    places = f"{o}.routes.transformList(i, r, {other}, '.routes[' + string(i) + '].table')"
    own = "must be absent with interface.vrf, which has one of its own"
    has_table = is_a("int", f"{o}.interface.vrf", "table")
    yield conflict(
        "routeTableAndVrf",
        f"{vrf} && {has_table} && {has_entries(o, 'routes')} && {places}.size() > 0",
        f"{places}[0]",
        quote(own),
        ("interface", "routes"),
        "routes[].table",
        "interface.vrf.table",
    )
    is_off = equals(f"{o}.interface.ipv6", "enabled", "false")
    off = f"{interface} && {is_a('map', f'{o}.interface', 'ipv6')} && {is_off}"
    for name in ("routes", "neighbors"):
        v6 = f"{o}.{name}.exists(e, type(e) == map && {is_v6('e', 'destination')})"
        yield conflict(
            f"{name}WithoutIpv6",
            f"{off} && {has_entries(o, name)} && {v6}",
            quote(".interface.ipv6.enabled"),
            quote("must not be false with an IPv6 route or neighbour"),
            ("interface", name),
            "interface.ipv6.enabled",
            f"{name}[].destination",
        )
    shared = f"{interface} && {is_given(f'{o}.interface', 'type')} && {o}.interface.type != 'passthrough'"
    for name in ("irq", "xps", "rps"):
        yield conflict(
            f"{name}OfOther",
            f"{shared} && {is_a('string', f'{o}.interface', 'type')} && {is_a('map', o, 'cpuLocality')} && "
            f"{is_true(f'{o}.cpuLocality', name)}",
            quote(f".cpuLocality.{name}"),
            f"'must not be true with type: ' + {o}.interface.type + \", whose device is not the pod's\"",
            ("interface", "cpuLocality"),
            f"cpuLocality.{name}",
            "interface.type",
        )
    yield conflict(
        "profileWithoutProvider",
        f"{text_of(o, 'profile')} != ''",
        quote(".profile"),
        quote("must not be set: no profile provider is configured"),
        ("profile",),
        "profile",
    )
