"""The ``DeviceMetadata`` documents of KEP-5304, in which a container reads about its devices.

Each request of a claim has one file: a stream of JSON objects with the same content in several API versions,
 newest first; a reader takes the first version that it knows. Sources: KEP-5304, and "DRA device
metadata in containers" in the Kubernetes documentation (1.37); limits are those of ``resource.k8s.io/v1``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_interface
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dranet.claims.report import MAX_IPS
from dranet.model.attributes import DOMAIN, RDMA_DEVICE
from dranet.model.claim import AllocationResult, Claim
from dranet.model.device import AttributeValue
from dranet.model.plan import MoveRdma, PreparedClaim, PreparedDevice, RequestMetadata
from dranet.model.sandbox import Mount
from dranet.model.status import AttachedLink

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

MAX_GIDS = 16

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

JsonObject = Mapping[str, Any]
Attributes = Mapping[str, AttributeValue | tuple[str, ...]]
"""By qualified name; a tuple is a list attribute."""


class MetadataError(ValueError):
    """A text is no stream of ``DeviceMetadata`` objects with a version that we write."""


class DeviceFacts(Struct, frozen=True):
    """The content of a file about one device. ``link`` is as read back from the pod, or ``None``."""

    attributes: Attributes
    link: AttachedLink | None = None


# --- decided at Prepare ---------------------------------------------------------------------------------


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
    return replace(
        named, devices=_add_files(devices, name_file), metadata=_plan_files(devices, claim.results, driver)
    )


def _plan_files(
    devices: Iterable[PreparedDevice], results: Iterable[AllocationResult], driver: str
) -> tuple[RequestMetadata, ...]:
    shared = {result.main_request for result in results if result.driver != driver}
    requests = dict.fromkeys(device.request for device in devices)
    return tuple(RequestMetadata(request, whole_folder=request not in shared) for request in requests)


def _add_files(
    devices: Iterable[PreparedDevice], name_file: Callable[[str], str]
) -> tuple[PreparedDevice, ...]:
    done: set[str] = set()
    named = []
    for device in devices:
        file = () if device.request in done else (name_file(device.request),)
        done.add(device.request)
        named.append(replace(device, cdi_ids=(*device.cdi_ids, *file)))
    return tuple(named)


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


# --- what the pod has ------------------------------------------------------------------------------------


def pod_rdma_device(prepared: PreparedDevice) -> str:
    """The RDMA device that the pod's containers can use; empty where it has none, or where it stays with the
    node."""
    plan = prepared.plan
    is_theirs = plan is not None and any(isinstance(step, MoveRdma) for step in plan.steps)
    is_usable = is_theirs or bool(prepared.rdma.nodes)
    name = prepared.rdma.pod_name or prepared.device.rdma_device
    return name if is_usable and not prepared.admin_access else ""


def select_gids(prepared: PreparedDevice, addresses: Iterable[str], gids: Iterable[str]) -> tuple[str, ...]:
    """Select the GIDs of a device that belong to its pod, each once and at most 16.

    A device on which several pods have links has the GIDs of all of them; a pod's own are those of the
    addresses of its link (RoCE, IBTA annex A17: the GID is the address, an IPv4 one mapped into IPv6).
    """
    distinct = dict.fromkeys(gids)
    if prepared.plan is not None and prepared.plan.is_on_top:
        own = {_gid_of(address) for address in addresses}
        distinct = {gid: None for gid in distinct if gid in own}
    return tuple(distinct)[:MAX_GIDS]


def _gid_of(address: str) -> str:
    ip = ip_interface(address).ip
    return ip_interface(f"::ffff:{ip}" if ip.version == 4 else ip).ip.exploded


def pod_attributes(prepared: PreparedDevice, gids: Sequence[str]) -> Attributes:
    """What is known of a device only now that its pod has it."""
    attributes: dict[str, AttributeValue | tuple[str, ...]] = {}
    if gids:
        attributes[RDMA_GIDS] = tuple(gids)
    if name := pod_rdma_device(prepared):
        attributes[RDMA_DEVICE.qualified] = name
    return attributes


# --- the document ----------------------------------------------------------------------------------------


def build_document(
    record: PreparedClaim,
    wanted: RequestMetadata,
    driver: str,
    describe: Callable[[PreparedDevice], DeviceFacts],
) -> JsonObject:
    """Return the content of the file of one request, without API version and generation."""
    devices = [device for device in record.devices if device.request == wanted.request]
    entries = [_build_device(device, driver, describe(device)) for device in devices]
    claim = {"name": record.claim.name, "namespace": record.claim.namespace, "uid": record.claim.uid}
    document: dict[str, Any] = {"metadata": claim}
    if record.pod_claim_name:
        document["podClaimName"] = record.pod_claim_name
    name = devices[0].request_reference if devices else wanted.request
    document["requests"] = [{"name": name, "devices": entries}]
    return document


def _build_device(prepared: PreparedDevice, driver: str, facts: DeviceFacts) -> JsonObject:
    entry: dict[str, Any] = {"driver": driver, "pool": prepared.pool, "name": prepared.device.name}
    if facts.attributes:
        entry["attributes"] = {
            name: _build_attribute(value) for name, value in sorted(facts.attributes.items())
        }
    if facts.link is not None and (network := _build_network(facts.link)):
        entry["networkData"] = network
    return entry


def _build_attribute(value: AttributeValue | tuple[str, ...]) -> JsonObject:
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
