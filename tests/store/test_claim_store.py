"""The store of prepared claims, against real files and a real kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.errors import Reason, StoreError
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
from dranet.store.claim_store import SCHEMA_VERSION, ClaimStore


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
    return tmp_path / "state" / "claims.db"


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
    with sqlite3.connect(path) as db:
        db.execute("UPDATE prepared SET record = '{\"claim\": 5}' WHERE claim_uid = 'bad'")
    db.close()
    again = opened(path)
    assert again.quarantined == ("bad",)
    assert [c.claim.uid for c in again.get_all()] == ["good"]
    again.close()
    third = opened(path)
    assert third.quarantined == ()
    third.close()


def test_a_file_of_a_newer_driver_is_refused(path: Path) -> None:
    opened(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(StoreError, match="schema version") as caught:
        opened(path)
    assert caught.value.reason is Reason.STORE_NEWER


def test_a_write_that_the_disk_refuses_changes_nothing_in_memory(path: Path) -> None:
    store = opened(path)
    store.put(a_record())
    assert store._db is not None
    store._db.execute("PRAGMA query_only=ON")
    with pytest.raises(StoreError) as caught:
        store.put(replace(a_record(), netns_path="/elsewhere"))
    assert caught.value.reason is Reason.STORE_UNWRITABLE
    assert store.get("uid-1") == a_record()
    store.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_promised_in_a_file_that_no_restart_would_find(path: Path, replaced: bool) -> None:
    """Somebody tidied up under the running driver. What was prepared before is still given back."""
    store = opened(path)
    store.put_all([a_record("one"), a_record("two")])
    for name in ("claims.db", "claims.db-wal", "claims.db-shm"):
        path.with_name(name).unlink()
    if replaced:
        path.touch()
    with pytest.raises(StoreError, match=r"was removed or replaced .*restart the driver"):
        store.put(a_record("three"))
    store.put(replace(a_record("one"), sandbox_id="", netns_path=""))
    store.delete("two")
    assert [record.claim.uid for record in store.get_all()] == ["one"]
    store.close()
    fresh = opened(path)
    fresh.put(a_record("three"))
    fresh.close()


def test_a_folder_that_cannot_be_made_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="is a file, which the driver did not make: move it away"):
        opened(tmp_path / "file" / "claims.db")
    with pytest.raises(StoreError, match="state folder"):
        opened(tmp_path / "file" / "below" / "claims.db")


def test_a_full_disk_is_named_and_over_when_there_is_room_again(tmp_path: Path) -> None:
    store = ClaimStore(tmp_path / "claims.db")
    store.open()
    assert store._db is not None
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count={pages}")
    many = [replace(a_record(), claim=ClaimRef("default", "c", f"uid-{i}")) for i in range(50)]
    with pytest.raises(StoreError, match="full") as caught:
        store.put_all(many)
    assert caught.value.reason is Reason.STORE_UNWRITABLE
    assert store.get_all() == ()
    store._db.execute(f"PRAGMA max_page_count={pages + 1000}")
    store.put_all(many)
    assert len(store.get_all()) == 50
    store.close()


def test_a_commit_that_fails_leaves_no_transaction_behind(tmp_path: Path) -> None:
    store = ClaimStore(tmp_path / "claims.db")
    store.open()
    assert store._db is not None
    # A deferred constraint fails at COMMIT, and the transaction stays open, as after an error of the disk.
    store._db.execute("PRAGMA foreign_keys=ON")
    store._db.executescript(
        """
        CREATE TABLE parent (id TEXT PRIMARY KEY);
        CREATE TABLE child (id TEXT REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
        CREATE TRIGGER orphan AFTER INSERT ON prepared BEGIN INSERT INTO child VALUES ('nobody'); END;
        """
    )
    with pytest.raises(StoreError):
        store.put(a_record())
    store._db.execute("DROP TRIGGER orphan")
    store.put(a_record())
    store.close()


def test_reading_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    store = ClaimStore(tmp_path / "claims.db")
    store.open()
    store.put(known := a_record("known"))
    somebody = sqlite3.connect(tmp_path / "claims.db", isolation_level=None)
    somebody.execute("BEGIN IMMEDIATE")  # as slow as a disk may be
    with ThreadPoolExecutor(1) as elsewhere:
        writing = elsewhere.submit(store.put, a_record("new"))
        while store._lock.acquire(blocking=False):
            store._lock.release()
        assert store.get_all() == (known,)
        assert store.get_by_pod("pod-1") == (known,)
        somebody.execute("ROLLBACK")
        writing.result()
    assert len(store.get_all()) == 2
    store.close()
    somebody.close()


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
