"""RDMA on the node: who sees which device, and whether programs find what they open."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.desk.doctor.checks import Surroundings, Told, check, fine, join, note, warning
from dranet.inventory.build import is_ipoib
from dranet.inventory.rdma_limits import find_immobility, find_loss

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


@check(
    "rdma-lost-with-link",
    RDMA,
    "RDMA devices that end when their interface moves",
    matters="bnxt_re before Linux 6.3, and software RDMA (rxe, siw), unregister the RDMA device when the "
    "interface leaves the node, and it does not come back. Such an interface is offered only as a shared "
    "one, with links on top of it.",
    mend="Update the kernel to 6.3 or later; or offer the interface by `shared_devices`; or remove the "
    "software RDMA device: `rdma link delete NAME`.",
)
def lost_with_link(seen: Surroundings) -> Iterator[Told]:
    functions = {function.address: function for function in seen.node.pci_functions}
    for device in seen.node.rdma_devices:
        why = find_loss(device, functions.get(device.pci_address), seen.node.host.kernel)
        if why and device.pci_address:
            yield warning(f"{device.name} ends when its interface moves: {why}")
        elif why:
            yield note(f"{device.name} ends when its interface moves: {why}")


@check(
    "rdma-immobile",
    RDMA,
    "RDMA devices that exclusive mode would move, and whose driver cannot",
    matters="In exclusive mode an RDMA device works only in the network namespace that has it. EFA and "
    "software RDMA cannot change theirs, so these devices are not offered.",
    mend="Use shared mode: remove `netns_mode=0` of ib_core from /etc/modprobe.d, and boot.",
)
def immobile(seen: Surroundings) -> Iterator[Told]:
    if seen.node.rdma_netns_exclusive:
        functions = {function.address: function for function in seen.node.pci_functions}
        for device in seen.node.rdma_devices:
            if why := find_immobility(device, functions.get(device.pci_address)):
                yield (warning if device.pci_address else note)(f"{device.name} cannot move: {why}")


@check(
    "rdma-ipoib-exclusive",
    RDMA,
    "IPoIB interfaces in exclusive mode",
    matters="The kernel destroys an IPoIB interface when its RDMA device moves, and makes another one. So in "
    "exclusive mode the adapter is offered as an RDMA device alone. When the pod ends the interface is "
    "restored with its addresses, routes, mode and MTU; programs that use it until then (Lustre, NFS) lose "
    "it. "
    "An adapter whose interface is used by others (a bond, a partition) is not offered.",
    mend="Use shared mode where pods need IPoIB interfaces; or exclude adapters whose IPoIB the node needs "
    "by the setting `filter`.",
)
def ipoib(seen: Surroundings) -> Iterator[Told]:
    names = sorted(link.ifname for link in seen.node.links if is_ipoib(link))
    if seen.node.rdma_netns_exclusive and names:
        yield note(f"exclusive mode, and IPoIB interfaces {join(names)}")


CHECKS = (mode, verbs, connection_manager, lost_with_link, immobile, ipoib)
