"""Messages that the pages for troubleshooting quote are in the driver: people search for what they see."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.documents.blocks import REPOSITORY

PAGES = [
    REPOSITORY / "docs" / page
    for page in ("operations/troubleshooting.md", "reference/messages.md", "reference/reasons.md")
]
QUIET = {"pb", "testbed"}
"""Rooms of which nothing is seen on a cluster."""
OF_OTHERS = """
device class X does not exist | DRA driver dra.net is not registered | rpc error: code = Unavailable
NodePrepareResources failed for ResourceClaim CLAIM: | no such file or directory | No space left on device
insufficient quota to match these scopes
"""
"""Of Kubernetes, the runtime and the kernel."""

PUT_TOGETHER = """
config[X] (from DeviceClass X).parameters.policy | selector X of DeviceClass dranet-gpu leaves none
wait until X/X is given back | another driver (pid X) holds
"""
"""By the driver, of pieces too small to tell them."""

LEAST = 5
"""Words of a quote that is looked for; fewer could be anybody's."""
WORDS = 4
"""So many in a row tell a message from others."""

_CHANGES = re.compile(r"\b(?:N|M|X|POD|CLAIM|NAME|NAMESPACE|UID)\b|\.\.\.|<[^>]*>")


def normalize(text: str) -> str:
    """One line, in which each thing that changes is the same sign."""
    return " ".join(_CHANGES.sub("\0", text).split())


def iter_quotes() -> Iterator[str]:
    """What stands in code font in the first column of a table, and is a sentence's part."""
    text = "\n".join(page.read_text() for page in PAGES)
    for cell in re.findall(r"^\| (.*?) (?<!\\)\| ", text, re.MULTILINE):
        for quote in re.findall(r"`([^`]+)`", cell):
            found = normalize(quote.removeprefix("no: ").removeprefix("warning: ")).strip("\0 :")
            if len(found.replace("\0", "").split()) >= LEAST:
                yield found


@pytest.fixture(scope="module")
def said() -> str:
    """All texts of the driver's code, and those of others that the page quotes."""
    texts = [OF_OTHERS, PUT_TOGETHER]
    for path in (path for path in (REPOSITORY / "dranet").rglob("*.py") if not QUIET & {*path.parts}):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(_read(part) for part in node.values))
            elif isinstance(node, ast.Constant):
                texts.append(_read(node))
    return "\n".join(map(normalize, texts))


def _read(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "\0"


def is_said(quote: str, said: str) -> bool:
    words = quote.split()
    return any(" ".join(words[at : at + WORDS]) in said for at in range(len(words) - WORDS + 1))


def test_what_the_page_quotes_is_said(said: str) -> None:
    quotes = set(iter_quotes())
    assert len(quotes) > 25
    assert {quote for quote in quotes if not is_said(quote, said)} == set()
    assert not is_said("the NIC has gone to lunch", said)
