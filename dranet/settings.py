"""The driver's own settings: defaults < file < ``DRANET_*`` < flags.

Each setting is declared once, here, with its default, unit and help; the flags, the environment names
and ``docs/user/settings.md`` come from that. Unknown keys are refused. A claim's opaque parameters are
called *config* and live in ``model/network.py``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dranet.errors import SettingsError

UNIX_PATH_MAX_BYTES = 107
"""``sockaddr_un`` holds 108 bytes including the terminating zero."""

_DRIVER_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain that begins with a letter: it is the vendor of our CDI devices, too."""

_SERVICE_LINK = re.compile(r"DRANET_(SERVICE|PORT)(_|$)|DRANET_\w+_(SERVICE|PORT)(_|$)")
"""Names that Kubernetes injects by itself beside a Service whose name starts with ``dranet``."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _driver_name(value: str) -> str:
    if len(value) > 63 or not _DRIVER_NAME.fullmatch(value):
        raise ValueError(
            "must be a lower-case DNS subdomain of at most 63 characters, letter first, e.g. dra.net"
        )
    return value


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError("must be HOST:PORT or :PORT, e.g. 127.0.0.1:9177 or [::1]:9177")
    return value


def _absolute(value: Path) -> Path:
    if not value.is_absolute():
        raise ValueError("must be an absolute path")
    return value


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


class Settings(BaseModel):
    """Everything an operator may set. Frozen; build it with :func:`load_settings`."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    driver_name: Annotated[str, AfterValidator(_driver_name)] = Field(
        default="dra.net", description="name the driver registers under and publishes slices for"
    )
    node_name: str = Field(
        default="", description="name of this Node object; from the downward API (default: the host name)"
    )
    kubeconfig: str = Field(
        default="", description="kubeconfig file; empty means the pod's service account (in-cluster)"
    )
    kubelet_root: AbsolutePath = Field(
        default=Path("/var/lib/kubelet"),
        description="the kubelet's root folder; plugins/ and plugins_registry/ lie below it",
    )
    state_dir: AbsolutePath = Field(
        default=Path("/var/lib/dranet"), description="folder of the prepared-claims store and the ready files"
    )
    cdi_dir: AbsolutePath = Field(
        default=Path("/var/run/cdi"), description="folder where the runtime looks for CDI specs"
    )
    nri_socket: AbsolutePath = Field(
        default=Path("/var/run/nri/nri.sock"), description="the container runtime's NRI socket"
    )
    nri_index: Annotated[str, Field(pattern=r"^[0-9]{2}$")] = Field(
        default="10", description="two digits: the order in which the runtime calls its NRI plugins"
    )
    hook_budget_seconds: Annotated[float, Field(gt=0, le=30)] = Field(
        default=1.5,
        description="answer an NRI hook within this time, with an error if the work is not done; "
        "keep it below the runtime's plugin_request_timeout (2 s by default), or the pod starts without us",
    )
    bind_address: Annotated[str, AfterValidator(_address)] = Field(
        default=":9177", description="HOST:PORT of /metrics, /healthz and /readyz"
    )
    sysfs_root: AbsolutePath = Field(default=Path("/sys"), description="where sysfs is mounted")
    procfs_root: AbsolutePath = Field(default=Path("/proc"), description="where procfs is mounted")
    publish_gpus: bool = Field(
        default=True,
        description="publish GPUs as devices of this driver; turn it off where a vendor's driver does",
    )
    rescan_seconds: Annotated[float, Field(ge=1)] = Field(
        default=60.0, description="rescan the node at least this often; changes trigger a scan at once"
    )
    drain_seconds: Annotated[float, Field(ge=0)] = Field(
        default=10.0, description="on SIGTERM wait this long for prepared pods whose sandbox has not run yet"
    )
    log_level: LogLevel = Field(default=LogLevel.INFO, description="debug, info, warning or error")
    log_format: LogFormat = Field(default=LogFormat.TEXT, description="text or json")

    @property
    def plugin_dir(self) -> Path:
        """The driver's own folder under the kubelet's ``plugins/``."""
        return self.kubelet_root / "plugins" / self.driver_name

    @property
    def dra_socket(self) -> Path:
        return self.plugin_dir / "dra.sock"

    @property
    def registration_socket(self) -> Path:
        return self.kubelet_root / "plugins_registry" / f"{self.driver_name}-reg.sock"


def flag_name(field: str) -> str:
    """``sysfs_root`` -> ``--sysfs-root``."""
    return "--" + field.replace("_", "-")


def environment_name(field: str) -> str:
    """``sysfs_root`` -> ``DRANET_SYSFS_ROOT``."""
    return "DRANET_" + field.upper()


def load_settings(
    flags: Mapping[str, str], environment: Mapping[str, str], file: Path | None = None
) -> Settings:
    """Merge the layers and validate the whole.

    Raises:
        SettingsError: every bad key at once, each with where it came from and why.
    """
    origin: dict[str, str] = {}
    merged: dict[str, Any] = {}
    for source, layer in (
        (f"file {file}", _read_file(file) if file else {}),
        ("environment", _read_environment(environment)),
        ("flag", flags),
    ):
        for key, value in layer.items():
            merged[key] = value
            origin[key] = _spelling(source, key)
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise SettingsError(_explain(error, origin)) from error
    _check_socket_paths(settings)
    return settings


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text()
    except OSError as error:
        raise SettingsError(f"settings file {path}: {error.strerror}") from error
    try:
        if path.suffix == ".json":
            data = json.loads(text)
        else:
            import yaml  # 11 MB and 26 ms that a driver set up by flags never pays

            data = yaml.safe_load(text)
    except ValueError as error:
        raise SettingsError(f"settings file {path}: not JSON: {error}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise SettingsError(f"settings file {path}: not YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise SettingsError(f"settings file {path}: must be a mapping of setting names to values")
    return data


def _read_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    known = {environment_name(field): field for field in Settings.model_fields}
    unknown = sorted(
        k for k in environment if k.startswith("DRANET_") and k not in known and not _SERVICE_LINK.match(k)
    )
    if unknown:
        raise SettingsError(
            f"unknown environment setting {', '.join(unknown)}",
            hint=f"known are {', '.join(sorted(known))}",
        )
    return {known[key]: value for key, value in environment.items() if key in known}


def _spelling(source: str, key: str) -> str:
    if source == "flag":
        return flag_name(key)
    return environment_name(key) if source == "environment" else f"{key} in {source}"


def _explain(error: ValidationError, origin: Mapping[str, str]) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        where = origin.get(key, key)
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown setting; known are {', '.join(Settings.model_fields)}")
        else:
            lines.append(f"{where}: {item['msg'].removeprefix('Value error, ')}, not {item['input']!r}")
    return "; ".join(lines)


def _check_socket_paths(settings: Settings) -> None:
    for field, path in (
        ("kubelet_root", settings.dra_socket),
        ("kubelet_root", settings.registration_socket),
        ("nri_socket", settings.nri_socket),
    ):
        size = len(os.fsencode(path))
        if size > UNIX_PATH_MAX_BYTES:
            raise SettingsError(
                f"{flag_name(field)}: socket path {path} has {size} bytes, a UNIX socket takes "
                f"{UNIX_PATH_MAX_BYTES}",
                hint="use a shorter folder or driver name",
            )
