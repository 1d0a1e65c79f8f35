"""Parameters drawn from the schema itself: right ones, wrong ones, and what is hard to tell apart."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from dranet.model.parameters.network import Envelope, NetworkConfig
from dranet.model.parameters.part import Part, PartField, fields_of
from tools.manifests.parameter_checks import unwrap

Json = dict[str, Any]

ADDRESSES = (
    "10.0.0.1",
    "10.0.0.5/24",
    "10.1.0.0/16",
    "0.0.0.0/0",
    "fd00::1",
    "fd00::5/64",
    "::/0",
    "::5",
    "::ffff:10.0.0.1",
    "::ffff:a00:1/120",
    "10.0.0.0/08",
    "010.0.0.1",
    "10.0.0.1/255.0.0.0",
    "224.0.0.1/24",
    "ff02::1/64",
    "127.0.0.1/8",
    "::1/128",
    "0.0.0.0",
    "fe80::1%eth0",
    "1.2.3",
    "::5%a",
    "1::2::3",
    "10.0.0.0/33",
)
TEXTS = (
    "",
    "a",
    "net1",
    "lo",
    "default",
    "x" * 16,
    "ä",
    "a b",
    " ",
    "auto",
    "unlimited",
    "macvlan",
    "ipvlan",
    "vlan",
    "02:00:00:00:00:01",
    "01-00-5e-00-00-01",
    "00:00:00:00:00:00",
    "0200.0000.0001",
    "80:00:02:08:fe:80:00:00:00:00:00:00:24:8a:07:03:00:49:6a:b8",
    "10G",
    "1.5M",
    "7k",
    "0.5Ki",
    "1.0001k",
    "999999999999999999Ti",
    "4294967296",
    "0x10",
    "0xFFFFFFFF",
    "interface.mtu",
    "routes",
    "true",
)
NUMBERS = (
    -1,
    0,
    1,
    2,
    8,
    67,
    68,
    253,
    254,
    1024,
    1280,
    4095,
    32768,
    65536,
    2**31,
    2**32,
    2**62,
    2**62 + 1,
    2**63,
    1.0,
    1.5,
)
HOSTILE = st.one_of(
    st.sampled_from(ADDRESSES),
    st.sampled_from(TEXTS),
    st.sampled_from(NUMBERS),
    st.booleans(),
    st.none(),
    st.just({}),
    st.just([]),
    st.just({"a": 1}),
    st.just([None]),
    st.text(max_size=20),
    st.integers(-(2**64), 2**64),
)


def _right(field: PartField) -> st.SearchStrategy[Any]:
    """Values from the field's own examples and its type."""
    kind, _ = unwrap(field.info.annotation)
    examples = st.sampled_from(field.info.examples) if field.info.examples else st.just({})
    if field.part and not field.is_list:
        return drawn_part(field.part, wrong=False)
    if field.part:
        return st.lists(drawn_part(field.part, wrong=False), max_size=3)
    if kind is bool:
        return st.booleans()
    if str(kind).startswith("typing.Literal"):
        return st.sampled_from(get_args(kind))
    return examples


def _any(field: PartField) -> st.SearchStrategy[Any]:
    kind, _ = unwrap(field.info.annotation)
    wild = st.one_of(
        HOSTILE, st.lists(HOSTILE, max_size=3), st.dictionaries(st.text(max_size=5), HOSTILE, max_size=3)
    )
    if field.part and not field.is_list:
        return st.one_of(drawn_part(field.part, wrong=True), _right(field), wild)
    if field.part:
        part = drawn_part(field.part, wrong=True)
        return st.one_of(st.lists(st.one_of(part, HOSTILE), max_size=3), st.lists(part, max_size=3), wild)
    if kind is bool:
        return st.one_of(st.booleans(), HOSTILE)
    return st.one_of(_right(field), HOSTILE, wild)


@st.composite
def drawn_part(draw: st.DrawFn, part: type[Part], *, wrong: bool) -> Json:
    """An object with some of its fields; with ``wrong`` now and then something that does not belong there."""
    found: Json = {}
    known = fields_of(part)
    names = draw(st.lists(st.sampled_from(sorted(known)), max_size=4, unique=True))
    required = [name for name, field in known.items() if field.info.is_required()]
    if draw(st.integers(0, 4 if wrong else 20)):
        names += required
    for name in dict.fromkeys(names):
        is_odd = wrong and draw(st.integers(0, 2)) == 0
        found[name] = draw(_any(known[name]) if is_odd else _right(known[name]))
    if wrong and draw(st.integers(0, 9)) == 0:
        found[draw(st.sampled_from(("MTU", "x", "a b", "interface", "9")))] = draw(HOSTILE)
    return found


def drawn_parameters(*, wrong: bool) -> st.SearchStrategy[Json]:
    """Those of one config, now and then with what stands beside them."""
    own = drawn_part(NetworkConfig, wrong=wrong)
    beside = drawn_part(Envelope, wrong=wrong)
    return st.one_of(own, own, own, st.builds(lambda a, b: {**a, **b}, own, beside))
