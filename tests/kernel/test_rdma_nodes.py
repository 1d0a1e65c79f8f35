"""Character devices of RDMA devices: verbs, the connection manager and the management of a fabric."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.kernel.discovery.hardware import read_management_nodes, read_rdma_nodes
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.facts import CharDevice

FILES = {
    "class/infiniband_verbs/abi_version": "6",
    "class/infiniband_verbs/uverbs1/ibdev": "mlx5_0",
    "class/infiniband_verbs/uverbs1/dev": "231:193",
    "class/infiniband_verbs/uverbs1/uevent": (
        "MAJOR=231\nMINOR=193\nDEVNAME=infiniband/uverbs1\nDEVMODE=0666"
    ),
    "class/misc/rdma_cm/dev": "10:122",
    "class/misc/rdma_cm/uevent": "MAJOR=10\nMINOR=122\nDEVNAME=infiniband/rdma_cm\nDEVMODE=0640",
    "class/infiniband_mad/abi_version": "5",
    "class/infiniband_mad/umad0/ibdev": "mlx5_0",
    "class/infiniband_mad/umad0/port": "1",
    "class/infiniband_mad/umad0/dev": "231:0",
    "class/infiniband_mad/umad0/uevent": "MAJOR=231\nMINOR=0\nDEVNAME=infiniband/umad0",
    "class/infiniband_mad/issm0/ibdev": "mlx5_0",
    "class/infiniband_mad/issm0/dev": "231:64",
    "class/infiniband_mad/issm0/uevent": "MAJOR=231\nMINOR=64\nDEVNAME=infiniband/issm0",
    "class/infiniband_mad/umad1/ibdev": "mlx5_1",
    "class/infiniband_mad/umad1/dev": "231:1",
}


@pytest.fixture
def sysfs(tmp_path: Path) -> PseudoFiles:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    return PseudoFiles(tmp_path, [])


def test_a_node_has_the_mode_that_its_driver_wants(sysfs: PseudoFiles) -> None:
    assert read_rdma_nodes(sysfs) == {
        "mlx5_0": CharDevice("/dev/infiniband/uverbs1", 231, 193, 0o666),
        "": CharDevice("/dev/infiniband/rdma_cm", 10, 122, 0o640),
    }
    assert sysfs.warnings == []


def test_the_management_nodes_are_those_of_one_device_and_for_root_alone(sysfs: PseudoFiles) -> None:
    assert read_management_nodes(sysfs, "mlx5_0") == (
        CharDevice("/dev/infiniband/issm0", 231, 64, 0o600),
        CharDevice("/dev/infiniband/umad0", 231, 0, 0o600),
    )
    assert sysfs.warnings == []


def test_where_no_mode_can_be_read_none_is_given(sysfs: PseudoFiles) -> None:
    assert read_management_nodes(sysfs, "mlx5_1") == (CharDevice("/dev/infiniband/umad1", 231, 1),)


def test_a_device_or_a_kernel_without_management_has_none(sysfs: PseudoFiles, tmp_path: Path) -> None:
    assert read_management_nodes(sysfs, "mlx5_9") == ()
    assert read_management_nodes(PseudoFiles(tmp_path / "nothing", []), "mlx5_0") == ()


@pytest.mark.parametrize("text", ["DEVMODE=08", "DEVMODE=", "DEVMODE=0777777", "XDEVMODE=0644", "\0\xff"])
def test_an_odd_mode_is_not_guessed_from(sysfs: PseudoFiles, tmp_path: Path, text: str) -> None:
    (tmp_path / "class/infiniband_mad/umad0/uevent").write_bytes(text.encode("latin-1"))
    assert read_management_nodes(sysfs, "mlx5_0")[1].file_mode == 0o600


def test_a_mode_holds_permissions_and_nothing_else(sysfs: PseudoFiles, tmp_path: Path) -> None:
    (tmp_path / "class/infiniband_mad/umad0/uevent").write_text("DEVMODE=06755\n")
    assert read_management_nodes(sysfs, "mlx5_0")[1].file_mode == 0o755
