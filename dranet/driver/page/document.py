"""The page as one HTML document: no script, nothing from outside, readable without its style sheet."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence

from dranet.driver.doctor.findings import Finding, Severity
from dranet.driver.happenings import Happening
from dranet.driver.page.claims import show_claims
from dranet.driver.page.content import Content
from dranet.driver.page.devices import find_holders, show_devices
from dranet.driver.page.markup import EMPTY, Html, element, join, table
from dranet.driver.page.style import STYLE
from dranet.driver.page.times import ago, show_time
from dranet.pictures.boxes import Mark, Picture, build_picture
from dranet.pictures.hardware import choose_hardware
from dranet.pictures.layout import lay_out
from dranet.pictures.look import Look, summarize
from dranet.pictures.measures import PAGE, PHONE, Measures
from dranet.pictures.svg import render_inline

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""``Content-Security-Policy``: whatever got into the page could neither run nor call anybody."""

MOST_HAPPENINGS = 100

_PICTURES = {"desk": PAGE, "phone": PHONE}
"""One is shown, by the width of the screen."""
WIDE = 1100
"""Pixels from which on the picture of a desk would rather be scrolled than become smaller."""
_TITLES = {
    "ready": "Readiness",
    "claims": "Claims",
    "topology": "Topology",
    "devices": "Devices",
    "events": "Recent events",
    "findings": "Surroundings",
}


def render(content: Content) -> bytes:
    """The whole document."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{content.driver.node} · dranet"),
        element("link", rel="icon", href="data:,"),
        element("style", Html(STYLE)),
    )
    main = element("main", *_sections(content), id="main")
    body = element("body", _header(content), main, _footer())
    page = element("html", head, body, lang="en")
    return f"<!doctype html>\n{page}\n".encode()


def _sections(content: Content) -> Iterator[Html]:
    look = Look(content.facts, content.decisions)
    holders = find_holders(content.claims)
    yield _section("ready", _readiness(content))
    yield _section("claims", show_claims(content))
    yield _section("topology", _picture(content, look, holders))
    yield _section("devices", show_devices(content, look, holders))
    yield _section("events", _happenings(content.happenings, content.now))
    yield _section("findings", _findings(content.findings))


def _section(name: str, *content: str) -> Html:
    return element("section", element("h2", _TITLES[name], id=name), *content, aria_labelledby=name)


def _header(content: Content) -> Html:
    driver = content.driver
    waiting = [name for name, state in content.parts.items() if not state.ready]
    words = f"not ready: {', '.join(waiting)}" if waiting else "ready"
    badge = element("strong", words, class_="badge bad" if waiting else "badge good")
    facts = [
        f"driver {driver.name}",
        f"dranet {driver.version}",
        f"instance {driver.state}",
        f"running for {ago(driver.started_at, content.now)}",
        join(["as of ", show_time(content.now)]),
    ]
    links = [element("a", title, href=f"#{name}") for name, title in _TITLES.items()]
    return element(
        "header",
        element("a", "Skip to the content", href="#main", class_="skip"),
        element("h1", driver.node),
        element("p", badge),
        element("ul", *(element("li", fact) for fact in facts), class_="facts"),
        element("nav", element("ul", *(element("li", link) for link in links)), aria_label="Sections"),
    )


def _footer() -> Html:
    links = ("/metrics", "/readyz?verbose", "/healthz")
    return element(
        "footer",
        element("p", "A picture of the moment that stands at the top: reload the page to see what is new."),
        element("ul", *(element("li", element("a", link, href=link)) for link in links), class_="facts"),
    )


def _readiness(content: Content) -> Html:
    rows = [
        (name, _word(state.ready, "ready", "not ready"), state.detail)
        for name, state in content.parts.items()
    ]
    return table("Parts of the driver; all must be ready", ("Part", "State", "Detail"), rows)


def _word(good: bool, yes: str, no: str) -> Html:
    return element("span", yes if good else no, class_="good" if good else "bad")


def _picture(content: Content, look: Look, holders: Mapping[str, Sequence[str]]) -> Html:
    faults = {name: health.message for name, health in content.health.items() if health.healthy is False}
    marks = {
        name: Mark(", ".join(holders.get(name, ())), faults.get(name, "")) for name in {*holders, *faults}
    }
    picture = build_picture(look, marks=marks)
    pictures = [_draw(picture, measures, name) for name, measures in _PICTURES.items()]
    held, faulty = len(holders), len(faults)
    told = f"{summarize(choose_hardware(look), shows_all=True)}; {held} held by pods; {faulty} with faults."
    caption = element(
        "figcaption", f"Where GPUs and NICs sit: {told} The table of devices has the same in words."
    )
    # The region scrolls by itself where the screen is narrow, by keyboard, too.
    box = element(
        "div", *pictures, class_="scroll", role="region", aria_label="Picture of the topology", tabindex="0"
    )
    return element("figure", box, caption)


def _draw(picture: Picture, measures: Measures, name: str) -> Html:
    drawing = lay_out(picture, measures)
    return Html(render_inline(drawing, f"{name} wide" if drawing.width > WIDE else name))


def _happenings(happenings: Sequence[Happening], now: float) -> Html:
    if not happenings:
        return element(
            "p", "Nothing has been told yet: the driver says here what it tells in Events.", class_="empty"
        )
    rows = [
        (
            show_time(item.at, now),
            element("span", item.reason, class_="bad" if item.kind == "Warning" else ""),
            item.about,
            f"{item.text} ({item.count} times)" if item.count > 1 else item.text,
        )
        for item in reversed(happenings[-MOST_HAPPENINGS:])
    ]
    told = table(
        "The newest first; kept in memory since the driver started", ("When", "What", "About", "Words"), rows
    )
    return join([told, _left_out(len(happenings) - MOST_HAPPENINGS, "older ones: kubectl get events -A")])


def _left_out(count: int, where: str) -> Html:
    return element("p", f"and {count} {where}", class_="empty") if count > 0 else EMPTY


_CLASS = {Severity.OK: "good", Severity.NOTE: "", Severity.WARNING: "bad", Severity.PROBLEM: "bad"}


def _findings(findings: Sequence[Finding]) -> Html:
    if not findings:
        return element("p", "Nothing has been found out yet.", class_="empty")
    rows = [
        (
            finding.part,
            element("span", str(finding.severity), class_=_CLASS[finding.severity]),
            finding.seen,
            ". ".join(filter(None, (finding.matters, finding.mend))),
        )
        for finding in findings
    ]
    header = ("Part", "Severity", "Seen", "Why it matters, and what helps")
    told = table(
        "What the API server, the kubelet and the runtime can do, as seen by the driver", header, rows
    )
    hint = element("p", "More is examined by ", element("code", "dranet doctor"), ".", class_="empty")
    return join([told, hint])
