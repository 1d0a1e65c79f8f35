"""The store of prepared claims, against real files and a real kill."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.errors import Reason, StoreError
from dranet.files import FileLock
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.facts import Address, CharDevice, Neighbour, Route
from dranet.model.plan import (
    AddAddress,
    AddRoute,
    AttachPlan,
    LinkState,
    MoveLink,
    MoveRdma,
    PreparedClaim,
    PreparedDevice,
    SetUp,
)
from dranet.store.claim_store import ClaimStore
from tests.support.records import write_newer, write_text

Failing = Callable[..., None]


def a_record(uid: str = "uid-1", pod: str = "pod-1") -> PreparedClaim:
    """A record that uses every noun which reaches the disk."""
    host = LinkState(
        ifindex=7,
        ifname="rail0",
        mac="02:00:00:00:00:01",
        mtu=9000,
        up=True,
        addresses=(Address("10.0.0.1/24", valid_seconds=60), Address("2001:db8::1/64", flags=2)),
        routes=(Route("10.0.0.0/8", gateway="10.0.0.254", metric=100),),
        neighbours=(Neighbour("10.0.0.9", "02:00:00:00:00:09"),),
    )
    plan = AttachPlan(
        device="pci-0000-1a-00-0",
        pod_ifname="net0",
        host=host,
        steps=(
            MoveLink("net0", mtu=9000, mac=None),
            AddAddress(host.addresses[0]),
            SetUp(),
            AddRoute(host.routes[0]),
            MoveRdma("mlx5_0"),
        ),
    )
    nic = Device(
        name="pci-0000-1a-00-0",
        kind=DeviceKind.NIC,
        attributes={"dra.net/rdma": True, "dra.net/mtu": 9000, "dra.net/ifName": "rail0"},
        pci_path=("0000:19:00.0", "0000:1a:00.0"),
        char_devices=(CharDevice("/dev/infiniband/uverbs0", 231, 192),),
    )
    return PreparedClaim(
        claim=ClaimRef("default", f"claim-{uid}", uid),
        pod=PodRef("default", pod, pod),
        devices=(
            PreparedDevice(request="nic", pool="node", device=nic, cdi_ids=("dra.net/claim=x",), plan=plan),
        ),
        boot_id="boot",
        sandbox_id="sandbox",
        netns_path="/run/netns/x",
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "claims"


def opened(path: Path) -> ClaimStore:
    store = ClaimStore(path)
    store.open()
    return store


def test_a_record_comes_back_equal_after_reopening(path: Path) -> None:
    store = opened(path)
    store.put(a_record())
    store.close()
    again = opened(path)
    assert again.get("uid-1") == a_record()
    again.close()


def test_booleans_and_integers_of_attributes_keep_their_types(path: Path) -> None:
    store = opened(path)
    store.put(a_record())
    store.close()
    again = opened(path)
    record = again.get("uid-1")
    again.close()
    assert record is not None
    attributes = record.devices[0].device.attributes
    assert attributes["dra.net/rdma"] is True
    assert type(attributes["dra.net/mtu"]) is int


def test_claims_of_a_pod_come_in_a_fixed_order(path: Path) -> None:
    store = opened(path)
    store.put_all([a_record("c", "p"), a_record("a", "p"), a_record("b", "other")])
    assert [c.claim.uid for c in store.get_by_pod("p")] == ["a", "c"]
    store.close()


def test_deleting_an_unknown_claim_is_fine_and_a_known_one_is_gone_for_good(path: Path) -> None:
    store = opened(path)
    store.put(a_record())
    store.delete("nobody")
    store.delete("uid-1")
    store.close()
    again = opened(path)
    assert again.get_all() == ()
    again.close()


@pytest.mark.process
def test_an_acknowledged_write_survives_sigkill(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from msgspec.structs import replace\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from test_claim_store import a_record; from dranet.store.claim_store import ClaimStore\n"
        "store = ClaimStore(Path(sys.argv[1])); store.open()\n"
        "store.put(a_record('kept')); print('acknowledged', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path), str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"acknowledged\n"
        os.kill(child.pid, signal.SIGKILL)
    finally:
        child.wait(timeout=10)
        child.stdin.close()
        child.stdout.close()
    store = opened(path)
    assert store.get("kept") == a_record("kept")
    store.close()


def test_one_bad_record_is_set_aside_and_blocks_no_other(path: Path) -> None:
    store = opened(path)
    store.put_all([a_record("good"), a_record("bad")])
    store.close()
    write_text(path, "bad", '{"version": 1, "claim": 5}')
    again = opened(path)
    assert again.quarantined == ("bad",)
    assert [c.claim.uid for c in again.get_all()] == ["good"]
    again.close()
    third = opened(path)
    assert third.quarantined == ()
    third.close()


def test_a_record_of_a_newer_driver_is_refused(path: Path) -> None:
    opened(path).close()
    write_newer(path)
    with pytest.raises(StoreError, match="records of version") as caught:
        opened(path)
    assert caught.value.reason is Reason.STORE_NEWER


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Let a call of ``os`` fail from the n-th time on."""

    def fail(name: str, after: int = 0) -> None:
        real, calls = getattr(os, name), iter(range(1000))

        def refuse(*arguments: object, **named: object) -> object:
            if next(calls) >= after:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments, **named)

        monkeypatch.setattr(os, name, refuse)

    return fail


@pytest.mark.parametrize(("call", "after"), [("fsync", 0), ("fsync", 1), ("utime", 0), ("replace", 0)])
def test_a_write_that_the_disk_refuses_changes_nothing_in_memory_or_on_the_disk(
    path: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch, call: str, after: int
) -> None:
    """The file's sync, the folder's sync, the time of the file and its new name."""
    store = opened(path)
    store.put(a_record())
    failing(call, after)
    with pytest.raises(StoreError) as caught:
        store.put(a_record("uid-2"))
    assert caught.value.reason is Reason.STORE_UNWRITABLE
    assert not store.is_writable
    assert store.get_all() == (a_record(),)
    monkeypatch.undo()
    assert [name for name in names(path) if not name.endswith(".tmp")] == ["generation", "uid-1.json"]
    assert store.flush_pending()
    store.put(a_record("uid-2"))
    store.close()
    again = opened(path)
    assert again.get_all() == (a_record(), a_record("uid-2"))
    again.close()


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_promised_in_a_folder_that_no_restart_would_find(path: Path, replaced: bool) -> None:
    """The folder was removed under the running driver. What was prepared before is still restored."""
    store = opened(path)
    store.put_all([a_record("one"), a_record("two")])
    shutil.rmtree(path)
    if replaced:
        path.mkdir()
    with pytest.raises(StoreError, match=r"was removed or replaced .*restart the driver"):
        store.put(a_record("three"))
    store.put_all([replace(a_record("one"), sandbox_id="", netns_path="")], durable=False)
    store.delete("two")
    assert [record.claim.uid for record in store.get_all()] == ["one"]
    store.close()
    fresh = opened(path)
    fresh.put(a_record("three"))
    fresh.close()


def test_nothing_is_promised_next_to_a_record_that_was_removed(path: Path) -> None:
    store = opened(path)
    store.put_all([a_record("one"), a_record("two")])
    (path / "one.json").unlink()
    with pytest.raises(StoreError, match=r"was removed or replaced .*restart the driver"):
        store.put(a_record("three"))
    assert len(store.get_all()) == 2, "memory knows how to restore both"
    store.close()


@pytest.mark.parametrize("uid", ["../../escape", "a/b", ".", "%2F", "\u00e4", "x.1"])
def test_a_claim_uid_of_any_form_names_a_file_in_the_folder(path: Path, uid: str) -> None:
    store = opened(path)
    store.put(a_record(uid))
    store.close()
    assert [file.parent for file in path.parent.rglob("*.json")] == [path]
    again = opened(path)
    assert again.get_all() == (a_record(uid),)
    again.delete(uid)
    assert names(path) == ["generation"]
    again.close()


def test_a_claim_uid_that_is_too_long_for_a_name_is_refused(path: Path) -> None:
    store = opened(path)
    with pytest.raises(StoreError, match="File name too long"):
        store.put(a_record("u" * 300))
    assert store.flush_pending()
    store.close()


def test_a_folder_that_cannot_be_made_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="is a file, which the driver did not make: move it away"):
        opened(tmp_path / "file" / "claims")
    with pytest.raises(StoreError, match="state folder"):
        opened(tmp_path / "file" / "below" / "claims")


def test_files_that_a_kill_left_are_removed(path: Path) -> None:
    opened(path).close()
    (path / "uid-1.json.tmp").write_text("half of a rec")
    store = opened(path)
    assert (names(path), store.get_all()) == (["generation"], ())
    store.close()


def test_reading_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    store = ClaimStore(tmp_path / "claims")
    store.open()
    store.put(known := a_record("known"))
    other = FileLock(tmp_path / "claims.lock")
    assert other.try_acquire()  # as slow as a disk may be
    with ThreadPoolExecutor(1) as elsewhere:
        writing = elsewhere.submit(store.put, a_record("new"))
        while store._lock.acquire(blocking=False):
            store._lock.release()
        assert store.get_all() == (known,)
        assert store.get_by_pod("pod-1") == (known,)
        other.release()
        writing.result()
    assert len(store.get_all()) == 2
    store.close()
    other.close()


def test_a_record_that_cannot_be_written_down_is_a_named_error_and_changes_nothing(path: Path) -> None:
    """JSON cannot carry the bytes of a name that is not UTF-8."""
    store = opened(path)
    (device,) = a_record().devices
    assert device.plan is not None
    assert device.plan.host is not None
    host = replace(device.plan.host, altnames=("caf\udce9",))
    odd = replace(a_record(), devices=(replace(device, plan=replace(device.plan, host=host)),))
    with pytest.raises(StoreError, match="claim-uid-1"):
        store.put(odd)
    assert store.get_all() == ()
    store.close()
