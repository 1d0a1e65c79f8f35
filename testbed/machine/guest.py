"""What runs inside the machine: the init of the initramfs, and the script that makes devices and runs a job.

The guest's root is the host's own, read-only, below a layer of tools, a layer of modules and a tmpfs: the
checkout and its virtualenv are just there. Results go out through one writable folder; as QEMU ends with 0
whatever happened inside, the job's exit status goes out as a file, and its absence means that the guest died.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from testbed.machine.hardware import Hardware, RdmaStandIn

BOOT_MODULES = ("netfs", "9pnet", "9p", "9pnet_virtio", "overlay")
"""What the initramfs loads, in this order."""

NIC_MODULES = ("virtio_net", "igb", "igbvf", "e1000e")

MODULES = (
    *NIC_MODULES,
    *("ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "ib_umad", "ib_cm", "iw_cm", "rdma_rxe"),
    *("crc32_generic", "crc32c_generic", "libcrc32c"),  # rxe asks for them by name, nothing depends on them
    *("dummy", "vrf", "veth", "bridge", "macvlan", "macvtap", "ipvlan", "ipvtap", "8021q", "bonding"),
    *("vxlan", "geneve", "ifb", "tun", "openvswitch"),
    *("sch_ingress", "sch_fq", "sch_htb", "sch_tbf", "sch_fq_codel", "cls_bpf", "cls_flower", "cls_u32"),
    *("sch_sfq", "sch_prio", "sch_mqprio", "sch_cake", "sch_netem", "sch_ets", "sch_hfsc", "sch_drr"),
    *(
        "sch_qfq",
        "sch_pie",
        "sch_fq_pie",
        "sch_codel",
        "sch_hhf",
        "sch_multiq",
        "sch_skbprio",
        "sch_red",
        "sch_choke",
    ),
    *("act_bpf", "act_mirred", "act_gact", "cls_matchall"),
    *("bochs", "virtio_gpu", "vfio_pci", "vfio_iommu_type1"),
    *("psample", "inet_diag", "udp_diag", "tcp_diag"),
)
"""What the guest may load; with all they need they make the layer of modules."""

EXCHANGE = Path("/run/out")
"""Where the guest sees the exchange folder."""

IN_MACHINE = "MACHINE_LANE_FOLDER"
"""Environment variable of programs that run inside; its value is the exchange folder."""

CONTAINERDS = "MACHINE_LANE_CONTAINERDS"
"""Environment variable with the folders of the containerds that tests inside run, written as ``PATH`` is."""

_LINKS_UP = "for link in /sys/class/net/*; do ip link set ${link##*/} up; done"

SCRIPT, OUTPUT, STATUS, MARKS = "guest.sh", "output", "status", "marks"
"""Files of the exchange folder; ``marks`` holds one line ``seconds what`` for each stage."""

INIT = """\
#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
for m in $($B cat /mod/order); do $B insmod /mod/$m || echo "insmod $m failed"; done
O=trans=virtio,version=9p2000.L,msize=1048576,cache=loose,access=any
for t in host prefix layer; do $B mount -t 9p -o ro,$O $t /mnt/$t || echo "mount $t failed"; done
$B mount -t tmpfs -o mode=755,size=1g tmpfs /mnt/rw; $B mkdir /mnt/rw/up /mnt/rw/work
L=/mnt/layer:/mnt/prefix:/mnt/host
L=$L,upperdir=/mnt/rw/up,workdir=/mnt/rw/work,xino=off
$B mount -t overlay -o lowerdir=$L overlay /newroot || $B poweroff -f
cd /newroot
$B mount --move /proc proc; $B mount --move /sys sys; $B mount --move /dev dev
$B mkdir -p dev/shm dev/pts run tmp
$B mount -t tmpfs -o mode=1777 tmpfs dev/shm; $B mount -t devpts devpts dev/pts
$B mount -t tmpfs -o mode=755 tmpfs run
$B mkdir -p run/netns run/out
$B mount -t 9p -o rw,trans=virtio,version=9p2000.L,msize=262144 out run/out
$B mount -t cgroup2 cgroup sys/fs/cgroup; $B mount -t bpf bpf sys/fs/bpf
$B mount -t debugfs debugfs sys/kernel/debug
exec $B switch_root . /bin/sh /run/out/guest.sh
"""


def guest_script(hardware: Hardware, job: str, folder: Path, environment: Mapping[str, str]) -> str:
    """The shell script of one run: devices first, then ``job`` in ``folder``, then the end of the machine."""
    exports = {**environment, IN_MACHINE: str(EXCHANGE), "HOME": "/root", "LC_ALL": "C.UTF-8"}
    lines = [
        *(f"export {name}={shlex.quote(value)}" for name, value in exports.items()),
        f'mark() {{ echo "$(cut -d" " -f1 /proc/uptime) $*" >> {EXCHANGE / MARKS}; }}',
        f"exec < /dev/null > {EXCHANGE / OUTPUT} 2>&1",
        "mark booted",
        "hostname virtual-node",
        *_make_devices(hardware),
        "mark devices",
        f"cd {shlex.quote(str(folder))}",
        "(",
        job,
        ")",
        f"echo $? > {EXCHANGE / STATUS}",
        "mark done",
        "sync",
        "echo o > /proc/sysrq-trigger",
        "while :; do sleep 1; done",
    ]
    return "\n".join(lines) + "\n"


def _make_devices(hardware: Hardware) -> Iterator[str]:
    yield f"modprobe -a {' '.join(NIC_MODULES)} bochs virtio_gpu ib_uverbs rdma_ucm rdma_rxe vnode_hca"
    yield _LINKS_UP  # a virtual function waits for its physical one to be up
    for function in hardware.functions():
        if function.num_vfs:
            yield f"echo {function.num_vfs} > {_sysfs(function.address)}/sriov_numvfs"
    yield _LINKS_UP
    yield "rdma system set netns exclusive"
    for rdma in hardware.rdma:
        yield from _make_rdma(hardware, rdma)


def _make_rdma(hardware: Hardware, rdma: RdmaStandIn) -> Iterator[str]:
    name = rdma.card if rdma.vf is None else f"{rdma.card}/{rdma.vf}"
    address = hardware.function(name).address
    if rdma.bare:
        yield f"echo {address} > {_sysfs(address)}/driver/unbind"
    if rdma.soft:
        link = f"$(ls -d {_sysfs(address)}/net/* {_sysfs(address)}/virtio*/net/* 2>/dev/null | head -n 1)"
        yield f"link={link}; rdma link add {rdma.name} type rxe netdev ${{link##*/}}"
    else:
        layer = "eth" if rdma.link_layer == "Ethernet" else "ib"
        yield f"echo {rdma.name} {address} {layer} > /sys/kernel/vnode_hca/add"


def _sysfs(address: str) -> str:
    return f"/sys/bus/pci/devices/{address}"
