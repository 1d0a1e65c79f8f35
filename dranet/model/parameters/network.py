"""NetworkConfig: the opaque parameters that a claim or a DeviceClass may carry for a device.

The JSON names are DraNet's where DraNet has the parameter; the others are ours. Each field has a description
and an example; ``docs/user/parameters.md`` and the JSON schema are made from that. A field that is absent (or
``null``) leaves the thing alone; ``0``, ``false`` and ``[]`` are values.

What only the link itself can show (does it accept this MTU?) is checked by ``claims.plan``; several configs
become one in ``claims.config``; what else a config may hold is in :mod:`~dranet.model.parameters.policy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from dranet.model.parameters.decoder import BeforeValidator, Field
from dranet.model.parameters.interface import InterfaceConfig
from dranet.model.parameters.part import Conflict, Entries, Part, join_path, walk_values
from dranet.model.parameters.routing import (
    NeighbourConfig,
    RouteConfig,
    RuleConfig,
)
from dranet.model.parameters.sysctls import IFNAME
from dranet.model.parameters.values import (
    Count,
    Memlock,
    SysctlValue,
    Text,
    UInt32,
    without_nulls,
)
from dranet.model.parameters.workload import CpuLocalityConfig, MemoryConfig, NcclConfig, UcxConfig

_WITHOUT_LINK = ("rdma", "sysctls", "cpuLocality", "nccl", "ucx", "memory")
"""What does not need a network interface, of sysctls and near CPUs in part."""

Features = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], bool], BeforeValidator(without_nulls)
]


class RingsConfig(Part):
    """``ethtool.rings``: descriptors (``ethtool -G``)."""

    rx: Count | None = Field(default=None, description="receive descriptors", examples=[4096])
    rx_mini: Count | None = Field(
        default=None, alias="rxMini", description="for small packets", examples=[512]
    )
    rx_jumbo: Count | None = Field(
        default=None, alias="rxJumbo", description="for jumbo packets", examples=[512]
    )
    tx: Count | None = Field(default=None, description="send descriptors", examples=[4096])


class ChannelsConfig(Part):
    """``ethtool.channels``: queues (``ethtool -L``)."""

    rx: UInt32 | None = Field(default=None, description="receive queues", examples=[8])
    tx: UInt32 | None = Field(default=None, description="send queues", examples=[8])
    other: UInt32 | None = Field(
        default=None, description="queues for link events and the like", examples=[1]
    )
    combined: UInt32 | None = Field(default=None, description="queues for both directions", examples=[16])


class CoalesceConfig(Part):
    """``ethtool.coalesce``: how long the device waits before it interrupts (``ethtool -C``)."""

    rx_usecs: UInt32 | None = Field(
        default=None, alias="rxUsecs", description="microseconds, receive", examples=[8]
    )
    rx_max_frames: UInt32 | None = Field(
        default=None, alias="rxMaxFrames", description="packets, receive", examples=[64]
    )
    tx_usecs: UInt32 | None = Field(
        default=None, alias="txUsecs", description="microseconds, send", examples=[8]
    )
    tx_max_frames: UInt32 | None = Field(
        default=None, alias="txMaxFrames", description="packets, send", examples=[64]
    )
    adaptive_rx: bool | None = Field(
        default=None, alias="adaptiveRx", description="the driver adapts the receive values", examples=[False]
    )
    adaptive_tx: bool | None = Field(
        default=None, alias="adaptiveTx", description="the driver adapts the send values", examples=[False]
    )


class EthtoolConfig(Part):
    """``ethtool``: what ``ethtool`` sets on the device."""

    features: Features = Field(
        default={},
        description="offloads by the kernel's name (`ethtool -k` with `--json`) or ethtool's short one: "
        "`tso`, `gro`, `rx` ...",
        examples=[{"tcp-segmentation-offload": True, "gro": False}],
    )
    private_flags: Features = Field(
        default={},
        alias="privateFlags",
        description="the driver's own flags (`ethtool --show-priv-flags`)",
        examples=[{"rx_cqe_compress": True}],
    )
    rings: RingsConfig = Field(default_factory=RingsConfig.empty, description="descriptors in the rings")
    channels: ChannelsConfig = Field(default_factory=ChannelsConfig.empty, description="number of queues")
    coalesce: CoalesceConfig = Field(default_factory=CoalesceConfig.empty, description="interrupt moderation")


class RdmaConfig(Part):
    """``rdma``: what the pod's containers get in addition to the verbs device."""

    management_devices: bool | None = Field(
        default=None,
        alias="managementDevices",
        description="also `umad` and `issm`, which let the pod manage the subnet",
        examples=[True],
    )
    memlock: Memlock | None = Field(
        default=None,
        description="RLIMIT_MEMLOCK of the pod's containers: bytes, a quantity or `unlimited`; absent: as it "
        "is",
        examples=["unlimited"],
    )
    fork_safe: bool | None = Field(
        default=None,
        alias="forkSafe",
        description="`RDMAV_FORK_SAFE` for the containers that name the claim: libibverbs keeps registered "
        "memory right in programs that fork. Not needed where the kernel copies such memory at a fork, as "
        "recent ones do",
        examples=[True],
    )
    huge_pages_safe: bool | None = Field(
        default=None,
        alias="hugePagesSafe",
        description="`RDMAV_HUGEPAGES_SAFE`, the same for programs that fork and use huge pages",
        examples=[True],
    )


class NetworkConfig(Part):
    """The whole of the opaque parameters. Empty means: move the device as it is."""

    profile: Text | None = Field(
        default=None,
        description="a named set of parameters from a profile provider; refused while none is configured",
        examples=["rail-optimised"],
    )
    interface: InterfaceConfig = Field(
        default_factory=InterfaceConfig.empty, description="the link in the pod"
    )
    routes: Entries[RouteConfig] = Field(default=(), description="routes through the device")
    rules: Entries[RuleConfig] = Field(
        default=(), description="policy rules of the pod. Not with a VRF, which brings its own"
    )
    neighbors: Entries[NeighbourConfig] = Field(default=(), description="permanent neighbours on the device")
    ethtool: EthtoolConfig = Field(default_factory=EthtoolConfig.empty, description="settings of the device")
    sysctls: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=255)], SysctlValue], BeforeValidator(without_nulls)
    ] = Field(
        default={},
        description="kernel settings of the pod's network namespace, of those that a claim may set; `IFNAME` "
        "stands for the interface's name in the pod",
        examples=[{"net.ipv4.conf.IFNAME.rp_filter": 2, "net.ipv4.tcp_mtu_probing": 1}],
    )
    rdma: RdmaConfig = Field(default_factory=RdmaConfig.empty, description="the RDMA device")
    cpu_locality: CpuLocalityConfig = Field(
        default_factory=CpuLocalityConfig.empty,
        alias="cpuLocality",
        description="which CPUs work for the device. Only where the device itself moves",
    )
    nccl: NcclConfig = Field(default_factory=NcclConfig.empty, description="files for NCCL and RCCL")
    ucx: UcxConfig = Field(default_factory=UcxConfig.empty, description="hints for UCX")
    memory: MemoryConfig = Field(
        default_factory=MemoryConfig.empty, description="where the containers' memory comes from"
    )

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
            yield ("interface", "ipv6", "enabled"), "must not be false with an IPv6 route or neighbour"
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
