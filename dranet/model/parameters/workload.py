"""Parameters for the programs in the containers, and for CPUs near the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from dranet.model.parameters.decoder import BeforeValidator, Field, PlainSerializer, WithJsonSchema
from dranet.model.parameters.part import Conflict, Part
from dranet.model.parameters.values import RequiredIfname
from dranet.model.workload import AUTO

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
    """``nccl``: files for NCCL and RCCL in the containers that name the claim. They name the devices
    of the pod that NCCL is to use; variables of the container's environment override them. See
    [NCCL](nccl.md)."""

    topology_file: bool | None = Field(
        default=None,
        alias="topologyFile",
        description="how the pod's GPUs and network devices hang together, as XML (`NCCL_TOPO_FILE`)",
        examples=[True],
    )
    config_file: bool | None = Field(
        default=None,
        alias="configFile",
        description="NCCL's settings (`NCCL_CONF_FILE`): `NCCL_IB_HCA` with those of the pod's devices that "
        "ask for the file, and what the fields below ask for. NCCL 2.23 and later read it",
        examples=[True],
    )
    gid_index: GidIndex | None = Field(
        default=None,
        alias="gidIndex",
        description="`NCCL_IB_GID_INDEX`: a number, or `auto` for that of the RoCE v2 GID of the pod's "
        "address. Absent: NCCL chooses, as it does well from 2.21 on",
        examples=["auto"],
    )
    cross_nic: CrossNic | None = Field(
        default=None,
        alias="crossNic",
        description="`NCCL_CROSS_NIC`: 0 to 2, or `auto`: 0 where each device of the pod is in an IP network "
        "of its own (rails), else NCCL's default",
        examples=["auto"],
    )
    socket_interface: RequiredIfname | None = Field(
        default=None,
        alias="socketInterface",
        description="`NCCL_SOCKET_IFNAME`: the interface for NCCL's own connections, as the pod calls it. "
        "Absent or `auto`: that of the pod's default route, where one of the devices has RDMA",
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
        default=None,
        alias="netDevices",
        description="`UCX_NET_DEVICES`: the pod's network devices that ask for it, in the order of its "
        "GPUs, and no others",
        examples=[True],
    )


class MemoryConfig(Part):
    """``memory``: where the memory of the containers that name the claim comes from: the NUMA nodes of the
    pod's devices. What the kubelet has set for the container wins."""

    policy: Literal["bind", "preferred", "interleave"] | None = Field(
        default=None,
        description="`bind`: from these nodes alone (cpuset); where they are full, the container's processes "
        "are killed. `preferred`: from these nodes while they have some; `interleave`: from them in "
        "turn. The last two are refused unless the runtime reports NRI 0.12",
        examples=["bind"],
    )


class CpuLocalityConfig(Part):
    """``cpuLocality``: CPUs of the device's NUMA node work for it, except isolated ones. Restored at
    release."""

    irq: bool | None = Field(
        default=None,
        description="`true`: each interrupt of the device goes to one of these CPUs. Refused while "
        "irqbalance places the node's interrupts",
        examples=[True],
    )
    xps: bool | None = Field(
        default=None,
        description="`true`: each of these CPUs sends through the queue whose interrupt is nearest (XPS)",
        examples=[True],
    )
    rps: bool | None = Field(
        default=None,
        description="`true`: what comes in is worked off by all of these CPUs (RPS), for devices with fewer "
        "queues than CPUs",
        examples=[False],
    )

    @property
    def asked(self) -> tuple[str, ...]:
        """The names of what is to be done."""
        return tuple(name for name in ("irq", "xps", "rps") if getattr(self, name))
