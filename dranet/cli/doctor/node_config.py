"""The configuration files of containerd and CRI-O (NRI and CDI) and of the kubelet, for ``dranet doctor``.

The files contain what was written there, not what the running process uses: that is shown by what it calls
(``runtime/capabilities.py``). Only their own words are taken; defaults differ between versions. The place of
the kubelet's file differs between distributions; its states (``cpu_manager_state``, ``memory_manager_state``)
are always in its root folder and name the active policies.
"""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.findings import KubeletConfig, RuntimeConfig

_CONTAINERD = (
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "var/snap/microk8s/current/args/containerd.toml",
)
_CRIO = ("etc/crio/crio.conf",)
_CRIO_FOLDER = "etc/crio/crio.conf.d"
_MOST_FILES = 64

NRI_PLUGIN = "io.containerd.nri.v1.nri"
_CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""Names in containerd 2 and in 1.7."""

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_Table = Mapping[str, Any]


def read_runtime_config(files: PseudoFiles) -> RuntimeConfig | None:
    """The first configuration that is there."""
    for path in _CONTAINERD:
        text = files.whole_text(path)
        if text:
            return parse_containerd(f"/{path}", _merge_imports(files, path, _parse(text)))
    texts = [text for path in (*_CRIO, *_list_crio(files)) if (text := files.whole_text(path))]
    if not texts:
        return None
    merged: _Table = {}
    for text in texts:
        merged = _merge(merged, _parse(text))
    return parse_crio("/etc/crio", merged)


def _list_crio(files: PseudoFiles) -> list[str]:
    return [f"{_CRIO_FOLDER}/{name}" for name in files.entries(_CRIO_FOLDER)[:_MOST_FILES]]


def _parse(text: str) -> _Table:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _merge_imports(files: PseudoFiles, path: str, config: _Table) -> _Table:
    """With the files that it imports, each over those before; imports of imports are not followed."""
    imports = config.get("imports")
    merged = config
    for pattern in imports if isinstance(imports, list) else ():
        if isinstance(pattern, str):
            for name in _expand(files, pattern, path.rpartition("/")[0]):
                merged = _merge(merged, _parse(files.whole_text(name)))
    return merged


def _expand(files: PseudoFiles, pattern: str, folder: str) -> Iterator[str]:
    full = pattern.lstrip("/") if pattern.startswith("/") else f"{folder}/{pattern}"
    parent, _, last = full.rpartition("/")
    yield from (f"{parent}/{n}" for n in files.entries(parent)[:_MOST_FILES] if fnmatch.fnmatch(n, last))


def _merge(lower: _Table, upper: _Table) -> _Table:
    merged = dict(lower)
    for key, value in upper.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both_tables else value
    return merged


def parse_containerd(path: str, config: _Table) -> RuntimeConfig:
    """The contents of the merged file."""
    plugins = _table(config, "plugins")
    nri = _table(plugins, NRI_PLUGIN)
    disabled = config.get("disabled_plugins")
    is_off = isinstance(disabled, list) and NRI_PLUGIN in disabled
    cri: _Table = next((table for name in _CRI_PLUGINS if (table := _table(plugins, name))), {})
    disable = _boolean(nri, "disable")
    version = config.get("version")
    return RuntimeConfig(
        path,
        "containerd",
        nri=False if is_off else None if disable is None else not disable,
        nri_socket=_text(nri, "socket_path"),
        nri_timeout_seconds=parse_duration(_text(nri, "plugin_request_timeout")),
        cdi=_boolean(cri, "enable_cdi"),
        cdi_dirs=_texts(cri.get("cdi_spec_dirs")),
        version=version if isinstance(version, int) else 1,
    )


def parse_crio(path: str, config: _Table) -> RuntimeConfig:
    crio = _table(config, "crio")
    nri = _table(crio, "nri")
    return RuntimeConfig(
        path,
        "CRI-O",
        nri=_boolean(nri, "enable_nri"),
        nri_socket=_text(nri, "nri_listen"),
        nri_timeout_seconds=parse_duration(_text(nri, "nri_plugin_request_timeout")),
        cdi_dirs=_texts(_table(crio, "runtime").get("cdi_spec_dirs")),
    )


def parse_duration(text: str) -> float | None:
    """Parse a duration in Go's form, ``1m30s``; return ``None`` if it is not one."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _table(parent: _Table, key: str) -> _Table:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _text(table: _Table, key: str) -> str:
    value = table.get(key)
    return value if isinstance(value, str) else ""


def _boolean(table: _Table, key: str) -> bool | None:
    value = table.get(key)
    return value if isinstance(value, bool) else None


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
_CPU_STATE, _MEMORY_STATE = "cpu_manager_state", "memory_manager_state"
_MOST_GATES = 256


def read_kubelet_config(root: PseudoFiles | None, kubelet_root: PseudoFiles) -> KubeletConfig | None:
    """``root`` is the node's own file system, ``kubelet_root`` the kubelet's; either may be absent."""
    path, config = _find_config(root, kubelet_root)
    cpu, memory = (
        _text(_parse_document(kubelet_root.whole_text(name)), "policyName")
        for name in (_CPU_STATE, _MEMORY_STATE)
    )
    if not path and not cpu and not memory:
        return None
    return _build(path or "the kubelet's states", config, cpu, memory)


def _find_config(root: PseudoFiles | None, kubelet_root: PseudoFiles) -> tuple[str, _Table]:
    others = [(root, path) for path in _CONFIGS] if root is not None else []
    candidates = [(kubelet_root, "config.yaml"), *others]
    for files, path in candidates:
        config = _parse_document(files.whole_text(path))
        if config.get("kind") == "KubeletConfiguration":
            return (path if files is kubelet_root else f"/{path}"), config
    return "", {}


def _build(path: str, config: _Table, cpu_state: str, memory_state: str) -> KubeletConfig:
    gates = config.get("featureGates")
    return KubeletConfig(
        path=path,
        topology_policy=_text(config, "topologyManagerPolicy") or ("none" if config else ""),
        topology_scope=_text(config, "topologyManagerScope"),
        cpu_policy=cpu_state or _text(config, "cpuManagerPolicy") or ("none" if config else ""),
        memory_policy=memory_state or _text(config, "memoryManagerPolicy") or ("None" if config else ""),
        feature_gates=tuple(sorted(_iter_gates(gates if isinstance(gates, dict) else {}))),
    )


def _iter_gates(gates: Mapping[str, Any]) -> list[tuple[str, bool]]:
    return [(name, value) for name, value in gates.items() if isinstance(value, bool)][:_MOST_GATES]


def _parse_document(text: str) -> _Table:
    """Parse YAML or JSON; return an empty object if it is neither."""
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
    data = document.get("Data") if isinstance(document, dict) else None
    registered = data.get("RegisteredDevices") if isinstance(data, dict) else None
    if not isinstance(registered, dict):
        return ()
    return tuple((name, _read_ids(ids)) for name, ids in sorted(registered.items())[:_MOST_RESOURCES])


def _read_ids(ids: object) -> tuple[str, ...]:
    found = ids[:_MOST_IDS] if isinstance(ids, list) else []
    return tuple(sorted(item for item in found if isinstance(item, str)))
