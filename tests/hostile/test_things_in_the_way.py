"""What lies under the driver's own names and is not the driver's: never followed, waited for, or removed."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dranet import files
from dranet.driver.health import HealthFile
from dranet.driver.instances.members import Members
from dranet.driver.metadata import MetadataFiles
from dranet.driver.probes.server import ReadyFile
from dranet.driver.start_gate import StartGate
from dranet.errors import DranetError, SettingsError, StoreError
from dranet.files import FileLock, NamedLocks
from dranet.kubelet.sockets import OwnerLock, PublishedSocket, make_plugin_dir
from dranet.runtime.containers import CdiDevice, CdiSpecs
from dranet.store.claim_store import ClaimStore
from tests.store.test_claim_store import a_record
from tests.support.records import note_change

UID = "0b51c6a2-7d3f-4c19-9e5c-000000000001"
SECRET = "not the driver's"
Plant = Callable[[Path], None]


def _link(path: Path) -> None:
    path.symlink_to(_victim(path))


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("made-outside"))


def _link_to_folder(path: Path) -> None:
    outside = path.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / UID).write_text(SECRET)
    path.symlink_to(outside)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "kept").write_text(SECRET)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero, which never ends
    except PermissionError:
        pytest.skip("device nodes cannot be made here")


def _hard_link(path: Path) -> None:
    path.hardlink_to(_victim(path))


def _victim(path: Path) -> Path:
    victim = path.with_name("victim")
    victim.write_text(SECRET)
    return victim


SPECIAL: dict[str, Plant] = {
    "link": _link,
    "dangling link": _dangling_link,
    "link to a folder": _link_to_folder,
    "pipe": _pipe,
    "socket": _socket,
    "folder": _folder,
    "device": _device,
}


def all_but(*kinds: str) -> pytest.MarkDecorator:
    """Where one of them is what the driver makes there."""
    names = [name for name in SPECIAL if name not in kinds]
    return pytest.mark.parametrize("plant", [SPECIAL[name] for name in names], ids=names)


@pytest.fixture(params=SPECIAL)
def plant(request: pytest.FixtureRequest) -> Plant:
    return SPECIAL[request.param]


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A pipe has no other end: whoever opens it like a file waits for ever. A disk may take seconds."""
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < 30


def snapshot(path: Path) -> list[tuple[str, int, str]]:
    """Everything in the folder of a planted thing, its content included."""
    return sorted(
        (str(each), each.lstat().st_mode, each.read_text() if files.is_file(each) else "")
        for each in (path.parent, *path.parent.rglob("*"))
    )


def refused(path: Path, act: Callable[[], object], error: type[DranetError] = StoreError) -> None:
    """It is refused with the path and the mend, and nothing has changed."""
    before = snapshot(path)
    with pytest.raises(error, match="which the driver did not make: move it away") as caught:
        act()
    assert str(path) in str(caught.value)
    assert snapshot(path) == before


@pytest.mark.socket
def test_a_lock_file(short_folder: Path, plant: Plant) -> None:
    path = short_folder / "duty.lock"
    plant(path)
    refused(path, FileLock(path).try_acquire)
    assert FileLock(path).describe_holder() == ""


def test_a_lock_file_with_a_second_name_is_not_written_to(short_folder: Path) -> None:
    path = short_folder / "duty.lock"
    _hard_link(path)
    refused(path, FileLock(path).try_acquire)


@pytest.mark.socket
def test_a_file_of_locks_by_name(short_folder: Path, plant: Plant) -> None:
    path = short_folder / "work.lock"
    plant(path)

    async def hold() -> None:
        async with NamedLocks(path).hold(["a"]):
            pass

    refused(path, lambda: asyncio.run(hold()))


@pytest.mark.socket
def test_the_owners_lock_in_the_plugin_folder(short_folder: Path, plant: Plant) -> None:
    path = short_folder / "dra.net.lock"
    plant(path)
    refused(path, OwnerLock(path).acquire, SettingsError)
    refused(path, OwnerLock(path, shared=True).acquire, SettingsError)


@pytest.mark.socket
def test_a_cdi_spec(short_folder: Path, plant: Plant) -> None:
    specs = CdiSpecs(short_folder, "dra.net")
    for name in (f"dra.net-claim_{UID}.json", f".dra.net-claim_{UID}.json.tmp"):
        path = short_folder / name
        plant(path)
        refused(path, lambda: specs.write(UID, [CdiDevice("nic")]))
        refused(path, lambda: specs.remove(UID))
        assert specs.list_claims() == set()
        _clear(path)


@pytest.mark.socket
@all_but("folder")
def test_the_store(short_folder: Path, plant: Plant) -> None:
    path = short_folder / "state/claims"
    files.make_folder(path.parent, is_setting=True)
    _leave_lock(path.with_name("claims.lock"))
    plant(path)
    refused(path, ClaimStore(path).open)


@pytest.mark.socket
def test_the_generation_of_the_store(short_folder: Path, plant: Plant) -> None:
    path = short_folder / "state/claims/generation"
    files.make_folder(path.parent, is_setting=True)
    _leave_lock(short_folder / "state/claims.lock")
    plant(path)
    refused(path, ClaimStore(path.parent).open)


@pytest.mark.socket
@pytest.mark.parametrize("name", [f"{UID}.json", f"{UID}.json.tmp"])
def test_a_record_of_the_store(short_folder: Path, plant: Plant, name: str) -> None:
    """It costs its claim alone."""
    path = short_folder / "state/claims" / name
    with closing(ClaimStore(path.parent)) as store:
        store.open()
        plant(path)
        note_change(path.parent)
        refused(path, lambda: store.put(a_record(UID)))
        assert store.get(UID) is None
        store.put(a_record("other"))
    with closing(ClaimStore(path.parent)) as store:
        store.open()
        assert store.get_all() == (a_record("other"),)
        assert (store.quarantined, store.is_writable) == ((), True)
        refused(path, lambda: store.put(a_record(UID)))


def test_a_store_with_a_second_name_is_not_written_to(short_folder: Path) -> None:
    path = short_folder / "claims/generation"
    path.parent.mkdir(mode=0o700)
    _leave_lock(short_folder / "claims.lock")
    _hard_link(path)
    refused(path, ClaimStore(path.parent).open)


def _leave_lock(path: Path) -> None:
    """As this process writes it: so the next one changes nothing."""
    with closing(FileLock(path)) as lock:
        assert lock.try_acquire()


def an_attached_claim(state: Path) -> StartGate:
    """Its gate is shut still."""
    gate = StartGate(state)
    gate.note_attached(UID, "/proc/self/ns/net")
    return gate


@pytest.mark.socket
def test_a_ready_file(short_folder: Path, plant: Plant) -> None:
    gate, path = an_attached_claim(short_folder), short_folder / "ready" / UID
    path.parent.mkdir(mode=0o700)
    plant(path)
    if path.is_symlink():  # what the driver makes there, too: opening replaces it, and follows nothing
        before = snapshot(short_folder / "ready" / "victim")
        gate.open_again(UID)
        gate.shut(UID)
        assert not os.path.lexists(path)
        assert [entry for entry in before if entry[0] != str(path)] == snapshot(path)
        return
    refused(path, lambda: gate.open_again(UID))
    refused(path, lambda: gate.shut(UID))


def test_the_folder_of_ready_files(short_folder: Path) -> None:
    gate, path = an_attached_claim(short_folder), short_folder / "ready"
    _link_to_folder(path)
    refused(path, lambda: gate.open_again(UID))
    refused(path, lambda: gate.shut(UID))
    refused(path, gate.list_claims)


@pytest.mark.parametrize("uid", ["../outside", "/tmp/outside", "a/b", "", ".", "..", "a\0b", "x\n"])
def test_a_uid_that_leads_elsewhere_is_no_file_name_anywhere(short_folder: Path, uid: str) -> None:
    gate, specs = StartGate(short_folder / "state"), CdiSpecs(short_folder / "cdi", "dra.net")
    metadata = MetadataFiles(short_folder / "state", "dra.net")
    (short_folder / "state/ready").mkdir(parents=True)
    before = snapshot(short_folder / "state")
    for act in (
        lambda: gate.note_attached(uid, "/proc/self/ns/net"),
        lambda: gate.close(uid),
        lambda: specs.write(uid, [CdiDevice("nic")]),
        lambda: specs.remove(uid),
        lambda: metadata.write(uid, "nic", {}),
        lambda: metadata.write(UID, uid, {}),
        lambda: metadata.remove(uid),
    ):
        with pytest.raises(DranetError, match="cannot be part of"):
            act()
    assert snapshot(short_folder / "state") == before


@pytest.mark.socket
@all_but("folder")
@pytest.mark.parametrize("name", ["metadata", f"metadata/{UID}", f"metadata/{UID}/nic"])
def test_a_folder_of_device_metadata(short_folder: Path, plant: Plant, name: str) -> None:
    path, metadata = short_folder / name, MetadataFiles(short_folder, "dra.net")
    path.parent.mkdir(parents=True, exist_ok=True)
    plant(path)
    path.parent.chmod(0o700)
    refused(path, lambda: metadata.write(UID, "nic", {"metadata": {}}))


@pytest.mark.socket
def test_removing_device_metadata_leaves_what_is_not_the_drivers(
    short_folder: Path, plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = MetadataFiles(short_folder, "dra.net")
    metadata.write(UID, "nic", {"metadata": {}})
    path = short_folder / "metadata" / UID / "foreign"
    plant(path)
    before = [entry for entry in snapshot(path) if "foreign" in entry[0] or "victim" in entry[0]]
    metadata.remove(UID)
    assert "left behind: device metadata" in caplog.text
    assert "not empty" in caplog.text
    after = snapshot(path)
    assert all(entry in after for entry in before)
    assert not (short_folder / "metadata" / UID / "nic").exists()


@pytest.mark.socket
def test_the_memory_of_faults(short_folder: Path, plant: Plant, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("health.json", "health.new"):
        path = short_folder / name
        plant(path)
        before, file = snapshot(path), HealthFile(short_folder / "health.json", "boot")
        assert file.read() == {}
        file.write({})  # best effort: it goes on, and says so
        assert snapshot(path) == before
        assert f"{path} is " in caplog.text
        _clear(path)


@pytest.mark.socket
def test_the_file_of_readiness(short_folder: Path, plant: Plant) -> None:
    path = short_folder / "ready"
    plant(path)
    refused(path, ReadyFile(path, dict).start, SettingsError)


@pytest.mark.socket
def test_the_lock_of_another_instance_tells_of_nobody(short_folder: Path, plant: Plant) -> None:
    folder = short_folder / "instances"
    folder.mkdir(mode=0o700)
    path = folder / "other.lock"
    plant(path)
    before = snapshot(path)
    instances = Members(folder, "me", lambda _: ())
    instances.join()
    instances.announce_leaving()
    assert instances.find_others() == frozenset()
    instances.leave()
    assert snapshot(path) == before


@pytest.mark.socket
def test_a_word_to_another_instance_is_not_written_elsewhere(short_folder: Path, plant: Plant) -> None:
    folder = short_folder / "instances"
    instances = Members(folder, "me", lambda _: ())
    instances.join()
    path = folder / "me.wants-duties"
    plant(path)
    before = snapshot(path)
    instances.request()
    assert instances.find_askers() == frozenset()
    assert snapshot(path) == before


@pytest.mark.socket
@all_but("socket")
def test_a_public_socket(short_folder: Path, plant: Plant) -> None:
    path = short_folder / "dra.sock"
    plant(path)
    before = snapshot(path)
    bound = short_folder / "bound"
    _socket(bound)
    with pytest.raises(SettingsError, match="is not a socket") as caught:
        PublishedSocket(path).publish(bound)
    assert str(path) in str(caught.value)
    bound.unlink()
    assert snapshot(path) == before


@pytest.mark.socket
@all_but("folder")
def test_the_plugin_folder(short_folder: Path, plant: Plant) -> None:
    path = short_folder / "dra.net"
    plant(path)
    before = snapshot(path)
    with pytest.raises(files.NotOurs, match="which the driver did not make"):
        make_plugin_dir(path)
    assert snapshot(path) == before


def test_a_folder_of_somebody_else_is_not_used(short_folder: Path) -> None:
    path, gate = short_folder / "ready", an_attached_claim(short_folder)
    path.mkdir()
    try:
        os.chown(path, 12345, 12345)
    except OSError:
        pytest.skip("files cannot be given away here")
    refused(path, lambda: gate.open_again(UID))


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_modes_hold_whatever_the_umask_is(short_folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        files.make_folder(short_folder / "state", is_setting=True)
        metadata = MetadataFiles(short_folder / "state", "dra.net")
        an_attached_claim(short_folder / "state").open_again(UID)
        metadata.write(UID, "nic", {"metadata": {}})
        HealthFile(short_folder / "state/health.json", "boot").write({})
        store = ClaimStore(short_folder / "state/claims")
        store.open()
        store.put(a_record(UID))
        CdiSpecs(short_folder / "cdi", "dra.net").write(UID, [CdiDevice("nic")])
    finally:
        os.umask(before)
    found = {
        str(each.relative_to(short_folder)): stat.S_IMODE(each.lstat().st_mode)
        for each in short_folder.rglob("*")
        if not each.is_symlink() and each.suffix != ".lock" and each.name != ".lock"
    }
    store.close()
    assert found == {
        "state": 0o700,
        "state/claims": 0o700,
        f"state/claims/{UID}.json": 0o600,
        "state/claims/generation": 0o600,
        "state/health.json": 0o600,
        "state/attached": 0o700,
        "state/ready": 0o700,
        "state/metadata": 0o700,
        f"state/metadata/{UID}": 0o700,
        f"state/metadata/{UID}/nic": 0o755,
        f"state/metadata/{UID}/nic/dra.net-metadata.json": 0o644,
        "cdi": 0o755,
        f"cdi/dra.net-claim_{UID}.json": 0o600,
    }


def test_a_store_that_lets_others_read_is_for_its_owner_alone(short_folder: Path) -> None:
    store = short_folder / "state/claims"
    store.mkdir(mode=0o755, parents=True)
    with closing(ClaimStore(store)) as opened:
        opened.open()
    assert stat.S_IMODE(store.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o700, 0o500])
def test_rights_that_a_folder_gives_away_are_taken_back_and_none_are_added(
    short_folder: Path, mode: int
) -> None:
    folder = short_folder / "state"
    folder.mkdir()
    folder.chmod(mode)
    files.make_folder(folder, is_setting=True)
    assert stat.S_IMODE(folder.stat().st_mode) == mode & 0o700


def test_a_state_folder_may_be_reached_by_a_link_of_the_operators(short_folder: Path) -> None:
    (short_folder / "disk").mkdir()
    (short_folder / "state").symlink_to(short_folder / "disk")
    instances = Members(short_folder / "state/instances", "me", lambda _: ())
    instances.join()
    assert (short_folder / "disk/instances/me.lock").exists()
    instances.leave()


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        (path / "kept").unlink()
        path.rmdir()
    else:
        path.unlink()
