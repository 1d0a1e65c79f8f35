"""What people have named, in all that a support bundle is made of; ``model.redact_text`` hides it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping

from dranet.cli.doctor.examine import Examination
from dranet.desk.doctor.checks import ClusterFacts
from dranet.desk.redact.text import KNOWN_DOMAINS
from dranet.settings import Settings

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
    names |= _find_object_names(texts.get("claims.json", ""))
    names |= _find_object_names(texts.get("events.json", ""))
    cluster = _find_cluster_names(found.surroundings.cluster, settings.driver_name)
    files = dict.fromkeys(_iter_files(settings, found), "file")
    return {name: kind for name, kind in (files | cluster | names).items() if name}


def _find_cluster_names(cluster: ClusterFacts, driver_name: str) -> dict[str, str]:
    """Names of nodes, of domains other than well-known ones, and of extended resources."""
    domains = {
        *(resource.partition("/")[0] for resource in cluster.resources),
        driver_name,
        *_drivers(cluster),
    }
    return (
        dict.fromkeys(_iter_resources(cluster), "resource")
        | dict.fromkeys((name for name in domains if not name.endswith(KNOWN_DOMAINS)), "domain")
        | dict.fromkeys((device.pool for device in cluster.others), "node")
    )


def _iter_resources(cluster: ClusterFacts) -> Iterator[str]:
    """What people call extended resources; a plain word such as ``gpu`` identifies nothing."""
    names = (resource.partition("/")[2] for resource in cluster.resources)
    return (name for name in names if re.search("[-_]", name))


def _iter_files(settings: Settings, found: Examination) -> Iterator[str]:
    """What people call files and volumes; not the usual names, nor those of interfaces."""
    host = found.surroundings.host
    links = {link.ifname for link in found.surroundings.node.links}
    paths = [settings.kubeconfig, *(str(p) for p in (settings.attributes_file, settings.facts_file) if p)]
    paths += [
        *host.tuning.swaps,
        *(text for m in host.managers for text in (m.name, m.detail) if "/" in text),
    ]
    for path in paths:
        stem = path.rpartition("/")[2].partition(".")[0]
        if any(_is_chosen(word) for word in re.split(r"[-_]+", stem) if word not in links):
            yield stem


def _is_chosen(word: str) -> bool:
    return bool(word) and _USUAL.fullmatch(word.lower()) is None


def _drivers(cluster: ClusterFacts) -> Iterator[str]:
    return (device.driver for device in cluster.others)


def _find_object_names(text: str) -> dict[str, str]:
    """Names and namespaces of objects, anywhere in a document."""
    names: dict[str, str] = {}
    try:
        _walk(json.loads(text), "", names) if text else None
    except (ValueError, RecursionError):
        return names
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
