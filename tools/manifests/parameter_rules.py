"""The rules of the parameters policy, derived from the parameters' own schema.

A *place* is one kind of object in the parameters: ``interface.rateLimit.egress``, an entry of ``routes``. Two
variables hold all objects of all configs, each with its path and its place: ``objects``, and ``entries`` for
lists of them. Another one, ``fields``, is the schema as data: place -> kind -> fields. A rule checks one kind
of value at every place; it is also a variable, the text of what is wrong or empty. Therefore one validation
reports everything at once, as the code does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from msgspec import Struct, field
from msgspec.structs import replace

from dranet.model.parameters.network import Envelope, NetworkConfig
from dranet.model.parameters.part import Part, PartField, fields_of
from tools.manifests.cel_text import is_a, join, key, quote, quote_all, show
from tools.manifests.parameter_checks import Check, build_check, unwrap

Variable = tuple[str, str]
"""Name and expression."""

ROOT = "configs"
"""The variable with our configs; see :mod:`~tools.manifests.parameters_policy`."""
_OBJECT = Check((("type(x) != map", quote("must be an object")),))
_LIST = Check((("type(x) != list", quote("must be a list")),))
_WORDS = {bool: "bools", int: "numbers", str: "texts"}


class Place(Struct, frozen=True):
    """One kind of object in the parameters."""

    name: str
    """Name of its variable: the objects, or the lists of them, each with path (``at``), value (``it``) and
    the later configs that may override it (``later``)."""
    part: type[Part]
    path: str = ""
    """As in documents: ``routes[].nextHops[]``."""
    find: str = ""
    """CEL for the variable."""
    is_list: bool = False

    @property
    def fields(self) -> Mapping[str, PartField]:
        """The fields by JSON name; the outermost object also has those of the envelope."""
        envelope = fields_of(Envelope) if self.name == ROOT else {}
        return {**envelope, **fields_of(self.part)}


class Rule(Struct, frozen=True):
    """One kind of mistake that the policy refuses."""

    name: str
    """Name of its variable."""
    expression: str
    """CEL for the text of what is wrong."""
    finds: str
    """What it refuses, for a table."""
    fields: tuple[str, ...] = ()
    """Paths of the fields that it checks."""


class _Kind(Struct, frozen=True):
    """Fields with the same check."""

    word: str
    check: Check
    of: str
    """What is checked: the value, or the ``items`` of a list, the ``names`` or ``values`` of a map."""
    is_list: bool
    """Whether the fields are those of list entries."""
    names: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Place -> names of fields."""


def iter_places() -> Iterator[Place]:
    """Yield every place, outer ones first."""
    root = Place(ROOT, NetworkConfig)
    yield root
    yield from _iter_below(root)
    for place in _iter_child(root, "policy", fields_of(Envelope)["policy"]):
        find = f"variables.isClass ? {place.find} : []" if place.name == "policy" else place.find
        yield replace(place, find=find)


def _iter_below(place: Place) -> Iterator[Place]:
    for name, found in fields_of(place.part).items():
        yield from _iter_child(place, name, found)


def _iter_child(place: Place, name: str, found: PartField) -> Iterator[Place]:
    if found.part is None:
        return
    own = name if place.name == ROOT else place.name + name[0].upper() + name[1:]
    path = f"{place.path}.{name}".lstrip(".") + ("[]" if found.is_list else "")
    build = _find_in_entries if place.is_list else _find_in_objects
    child = Place(
        own, found.part, path, build(place, name, "list" if found.is_list else "map"), found.is_list
    )
    yield child
    yield from _iter_below(child)


def _find_in_objects(place: Place, name: str, kind: str) -> str:
    found = f"{{'at': dyn(o.at + {quote('.' + name)}), 'it': dyn(o.it.{name}), 'later': dyn(o.later)}}"
    return f"variables.{place.name}.filter(o, {is_a(kind, 'o.it', name)}).map(o, {found})"


def _find_in_entries(place: Place, name: str, kind: str) -> str:
    """Flatten by a text of indices (``0 3,0 4``), the only way in CEL from nested lists to one list."""
    is_there = f"type(o) == map && {is_a(kind, 'o', name)}"
    numbers = f"l.it.transformList(i, o, {is_there}, string(n) + ' ' + string(i)).join(',')"
    pairs = f"variables.{place.name}.transformList(n, l, {numbers}).filter(t, t != '').join(',').split(',')"
    owner = f"variables.{place.name}[p[0]]"
    at = f"{owner}.at + '[' + string(p[1]) + {quote('].' + name)}"
    found = f"{{'at': dyn({at}), 'it': dyn({owner}.it[p[1]].{name}), 'later': dyn({owner}.later)}}"
    return f"{pairs}.filter(s, s != '').map(s, s.split(' ').map(n, int(n))).map(p, {found})"


def build_place_variables() -> list[Variable]:
    """Return variables with the objects of each place, and with all of them."""
    places = list(iter_places())
    found: list[Variable] = [(place.name, place.find) for place in places if place.find]
    for name, is_list in (("objects", False), ("entries", True)):
        groups = (_mark(place) for place in places if place.is_list is is_list)
        found.append((name, " + ".join(groups)))
    return found


def _mark(place: Place) -> str:
    """The objects of a place, each with the place's name."""
    found = f"{{'is': dyn({quote(place.name)}), 'at': dyn(o.at), 'it': dyn(o.it)}}"
    return f"variables.{place.name}.map(o, {found})"


def build_field_rules() -> tuple[Variable, list[Rule]]:
    """Return the schema as data, and the rules for single fields."""
    kinds = _collect_kinds()
    tables = {kind.word: kind.names for kind in kinds}
    tables["known"] = {place.name: sorted(place.fields) for place in iter_places()}
    return ("fields", _write_tables(tables)), [*_unknown_rules(), *map(_build_rule, kinds)]


def _write_tables(tables: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    inner = {
        word: ", ".join(f"{quote(place)}: {quote_all(names)}" for place, names in table.items())
        for word, table in tables.items()
    }
    return "{" + ", ".join(f"{quote(word)}: {{{text}}}" for word, text in inner.items()) + "}"


def _collect_kinds() -> list[_Kind]:
    kinds: dict[tuple[Check, str, bool], _Kind] = {}
    words: set[str] = set()
    for place in iter_places():
        for name, found in place.fields.items():
            for of, word, check in _judgements(name, found):
                at = (check, of, place.is_list)
                if at not in kinds:
                    own = f"entry{word[0].upper()}{word[1:]}" if place.is_list else word
                    own = own if own not in words else f"{place.name}{name[0].upper()}{name[1:]}"
                    words.add(own)
                    kinds[at] = _Kind(own, check, of, place.is_list)
                kinds[at].names[place.name].append(name)
    return list(kinds.values())


def _judgements(name: str, found: PartField) -> Iterator[tuple[str, str, Check]]:
    """Yield the checks of a field: (what is checked, a word for it, the check)."""
    kind, _ = unwrap(found.info.annotation)
    if found.is_map:
        yield "value", "objects", _OBJECT
        names, values = map(build_check, get_args(kind))
        yield "names", f"{name}Names", names
        yield "values", f"{name}Values", values
    elif found.is_list:
        yield "value", "lists", _LIST
        items = _OBJECT if found.part else build_check(get_args(kind)[0])
        yield "items", "listEntries" if found.part else f"{name}Items", items
    elif found.part:
        yield "value", "objects", _OBJECT
    else:
        check = build_check(found.info.annotation, tuple(found.info.metadata))
        is_plain = len(check.cases) == 1 and kind in _WORDS
        yield "value", _WORDS[kind] if is_plain and kind is not int else name, check


def _unknown_rules() -> Iterator[Rule]:
    for name, is_list in (("unknownFields", False), ("entryUnknownFields", True)):
        owner = "l" if is_list else "o"
        known = f"variables.fields.known[{owner}.is]"
        text = f"{_at(is_list)} + {key('k')} + ': unknown field; fields are ' + {known}.join(', ')"
        it = "o" if is_list else "o.it"
        inside = join(f"{it}.filter(k, !(k in {known})).map(k, {text})")
        yield Rule(rule_name(name), _visit(is_list, "", inside), "unknown fields")


def rule_name(word: str) -> str:
    """Return the name of the rule's variable."""
    return f"wrong{word[0].upper()}{word[1:]}"


def _at(is_list: bool) -> str:
    return "l.at + '[' + string(i) + ']'" if is_list else "o.at"


def _visit(is_list: bool, word: str, inside: str) -> str:
    """Evaluate ``inside`` for each object whose place has such fields."""
    owner = "l" if is_list else "o"
    source = f"variables.{'entries' if is_list else 'objects'}"
    if word:
        source += f".filter({owner}, {owner}.is in variables.fields.{word})"
    if is_list:
        inside = join(f"l.it.transformList(i, o, type(o) == map, {inside})")
    return join(f"{source}.map({owner}, {inside})")


def _build_rule(kind: _Kind) -> Rule:
    it = "o" if kind.is_list else "o.it"
    names = f"variables.fields.{kind.word}[{'l' if kind.is_list else 'o'}.is]"
    inside = {"value": _of_value, "items": _of_items, "names": _of_names, "values": _of_values}[kind.of](
        kind, names, it, f"{_at(kind.is_list)} + '.' + f"
    )
    texts = (text[1:-1].replace("\\'", "'") for _, text in kind.check.cases if text != "''")
    paths = {place.name: place.path for place in iter_places()}
    fields = tuple(
        f"{paths[place]}.{name}".lstrip(".") for place, found in kind.names.items() for name in found
    )
    joined = "; ".join(texts)
    finds = joined if kind.of == "value" else f"{kind.of}: {joined}"
    return Rule(rule_name(kind.word), _visit(kind.is_list, kind.word, inside), finds, fields)


def _message(at: str, problem: str, value: str) -> str:
    return f"{at} + ': ' + {problem} + ', not ' + {show(value)}"


def _of_value(kind: _Kind, names: str, it: str, at: str) -> str:
    value = f"{it}[f]"
    problem = kind.check.problem(value)
    wrong = f"{it}[?f].orValue(null) != null && {problem} != ''"
    return join(f"{names}.filter(f, {wrong}).map(f, {_message(at, problem, value)})")


def _of_items(kind: _Kind, names: str, it: str, at: str) -> str:
    problem = kind.check.problem("x")
    message = _message(f"{at} + '[' + string(k) + ']'", problem, "x")
    items = join(f"{it}[f].transformList(k, x, {problem} != '', {message})")
    return join(f"{names}.filter(f, type({it}[?f].orValue(null)) == list).map(f, {items})")


def _of_names(kind: _Kind, names: str, it: str, at: str) -> str:
    return _of_map(
        kind.check.problem("k"), names, it, _message(f"{at} + {key('k')}", kind.check.problem("k"), "k")
    )


def _of_values(kind: _Kind, names: str, it: str, at: str) -> str:
    return _of_map(
        kind.check.problem("x"), names, it, _message(f"{at} + {key('k')}", kind.check.problem("x"), "x")
    )


def _of_map(problem: str, names: str, it: str, message: str) -> str:
    items = join(f"{it}[f].transformList(k, x, x != null && {problem} != '', {message})")
    return join(f"{names}.filter(f, type({it}[?f].orValue(null)) == map).map(f, {items})")
