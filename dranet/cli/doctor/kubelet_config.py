"""How the kubelet was set up, read for ``dranet doctor`` from its file and from the states it keeps.

The place of the file differs between distributions; the states (``cpu_manager_state``,
``memory_manager_state``) are always in the kubelet's root folder and name the active policies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from dranet.model.host_facts import KubeletConfig

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

_Table = Mapping[str, Any]


class Files(Protocol):
    def whole_text(self, path: str) -> str: ...


def read_kubelet_config(root: Files | None, kubelet_root: Files) -> KubeletConfig | None:
    """``root`` is the node's own file system, ``kubelet_root`` the kubelet's; either may be absent."""
    path, config = _find_config(root, kubelet_root)
    cpu, memory = (
        _text(_parse(kubelet_root.whole_text(name)), "policyName") for name in (_CPU_STATE, _MEMORY_STATE)
    )
    if not path and not cpu and not memory:
        return None
    return _build(path or "the kubelet's states", config, cpu, memory)


def _find_config(root: Files | None, kubelet_root: Files) -> tuple[str, _Table]:
    others = [(root, path) for path in _CONFIGS] if root is not None else []
    candidates = [(kubelet_root, "config.yaml"), *others]
    for files, path in candidates:
        config = _parse(files.whole_text(path))
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


def _parse(text: str) -> _Table:
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


def _text(table: _Table, key: str) -> str:
    value = table.get(key)
    return value if isinstance(value, str) else ""


_CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
_CHECKPOINT_BYTES = 4 << 20
_MOST_RESOURCES, _MOST_IDS = 256, 4096


class RawFiles(Protocol):
    def content(self, path: str, most: int) -> bytes: ...


def read_device_plugins(kubelet_root: RawFiles) -> tuple[tuple[str, tuple[str, ...]], ...]:
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
