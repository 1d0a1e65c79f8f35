"""``dranet doctor --bundle``: everything a bug report needs in one archive, without identifying its owner.

What cannot be collected is listed in the manifest with its cause and does not stop the rest. The names that
people have chosen are found here; :mod:`dranet.desk.redact.text` redacts.
"""

from __future__ import annotations

import gzip
import http.client
import io
import json
import os
import re
import secrets
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any

from msgspec import Struct

from dranet import __version__
from dranet.cli.doctor.examine import Examination, Progress
from dranet.cli.doctor.peers import FEATURES_PATH, NotListening, fetch_events, fetch_page
from dranet.cli.prepared_claims import build_document, look
from dranet.desk.doctor.checks import ClusterFacts
from dranet.desk.redact.text import KNOWN_DOMAINS, redact_texts
from dranet.errors import DranetError
from dranet.kernel.host_trials import read_kernel_messages
from dranet.kernel.sysfs.files import read_boot_id
from dranet.model.capture import Capture, encode_capture
from dranet.model.facts import NodeFacts
from dranet.settings import DECLARATIONS, Settings
from dranet.view.bundle import CAPTURE_FILE, CLAIMS_FILE, FINDINGS_FILE, FOLDER, MANIFEST_FILE, MOST_BYTES
from dranet.view.output import PRIVATE, write_output

FORMAT = "dranet.bundle/1"


@dataclass(frozen=True)
class Piece:
    """One file of the bundle: its text, or why it is missing."""

    file: str
    about: str
    text: str = ""
    missing: str = ""


def pack(pieces: Sequence[Piece], counts: Mapping[str, int], redacts: bool) -> bytes:
    """The manifest first, then the files by name; nothing in it depends on the user who made it."""
    pieces = sorted(pieces, key=lambda piece: piece.file)
    kept, left_out = _fit([piece for piece in pieces if not piece.missing])
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "redacted": redacts,
        "replaced": dict(sorted(counts.items())),
        "files": [{"file": p.file, "about": p.about, "bytes": len(_encode(p.text))} for p in kept],
        "missing": [
            {
                "file": p.file,
                "about": p.about,
                "why": p.missing or f"the bundle would exceed {MOST_BYTES} bytes",
            }
            for p in (*(piece for piece in pieces if piece.missing), *left_out)
        ],
    }
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file, text in ((MANIFEST_FILE, to_json(manifest)), *((p.file, p.text) for p in kept)):
            content = _encode(text)
            entry = tarfile.TarInfo(f"{FOLDER}/{file}")
            entry.size, entry.mode = len(content), PRIVATE
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _fit(pieces: Sequence[Piece]) -> tuple[Sequence[Piece], Sequence[Piece]]:
    sizes = accumulate(len(_encode(piece.text)) for piece in pieces)
    count = sum(size <= MOST_BYTES for size in sizes)
    return pieces[:count], pieces[count:]


def _encode(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def to_json(document: object) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


MOST_TEXT = 8 << 20
"""Characters of one file in the bundle."""

_PACKAGES = ("grpcio", "msgspec", "protobuf", "pyudev", "PyYAML", "cel-expr-python")
_MOST_FILES = 1000


def write_bundle(
    path: Path | None,
    settings: Settings,
    found: Examination,
    printed: tuple[str, Mapping[str, Any]],
    *,
    redacts: bool,
    progress: Progress,
) -> list[str]:
    """Collect, redact and write; returns lines for the user. ``path`` has passed ``check_output``;
    ``None`` is standard output. ``settings`` have folders as they are seen from here; ``printed`` are the
    findings as text and as the document for programs."""
    pieces = list(_collect(settings, found, printed, progress))
    node = found.surroundings.node
    counts: dict[str, int] = {}
    if redacts:
        progress("what has to be redacted")
        names = find_names(settings, found, {piece.file: piece.text for piece in pieces})
        node, pieces, counts = _redact(pieces, node, names)
    source = f"captured by dranet {__version__} for a support bundle{', redacted' if redacts else ''}"
    facts = encode_capture(Capture(node, source))
    pieces.append(Piece(CAPTURE_FILE, "facts of the node's devices", facts))
    content = pack(pieces, counts, redacts)
    where = "standard output" if path is None else f"{path}, readable by you alone"
    if path is None:
        sys.stdout.buffer.write(content)
    else:
        write_output(path, content, PRIVATE, "--bundle")
    return _describe(f"{where}: {len(content) >> 10} KiB", pieces, counts, redacts)


# --- what goes in ---------------------------------------------------------------------------------------


def _collect(
    settings: Settings, found: Examination, printed: tuple[str, Mapping[str, Any]], progress: Progress
) -> Iterator[Piece]:
    text, document = printed
    seen = found.surroundings
    yield Piece("findings.txt", "what the doctor found", f"{text}\n")
    yield Piece(FINDINGS_FILE, "the same for programs", to_json(document))
    yield Piece("host.json", "what the doctor's checks judged", to_json(_to_plain(seen.host)))
    yield Piece("cluster.json", "what the API server knows of the node", to_json(_to_plain(seen.cluster)))
    # no secret is among the settings: keys and tokens are named by their files
    in_force = {name: _to_plain(getattr(settings, name)) for name in DECLARATIONS}
    yield Piece("settings.json", "the settings at work here", to_json(in_force))
    yield Piece("versions.json", "versions", to_json(_list_versions(found)))
    for file, about, collect in (
        ("readyz.json", "the driver's parts, and what it has seen", lambda: _fetch(settings, FEATURES_PATH)),
        ("metrics.txt", "the driver's metrics", lambda: _fetch(settings, "/metrics")),
        (CLAIMS_FILE, "claims that are prepared here (dranet prepared)", lambda: _list_claims(settings)),
        ("state.txt", "files of the state folder", lambda: _list_state(settings.state_dir)),
        ("events.json", "Events of the driver", lambda: to_json(fetch_events(settings))),
        (
            "kernel.txt",
            "kernel messages about NICs, RDMA, PCIe and GPUs",
            lambda: _lines(read_kernel_messages()),
        ),
    ):
        progress(about)
        yield _try(file, about, collect)


def _try(file: str, about: str, collect: Callable[[], str]) -> Piece:
    try:
        text = collect()
        cut = f"\n... cut: {len(text) - MOST_TEXT} characters more\n" if len(text) > MOST_TEXT else ""
        return Piece(file, about, text[:MOST_TEXT] + cut)
    except NotListening:
        return Piece(file, about, missing="no driver answers")
    except DranetError as error:
        return Piece(file, about, missing=error.message)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Piece(file, about, missing=str(error) or type(error).__name__)


def _fetch(settings: Settings, page: str) -> str:
    """``/readyz`` is 503 with the same words while a part is not ready, ``/metrics`` where it is refused."""
    answer = fetch_page(settings, page)
    if answer.status not in ((200, 503) if page == FEATURES_PATH else (200,)):
        raise ValueError(f"HTTP {answer.status}: {answer.body[:200].decode(errors='replace').strip()}")
    return answer.body.decode(errors="replace")


def _list_claims(settings: Settings) -> str:
    node = look(settings.state_dir, read_boot_id(settings.procfs_root))
    return to_json(build_document(node, node.claims))


def _list_state(folder: Path) -> str:
    """Names, sizes and times of files, without their content."""
    lines = []
    for path in sorted(folder.rglob("*"))[:_MOST_FILES]:
        found = path.lstat()
        when = datetime.fromtimestamp(found.st_mtime, UTC).isoformat(timespec="seconds")
        lines.append(f"{found.st_mode:o} {found.st_size:>10} {when} {path.relative_to(folder)}")
    return _lines(lines)


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _list_versions(found: Examination) -> dict[str, str]:
    versions = {"dranet": __version__, "python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    seen = found.surroundings
    return versions | {
        "kernel": seen.host.kernel.release,
        "kubelet": seen.cluster.kubelet_version,
        "apiServer": seen.cluster.server_version,
        "runtime": seen.cluster.runtime_version,
    }


def _to_plain(value: Any) -> Any:
    """Frozen facts as JSON has them; paths as text."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, Mapping):
        return {str(name): _to_plain(element) for name, element in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [_to_plain(element) for element in value]
    if isinstance(value, Struct):
        return {name: _to_plain(getattr(value, name)) for name in value.__struct_fields__}
    return str(value)


# --- whose it is ----------------------------------------------------------------------------------------


def _redact(
    pieces: Sequence[Piece], node: NodeFacts, names: Mapping[str, str]
) -> tuple[NodeFacts, list[Piece], dict[str, int]]:
    texts = {piece.file: piece.text for piece in pieces} | {
        f"missing:{piece.file}": piece.missing for piece in pieces
    }
    redacted = redact_texts(node, texts, names, secrets.token_bytes(32))
    changed = [
        replace(piece, text=redacted.texts[piece.file], missing=redacted.texts[f"missing:{piece.file}"])
        for piece in pieces
    ]
    return redacted.facts, changed, dict(redacted.counts)


def _describe(where: str, pieces: Sequence[Piece], counts: Mapping[str, int], redacts: bool) -> list[str]:
    """What the person who made it should know before it is sent."""
    missing = [f"{piece.file} ({piece.missing})" for piece in pieces if piece.missing]
    lines = [f"{where} in {len(pieces) - len(missing)} files"]
    if missing:
        lines.append(f"not collected: {'; '.join(missing)}")
    if redacts:
        what = ", ".join(f"{count} x {kind}" for kind, count in sorted(counts.items())) or "no name"
        lines.append(f"replaced: {what}, and all IP and hardware addresses, GUIDs and UUIDs")
        lines.append(
            "PCI addresses, interface names, models and versions stay. Look at it before you send it."
        )
    else:
        lines.append(
            "NOT REDACTED: it names pods, nodes, addresses and hosts. Send it only to those who may see them."
        )
    return lines


_LABELS = {
    "pod": "pod",
    "namespace": "namespace",
    "pod_namespace": "namespace",
    "claim": "claim",
    "claim_name": "claim",
    "claim_namespace": "namespace",
    "node": "node",
    "container": "container",
}
"""Labels of metrics -> what their values name."""
_LABEL = re.compile(rf'\b({"|".join(_LABELS)})="((?:[^"\\]|\\.)+)"')
_URL = re.compile(r"https?://(\[[^\]]+\]|[^/:\s\"]+)")
_USUAL = re.compile(
    "admin|attributes|bridge|calico|capture|cilium|cni|conf|config|containerd|crio|dm|docker|dranet|flannel|host|ib|"
    "img|ipvlan|kindnet|kubeconfig|kubelet|loopback|macvlan|multus|net|netplan|ovn|ovs|partition|podman|rails?|roce|"
    "settings|sriov|swap|swapfile|vg|weave|[0-9]+|(?:sd|vd|xvd|nvme|zram|mmcblk|md)[0-9a-z]*"
)
"""Common words in names of files: they identify nothing."""
_NAMED = {
    "claims": "claim",
    "pod": "pod",
    "involvedObject": "object",
    "metadata": "object",
    "regarding": "object",
    "source": "node",
}
"""Key above an object's name in a document -> what it is the name of."""


def find_names(settings: Settings, found: Examination, texts: Mapping[str, str]) -> dict[str, str]:
    """What people have named, in all that was collected (by file) -> what it is."""
    names: dict[str, str] = {}
    for name in (settings.node_name, found.surroundings.node.host.name, os.uname().nodename):
        names |= dict.fromkeys((name, name.partition(".")[0]), "node")
    for label, value in _LABEL.findall(texts.get("metrics.txt", "")):
        names.setdefault(value, _LABELS[label])
    for host in _URL.findall(" ".join(texts.values())):
        if any(character.isalpha() for character in host) and not host.startswith("["):
            names.setdefault(host, "host")
    names |= _find_object_names(texts.get(CLAIMS_FILE, ""))
    names |= _find_object_names(texts.get("events.json", ""))
    cluster = _find_cluster_names(found.surroundings.cluster, settings.driver_name)
    files = dict.fromkeys(_iter_files(settings, found), "file")
    return {name: kind for name, kind in (files | cluster | names).items() if name}


def _find_cluster_names(cluster: ClusterFacts, driver_name: str) -> dict[str, str]:
    """Names of nodes, of domains other than well-known ones, and of extended resources."""
    domains = {resource.partition("/")[0] for resource in cluster.resources}
    domains |= {driver_name, *(device.driver for device in cluster.others)}
    resources = (resource.partition("/")[2] for resource in cluster.resources)
    return (
        # a plain word such as ``gpu`` identifies nothing
        dict.fromkeys((name for name in resources if re.search("[-_]", name)), "resource")
        | dict.fromkeys((name for name in domains if not name.endswith(KNOWN_DOMAINS)), "domain")
        | dict.fromkeys((device.pool for device in cluster.others), "node")
    )


def _iter_files(settings: Settings, found: Examination) -> Iterator[str]:
    """What people call files and volumes; not the usual names, nor those of interfaces."""
    host = found.surroundings.host
    links = {link.ifname for link in found.surroundings.node.links}
    paths = [settings.kubeconfig, *(str(p) for p in (settings.attributes_file, settings.facts_file) if p)]
    paths += host.tuning.swaps
    paths += (text for m in host.managers for text in (m.name, m.detail) if "/" in text)
    for path in paths:
        stem = path.rpartition("/")[2].partition(".")[0]
        words = set(filter(None, re.split(r"[-_]+", stem))) - links
        if not all(_USUAL.fullmatch(word.lower()) for word in words):
            yield stem


def _find_object_names(text: str) -> dict[str, str]:
    """Names and namespaces of objects, anywhere in a document."""
    names: dict[str, str] = {}
    with suppress(ValueError, RecursionError):
        _walk(json.loads(text), "", names)
    return names


def _walk(value: object, parent: str, names: dict[str, str]) -> None:
    if isinstance(value, list):
        for element in value:
            _walk(element, parent, names)
    elif isinstance(value, dict):
        for key, element in value.items():
            if isinstance(element, str):
                if key == "namespace":
                    names.setdefault(element, "namespace")
                elif key in ("name", "host") and parent in _NAMED:
                    names.setdefault(element, _NAMED[parent])
            _walk(element, key, names)
