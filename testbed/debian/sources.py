"""Where the host's own packages come from: its apt sources, read and never changed.

Pure text in, plain values out. The mirror address is whatever the host itself uses (a CI cache, a country
mirror, a proxy), so that no address is written into this repository. Both spellings of sources.list(5)
are read: deb822 stanzas (``*.sources``) and the classic one line per source (``*.list``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_CLASSIC_LINE = re.compile(
    r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)"
)

_TRUST_FIELDS = {"signed-by": "Signed-By", "trusted": "Trusted"}
"""The options about trust; the others (``arch``, ``target``) do not fit a private index."""


@dataclass(frozen=True, slots=True)
class AptSource:
    """One place of binary packages. ``trust`` holds the ``Signed-By`` and ``Trusted`` fields as written."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    trust: Mapping[str, str]

    def stanza(self, suites: Iterable[str], architecture: str) -> str:
        """The same place as a deb822 stanza, for other suites and one architecture."""
        fields = {
            "Types": "deb",
            "URIs": self.uri,
            "Suites": " ".join(suites),
            "Components": "main",
            "Architectures": architecture,
            **self.trust,
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items())


def parse_deb822(text: str) -> tuple[AptSource, ...]:
    """Sources of one ``*.sources`` file; disabled stanzas and source packages are left out."""
    return tuple(source for stanza in re.split(r"\n\s*\n", text) for source in _from_stanza(stanza))


def parse_classic(text: str) -> tuple[AptSource, ...]:
    """Sources of one ``*.list`` file."""
    matches = (_CLASSIC_LINE.fullmatch(line.partition("#")[0].strip()) for line in text.splitlines())
    return tuple(
        AptSource(
            uri=match["uri"],
            suites=(match["suite"],),
            components=tuple(match["components"].split()),
            trust=_trust(dict(_options(match["options"] or ""))),
        )
        for match in matches
        if match
    )


def parse_os_release(text: str) -> Mapping[str, str]:
    """os-release(5): ``ID``, ``VERSION_CODENAME`` and the rest, without their quotes."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}


def find_source(sources: Iterable[AptSource], suite: str) -> AptSource | None:
    """The first source that serves component ``main`` of ``suite``."""
    return next((s for s in sources if suite in s.suites and "main" in s.components), None)


def _from_stanza(stanza: str) -> Iterator[AptSource]:
    fields = _deb822_fields(stanza)
    if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
        return
    for uri in fields.get("uris", "").split():
        yield AptSource(
            uri=uri,
            suites=tuple(fields.get("suites", "").split()),
            components=tuple(fields.get("components", "").split()),
            trust=_trust(fields),
        )


def _deb822_fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            # A key may be written into the stanza itself; its lines must keep their leading blank.
            fields[name] = f"{fields.get(name, '')}\n{line}"
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def _options(text: str) -> Iterator[tuple[str, str]]:
    for option in text.split():
        name, _, value = option.partition("=")
        yield name.lower(), value


def _trust(fields: Mapping[str, str]) -> dict[str, str]:
    return {_TRUST_FIELDS[name]: value for name, value in fields.items() if name in _TRUST_FIELDS}
