"""Redact a capture: what names a machine, a person or a network goes, what a layout is made of stays.

Replaced are hardware addresses, GUIDs, UUIDs, IP addresses, the host's name, aliases and the names of
switches, wherever they occur: in fields of their own, in names (``enx525400c0ffee``) and in warnings. Equal
stays equal, different stays different, and the form is kept: a MAC address stays one of its maker, an IP
address keeps its prefix length and the neighbours of its subnet. PCI addresses, models, drivers, versions,
interface names and the ids of switch ports show which hardware is where, not whose it is, and stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from ipaddress import ip_address, ip_network
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dranet.desk.redact.ip import IpAddress, IpNetwork, replace_addresses
from dranet.model.facts import NodeFacts, ProvidedFacts

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_BYTES = r"[0-9a-f]{2}(?P<mark>[:-])[0-9a-f]{2}(?:(?P=mark)[0-9a-f]{2}){4,}"
_GUID = r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?!:)"
_COMPACT = r"[0-9a-f]{40}|[0-9a-f]{32}|[0-9a-f]{16}|[0-9a-f]{12}"
_IPV6 = r"(?:[0-9a-f]{0,4}:){2,8}(?:\d+(?:\.\d+){3}|[0-9a-f]{0,4})"
_IPV4 = r"\d{1,3}(?:\.\d{1,3}){3}"

_IDENTIFIER = re.compile(
    rf"(?P<hex>{_BYTES}|(?<![0-9a-f])(?:{_UUID}|{_GUID}|{_COMPACT})(?![0-9a-f]))"
    rf"|(?<![0-9a-f])(?P<ip>{_IPV6})(?:/(?P<length6>\d+))?"
    rf"|(?<![\d.])(?P<ip4>{_IPV4})(?!\d|\.\d)(?:/(?P<length4>\d+))?",
    re.IGNORECASE,
)
"""What looks like an identifier in a text. Much else does (PCI addresses, times): parsing decides."""

_VERSIONS = frozenset({"Link.driver_version", "Link.firmware", "RdmaDevice.firmware", "Host.kernel"})
"""Here four numbers with dots are a version."""

_CHOSEN_BY_PEOPLE = frozenset(
    {
        "Address.label",
        "Host.kernel",
        "Host.product",
        "ProtectedLink.purpose",
        "Link.altnames",
        "Link.ifname",
        "Link.parent_device",
        "Link.tc_filters",
        "Link.tcx_programs",
        "LldpNeighbour.ifname",
        "LldpNeighbour.port_id",
        "NodeFacts.warnings",
        "RdmaDevice.name",
        "RdmaPort.netdevs",
    }
)
"""Texts that people have chosen: the host's name may be a part of them."""

_SENTENCES = frozenset({"ProtectedLink.purpose", "NodeFacts.warnings"})
"""An alias may be quoted in them."""

_SENTENCE = "NodeFacts.warnings"
"""The place of a text in which anything may be quoted."""

_WHOLE = {
    "Gpu.uuid": "gpu",
    "Host.name": "node",
    "ProtectedLink.address": "host",
    "Link.alias": "alias",
    "Link.phys_switch_id": "switch",
    "LldpNeighbour.chassis_id": "switch",
    "LldpNeighbour.system_name": "switch",
    "LldpNeighbour.port_description": "port",
}
"""Identifiers as a whole, in whatever form -> what to call them then."""

_NEW_WORD = re.compile(rf"(?:{'|'.join(_WHOLE.values())})-\d+")

_FREE_FORM = frozenset(
    {"Host.name", "Link.alias", "LldpNeighbour.port_description", "LldpNeighbour.system_name"}
)
"""Texts in which an address is only a part of what identifies the owner."""

_UUID_DIGITS, _IPOIB_DIGITS, _GUID_DIGITS = 32, 40, 16

_Change = Callable[[str, str], str]
"""A place (``Link.alias``) and its text -> the new text."""


def redact(facts: NodeFacts) -> NodeFacts:
    """Return the same layout without what identifies its owner. Equal facts give equal results."""
    return redact_with(facts, ())[0]


def redact_with(facts: NodeFacts, others: Sequence[str]) -> tuple[NodeFacts, list[str]]:
    """As :func:`redact`, and other texts about the machine: what is equal in facts and texts stays equal."""
    facts = replace(facts, provided=tuple(_keep_kinds(facts.provided)))
    texts: list[tuple[str, str]] = []

    def note(place: str, text: str) -> str:
        texts.append((place, text))
        return text

    _rewrite(facts, note)
    texts += [(_SENTENCE, text) for text in others]
    replacements = _Replacements(texts)
    redacted: NodeFacts = _rewrite(facts, replacements.apply)
    return redacted, [replacements.apply(_SENTENCE, text) for text in others]


_KINDS_OF_MACHINES = frozenset(
    {
        "alibaba.dra.net/instanceType",
        "aws.dra.net/instanceType",
        "azure.dra.net/vmSize",
        "coreweave.dra.net/instanceType",
        "gce.dra.net/machineType",
        "oke.dra.net/shape",
    }
)
"""The facts of a cloud that do not identify the owner."""


def _keep_kinds(provided: Iterable[ProvidedFacts]) -> Iterator[ProvidedFacts]:
    for one in provided:
        kept = tuple(attribute for attribute in one.attributes if attribute.name in _KINDS_OF_MACHINES)
        if kept and not (one.device or one.mac):
            yield replace(one, attributes=kept)


def _rewrite(value: Any, change: _Change, place: str = "") -> Any:
    """A copy of a fact in which every text went through ``change``."""
    if isinstance(value, str):
        return change(place, value)
    if isinstance(value, int | None):
        return value
    if isinstance(value, tuple):
        return tuple(_rewrite(element, change, place) for element in value)
    kind = type(value).__name__
    changed = {
        name: _rewrite(getattr(value, name), change, f"{kind}.{name}") for name in value.__struct_fields__
    }
    return replace(value, **changed)


class _Replacements:
    """What each identifier of one set of facts becomes; decided once, from all of its texts."""

    def __init__(self, texts: Collection[tuple[str, str]]) -> None:
        found = [token for place, text in texts for token in _tokens(place, text)]
        self._addresses = replace_addresses(
            {token.address for token in found if token.address},
            {token.network for token in found if token.network},
        )
        self._digits = _replace_digits(dict.fromkeys(token.digits for token in found if token.digits))
        self._words = _replace_words(texts)
        host = {word for name in _host_names(texts) for word in (name, name.partition(".")[0])}
        self._host_words = _any_of(host)
        self._all_words = _any_of(self._words)

    def apply(self, place: str, text: str) -> str:
        """The text as it may be shown."""
        if place in _WHOLE and text in self._words:
            return self._words[text]
        if place in _CHOSEN_BY_PEOPLE:
            words = self._all_words if place in _SENTENCES else self._host_words
            text = words.sub(lambda found: self._words[found[0]], text)
        parts, end = [], 0
        for token in _tokens(place, text):
            parts += [text[end : token.start], self._rename(token)]
            end = token.start + len(token.text)
        return "".join([*parts, text[end:]])

    def _rename(self, token: _Token) -> str:
        if token.address:
            return str(self._addresses.get(token.address, token.text))
        return _in_form_of(token.text, token.kept + self._digits.get(token.digits, token.digits))


class _Token(Struct, frozen=True):
    """One identifier in a text: an IP address, or hexadecimal digits in one of their many forms."""

    start: int
    text: str
    address: IpAddress | None = None
    network: IpNetwork | None = None
    kept: str = ""
    """Leading digits that stay: what an InfiniBand hardware address has before its GUID."""
    digits: str = ""


def _tokens(place: str, text: str) -> Iterator[_Token]:
    for found in _IDENTIFIER.finditer(text):
        if found["hex"]:
            digits = re.sub("[^0-9a-f]", "", found["hex"].lower())
            kept = len(digits) - _GUID_DIGITS if len(digits) == _IPOIB_DIGITS else 0
            yield _Token(found.start(), found["hex"], kept=digits[:kept], digits=digits[kept:])
        elif found["ip"]:
            yield from _ip_token(found.start("ip"), found["ip"], found["length6"])
        elif place not in _VERSIONS:
            yield from _ip_token(found.start("ip4"), found["ip4"], found["length4"])


def _ip_token(start: int, text: str, prefix_length: str | None) -> Iterator[_Token]:
    """Parse an address; ``None`` if it is invalid. A colon at its end may belong to the sentence."""
    for candidate in (text, text.removesuffix(":"), text.removeprefix(":")):
        try:
            address = ip_address(candidate)
            network = ip_network((address, int(prefix_length)), strict=False) if prefix_length else None
        except ValueError:
            continue
        yield _Token(start + text.index(candidate), candidate, address, network)
        return


def _replace_digits(originals: Collection[str]) -> dict[str, str]:
    """Numbered in the order in which they occur, after the maker's prefix where there is one.

    All zeros and all ones identify nothing and stay. The first three bytes of an address that a person
    administers himself (bit 1 of the first byte) are no maker's.
    """
    renamed: dict[str, str] = {}
    numbers = count(1)
    for digits in originals:
        if set(digits) not in ({"0"}, {"f"}):
            prefix = _maker_of(digits)
            width = len(digits) - len(prefix)
            candidates = (f"{prefix}{number:0{width}x}" for number in numbers)
            renamed[digits] = next(candidate for candidate in candidates if candidate not in originals)
    return renamed


def _maker_of(digits: str) -> str:
    """The digits that identify the vendor; a locally administered address has none. A GUID that was made
    from a MAC (EUI-64, ``fffe`` in the middle) has the bit that distinguishes them inverted (RFC 4291,
    appendix A)."""
    if len(digits) == _UUID_DIGITS:
        return ""
    is_local = bool(int(digits[:2], 16) & 2)
    is_from_mac = len(digits) == 16 and digits[6:10] == "fffe"
    return "020000" if is_local != is_from_mac else digits[:6]


def _in_form_of(text: str, digits: str) -> str:
    """``digits`` with the separators and the case of ``text``."""
    new = iter(digits if text == text.lower() else digits.upper())
    return re.sub("[0-9a-fA-F]", lambda _: next(new), text)


def _replace_words(texts: Collection[tuple[str, str]]) -> dict[str, str]:
    """New words for the texts that are an identifier as a whole; none of the new ones occurs already."""
    taken = {word for _, text in texts for word in _NEW_WORD.findall(text)}
    numbers = {stem: count(1) for stem in _WHOLE.values()}
    renamed: dict[str, str] = {}
    for place, text in texts:
        is_one = place in _WHOLE and (place in _FREE_FORM or not any(_tokens(place, text)))
        if text and is_one and text not in renamed:
            names = (f"{_WHOLE[place]}-{number}" for number in numbers[_WHOLE[place]])
            renamed[text] = next(name for name in names if name not in taken)
    for name in _host_names(texts):
        renamed.setdefault(name.partition(".")[0], renamed[name])
    return renamed


def _host_names(texts: Iterable[tuple[str, str]]) -> set[str]:
    return {text for place, text in texts if place == "Host.name" and text}


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Match any of the words, the longest first, where it is a word by itself."""
    longest_first = sorted(filter(None, words), key=lambda word: (-len(word), word))
    alternatives = "|".join(map(re.escape, longest_first)) or "(?!)"
    return re.compile(rf"(?<![0-9A-Za-z])(?:{alternatives})(?![0-9A-Za-z])")
