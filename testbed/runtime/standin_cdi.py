"""CDI as a container runtime does it: read every spec file, resolve qualified names, collect the edits.

As strict as the CDI library in containerd: a file with an unknown field, a bad name or version, or a device
without edits counts for nothing, and two files that define the same device cancel each other. Only what a
network driver writes is supported: no hooks, no annotations. Source: the CDI specification, version 0.8.0.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from testbed.runtime.contract import RuntimeFailure

_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
_LABEL = r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"

_NonEmpty = Annotated[str, StringConstraints(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _DeviceNode(_Model):
    path: _NonEmpty
    host_path: str = Field("", alias="hostPath")
    type: Literal["", "b", "c", "u", "p"] = ""
    major: Annotated[int, Field(ge=0)] = 0
    minor: Annotated[int, Field(ge=0)] = 0
    file_mode: int | None = Field(None, alias="fileMode")
    permissions: Annotated[str, StringConstraints(pattern="^[rwm]*$")] = ""
    uid: int | None = None
    gid: int | None = None


class _Mount(_Model):
    host_path: _NonEmpty = Field(alias="hostPath")
    container_path: _NonEmpty = Field(alias="containerPath")
    type: str = ""
    options: tuple[str, ...] = Field((), strict=False)


class _Edits(_Model):
    env: tuple[Annotated[str, StringConstraints(pattern="^[^=]+=")], ...] = Field((), strict=False)
    device_nodes: tuple[_DeviceNode, ...] = Field((), alias="deviceNodes", strict=False)
    mounts: tuple[_Mount, ...] = Field((), strict=False)

    @property
    def is_empty(self) -> bool:
        return not (self.env or self.device_nodes or self.mounts)


class _Device(_Model):
    name: Annotated[str, StringConstraints(pattern=f"^{_NAME}$")]
    edits: _Edits = Field(alias="containerEdits")


class _Spec(_Model):
    version: Literal["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0"] = Field(alias="cdiVersion")
    kind: Annotated[str, StringConstraints(pattern=f"^{_LABEL}/{_LABEL}$")]
    devices: Annotated[tuple[_Device, ...], Field(min_length=1, strict=False)]
    edits: _Edits = Field(default_factory=_Edits, alias="containerEdits")

    @property
    def minimum_version(self) -> str:
        """The version that first had what this file uses."""
        edits = [self.edits, *(device.edits for device in self.devices)]
        if any(device.name[0].isdigit() for device in self.devices):
            return "0.5.0"
        if any(node.host_path for edit in edits for node in edit.device_nodes):
            return "0.5.0"
        return "0.4.0" if any(mount.type for edit in edits for mount in edit.mounts) else "0.3.0"


@dataclass(frozen=True, slots=True)
class Injection:
    """What a container gets. ``devices``: path to ``major:minor``; ``mounts``: destination to source."""

    devices: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    memory_nodes: str = ""


def resolve(cdi_dir: Path, names: Sequence[str]) -> Injection:
    """The edits of the named devices, in the order named.

    Raises:
        RuntimeFailure: a name is defined by no valid file, or by two.
    """
    if not names:
        return Injection()
    specs, problems = _read_specs(cdi_dir)
    defined = {f"{spec.kind}={device.name}": (spec, device) for spec in specs for device in spec.devices}
    count = Counter(f"{spec.kind}={device.name}" for spec in specs for device in spec.devices)
    unresolvable = [name for name in names if count[name] != 1]
    if unresolvable:
        why = f" ({'; '.join(problems)})" if problems else ""
        raise RuntimeFailure(
            f"failed to inject CDI devices: unresolvable CDI devices {', '.join(unresolvable)}{why}"
        )
    chosen = [defined[name] for name in names]
    # A file's own edits come once, however many of its devices are named.
    shared = {spec.kind + repr(spec): spec.edits for spec, _ in chosen}
    return _collect([*shared.values(), *(device.edits for _, device in chosen)])


def _read_specs(cdi_dir: Path) -> tuple[list[_Spec], list[str]]:
    specs, problems = [], []
    for path in sorted(cdi_dir.glob("*.json")):
        if path.name.startswith("."):
            continue
        try:
            specs.append(_parse_spec(path.read_bytes()))
        except (ValidationError, ValueError, OSError) as error:
            problems.append(f"{path.name}: {' '.join(str(error).split())}")
    return specs, problems


def _parse_spec(content: bytes) -> _Spec:
    spec = _Spec.model_validate_json(content)
    if spec.minimum_version > spec.version:
        raise ValueError(f"needs cdiVersion {spec.minimum_version}, has {spec.version}")
    empty = [device.name for device in spec.devices if device.edits.is_empty]
    if empty:
        raise ValueError(f"device {empty[0]} has empty containerEdits")
    return spec


def _collect(edits: Sequence[_Edits]) -> Injection:
    return Injection(
        devices={node.path: _numbers(node) for edit in edits for node in edit.device_nodes},
        mounts={mount.container_path: mount.host_path for edit in edits for mount in edit.mounts},
        env=dict(text.split("=", 1) for edit in edits for text in edit.env),
    )


def _numbers(node: _DeviceNode) -> str:
    if node.type and node.major:
        return f"{node.major}:{node.minor}"
    path = node.host_path or node.path
    try:
        number = Path(path).stat().st_rdev
    except OSError as error:
        raise RuntimeFailure(
            f'failed to inject CDI devices: failed to stat CDI host device "{path}": {error.strerror}'
        ) from error
    return f"{os.major(number)}:{os.minor(number)}"
