"""The configuration files of containerd and CRI-O (NRI and CDI) and of the kubelet, for ``dranet doctor``.

They need not be what the running process uses. Defaults differ between versions and are not guessed. The
kubelet's state files are always in its root folder and name the active policies."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.findings import KubeletConfig, RuntimeConfig

_CONTAINERD = (
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "var/snap/microk8s/current/args/containerd.toml",
)
_CRIO = "etc/crio/crio.conf"
_CRIO_FOLDER = "etc/crio/crio.conf.d"
_MOST_FILES = 64

NRI_PLUGIN = "io.containerd.nri.v1.nri"
_CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""Names in containerd 2 and in 1.7."""

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_Table = Mapping[str, Any]
_T = TypeVar("_T")
_D = TypeVar("_D")


def read_runtime_config(files: PseudoFiles) -> RuntimeConfig | None:
    """The first configuration that is there."""
    for path in _CONTAINERD:
        text = files.whole_text(path)
        if text:
            return parse_containerd(f"/{path}", _merge_imports(files, path, _parse(text)))
    dropped_in = (f"{_CRIO_FOLDER}/{name}" for name in files.entries(_CRIO_FOLDER)[:_MOST_FILES])
    texts = [text for path in (_CRIO, *dropped_in) if (text := files.whole_text(path))]
    return parse_crio("/etc/crio", reduce(_merge, map(_parse, texts))) if texts else None


def _parse(text: str) -> _Table:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _merge_imports(files: PseudoFiles, path: str, config: _Table) -> _Table:
    """With the files that it imports, each over those before; imports of imports are not followed."""
    merged = config
    for pattern in _texts(config.get("imports")) or ():
        full = pattern.lstrip("/") if pattern.startswith("/") else f"{path.rpartition('/')[0]}/{pattern}"
        parent, _, last = full.rpartition("/")
        for name in fnmatch.filter(files.entries(parent)[:_MOST_FILES], last):
            merged = _merge(merged, _parse(files.whole_text(f"{parent}/{name}")))
    return merged


def _merge(lower: _Table, upper: _Table) -> _Table:
    merged = dict(lower)
    for key, value in upper.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both_tables else value
    return merged


def parse_containerd(path: str, config: _Table) -> RuntimeConfig:
    plugins = _get(config, "plugins", dict, {})
    nri = _get(plugins, NRI_PLUGIN, dict, {})
    is_off = NRI_PLUGIN in _get(config, "disabled_plugins", list, [])
    cri: _Table = next((table for name in _CRI_PLUGINS if (table := _get(plugins, name, dict, {}))), {})
    disable = _get(nri, "disable", bool, None)
    return RuntimeConfig(
        path,
        "containerd",
        nri=False if is_off else None if disable is None else not disable,
        nri_socket=_get(nri, "socket_path", str, ""),
        nri_timeout_seconds=parse_duration(_get(nri, "plugin_request_timeout", str, "")),
        cdi=_get(cri, "enable_cdi", bool, None),
        cdi_dirs=_texts(cri.get("cdi_spec_dirs")),
        version=_get(config, "version", int, 1),
    )


def parse_crio(path: str, config: _Table) -> RuntimeConfig:
    crio = _get(config, "crio", dict, {})
    nri = _get(crio, "nri", dict, {})
    return RuntimeConfig(
        path,
        "CRI-O",
        nri=_get(nri, "enable_nri", bool, None),
        nri_socket=_get(nri, "nri_listen", str, ""),
        nri_timeout_seconds=parse_duration(_get(nri, "nri_plugin_request_timeout", str, "")),
        cdi_dirs=_texts(_get(crio, "runtime", dict, {}).get("cdi_spec_dirs")),
    )


def parse_duration(text: str) -> float | None:
    """Seconds of a duration in Go's form, ``1m30s``; ``None`` if it is not one."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _get(table: _Table, key: str, kind: type[_T], default: _D) -> _T | _D:
    """A value of a file that anyone may have written: the default where it is of another kind."""
    value = table.get(key)
    return value if isinstance(value, kind) else default


def _texts(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    return tuple(item for item in value if isinstance(item, str))


_CONFIGS = (
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet-config.yaml",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/kubelet-config.json",
    "home/kubernetes/kubelet-config.yaml",
)
"""kubeadm and kind; then those of managed clusters."""
_MOST_GATES = 256


def read_kubelet_config(root: PseudoFiles | None, kubelet_root: PseudoFiles) -> KubeletConfig | None:
    """``root`` is the node's own file system, ``kubelet_root`` the kubelet's; either may be absent."""
    path, config = _find_config(root, kubelet_root)
    cpu, memory = (
        _get(_parse_document(kubelet_root.whole_text(name)), "policyName", str, "")
        for name in ("cpu_manager_state", "memory_manager_state")
    )
    if not path and not cpu and not memory:
        return None
    gates = [
        (n, value) for n, value in _get(config, "featureGates", dict, {}).items() if isinstance(value, bool)
    ]
    return KubeletConfig(
        path=path or "the kubelet's states",
        topology_policy=_get(config, "topologyManagerPolicy", str, "") or ("none" if config else ""),
        topology_scope=_get(config, "topologyManagerScope", str, ""),
        cpu_policy=cpu or _get(config, "cpuManagerPolicy", str, "") or ("none" if config else ""),
        memory_policy=memory or _get(config, "memoryManagerPolicy", str, "") or ("None" if config else ""),
        feature_gates=tuple(sorted(gates[:_MOST_GATES])),
    )


def _find_config(root: PseudoFiles | None, kubelet_root: PseudoFiles) -> tuple[str, _Table]:
    others = [(root, path) for path in _CONFIGS] if root is not None else []
    candidates = [(kubelet_root, "config.yaml"), *others]
    for files, path in candidates:
        config = _parse_document(files.whole_text(path))
        if config.get("kind") == "KubeletConfiguration":
            return (path if files is kubelet_root else f"/{path}"), config
    return "", {}


def _parse_document(text: str) -> _Table:
    """YAML or JSON; an empty object if it is neither."""
    if not text:
        return {}
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = _parse_yaml(text)
    return document if isinstance(document, dict) else {}


def _parse_yaml(text: str) -> object:
    import yaml  # the daemon never reads this

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


_CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
_CHECKPOINT_BYTES = 4 << 20
_MOST_RESOURCES, _MOST_IDS = 256, 4096


def read_device_plugins(kubelet_root: PseudoFiles) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each extended resource that a device plugin has registered, with the ids of its devices, as the kubelet
    keeps them on disk."""
    try:
        document = json.loads(kubelet_root.content(_CHECKPOINT, _CHECKPOINT_BYTES) or b"{}")
    except (ValueError, RecursionError):
        return ()
    data = _get(document if isinstance(document, dict) else {}, "Data", dict, {})
    registered = sorted(_get(data, "RegisteredDevices", dict, {}).items())[:_MOST_RESOURCES]
    return tuple((name, tuple(sorted((_texts(ids) or ())[:_MOST_IDS]))) for name, ids in registered)
