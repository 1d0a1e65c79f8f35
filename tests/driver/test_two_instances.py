"""Two instances of the driver over one node, in two processes, of which one may be killed: as in an update.

The runtime calls both for each event. Namespaces, store, gate and locks are real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.driver import hooks
from dranet.driver.attachments import Attachments, AttachReport
from dranet.errors import HookDeadlineError, KernelError, Reason, StoreError
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.namespaces.pod_links import PodLinks
from dranet.model.claim import MEMLOCK, Container, ContainerAdjustment, Rlimit
from dranet.model.plan import RdmaAccess
from dranet.runtime.containers import CdiDevice
from dranet.store.claim_store import ClaimStore
from tests.driver.bench import POD_UID, UVERBS, Bench, names, sandbox
from tests.driver.other_instance import OtherInstances, spell
from tests.support.namespaces import Namespace
from tests.support.records import read_texts, write_newer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel


@pytest.fixture
def bench(start: Callable[..., Bench]) -> Bench:
    """This process's instance."""
    return start()


@pytest.fixture(scope="module")
def others() -> Iterator[OtherInstances]:
    made = OtherInstances()
    yield made
    made.close()


@pytest.fixture
def other(others: OtherInstances, bench: Bench, tmp_path: Path, node: Namespace) -> Iterator[OtherInstances]:
    """The other one's process."""
    assert bench.store.get_all() == ()
    others.use(tmp_path, node)
    yield others
    others.kill()


def told(bench: Bench) -> list[int]:
    """Links attached and found, releases, failures."""
    heard = bench.told
    return [len(heard.attached_links), len(heard.found_links), len(heard.reports), len(heard.failures)]


def descriptors_of(pid: int, namespace: Namespace) -> int:
    """How many of a process keep a namespace alive."""
    wanted = namespace.path.stat()
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            seen = entry.stat()
        except FileNotFoundError:
            continue
        found += (seen.st_dev, seen.st_ino) == (wanted.st_dev, wanted.st_ino)
    return found


# --- each hook in both ----------------------------------------------------------------------------------


def test_the_second_instance_finds_the_work_of_each_hook_done_and_says_nothing(
    bench: Bench, other: OtherInstances, node: Namespace, pod: Namespace
) -> None:
    before = node.picture()
    bench.prepare("eth1", "net1")
    this = spell(sandbox(pod))
    assert other.do("run", *this) is True
    assert bench.run_sandbox(sandbox(pod)), "it is its business, too"
    assert "net1" in names(pod)
    assert [other.do("told"), told(bench)] == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert other.do("create", *this) == [UVERBS.path]
    shown = Container("c", "main", "sandbox-1", devices=(replace(UVERBS, file_mode=None),))
    assert node.run(lambda: bench.hooks.create_container(sandbox(pod), shown)) == ContainerAdjustment()
    assert bench.stop_sandbox(sandbox(pod))
    assert other.do("stop", *this) is False
    assert node.picture() == before
    assert [other.do("told"), told(bench)] == [[1, 0, 0, 0], [0, 1, 1, 0]]


def test_no_instance_keeps_a_namespace_whose_devices_the_other_has_given_back(
    bench: Bench, other: OtherInstances, pod: Namespace
) -> None:
    bench.prepare("eth1", "net1")
    assert other.do("run", *spell(sandbox(pod))) is True
    assert descriptors_of(other.pid, pod) == 1, "it holds what it has attached"
    bench.stop_sandbox(sandbox(pod))
    assert descriptors_of(other.pid, pod) == 1
    other.do("stop", *spell(sandbox(pod)))
    assert descriptors_of(other.pid, pod) == 0


def test_a_pod_whose_sandbox_was_replaced_is_released_from_the_new_one_by_the_instance_that_had_the_old(
    bench: Bench,
    other: OtherInstances,
    node: Namespace,
    pod: Namespace,
    make_namespace: Callable[..., Namespace],
) -> None:
    before = node.picture()
    later = make_namespace()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    assert other.do("run", *spell(sandbox(later, 2))) is True  # nobody told of the first one's end
    assert "net1" in names(later)
    assert bench.stop_sandbox(replace(sandbox(later, 2), netns_path=""))
    assert node.picture() == before


def test_many_comings_and_goings_in_both_at_once_leave_the_node_as_it_was(
    bench: Bench, other: OtherInstances, node: Namespace, pod: Namespace
) -> None:
    before = node.picture()
    bench.prepare("eth1", "net1", "mine", pod_uid="pod-1")
    other.do("prepare", "eth2", "net2", "theirs", "pod-2")
    mine = replace(sandbox(pod, 1), uid="pod-1")
    theirs = replace(sandbox(pod, 2), uid="pod-2")
    other.start("come_and_go", 6, *spell(theirs))
    for number in range(6):
        this = replace(mine, id=f"mine-{number}")
        assert bench.run_sandbox(this)
        assert bench.stop_sandbox(this)
    assert other.answer() is True
    assert node.picture() == before
    assert [other.do("told"), told(bench)] == [[6, 0, 6, 0], [6, 0, 6, 0]]


# --- killed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before the kernel's part", "before the gate opens"])
def test_a_pod_that_an_instance_was_killed_over_is_attached_by_the_other(
    bench: Bench, other: OtherInstances, node: Namespace, pod: Namespace, point: str
) -> None:
    before = node.picture()
    bench.prepare("eth1", "net1")
    other.do("die", point)
    assert other.do("run", *spell(sandbox(pod))) is None
    assert not bench.gate.is_open("claim-uid")
    assert bench.run_sandbox(sandbox(pod))
    assert "net1" in names(pod)
    assert bench.gate.is_open("claim-uid")
    assert told(bench) == [1, 0, 0, 0], "nobody else has told"
    assert bench.stop_sandbox(sandbox(pod))
    assert node.picture() == before


@pytest.mark.parametrize("point", ["before the kernel gives back", "before the release is committed"])
def test_a_release_that_an_instance_was_killed_over_is_finished_by_the_other(
    bench: Bench, other: OtherInstances, node: Namespace, pod: Namespace, point: str
) -> None:
    before = node.picture()
    bench.prepare("eth1", "net1")
    other.do("run", *spell(sandbox(pod)))
    bench.run_sandbox(sandbox(pod))
    other.do("die", point)
    assert other.do("stop", *spell(sandbox(pod))) is None
    assert bench.stop_sandbox(sandbox(pod))
    assert node.picture() == before
    assert not bench.gate.is_open("claim-uid")
    assert told(bench) == [0, 1, 1, 0]


RUNTIME_WAITS_SECONDS = 5.0


def wait_for_others_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """So short a part of its time that a process that gets none for long still says in time who it was."""
    monkeypatch.setattr(hooks, "_WAIT_SHARE", 0.03)


def test_a_hook_that_waits_for_the_other_instance_answers_in_time_and_names_it(
    bench: Bench, other: OtherInstances, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.prepare("eth1", "net1")
    assert other.do("hold_devices") == "held"
    wait_for_others_a_moment(monkeypatch)
    bench.hooks.connected("impatient", "1", 0.2)
    assert bench.run_sandbox(sandbox(pod)), "its containers wait"
    bench.hooks.connected("impatient", "1", RUNTIME_WAITS_SECONDS)
    begin = time.monotonic()
    with pytest.raises(HookDeadlineError, match=f"in process {other.pid}"):
        bench.create_container(sandbox(pod))
    assert time.monotonic() - begin < RUNTIME_WAITS_SECONDS
    assert not bench.gate.is_open("claim-uid")
    other.kill()
    wait_until(lambda: bench.gate.is_open("claim-uid"), "the kernel has let its lock go")
    assert "net1" in names(pod)


def test_what_a_late_instance_attached_stays_where_the_runtime_has_gone_on_without_it(
    bench: Bench, other: OtherInstances, pod: Namespace
) -> None:
    """A process that gets no time for long: the other one has found all in place, and a container runs."""
    bench.prepare("eth1", "net1")
    runtime_waits_seconds = 2.0  # a busy machine attaches in that time, too
    other.start("run_late", runtime_waits_seconds, *spell(sandbox(pod)))
    wait_until(lambda: is_stopped(other.pid), "the pod has its devices, and the process no time")
    begin = time.monotonic()  # of its hook, at the latest
    assert bench.run_sandbox(sandbox(pod))
    assert bench.create_container(sandbox(pod)).devices
    wait_until(lambda: time.monotonic() - begin > runtime_waits_seconds, "the runtime has given it up")
    os.kill(other.pid, signal.SIGCONT)
    assert other.answer() is True
    assert "net1" in names(pod)
    assert bench.gate.is_open("claim-uid")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_container_that_could_not_be_looked_after_in_time_makes_no_device_of_its_pod_unready(
    bench: Bench, other: OtherInstances, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ever say that it is ready again: it has been in place all the time."""
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    assert other.do("hold_devices") == "held"
    wait_for_others_a_moment(monkeypatch)
    bench.hooks.connected("impatient", "1", RUNTIME_WAITS_SECONDS)
    with pytest.raises(KernelError, match=f"in process {other.pid}"):
        bench.create_container(sandbox(pod))
    assert bench.told.failures == []
    assert [name for name, _ in bench.told.refusals] == ["pod"]
    other.kill()
    monkeypatch.undo()
    bench.connect()
    assert bench.create_container(sandbox(pod)).devices
    assert told(bench) == [1, 0, 0, 0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def no_space_on(disk: Path) -> Iterator[None]:
    junk = disk / "junk"
    with pytest.raises(OSError, match="No space"):
        junk.write_bytes(bytes(1 << 20))
    yield
    junk.unlink()


def test_on_a_full_disk_both_attach_and_give_back_and_write_it_down_later(
    small_disk: Path, node: Namespace, pod: Namespace
) -> None:
    with closing(Bench(small_disk, node)) as one, closing(Bench(small_disk, node)) as two:
        before = node.picture()
        one.prepare("eth1", "net1")
        with no_space_on(small_disk):
            with pytest.raises(StoreError, match="full"):
                two.prepare("eth2", "net2", "refused")
            assert one.run_sandbox(sandbox(pod))
            assert two.run_sandbox(sandbox(pod))
            assert "net1" in names(pod)
            assert one.stop_sandbox(sandbox(pod))
            assert two.stop_sandbox(sandbox(pod))
            assert node.picture() == before
            assert one.run_sandbox(sandbox(pod, 2))
        assert one.store.unwritten
        assert one.store.flush_pending()
        assert [bench.store.get_all()[0].sandbox_id for bench in (one, two)] == ["sandbox-2"] * 2


def test_where_a_device_is_that_the_disk_did_not_learn_of_is_found_out_after_a_kill(
    small_disk: Path, node: Namespace, pod: Namespace
) -> None:
    with closing(Bench(small_disk, node)) as first:
        before = node.picture()
        first.prepare("eth1", "net1")
        with no_space_on(small_disk):
            first.run_sandbox(sandbox(pod))
            (text,) = read_texts(small_disk / "claims").values()  # what the disk knows
    assert '"sandbox_id":""' in text
    for pods in ([sandbox(pod)], []):
        with closing(Bench(small_disk, node)) as again:
            again.reconcile(*pods)
            assert ("net1" in names(pod)) is bool(pods)
    assert node.picture() == before


# --- reconcile ------------------------------------------------------------------------------------------


def test_reconcile_leaves_a_pod_alone_that_the_other_has_attached_after_the_runtime_made_its_list(
    bench: Bench, other: OtherInstances, node: Namespace, pod: Namespace
) -> None:
    """Runtimes that do not hold pods back while a plugin connects."""
    bench.prepare("eth1", "net1")
    bench.connect()
    other.do("run", *spell(sandbox(pod)))
    bench.hooks.synchronize([])
    node.run(lambda: bench.pods.reconcile(bench.snapshots[-1]))
    assert "net1" in names(pod)
    bench.reconcile()
    assert "net1" not in names(pod), "this list was made after it"


def test_reconcile_says_nothing_of_pods_that_a_newer_driver_takes_over_meanwhile(
    bench: Bench, pod: Namespace, node: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    bench.connect()
    bench.hooks.synchronize([sandbox(pod)])
    gone = replace(bench.snapshots[-1], pods=(), is_news=False)
    asked: list[str] = []

    def refuse(_: ClaimStore) -> None:
        asked.append("while it holds the devices")
        raise StoreError("records of a newer driver", reason=Reason.STORE_NEWER)

    monkeypatch.setattr(ClaimStore, "check_version", refuse)
    node.run(lambda: bench.pods.reconcile(bench.snapshots[-1]))
    for _ in range(2):
        node.run(lambda: bench.pods.reconcile(gone))
        bench.clock += 180.0
    assert len(asked) == 2
    assert told(bench) == [1, 0, 0, 0]
    assert bench.told.stuck == []


def test_both_reconcile_and_a_pod_has_its_nic_once(
    bench: Bench, other: OtherInstances, pod: Namespace, node: Namespace
) -> None:
    before = node.picture()
    bench.prepare("eth1", "net1")
    assert other.do("run", *spell(sandbox(pod))) is True
    bench.reconcile(sandbox(pod))
    assert "net1" in names(pod)
    assert bench.stop_sandbox(sandbox(pod))
    assert node.picture() == before


def test_a_sweep_takes_no_file_of_a_claim_that_the_other_is_preparing(
    bench: Bench, other: OtherInstances
) -> None:
    bench.cdi.write("left-over", [CdiDevice("nic")])
    other.start("prepare_files", 30)
    while len(bench.store.get_all()) < 30:
        bench.files.sweep_leftovers()
    assert other.answer() == []
    assert len(bench.cdi.list_claims()) == 30


def test_claims_of_an_earlier_boot_are_forgotten_while_the_other_prepares(
    bench: Bench, other: OtherInstances
) -> None:
    before = replace(bench.prepare("eth2", "net2", "of-before"), boot_id="before")
    other.start("prepare_files", 30)
    while len(bench.store.get_all()) < 30:
        bench.store.put(before)
        bench.files.forget_other_boots()
        assert bench.store.get("of-before") is None
    assert other.answer() == []
    assert len(bench.store.get_all()) == 30


# --- what a container has already -----------------------------------------------------------------------


def test_a_container_is_given_only_what_it_lacks(bench: Bench, node: Namespace, pod: Namespace) -> None:
    limit = Rlimit(MEMLOCK, 1 << 20, 1 << 20)
    bench.prepare("eth1", "net1", rdma=RdmaAccess((UVERBS,), 1 << 20))
    bench.run_sandbox(sandbox(pod))
    plain = Container("c", "main", "sandbox-1", rlimits=(Rlimit(MEMLOCK, 1, 1),))

    def added_to(container: Container) -> ContainerAdjustment:
        return node.run(lambda: bench.hooks.create_container(sandbox(pod), container))

    first = added_to(plain)
    assert (first.devices, first.rlimits) == ((UVERBS,), (limit,))
    assert added_to(replace(plain, devices=(UVERBS,))).devices == ()
    assert added_to(replace(plain, devices=(replace(UVERBS, minor=1),))).devices == (UVERBS,)
    both = replace(plain, devices=(UVERBS,), rlimits=(*plain.rlimits, limit))
    assert added_to(both) == ContainerAdjustment(), "a runtime appends what an earlier plugin adds"


# --- a newer driver -------------------------------------------------------------------------------------


def test_hooks_are_no_ops_when_a_newer_driver_has_written_records(
    bench: Bench, node: Namespace, pod: Namespace, tmp_path: Path
) -> None:
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    write_newer(tmp_path / "claims")
    theirs = bench.gate.mount_for("claim-of-the-newer-one")
    container = Container("c", "main", "sandbox-1", mounts=(theirs,))
    assert node.run(lambda: bench.hooks.create_container(sandbox(pod), container)) == ContainerAdjustment()
    assert not bench.stop_sandbox(sandbox(pod))
    assert not bench.run_sandbox(sandbox(pod, 2))
    bench.reconcile()
    assert "net1" in names(pod), "it is the newer one's to give back"
    with pytest.raises(StoreError) as caught:
        bench.attachments.release_claim("claim-uid")
    assert (caught.value.reason, caught.value.retryable) == (Reason.STORE_NEWER, True)
    assert bench.gate.is_open("claim-uid")
    assert told(bench) == [1, 0, 0, 0]
    assert bench.told.stuck == []


# --- whoever follows the links of pods ------------------------------------------------------------------


class Followed(PodLinks):
    """As the health of links in pods does."""

    def __init__(self) -> None:
        self.namespaces: dict[str, NetworkNamespace] = {}

    def follow(self, pod_uid: str, netns: NetworkNamespace) -> None:
        assert pod_uid not in self.namespaces
        self.namespaces[pod_uid] = netns

    def forget(self, pod_uid: str) -> None:
        del self.namespaces[pod_uid]


def test_who_follows_the_links_of_pods_hears_of_each_that_has_some_and_of_its_end(
    bench: Bench, other: OtherInstances, node: Namespace, pod: Namespace
) -> None:
    followed = Followed()
    mine = Attachments(bench.store, bench.gate, pod_links=followed)
    bench.prepare("eth1", "net1")

    def attach() -> AttachReport | None:
        return node.run(lambda: mine.attach_pod(sandbox(pod), deadline=time.monotonic() + 30))

    assert other.do("run", *spell(sandbox(pod))) is True
    report = attach()
    assert report is not None
    assert not report.is_news
    seen = followed.namespaces[POD_UID].run(lambda: Path("/proc/thread-self/ns/net").stat().st_ino)
    assert seen == pod.path.stat().st_ino
    attach()
    assert list(followed.namespaces) == [POD_UID]
    other.do("stop", *spell(sandbox(pod)))
    mine.find_missing(sandbox(pod), deadline=time.monotonic() + 30)
    assert followed.namespaces == {}
    mine.close()
