"""Near CPUs for a device: real queues in namespaces, interrupts as files; set, kept, and given back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet import failpoints
from dranet.driver.node_reader import NodeReader
from dranet.errors import KernelError, Reason
from dranet.failpoints import Failpoint
from dranet.kernel.attachment.attach import attach
from dranet.kernel.attachment.detach import DetachReport, detach
from dranet.kernel.attachment.hardware import Queues, restore_queues, set_queues, share_of
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.facts import Route
from dranet.model.plan import AddRoute, AttachPlan, CpuState, SetCpuLocality, SetUp
from tests.kernel.interrupts import FUNCTION, InterruptTree, write
from tests.kernel.plans import move_plan, shell
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

ALL = SetCpuLocality((1, 0), FUNCTION, irq=True, xps=True, rps=True)
"""The CPUs that every machine of ours has."""
GIVEN_BACK = DetachReport(restored=("dev-wide3",))
AFTER = {30: "1", 31: "0", 32: "1"}
BEFORE = {30: "4-7", 31: "0-7", 32: "0-7"}


@pytest.fixture
def tree(tmp_path: Path) -> InterruptTree:
    tree = InterruptTree(tmp_path)
    tree.add(30, "4-7", name="wide3")
    tree.add(31, name="wide3-TxRx-0")
    tree.add(32, name="wide3-TxRx-1")
    return tree


@pytest.fixture
def wide(node: Namespace) -> Namespace:
    """A node with a link of four queues, two of which somebody has set."""
    node.ip_lines(
        "link add wide3 numtxqueues 4 numrxqueues 4 type veth peer name far3 numtxqueues 4 numrxqueues 4\n"
        "link set wide3 up\nlink set far3 up\n"
    )
    queues = "/sys/class/net/wide3/queues"
    shell(node, "sh", "-c", f"echo 3 > {queues}/tx-1/xps_cpus; echo 2 > {queues}/rx-2/rps_cpus")
    shell(node, "sh", "-c", f"echo 5 > {queues}/tx-2/xps_rxqs; echo 64 > {queues}/rx-0/rps_flow_cnt")
    return node


def queues_of(namespace: Namespace, ifname: str) -> Mapping[str, str]:
    """As ``cat`` says them in a sysfs of that namespace."""
    command = (
        f"cd /sys/class/net/{ifname}/queues && grep -H . */xps_cpus */xps_rxqs */rps_cpus */rps_flow_cnt"
    )
    lines = (line.partition(":") for line in shell(namespace, "sh", "-c", command).splitlines())
    return {name: value.lstrip("0") or "0" for name, _, value in lines}


def plan_for(node: Namespace, tree: InterruptTree, step: SetCpuLocality = ALL) -> AttachPlan:
    """As Prepare makes it."""
    asked = [name for name in ("irq", "xps", "rps") if getattr(step, name)]
    reader = NodeReader(tree.sys, tree.proc)
    found = node.run(lambda: reader.read_cpu_surroundings(FUNCTION, "wide3", asked))
    plan = move_plan(node, "wide3", "net1", SetUp(), step)
    return replace(plan, cpus=CpuState(found.irqs, found.queues))


def do_attach(node: Namespace, pod: Namespace, tree: InterruptTree, plan: AttachPlan) -> None:
    node.run(lambda: attach([plan], pod.netns, interrupts=tree.files))


def do_detach(node: Namespace, pod: Namespace | None, tree: InterruptTree, plan: AttachPlan) -> DetachReport:
    netns = pod.netns if pod else None
    return node.run(lambda: detach([plan], netns, interrupts=tree.files))


# --- there and back -------------------------------------------------------------------------------------


def test_interrupts_and_queues_have_near_cpus_in_the_pod_and_their_own_afterwards(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    before = queues_of(wide, "wide3")
    plan = plan_for(wide, tree)
    do_attach(wide, pod, tree, plan)
    assert tree.places() == AFTER
    inside = queues_of(pod, "net1")
    # The interrupts of the first two queues are on the CPUs 0 and 1; the others count from the first CPU on.
    assert [inside[f"tx-{queue}/xps_cpus"] for queue in range(4)] == ["1", "2", "2", "1"]
    assert {inside[f"tx-{queue}/xps_rxqs"] for queue in range(4)} == {"0"}, "or it would be asked first"
    assert {inside[f"rx-{queue}/rps_cpus"] for queue in range(4)} == {"3"}
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK
    assert tree.places() == BEFORE
    assert queues_of(wide, "wide3") == before
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK, "safe to repeat"
    assert queues_of(wide, "wide3") == before


def test_queues_are_set_in_a_pod_whose_containers_have_a_read_only_sysfs(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    """As runc mounts it for the pod's first container: then all of that namespace's is read-only."""
    plan = plan_for(wide, tree)
    command = "mount -t sysfs -o ro sysfs /sys && echo mounted && exec sleep 600"
    container = ["nsenter", f"--net={pod.path}", "unshare", "--mount", "sh", "-c", command]
    with subprocess.Popen(container, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"mounted\n"
            do_attach(wide, pod, tree, plan)
            file = Path(f"/proc/{process.pid}/root/sys/class/net/net1/queues/rx-0/rps_cpus")
            assert int(file.read_text(), 16) == 3
            (of_sysfs,) = (
                line
                for line in Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()
                if f" {os.major(file.stat().st_dev)}:{os.minor(file.stat().st_dev)} " in line
            )
            assert of_sysfs.endswith(" ro"), "as it was"
            assert do_detach(wide, pod, tree, plan) == GIVEN_BACK
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["irq", "xps", "rps"])
def test_each_wish_alone_touches_nothing_else(
    wide: Namespace, pod: Namespace, tree: InterruptTree, name: str
) -> None:
    before = queues_of(wide, "wide3")
    plan = plan_for(wide, tree, replace(ALL, irq=name == "irq", xps=name == "xps", rps=name == "rps"))
    do_attach(wide, pod, tree, plan)
    changed = {file for file, value in queues_of(pod, "net1").items() if value != before[file]}
    assert (tree.places() != BEFORE) == (name == "irq")
    assert {file.partition("/")[2].partition("_")[0] for file in changed} == ({name} - {"irq"})
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK
    assert (tree.places(), queues_of(wide, "wide3")) == (BEFORE, before)


def test_an_attach_that_fails_later_leaves_the_host_as_it_was(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    before = queues_of(wide, "wide3")
    plan = plan_for(wide, tree)
    impossible = AddRoute(Route("10.7.0.0/16", gateway="198.51.100.1"))
    with pytest.raises(KernelError, match="invalid gateway"):
        do_attach(wide, pod, tree, replace(plan, steps=(*plan.steps, impossible)))
    assert (tree.places(), queues_of(wide, "wide3")) == (BEFORE, before)


def test_a_repeated_attach_sets_again_what_was_set_otherwise_since(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    plan = plan_for(wide, tree)
    do_attach(wide, pod, tree, plan)
    inside = queues_of(pod, "net1")
    tree.put(31, "5")
    shell(pod, "sh", "-c", "echo 3 > /sys/class/net/net1/queues/tx-0/xps_cpus")
    do_attach(wide, pod, tree, plan)
    assert (tree.places(), queues_of(pod, "net1")) == (AFTER, inside)


def test_what_a_tenant_did_to_the_queues_does_not_last(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    before = queues_of(wide, "wide3")
    plan = plan_for(wide, tree)
    do_attach(wide, pod, tree, plan)
    shell(pod, "sh", "-c", "cd /sys/class/net/net1/queues; echo 3 > tx-3/xps_cpus; echo 1 > rx-3/rps_cpus")
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK
    assert queues_of(wide, "wide3") == before


class Killed(BaseException):
    """The driver ends here; nothing is undone that a SIGKILL would not undo."""


@pytest.mark.parametrize("step", [Failpoint.RELEASE_LINK_HOME, Failpoint.RELEASE_LINK_SETTLED])
def test_a_release_that_was_cut_short_is_finished_by_the_next(
    wide: Namespace, pod: Namespace, tree: InterruptTree, step: Failpoint
) -> None:
    before = queues_of(wide, "wide3")
    plan = plan_for(wide, tree)
    do_attach(wide, pod, tree, plan)

    def die(reached: Failpoint) -> None:
        if reached is step:
            raise Killed

    failpoints.listen(die)
    try:
        with pytest.raises(Killed):
            do_detach(wide, pod, tree, plan)
    finally:
        failpoints.listen(None)
    assert tree.places() == AFTER
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK
    assert (tree.places(), queues_of(wide, "wide3")) == (BEFORE, before)


def test_prepare_sees_who_else_places_interrupts_only_where_it_asks_for_them(
    wide: Namespace, tree: InterruptTree
) -> None:
    tree.start(812, "irqbalance")
    reader = NodeReader(tree.sys, tree.proc)
    asked = wide.run(lambda: reader.read_cpu_surroundings(FUNCTION, "wide3", ("irq",)))
    assert asked.irqs == {str(irq): cpus for irq, cpus in BEFORE.items()}
    assert "--banmod=mlx5_core" in asked.balancer
    queues = wide.run(lambda: reader.read_cpu_surroundings(FUNCTION, "wide3", ("rps",)))
    assert (queues.irqs, queues.balancer) == ({}, "")
    assert set(queues.queues) == {f"rx-{n}/{name}" for n in range(4) for name in ("rps_cpus", "rps_flow_cnt")}


# --- interrupts that are not as they were ---------------------------------------------------------------


def test_an_interrupt_that_somebody_placed_since_stays_there_and_is_told(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    plan = plan_for(wide, tree)
    do_attach(wide, pod, tree, plan)
    tree.put(31, "5")
    report = do_detach(wide, pod, tree, plan)
    assert report.restored == ("dev-wide3",)
    assert report.problems == (
        "dev-wide3: interrupt 31: another program has put it on CPU 5 since; it stays there (was on 0-7)",
    )
    assert tree.places() == {**BEFORE, 31: "5"}


@pytest.mark.parametrize("fresh", ["0-7", "4-7", "6"])
def test_an_interrupt_that_was_asked_for_anew_gets_what_prepare_found(
    wide: Namespace, pod: Namespace, tree: InterruptTree, fresh: str
) -> None:
    """By the kernel's default, on the near node, or by the driver's hint."""
    tree.put(31, "2-3")
    plan = plan_for(wide, tree)
    do_attach(wide, pod, tree, plan)
    tree.add(31, fresh, hint="40")
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK
    assert tree.places() == {**BEFORE, 31: "2-3"}


def test_an_interrupt_whose_cpu_went_offline_gets_what_prepare_found(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    """The kernel lets it go to any CPU then, those that are kept free of interrupts too."""
    write(tree.proc / "irq/default_smp_affinity", "0f")
    plan = plan_for(wide, tree)
    do_attach(wide, pod, tree, plan)
    write(tree.sys / "devices/system/cpu/online", "0,2-7")
    for irq in (30, 32):
        tree.put(irq, "0,2-7")
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK
    assert tree.places() == BEFORE


def test_numbers_that_changed_are_followed_and_those_of_others_let_alone(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    plan = plan_for(wide, tree)
    tree.take(32)
    tree.put(32, "3")  # it is another device's now
    tree.add(40, name="wide3-TxRx-1")
    do_attach(wide, pod, tree, plan)
    assert tree.places() == {30: "1", 31: "0", 32: "3", 40: "1"}
    tree.add(41)
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK
    assert tree.places() == {30: "4-7", 31: "0-7", 32: "3", 40: "0-7", 41: "0-7"}


@pytest.mark.parametrize("change", ["fewer", "lower"])
def test_interrupts_that_come_and_go_in_the_pod_do_not_hide_those_that_stay(
    wide: Namespace, pod: Namespace, tree: InterruptTree, change: str
) -> None:
    """Each was placed by its place among the others, which is another now."""
    plan = plan_for(wide, tree)
    do_attach(wide, pod, tree, plan)
    if change == "fewer":
        tree.take(30)
    else:
        tree.add(29)
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK
    places = tree.places()
    assert {irq: places[irq] for irq in (31, 32)} == {31: "0-7", 32: "0-7"}


def test_an_interrupt_that_its_driver_has_placed_meanwhile_stays_as_the_driver_wants_it(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    """A number that nobody had at Prepare, and the driver spreads its interrupts itself: on a CPU of ours."""
    plan = plan_for(wide, tree)
    do_attach(wide, pod, tree, plan)
    tree.add(40, "1", hint="02")
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK
    assert tree.places() == {**BEFORE, 40: "1"}


@pytest.mark.parametrize("irq", [True, False])
def test_cpus_that_went_offline_since_prepare_are_left_out(
    wide: Namespace, pod: Namespace, tree: InterruptTree, irq: bool
) -> None:
    """Also when a restarted driver attaches again what a running pod has."""
    plan = plan_for(wide, tree, replace(ALL, cpus=(6, 1), irq=irq))
    write(tree.sys / "devices/system/cpu/online", "0-5")
    do_attach(wide, pod, tree, plan)
    assert set(tree.places().values()) == ({"1"} if irq else set(BEFORE.values()))
    assert queues_of(pod, "net1")["tx-3/xps_cpus"] == "2"
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK


def test_of_a_queue_that_is_gone_there_is_nothing_to_give_back(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    plan = plan_for(wide, tree)
    assert plan.cpus is not None
    do_attach(wide, pod, tree, plan)
    recorded = {**plan.cpus.queues, "tx-9/xps_cpus": "1", "rx-9/rps_cpus": "1"}
    plan = replace(plan, cpus=replace(plan.cpus, queues=recorded))
    assert do_detach(wide, pod, tree, plan) == GIVEN_BACK


def test_a_mask_that_lacks_only_what_is_offline_is_as_it_was(tmp_path: Path) -> None:
    """The kernel keeps of a mask what is online."""
    queues = Queues(tmp_path, PseudoFiles(tmp_path, []), "eth0", online=0b0111)
    for name in ("tx-0/xps_cpus", "rx-0/rps_flow_cnt"):
        write(tmp_path / queues.folder / name, "7")
    assert restore_queues(queues, {"tx-0/xps_cpus": "f"}) == []
    assert queues.read_one("tx-0/xps_cpus") == "7", "nothing to write"
    assert restore_queues(queues, {"rx-0/rps_flow_cnt": "15"}) == []
    assert queues.read_one("rx-0/rps_flow_cnt") == "15", "which is no mask"


def test_a_device_whose_interrupts_are_gone_when_it_is_attached_is_refused(
    wide: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    plan = plan_for(wide, tree)
    for irq in BEFORE:
        tree.take(irq)
    with pytest.raises(KernelError, match="has no interrupts of its own") as refused:
        do_attach(wide, pod, tree, plan)
    assert refused.value.reason is Reason.MISSING_FEATURE


def test_a_device_without_a_link_has_its_interrupts_placed_and_given_back(
    node: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    step = SetCpuLocality((1, 0), FUNCTION, irq=True)
    plan = AttachPlan("dev-ib", (step,), cpus=CpuState({str(irq): cpus for irq, cpus in BEFORE.items()}))
    do_attach(node, pod, tree, plan)
    assert tree.places() == AFTER
    assert do_detach(node, None, tree, plan) == DetachReport(restored=("dev-ib",))
    assert tree.places() == BEFORE


def test_a_link_with_one_queue_has_nothing_to_share(
    node: Namespace, pod: Namespace, tree: InterruptTree
) -> None:
    node.ip_lines(
        "link add wide3 numtxqueues 1 type veth peer name far3 numtxqueues 1\n"
        "link set wide3 up\nlink set far3 up\n"
    )
    plan = plan_for(node, tree, replace(ALL, irq=False))
    assert plan.cpus is not None
    assert not [name for name in plan.cpus.queues if "xps_cpus" in name]
    do_attach(node, pod, tree, plan)
    assert do_detach(node, pod, tree, plan) == GIVEN_BACK


def test_every_cpu_has_one_queue_and_every_queue_a_cpu() -> None:
    cpus = (8, 9, 10, 11, 12, 13, 14)
    assert [share_of(cpus, queue, queue, 3) for queue in range(3)] == [(8, 11, 14), (9, 12), (10, 13)]
    assert [share_of(cpus, queue, queue + 1, 3) for queue in range(3)] == [(9, 12, 8), (10, 13), (11, 14)]
    assert [share_of((4, 5), queue, queue, 4) for queue in range(4)] == [(4,), (5,), (4,), (5,)]


class Counting(PseudoFiles):
    """Counts what is read."""

    reads = 0

    def text(self, path: str) -> str:
        self.reads += 1
        return super().text(path)


def test_each_queue_costs_five_reads_because_a_pod_waits_for_it(tmp_path: Path) -> None:
    """A NIC may have hundreds, and a pod eight NICs: 1.5 seconds are for all of them."""
    files = Counting(tmp_path, [])
    queues = Queues(tmp_path, files, "eth0", online=0b1111)
    for number in range(256):
        write(tmp_path / queues.folder / f"tx-{number}/xps_cpus", "0")
        write(tmp_path / queues.folder / f"tx-{number}/xps_rxqs", "0")
        write(tmp_path / queues.folder / f"rx-{number}/rps_cpus", "0")
    set_queues(queues, replace(ALL, cpus=(0, 1, 2, 3)), {})
    assert files.reads == 5 * 256
    set_queues(queues, replace(ALL, cpus=(0, 1, 2, 3)), {})
    assert files.reads == 8 * 256, "and nothing is written twice"
    assert queues.read_one("tx-255/xps_cpus") == "8"
    assert queues.read_one("rx-255/rps_cpus") == "f"
