"""The configuration files of containerd and CRI-O, read for ``dranet doctor``: NRI and CDI.

The files contain what was written there, not what the running process uses: that is shown by what it calls
(``runtime/capabilities.py``). Only their own words are taken; defaults differ between versions.
"""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from dranet.model.host_facts import RuntimeConfig

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


class Files(Protocol):
    """The node's own file system, by paths without a leading slash (``kernel.sysfs.PseudoFiles``)."""

    def whole_text(self, path: str) -> str: ...
    def entries(self, path: str) -> list[str]: ...


def read_runtime_config(files: Files) -> RuntimeConfig | None:
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


def _list_crio(files: Files) -> list[str]:
    return [f"{_CRIO_FOLDER}/{name}" for name in files.entries(_CRIO_FOLDER)[:_MOST_FILES]]


def _parse(text: str) -> _Table:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _merge_imports(files: Files, path: str, config: _Table) -> _Table:
    """With the files that it imports, each over those before; imports of imports are not followed."""
    imports = config.get("imports")
    merged = config
    for pattern in imports if isinstance(imports, list) else ():
        if isinstance(pattern, str):
            for name in _expand(files, pattern, path.rpartition("/")[0]):
                merged = _merge(merged, _parse(files.whole_text(name)))
    return merged


def _expand(files: Files, pattern: str, folder: str) -> Iterator[str]:
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
