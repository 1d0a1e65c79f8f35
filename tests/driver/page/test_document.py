"""The page as a document: nothing in it can become markup, says what is normal, and is quick and small."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.driver.publish import View
from dranet.driver.reports.reporter import LONGEST_TEXT, MOST_KEPT, RecentEvent, RecentEvents
from dranet.driver.start_gate import StartGate
from dranet.driver.status_page import document
from dranet.driver.status_page.content import Content
from dranet.driver.status_page.document import Html, ago, element, render, table, text
from dranet.driver.status_page.source import PageSource
from dranet.model.device import Bandwidth
from dranet.terminal import printable
from tests.driver.page import contents
from tests.support.waiting import until


class Reader(HTMLParser):
    """The elements of a document, and its text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(content: Content) -> Reader:
    return Reader(render(content).decode())


ODD = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("<>&\"'/=;`- \n\x00]!")), max_size=40)


@given(ODD, ODD)
def test_no_text_breaks_out_of_its_element_or_attribute(words: str, value: str) -> None:
    reader = Reader(element("p", words, title=value))
    assert [tag for tag, _ in reader.tags] == ["p"]
    assert "".join(reader.text) == printable(words)
    assert reader.tags[0][1].get("title", "") == printable(value)


@settings(max_examples=20)
@given(ODD)
def test_a_page_has_the_same_elements_whatever_things_are_called(words: str) -> None:
    name = words + "x"  # an empty one may leave an element out
    plain, odd = read(contents.hostile("x")), read(contents.hostile(name))
    assert {tag for tag, _ in odd.tags} == {tag for tag, _ in plain.tags}
    assert not [tag for tag, _ in odd.tags if tag in ("script", "img", "iframe", "object", "form", "base")]
    plain_attributes = {key for _, attributes in plain.tags for key in attributes}
    assert {key for _, attributes in odd.tags for key in attributes} <= plain_attributes


def test_markup_is_only_what_was_made_as_such() -> None:
    assert text("<b>") == "&lt;b&gt;"
    assert text(Html("<b>")) == "<b>"
    assert element("td", "a", Html("<br>"), data_label='"') == '<td data-label="&quot;">a<br></td>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert "<caption>&amp;</caption>" in table("&", ("A", "B"), [("1", "")])


def test_an_empty_node_says_what_is_normal() -> None:
    shown = " ".join(read(contents.empty()).text)
    assert "No claims are prepared on this node. That is normal" in shown
    assert "No device of this node has a place in the hardware" in shown
    assert "No events yet" in shown
    assert "not ready: runtime" in shown


def test_a_full_node_says_who_has_what_how_near_and_what_is_wrong() -> None:
    shown = " ".join(read(contents.full()).text)
    for words in (
        "train/llama-worker-0-nics",
        " WorseThanPossible: SYS to gpu-0000-52-00-0: the link between NUMA nodes; pci-0000-29-00-1 is NODE",
        "pci-0000-40-00-0 is PIX to it and held by claim train/llama-worker-2-nics",
        "link-down: enp79s0np0 has no carrier",
        "no: it is the node's uplink: eno3 carries a default route",
        "10 virtual links are not offered and not shown: dranet devices --all lists them.",
    ):  # fmt: skip
        assert words in shown


def test_what_has_left_the_node_has_one_state_and_what_is_here_that_of_its_link() -> None:
    page = render(contents.full()).decode()
    devices = page[page.index('id="devices"') :]
    rows = re.findall(
        r'scope="row"[^>]*>(?:<span[^>]*>)?([^<]*).*?data-label="State"><div>(\w[\w ]*)', devices
    )
    states = {device: state.strip() for device, state in rows}
    assert states["pci-0000-18-00-0"] == states["gpu-0000-1b-00-0"] == "in a pod"
    assert states["pci-0000-40-00-0"] == "up", "its pod waits"


def test_the_header_has_the_documentations_word_for_the_instance() -> None:
    shown = " ".join(read(contents.full()).text)
    assert "instance active" in shown
    assert "on-duty" not in shown.partition("Parts of the driver")[0]


def test_bandwidth_is_told_of_the_device_and_of_the_claim_that_has_it() -> None:
    content = contents.full()
    (seen, *others) = content.claims
    (prepared, *rest) = seen.record.devices
    devices = (replace(prepared, bandwidth=20 * 10**9), *rest)
    port = Bandwidth(100 * 10**9, 10**9)
    decisions = tuple(
        replace(one, device=replace(one.device, bandwidth=port))
        if one.device.name == prepared.device.name
        else one
        for one in content.decisions
    )
    claims = (replace(seen, record=replace(seen.record, devices=devices)), *others)
    page = render(replace(content, decisions=decisions, claims=claims)).decode()
    assert page.count("bandwidth: 20/100 Gb/s allocated") == 1
    assert "20 Gb/s)" in page


def test_claims_that_cannot_be_read_are_told() -> None:
    assert "2 records cannot be read" in " ".join(read(replace(contents.empty(), unreadable_claims=2)).text)


@pytest.mark.parametrize(
    ("seconds", "words"), [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (93_000, "1 d 1 h")]
)
def test_how_long_ago_is_told_in_two_units(seconds: float, words: str) -> None:
    assert ago(1000.0, 1000.0 + seconds) == words


class Known:
    """The services of a driver that has this content, as :class:`StatusSources` has them."""

    def __init__(self, content: Content, gate: StartGate) -> None:
        self.content, self.gate = content, gate
        offered = {d.device.name: d.device for d in content.decisions if d.published}
        not_offered = {d.device.name: d for d in content.decisions if not d.published}
        self.inventory = SimpleNamespace(view=View(offered, not_offered=not_offered, facts=content.facts))
        self.leadership = SimpleNamespace(state=content.driver.state)
        self.readiness = SimpleNamespace(read=lambda: content.parts)
        records = [seen.record for seen in content.claims]
        self.store = SimpleNamespace(get_all=lambda: records, quarantine_size=0, trouble=None)
        self.health = SimpleNamespace(facts=[])
        self.verdicts = SimpleNamespace(get_latest=lambda _: {})
        self.recent_events = SimpleNamespace(list=list)
        self.read_findings = list

    @property
    def settings(self) -> SimpleNamespace:
        return SimpleNamespace(node_name=self.content.driver.node, driver_name=self.content.driver.name)


async def test_a_large_node_is_shown_without_holding_up_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 links, 300 claims. The page is small enough for a phone, and another thread writes it."""
    writers: list[threading.Thread] = []
    write = document.render

    def note(content: Content) -> bytes:
        writers.append(threading.current_thread())
        return write(content)

    monkeypatch.setattr(document, "render", note)
    known = Known(contents.large(), StartGate(tmp_path))
    response = await PageSource(known).read()  # type: ignore[arg-type]
    assert response.status == "200 OK"
    assert len(response.body) < 300_000
    assert len(writers) == 1
    assert writers[0] is not threading.current_thread()


async def test_who_asks_in_a_loop_has_no_page_written_for_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Known(contents.full(), StartGate(tmp_path))
    source = PageSource(known)  # type: ignore[arg-type]
    first = await source.read()
    known.content = replace(known.content, driver=replace(known.content.driver, node="another"))
    for _ in range(20):
        assert await source.read() is first
    monkeypatch.setattr("dranet.driver.status_page.source.KEPT_SECONDS", 0)
    monkeypatch.setattr("dranet.driver.status_page.source.RESTS", 0)
    source = PageSource(known)  # type: ignore[arg-type]
    await source.read()
    await until(lambda: source._shown is None)


async def test_a_claim_is_attached_since_its_devices_were_verified(tmp_path: Path) -> None:
    gate = StartGate(tmp_path)
    content = contents.full()
    gate.note_attached("claim-0", "/run/netns/x")
    since = gate.read_attached_at("claim-0")
    assert since is not None
    source = PageSource(Known(content, gate), wall=lambda: since + 120)  # type: ignore[arg-type]
    shown = " ".join(Reader((await source.read()).body.decode()).text)
    assert "containers wait until" in shown, "nobody has verified claim-1"
    assert gate.read_attached_at("nobody") is None


# -- what was told lately --------------------------------------------------------------------------------


def test_the_same_again_counts_up_and_old_things_go() -> None:
    recent_events = RecentEvents()
    for _ in range(3):
        recent_events.add("Warning", "Odd", "node n", "words")
    assert [(item.text, item.count) for item in recent_events.list()] == [("words", 3)]
    for number in range(MOST_KEPT + 5):
        recent_events.add("Normal", "Word", "pod a/b", f"{number} " + "x" * 2 * LONGEST_TEXT)
    kept = recent_events.list()
    assert len(kept) == MOST_KEPT
    assert all(len(item.text) <= LONGEST_TEXT for item in kept)
    assert kept[-1].text.startswith(str(MOST_KEPT + 4))


def test_a_long_list_shows_the_newest() -> None:
    many = tuple(RecentEvent(contents.NOW, "Normal", "R", "a", f"word {n}") for n in range(MOST_KEPT))
    shown = " ".join(read(replace(contents.empty(), recent_events=many)).text)
    assert "word 199" in shown
    assert "word 99 " not in shown
    assert "and 100 older ones" in shown


# -- what the daemon loads -------------------------------------------------------------------------------

_LOADED = (
    "import sys, dranet.driver.app; print(*(name for name in sys.modules if name.startswith('dranet.')))"
)


@pytest.mark.process
def test_the_idle_daemon_has_loaded_nothing_that_only_a_page_needs() -> None:
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not [name for name in loaded if name.startswith("dranet.pictures")]
    pages = {name for name in loaded if name.startswith("dranet.driver.status_page.")}
    assert pages == {f"dranet.driver.status_page.{name}" for name in ("content", "source")}
