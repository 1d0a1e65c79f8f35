"""The claims that are prepared on this node: from the driver's store, and as the kernel has their links;
as text and as a document."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from dranet import files
from dranet.driver.start_gate import StartGate
from dranet.errors import DranetError, NotFoundError, Reason, StoreError
from dranet.kernel.attachment.links import Side, find_link, open_host_side, open_pod_side, read_link
from dranet.kernel.namespaces.netns import open_netns
from dranet.model.cpus import format_cpu_list
from dranet.model.ipam import IpamAnswer
from dranet.model.plan import (
    RECORD_VERSION,
    AttachPlan,
    CpuState,
    DhcpLease,
    PreparedClaim,
    PreparedDevice,
    SetCpuLocality,
    Step,
)
from dranet.store.record_folder import (
    RecordError,
    RecordFolder,
    Row,
    Rows,
    UnreadableRecord,
    decode_row,
    read_row_version,
)
from dranet.terminal import (
    CONTINUED,
    Screen,
    count_of,
    format_table,
    printable,
)


class State(StrEnum):
    """What became of a prepared claim; the command's help explains each."""

    ATTACHED = "attached"
    PREPARED = "prepared"
    WAITING = "waiting"
    INCOMPLETE = "incomplete"
    ORPHANED = "orphaned"
    PLACED = "placed"
    EARLIER_BOOT = "earlier boot"


class LinkPlace(StrEnum):
    POD = "pod"
    HOST = "host"
    GONE = "gone"
    UNKNOWN = "unknown"
    NONE = ""
    """The device has no link that the pod gets."""


class SeenDevice(Struct, frozen=True):
    prepared: PreparedDevice
    place: LinkPlace

    @property
    def host_ifname(self) -> str:
        plan = self.prepared.plan
        return plan.host.ifname if plan is not None and plan.host is not None else self.prepared.device.ifname

    @property
    def pod_ifname(self) -> str:
        return self.prepared.plan.pod_ifname if self.prepared.plan is not None else ""


class SeenClaim(Struct, frozen=True):
    record: PreparedClaim
    state: State
    devices: tuple[SeenDevice, ...]
    gate_open: bool
    """Whether its containers may start."""
    trouble: str = ""
    """Why the kernel could not be asked."""


class NodeClaims(Struct, frozen=True):
    claims: tuple[SeenClaim, ...]
    quarantine: tuple[UnreadableRecord, ...]


def look(state_dir: Path, boot_id: str) -> NodeClaims:
    """Raises NotFoundError where there is no store, StoreError where it may not be read or has records of a
    newer driver."""
    path = state_dir / "claims"
    rows, aside = _read_store(path)
    gate = StartGate(state_dir)
    claims, bad = [], []
    for claim_uid, row in rows.items():
        try:
            claims.append(_see(_decode(path, claim_uid, row), boot_id, gate))
        except RecordError as error:
            bad.append(UnreadableRecord(claim_uid, row.text, str(error)))
    claims.sort(key=lambda seen: (seen.record.claim.namespace, seen.record.claim.name, seen.record.claim.uid))
    return NodeClaims(tuple(claims), (*aside, *bad))


def read_records(state_dir: Path, boot_id: str) -> Iterator[PreparedClaim]:
    """The readable records of this boot. Raises as :func:`look`."""
    path = state_dir / "claims"
    rows, _ = _read_store(path)
    for claim_uid, row in rows.items():
        with suppress(RecordError):
            record = _decode(path, claim_uid, row)
            if record.boot_id == boot_id:
                yield record


def _read_store(path: Path) -> tuple[Rows, list[UnreadableRecord]]:
    folder = RecordFolder(path)
    try:
        files.check_folder(path)
        _, rows = folder.read({})
        return rows, folder.read_unreadable()
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the store {path} does not exist: no driver has run here, or it uses another folder",
            hint="run it on the node or in the driver's pod; --state-dir names the folder",
        ) from error
    except OSError as error:
        hint = files.hint_for(error, otherwise="run it as root, or in the driver's pod")
        raise StoreError(f"store {path}: {error.strerror}", hint=hint) from error


def _decode(path: Path, claim_uid: str, row: Row) -> PreparedClaim:
    if row.failure:
        raise RecordError(row.failure)
    version = read_row_version(row.text)
    if version > RECORD_VERSION:
        raise StoreError(
            f"store {path} has records of version {version}, this dranet knows {RECORD_VERSION}",
            hint="use the dranet of the driver that wrote them",
            reason=Reason.STORE_NEWER,
        )
    return decode_row(claim_uid, row.text)


def _see(record: PreparedClaim, boot_id: str, gate: StartGate) -> SeenClaim:
    is_open = gate.is_open(record.claim.uid)
    if record.boot_id != boot_id:
        return SeenClaim(record, State.EARLIER_BOOT, _placed(record, LinkPlace.UNKNOWN), is_open)
    if not record.plans:
        return SeenClaim(record, State.PREPARED, _placed(record, LinkPlace.NONE), is_open)
    try:
        state, devices = _ask_kernel(record)
    except (DranetError, OSError) as error:
        return SeenClaim(record, State.PLACED, _placed(record, LinkPlace.UNKNOWN), is_open, str(error))
    return SeenClaim(record, state, devices, is_open)


def _placed(record: PreparedClaim, place: LinkPlace) -> tuple[SeenDevice, ...]:
    return tuple(
        SeenDevice(device, place if device.plan and device.plan.pod_ifname else LinkPlace.NONE)
        for device in record.devices
    )


def _ask_kernel(record: PreparedClaim) -> tuple[State, tuple[SeenDevice, ...]]:
    with ExitStack() as stack:
        home = stack.enter_context(open_host_side())
        netns = open_netns(record.netns_path, record.netns_id)
        pod = None
        if netns is not None:
            pod = stack.enter_context(open_pod_side(stack.enter_context(netns)))
        devices = tuple(SeenDevice(device, _find(device.plan, home, pod)) for device in record.devices)
    if not record.netns_path:
        return State.WAITING, devices
    if pod is None:
        return State.ORPHANED, devices
    is_whole = all(seen.place in (LinkPlace.POD, LinkPlace.NONE) for seen in devices)
    return State.ATTACHED if is_whole else State.INCOMPLETE, devices


def _find(plan: AttachPlan | None, home: Side, pod: Side | None) -> LinkPlace:
    if plan is None or not plan.pod_ifname:
        return LinkPlace.NONE
    if plan.host is None:  # a link on top of one that stays
        found = read_link(pod.rtnl, ifname=plan.pod_ifname) if pod is not None else None
        return LinkPlace.POD if found is not None else LinkPlace.GONE
    seen = find_link(plan, plan.host, home, pod)
    if seen is None:
        return LinkPlace.GONE
    return LinkPlace.HOST if seen.side is home else LinkPlace.POD


def find_claims(claims: Sequence[SeenClaim], name: str) -> list[SeenClaim]:
    """The claims that ``name`` names: a claim, its pod, or the UID of either, with ``NAMESPACE/`` or
    ``pod/`` before a name; else the only one of which it is the beginning.

    Raises:
        NotFoundError: none, or the beginning of several.
    """
    pods_only, wanted = name.startswith("pod/"), name.removeprefix("pod/").removeprefix("claim/")
    exact = [seen for seen in claims if wanted in _list_names(seen, pods_only=pods_only)]
    if exact:
        return exact
    begun = [
        seen for seen in claims if any(n.startswith(wanted) for n in _list_names(seen, pods_only=pods_only))
    ]
    if len(begun) == 1:
        return begun
    known = ", ".join(f"{seen.record.claim.namespace}/{seen.record.claim.name}" for seen in begun or claims)
    if begun:
        raise NotFoundError(f"{name} is the beginning of several: {known}")
    raise NotFoundError(
        f"no claim or pod {name} is prepared on this node", hint=f"prepared are {known}" if known else ""
    )


def _list_names(seen: SeenClaim, *, pods_only: bool) -> tuple[str, ...]:
    ref, pod = seen.record.claim, seen.record.pod
    of_pod = (pod.name, f"{pod.namespace}/{pod.name}", pod.uid)
    return of_pod if pods_only else (ref.name, f"{ref.namespace}/{ref.name}", ref.uid, *of_pod)


_GOOD = (State.ATTACHED, State.PREPARED, State.WAITING)


# --- as text --------------------------------------------------------------------------------------------


def draw_claims(node: NodeClaims, screen: Screen, *, is_wide: bool) -> Iterator[str]:
    """A table and the sum."""
    if node.claims:
        yield from _table(node.claims, screen, is_wide=is_wide)
        yield ""
    yield _sum_up(node.claims)
    for row in node.quarantine:
        yield screen.red(f"quarantined: the record of claim {printable(row.claim_uid)}: {printable(row.why)}")


def _table(claims: Sequence[SeenClaim], screen: Screen, *, is_wide: bool) -> Iterator[str]:
    columns = [(name, cell) for name, (cell, is_for_wide) in _COLUMNS.items() if is_wide or not is_for_wide]
    rows = [[cell(seen) for _, cell in columns] for seen in claims]
    first, *blocks = format_table([name for name, _ in columns], rows, screen.columns)
    yield from map(screen.bold, first)
    for seen, block in zip(claims, blocks, strict=True):
        yield from block if seen.state in _GOOD else map(screen.yellow, block)


def _link(seen: SeenDevice) -> str:
    return f"{seen.host_ifname or '?'} -> {seen.pod_ifname}" if seen.pod_ifname else ""


def _state(seen: SeenClaim) -> str:
    text = str(seen.state)
    if seen.state is State.INCOMPLETE:
        away = [device for device in seen.devices if device.place in (LinkPlace.HOST, LinkPlace.GONE)]
        where = [f"{d.pod_ifname} is {'on the host' if d.place is LinkPlace.HOST else 'gone'}" for d in away]
        text = f"{text}: {', '.join(where)}"
    elif seen.state is State.ORPHANED:
        text = f"{text}: its namespace is gone"
    elif seen.trouble:
        text = f"{text}; {seen.trouble}"
    is_odd = seen.gate_open and seen.state not in (State.ATTACHED, State.PREPARED, State.PLACED)
    return f"{text}; its gate is open" if is_odd else text


def _lease(lease: DhcpLease) -> str:
    left = int(lease.obtained_at + lease.lease_seconds - time.time())
    return f"{lease.address} ({f'{left} s left' if left > 0 else 'ended'})"


def _ipam(answer: IpamAnswer) -> str:
    return f"{', '.join(answer.addresses)} of {answer.name} ({answer.source})"


def _gate(seen: SeenClaim) -> str:
    return "open" if seen.gate_open else "closed"


_COLUMNS: Mapping[str, tuple[Callable[[SeenClaim], str], bool]] = {
    "CLAIM": (lambda seen: f"{seen.record.claim.namespace}/{seen.record.claim.name}", False),
    "POD": (lambda seen: seen.record.pod.name, False),
    "DEVICES": (lambda seen: ", ".join(device.prepared.device.name for device in seen.devices), True),
    "LINKS": (lambda seen: ", ".join(filter(None, map(_link, seen.devices))) or "-", False),
    "LEASE": (lambda seen: ", ".join(_lease(p.lease) for p in seen.record.plans if p.lease) or "-", True),
    "IPAM": (lambda seen: ", ".join(_ipam(p.ipam) for p in seen.record.plans if p.ipam) or "-", True),
    "GATE": (_gate, True),
    "SANDBOX": (lambda seen: seen.record.sandbox_id[:13] or "-", True),
    "UID": (lambda seen: seen.record.claim.uid, True),
    "STATE": (_state, False),
}
"""Heading -> its cells, and whether only the wide table has it."""


def _sum_up(claims: Sequence[SeenClaim]) -> str:
    if not claims:
        return "no claim prepared on this node"
    counts = Counter(seen.state for seen in claims)
    counted = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
    return f"{count_of(len(claims), 'claim')} prepared on this node: {counted}"


def draw_details(claims: Sequence[SeenClaim]) -> Iterator[str]:
    for number, seen in enumerate(claims):
        if number:
            yield ""
        record = seen.record
        yield f"claim      {record.claim.namespace}/{record.claim.name}"
        yield f"uid        {record.claim.uid}"
        yield f"pod        {record.pod.namespace}/{record.pod.name} ({record.pod.uid})"
        yield f"state      {_state(seen)}"
        yield f"gate       {_gate(seen)}"
        if record.sandbox_id:
            yield f"sandbox    {record.sandbox_id}"
            yield f"namespace  {record.netns_path} ({record.netns_id or 'maybe a later one'})"
        for device in seen.devices:
            yield f"device     {device.prepared.device.name}, request {device.prepared.request_reference}"
            yield from (f"{CONTINUED}{line}" for line in _iter_device(device))


def _iter_device(seen: SeenDevice) -> Iterator[str]:
    plan = seen.prepared.plan
    if plan is None:
        return
    if plan.pod_ifname:
        yield f"link     {_link(seen)}, now: {_WHERE[seen.place]}"
    if plan.host is not None:
        yield f"host     mac {plan.host.mac}, mtu {plan.host.mtu}"
    if plan.steps:
        yield f"steps    {', '.join(step.step for step in plan.steps)}"
    if plan.lease is not None:
        yield f"lease    {_lease(plan.lease)} of {plan.lease.server}"
    if plan.ipam is not None:
        yield f"ipam     {_ipam(plan.ipam)}"
    if plan.cpus is not None:
        yield from _iter_cpus(plan.steps, plan.cpus)


def _iter_cpus(steps: Sequence[Step], before: CpuState) -> Iterator[str]:
    for step in steps:
        if isinstance(step, SetCpuLocality):
            asked = [name for name in ("irq", "xps", "rps") if getattr(step, name)]
            yield f"cpus     {format_cpu_list(step.cpus)} ({', '.join(asked)})"
    were = ", ".join(f"{count} on {cpus}" for cpus, count in Counter(before.irqs.values()).items())
    if were:
        yield f"         interrupts before: {were}"


_WHERE = {
    LinkPlace.POD: "in the pod",
    LinkPlace.HOST: "on the host",
    LinkPlace.GONE: "nowhere to be found",
    LinkPlace.UNKNOWN: "not known",
}


# --- for programs ---------------------------------------------------------------------------------------


def build_document(node: NodeClaims, claims: Sequence[SeenClaim]) -> dict[str, object]:
    return {
        "claims": [_describe(seen) for seen in claims],
        "quarantined": [{"claimUID": row.claim_uid, "why": row.why, "at": row.at} for row in node.quarantine],
    }


def _describe(seen: SeenClaim) -> dict[str, object]:
    record = seen.record
    return {
        "namespace": record.claim.namespace,
        "name": record.claim.name,
        "uid": record.claim.uid,
        "pod": {"namespace": record.pod.namespace, "name": record.pod.name, "uid": record.pod.uid},
        "state": str(seen.state),
        "gateOpen": seen.gate_open,
        "sandbox": record.sandbox_id,
        "netns": record.netns_path,
        "bootID": record.boot_id,
        "devices": [_describe_device(device) for device in seen.devices],
        "trouble": seen.trouble,
    }


def _describe_device(seen: SeenDevice) -> dict[str, object]:
    plan = seen.prepared.plan
    lease, ipam = plan and plan.lease, plan and plan.ipam
    return {
        "name": seen.prepared.device.name,
        "request": seen.prepared.request_reference,
        "hostLink": seen.host_ifname,
        "podLink": seen.pod_ifname,
        "place": str(seen.place),
        "lease": lease and {"address": lease.address, "ends": lease.obtained_at + lease.lease_seconds},
        "ipam": ipam and {"addresses": list(ipam.addresses), "name": ipam.name, "source": ipam.source},
    }
