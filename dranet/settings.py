"""The driver's own settings: defaults < file < ``DRANET_*`` < flags.

Each setting is declared once, here, with its default, unit, help and what it accepts; the flags, the
environment names and ``docs/reference/settings.md`` come from that. Unknown keys are refused. A claim's
opaque parameters are called *config* and live in ``model/network.py``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from dranet import setting_values as accept
from dranet import socket_names
from dranet.errors import SettingsError
from dranet.setting_values import BANDWIDTH_STEP as BANDWIDTH_STEP
from dranet.setting_values import Accept as Accept
from dranet.setting_values import AddressConflicts as AddressConflicts
from dranet.setting_values import Authentication as Authentication
from dranet.setting_values import Choice as Choice
from dranet.setting_values import CloudProvider as CloudProvider
from dranet.setting_values import DeviceMetrics as DeviceMetrics
from dranet.setting_values import HealthTaints as HealthTaints
from dranet.setting_values import Lldp as Lldp
from dranet.setting_values import LogFormat as LogFormat
from dranet.setting_values import LogLevel as LogLevel
from dranet.setting_values import NodePage as NodePage
from dranet.setting_values import ProfileProvider as ProfileProvider
from dranet.setting_values import PublishGpus as PublishGpus
from dranet.setting_values import Seconds as Seconds
from dranet.socket_names import UNIX_PATH_MAX_BYTES

_SERVICE_LINK = re.compile(r"DRANET_(SERVICE|PORT)(_|$)|DRANET_\w+_(SERVICE|PORT)(_|$)")
"""Names that Kubernetes itself injects for a Service whose name starts with ``dranet``."""


_SETTINGS: list[tuple[Accept, str]] = []
"""What each field of :class:`Settings` accepts and its description, in their order."""


def _setting(default: Any, accept: Accept, description: str) -> Any:
    _SETTINGS.append((accept, description))
    return default


class Settings(Struct, frozen=True):
    """Everything an operator may set. Build it with :func:`load_settings`."""

    driver_name: str = _setting(
        "dra.net", accept.driver_name, "name the driver registers under and publishes slices for"
    )
    node_name: str = _setting(
        "", accept.text, "name of this Node object; from the downward API (default: the host name)"
    )
    pod_uid: str = _setting(
        "",
        accept.pod_uid,
        "UID of the driver's own pod; from the downward API (metadata.uid). With it two instances may "
        "overlap on a node, as in a rolling update; without it an instance is alone or refuses to start",
    )
    kubeconfig: str = _setting(
        "", accept.text, "kubeconfig file; empty means the pod's service account (in-cluster)"
    )
    kubelet_root: Path = _setting(
        Path("/var/lib/kubelet"),
        accept.absolute_path,
        "the kubelet's root folder; plugins/, plugins_registry/ and pod-resources/ lie below it",
    )
    state_dir: Path = _setting(
        Path("/var/lib/dranet"),
        accept.absolute_path,
        "folder of the prepared-claims store and the ready files",
    )
    cdi_dir: Path = _setting(
        Path("/var/run/cdi"), accept.absolute_path, "folder where the runtime looks for CDI specs"
    )
    nri_socket: Path = _setting(
        Path("/var/run/nri/nri.sock"), accept.absolute_path, "the container runtime's NRI socket"
    )
    nri_index: str = _setting(
        "10", accept.two_digits, "two digits: the order in which the runtime calls its NRI plugins"
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
        ":9177", accept.address, "HOST:PORT of /metrics, /healthz, /readyz and the status page"
    )
    node_page: NodePage = _setting(
        NodePage.LOCALHOST,
        Choice(NodePage),
        "clients that see the status page: localhost (from the node itself, and by kubectl port-forward), "
        "off, or all who reach the port and may read it",
    )
    metrics_tls_cert: Path | None = _setting(
        None,
        accept.absolute_path_or_none,
        "PEM file with the certificate of the port and those between it and its authority; with it the port "
        "speaks HTTPS alone. Read again when it changes",
    )
    metrics_tls_key: Path | None = _setting(
        None, accept.absolute_path_or_none, "PEM file with the key to metrics_tls_cert, not encrypted"
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
        accept.absolute_path_or_none,
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
        accept.absolute_path_or_none,
        "a file in a volume of this pod alone that exists while the driver is ready, for a readiness probe "
        "(exec: dranet ready FILE) that an overlapping instance cannot answer; empty: no file",
    )
    sysfs_root: Path = _setting(Path("/sys"), accept.absolute_path, "where sysfs is mounted")
    procfs_root: Path = _setting(Path("/proc"), accept.absolute_path, "where procfs is mounted")
    pci_ids: Path | None = _setting(
        None,
        accept.absolute_path_or_none,
        "the pci.ids database, for vendor and device names; empty looks in the usual places (Debian package "
        "pci.ids)",
    )
    facts_file: Path | None = _setting(
        None,
        accept.absolute_path_or_none,
        "offer the devices of a capture (dranet capture) instead of this node's; for trying out",
    )
    node_addresses: tuple[str, ...] = _setting(
        (),
        accept.ip_addresses,
        "the node's own IP addresses, whose links are never offered; from the downward API (status.hostIPs); "
        "those of the Node object are added",
    )
    filter: str = _setting(
        "",
        accept.text,
        "CEL expression that a device must match to be offered, e.g. "
        'device.attributes["dra.net"].?type.orValue("") != "vlan"; DraNet\'s form '
        '(attributes["dra.net/type"].StringValue) also works; empty offers all that is safe',
    )
    shared_devices: str = _setting(
        "",
        accept.text,
        "CEL expression: network interfaces that it matches may be held by several claims at once, each "
        "with a macvlan, ipvlan or VLAN on top; needs the cluster's feature gate DRAConsumableCapacity; "
        "empty: none is shared",
    )
    default_bandwidth: int | None = _setting(
        None,
        accept.bit_rate,
        "bits per second that a claim takes of a shared device if it does not request dra.net/bandwidth, "
        "e.g. 1G; the scheduler then counts the bandwidth of shared devices, and each share is limited to "
        "what its claim took; empty: bandwidth is neither counted nor limited",
    )
    assumed_bandwidth: int | None = _setting(
        None,
        accept.bit_rate,
        "bits per second of a shared device that reports no speed, as in many virtual machines, e.g. 100G; "
        "empty: such a device is not offered until its speed is known, while bandwidth is counted",
    )
    attributes_file: Path | None = _setting(
        None,
        accept.absolute_path_or_none,
        "YAML or JSON file with attributes of your own for devices chosen by CEL; read again when it changes",
    )
    ipam_file: Path | None = _setting(
        None,
        accept.absolute_path_or_none,
        "YAML or JSON file with sources of addresses, by the names that claims give in interface.ipam; read "
        "again when it changes; empty: claims with interface.ipam are refused",
    )
    cni_bin_dirs: tuple[Path, ...] = _setting(
        (Path("/opt/cni/bin"),),
        accept.absolute_paths,
        "folders in which the CNI IPAM plugins of ipam_file are looked for, in this order",
    )
    address_conflicts: AddressConflicts = _setting(
        AddressConflicts.OFF,
        Choice(AddressConflicts),
        "ask the link's network, when a claim is prepared, whether its addresses are in use (ARP and ND "
        "probes, about a second): off, warn (an Event), or refuse, which starts the pod once they are free",
    )
    virtual_functions_file: Path | None = _setting(
        None,
        accept.absolute_path_or_none,
        "YAML or JSON file that names which physical functions get how many virtual functions, and with "
        "which defaults; read again when it changes; empty: the driver makes and removes none",
    )
    prefer_attributes: tuple[str, ...] = _setting(
        (),
        accept.words,
        "attributes that go first when a device has more than a slice can take (32), e.g. rdmaPortGuid",
    )
    list_attributes: bool = _setting(
        False,
        accept.boolean,
        "publish resource.kubernetes.io/numaNode as a list, and pcieRoot of a NIC that shares no root with a "
        "GPU; needs Kubernetes 1.37 and its feature gate DRAListTypeAttributes",
    )
    move_ib_interfaces: bool = _setting(
        True,
        accept.boolean,
        "offer IPoIB interfaces; if false they stay on the node and their adapters are offered as RDMA-only",
    )
    offer_link_kinds: tuple[str, ...] = _setting(
        (),
        accept.link_kinds,
        "kinds of software links to offer although they usually belong to the node, e.g. veth,vxlan; never "
        "the uplink, nor what is tied to it",
    )
    cloud_provider: CloudProvider = _setting(
        CloudProvider.AUTO,
        accept.cloud_provider,
        "the cloud whose facts about the machine and its place are attributes of devices: auto (the one that "
        "the Node object or DMI names; elsewhere nothing is asked), off, gce, aws, azure, oke, alibaba, "
        "coreweave or webhook (the provider of webhook_url, which also configures devices)",
    )
    node_label_attributes: tuple[tuple[str, str], ...] = _setting(
        (),
        accept.label_rules,
        "labels of the Node whose values all its devices have as attributes: LABEL=ATTRIBUTE with commas "
        "between, e.g. topology.kubernetes.io/zone=zone,example.com/rack=example.com/rack; a name without a "
        "domain is one of dra.net",
    )
    profile_provider: ProfileProvider = _setting(
        ProfileProvider.CLOUD,
        Choice(ProfileProvider),
        "the provider of profiles that claims name: cloud (the provider of cloud_provider, if it has "
        "profiles), webhook (that of webhook_url) or none; without one such claims are refused",
    )
    webhook_url: str = _setting(
        "",
        accept.text,
        "where the webhook provider answers, in DraNet's protocol: http://HOST:PORT, https://HOST:PORT or "
        "unix:///PATH",
    )
    webhook_ca: Path | None = _setting(
        None,
        accept.absolute_path_or_none,
        "PEM file with the authorities of the webhook provider's certificate; empty: those of the system. "
        "Read again when it changes, like the next two",
    )
    webhook_client_cert: Path | None = _setting(
        None, accept.absolute_path_or_none, "PEM file with the certificate that the webhook provider is shown"
    )
    webhook_client_key: Path | None = _setting(
        None, accept.absolute_path_or_none, "PEM file with the key to webhook_client_cert, not encrypted"
    )
    webhook_timeout_seconds: float = _setting(
        10.0,
        Seconds(0.1, 20),
        "how long the webhook provider may take for an answer, with all retries; the kubelet waits for it",
    )
    webhook_refresh_seconds: float = _setting(
        300.0, Seconds(1), "how often the webhook provider is asked again about a device that has not changed"
    )
    lldp: Lldp = _setting(
        Lldp.OFF,
        Choice(Lldp),
        "learn the switch and the port at the other end of each cable: off, listen (for LLDP frames on the "
        "host's links) or lldpd (from lldpd_file)",
    )
    lldpd_file: Path = _setting(
        Path("/run/dranet-lldp/neighbors.json"),
        accept.absolute_path,
        "with lldp lldpd: what the node writes here again and again with `lldpcli -f json show neighbors "
        "details`; a neighbor holds for its TTL after the file was written",
    )
    rail_pattern: str = _setting(
        "",
        accept.rail_pattern,
        "regular expression whose one group is the number of the rail in `SWITCH PORT DESCRIPTION`, as the "
        r"switch announces them, e.g. ^leaf-(\d+) or rail-?(\d+); empty: LLDP gives no rail",
    )
    expected_rails: tuple[str, ...] = _setting(
        (),
        accept.expected_rails,
        "the rail that each interface or PCI address should be cabled to, e.g. eth0=0,eth1=1; another one is "
        "reported; empty: only two NICs on one rail are",
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
        accept.absolute_paths,
        "folders in which the runtime looks for CDI specs, as far as they are mounted here: a GPU of this "
        "driver is given by its vendor's CDI device where one of them has it; empty: by its device nodes",
    )
    device_metadata: bool = _setting(
        True,
        accept.boolean,
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
        accept.words,
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
    _check_webhook(settings)
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


def _check_webhook(settings: Settings) -> None:
    users = {
        "--cloud-provider": settings.cloud_provider is CloudProvider.WEBHOOK,
        "--profile-provider": settings.profile_provider is ProfileProvider.WEBHOOK,
    }
    asking = [flag for flag, is_webhook in users.items() if is_webhook]
    if asking and not settings.webhook_url:
        raise SettingsError(f"{asking[0]} webhook without --webhook-url")
    if settings.webhook_url and not asking:
        raise SettingsError(
            "--webhook-url, and nothing is asked of it",
            hint=f"set {' or '.join(users)} to webhook",
        )
    if (settings.webhook_client_cert is None) != (settings.webhook_client_key is None):
        raise SettingsError(
            "--webhook-client-cert and --webhook-client-key: one without the other",
            hint="set both, as tls.crt and tls.key of one Secret, or neither",
        )
