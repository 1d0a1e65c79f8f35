"""GIDs of RDMA devices, a pod's own sysfs, and the folders of counters that outlive a move."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dranet.errors import KernelError
from dranet.kernel.counters import find_counter_folders
from dranet.kernel.discovery.hardware import read_gids
from dranet.kernel.namespaces.netns import NetworkNamespace, open_sysfs
from dranet.kernel.sysfs.files import PseudoFiles
from tests.kernel.plans import list_descriptors
from tests.support.namespaces import Namespace

ZERO = ":".join(["0000"] * 8)
LINK_LOCAL = "fe80:0000:0000:0000:0000:00ff:fe00:0001"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a09:0001"
BDF = "0000:21:00.0"


def write_table(root: Path, *gids: str, port: int = 1) -> None:
    folder = root / f"class/infiniband/mlx5_0/ports/{port}/gids"
    folder.mkdir(parents=True)
    for number, gid in enumerate(gids):
        (folder / str(number)).write_text(f"{gid}\n")


def read(root: Path) -> tuple[tuple[str, ...], list[str]]:
    warnings: list[str] = []
    return read_gids(PseudoFiles(root, warnings), "mlx5_0"), warnings


# --- GIDs -----------------------------------------------------------------------------------------------


def test_gids_of_all_ports_come_in_order_without_empty_slots(tmp_path: Path) -> None:
    write_table(tmp_path, LINK_LOCAL, ZERO, MAPPED.upper())
    write_table(tmp_path, MAPPED, port=2)
    assert read(tmp_path) == ((LINK_LOCAL, MAPPED, MAPPED), [])


def test_a_device_that_is_not_there_has_no_gids(tmp_path: Path) -> None:
    assert read(tmp_path) == ((), [])


def test_a_table_is_read_up_to_a_long_gap(tmp_path: Path) -> None:
    write_table(tmp_path, *[ZERO] * 15, LINK_LOCAL, *[ZERO] * 16, MAPPED)
    assert read(tmp_path) == ((LINK_LOCAL,), [])


def test_what_is_no_gid_is_left_out_with_a_warning(tmp_path: Path) -> None:
    write_table(tmp_path, "fe80::1", LINK_LOCAL)
    gids, warnings = read(tmp_path)
    assert gids == (LINK_LOCAL,)
    assert "not a GID" in warnings[0]


def test_a_table_without_an_end_is_bounded(tmp_path: Path) -> None:
    write_table(tmp_path, *[LINK_LOCAL] * 1100)
    assert len(read(tmp_path)[0]) == 1024


# --- sysfs of a pod -------------------------------------------------------------------------------------


@pytest.mark.kernel
def test_a_pods_sysfs_shows_what_its_namespace_has(node: Namespace, pod: Namespace) -> None:
    with open_sysfs(pod.netns) as root:
        assert {path.name for path in (root / "class/net").iterdir()} == {"lo", "eth0", "cni0"}
        node.ip("link", "set", "eth1", "netns", pod.name)
        assert (root / "class/net/eth1/address").read_text() == "02:00:00:00:00:01\n"
    assert not root.exists()


@pytest.mark.kernel
def test_a_pods_sysfs_is_in_no_tree_of_mounts_and_cannot_be_written(pod: Namespace) -> None:
    before = list_descriptors()
    with open_sysfs(pod.netns) as root:
        device = root.stat().st_dev  # of the sysfs of this namespace; others mount and unmount meanwhile
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        assert f"{os.major(device)}:{os.minor(device)}" not in {line.split()[2] for line in mounts}
        with pytest.raises(OSError, match="Read-only file system"):
            (root / "class/net/eth0/ifalias").write_text("x")
    assert list_descriptors() <= before


@pytest.mark.kernel
def test_a_pods_sysfs_can_be_written_where_asked_and_by_nobody_else(pod: Namespace) -> None:
    file = "class/net/eth0/ifalias"
    before = list_descriptors()
    with open_sysfs(pod.netns) as of_a_container, open_sysfs(pod.netns, writable=True) as root:
        (root / file).write_text("x")
        assert (of_a_container / file).read_text() == "x\n"
        with pytest.raises(OSError, match="Read-only file system"):
            (of_a_container / file).write_text("y")
    assert list_descriptors() <= before


@pytest.mark.kernel
def test_a_namespace_that_is_gone_has_no_sysfs(pod: Namespace) -> None:
    gone = NetworkNamespace.from_fd(pod.netns.fileno())
    gone.close()
    with pytest.raises(KernelError), open_sysfs(gone):
        pass


# --- counters -------------------------------------------------------------------------------------------


def make_function(root: Path, *folders: str) -> Path:
    home = root / "devices/pci0000:20" / BDF
    for folder in folders:
        (home / folder).mkdir(parents=True)
    (root / "bus/pci/devices").mkdir(parents=True)
    (root / "bus/pci/devices" / BDF).symlink_to(home)
    return home


def test_the_folders_of_a_function_are_found_behind_all_links(tmp_path: Path) -> None:
    home = make_function(tmp_path, "net/eth1", "infiniband")
    assert find_counter_folders(tmp_path, BDF) == {"net": home / "net", "infiniband": home / "infiniband"}


def test_a_virtio_device_has_its_interface_one_folder_further(tmp_path: Path) -> None:
    home = make_function(tmp_path, "virtio2/net/eth0")
    assert find_counter_folders(tmp_path, BDF) == {"net": home / "virtio2/net"}


def test_a_subfunction_of_a_device_is_another_device(tmp_path: Path) -> None:
    make_function(tmp_path, "mlx5_core.sf.2/net/eth9")
    assert find_counter_folders(tmp_path, BDF) == {}


@pytest.mark.parametrize("address", ["", "../../../etc", "0000:99:00.0"])
def test_what_is_not_on_pci_has_no_folder_of_its_own(tmp_path: Path, address: str) -> None:
    make_function(tmp_path, "net/eth1")
    assert find_counter_folders(tmp_path, address) == {}
