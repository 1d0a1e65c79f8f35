"""One conflict among fields of a claim's parameters, as CEL. Pure.

The code finds conflicts in the merged whole (``find_conflicts`` of the models). What a claim leaves out a
DeviceClass may give, and what a config says a later one of the claim may replace. So a conflict is refused
here only where the claim itself says both sides and no later config for the same requests says anything of
them. Texts and paths are those of the code; a test holds both side by side.
"""

from __future__ import annotations

import re

from msgspec import Struct

from tools.manifests.cel_text import is_a, is_given, join, quote
from tools.manifests.parameter_rules import Rule, rule_name


class Conflict(Struct, frozen=True):
    """One condition on the objects of a place."""

    word: str
    place: str
    """Variable with the objects: ``configs`` sees the whole."""
    condition: str
    """CEL over ``o``, the object; of an entry of ``configs`` over ``o.it``."""
    path: str
    """The field to mend, CEL behind the path of the object."""
    text: str
    """CEL, as the code says it."""
    settled: tuple[str, ...]
    """The outermost fields that no later config may say anything of; none for what no config can mend."""
    fields: tuple[str, ...]
    """Paths of the fields, for people."""
    is_list: bool = False

    def build_rule(self) -> Rule:
        """In a DeviceClass nothing is settled but what stands beside the parameters."""
        said = " || ".join(is_given("p", name) for name in self.settled)
        owner = "l" if self.is_list else "o"
        at = "l.at + '[' + string(i) + ']'" if self.is_list else "o.at"
        is_final = f"!{owner}.later.exists(p, {said})" if said else "true"
        tell = f"{at} + {self.path} + ': ' + {self.text}"
        found = f"variables.{self.place}.filter({owner}, {is_final})"
        if self.is_list:
            inner = join(f"l.it.transformList(i, o, type(o) == map && ({self.condition}), {tell})")
            texts = join(f"{found}.map(l, {inner})")
        else:
            texts = join(f"{found}.filter(o, {self.condition}).map(o, {tell})")
        expression = f"variables.isClass ? '' : {texts}" if said else texts
        literals = (single or double for single, double in _LITERAL.findall(self.text))
        return Rule(rule_name(self.word), expression, "...".join(literals), self.fields)


_LITERAL = re.compile(r"""'([^']*)'|"([^"]*)\"""")


def equals(owner: str, name: str, value: str) -> str:
    """With a ``null`` of no type: Kubernetes compares no others with a text."""
    return f"{owner}[?{quote(name)}].orValue(dyn(null)) == {value}"


def is_true(owner: str, name: str) -> str:
    return equals(owner, name, "true")


def text_of(owner: str, name: str) -> str:
    """A field that is text; empty for anything else, and where it is absent."""
    return f"({is_a('string', owner, name)} ? string({owner}.{name}) : '')"


def is_v6(owner: str, name: str) -> str:
    return f"{text_of(owner, name)}.contains(':')"


def has_entries(owner: str, name: str) -> str:
    return f"{is_a('list', owner, name)} && {owner}.{name}.size() > 0"
