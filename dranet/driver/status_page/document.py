"""The status page as one HTML document: no script, nothing external, readable without its style sheet."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from dranet.claims.alignment import Verdict, build_condition
from dranet.driver.reports.reporter import RecentEvent
from dranet.driver.status_page.content import Content, SeenClaim
from dranet.health import DeviceHealth
from dranet.inventory.held import keep_link_names
from dranet.inventory.policy import Decision
from dranet.model.device import MEGABIT, Device
from dranet.model.findings import Finding, Severity
from dranet.model.plan import PreparedDevice, sum_bandwidth
from dranet.pictures.boxes import Mark, build_picture
from dranet.pictures.layout import PAGE, PHONE, lay_out
from dranet.pictures.summary import (
    DeviceSummarizer,
    DeviceSummary,
    Look,
    bandwidth_text,
    choose_hardware,
    name_hardware,
    speed_text,
    summarize,
)
from dranet.pictures.svg import INLINE_STYLE, render_inline
from dranet.terminal import printable


class Html(str):
    """Markup that needs no escaping."""

    __slots__ = ()


EMPTY = Html("")
_VOID = frozenset({"meta", "link", "br"})


def text(words: str) -> Html:
    return words if isinstance(words, Html) else Html(escape(printable(words)))


def join(parts: Iterable[str], between: str = "") -> Html:
    return Html(text(between).join(map(text, parts)))


def element(name: str, /, *content: str, **attributes: str) -> Html:
    """``element("td", "eth0", class_="name", data_label="Link")``; an empty attribute is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items() if value
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(content)}</{name}>")


LONGEST_PIECE = 24
"""Characters. A longer one may be broken anywhere, so that a table still fits its page."""


def name(words: str) -> Html:
    """A name that is broken after ``-``, ``/`` and ``.`` only."""
    is_short = max(map(len, re.split(r"(?<=[-/. ])", words))) <= LONGEST_PIECE
    return element("span", words, class_="name") if is_short else text(words)


def note(words: str) -> Html:
    return element("p", words, class_="empty")


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table on a desktop, cards on a phone. Roles are repeated because ``display: block`` removes them from
    the elements; the first cell names the row."""
    heads = (element("th", words, scope="col", role="columnheader") for words in header)
    head = element("thead", element("tr", *heads, role="row"), role="rowgroup")
    body = element("tbody", *(_row(header, row) for row in rows), role="rowgroup")
    return element("table", element("caption", caption), head, body, role="table")


def _row(header: Sequence[str], cells: Sequence[str]) -> Html:
    first, *rest = zip(header, cells, strict=True)
    title = element("th", first[1], scope="row", role="rowheader")
    others = (
        element(
            "td", element("div", cell or "-"), class_="" if cell else "none", role="cell", data_label=label
        )
        for label, cell in rest
    )
    return element("tr", title, *others, role="row")


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def ago(then: float, now: float) -> str:
    """``3 h 20 min``: the two largest units; ``12 s`` below a minute."""
    left = max(int(now - then), 0)
    if left < 60:
        return f"{left} s"
    parts = []
    for seconds, unit in _UNITS:
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def show_time(then: float, now: float | None = None) -> Html:
    """Show the time in UTC; with ``now`` also how long ago it was."""
    moment = datetime.fromtimestamp(then, UTC)
    exact = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    shown = element("time", exact, datetime=moment.isoformat(timespec="seconds"))
    return shown if now is None else join([shown, f" ({ago(then, now)} ago)"])


MOST_DEVICES = 256
"""Rows. Nodes have fewer hardware devices, but some offer hundreds of software links."""

_DEVICES_HEADER = ("Device", "Link", "Place", "Speed", "State", "Offered", "Pod")


def find_holders(claims: Sequence[SeenClaim]) -> Mapping[str, Sequence[str]]:
    holders: dict[str, list[str]] = defaultdict(list)
    for seen in claims:
        for prepared in seen.record.devices:
            if not prepared.admin_access:
                holders[prepared.device.name].append(str(seen.record.pod))
    return holders


def show_devices(content: Content, look: Look, holders: Mapping[str, Sequence[str]]) -> Html:
    shown = choose_hardware(look)
    hidden = len(look.inventory) - len(shown)
    if not shown:
        words = "No device of this node has a place in the hardware, and none is offered."
        return join([note(words), _software(hidden)])
    important_first = sorted(shown, key=lambda one: not (one.published or one.device.name in holders))
    names, reader = name_hardware(look), DeviceSummarizer(look.facts)
    allocated = sum_bandwidth(seen.record for seen in content.claims)
    here = {link.ifname for link in content.facts.links}
    left = holders.keys() - {one.device.name for one in shown if one.device.ifname in here}

    def state(device: Device) -> Html:
        link = "in a pod" if device.name in left else reader.read(device).state
        return _device_state(link, content.health.get(device.name))

    rows = [
        _device_row(
            decision,
            names.get(decision.device.name, ""),
            reader.read(decision.device),
            state(decision.device),
            holders,
            allocated,
        )
        for decision in important_first[:MOST_DEVICES]
    ]
    devices = table(f"{summarize(shown, shows_all=True)}.", _DEVICES_HEADER, rows)
    return join(
        [devices, _left_out(len(shown) - MOST_DEVICES, "more: dranet devices lists them"), _software(hidden)]
    )


def _left_out(count: int, where: str) -> Html:
    return note(f"and {count} {where}") if count > 0 else EMPTY


def _software(count: int) -> Html:
    if not count:
        return EMPTY
    words = "1 virtual link is" if count == 1 else f"{count} virtual links are"
    return note(f"{words} not offered and not shown: dranet devices --all lists them.")


def _device_row(
    decision: Decision,
    short_name: str,
    summary: DeviceSummary,
    state: Html,
    holders: Mapping[str, Sequence[str]],
    allocated: Mapping[str, int],
) -> tuple[str, ...]:
    device = decision.device
    second = " · ".join(filter(None, (short_name, str(device.kind), summary.model)))
    numa = "" if device.numa_node is None else f"NUMA {device.numa_node}"
    return (
        join([name(device.name), element("small", second)]),
        join(map(name, filter(None, (device.ifname, device.rdma_device))), " · "),
        " · ".join(filter(None, (device.pci_address, numa))),
        join([summary.rate or summary.speed, _device_bandwidth(device, allocated.get(device.name, 0))]),
        state,
        "yes" if decision.published else f"no: it {decision.reason or 'is not offered'}",
        join(map(name, holders.get(device.name, ())), ", "),
    )


def _device_bandwidth(device: Device, allocated: int) -> Html:
    words = bandwidth_text(device.bandwidth, allocated)
    return element("small", f"bandwidth: {words} allocated") if words else EMPTY


def _word(good: bool, yes: str, no: str) -> Html:
    return element("span", yes if good else no, class_="good" if good else "bad")


def _device_state(link: str, health: DeviceHealth | None) -> Html:
    if health is None or (health.healthy is None and not health.message):
        return join([link])
    state = "health unknown" if health.healthy is None else _word(health.healthy, "healthy", "unhealthy")
    message = element("small", health.message) if health.message else EMPTY
    return join([link, " · " if link else "", state, message])


MOST_CLAIMS = 300
"""Rows; a node has fewer."""

_CLAIMS_HEADER = ("Claim", "Pod", "State", "Devices")


def show_claims(content: Content) -> Html:
    if not content.claims:
        words = "No claims are prepared on this node. That is normal while no pod with a claim of this driver"
        return join([note(f"{words} is here."), _unreadable(content.unreadable_claims)])
    ordered = sorted(content.claims, key=lambda seen: (str(seen.record.pod), str(seen.record.claim)))
    rows = [_claim_row(seen, content) for seen in ordered[:MOST_CLAIMS]]
    claims = table(
        "Claims of pods on this node, and the PCIe distance of each device to the GPU that it serves",
        _CLAIMS_HEADER,
        rows,
    )
    left = _left_out(len(ordered) - MOST_CLAIMS, "more: dranet prepared lists them")
    return join([claims, left, _unreadable(content.unreadable_claims)])


def _unreadable(count: int) -> Html:
    words = f"{count} records cannot be read: dranet prepared shows why."
    return element("p", words, class_="bad") if count else EMPTY


def _claim_row(seen: SeenClaim, content: Content) -> tuple[str, ...]:
    record = seen.record
    devices = (
        element("li", _claimed_device(prepared, content.verdicts.get((record.claim.uid, position))))
        for position, prepared in enumerate(record.devices)
    )
    return (
        name(str(record.claim)),
        name(str(record.pod)),
        _claim_state(seen, content.now),
        element("ul", *devices, class_="devices"),
    )


def _claimed_device(prepared: PreparedDevice, verdict: Verdict | None) -> Html:
    plan, device = prepared.plan, prepared.device
    host = plan.host.ifname if plan is not None and plan.host is not None else device.ifname
    words = (
        str(device.kind),
        host if host != device.name else "",
        device.rdma_device,
        "admin access" if prepared.admin_access else "",
        "" if prepared.bandwidth is None else speed_text(prepared.bandwidth // MEGABIT),
    )
    kind = " · ".join(filter(None, words))
    arrow = f" as {plan.pod_ifname}" if plan is not None and plan.pod_ifname else ""
    shown = join([element("b", device.name), arrow, f" ({kind})"])
    return shown if verdict is None else join([shown, _show_verdict(verdict)])


def _claim_state(seen: SeenClaim, now: float) -> Html:
    since = "" if seen.since is None else f"for {ago(seen.since, now)}"
    if not seen.record.plans:
        return join([element("span", "prepared", class_="good"), element("small", "nothing of it moves")])
    if not seen.record.netns_path:
        return join(["waiting", element("small", "for the sandbox of its pod")])
    if seen.is_attached:
        return join([element("span", "attached", class_="good"), element("small", since) if since else EMPTY])
    held = element("small", "its containers wait until its devices are verified")
    return join([element("span", "incomplete", class_="bad"), held])


_MARKS = {True: "good", False: "bad", None: ""}


def _show_verdict(verdict: Verdict) -> Html:
    condition = build_condition(verdict)
    word = "unknown" if verdict.distance is None or verdict.is_unclear else verdict.distance.name
    words = f" {condition.reason}: {condition.message}" if condition.message else f" {condition.reason}"
    return element("small", element("span", word, class_=_MARKS[condition.status]), words)


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
summary{cursor:pointer;padding:4px 0}
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
td{display:grid;min-width:0;grid-template-columns:4.5rem minmax(0,1fr);column-gap:8px;padding:2px 0}
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
    records = [seen.record for seen in content.claims]
    look = Look(content.facts, tuple(keep_link_names(content.decisions, records, content.facts)))
    holders = find_holders(content.claims)
    yield _section("claims", show_claims(content))
    yield _section("topology", _picture(content, look, holders))
    yield _section("devices", show_devices(content, look, holders))
    yield _section("events", _recent_events(content.recent_events, content.now))
    yield _section("findings", _findings(content.findings))


def _section(name: str, *content: str) -> Html:
    return element("section", element("h2", _TITLES[name], id=name), *content, aria_labelledby=name)


_ROLES = {"on-duty": "active"}
"""The metric's label is older than the word of the documentation."""


def _header(content: Content) -> Html:
    driver = content.driver
    waiting = [name for name, state in content.parts.items() if not state.ready]
    words = f"not ready: {', '.join(waiting)}" if waiting else "ready"
    badge = element("strong", words, class_="badge bad" if waiting else "badge good")
    readiness = element(
        "details", element("summary", badge), _readiness(content), open="open" if waiting else ""
    )
    facts = [
        f"driver {driver.name}",
        f"dranet {driver.version}",
        f"instance {_ROLES.get(driver.state, driver.state)}",
        f"running for {ago(driver.started_at, content.now)}",
        join(["as of ", show_time(content.now)]),
    ]
    links = [element("a", title, href=f"#{name}") for name, title in _TITLES.items()]
    return element(
        "header",
        element("a", "Skip to the content", href="#main", class_="skip"),
        element("h1", driver.node),
        readiness,
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


def _picture(content: Content, look: Look, holders: Mapping[str, Sequence[str]]) -> Html:
    faults = {name: health.message for name, health in content.health.items() if health.healthy is False}
    marks = {
        name: Mark(", ".join(holders.get(name, ())), faults.get(name, "")) for name in {*holders, *faults}
    }
    picture = build_picture(look, marks=marks)
    drawings = {name: lay_out(picture, measures) for name, measures in _PICTURES.items()}
    pictures = [
        Html(render_inline(drawing, f"{name} wide" if drawing.width > WIDE else name))
        for name, drawing in drawings.items()
    ]
    held, faulty = len(holders), len(faults)
    shown = f"{summarize(choose_hardware(look), shows_all=True)}; {held} held by pods; {faulty} with faults."
    caption = element(
        "figcaption", f"GPUs and NICs by their place: {shown} The table below shows the same as text."
    )
    # On a narrow screen the region scrolls, also by keyboard.
    box = element(
        "div", *pictures, class_="scroll", role="region", aria_label="Picture of the topology", tabindex="0"
    )
    return element("figure", box, caption)


def _recent_events(events: Sequence[RecentEvent], now: float) -> Html:
    if not events:
        return note("No events yet. Events that the driver reports also appear here.")
    rows = [
        (
            show_time(item.at, now),
            element("span", item.reason, class_="bad" if item.kind == "Warning" else ""),
            name(item.about),
            f"{item.text} ({item.count} times)" if item.count > 1 else item.text,
        )
        for item in reversed(events[-MOST_EVENTS:])
    ]
    shown = table(
        "The newest first; kept in memory since the driver started",
        ("Time", "Reason", "Object", "Message"),
        rows,
    )
    return join([shown, _left_out(len(events) - MOST_EVENTS, "older ones: kubectl get events -A")])


_CLASS = {Severity.OK: "good", Severity.NOTE: "", Severity.WARNING: "bad", Severity.PROBLEM: "bad"}


def _findings(findings: Sequence[Finding]) -> Html:
    if not findings:
        return note("No findings yet.")
    rows = [
        (
            finding.part,
            element("span", str(finding.severity), class_=_CLASS[finding.severity]),
            finding.seen,
            ". ".join(filter(None, (finding.matters, finding.fix))),
        )
        for finding in findings
    ]
    header = ("Part", "Severity", "Finding", "Advice")
    shown = table(
        "What the API server, the kubelet and the runtime can do, as seen by the driver", header, rows
    )
    hint = element("p", element("code", "dranet doctor"), " checks more.", class_="empty")
    return join([shown, hint])
