"""The description of the machine: where the firmware will put each function, and QEMU's arguments for it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from testbed.machine.guest import guest_script
from testbed.machine.hardware import (
    MACHINE,
    Endpoint,
    Function,
    Hardware,
    Model,
    RdmaStandIn,
    Root,
    Switch,
)
from testbed.machine.qemu import Boot, Share, build_arguments, firmware_arguments, program_environment

SMALL = Hardware(
    roots=(
        Root(0x00, (Endpoint("management", Model.E1000E, "52:54:00:00:00:01"),)),
        Root(
            0x40,
            (
                Endpoint("nic", Model.IGB, "52:54:00:00:00:02", virtual_functions=5),
                Switch((Endpoint("left", Model.BOCHS_DISPLAY), Endpoint("right", Model.VIRTIO_NET, "m"))),
                Endpoint("last", Model.ATI_VGA),
            ),
            numa_node=1,
        ),
    ),
    rdma=(
        RdmaStandIn("mlx5_0", "nic", vf=4, link_layer="InfiniBand", bare=True),
        RdmaStandIn("rxe0", "right", soft=True),
    ),
    memory_mib=1024,
)

BOOT = Boot(Path("/v"), Path("/i"), (Share("host", Path("/")), Share("out", Path("/x"), writable=True)))


def values(arguments: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(arguments) if name == option]


def functions() -> dict[str, Function]:
    return {function.name: function for function in SMALL.functions()}


def test_buses_are_numbered_depth_first_from_each_root() -> None:
    paths = {name: function.path for name, function in functions().items() if "/" not in name}
    assert paths == {
        "management": ("0000:00:07.0",),
        "nic": ("0000:40:00.0", "0000:41:00.0"),
        "left": ("0000:40:01.0", "0000:42:00.0", "0000:43:00.0", "0000:44:00.0"),
        "right": ("0000:40:01.0", "0000:42:00.0", "0000:43:01.0", "0000:45:00.0"),
        "last": ("0000:40:02.0", "0000:46:00.0"),
    }
    assert {f.root for f in functions().values() if f.name != "management"} == {"pci0000:40"}


def test_virtual_functions_skip_numbers_and_run_into_the_next_slot() -> None:
    virtual = [f for f in SMALL.functions() if f.vf_index is not None]
    assert [f.address[-4:] for f in virtual] == ["10.0", "10.2", "10.4", "10.6", "11.0"]
    assert [f.name for f in virtual] == [f"nic/{index}" for index in range(5)]
    assert {(f.physical_function, f.numa_node, f.mac) for f in virtual} == {("0000:41:00.0", 1, "")}


def test_only_the_physical_function_counts_virtual_ones() -> None:
    counts = {name: (f.total_vfs, f.num_vfs) for name, f in functions().items() if f.total_vfs or f.num_vfs}
    assert counts == {"nic": (7, 5)}


def test_a_function_is_found_by_its_name() -> None:
    assert SMALL.function("nic/4").address == "0000:41:11.0"
    assert SMALL.function("right").model is Model.VIRTIO_NET


def test_the_lanes_machine_has_each_kind_of_place() -> None:
    places = {(f.root, f.numa_node) for f in MACHINE.functions()}
    assert places == {("pci0000:00", None), ("pci0000:20", 0), ("pci0000:80", 1), ("pci0000:c0", None)}
    assert len({f.address for f in MACHINE.functions()}) == len(list(MACHINE.functions()))
    assert {len(f.path) for f in MACHINE.functions()} == {1, 2, 4}


def test_it_is_never_anything_but_software_emulation() -> None:
    assert values(build_arguments(SMALL, BOOT), "-accel") == ["tcg,thread=single,tb-size=512"]


def test_each_numa_node_has_a_cpu_and_its_share_of_the_memory() -> None:
    arguments = build_arguments(SMALL, BOOT)
    assert values(arguments, "-m") == ["1024"]
    assert values(arguments, "-numa") == [
        "node,nodeid=0,cpus=0,memdev=m0",
        "node,nodeid=1,cpus=1,memdev=m1",
        "dist,src=0,dst=0,val=10",
        "dist,src=0,dst=1,val=21",
        "dist,src=1,dst=0,val=21",
        "dist,src=1,dst=1,val=10",
    ]


def test_cards_are_plugged_where_the_description_says() -> None:
    devices = values(build_arguments(SMALL, BOOT), "-device")
    assert devices[3:] == [
        "e1000e,id=management,netdev=net-management,mac=52:54:00:00:00:01,romfile=,addr=7.0",
        "pxb-pcie,id=pxb1,bus_nr=64,numa_node=1,bus=pcie.0,addr=11.0",
        "pcie-root-port,id=rp10,bus=pxb1,addr=0.0,chassis=1,slot=1",
        "igb,id=nic,netdev=net-nic,mac=52:54:00:00:00:02,romfile=,bus=rp10",
        "pcie-root-port,id=rp11,bus=pxb1,addr=1.0,chassis=1,slot=2",
        "x3130-upstream,id=up-rp11,bus=rp11",
        "xio3130-downstream,id=dn0-rp11,bus=up-rp11,addr=0.0,chassis=1,slot=10",
        "bochs-display,id=left,bus=dn0-rp11",
        "xio3130-downstream,id=dn1-rp11,bus=up-rp11,addr=1.0,chassis=1,slot=11",
        "virtio-net-pci,id=right,netdev=net-right,mac=m,romfile=,bus=dn1-rp11",
        "pcie-root-port,id=rp12,bus=pxb1,addr=2.0,chassis=1,slot=3",
        "ati-vga,id=last,bus=rp12",
    ]


def test_a_root_without_proximity_gets_no_numa_node() -> None:
    machine = Hardware(roots=(Root(0xC0, (Endpoint("nic", Model.VIRTIO_NET, "m"),)),))
    (pxb,) = [d for d in values(build_arguments(machine, BOOT), "-device") if d.startswith("pxb")]
    assert "numa_node" not in pxb


def test_the_host_is_shared_read_only_and_the_exchange_folder_is_not() -> None:
    host, out = values(build_arguments(SMALL, BOOT), "-fsdev")
    assert (host.endswith(",readonly=on"), "readonly" in out) == (True, False)
    assert "path=/," in host
    assert "path=/x," in out


def test_the_guest_has_no_way_out() -> None:
    networks = values(build_arguments(MACHINE, BOOT), "-netdev")
    assert networks
    assert {network.partition(",")[0] for network in networks} == {"hubport"}


def test_qemu_is_told_where_it_was_unpacked() -> None:
    prefix = Path("/p")
    assert firmware_arguments(prefix) == ["-L", "/p/usr/share/qemu", "-L", "/p/usr/share/seabios"]
    environment = program_environment(prefix, {"A": "b"})
    assert environment == {"A": "b", "QEMU_MODULE_DIR": "/p/usr/lib/x86_64-linux-gnu/qemu"}


def test_the_script_makes_the_devices_before_the_job_and_hands_back_its_status() -> None:
    script = guest_script(SMALL, "exit 3", Path("/a folder"), {"PATH": "/x:/y"}).splitlines()
    wanted = [
        "export PATH=/x:/y",
        "echo 5 > /sys/bus/pci/devices/0000:41:00.0/sriov_numvfs",
        "echo 0000:41:11.0 > /sys/bus/pci/devices/0000:41:11.0/driver/unbind",
        "echo mlx5_0 0000:41:11.0 ib > /sys/kernel/vnode_hca/add",
        "cd '/a folder'",
        "exit 3",
        "echo $? > /run/out/status",
        "echo o > /proc/sysrq-trigger",
    ]
    assert [line for line in script if line in wanted] == wanted
    (soft,) = [line for line in script if "rxe0" in line]
    assert soft.endswith("rdma link add rxe0 type rxe netdev ${link##*/}")
