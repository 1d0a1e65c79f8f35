"""Interrupts of a function, and who else places them: on files, and on this kernel's own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dranet.errors import KernelError, Reason
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.kernel.sysfs.irq import InterruptFiles, find_balancer, read_cpu_layout
from dranet.model.cpus import find_local_cpus, parse_cpu_list
from tests.kernel.interrupts import FUNCTION, InterruptTree, write


@pytest.fixture
def tree(tmp_path: Path) -> InterruptTree:
    tree = InterruptTree(tmp_path)
    tree.add(31, name="eth1-TxRx-0")
    tree.add(30, "4-7", name="eth1")
    return tree


def balancer_of(tree: InterruptTree) -> str:
    files = PseudoFiles(tree.proc, []), PseudoFiles(tree.sys, [])
    return find_balancer(*files, FUNCTION, (30, 31))


def near_cpus(tree: InterruptTree) -> tuple[int, ...]:
    return find_local_cpus(read_cpu_layout(PseudoFiles(tree.sys, []), PseudoFiles(tree.proc, [])), 1)


def test_interrupts_of_a_function_by_number_with_their_cpus(tree: InterruptTree) -> None:
    (tree.function / "msi_irqs/99").write_text("msix")  # nobody has asked for it yet
    assert tree.files.read(FUNCTION) == {30: (4, 5, 6, 7), 31: tuple(range(8))}
    assert tree.files.read("0000:ff:00.0") == {}
    assert tree.files.read("") == {}


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("eth1-TxRx-3", 3),
        ("ice-ens1f0-TxRx-12", 12),
        ("eth0-tx-0", 0),
        ("eth0-Tx-Rx-2", 2),
        ("mlx5_comp7@pci:0000:81:00.0", 7),
        ("virtio2-output.1", 1),
        ("eth0-rx-0", None),
        ("eth10", None),
        ("mlx5_async0@pci:0000:81:00.0", None),
        ("virtio2-config", None),
    ],
)
def test_the_interrupt_of_a_send_queue_is_known_by_its_drivers_name_for_it(
    tree: InterruptTree, name: str, queue: int | None
) -> None:
    tree.add(40, name=name)
    assert tree.files.find_send_queues((40,)) == ({} if queue is None else {queue: 40})


def test_an_interrupt_goes_where_it_is_placed(tree: InterruptTree) -> None:
    tree.files.place(31, "5")
    assert tree.files.read_one(31) == (5,)


def test_usual_are_the_kernels_default_its_near_part_and_the_drivers_wish(tree: InterruptTree) -> None:
    tree.add(32, hint="00000040")
    assert tree.files.read_usual([31, 32]) == {
        31: (tuple(range(8)), (4, 5, 6, 7)),
        32: ((6,), tuple(range(8)), (4, 5, 6, 7)),
    }


def test_cpus_that_have_gone_offline_are_left_out_and_none_is_an_error(tree: InterruptTree) -> None:
    write(tree.sys / "devices/system/cpu/online", "0-4,6-7")
    assert tree.files.choose_online((6, 5, 4)) == (6, 4)
    with pytest.raises(KernelError, match="CPUs 5,9 are no longer online"):
        tree.files.choose_online((5, 9))


def test_a_cpu_without_a_vector_left_is_said(tree: InterruptTree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(KernelError, match="the CPU has no interrupt vector left") as refused:
        tree.files.place(31, "5")
    assert "ethtool.channels" in refused.value.hint


@pytest.mark.parametrize("refusal", [errno.EIO, errno.EPERM])
def test_what_the_kernel_places_by_itself_is_a_missing_feature(
    tree: InterruptTree, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """Newer kernels have another word for it."""

    def refuse(*_: object) -> None:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(KernelError, match=r"interrupt 31 to CPU 5: .*: the kernel places it") as refused:
        tree.files.place(31, "5")
    assert refused.value.reason is Reason.MISSING_FEATURE
    assert "cpuLocality.irq" in refused.value.hint


def test_a_procfs_that_cannot_be_written_is_named_with_the_mend(
    tree: InterruptTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(KernelError) as refused:
        tree.files.place(31, "5")
    assert "/proc/irq into the driver's container" in refused.value.hint


def test_isolated_cpus_of_boot_and_of_cpusets_are_kept_free(tree: InterruptTree) -> None:
    write(tree.sys / "devices/system/cpu/isolated", "4")
    write(tree.sys / "devices/system/cpu/nohz_full", "5")
    write(tree.sys / "fs/cgroup/cpuset.cpus.isolated", "6")
    assert near_cpus(tree) == (7,)


def test_cpus_that_are_kept_free_of_interrupts_are_kept_free(tree: InterruptTree) -> None:
    """With ``irqaffinity=0-3,5``; tuned writes the same, and CRI-O for a pod that wants no interrupts."""
    write(tree.proc / "irq/default_smp_affinity", "2f")
    assert near_cpus(tree) == (5,)


@pytest.mark.parametrize("told", ["", "00", "odd"])
def test_a_kernel_that_tells_no_default_keeps_nothing_free(tree: InterruptTree, told: str) -> None:
    write(tree.proc / "irq/default_smp_affinity", told)
    assert near_cpus(tree) == (4, 5, 6, 7)


def test_this_kernels_files_are_understood() -> None:
    warnings: list[str] = []
    layout = read_cpu_layout(PseudoFiles(Path("/sys"), warnings), PseudoFiles(Path("/proc"), warnings))
    assert warnings == []
    assert layout.online == parse_cpu_list(Path("/sys/devices/system/cpu/online").read_text())
    assert InterruptFiles().choose_online(layout.online) == layout.online


# --- irqbalance ---------------------------------------------------------------------------------------


def test_without_irqbalance_the_interrupts_are_ours(tree: InterruptTree) -> None:
    tree.start(812, "irqbalance-ui")
    assert balancer_of(tree) == ""


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--foreground",),
        ("--banirq=30",),
        ("-i", "30", "--banirq", "310"),
        ("--banmod=igb",),
        ("--policyscript=/etc/x",),
    ],
)
def test_irqbalance_that_has_these_interrupts_is_named_with_the_mend(
    tree: InterruptTree, arguments: tuple[str, ...]
) -> None:
    tree.start(812, "irqbalance", *arguments)
    told = (
        "irqbalance (process 812) places the node's interrupts; start it with --banmod=mlx5_core, or stop it"
    )
    assert balancer_of(tree) == told


@pytest.mark.parametrize(
    "arguments",
    [
        ("--banirq=30", "--banirq=31"),
        ("-i", "30", "-i31"),
        ("--banirq", "30", "-i", "31", "--debug"),
        ("--banmod=mlx5_core",),
        ("-m", "mlx5_core"),
    ],
)
def test_irqbalance_that_leaves_them_alone_is_in_nobodys_way(
    tree: InterruptTree, arguments: tuple[str, ...]
) -> None:
    tree.start(812, "irqbalance", *arguments)
    assert balancer_of(tree) == ""


def test_who_does_not_see_the_nodes_processes_cannot_tell(tree: InterruptTree) -> None:
    write(tree.proc / "2/comm", "sh")
    assert "hostPID: true" in balancer_of(tree)
