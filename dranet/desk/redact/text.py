"""Redact texts other than a capture: what a support bundle is made of, from JSON to kernel messages.

Three passes over each text. Secrets go for good: tokens, keys, passwords, whatever is long and random. Names
of things that people name (pods, claims, nodes, hosts) become ``pod-3f2a91c4``: the same name the same word
in all texts of one bundle, made with a key that is not kept, so that names cannot be tried until one
fits. Addresses and hardware identifiers are replaced as in a capture, together with it (``model.redact``).
Where it is not clear what something is, it goes: a reader loses less than an owner.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from dranet.desk.redact.capture import redact_with
from dranet.model.facts import NodeFacts

REMOVED = "[removed]"

PLAIN_NAMES = frozenset(
    {
        "default",
        "kube-system",
        "kube-public",
        "kube-node-lease",
        "dranet-system",
        "dranet",
        "dra.net",
        "localhost",
    }
)
"""Names that every cluster has: they identify nothing, and without them sentences would have holes."""

_OPEN = r"(?<![0-9A-Za-z])"
_CLOSE = r"(?![0-9A-Za-z])"

_QUOTED = r"(?<=\\\")(?:(?!\\\").)+|(?<=(?<!\\)\")(?:\\.|[^\"\\\n])+|(?<=')[^'\n]+"
"""Text between quotes, also within a JSON string."""
_NO_TEXT = r"\[removed\]|(?:null|true|false)\b|[\[{][\[{\s]*(?:[\"\]}\d]|$)"
"""Values of JSON that are no text or number: they identify nothing, and a list or an object must stay one."""
_ASSIGNED = rf"(\\?[\"']?\s*[=:]\s*\\?[\"']?)(?!{_NO_TEXT})(?:{_QUOTED}|[^\s\"',;}}\\]+)"
"""The value behind ``name: value``, ``name=value`` and ``"name": "value"``, also within a JSON string."""
_HIDDEN_KEYS = r"token|passw(?:or)?d|passphrase|secret|api[_-]?key|private[_-]?key|credential"
_SERIAL_KEYS = r"serial(?:[ _-]?(?:number|no))?|s/n|sn|asset[ _-]?tag"
_WORD = r"(?<![\w.-])"
"""Where a key can begin: once in each run of such characters, so that the time is linear in the length of
the text."""

_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), REMOVED),
    (re.compile(r"\beyJ[\w-]{5,}(?:\.[\w-]*){0,2}"), REMOVED),  # a JWT, as of a service account
    (re.compile(r"(?i)\b(bearer|basic)(\s+)(?!token\b)[\w~+/.=-]{6,}"), rf"\1\2{REMOVED}"),
    (re.compile(r"(?i)(\bauthorization\\?[\"']?\s*[:=]\s*\\?[\"']?)[^\"'\\\n]+"), rf"\1{REMOVED}"),
    (re.compile(rf"(?i){_WORD}([\w.-]*(?:{_HIDDEN_KEYS})s?){_ASSIGNED}"), rf"\1\2{REMOVED}"),
    (
        re.compile(  # a variable of a container: its name in one field, its value in the next
            rf"(?i)(\"name\":\s*\"[^\"]*(?:{_HIDDEN_KEYS})[^\"]*\",\s*\"value\":\s*\")(?:\\.|[^\"\\])+"
        ),
        rf"\1{REMOVED}",
    ),
    (re.compile(rf"(?i){_WORD}((?:[\w.-]*[_.-])?(?:{_SERIAL_KEYS})){_ASSIGNED}"), rf"\1\2{REMOVED}"),
    (re.compile(r"(?i)(\bserial[ _-]?(?:number|no)\s+|\[SN\]\s*)(?=\S*\d)[^\s\"',;}\\]+"), rf"\1{REMOVED}"),
    (re.compile(r"(?<=://)[^\s/@\"'\\]+@"), f"{REMOVED}@"),  # user and password of a URL
    (
        re.compile(  # base64 of a key; a path has no capitals and digits
            r"(?<![\w+/-])(?=[\w+/-]*[0-9])(?=[\w+/-]*[A-Z])(?=[\w+/-]*[a-z])[\w+/-]{40,}={0,2}(?![\w+/=-])",
            re.ASCII,
        ),
        REMOVED,
    ),
)

_LONG_HEX = re.compile(
    rf"{_OPEN}(?!(?:[0-9a-fA-F]{{16}}){{1,2}}{_CLOSE}|[0-9a-fA-F]{{40}}{_CLOSE})[0-9a-fA-F]{{13,}}{_CLOSE}"
)
"""Identifiers of containers and the like; those of 12, 16, 32 and 40 digits are the capture's."""
_NUMBERS = {
    ".json": re.compile(r'"(?:[^"\\]|\\.)*"|(?P<number>[0-9.eE+-]{12,})'),
    "metrics.txt": re.compile(r"(?m)(?<= )(?P<number>[0-9.eE+-]{12,})$"),
}
"""What is a number by the form of its file is no address, however many digits it has."""
_BREAK = "\x01"
_URL_HOST = re.compile(r"(?:(?<=://)|(?<=\[removed\]@))(?!\[removed\]@)[A-Za-z0-9][\w.-]*[A-Za-z0-9]")
_AT_HOST = re.compile(r"(?<![\w.+-])[\w.+-]+@[A-Za-z0-9][A-Za-z0-9.-]*\.[A-Za-z]{2,}")
_HOME = re.compile(r"(?<=/home/)[^/\s\"']+")
_HOST = re.compile(
    r"(?<![\w./-])[A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9][A-Za-z0-9-]*)+\.[A-Za-z]{2,}(?![\w/-])"
)
"""Three labels or more, the last one of letters: two are as often a file or a setting."""
_DONE = re.compile(r"[a-z]+-[0-9a-f]{8}")
KNOWN_DOMAINS = (
    "k8s.io",
    "kubernetes.io",
    "x-k8s.io",
    "nvidia.com",
    "amd.com",
    "intel.com",
    "cncf.io",
    "dra.net",
    "v1.nri",
    "v1.cri",
    "v1.runtime",
)
"""Names of common software: they do not identify the owner."""


class Redacted(Struct, frozen=True):
    """What may be shown."""

    facts: NodeFacts
    texts: Mapping[str, str]
    counts: Mapping[str, int]
    """How often something was replaced, by what it was."""


def redact_texts(
    facts: NodeFacts, texts: Mapping[str, str], names: Mapping[str, str], key: bytes
) -> Redacted:
    """All texts and the facts, alike in all.

    Args:
        facts: the capture.
        texts: by file name.
        names: what is to be hidden -> what it is (``pod``, ``claim``, ``host``).
        key: random, to be forgotten.
    """
    namer = _Namer(names, key)
    cleaned = {file: _shield(file, namer.clean(text.replace(_BREAK, ""))) for file, text in texts.items()}
    redacted, addressed = redact_with(_clean_facts(facts, namer), list(cleaned.values()))
    shown = (text.replace(_BREAK, "") for text in addressed)
    return Redacted(redacted, dict(zip(cleaned, shown, strict=True)), namer.counts)


def _shield(file: str, text: str) -> str:
    """Numbers broken into pieces, so that none of them has the digits of an address."""
    pattern = next((found for suffix, found in _NUMBERS.items() if file.endswith(suffix)), None)
    return pattern.sub(_break_up, text) if pattern is not None else text


def _break_up(found: re.Match[str]) -> str:
    digits = found[0]
    if not found["number"]:
        return digits
    return _BREAK.join(digits[at : at + 4] for at in range(0, len(digits), 4))


def _clean_facts(facts: NodeFacts, namer: _Namer) -> NodeFacts:
    """Warnings quote anything; the other texts of facts are known by their places."""
    return replace(facts, warnings=tuple(namer.clean(warning) for warning in facts.warnings))


class _Namer:
    """Replaces names and secrets, and counts."""

    def __init__(self, names: Mapping[str, str], key: bytes) -> None:
        self._key = key
        self._names = {name: kind for name, kind in names.items() if name and name not in PLAIN_NAMES}
        self._pattern = _any_of(self._names)
        self.counts: dict[str, int] = {}

    def clean(self, text: str) -> str:
        for pattern, replacement in _SECRETS:
            text, count = pattern.subn(replacement, text)
            self._count("secret", count)
        text = self._replace(_AT_HOST, "user", text)  # before its host has another name
        text = self._replace_names(text)
        text = self._replace(_URL_HOST, "host", text)
        text = self._replace(_HOST, "host", text)
        text = self._replace(_HOME, "user", text)
        return self._replace(_LONG_HEX, "id", text)

    def _replace_names(self, text: str) -> str:
        """Redact twice: a name may only be found where another one was replaced."""
        for _ in range(2):
            text = self._pattern.sub(lambda found: self._rename(found[0], self._names[found[0]]), text)
        return text

    def _replace(self, pattern: re.Pattern[str], kind: str, text: str) -> str:
        return pattern.sub(lambda found: self._rename_unless_known(found[0], kind), text)

    def _rename_unless_known(self, word: str, kind: str) -> str:
        is_known = word in PLAIN_NAMES or REMOVED in word or word.endswith(KNOWN_DOMAINS)
        is_number = not any(character.isalpha() for character in word)
        is_done = _DONE.fullmatch(word) is not None
        return word if is_known or is_number or is_done else self._rename(word, kind)

    def _rename(self, name: str, kind: str) -> str:
        self._count(kind, 1)
        return f"{kind}-{hmac.new(self._key, name.encode(errors='replace'), sha256).hexdigest()[:8]}"

    def _count(self, kind: str, times: int) -> None:
        if times:
            self.counts[kind] = self.counts.get(kind, 0) + times


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Match any of the words, the longest first, where it is a word by itself."""
    longest_first: Sequence[str] = sorted(words, key=lambda word: (-len(word), word))
    return re.compile(f"{_OPEN}(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'}){_CLOSE}")
