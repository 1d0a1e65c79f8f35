"""The prepared claims on the page: who has what, and how near it is to the GPUs of its pod."""

from __future__ import annotations

from dranet.claims.alignment import build_condition
from dranet.claims.verdict import Verdict
from dranet.driver.page.content import Content, SeenClaim
from dranet.driver.page.markup import EMPTY, Html, element, join, table
from dranet.driver.page.times import ago
from dranet.model.plan import PreparedDevice

MOST_CLAIMS = 300
"""Rows; a node has as many at most."""

_HEADER = ("Claim", "Pod", "State", "Devices, and how near they are to the GPUs of the pod")


def show_claims(content: Content) -> Html:
    """A table with a row for each device, or the word that there is nothing."""
    if not content.claims:
        nothing = element(
            "p",
            "No claims are prepared on this node. That is normal while no pod with a claim "
            "of this driver is here.",
            class_="empty",
        )
        return join([nothing, _unreadable(content.unreadable_claims)])
    ordered = sorted(content.claims, key=lambda seen: (str(seen.record.pod), str(seen.record.claim)))
    rows = [_row(seen, content) for seen in ordered[:MOST_CLAIMS]]
    more = len(ordered) - MOST_CLAIMS
    left = element("p", f"and {more} more: dranet claims lists them", class_="empty") if more > 0 else EMPTY
    caption = "What is prepared for pods on this node"
    return join([table(caption, _HEADER, rows), left, _unreadable(content.unreadable_claims)])


def _unreadable(count: int) -> Html:
    words = f"{count} records cannot be read: dranet claims says why."
    return element("p", words, class_="bad") if count else EMPTY


def _row(seen: SeenClaim, content: Content) -> tuple[str, ...]:
    record = seen.record
    devices = (
        element("li", _device(prepared, content.verdicts.get((record.claim.uid, position))))
        for position, prepared in enumerate(record.devices)
    )
    return (
        str(record.claim),
        str(record.pod),
        _state(seen, content.now),
        element("ul", *devices, class_="devices"),
    )


def _device(prepared: PreparedDevice, verdict: Verdict | None) -> Html:
    """Its name and what it is in the pod; below it the verdict."""
    plan, device = prepared.plan, prepared.device
    host = plan.host.ifname if plan is not None and plan.host is not None else device.ifname
    words = (
        str(device.kind),
        host if host != device.name else "",
        device.rdma_device,
        "admin access" if prepared.admin_access else "",
    )
    told = " · ".join(filter(None, words))
    arrow = f" as {plan.pod_ifname}" if plan is not None and plan.pod_ifname else ""
    name = join([element("b", device.name), arrow, f" ({told})"])
    return name if verdict is None else join([name, _show_verdict(verdict)])


def _state(seen: SeenClaim, now: float) -> Html:
    """Where the claim stands; for how long, where that is known."""
    since = "" if seen.since is None else f"for {ago(seen.since, now)}"
    if not seen.record.plans:
        return join([element("span", "prepared", class_="good"), element("small", "nothing of it moves")])
    if not seen.record.netns_path:
        return join(["waiting", element("small", "for the sandbox of its pod")])
    if seen.is_attached:
        return join([element("span", "attached", class_="good"), element("small", since) if since else EMPTY])
    held = element("small", "its containers are held back until its devices are verified")
    return join([element("span", "incomplete", class_="bad"), held])


_MARKS = {True: "good", False: "bad", None: ""}


def _show_verdict(verdict: Verdict) -> Html:
    condition = build_condition(verdict)
    word = "unknown" if verdict.distance is None or verdict.is_unclear else verdict.distance.name
    told = f" {condition.reason}: {condition.message}" if condition.message else f" {condition.reason}"
    return element("small", element("span", word, class_=_MARKS[condition.status]), told)
