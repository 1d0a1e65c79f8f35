"""The status page as one HTML document: no script, nothing external, readable without its style sheet."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence

from dranet.driver.recent_events import RecentEvent
from dranet.driver.status_page.content import Content
from dranet.driver.status_page.markup import EMPTY, Html, ago, element, join, show_time, table
from dranet.driver.status_page.tables import find_holders, show_claims, show_devices
from dranet.model.findings import Finding, Severity
from dranet.pictures.boxes import Mark, Picture, build_picture
from dranet.pictures.layout import PAGE, PHONE, Measures, lay_out
from dranet.pictures.summary import Look, choose_hardware, summarize
from dranet.pictures.svg import INLINE_STYLE, render_inline

_PAGE = """
:root{--ground:#ffffff;--text:#1c232b;--muted:#515c67;--line:#d5dbe3;--card:#f5f7fa;--link:#0b57b0;
--good:#17663a;--bad:#b3261e;--good-ground:#dff3e6;--bad-ground:#fde4e1}
@media (prefers-color-scheme:dark){:root{--ground:#0f141a;--text:#e8edf2;--muted:#a7b2bd;--line:#2f3944;
--card:#171e26;--link:#86bbff;--good:#7ddca0;--bad:#ffa198;--good-ground:#12301f;--bad-ground:#431a17}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0 auto;padding:16px;max-width:1340px;background:var(--ground);color:var(--text);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",Arial,sans-serif;overflow-wrap:anywhere}
h1{margin:0;font-size:1.6rem;line-height:1.2}
h2{margin:2rem 0 .5rem;font-size:1.2rem;line-height:1.3}
p{margin:.5rem 0}
a{color:var(--link)}
.skip{position:absolute;left:16px;top:0;padding:4px 8px;background:var(--ground);transform:translateY(-150%)}
.skip:focus{transform:none}
.badge{display:inline-block;padding:2px 10px;border-radius:6px}
.badge.good{background:var(--good-ground)}
.badge.bad{background:var(--bad-ground)}
.good{color:var(--good)}
.bad{color:var(--bad)}
span.good,span.bad{font-weight:600}
span{overflow-wrap:break-word}
.empty,caption,figcaption,small{color:var(--muted)}
small{display:block;font-size:.85em;line-height:1.4}
.facts,nav ul{list-style:none;margin:.5rem 0;padding:0;display:flex;flex-wrap:wrap;gap:4px 16px}
nav a{display:inline-block;padding:4px 0}
.facts{color:var(--muted)}
footer{margin-top:2rem;border-top:1px solid var(--line);color:var(--muted)}
figure{margin:0}
figcaption,caption{font-size:.9rem;text-align:left;padding:4px 0}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
.scroll svg{display:block;margin:0 auto}
.scroll .desk{max-width:100%;height:auto}
.scroll .wide{min-width:1100px}
.scroll .phone{display:none}
table{border-collapse:collapse;width:100%}
th,td{min-width:6rem}
tbody th{min-width:9rem}
.devices{list-style:none;margin:0;padding:0}
.devices li+li{margin-top:6px}
th,td{text-align:left;vertical-align:top;padding:6px 12px 6px 0;font-weight:400}
thead th{font-size:.85rem;color:var(--muted);border-bottom:1px solid var(--line);overflow-wrap:normal}
tbody th{font-weight:600}
tbody th small{font-weight:400}
tbody tr+tr>*{border-top:1px solid var(--line)}
@media (max-width:920px){
table,caption,tbody,tr,tbody th,td{display:block}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
tbody tr{margin:8px 0;padding:8px 12px;background:var(--card);border:1px solid var(--line);border-radius:8px}
tbody tr+tr>*{border-top:0}
tbody th{padding:2px 0 6px;min-width:0}
td{display:grid;min-width:0;grid-template-columns:6.5rem minmax(0,1fr);column-gap:8px;padding:2px 0}
td.none{display:none}
td::before{content:attr(data-label);color:var(--muted);font-size:.85rem;line-height:1.75}
}
@media (max-width:640px){
.scroll .desk{display:none}
.scroll .phone{display:block;max-width:100%;height:auto}
.scroll{border:0}
}
@media print{.skip,nav{display:none}}
"""

STYLE = _PAGE + INLINE_STYLE


_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""``Content-Security-Policy``: markup injected into the page could neither run nor load anything."""

MOST_EVENTS = 100

_PICTURES = {"desk": PAGE, "phone": PHONE}
"""The width of the screen selects one."""
WIDE = 1100
"""Pixels. A wider desktop picture scrolls instead of shrinking."""
_TITLES = {
    "ready": "Readiness",
    "claims": "Claims",
    "topology": "Topology",
    "devices": "Devices",
    "events": "Recent events",
    "findings": "Surroundings",
}


def render(content: Content) -> bytes:
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
    yield _section("events", _recent_events(content.recent_events, content.now))
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
        element("p", "As of the time at the top: reload the page to see what is new."),
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
    shown = f"{summarize(choose_hardware(look), shows_all=True)}; {held} held by pods; {faulty} with faults."
    caption = element(
        "figcaption", f"Where GPUs and NICs sit: {shown} The table of devices has the same in words."
    )
    # On a narrow screen the region scrolls, also by keyboard.
    box = element(
        "div", *pictures, class_="scroll", role="region", aria_label="Picture of the topology", tabindex="0"
    )
    return element("figure", box, caption)


def _draw(picture: Picture, measures: Measures, name: str) -> Html:
    drawing = lay_out(picture, measures)
    return Html(render_inline(drawing, f"{name} wide" if drawing.width > WIDE else name))


def _recent_events(events: Sequence[RecentEvent], now: float) -> Html:
    if not events:
        return element(
            "p",
            "Nothing has happened yet: what the driver reports as Events also appears here.",
            class_="empty",
        )
    rows = [
        (
            show_time(item.at, now),
            element("span", item.reason, class_="bad" if item.kind == "Warning" else ""),
            item.about,
            f"{item.text} ({item.count} times)" if item.count > 1 else item.text,
        )
        for item in reversed(events[-MOST_EVENTS:])
    ]
    shown = table(
        "The newest first; kept in memory since the driver started", ("When", "What", "About", "Words"), rows
    )
    return join([shown, _left_out(len(events) - MOST_EVENTS, "older ones: kubectl get events -A")])


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
            ". ".join(filter(None, (finding.matters, finding.fix))),
        )
        for finding in findings
    ]
    header = ("Part", "Severity", "Seen", "Why it matters, and what helps")
    shown = table(
        "What the API server, the kubelet and the runtime can do, as seen by the driver", header, rows
    )
    hint = element("p", "More is examined by ", element("code", "dranet doctor"), ".", class_="empty")
    return join([shown, hint])
