"""The kinds of values that settings have: the closed lists, and what each setting accepts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from msgspec import Struct

_DRIVER_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain that begins with a letter, because it is also the vendor of our CDI devices."""

_POD_UID = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,127}")
"""A UUID; a static pod has a hash without hyphens."""

_LINK_KIND = re.compile(r"[a-z0-9][a-z0-9_-]{0,14}")

BANDWIDTH_STEP = 1_000_000
"""Bits per second: the smallest share of a NIC that is counted, and the step from one to the next."""


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


class CloudProvider(StrEnum):
    AUTO = "auto"
    OFF = "off"
    GCE = "gce"
    AWS = "aws"
    AZURE = "azure"
    OKE = "oke"
    ALIBABA = "alibaba"
    COREWEAVE = "coreweave"
    WEBHOOK = "webhook"


class ProfileProvider(StrEnum):
    CLOUD = "cloud"
    WEBHOOK = "webhook"
    NONE = "none"


class Lldp(StrEnum):
    OFF = "off"
    LISTEN = "listen"
    LLDPD = "lldpd"


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


def text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("must be text")


def driver_name(value: object) -> str:
    if not isinstance(value, str) or len(value) > 63 or not _DRIVER_NAME.fullmatch(value):
        raise ValueError("must be a lower-case DNS name of at most 63 characters, letter first, e.g. dra.net")
    return value


def pod_uid(value: object) -> str:
    if not isinstance(value, str) or (value and not _POD_UID.fullmatch(value)):
        raise ValueError("must be a pod's UID, or empty, e.g. 6e4b6f5d-0f4c-4b8e-9a39-3c1c5d2f7a10")
    return value


def address(value: object) -> str:
    host, colon, port = str(value).rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError("must be HOST:PORT or :PORT, e.g. 127.0.0.1:9177 or [::1]:9177")
    return str(value)


def absolute_path(value: object) -> Path:
    if not isinstance(value, str | Path) or not Path(value).is_absolute():
        raise ValueError("must be an absolute path")
    return Path(value)


def absolute_path_or_none(value: object) -> Path | None:
    return None if value in ("", None) else absolute_path(value)


def absolute_paths(value: object) -> tuple[Path, ...]:
    paths = value if isinstance(value, tuple) else words(value)
    return tuple(absolute_path(path) for path in paths)


def words(value: object) -> tuple[str, ...]:
    """A list in a file; elsewhere words between commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Iterable) or not all(isinstance(item, str) for item in items):
        raise ValueError("must be a list of names, or text with commas between them")
    return tuple(word for item in items if (word := item.strip()))


def link_kinds(value: object) -> tuple[str, ...]:
    entries = words(value)
    if not all(_LINK_KIND.fullmatch(word) for word in entries):
        raise ValueError(
            "must be kinds as `ip -details link` prints them, with commas between, e.g. veth,bridge"
        )
    return entries


def ip_addresses(value: object) -> tuple[str, ...]:
    entries = words(value)
    try:
        return tuple(str(ip_address(word)) for word in entries)
    except ValueError as error:
        raise ValueError(f"must be IP addresses with commas between them ({error})") from None


def bit_rate(value: object) -> int | None:
    """Whole megabits per second, the step in which shares are counted; nothing for none."""
    if value in ("", None):
        return None
    from dranet.quantity import NANO, parse_quantity

    try:
        rate, rest = divmod(parse_quantity(str(value)), NANO)
    except ValueError:
        rate, rest = 0, 1
    if rest or rate <= 0 or rate % BANDWIDTH_STEP:
        raise ValueError("must be whole megabits per second, e.g. 500M or 10G, or empty")
    return rate


def rail_pattern(value: object) -> str:
    try:
        if isinstance(value, str) and (not value or re.compile(value).groups == 1):
            return value
    except re.error as error:
        raise ValueError(f"must be a regular expression ({error})") from None
    raise ValueError(r"must be a regular expression with one group, the number of the rail, e.g. rail-?(\d+)")


def expected_rails(value: object) -> tuple[str, ...]:
    entries = words(value)
    parts = [word.rpartition("=") for word in entries]
    names = [name for name, _, _ in parts]
    if not all(name and rail.isascii() and rail.isdigit() and len(rail) < 10 for name, _, rail in parts):
        raise ValueError("must be INTERFACE=RAIL or PCI_ADDRESS=RAIL with commas between, e.g. eth0=0,eth1=1")
    if len(set(names)) < len(names):
        raise ValueError("must name each interface once")
    return entries


def two_digits(value: object) -> str:
    if not re.fullmatch(r"[0-9]{2}", str(value)):
        raise ValueError("must be two digits, e.g. 10")
    return str(value)


def boolean(value: object) -> bool:
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


def cloud_provider(value: object) -> CloudProvider:
    """DraNet's spellings also: upper case, NONE, CKS, and nothing for auto."""
    text = value.lower() if isinstance(value, str) else value
    return CloudProvider(
        Choice(CloudProvider)({"none": "off", "": "auto", "cks": "coreweave"}.get(str(text), text))
    )


_LABEL_RULE = re.compile(
    r"(?P<label>([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)"
    r"=(?P<attribute>([a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31})"
)


def label_rules(value: object) -> tuple[tuple[str, str], ...]:
    rules = [_LABEL_RULE.fullmatch(word) for word in words(value)]
    if not all(rules):
        raise ValueError("must be LABEL=ATTRIBUTE with commas between, e.g. topology.kubernetes.io/zone=zone")
    pairs = ((rule["label"], rule["attribute"]) for rule in rules if rule)
    return tuple((label, name if "/" in name else f"dra.net/{name}") for label, name in pairs)
