"""NetworkConfig, the opaque parameters of a claim or a DeviceClass for a device, and their envelope.

The JSON names are DraNet's where DraNet has the parameter; the others are ours. Each field has a description
and an example; ``docs/reference/parameters.md`` and the JSON schema are made from that. A field that is
absent (or ``null``) leaves the thing alone; ``0``, ``false`` and ``[]`` are values.

What only the link itself can show (does it accept this MTU?) is checked by ``claims.plan``; several configs
become one in ``claims.config``. The envelope has their version, and a DeviceClass's policy, which limits
what claims on that class set; the values that the class gives are the administrator's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Literal

from dranet.model.claim import AUTO
from dranet.model.parameters.interface import InterfaceConfig, NeighbourConfig, RouteConfig, RuleConfig
from dranet.model.parameters.part import (
    AfterValidator,
    BeforeValidator,
    Conflict,
    Entries,
    Field,
    Part,
    PlainSerializer,
    WithJsonSchema,
    check_unicode,
    join_path,
    walk_fields,
    walk_values,
)
from dranet.model.parameters.values import (
    IFNAME,
    Count,
    Memlock,
    RequiredIfname,
    SysctlValue,
    Text,
    UInt32,
    without_nulls,
)

_GID_INDEX_MAX = 1023


def _number_or_auto(most: int) -> BeforeValidator:
    def check(value: object) -> object:
        if value == "auto":
            return AUTO
        if not isinstance(value, int) or isinstance(value, bool) or value not in range(most + 1):
            raise ValueError(f"must be a number from 0 to {most}, or auto")
        return value

    return BeforeValidator(check)


def _schema(most: int) -> WithJsonSchema:
    number = {"type": "integer", "minimum": 0, "maximum": most}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "const": "auto"}]})


_AS_WRITTEN = PlainSerializer(lambda value: "auto" if value == AUTO else value)

GidIndex = Annotated[int, _number_or_auto(_GID_INDEX_MAX), _AS_WRITTEN, _schema(_GID_INDEX_MAX)]
CrossNic = Annotated[int, _number_or_auto(2), _AS_WRITTEN, _schema(2)]


class NcclConfig(Part):
    """``nccl``: files for NCCL and RCCL in the containers that name the claim. The files contain the devices
    that NCCL should use; variables of the container's environment override them. See
    [NCCL](../guides/nccl.md)."""

    topology_file: bool | None = Field(
        "how the pod's GPUs and network devices are connected, as XML (`NCCL_TOPO_FILE`)", examples=[True]
    )
    config_file: bool | None = Field(
        "NCCL's settings (`NCCL_CONF_FILE`): `NCCL_IB_HCA` with those of the pod's devices that request "
        "the file, and the lines that the fields below request. NCCL 2.23 and later read it",
        examples=[True],
    )
    gid_index: GidIndex | None = Field(
        "`NCCL_IB_GID_INDEX`: a number, or `auto` for that of the RoCE v2 GID of the pod's address. Absent: "
        "NCCL chooses, which works well since 2.21",
        examples=["auto"],
    )
    cross_nic: CrossNic | None = Field(
        "`NCCL_CROSS_NIC`: 0 to 2, or `auto`: 0 if each device of the pod is in an IP network of its own "
        "(rails), else NCCL's default",
        examples=["auto"],
    )
    socket_interface: RequiredIfname | None = Field(
        "`NCCL_SOCKET_IFNAME`: the interface for NCCL's own connections, by its name in the pod. Absent "
        "or `auto`: that of the pod's default route, if one of the devices has RDMA",
        examples=["auto"],
    )

    def find_conflicts(self) -> Iterator[Conflict]:
        """``false`` turns off what a class has set, its lines included."""
        lines = {
            "gidIndex": self.gid_index,
            "crossNic": self.cross_nic,
            "socketInterface": self.socket_interface,
        }
        for name, value in lines.items():
            if value is not None and self.config_file is None:
                yield (name,), "must come with configFile: true, the file that it is a line of"


class UcxConfig(Part):
    """``ucx``: hints for UCX in the containers that name the claim; the container's environment wins."""

    net_devices: bool | None = Field(
        "`UCX_NET_DEVICES`: the pod's network devices that request it, in the order of its GPUs, and no "
        "others",
        examples=[True],
    )


class MemoryConfig(Part):
    """``memory``: the NUMA nodes for the memory of the containers that name the claim: those of the pod's
    devices. A value that the kubelet has set for the container wins."""

    policy: Literal["bind", "preferred", "interleave"] | None = Field(
        "`bind`: only from these nodes (cpuset); if they are full, the container's processes are killed. "
        "`preferred`: from these nodes while they have free memory; `interleave`: from them in turn. The "
        "last two are refused unless the runtime reports NRI 0.12",
        examples=["bind"],
    )


class CpuLocalityConfig(Part):
    """``cpuLocality``: CPUs of the device's NUMA node, except isolated ones, handle its interrupts and
    queues. Restored at release."""

    irq: bool | None = Field(
        "`true`: each interrupt of the device goes to one of these CPUs. Refused while irqbalance places the "
        "node's interrupts",
        examples=[True],
    )
    xps: bool | None = Field(
        "`true`: each of these CPUs sends through the queue whose interrupt is closest (XPS)", examples=[True]
    )
    rps: bool | None = Field(
        "`true`: all of these CPUs process received packets (RPS), for devices with fewer queues than CPUs",
        examples=[False],
    )

    @property
    def asked(self) -> tuple[str, ...]:
        return tuple(name for name in ("irq", "xps", "rps") if getattr(self, name))


_WITHOUT_LINK = ("profile", "rdma", "sysctls", "cpuLocality", "nccl", "ucx", "memory")
"""What does not need a network interface, of sysctls and near CPUs in part."""

Features = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], bool], BeforeValidator(without_nulls)
]


class RingsConfig(Part):
    """``ethtool.rings``: descriptors (``ethtool -G``)."""

    rx: Count | None = Field("receive descriptors", examples=[4096])
    rx_mini: Count | None = Field("for small packets", examples=[512])
    rx_jumbo: Count | None = Field("for jumbo packets", examples=[512])
    tx: Count | None = Field("send descriptors", examples=[4096])


class ChannelsConfig(Part):
    """``ethtool.channels``: queues (``ethtool -L``)."""

    rx: UInt32 | None = Field("receive queues", examples=[8])
    tx: UInt32 | None = Field("send queues", examples=[8])
    other: UInt32 | None = Field("queues for link events and the like", examples=[1])
    combined: UInt32 | None = Field("queues for both directions", examples=[16])


class CoalesceConfig(Part):
    """``ethtool.coalesce``: how long the device waits before it interrupts (``ethtool -C``)."""

    rx_usecs: UInt32 | None = Field("microseconds, receive", examples=[8])
    rx_max_frames: UInt32 | None = Field("packets, receive", examples=[64])
    tx_usecs: UInt32 | None = Field("microseconds, send", examples=[8])
    tx_max_frames: UInt32 | None = Field("packets, send", examples=[64])
    adaptive_rx: bool | None = Field("the driver adapts the receive values", examples=[False])
    adaptive_tx: bool | None = Field("the driver adapts the send values", examples=[False])


class EthtoolConfig(Part):
    """``ethtool``: what ``ethtool`` sets on the device."""

    features: Features = Field(
        "offloads by the kernel's name (`ethtool -k` with `--json`) or ethtool's short one: `tso`, `gro`, "
        "`rx` ...",
        examples=[{"tcp-segmentation-offload": True, "gro": False}],
    )
    private_flags: Features = Field(
        "the driver's own flags (`ethtool --show-priv-flags`)", examples=[{"rx_cqe_compress": True}]
    )
    rings: RingsConfig = Field("descriptors in the rings")
    channels: ChannelsConfig = Field("number of queues")
    coalesce: CoalesceConfig = Field("interrupt moderation")


class RdmaConfig(Part):
    """``rdma``: what the containers of the pod get in addition to the verbs device."""

    management_devices: bool | None = Field(
        "also `umad` and `issm`, which let the pod manage the subnet", examples=[True]
    )
    memlock: Memlock | None = Field(
        "RLIMIT_MEMLOCK of the pod's containers: bytes, a quantity or `unlimited`; absent: as it is",
        examples=["unlimited"],
    )
    fork_safe: bool | None = Field(
        "`RDMAV_FORK_SAFE` for the containers that name the claim: libibverbs keeps registered memory "
        "valid in programs that fork. Recent kernels copy such memory at a fork and do not need it",
        examples=[True],
    )
    huge_pages_safe: bool | None = Field(
        "`RDMAV_HUGEPAGES_SAFE`, the same for programs that fork and use huge pages", examples=[True]
    )


class NetworkConfig(Part):
    """All opaque parameters. Empty means: move the device as it is."""

    profile: Text | None = Field(
        "a named set of parameters that the node's profile provider gives when the claim is prepared, and "
        "gets back when it is unprepared; refused where the setting `profile_provider` names none",
        examples=["rail-optimised"],
    )
    interface: InterfaceConfig = Field("the link in the pod")
    routes: Entries[RouteConfig] = Field("routes through the device")
    rules: Entries[RuleConfig] = Field("policy rules of the pod. Not with a VRF, which brings its own")
    neighbors: Entries[NeighbourConfig] = Field("permanent neighbors on the device")
    ethtool: EthtoolConfig = Field("settings of the device")
    sysctls: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=255)], SysctlValue], BeforeValidator(without_nulls)
    ] = Field(
        "kernel settings of the pod's network namespace, of those that a claim may set; `IFNAME` stands for "
        "the interface's name in the pod",
        examples=[{"net.ipv4.conf.IFNAME.rp_filter": 2, "net.ipv4.tcp_mtu_probing": 1}],
    )
    rdma: RdmaConfig = Field("the RDMA device")
    cpu_locality: CpuLocalityConfig = Field(
        "which CPUs handle interrupts and queues. Only if the device itself moves"
    )
    nccl: NcclConfig = Field("files for NCCL and RCCL")
    ucx: UcxConfig = Field("hints for UCX")
    memory: MemoryConfig = Field("the NUMA nodes of the containers' memory")

    @property
    def needs_link(self) -> tuple[str, ...]:
        """The paths of what is asked for and cannot be had without a network interface.

        That is all but ``rdma``, the interrupts, what is for programs in the containers, and the sysctls that
        name no interface.
        """
        asked = walk_values(NetworkConfig, self.to_json(exclude_defaults=True))
        paths = [path for path, _ in asked if path[0] not in _WITHOUT_LINK]
        paths += [("cpuLocality", name) for name in self.cpu_locality.asked if name != "irq"]
        paths += [("sysctls", name) for name in self.sysctls if IFNAME in name]
        return tuple(join_path(path) for path in paths)

    def find_conflicts(self) -> Iterator[Conflict]:
        yield from self._find_vrf_conflicts()
        destinations = [*(r.destination for r in self.routes), *(n.destination for n in self.neighbors)]
        if self.interface.ipv6.enabled is False and any(":" in destination for destination in destinations):
            yield ("interface", "ipv6", "enabled"), "must not be false with an IPv6 route or neighbor"
        if not self.interface.is_passthrough:
            for name in self.cpu_locality.asked:
                yield (
                    ("cpuLocality", name),
                    f"must not be true with type: {self.interface.type}, whose device is not the pod's",
                )

    def _find_vrf_conflicts(self) -> Iterator[Conflict]:
        vrf = self.interface.vrf
        if vrf and self.rules:
            yield ("rules",), "must be empty with interface.vrf, which brings its own rule"
        for place, route in enumerate(self.routes if vrf else ()):
            if vrf and route.table not in (None, 0, vrf.table):
                yield (
                    ("routes", place, "table"),
                    f"must be absent with interface.vrf, which has one of its own, not {route.table}",
                )


API_VERSION = "dra.net/v1alpha1"
KIND = "NetworkConfig"


def field_path(value: str) -> str:
    if value not in known_paths():
        raise ValueError(
            "must be the path of a field, such as interface.mtu or routes (lists and maps as a whole)"
        )
    return value


@cache
def known_paths() -> frozenset[str]:
    """Return the paths of all fields of the parameters, computed when the first policy is read."""
    return frozenset(path for path, _ in walk_fields(NetworkConfig))


FieldPath = Annotated[str, AfterValidator(field_path)]
"""A field of the parameters, and with it everything below it."""


class PolicyRule(Part):
    """One entry of ``policy.rules``: what a value must be where a claim sets it."""

    field: FieldPath = Field("the field that the rule is about", examples=["interface.rateLimit.egress.rate"])
    expression: Annotated[str, Field(min_length=1), AfterValidator(check_unicode)] = Field(
        "CEL over `value`, what the claim sets there (numbers without unit, lists and objects as such), and "
        "`claim.namespace`; must be true",
        examples=['value <= 10000000000 || claim.namespace == "batch"'],
    )
    message: Text | None = Field(
        "message for the author of the claim; absent: the expression", examples=["at most 10 Gbit/s"]
    )


class NetworkPolicy(Part):
    """``policy``: what claims on this DeviceClass can set. A claim cannot carry a policy."""

    allow: tuple[FieldPath, ...] | None = Field(
        "a claim can set these fields with everything below them (`interface.vf` must be named), and no "
        "others; `[]` means no field",
        examples=[["interface.name", "interface.addresses", "routes"]],
    )
    lock: tuple[FieldPath, ...] = Field(
        "a claim cannot set these fields or anything below them", examples=[["interface.vrf", "sysctls"]]
    )
    rules: tuple[PolicyRule, ...] = Field("conditions on the values that a claim sets; all of them must hold")


class Envelope(Part):
    """The fields of an opaque config other than the parameters."""

    api_version: Literal["dra.net/v1alpha1"] | None = Field(
        "version of the parameters; goes with `kind`", examples=[API_VERSION]
    )
    kind: Literal["NetworkConfig"] | None = Field("goes with `apiVersion`", examples=[KIND])
    policy: NetworkPolicy | None = Field("what claims can set; only in a DeviceClass")

    def find_conflicts(self) -> Iterator[Conflict]:
        if self.kind is None and self.api_version is not None:
            yield ("kind",), "is required with apiVersion"
        if self.api_version is None and self.kind is not None:
            yield ("apiVersion",), "is required with kind"


ENVELOPE_FIELDS = ("apiVersion", "kind", "policy")


def split_envelope(document: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """An opaque config as (what belongs into an :class:`Envelope`, the parameters)."""
    envelope = {name: value for name, value in document.items() if name in ENVELOPE_FIELDS}
    return envelope, {name: value for name, value in document.items() if name not in ENVELOPE_FIELDS}
