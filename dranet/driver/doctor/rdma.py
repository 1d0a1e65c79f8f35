"""RDMA on the node: who sees which device, and whether programs find what they open."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.driver.doctor.checks import Surroundings, Told, check, fine, join, note, warning

RDMA = "rdma"


@check(
    "rdma-shared-mode",
    RDMA,
    "the namespace mode of the RDMA subsystem",
    matters="In shared mode each pod sees the RDMA devices of the whole node in sysfs, and counters and "
    "state of them; what it can open is bounded by its device nodes alone. In exclusive mode a device is "
    "in one pod, as its interface is.",
    mend="For exclusive mode: `echo options ib_core netns_mode=0 > /etc/modprobe.d/ib_core.conf`, then boot "
    "(`rdma system set netns exclusive` works only while no other network namespace exists). Shared "
    "mode is right where other device plugins give out RDMA, or pods share one device.",
)
def mode(seen: Surroundings) -> Iterator[Told]:
    if seen.rdma:
        exclusive = seen.node.rdma_netns_exclusive
        yield fine("exclusive namespace mode") if exclusive else note("shared namespace mode")


@check(
    "rdma-verbs-missing",
    RDMA,
    "device nodes for verbs (uverbs) of each RDMA device",
    matters="Programs in pods open /dev/infiniband/uverbsN: without it there is no RDMA, and NCCL falls "
    "back to TCP in silence.",
    mend="`modprobe ib_uverbs`, and for good `echo ib_uverbs > /etc/modules-load.d/rdma.conf`.",
)
def verbs(seen: Surroundings) -> Iterator[Told]:
    bare = [d.name for d in seen.rdma if not any("uverbs" in node.path for node in d.char_devices)]
    if bare:
        yield warning(f"no verbs node of {join(bare)}")
    elif seen.rdma:
        yield fine(f"verbs nodes of {join(device.name for device in seen.rdma)}")


@check(
    "rdma-cm-missing",
    RDMA,
    "the device node of the RDMA connection manager (/dev/infiniband/rdma_cm)",
    matters="Programs that connect by address (rdma_cm: perftest -R, NVMe-oF, MPI, UCX) fail; NCCL does "
    "not need it.",
    mend="`modprobe rdma_ucm`, and for good `echo rdma_ucm > /etc/modules-load.d/rdma.conf`.",
)
def connection_manager(seen: Surroundings) -> Iterator[Told]:
    if seen.rdma:
        there = "rdma_cm" in seen.host.misc_devices
        yield fine("rdma_cm is there") if there else note("there is no rdma_cm")


CHECKS = (mode, verbs, connection_manager)
