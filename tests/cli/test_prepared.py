"""``dranet claims``: what a driver has done, in real namespaces, as its store and the kernel have it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.cli.main import main
from dranet.cli.prepared_claims import look
from dranet.errors import StoreError
from dranet.model.plan import CpuState, DhcpLease, SetCpuLocality
from dranet.store.claim_store import ClaimStore
from tests.driver.bench import Bench, sandbox
from tests.support.namespaces import Namespace
from tests.support.records import write_newer, write_text

pytestmark = pytest.mark.kernel
NOBODY = 65534


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    """A procfs that says which boot this is."""
    file = tmp_path / "proc" / "sys" / "kernel" / "random" / "boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("boot\n")
    return tmp_path / "proc"


@pytest.fixture
def bench(tmp_path: Path, node: Namespace) -> Iterator[Bench]:
    with closing(Bench(tmp_path / "state", node, "boot")) as bench:
        yield bench


@pytest.fixture
def show(
    tmp_path: Path, boot: Path, node: Namespace, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command on the node: its exit code, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        given = ["prepared", *arguments, "--state-dir", str(tmp_path / "state"), "--procfs-root", str(boot)]
        code = node.run(lambda: main(given))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


Show = Callable[..., tuple[int, str, str]]


def states(show: Show) -> dict[str, str]:
    _, out, _ = show("-o", "json")
    return {claim["name"]: claim["state"] for claim in json.loads(out)["claims"]}


def test_each_claim_has_its_links_and_whether_the_kernel_agrees(
    bench: Bench, pod: Namespace, show: Show
) -> None:
    bench.prepare("eth1", "net1", "training")
    bench.prepare("eth2", "net2", "waiting", pod_uid="other-pod")
    assert bench.run_sandbox(sandbox(pod))
    wanted = (
        "CLAIM             POD  LINKS         STATE\n"
        "default/training  pod  eth1 -> net1  attached\n"
        "default/waiting   pod  eth2 -> net2  waiting\n"
        "\n"
        "2 claims prepared on this node: 1 attached, 1 waiting\n"
    )
    assert show() == (0, wanted, "")


def test_the_same_is_seen_when_no_driver_runs_and_the_files_stay_as_they_are(
    bench: Bench, pod: Namespace, show: Show, tmp_path: Path
) -> None:
    bench.prepare("eth1", "net1", "training")
    assert bench.run_sandbox(sandbox(pod))
    beside = show("-o", "wide")
    bench.close()
    before = {file: file.stat() for file in (tmp_path / "state").rglob("*")}
    assert show("-o", "wide") == beside
    after = {file: file.stat() for file in (tmp_path / "state").rglob("*")}
    assert {f: (s.st_mtime_ns, s.st_size) for f, s in after.items()} == {
        f: (s.st_mtime_ns, s.st_size) for f, s in before.items()
    }


def test_a_link_that_left_its_pod_and_a_namespace_that_is_gone_are_told(
    bench: Bench, pod: Namespace, make_namespace: Callable[..., Namespace], show: Show, node: Namespace
) -> None:
    bench.prepare("eth1", "net1", "stolen")
    bench.prepare("eth2", "net2", "orphan", pod_uid="other-pod")
    assert bench.run_sandbox(sandbox(pod))
    second = make_namespace()
    other = replace(sandbox(second, 2), uid="other-pod")
    assert bench.run_sandbox(other)
    assert states(show) == {"stolen": "attached", "orphan": "attached"}
    pod.ip("link", "set", "net1", "netns", node.name)
    bench.close()
    subprocess.run(["ip", "netns", "del", second.name], check=True)
    second.netns.close()
    second.gone = True
    code, out, _ = show()
    assert code == 0
    assert "incomplete: net1 is on the host; its gate is open" in out
    assert "orphaned: its namespace is gone" in out


def test_a_claim_is_found_by_name_uid_or_pod_with_all_that_is_known(
    bench: Bench, pod: Namespace, show: Show
) -> None:
    record = bench.prepare("eth1", "net1", "training")
    (device,) = record.devices
    assert device.plan is not None
    lease = DhcpLease("10.0.0.5/24", "10.0.0.1", "02:00", "02:01", time.time(), 3600, 1800, 3000)
    near = SetCpuLocality((0,), rps=True)
    cpus = CpuState({"30": "0-7", "31": "0-7", "32": "4"}, {"rx-0/rps_cpus": "0"})
    leased = replace(
        device, plan=replace(device.plan, steps=(*device.plan.steps, near), lease=lease, cpus=cpus)
    )
    bench.store.put(replace(record, devices=(leased,)))
    assert bench.run_sandbox(sandbox(pod))
    for name in ("training", "default/training", "claim/train", "pod", "pod/po", "default/pod", "pod-uid"):
        code, out, _ = show(name)
        assert code == 0
        assert "state      attached\n" in out
        assert f"namespace  {pod.path}" in out
        assert "link     eth1 -> net1, now: in the pod" in out
        assert "lease    10.0.0.5/24 (3" in out
        assert "cpus     0 (rps)\n             interrupts before: 2 on 0-7, 1 on 4\n" in out
    code, _, err = show("nobody")
    assert (code, "NotFound: no claim or pod nobody is prepared" in err) == (1, True)


def test_what_an_earlier_boot_left_and_what_cannot_be_read_is_told_apart(
    bench: Bench, show: Show, tmp_path: Path
) -> None:
    record = bench.prepare("eth1", "net1", "old")
    bench.store.put(replace(record, boot_id="before"))
    bench.prepare("eth2", "net2", "bad")
    write_text(tmp_path / "state/claims", "bad", "nonsense")
    code, out, _ = show()
    assert code == 0
    assert "earlier boot" in out
    assert "quarantined: the record of claim bad: no JSON" in out


def test_a_record_that_was_set_aside_is_shown_until_it_is_removed(
    bench: Bench, show: Show, tmp_path: Path
) -> None:
    bench.prepare("eth1", "net1", "training")
    bench.prepare("eth2", "net2", "bad")
    bench.close()
    path = tmp_path / "state/claims"
    write_text(path, "bad", '{"version": 4}')
    with closing(ClaimStore(path)) as store:
        store.open()
    code, out, _ = show()
    assert (code, "default/training" in out) == (0, True)
    assert "quarantined: the record of claim bad: claim: is missing" in out
    code, out, _ = show("-o", "json")
    (row,) = json.loads(out)["quarantined"]
    assert row["claimUID"] == "bad"
    assert row["at"]
    code, _, err = show("bad")
    assert (code, "the record of claim bad cannot be read" in err) == (1, True)
    (path / "bad.1.unreadable").unlink()
    assert "quarantined" not in show()[1]


def test_a_beginning_that_several_have_names_none(bench: Bench, show: Show) -> None:
    bench.prepare("eth1", "net1", "train")
    bench.prepare("eth2", "net2", "training", pod_uid="other-pod")
    assert show("train", "-o", "json")[0] == 0, "a whole name wins"
    assert show("trainin")[0] == 0
    code, out, err = show("trai")
    assert (code, out) == (1, "")
    assert "NotFound: trai is the beginning of several: default/train, default/training" in err


def test_no_store_and_a_newer_record_are_named(show: Show, tmp_path: Path) -> None:
    code, out, err = show()
    assert (code, out) == (1, "")
    assert "NotFound: the store" in err
    assert "no driver has run here" in err
    path = tmp_path / "state" / "claims"
    with closing(ClaimStore(path)) as store:
        store.open()
    assert show()[:2] == (0, "no claim prepared on this node\n")
    write_newer(path)
    code, out, err = show()
    assert (code, out) == (1, "")
    assert "has records of version" in err


@pytest.mark.parametrize("kind", ["a named pipe", "a symbolic link"])
def test_what_is_no_folder_of_the_driver_is_neither_waited_for_nor_followed(
    show: Show, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "state" / "claims"
    path.parent.mkdir()
    if kind == "a named pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev")
    code, out, err = show()
    assert (code, out) == (1, "")
    assert f"{path} is {kind}, which the driver did not make: move it away" in err


def test_what_is_no_file_of_the_driver_is_shown_and_hides_no_claim(
    bench: Bench, show: Show, tmp_path: Path
) -> None:
    bench.prepare("eth1", "net1", "training")
    pipe = tmp_path / "state/claims/pipe.json"
    os.mkfifo(pipe)
    code, out, _ = show()
    assert (code, "default/training" in out) == (0, True)
    assert f"quarantined: the record of claim pipe: {pipe} is a named pipe, which the driver" in out


def test_who_may_not_read_the_store_is_told_to_be_root(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with closing(ClaimStore(folder / "claims")) as store:
        store.open()
    tmp_path.chmod(stat.S_IRWXU)
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        try:
            look(folder, "boot")
        except StoreError as error:
            os._exit(0 if "run it as root" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
