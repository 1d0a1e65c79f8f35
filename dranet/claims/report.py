"""What is reported of a claim's devices: entries of its status, and files for its containers.

An entry of ``ResourceClaim.status.devices`` has DraNet's condition types and reasons of success; a failure
carries the reason of its error. An entry replaces the one before (server-side apply owns the whole of it),
so each holds all that is known by then, and what has not happened yet is Unknown.
:mod:`tools.pages.conditions` has every condition.

Each request of a claim has one file of ``DeviceMetadata`` documents (KEP-5304): a stream of JSON objects
with the same content in several API versions, newest first; a reader takes the first version that it knows.
Sources: KEP-5304, and "DRA device metadata in containers" in the Kubernetes documentation (1.37); limits are
those of ``resource.k8s.io/v1``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_interface
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dranet.claims.alignment import Verdict, build_alignment, build_condition
from dranet.errors import DranetError
from dranet.model.attributes import DOMAIN, RDMA_DEVICE
from dranet.model.claim import AllocationResult, Claim, Mount
from dranet.model.device import AttributeValue, DeviceKind
from dranet.model.facts import TABLE_MAIN
from dranet.model.plan import (
    AddRule,
    AttachPlan,
    CreateLink,
    JoinVrf,
    MoveLink,
    MoveRdma,
    PreparedClaim,
    PreparedDevice,
    RequestMetadata,
)
from dranet.model.status import (
    AttachedLink,
    AttachedRoute,
    Condition,
    ConditionReason,
    ConditionType,
    DeviceStatus,
)

JsonObject = Mapping[str, Any]

MAX_IPS = 16
"""``networkData.ips`` of ``resource.k8s.io/v1``; one more and the whole update is refused."""
_READY_REASONS = {
    DeviceKind.NIC: ConditionReason.NETWORK_DEVICE_READY,
    DeviceKind.RDMA: ConditionReason.RDMA_ONLY_DEVICE_READY,
    DeviceKind.GPU: ConditionReason.DEVICE_READY,
}
_PREPARED = Condition(ConditionType.PREPARED, True, ConditionReason.DEVICE_PREPARED)
_BY_THE_LEASE = (ConditionType.CONFIGURED, ConditionType.NETWORK_READY, ConditionType.READY)


def report_prepared(driver: str, prepared: PreparedDevice) -> DeviceStatus:
    """Prepared. A device that has nothing to attach (a GPU, admin access) is ready with that."""
    if prepared.plan is None:
        return _status(driver, prepared, _ready(prepared))
    waiting = (Condition(c.type, None, ConditionReason.WAITING_FOR_POD) for c in _ready(prepared))
    return _status(driver, prepared, waiting)


def report_prepare_failed(result: AllocationResult, error: DranetError) -> DeviceStatus:
    """Prepare refused the claim, for this device or for another one of it."""
    return DeviceStatus(
        driver=result.driver,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        conditions=tuple(_failed(t, error) for t in (ConditionType.PREPARED, ConditionType.READY)),
    )


def find_attached(prepared: PreparedDevice, links: Iterable[AttachedLink]) -> AttachedLink | None:
    """The device's own link among those of its pod; ``None`` for a device without one.

    By its name in the pod too, where no two are alike: links on top of one device all belong to that device.
    """
    if prepared.plan is None or not prepared.plan.pod_ifname:
        return None
    wanted = (prepared.device.name, prepared.plan.pod_ifname)
    return next((link for link in links if (link.device, link.pod_ifname) == wanted), None)


def report_attached(driver: str, prepared: PreparedDevice, link: AttachedLink | None) -> DeviceStatus:
    """The device is in the pod; ``link`` is as read back there, ``None`` for a device without one."""
    if prepared.plan is None:
        return report_prepared(driver, prepared)
    status = replace(_status(driver, prepared, _ready(prepared)), data=build_data(prepared, link))
    if link is None:
        return status
    ips = tuple(dict.fromkeys(link.addresses))[:MAX_IPS]
    return replace(status, interface_name=link.pod_ifname, hardware_address=link.mac, ips=ips)


def add_alignment(status: DeviceStatus, alignment: Verdict) -> DeviceStatus:
    """Add the alignment verdict to the status of an attached device."""
    return _with_alignment(status, [build_condition(alignment)], build_alignment(alignment))


def _with_alignment(
    status: DeviceStatus, conditions: Iterable[Condition], data: JsonObject | None
) -> DeviceStatus:
    known = {**status.data, **({"alignment": data} if data is not None else {})}
    ordered = {key: known[key] for key in DATA_KEYS if key in known}
    return replace(status, conditions=(*status.conditions, *conditions), data=ordered)


def has_alignment(entry: JsonObject, *, certain: bool = False) -> bool:
    """Whether an entry of the claim's status has an alignment verdict; ``certain``: one other than
    Unknown."""
    found = [c for c in entry.get("conditions") or () if c.get("type") == ConditionType.ALIGNED]
    return any(not certain or condition.get("status") in ("True", "False") for condition in found)


def keep_alignment(status: DeviceStatus, entry: JsonObject) -> DeviceStatus:
    """Keep the alignment verdict of the existing entry."""
    found = [c for c in entry.get("conditions") or () if c.get("type") == ConditionType.ALIGNED]
    kept = (
        Condition(
            ConditionType.ALIGNED,
            {"True": True, "False": False}.get(str(c.get("status"))),
            str(c.get("reason") or ""),
            str(c.get("message") or ""),
        )
        for c in found
    )
    data = (entry.get("data") or {}).get("alignment") if found else None
    return _with_alignment(status, kept, data if isinstance(data, dict) else None)


def report_lease_lost(status: DeviceStatus, error: DranetError) -> DeviceStatus:
    """An attached device whose DHCP lease has ended: its address is gone, or never got there."""
    conditions = (_failed(c.type, error) if c.type in _BY_THE_LEASE else c for c in status.conditions)
    return replace(status, conditions=tuple(conditions))


def report_attach_failed(driver: str, prepared: PreparedDevice, error: DranetError) -> DeviceStatus:
    """The attach failed and was undone: every condition that success would set is False."""
    if prepared.plan is None:
        return report_prepared(driver, prepared)
    return _status(driver, prepared, (_failed(condition.type, error) for condition in _ready(prepared)))


def report_released(driver: str, prepared: PreparedDevice, problems: Sequence[str]) -> DeviceStatus:
    """The pod's sandbox has ended, and the node has the device back.

    ``problems`` are the parts of the host state that were not restored: those of this device, and those of
    the claim that name no device.
    """
    if prepared.plan is None:
        return report_prepared(driver, prepared)
    over = [Condition(c.type, False, ConditionReason.DEVICE_RELEASED) for c in _ready(prepared)]
    reason = ConditionReason.HOST_STATE_NOT_RESTORED if problems else ConditionReason.DEVICE_RELEASED
    released = Condition(ConditionType.RELEASED, not problems, reason, "; ".join(problems))
    return _status(driver, prepared, (*over, released))


def report_release_failed(driver: str, prepared: PreparedDevice, error: DranetError) -> DeviceStatus:
    """The pod's sandbox has ended, and the device may still be in its namespace."""
    status = report_released(driver, prepared, ())
    failed = (_failed(c.type, error) if c.type is ConditionType.RELEASED else c for c in status.conditions)
    return replace(status, conditions=tuple(failed))


def _ready(prepared: PreparedDevice) -> tuple[Condition, ...]:
    """Return the conditions of an attached device except Prepared; Ready, the summary, comes last."""
    if prepared.plan is None:
        return (Condition(ConditionType.READY, True, ConditionReason.DEVICE_READY),)
    reason = _READY_REASONS[prepared.device.kind]
    rdma = Condition(ConditionType.RDMA_LINK_READY, True, ConditionReason.RDMA_LINK_READY)
    return (
        Condition(ConditionType.ATTACHED, True, ConditionReason.DEVICE_ATTACHED),
        Condition(ConditionType.CONFIGURED, True, ConditionReason.DEVICE_CONFIGURED),
        *([rdma] if _moves_rdma(prepared) else []),
        Condition(ConditionType.NETWORK_READY, True, reason),
        Condition(ConditionType.READY, True, reason),
    )


def _moves_rdma(prepared: PreparedDevice) -> bool:
    """Whether the RDMA device moves: only plans of exclusive mode have the step."""
    return prepared.plan is not None and any(isinstance(step, MoveRdma) for step in prepared.plan.steps)


def _failed(condition_type: ConditionType, error: DranetError) -> Condition:
    return Condition.failed(condition_type, error.reason, str(error))


def _status(driver: str, prepared: PreparedDevice, conditions: Iterable[Condition]) -> DeviceStatus:
    return DeviceStatus(
        driver=driver,
        pool=prepared.pool,
        device=prepared.device.name,
        share_id=prepared.share_id,
        conditions=(replace(_PREPARED, message=_gpu_access(prepared)), *conditions),
    )


def _gpu_access(prepared: PreparedDevice) -> str:
    """Return how containers get a GPU: with the vendor's libraries, or bare."""
    if prepared.device.kind is not DeviceKind.GPU:
        return ""
    if prepared.vendor_cdi_id:
        return f"given by the vendor's CDI device {prepared.vendor_cdi_id}"
    return "given by its device nodes, without the vendor's libraries: no CDI spec of the vendor has it"


DATA_KEYS = {
    "interfaceName": "the interface in the pod",
    "hostInterfaceName": "the interface on the node: the one that moved, or the one below",
    "type": "`passthrough` (the device itself moved), or `macvlan`, `ipvlan`, `vlan` on top of it",
    "hardwareAddress": "hardware address of the interface in the pod",
    "mtu": "MTU of the interface in the pod, in bytes",
    "rdmaDevice": "the RDMA device that belongs to it",
    "pciAddress": "address of the PCI function",
    "pcieRoot": "the PCIe root above it",
    "numaNode": "the NUMA node that it is on",
    "alignment": "the distance to each GPU of its pod, and the best possible "
    "([table](../guides/alignment.md#in-the-claims-status))",
    "vrf": "the VRF that it joined",
    "ipam": "`name` of the entry of `ipam_file` that the addresses are from, and its `source`",
    "dhcp": "`server` and `leaseSeconds` of the lease that the address is from",
    "routeCount": "routes through it in the pod, without those that the kernel creates",
    "addresses": "all its addresses in CIDR form; `networkData.ips` holds 16",
    "gids": "GIDs of its RDMA ports as they were after the attach",
    "routes": "of each of these routes: `destination`, `gateway` if it has one, and `table` if not main",
    "rules": "policy rules of the device, as read in the pod: `priority`, `table` and what they select",
}
"""Every key with its meaning; ``docs/reference/status.md`` lists them. The last give way first."""


def build_data(prepared: PreparedDevice, link: AttachedLink | None) -> JsonObject:
    """What is known of an attached device, without what is empty."""
    device = prepared.device
    known = {
        "rdmaDevice": (prepared.rdma.pod_name or device.rdma_device) if prepared.rdma.nodes else "",
        "pciAddress": device.pci_address,
        "pcieRoot": device.pcie_root,
        "numaNode": device.numa_node,
        **(_of_plan(prepared.plan) if prepared.plan else {}),
        **(_of_link(link) if link else {}),
    }
    return {key: known[key] for key in DATA_KEYS if known.get(key) not in (None, "", [], {})}


def _of_plan(plan: AttachPlan) -> JsonObject:
    known: dict[str, object] = {}
    for step in plan.steps:
        match step:
            case CreateLink():
                known |= {"type": step.kind, "hostInterfaceName": step.parent_ifname}
            case MoveLink():
                known |= {"type": "passthrough", "hostInterfaceName": plan.host.ifname if plan.host else ""}
            case JoinVrf():
                known["vrf"] = step.name
    if plan.lease is not None:
        known["dhcp"] = {"server": plan.lease.server, "leaseSeconds": plan.lease.lease_seconds}
    if plan.ipam is not None:
        known["ipam"] = {"name": plan.ipam.name, "source": plan.ipam.source}
    return known


def _of_link(link: AttachedLink) -> JsonObject:
    known: JsonObject = {
        "interfaceName": link.pod_ifname,
        "hardwareAddress": link.mac,
        "mtu": link.mtu,
        "addresses": list(link.addresses),
        "gids": list(link.gids),
        "routeCount": len(link.routes) or None,
        "routes": [_describe_route(route) for route in link.routes],
        "rules": [_describe_rule(rule) for rule in link.rules],
    }
    return {**known, "rdmaDevice": link.rdma_device} if link.rdma_device else known


def _describe_route(route: AttachedRoute) -> JsonObject:
    texts = _present(destination=route.destination, gateway=", ".join(route.gateways))
    return texts if route.table == TABLE_MAIN else {**texts, "table": route.table}


def _describe_rule(rule: AddRule) -> JsonObject:
    """With the names of the claim's parameters."""
    texts = _present(
        source=rule.source,
        destination=rule.destination,
        mark="" if rule.mark is None else f"{rule.mark:#x}",
        mask="" if rule.mark is None or rule.mask is None else f"{rule.mask:#x}",
        inputInterface=rule.input_interface,
        outputInterface=rule.output_interface,
    )
    version = {} if rule.source or rule.destination else {"family": f"IPv{rule.family}"}
    return {"priority": rule.priority, "table": rule.table, **texts, **version}


def _present(**texts: str) -> dict[str, str]:
    return {key: text for key, text in texts.items() if text}


KIND = "DeviceMetadata"
API_VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
"""Newest first: Kubernetes 1.37 and 1.36. Their objects differ in nothing but this name."""

CONTAINER_FOLDER = "/var/run/kubernetes.io/dra-device-attributes"
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""Annotation on a claim that was made from a template: what the pod's spec calls it."""

RDMA_GIDS = f"{DOMAIN}/rdmaGids"
"""GIDs of the device's ports, as the kernel lists them. Known in the pod only, so never in a slice."""
LINK_IN_POD = f"{DOMAIN}/linkInPod"
"""For a device with admin access: whether a pod has it in its network namespace now."""

READ_ONLY = ("ro", "bind", "nosuid", "nodev", "noexec")
_MAX_GIDS = 16

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Attributes = Mapping[str, AttributeValue]
"""By qualified name; a tuple is a list attribute."""


class MetadataError(ValueError):
    """A text is no stream of ``DeviceMetadata`` objects with a version that we write."""


class DeviceFacts(Struct, frozen=True):
    """The content of a file about one device. ``link`` is as read back from the pod, or ``None``."""

    attributes: Attributes
    link: AttachedLink | None = None


def plan_metadata(
    claim: Claim, record: PreparedClaim, driver: str, name_file: Callable[[str], str] | None
) -> PreparedClaim:
    """The record with what only the claim knows: its name in the pod, the alternatives that won, and which
    requests get a file.

    ``name_file`` gives the CDI name by which a container asks for the file of a request; the first device of
    the request brings it, so that it comes once. ``None``: no files.
    """
    alternatives = {result.main_request: result.request.partition("/")[2] for result in claim.results}
    devices = tuple(replace(d, alternative=alternatives.get(d.request, "")) for d in record.devices)
    name = claim.annotations.get(POD_CLAIM_NAME, "")
    # Users who create claims also write their annotations, and this one becomes part of a path.
    named = replace(record, devices=devices, pod_claim_name=name if _DNS_LABEL.fullmatch(name) else "")
    if name_file is None:
        return named
    with_files, requests = [], dict[str, None]()
    for device in devices:
        file = () if device.request in requests else (name_file(device.request),)
        requests[device.request] = None
        with_files.append(replace(device, cdi_ids=(*device.cdi_ids, *file)))
    shared = {result.main_request for result in claim.results if result.driver != driver}
    files = (RequestMetadata(request, whole_folder=request not in shared) for request in requests)
    return replace(named, devices=tuple(with_files), metadata=tuple(files))


def file_name(driver: str) -> str:
    """Readers that know no driver's name look for all files with this ending."""
    return f"{driver}-metadata.json"


def mount_file(record: PreparedClaim, wanted: RequestMetadata, folder: str, driver: str) -> Mount:
    """Return the mount of a request's file at the path of KEP-5304: with its folder, or alone. ``folder`` is
    on the host."""
    parent = f"resourceclaims/{record.claim.name}"
    if record.pod_claim_name:
        parent = f"resourceclaimtemplates/{record.pod_claim_name}"
    inside = f"{CONTAINER_FOLDER}/{parent}/{wanted.request}"
    if wanted.whole_folder:
        return Mount(folder, inside, options=READ_ONLY)
    name = file_name(driver)
    return Mount(f"{folder}/{name}", f"{inside}/{name}", options=READ_ONLY)


def pod_rdma_device(prepared: PreparedDevice) -> str:
    """The RDMA device that the pod's containers can use; empty where it has none, or where it stays with the
    node."""
    is_usable = _moves_rdma(prepared) or bool(prepared.rdma.nodes)
    name = prepared.rdma.pod_name or prepared.device.rdma_device
    return name if is_usable and not prepared.admin_access else ""


def select_gids(prepared: PreparedDevice, addresses: Iterable[str], gids: Iterable[str]) -> tuple[str, ...]:
    """Select the GIDs of a device that belong to its pod, each once and at most 16.

    A device on which several pods have links has the GIDs of all of them; a pod's own are those of the
    addresses of its link (RoCE, IBTA annex A17: the GID is the address, an IPv4 one mapped into IPv6).
    """
    distinct = dict.fromkeys(gids)
    if prepared.plan is not None and prepared.plan.is_on_top:
        own = {as_gid(address) for address in addresses}
        distinct = {gid: None for gid in distinct if gid in own}
    return tuple(distinct)[:_MAX_GIDS]


def as_gid(address: str) -> str:
    """The GID of an address in CIDR form; an IPv4 one is mapped into IPv6."""
    ip = ip_interface(address).ip
    return ip_interface(f"::ffff:{ip}" if ip.version == 4 else ip).ip.exploded


def pod_attributes(prepared: PreparedDevice, gids: Sequence[str]) -> Attributes:
    """What is known of a device only now that its pod has it."""
    attributes: dict[str, AttributeValue] = {}
    if gids:
        attributes[RDMA_GIDS] = tuple(gids)
    if name := pod_rdma_device(prepared):
        attributes[RDMA_DEVICE.qualified] = name
    return attributes


def build_document(
    record: PreparedClaim,
    wanted: RequestMetadata,
    driver: str,
    describe: Callable[[PreparedDevice], DeviceFacts],
) -> JsonObject:
    """Return the content of the file of one request, without API version and generation."""
    devices = [device for device in record.devices if device.request == wanted.request]
    entries = [_build_metadata(device, driver, describe(device)) for device in devices]
    claim = {"name": record.claim.name, "namespace": record.claim.namespace, "uid": record.claim.uid}
    document: dict[str, Any] = {"metadata": claim}
    if record.pod_claim_name:
        document["podClaimName"] = record.pod_claim_name
    name = devices[0].request_reference if devices else wanted.request
    document["requests"] = [{"name": name, "devices": entries}]
    return document


def _build_metadata(prepared: PreparedDevice, driver: str, facts: DeviceFacts) -> JsonObject:
    entry: dict[str, Any] = {"driver": driver, "pool": prepared.pool, "name": prepared.device.name}
    if facts.attributes:
        entry["attributes"] = {
            name: _build_attribute(value) for name, value in sorted(facts.attributes.items())
        }
    if facts.link is not None and (network := _build_network(facts.link)):
        entry["networkData"] = network
    return entry


def _build_attribute(value: AttributeValue) -> JsonObject:
    if isinstance(value, tuple):
        is_text = bool(value) and isinstance(value[0], str)
        return {"strings" if is_text else "ints": list(value)}
    if isinstance(value, bool):  # before int, which it is as well
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def _build_network(link: AttachedLink) -> JsonObject:
    network = {
        "interfaceName": link.pod_ifname,
        "ips": list(dict.fromkeys(link.addresses))[:MAX_IPS],
        "hardwareAddress": link.mac,
    }
    return {key: value for key, value in network.items() if value}


def encode_stream(document: JsonObject, generation: int) -> bytes:
    """The file: the same once for each API version. The document is encoded once, because a hook waits."""
    claim = {**document["metadata"], "generation": generation}
    body = json.dumps({**document, "metadata": claim}, indent=2).removeprefix("{\n")
    return "".join(
        f'{{\n  "apiVersion": "{version}",\n  "kind": "{KIND}",\n{body}\n' for version in API_VERSIONS
    ).encode()


def decode_stream(content: bytes) -> tuple[JsonObject, int]:
    """The document in a file of ours, and its generation.

    Raises:
        MetadataError: the file is damaged, or of versions that we do not know.
    """
    for found in _parse_objects(content):
        if found.get("apiVersion") in API_VERSIONS and found.get("kind") == KIND:
            return _without_generation(found)
    raise MetadataError("no object of a version that we know")


def _without_generation(found: JsonObject) -> tuple[JsonObject, int]:
    claim = found.get("metadata")
    generation = claim.get("generation") if isinstance(claim, dict) else None
    if not isinstance(claim, dict) or type(generation) is not int:
        raise MetadataError("an object without a generation")
    rest = {key: value for key, value in found.items() if key not in ("apiVersion", "kind")}
    rest["metadata"] = {key: value for key, value in claim.items() if key != "generation"}
    return rest, generation


def _parse_objects(content: bytes) -> list[JsonObject]:
    decoder, found = json.JSONDecoder(), []
    try:
        rest = content.decode().strip()
        while rest:
            item, end = decoder.raw_decode(rest)
            found.append(item)
            rest = rest[end:].lstrip()
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"not a stream of JSON: {error}") from error
    if not all(isinstance(item, dict) for item in found):
        raise MetadataError("an item that is no object")
    return found
