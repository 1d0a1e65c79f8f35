"""A reader of NCCL's topology files that takes what NCCL's own takes, and no more.

After the rules in ``src/graph/xml.cc``, character by character: names end at a blank, ``/``, ``>`` or a line
break, exactly one blank goes before an attribute, values end at the quote they began with, nothing is
unescaped, elements of other names are skipped, and numbers of elements and lengths are limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_CHARACTERS, MOST_ATTRIBUTES, MOST_ELEMENTS, MOST_BELOW = 254, 16, 256, 32
BELOW = {"": ("system",), "system": ("cpu",), "cpu": ("pci", "nic"), "pci": ("pci", "gpu", "nic", "pcilink")}


class Refused(Exception):
    """NCCL would give up."""


@dataclass
class Element:
    name: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    below: list[Element] = field(default_factory=list)
    closes: bool = False
    stands_alone: bool = False

    def walk(self) -> Iterator[Element]:
        yield self
        for element in self.below:
            yield from element.walk()


class Reader:
    def __init__(self, text: str, version: int = 1) -> None:
        """``version``: what the reader is made for; RCCL's takes 2."""
        self._text, self._at, self._count, self._version = text, 0, 0, str(version)

    def read(self) -> Element:
        root = Element()
        self._load(root, is_root=True)
        (system,) = root.below
        if system.attributes.get("version") != self._version:
            raise Refused("wrong version")
        return system

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise Refused("unexpected end")
        self._at += 1
        return self._text[self._at - 1]

    def _load(self, head: Element, *, is_root: bool = False) -> None:
        while True:
            element = self._element()
            if element is None:
                if is_root:
                    return
                raise Refused(f"unterminated {head.name}")
            if element.closes:
                if is_root or element.name != head.name:
                    raise Refused(f"{head.name} closed by {element.name}")
                return
            if element.name in BELOW.get(head.name, ()):
                head.below.append(element)
                self._count += 1
                if len(head.below) > MOST_BELOW:
                    raise Refused("too many elements below one")
                if self._count > MOST_ELEMENTS:
                    raise Refused("too many elements")
            if not element.stands_alone:
                self._load(element)

    def _element(self) -> Element | None:
        character = " "
        while character in " \n\r":
            if self._at >= len(self._text):
                return None
            character = self._next()
        if character != "<":
            raise Refused(f"expecting <, got {character!r}")
        element = Element()
        element.name, _, last = self._token()
        if not element.name and last == "/":
            element.closes = True
            element.name, _, last = self._token()
            if last != ">":
                raise Refused("trailing text in a closing tag")
            return element
        while last == " ":
            key, value, last = self._token()
            if len(element.attributes) < MOST_ATTRIBUTES:
                element.attributes[key] = value
        if last == "/":
            element.stands_alone = True
            last = self._next()
        if last != ">":
            raise Refused(f"expected >, got {last!r}")
        return element

    def _token(self) -> tuple[str, str, str]:
        """A name with its value, if it has one, and the character behind them."""
        name = ""
        while (character := self._next()) not in " >/\n\r":
            if character == "=":
                value, last = self._value()
                return name, value, last
            name += character
            if len(name) > MOST_CHARACTERS:
                raise Refused("name too long")
        return name, "", character

    def _value(self) -> tuple[str, str]:
        quote = self._next()
        if quote not in "\"'":
            raise Refused("expected a quote")
        value = ""
        while (character := self._next()) != quote:
            value += character
            if len(value) > MOST_CHARACTERS:
                raise Refused("value too long")
        return value, self._next()
