"""Kubernetes objects for commands that reason about them: from files, from a cluster, or from captures.

Every command that reads claims, classes, slices or pods gets them here, so that files are read equally safely
and a live cluster equally politely everywhere. Nothing is written, ever.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dranet.desk.cli.object_files import STANDARD_INPUT, expand, name_of, read_documents
from dranet.desk.kubeapi.known_kinds import CLUSTER_SCOPED, is_read
from dranet.desk.kubeapi.objects import JsonObject
from dranet.desk.kubeapi.shapes import find_fault, without_nulls
from dranet.desk.kubeapi.versions import CURRENT, GROUP, can_convert, has_other_version
from dranet.errors import SettingsError
from dranet.view.node_view import SHAPING_SETTINGS
from dranet.view.options import add_capture_flag, add_settings_group

if TYPE_CHECKING:
    from dranet.settings import Settings
    from dranet.view.node_view import NodeView

LISTS: Mapping[str, str] = {
    "ResourceSlice": "slices",
    "DeviceClass": "classes",
    "ResourceClaim": "claims",
    "ResourceClaimTemplate": "templates",
    "Pod": "pods",
    "Node": "nodes",
    "DeviceTaintRule": "taint_rules",
}
"""Kind -> the field of :class:`ClusterObjects` that holds it."""

_VERSIONS = (CURRENT, f"{GROUP}/v1beta2")
"""API versions with equal fields."""

_MAX_ITEMS = 200_000
_MAX_PREFIX = 58
"""The API server cuts a longer ``generateName`` before it adds five characters."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an object was found."""

    file: str
    document: int = 0
    """From 1; 0 for what was not read from a document."""
    item: int = 0
    """Place in a ``List``, from 1; 0 outside of one."""

    def __str__(self) -> str:
        place = f", document {self.document}" if self.document else ""
        return f"{self.file}{place}{f', item {self.item}' if self.item else ''}"


@dataclass(frozen=True, slots=True)
class Unread:
    """A file or a document that was passed over."""

    error: SettingsError
    """Its message begins with the place."""
    is_foreign: bool = False
    """Whether it is no Kubernetes object of a folder, rather than of a file that the user named."""


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """Raw objects by kind, in the order in which they were found. Two may have one name: files do not know
    of each other."""

    slices: list[JsonObject] = field(default_factory=list)
    classes: list[JsonObject] = field(default_factory=list)
    claims: list[JsonObject] = field(default_factory=list)
    templates: list[JsonObject] = field(default_factory=list)
    pods: list[JsonObject] = field(default_factory=list)
    nodes: list[JsonObject] = field(default_factory=list)
    taint_rules: list[JsonObject] = field(default_factory=list)
    others: list[JsonObject] = field(default_factory=list)
    """Objects of kinds that are not read."""
    sources: dict[int, Source] = field(default_factory=dict)
    """By ``id`` of the object: see :meth:`source_of`."""
    looks: dict[str, NodeView] = field(default_factory=dict)
    """By node name: what was seen on a node whose slices come from a capture."""
    unread: list[Unread] = field(default_factory=list)

    def source_of(self, body: JsonObject) -> str:
        """Where ``body`` (the very object) was found; empty if unknown."""
        source = self.sources.get(id(body))
        return str(source) if source else ""

    def add(self, body: JsonObject, source: Source) -> None:
        """Put one object where its kind belongs."""
        found: list[JsonObject] = getattr(self, LISTS[body["kind"]] if is_read(body) else "others")
        found.append(body)
        self.sources[id(body)] = source

    def __iter__(self) -> Iterator[JsonObject]:
        """Every object of a kind that is read."""
        for name in LISTS.values():
            yield from getattr(self, name)

    def of_namespace(self, namespace: str) -> ClusterObjects:
        """Those of one namespace; all if it is empty."""
        if not namespace:
            return self
        found = ClusterObjects()
        for body in self:
            if body["metadata"].get("namespace") == namespace:
                found.add(body, self.sources[id(body)])
        return found

    def __or__(self, other: ClusterObjects) -> ClusterObjects:
        """Both, ours first."""
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(ClusterObjects))
        return ClusterObjects(*(a | b if isinstance(a, dict) else a + b for a, b in pairs))


def load_files(
    paths: Iterable[str | Path],
    *,
    check: bool = True,
    others: bool = False,
    passes_over: bool = False,
    namespace: str = "",
) -> ClusterObjects:
    """The objects in these files; ``-`` is standard input, of a folder its YAML and JSON files.

    Args:
        paths: what the user named.
        check: refuse an object whose fields have shapes that no API server would take. Without it
            only kind, name and ``spec`` are known to be of the right type, and older versions are read: for
            callers that report more about it.
        others: objects of other kinds are enough.
        passes_over: what cannot be read, and is not all there is, goes into ``unread``. An object of a
            wrong shape is refused.
        namespace: of objects that name none, as for ``kubectl -n``.

    Raises:
        SettingsError: a file that cannot be read, an invalid object, or nothing in them that is read
            here; names file, document and cause.
    """
    found = ClusterObjects()
    named = [(file, file != str(path)) for path in paths for file in expand(str(path))]
    for path, is_in_folder in named:
        for source, value in _iter_values(path, found):
            try:
                body = _must_be_mapping(value, source)
                _check_identity(body, source)
                if check:
                    _check_version(body, source)
            except SettingsError as error:
                found.unread.append(Unread(error, is_in_folder and not _has_type(value)))
                continue
            body = _in_namespace(_checked(body, source) if check else body, namespace)
            found.add(_with_name(body), source)
    if found.unread and not (passes_over and (any(found) or found.others)):
        raise found.unread[0].error
    if not any(found) and not (others and found.others):
        files = [path for path, _ in named]
        raise SettingsError(_nothing_found(files, found.others), hint=f"dranet reads {', '.join(LISTS)}")
    return found


def _iter_values(path: str, found: ClusterObjects) -> Iterator[tuple[Source, Any]]:
    """What should be objects; what is no YAML goes into ``unread``. Raises SettingsError for a file that is
    not there."""
    try:
        for number, document in read_documents(path):
            yield from _iter_items(document, Source(name_of(path), number))
    except SettingsError as error:
        if path != STANDARD_INPUT and not Path(path).is_file():
            raise
        found.unread.append(Unread(error))


def _has_type(value: Any) -> bool:
    return isinstance(value, dict) and ("apiVersion" in value or "kind" in value)


def fetch_live(options: argparse.Namespace, kinds: Sequence[str] = tuple(LISTS)) -> ClusterObjects:
    """The objects of the cluster that the kubeconfig names (flags of :func:`add_cluster_flags`), of all
    namespaces; Pods and templates of one, where ``options`` have a ``namespace``.

    Raises:
        SettingsError: the kubeconfig is unusable.
        ClusterError: no answer, or a refusal, with the rule of RBAC that it takes.
    """
    from dranet.desk.cli.object_cluster import fetch

    found = ClusterObjects()
    for source, body in fetch(options, kinds):
        found.add(_checked(body, Source(source)), Source(source))
    return found


def fetch_everywhere(options: argparse.Namespace, kinds: Sequence[str] = tuple(LISTS)) -> ClusterObjects:
    """As :func:`fetch_live`, of all namespaces, whichever ``options`` have."""
    return fetch_live(argparse.Namespace(**{**vars(options), "namespace": ""}), kinds)


def find_namespace(options: argparse.Namespace) -> str:
    """The namespace of the kubeconfig's context, as kubectl takes it; empty where it names none."""
    from dranet.desk.cli import object_cluster

    return object_cluster.find_namespace(options)


def add_source_flags(parser: argparse.ArgumentParser, files_help: str) -> None:
    """``-f`` and ``--capture``: objects without a cluster. :func:`add_facts_settings` adds the settings that
    shape a capture's slices."""
    parser.add_argument(
        "-f",
        "--file",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help=f"{files_help} instead of a cluster, YAML or JSON; a folder; - reads standard input; added to "
        "what a cluster has if one is named (--kubeconfig, --context)",
    )
    add_capture_flag(parser)


def take_back(options: argparse.Namespace, count: Callable[[Sequence[str]], int]) -> list[str]:
    """Take the words at the end of ``-f`` or ``--capture`` that are meant for the command itself: an option
    with several values takes all words after it. ``count`` returns how many of the words that are not files
    they are."""
    for taken in (options.file, options.facts):
        last = next((n for n, word in enumerate(reversed(taken)) if _is_file(word)), len(taken))
        words = taken[max(len(taken) - last, 1) :]
        if number := count(words):
            del taken[-number:]
            return list(words[-number:])
    return []


def _is_file(word: str) -> bool:
    return word == STANDARD_INPUT or Path(word).exists()


def add_facts_settings(parser: argparse.ArgumentParser) -> None:
    """The settings that shape what a capture publishes."""
    about = "as for dranet run, they shape what --capture publishes"
    add_settings_group(parser, ("driver_name", *SHAPING_SETTINGS), about)


def names_cluster(options: argparse.Namespace) -> bool:
    """Whether a cluster was named, so that it is to be asked even where there are files."""
    return bool(options.kubeconfig or options.context)


def asks_cluster(options: argparse.Namespace) -> bool:
    """Whether a cluster is asked: one was named, or neither a file nor a capture was."""
    return names_cluster(options) or not (options.file or options.facts)


def add_cluster_flags(parser: argparse._ActionsContainer) -> None:
    """Which cluster to ask, and as whom: see :func:`names_cluster`."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        default="",
        help="the cluster to ask, as for kubectl (default: $KUBECONFIG, ~/.kube/config, else the pod's own "
        "service account); rights are those of its user",
    )
    parser.add_argument("--context", metavar="NAME", default="", help="context in the kubeconfig")


def capture_slices(paths: Iterable[str | Path], settings: Settings) -> ClusterObjects:
    """A Node and its ResourceSlices for each capture (``dranet capture``), exactly as the driver would
    publish them with these settings. A node is called as its host, in lower case; a second one of that name
    ``NAME-2``. ``looks`` has by node name what was seen, offered or not.

    Raises:
        SettingsError: a file that cannot be read or is no capture; a setting that is wrong.
    """
    from dranet.inventory.held import name_pods
    from dranet.inventory.offer import take_inventory
    from dranet.view.node_view import NodeView, build_slice_objects
    from dranet.view.options import read_capture_and_pods
    from dranet.view.policy import load_policy

    policy = load_policy(settings)
    found = ClusterObjects()
    seen: Counter[str] = Counter()
    for path in map(str, paths):
        capture, pods = read_capture_and_pods(path, "--capture")
        facts = capture.facts
        look = NodeView(facts, name_pods(take_inventory(facts, {}, policy), pods), policy, is_capture=True)
        name = _distinct(facts.host.name.lower() or "node", seen)  # as the kubelet does
        source = Source(name_of(path))
        found.looks[name] = look
        found.add(_build_node(name), source)
        for body in build_slice_objects(look, settings.driver_name, name):
            found.add(_with_name(dict(body)), source)
    return found


def _distinct(name: str, seen: Counter[str]) -> str:
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}-{seen[name]}"


def _build_node(name: str) -> JsonObject:
    labels = {"kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}}


def _in_namespace(body: JsonObject, namespace: str) -> JsonObject:
    metadata = body.get("metadata")
    has_one = not isinstance(metadata, dict) or metadata.get("namespace")
    if not namespace or has_one or body["kind"] in CLUSTER_SCOPED:
        return body
    return {**body, "metadata": {**body["metadata"], "namespace": namespace}}


def _with_name(body: JsonObject) -> JsonObject:
    """A slice that no server has seen gets a name as one would make of ``generateName``; always the same."""
    metadata = body["metadata"] if body["kind"] == "ResourceSlice" else None
    if not isinstance(metadata, dict) or metadata.get("name"):
        return body
    prefix = str(metadata.get("generateName"))[:_MAX_PREFIX]
    ending = hashlib.sha256(prefix.encode()).hexdigest()[:5]
    return {**body, "metadata": {**metadata, "name": prefix + ending}}


# --- what is in a file -------------------------------------------------------------------------------


def _iter_items(document: Any, source: Source) -> Iterator[tuple[Source, Any]]:
    """The objects of a document: itself, the items of a ``List``, or of a bare JSON array."""
    if isinstance(document, dict) and "items" in document and str(document.get("kind", "")).endswith("List"):
        kind = str(document["kind"]).removesuffix("List")
        items = document.get("items") or []
        common = {"apiVersion": document.get("apiVersion"), "kind": kind} if kind else {}
    else:
        items, common = document if isinstance(document, list) else None, {}
    if items is None:
        yield source, document
        return
    if not isinstance(items, list) or len(items) > _MAX_ITEMS:
        raise SettingsError(f"{source}: items must be a list of at most {_MAX_ITEMS} objects")
    for number, item in enumerate(items, 1):
        place = Source(source.file, source.document, number)
        yield place, {**common, **item} if isinstance(item, dict) else item


def _must_be_mapping(value: Any, source: Source) -> JsonObject:
    if not isinstance(value, dict):
        raise SettingsError(f"{source}: an object must be a mapping with apiVersion and kind")
    return value


def _check_identity(body: JsonObject, source: Source) -> None:
    """Kind, version and name, whatever the kind."""
    for key in ("apiVersion", "kind"):
        if not isinstance(body.get(key), str) or not body[key]:
            hint = "name a capture with --capture" if "facts" in body and "format" in body else ""
            raise SettingsError(f"{source}: {key} is missing: is this a Kubernetes object?", hint=hint)
    if not is_read(body):
        return
    where = f"{source}: {body['kind']}"
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        raise SettingsError(f"{where}: metadata must be a mapping")
    names = (metadata.get(key) for key in ("name", "generateName"))
    name = next((name for name in names if name not in (None, "")), "")
    if not isinstance(name, str):
        raise SettingsError(f"{where}: metadata.name must be text, not {name}", hint="put it in quotes")
    if not name:
        raise SettingsError(f"{where}: metadata.name is missing")
    if not isinstance(body.get("spec", {}), dict):
        raise SettingsError(f"{where} {name}: spec must be a mapping")


def _check_version(body: JsonObject, source: Source) -> None:
    if has_other_version(body) and body["apiVersion"] not in _VERSIONS:
        can_be = f"dranet validate --convert writes it as {CURRENT}"
        hint = can_be if can_convert(body) else f"write it as {CURRENT}"
        raise SettingsError(f"{source}: {body['kind']}: {body['apiVersion']} is not read", hint=hint)


def _checked(body: JsonObject, source: Source) -> JsonObject:
    """The object without nulls, if its fields have the shapes that an allocation relies on."""
    if not is_read(body):
        return body
    try:
        kept: JsonObject = without_nulls(body)
    except UnicodeEncodeError:
        raise SettingsError(f"{source}: {body['kind']}: text with half a character in it") from None
    fault = find_fault(kept)
    if fault:
        name = body["metadata"].get("name") or body["metadata"].get("generateName")
        raise SettingsError(f"{source}: {body['kind']} {name}: {fault}")
    return kept


def _nothing_found(paths: Sequence[str], others: Sequence[JsonObject]) -> str:
    files = ", ".join(map(name_of, paths)) or "no file"
    counts = Counter(body["kind"] for body in others)
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
    return f"{files}: {f'only {kinds}, none of which is read here' if kinds else 'no Kubernetes objects'}"
