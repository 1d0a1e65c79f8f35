"""The command line of QEMU, as data, from the description of the machine.

Always software emulation: the lane must run the same way where there is no KVM, and some hosts' KVM is worse
than none. All NICs but the chipset's hang on one hub, an Ethernet segment that leads nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.machine.hardware import FIRST_CHIPSET_SLOT, Endpoint, Hardware, Root, Switch

KERNEL_ARGUMENTS = (
    "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr tsc=reliable net.ifnames=0 "
    "cgroup_no_v1=all audit=0 apparmor=0 selinux=0 rcupdate.rcu_expedited=1 random.trust_cpu=on "
    "bonding.max_bonds=0"
)
"""``panic=-1`` with ``-no-reboot`` turns a panic into an exit; ``quiet`` spares seconds of serial chatter.
Without ``max_bonds`` the bonding driver makes an unwanted bond0."""

CPU = "max,-erms,-fsrm,-fsrs,-fzrm,-fsrc"
"""Without fast string instructions: the emulator goes through those byte by byte, and a kernel that trusts in
their speed copies and clears all memory with them. Starting a process takes half as long without."""

_LAN_HUB, _CHIPSET_HUB = 0, 9
_FIRST_SHARE_SLOT, _RANDOM_SLOT, _FIRST_PXB_SLOT = 2, 6, 0x10


@dataclass(frozen=True, slots=True)
class Share:
    """A folder of the host that the guest mounts by 9p under its tag."""

    tag: str
    folder: Path
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Boot:
    """What to boot: an uncompressed kernel (entered through PVH, 1 s sooner than a bzImage)."""

    vmlinux: Path
    initramfs: Path
    shares: tuple[Share, ...]


def build_arguments(hardware: Hardware, boot: Boot) -> list[str]:
    """Arguments of ``qemu-system-x86_64`` without the program; the console goes to standard output."""
    return [*_platform(hardware), *_boot(boot), *_devices(hardware)]


def program_environment(prefix: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """QEMU was built for ``/usr``; this is how it finds its modules elsewhere."""
    return {**environment, "QEMU_MODULE_DIR": str(prefix / "usr/lib/x86_64-linux-gnu/qemu")}


def firmware_arguments(prefix: Path) -> list[str]:
    return ["-L", str(prefix / "usr/share/qemu"), "-L", str(prefix / "usr/share/seabios")]


def _platform(hardware: Hardware) -> Iterator[str]:
    """One thread for both CPUs: with one each, QEMU 10.0 died once in seven boots on an assertion of its
    memory map (``iotlb_to_section``)."""
    nodes = range(len(hardware.numa_distances))
    yield from ("-accel", "tcg,thread=single,tb-size=512", "-cpu", CPU)
    yield from ("-machine", "q35,i8042=off,vmport=off,smbus=off", "-m", str(hardware.memory_mib))
    yield from ("-smp", f"{len(nodes)},sockets={len(nodes)},cores=1")
    yield from ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")
    for node in nodes:
        size = hardware.memory_mib // len(nodes)
        yield from ("-object", f"memory-backend-ram,id=m{node},size={size}M")
        yield from ("-numa", f"node,nodeid={node},cpus={node},memdev=m{node}")
    for source in nodes:
        for target in nodes:
            distance = hardware.numa_distances[source][target]
            yield from ("-numa", f"dist,src={source},dst={target},val={distance}")


def _boot(boot: Boot) -> Iterator[str]:
    yield from ("-kernel", str(boot.vmlinux), "-initrd", str(boot.initramfs), "-append", KERNEL_ARGUMENTS)
    yield from ("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console")
    for slot, share in enumerate(boot.shares, _FIRST_SHARE_SLOT):
        access = "" if share.writable else ",readonly=on"
        options = f"security_model=none,multidevs=remap{access}"
        yield from ("-fsdev", f"local,id={share.tag},path={share.folder},{options}")
        yield from ("-device", f"virtio-9p-pci,fsdev={share.tag},mount_tag={share.tag},addr={slot:x}.0")
    yield from ("-device", f"virtio-rng-pci,addr={_RANDOM_SLOT}.0")


def _devices(hardware: Hardware) -> Iterator[str]:
    for number, root in enumerate(hardware.roots):
        yield from _chipset(root) if root.bus == 0 else _root(root, number)


def _chipset(root: Root) -> Iterator[str]:
    for slot, card in enumerate(root.below, FIRST_CHIPSET_SLOT):
        assert isinstance(card, Endpoint), "the chipset has no switch"
        yield from _card(card, f"addr={slot:x}.0", _CHIPSET_HUB)


def _root(root: Root, number: int) -> Iterator[str]:
    node = "" if root.numa_node is None else f",numa_node={root.numa_node}"
    place = f"bus=pcie.0,addr={_FIRST_PXB_SLOT + number:x}.0"
    yield from ("-device", f"pxb-pcie,id=pxb{number},bus_nr={root.bus}{node},{place}")
    for slot, below in enumerate(root.below):
        port = f"rp{number}{slot}"
        place = f"bus=pxb{number},addr={slot:x}.0,chassis={number},slot={slot + 1}"
        yield from ("-device", f"pcie-root-port,id={port},{place}")
        if isinstance(below, Endpoint):
            yield from _card(below, f"bus={port}", _LAN_HUB)
        else:
            yield from _switch(below, port, number)


def _switch(switch: Switch, port: str, number: int) -> Iterator[str]:
    yield from ("-device", f"x3130-upstream,id=up-{port},bus={port}")
    for slot, card in enumerate(switch.cards):
        down = f"dn{slot}-{port}"
        place = f"bus=up-{port},addr={slot:x}.0,chassis={number},slot={slot + 10}"
        yield from ("-device", f"xio3130-downstream,id={down},{place}")
        yield from _card(card, f"bus={down}", _LAN_HUB)


def _card(card: Endpoint, place: str, hub: int) -> Iterator[str]:
    if card.model.is_nic:
        yield from ("-netdev", f"hubport,id=net-{card.name},hubid={hub}")
        network = f",netdev=net-{card.name},mac={card.mac},romfile="
        yield from ("-device", f"{card.model.qemu},id={card.name}{network},{place}")
    else:
        yield from ("-device", f"{card.model.qemu},id={card.name},{place}")
