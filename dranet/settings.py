"""The driver's own settings: defaults < file < ``DRANET_*`` < flags.

Each setting is declared once, here, with its default, unit, help and what it accepts; the flags, the
environment names and ``docs/reference/settings.md`` come from that. Unknown keys are refused. A claim's
opaque parameters are called *config* and live in ``model/network.py``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from msgspec import Struct

from dranet import socket_names
from dranet.errors import SettingsError
from dranet.socket_names import UNIX_PATH_MAX_BYTES

_DRIVER_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain that begins with a letter, because it is also the vendor of our CDI devices."""

_POD_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,127}")
"""A UUID; a static pod has a hash without hyphens."""

_LINK_KIND = re.compile(r"[a-z0-9][a-z0-9_-]{0,14}")

_SERVICE_LINK = re.compile(r"DRANET_(SERVICE|PORT)(_|$)|DRANET_\w+_(SERVICE|PORT)(_|$)")
"""Names that Kubernetes itself injects for a Service whose name starts with ``dranet``."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class PublishGpus(StrEnum):
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class NodePage(StrEnum):
    LOCALHOST = "localhost"
    OFF = "off"
    ALL = "all"


class Authentication(StrEnum):
    NONE = "none"
    KUBERNETES = "kubernetes"
    CLIENT_CERTIFICATE = "client-certificate"


class DeviceMetrics(StrEnum):
    OFF = "off"
    DEVICES = "devices"
    PODS = "pods"


class AddressConflicts(StrEnum):
    """What happens where an address is in use elsewhere; ``off`` does not look."""

    OFF = "off"
    WARN = "warn"
    REFUSE = "refuse"


class HealthTaints(StrEnum):
    """What the taint of a device that carries nothing does; ``off`` is no taints at all."""

    OFF = "off"
    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


Accept = Callable[[object], Any]
"""Turns a value (text, or what a file holds) into a setting's own type; the text of a ValueError is the
rule."""


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("must be text")


def _driver_name(value: object) -> str:
    if not isinstance(value, str) or len(value) > 63 or not _DRIVER_NAME.fullmatch(value):
        raise ValueError("must be a lower-case DNS name of at most 63 characters, letter first, e.g. dra.net")
    return value


def _pod_uid(value: object) -> str:
    if not isinstance(value, str) or (value and not _POD_UID.fullmatch(value)):
        raise ValueError("must be a pod's UID, or empty, e.g. 6e4b6f5d-0f4c-4b8e-9a39-3c1c5d2f7a10")
    return value


def _address(value: object) -> str:
    host, colon, port = str(value).rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError("must be HOST:PORT or :PORT, e.g. 127.0.0.1:9177 or [::1]:9177")
    return str(value)


def _absolute_path(value: object) -> Path:
    if not isinstance(value, str | Path) or not Path(value).is_absolute():
        raise ValueError("must be an absolute path")
    return Path(value)


def _absolute_path_or_none(value: object) -> Path | None:
    return None if value in ("", None) else _absolute_path(value)


def _absolute_paths(value: object) -> tuple[Path, ...]:
    paths = value if isinstance(value, tuple) else _words(value)
    return tuple(_absolute_path(path) for path in paths)


def _words(value: object) -> tuple[str, ...]:
    """A list in a file; elsewhere words between commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Iterable) or not all(isinstance(item, str) for item in items):
        raise ValueError("must be a list of names, or text with commas between them")
    return tuple(word for item in items if (word := item.strip()))


def _link_kinds(value: object) -> tuple[str, ...]:
    words = _words(value)
    if not all(_LINK_KIND.fullmatch(word) for word in words):
        raise ValueError(
            "must be kinds as `ip -details link` prints them, with commas between, e.g. veth,bridge"
        )
    return words


def _ip_addresses(value: object) -> tuple[str, ...]:
    words = _words(value)
    try:
        return tuple(str(ip_address(word)) for word in words)
    except ValueError as error:
        raise ValueError(f"must be IP addresses with commas between them ({error})") from None


def _two_digits(value: object) -> str:
    if not re.fullmatch(r"[0-9]{2}", str(value)):
        raise ValueError("must be two digits, e.g. 10")
    return str(value)


def _boolean(value: object) -> bool:
    known = {"true": True, "false": False}
    text = str(value).lower()
    if text not in known:
        raise ValueError("must be true or false")
    return known[text]


class Seconds(Struct, frozen=True):
    lowest: float
    highest: float = 86400.0

    def __call__(self, value: object) -> float:
        try:
            seconds = float(value) if isinstance(value, str | int | float) else None
        except ValueError:
            seconds = None
        if seconds is None or not self.lowest <= seconds <= self.highest:
            raise ValueError(f"must be a number of seconds from {self.lowest:g} to {self.highest:g}")
        return seconds


class Choice(Struct, frozen=True):
    choices: type[StrEnum]

    def __call__(self, value: object) -> StrEnum:
        text = "off" if value is False else value  # a bare `off` is false in YAML
        if not isinstance(text, str) or text not in list(self.choices):
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        return self.choices(text)


_SETTINGS: list[tuple[Accept, str]] = []
"""What each field of :class:`Settings` accepts and its description, in their order."""


def _setting(default: Any, accept: Accept, description: str) -> Any:
    _SETTINGS.append((accept, description))
    return default


class Settings(Struct, frozen=True):
    """Everything an operator may set. Build it with :func:`load_settings`."""

    driver_name: str = _setting(
        "dra.net", _driver_name, "name the driver registers under and publishes slices for"
    )
    node_name: str = _setting(
        "", _text, "name of this Node object; from the downward API (default: the host name)"
    )
    pod_uid: str = _setting(
        "",
        _pod_uid,
        "UID of the driver's own pod; from the downward API (metadata.uid). With it two instances may "
        "overlap on a node, as in a rolling update; without it an instance is alone or refuses to start",
    )
    kubeconfig: str = _setting(
        "", _text, "kubeconfig file; empty means the pod's service account (in-cluster)"
    )
    kubelet_root: Path = _setting(
        Path("/var/lib/kubelet"),
        _absolute_path,
        "the kubelet's root folder; plugins/, plugins_registry/ and pod-resources/ lie below it",
    )
    state_dir: Path = _setting(
        Path("/var/lib/dranet"), _absolute_path, "folder of the prepared-claims store and the ready files"
    )
    cdi_dir: Path = _setting(
        Path("/var/run/cdi"), _absolute_path, "folder where the runtime looks for CDI specs"
    )
    nri_socket: Path = _setting(
        Path("/var/run/nri/nri.sock"), _absolute_path, "the container runtime's NRI socket"
    )
    nri_index: str = _setting(
        "10", _two_digits, "two digits: the order in which the runtime calls its NRI plugins"
    )
    hook_budget_seconds: float = _setting(
        1.5,
        Seconds(0.1, 30),
        "how long an NRI hook waits for the kernel before it answers; the attach goes on behind the answer, "
        "and containers wait for it. Never more than 85 % of the runtime's plugin_request_timeout (2 s by "
        "default), beyond which the pod starts without us; a runtime that does not report its timeout "
        "(containerd 1.7) is believed to wait long enough",
    )
    bind_address: str = _setting(
        ":9177", _address, "HOST:PORT of /metrics, /healthz, /readyz and the status page"
    )
    node_page: NodePage = _setting(
        NodePage.LOCALHOST,
        Choice(NodePage),
        "clients that see the status page: localhost (from the node itself, and by kubectl port-forward), "
        "off, or all who reach the port and may read it",
    )
    metrics_tls_cert: Path | None = _setting(
        None,
        _absolute_path_or_none,
        "PEM file with the certificate of the port and those between it and its authority; with it the port "
        "speaks HTTPS alone. Read again when it changes",
    )
    metrics_tls_key: Path | None = _setting(
        None, _absolute_path_or_none, "PEM file with the key to metrics_tls_cert, not encrypted"
    )
    metrics_authentication: Authentication = _setting(
        Authentication.NONE,
        Choice(Authentication),
        "how callers of the port show who they are, /healthz and the plain /readyz excepted: none, "
        "kubernetes (bearer token; the API server decides whether its user may get the path) or "
        "client-certificate (signed by metrics_client_ca); both need TLS",
    )
    metrics_client_ca: Path | None = _setting(
        None,
        _absolute_path_or_none,
        "PEM file with the authorities whose certificates callers may show, for metrics_authentication "
        "client-certificate. Read again when it changes",
    )
    device_metrics: DeviceMetrics = _setting(
        DeviceMetrics.PODS,
        Choice(DeviceMetrics),
        "series of devices in /metrics: off, devices (series by device), or pods (and series with the names "
        "of the pods and claims that have them now)",
    )
    ready_file: Path | None = _setting(
        None,
        _absolute_path_or_none,
        "a file in a volume of this pod alone that exists while the driver is ready, for a readiness probe "
        "(exec: dranet ready FILE) that an overlapping instance cannot answer; empty: no file",
    )
    sysfs_root: Path = _setting(Path("/sys"), _absolute_path, "where sysfs is mounted")
    procfs_root: Path = _setting(Path("/proc"), _absolute_path, "where procfs is mounted")
    pci_ids: Path | None = _setting(
        None,
        _absolute_path_or_none,
        "the pci.ids database, for vendor and device names; empty looks in the usual places (Debian package "
        "pci.ids)",
    )
    facts_file: Path | None = _setting(
        None,
        _absolute_path_or_none,
        "offer the devices of a capture (dranet capture) instead of this node's; for trying out",
    )
    node_addresses: tuple[str, ...] = _setting(
        (),
        _ip_addresses,
        "the node's own IP addresses, whose links are never offered; from the downward API (status.hostIPs); "
        "those of the Node object are added",
    )
    filter: str = _setting(
        "",
        _text,
        "CEL expression that a device must match to be offered, e.g. "
        'device.attributes["dra.net"].?type.orValue("") != "vlan"; DraNet\'s form '
        '(attributes["dra.net/type"].StringValue) also works; empty offers all that is safe',
    )
    shared_devices: str = _setting(
        "",
        _text,
        "CEL expression: network interfaces that it matches may be held by several claims at once, each "
        "with a macvlan, ipvlan or VLAN on top; needs the cluster's feature gate DRAConsumableCapacity; "
        "empty: none is shared",
    )
    attributes_file: Path | None = _setting(
        None,
        _absolute_path_or_none,
        "YAML or JSON file with attributes of your own for devices chosen by CEL; read again when it changes",
    )
    ipam_file: Path | None = _setting(
        None,
        _absolute_path_or_none,
        "YAML or JSON file with sources of addresses, by the names that claims give in interface.ipam; read "
        "again when it changes; empty: claims with interface.ipam are refused",
    )
    cni_bin_dirs: tuple[Path, ...] = _setting(
        (Path("/opt/cni/bin"),),
        _absolute_paths,
        "folders in which the CNI IPAM plugins of ipam_file are looked for, in this order",
    )
    address_conflicts: AddressConflicts = _setting(
        AddressConflicts.OFF,
        Choice(AddressConflicts),
        "ask the link's network, when a claim is prepared, whether its addresses are in use (ARP and ND "
        "probes, about a second): off, warn (an Event), or refuse, which starts the pod once they are free",
    )
    prefer_attributes: tuple[str, ...] = _setting(
        (),
        _words,
        "attributes that go first when a device has more than a slice can take (32), e.g. rdmaPortGuid",
    )
    list_attributes: bool = _setting(
        False,
        _boolean,
        "publish resource.kubernetes.io/numaNode as a list, and pcieRoot of a NIC that shares no root with a "
        "GPU; needs Kubernetes 1.37 and its feature gate DRAListTypeAttributes",
    )
    move_ib_interfaces: bool = _setting(
        True,
        _boolean,
        "offer IPoIB interfaces; if false they stay on the node and their adapters are offered as RDMA-only",
    )
    offer_link_kinds: tuple[str, ...] = _setting(
        (),
        _link_kinds,
        "kinds of software links to offer although they usually belong to the node, e.g. veth,vxlan; never "
        "the uplink, nor what is tied to it",
    )
    publish_gpus: PublishGpus = _setting(
        PublishGpus.AUTO,
        Choice(PublishGpus),
        "publish GPUs as devices of this driver: auto (where no DRA driver and no device plugin of the "
        "vendor serves this node), always or never; in any case NICs publish which GPUs are near",
    )
    gpu_return_seconds: float = _setting(
        300.0,
        Seconds(0),
        "with publish_gpus auto: GPUs that another program served, or may yet serve after a boot, are "
        "offered after this time without one; longer than an update of the vendor's driver takes",
    )
    vendor_cdi_dirs: tuple[Path, ...] = _setting(
        (Path("/etc/cdi"), Path("/var/run/cdi")),
        _absolute_paths,
        "folders in which the runtime looks for CDI specs, as far as they are mounted here: a GPU of this "
        "driver is given by its vendor's CDI device where one of them has it; empty: by its device nodes",
    )
    device_metadata: bool = _setting(
        True,
        _boolean,
        "give containers files about their devices (KEP-5304) and, with admin access, counters; false is for "
        "claims prepared from then on",
    )
    rescan_seconds: float = _setting(
        60.0, Seconds(1), "rescan the node at least this often; changes trigger a scan at once"
    )
    reconcile_seconds: float = _setting(
        180.0,
        Seconds(1),
        "compare prepared claims with runtime, kernel and API server at least this often; a start, and a "
        "runtime or kubelet that comes back, lead to it at once",
    )
    health_taints: HealthTaints = _setting(
        HealthTaints.NO_SCHEDULE,
        Choice(HealthTaints),
        "effect of the taint on a device whose link or RDMA port is down: off, None (only shown; for trying "
        "out), NoSchedule, or NoExecute, which also ends the pod that has it; lesser faults are only shown",
    )
    health_raise_seconds: float = _setting(
        10.0, Seconds(0, 3600), "how long a fault must persist before the device is reported unhealthy"
    )
    health_training_seconds: float = _setting(
        60.0,
        Seconds(0, 3600),
        "how long a link may take to work after it was switched on, or moved into a pod or out of it",
    )
    health_clear_seconds: float = _setting(
        60.0,
        Seconds(1, 3600),
        "how long a fault must be gone before it is cleared; up to sixteen times longer if it comes back",
    )
    health_ignore: tuple[str, ...] = _setting(
        (),
        _words,
        "faults not to judge: link-down, rdma-port-down, link-flapping, link-errors, pcie-degraded, "
        "firmware-changed, driver-changed",
    )
    drain_seconds: float = _setting(
        10.0,
        Seconds(0),
        "on SIGTERM wait this long for prepared pods whose sandbox has not run yet, or for a successor; 15 s "
        "later at the latest the process has ended, so the pod's terminationGracePeriodSeconds must be at "
        "least 20 more than this",
    )
    log_level: LogLevel = _setting(LogLevel.INFO, Choice(LogLevel), "debug, info, warning or error")
    log_format: LogFormat = _setting(LogFormat.TEXT, Choice(LogFormat), "text or json")

    @property
    def plugin_dir(self) -> Path:
        return self.kubelet_root / "plugins" / self.driver_name

    @property
    def dra_socket(self) -> Path:
        return self.sockets_of(self.pod_uid)[0]

    @property
    def pod_resources_socket(self) -> Path:
        return self.kubelet_root / "pod-resources" / "kubelet.sock"

    @property
    def registration_socket(self) -> Path:
        return self.sockets_of(self.pod_uid)[1]

    def sockets_of(self, pod_uid: str) -> tuple[Path, Path]:
        """DRA and registration socket of the instance in that pod, with these settings."""
        registry = self.kubelet_root / "plugins_registry"
        return (
            socket_names.dra_socket(self.plugin_dir, pod_uid),
            socket_names.registration_socket(registry, self.driver_name, pod_uid),
        )


class Declaration(Struct, frozen=True):
    """One setting as declared: for flags, environment names and the reference page."""

    name: str
    default: Any
    description: str
    accept: Accept

    @property
    def flag(self) -> str:
        return flag_name(self.name)

    @property
    def environment(self) -> str:
        return "DRANET_" + self.name.upper()


def flag_name(name: str) -> str:
    """``sysfs_root`` -> ``--sysfs-root``."""
    return "--" + name.replace("_", "-")


DECLARATIONS: Mapping[str, Declaration] = {
    name: Declaration(name, default, description, accept)
    for name, default, (accept, description) in zip(
        Settings.__struct_fields__, Settings.__struct_defaults__, _SETTINGS, strict=True
    )
}
"""Every setting by name, in the order of ``Settings``."""


def load_settings(
    flags: Mapping[str, str], environment: Mapping[str, str], file: Path | None = None
) -> Settings:
    """Merge the layers and validate the whole.

    Raises:
        SettingsError: every bad key at once, each with where it came from and why.
    """
    entries = _read_file(file) if file else {}
    inputs: dict[str, tuple[str, object]] = {
        name: (f"{name} in file {file}", value) for name, value in entries.items()
    }
    names = {declaration.environment: name for name, declaration in DECLARATIONS.items()}
    for key, value in environment.items():
        if key.startswith("DRANET_") and not _SERVICE_LINK.match(key):
            inputs[names.get(key, key)] = (key, value)
    for name, value in flags.items():
        inputs[name] = (flag_name(name), value)
    settings = _build(inputs)
    _check_socket_paths(settings)
    _check_port(settings)
    return settings


def _build(inputs: Mapping[str, tuple[str, object]]) -> Settings:
    accepted: dict[str, Any] = {}
    problems: list[str] = []
    for name, (spelling, value) in inputs.items():
        declaration = DECLARATIONS.get(name)
        if declaration is None:
            problems.append(f"{spelling}: unknown setting; {_suggest(name)}")
            continue
        try:
            accepted[name] = declaration.accept(value)
        except ValueError as error:
            problems.append(f"{spelling}: {error}, not {value!r}")
    if problems:
        raise SettingsError("; ".join(problems))
    return Settings(**accepted)


def _suggest(name: str) -> str:
    """What was meant, where that is clear; else every name."""
    from difflib import get_close_matches  # only who is about to end pays for it

    near = get_close_matches(name.removeprefix("DRANET_").lower(), DECLARATIONS, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(DECLARATIONS)}"


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"settings file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"settings file {path}: not UTF-8 text") from error
    data = _parse_json(path, text) if path.suffix == ".json" else _parse_yaml(path, text)
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise SettingsError(f"settings file {path}: must be a mapping of setting names to values")
    return data


def _parse_json(path: Path, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"settings file {path}: not JSON: {error}") from error


def _parse_yaml(path: Path, text: str) -> object:
    import yaml  # costs time and memory that a driver set up by flags never pays

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise SettingsError(f"settings file {place}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date
        raise SettingsError(f"settings file {path}: not YAML: {error}") from error


def _check_socket_paths(settings: Settings) -> None:
    flags = {
        settings.dra_socket: "--kubelet-root",
        settings.registration_socket: "--kubelet-root",
        settings.nri_socket: "--nri-socket",
    }
    problems = [
        f"{flag}: socket path {path} has {len(os.fsencode(path))} bytes, a UNIX socket takes "
        f"{UNIX_PATH_MAX_BYTES}"
        for path, flag in flags.items()
        if not socket_names.fits(path)
    ]
    if problems:
        raise SettingsError("; ".join(problems), hint="use a shorter folder or driver name")


def _check_port(settings: Settings) -> None:
    has_tls = settings.metrics_tls_cert is not None
    if has_tls != (settings.metrics_tls_key is not None):
        present, other = ("cert", "key") if has_tls else ("key", "cert")
        raise SettingsError(
            f"--metrics-tls-{present} without --metrics-tls-{other}",
            hint="set both, as tls.crt and tls.key of one Secret, or neither",
        )
    way = settings.metrics_authentication
    if way is not Authentication.NONE and not has_tls:
        raise SettingsError(
            f"--metrics-authentication {way} without --metrics-tls-cert",
            hint="set --metrics-tls-cert and --metrics-tls-key: callers cannot be identified without TLS",
        )
    if (way is Authentication.CLIENT_CERTIFICATE) != (settings.metrics_client_ca is not None):
        raise SettingsError(
            f"--metrics-authentication {way} {'with' if settings.metrics_client_ca else 'without'} "
            "--metrics-client-ca",
            hint="client-certificate needs the file, and nothing else reads it",
        )
