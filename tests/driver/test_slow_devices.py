"""Devices that take longer than the runtime waits: answered in time, attached behind it, and never twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dranet import failpoints
from dranet.driver import attachments
from dranet.driver.attachments import ReleaseReport, StillReturning
from dranet.errors import HookDeadlineError, KernelError, Reason
from dranet.failpoints import Failpoint
from tests.driver.bench import Bench, names, sandbox
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel

PCI = "0000:17:00.0"
LONG_SECONDS = 60.0


class Hold:
    """The kernel, which stops at a step for the number-th time until it is let go."""

    def __init__(self, step: Failpoint, number: int = 1) -> None:
        self._step, self._number = step, number
        self._go = threading.Event()
        self.is_reached = threading.Event()
        self.steps: list[Failpoint] = []

    def __call__(self, step: Failpoint) -> None:
        self.steps.append(step)
        if step is self._step and self.steps.count(step) == self._number:
            self.is_reached.set()
            assert self._go.wait(LONG_SECONDS)

    def let_go(self) -> None:
        self._go.set()
        wait_until(lambda: not [t for t in threading.enumerate() if t.name == "hook"], "the hooks have ended")


@contextmanager
def a_kernel_that_holds(step: Failpoint, number: int = 1) -> Iterator[Hold]:
    hold = Hold(step, number)
    failpoints.listen(hold)
    try:
        yield hold
    finally:
        hold.let_go()
        failpoints.listen(None)


def prepare_three(bench: Bench) -> None:
    for number in (1, 2, 3):
        bench.prepare(f"eth{number}", f"net{number}", f"claim-{number}")


def impatient(bench: Bench) -> Bench:
    bench.hooks.connected("impatient", "1", 0.5)
    return bench


# --- attach ---------------------------------------------------------------------------------------------


def test_a_sandbox_runs_in_time_and_its_containers_wait_for_slow_devices(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    bench = start()
    prepare_three(bench)
    with a_kernel_that_holds(Failpoint.ATTACH_LINK_MOVED, 2) as kernel:
        assert impatient(bench).run_sandbox(sandbox(pod))
        assert kernel.is_reached.is_set()
        assert not bench.gate.list_claims(), "no container can start"
        with pytest.raises(HookDeadlineError, match="1 of 3 devices are in the pod so far"):
            bench.create_container(sandbox(pod))
        ((refused, error),) = bench.told.refusals
        assert (refused, error.reason) == ("pod", Reason.HOOK_DEADLINE_EXCEEDED)
        kernel.let_go()
        assert {"net1", "net2", "net3"} < names(pod)
        assert all(bench.gate.is_open(f"claim-{number}") for number in (1, 2, 3))
        assert kernel.steps.count(Failpoint.ATTACH_LINK_MOVED) == 3, "the next attempt finds what is there"
        assert Failpoint.RELEASE_LINK_HOME not in kernel.steps
    assert bench.told.failures == []
    assert len(bench.told.attached_links) == 3
    bench.connect()
    assert bench.create_container(sandbox(pod)).devices


def test_what_fails_behind_the_answer_is_undone_and_reported(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before = node.picture()
    prepare_three(bench)
    with a_kernel_that_holds(Failpoint.ATTACH_LINK_MOVED, 2) as kernel:
        assert impatient(bench).run_sandbox(sandbox(pod))
        pod.ip("link", "add", "net3", "type", "veth", "peer", "name", "other")
        inside = names(pod) - {"net1", "net2"}
        kernel.let_go()
    assert (node.picture(), names(pod)) == (before, inside)
    assert [error.reason for _, error in bench.told.failures] == [Reason.ATTACH_FAILED]
    assert not bench.gate.list_claims()
    bench.connect()
    with pytest.raises(KernelError, match="net3"):
        bench.create_container(sandbox(pod))


def test_a_sandbox_that_is_stopped_meanwhile_gets_no_more_devices(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before = node.picture()
    prepare_three(bench)
    with a_kernel_that_holds(Failpoint.ATTACH_LINK_MOVED, 2) as kernel:
        assert impatient(bench).run_sandbox(sandbox(pod))
        assert bench.stop_sandbox(sandbox(pod)), "answered in time"
        kernel.let_go()
        assert kernel.steps.count(Failpoint.ATTACH_LINK_MOVED) == 2
    assert node.picture() == before
    assert all(not record.netns_path for record in bench.store.get_all())


# --- release --------------------------------------------------------------------------------------------


def test_a_slow_restore_goes_on_behind_the_answer(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    before = node.picture()
    prepare_three(bench)
    bench.run_sandbox(sandbox(pod))
    with a_kernel_that_holds(Failpoint.RELEASE_LINK_HOME, 2) as kernel:
        assert impatient(bench).stop_sandbox(sandbox(pod))
        assert "net2" not in names(pod), "the kernel is at work on it"
        pod.delete()
        kernel.let_go()
    assert node.picture() == before
    assert [report.problems for report in bench.told.reports] == [(), (), ()]
    assert bench.told.stuck == []


class Returning:
    """A NIC of a namespace that is gone: of a bench whose sysfs has the function."""

    def __init__(self, bench: Bench, node: Namespace, pod: Namespace, sysfs: Path) -> None:
        (sysfs / "bus/pci/devices" / PCI).mkdir(parents=True)
        bench.attachments._sysfs_root = sysfs
        self.function = sysfs / "bus/pci/devices" / PCI
        self.node, self._pod = node, pod
        self.before = self.read_state()
        bench.prepare("eth1", "net1", pci_address=PCI)
        bench.run_sandbox(sandbox(pod))
        bench.attachments.close()  # nothing holds the namespace any more

    def read_state(self) -> object:
        """Of the link on the node, but for its index, which it does not keep on this way."""
        (link,) = self.node.read("addr", "show", "dev", "eth1")
        return {key: value for key, value in link.items() if key != "ifindex"}

    def vanish(self, elsewhere: Namespace) -> None:
        """The namespace ends, and the link is on neither side."""
        self._pod.ip("link", "set", "net1", "netns", elsewhere.name)
        self._pod.delete()

    def return_from(self, elsewhere: Namespace) -> None:
        """As the kernel brings it back: down, bare, under its name in the pod."""
        elsewhere.ip("link", "set", "net1", "down")
        elsewhere.ip("addr", "flush", "dev", "net1")
        elsewhere.ip("link", "set", "net1", "netns", self.node.name)


@pytest.fixture
def returning(
    start: Callable[..., Bench], node: Namespace, pod: Namespace, tmp_path: Path
) -> tuple[Bench, Returning]:
    first = start()
    nic = Returning(first, node, pod, tmp_path / "sys")
    bench = start()
    bench.attachments._sysfs_root = tmp_path / "sys"
    return bench, nic


def release(bench: Bench, return_seconds: float = 0.0) -> ReleaseReport | None:
    return bench.node.run(lambda: bench.attachments.release_claim("claim-uid", return_seconds=return_seconds))


def test_a_nic_that_the_kernel_brings_back_late_is_waited_for_and_restored(
    returning: tuple[Bench, Returning], make_namespace: Callable[..., Namespace]
) -> None:
    (bench, nic), elsewhere = returning, make_namespace("elsewhere")
    nic.vanish(elsewhere)
    with pytest.raises(StillReturning, match="dev-eth1"):
        release(bench)
    record = bench.store.get("claim-uid")
    assert record is not None
    assert record.netns_path, "the record waits for it"
    late = threading.Timer(0.3, nic.return_from, [elsewhere])
    late.start()
    report = release(bench, LONG_SECONDS)
    late.join()
    assert report is not None
    assert (report.missing, report.problems) == ((), ())
    assert nic.read_state() == nic.before


def test_a_nic_that_is_unplugged_is_waited_for_by_nobody(
    returning: tuple[Bench, Returning], make_namespace: Callable[..., Namespace]
) -> None:
    bench, nic = returning
    nic.vanish(make_namespace("elsewhere"))
    nic.function.rmdir()
    report = release(bench, LONG_SECONDS)
    assert report is not None
    assert report.missing == ("dev-eth1",)


def test_a_nic_that_does_not_come_back_is_lost_in_the_end(
    returning: tuple[Bench, Returning],
    make_namespace: Callable[..., Namespace],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, nic = returning
    nic.vanish(make_namespace("elsewhere"))
    with pytest.raises(StillReturning):
        release(bench)
    monkeypatch.setattr(attachments, "RETURN_SECONDS", 0.0)
    report = release(bench)
    assert report is not None
    assert report.missing == ("dev-eth1",)


def test_a_hook_waits_for_a_returning_nic_behind_its_answer(
    returning: tuple[Bench, Returning], pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    (bench, nic), elsewhere = returning, make_namespace("elsewhere")
    nic.vanish(elsewhere)
    assert impatient(bench).stop_sandbox(sandbox(pod))
    nic.return_from(elsewhere)
    wait_until(lambda: len(bench.told.reports) == 1, "it is restored")
    assert nic.read_state() == nic.before
    assert bench.told.stuck == []


# --- set down at Prepare --------------------------------------------------------------------------------


def set_down(bench: Bench) -> None:
    bench.node.run(lambda: bench.attachments.set_links_down("claim-uid"))


def is_up(node: Namespace, ifname: str) -> bool:
    (link,) = node.read("link", "show", "dev", ifname)
    return "UP" in link["flags"]


def test_the_link_of_hardware_is_down_before_it_moves_and_up_in_the_pod(
    start: Callable[..., Bench], node: Namespace, pod: Namespace
) -> None:
    bench = start()
    node.ip("addr", "add", "2001:db8:7::1/64", "dev", "eth1", "nodad")
    before = node.picture()
    bench.prepare("eth1", "net1", pci_address=PCI)
    set_down(bench)
    assert not is_up(node, "eth1")
    bench.run_sandbox(sandbox(pod))
    assert is_up(pod, "net1")
    bench.stop_sandbox(sandbox(pod))
    assert node.picture() == before


def test_a_pod_that_never_came_leaves_the_link_as_it_was(
    start: Callable[..., Bench], node: Namespace
) -> None:
    bench = start()
    node.ip("addr", "add", "2001:db8:7::1/64", "dev", "eth1", "nodad")
    before = node.picture()
    bench.prepare("eth1", "net1", pci_address=PCI)
    set_down(bench)
    bench.reconcile()
    assert not is_up(node, "eth1"), "its pod may still come"
    assert release(bench) is None, "no pod has had it"
    assert node.picture() == before


@pytest.mark.parametrize("case", ["software", "uplink", "enslaved", "attached", "down"])
def test_a_link_that_is_not_to_be_set_down_stays(
    start: Callable[..., Bench], node: Namespace, pod: Namespace, case: str
) -> None:
    bench = start()
    if case == "down":
        node.ip("link", "set", "eth1", "down")
    bench.prepare("eth1", "net1", pci_address="" if case == "software" else PCI)
    if case == "uplink":
        node.ip("route", "replace", "default", "dev", "eth1")
    if case == "enslaved":
        node.ip_lines("link add br9 type bridge\nlink set eth1 master br9")
    if case == "attached":
        bench.run_sandbox(sandbox(pod))
    before, inside = node.picture(), pod.picture()
    if case == "uplink":
        with pytest.raises(Exception, match="uplink"):
            set_down(bench)
    else:
        set_down(bench)
    assert (node.picture(), pod.picture()) == (before, inside)
