"""Socket files: the path limit, the owner lock, stale files, and nobody else's file removed."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dranet.errors import SettingsError
from dranet.kubelet.sockets import OwnerLock, PublishedSocket, check_socket_path, remove_dead_socket

HOLD_LOCK = """
import sys
from pathlib import Path
from dranet.kubelet.sockets import OwnerLock
lock = OwnerLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


def dial(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@contextmanager
def other_process_holding(lock: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_path_of_107_bytes_is_accepted_and_one_more_is_refused_by_name() -> None:
    longest = Path("/" + "x" * 106)
    check_socket_path(longest)
    with pytest.raises(SettingsError, match=r"has 108 bytes, a UNIX socket takes 107"):
        check_socket_path(Path(f"{longest}x"))


def test_bytes_count_not_characters() -> None:
    with pytest.raises(SettingsError, match="has 109 bytes"):
        check_socket_path(Path("/" + "ä" * 54))


def test_the_hidden_name_is_never_longer_than_the_public_one(kubelet_root: Path) -> None:
    published = PublishedSocket(kubelet_root / "dra.sock")
    names = [published.next_bind_path().name for _ in range(1001)]
    assert max(len(name) for name in names) <= len("dra.sock")
    assert all(name.startswith(".") for name in names)


@pytest.mark.process
def test_a_second_process_is_refused_with_the_lock_and_the_pid(kubelet_root: Path) -> None:
    path = kubelet_root / "dra.net.lock"
    with other_process_holding(path) as other, pytest.raises(SettingsError) as refused:
        OwnerLock(path).acquire()
    assert f"another driver (pid {other.pid}) holds {path}" in str(refused.value)


@pytest.mark.process
def test_the_lock_of_a_killed_process_is_free(kubelet_root: Path) -> None:
    path = kubelet_root / "dra.net.lock"
    with other_process_holding(path) as other:
        other.kill()
        other.wait()
        lock = OwnerLock(path)
        lock.acquire()
        assert path.read_text() == f"{os.getpid()}\n"
        lock.release()


def test_the_lock_excludes_a_second_holder_in_the_same_process_and_is_free_after_release(
    kubelet_root: Path,
) -> None:
    first, second = (OwnerLock(kubelet_root / "dra.net.lock") for _ in range(2))
    first.acquire()
    first.acquire()
    with pytest.raises(SettingsError, match=f"pid {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_a_lock_in_a_missing_folder_names_the_file(kubelet_root: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot use lock file .*missing/dra.net.lock"):
        OwnerLock(kubelet_root / "missing" / "dra.net.lock").acquire()


@pytest.mark.socket
def test_the_public_name_appears_only_when_the_socket_listens(kubelet_root: Path) -> None:
    published = PublishedSocket(kubelet_root / "dra.sock")
    bound = published.next_bind_path()
    with listening(bound):
        assert published.is_missing()
        published.publish(bound)
        dial(published.path)
        assert published.is_ours()
        assert [entry.name for entry in kubelet_root.iterdir() if entry.is_socket()] == ["dra.sock"]


@pytest.mark.socket
def test_a_stale_socket_is_replaced(kubelet_root: Path) -> None:
    path = kubelet_root / "dra.sock"
    with listening(path):
        pass
    assert path.is_socket()
    published = PublishedSocket(path)
    bound = published.next_bind_path()
    with listening(bound):
        published.publish(bound)
        dial(path)


@pytest.mark.socket
def test_a_file_that_is_no_socket_is_left_alone_and_named(kubelet_root: Path) -> None:
    path = kubelet_root / "dra.sock"
    path.write_text("precious")
    published = PublishedSocket(path)
    bound = published.next_bind_path()
    with listening(bound), pytest.raises(SettingsError, match="is not a socket"):
        published.publish(bound)
    assert path.read_text() == "precious"


@pytest.mark.socket
def test_withdraw_leaves_the_socket_of_a_successor(kubelet_root: Path) -> None:
    published = PublishedSocket(kubelet_root / "dra.sock")
    bound = published.next_bind_path()
    with listening(bound):
        published.publish(bound)
        published.path.unlink()
        with listening(published.path):
            assert not published.is_ours()
            published.withdraw()
            dial(published.path)


@pytest.mark.socket
def test_withdraw_removes_our_own_socket_and_may_be_repeated(kubelet_root: Path) -> None:
    published = PublishedSocket(kubelet_root / "dra.sock")
    bound = published.next_bind_path()
    with listening(bound):
        published.publish(bound)
        published.withdraw()
        published.withdraw()
    assert list(kubelet_root.glob("*.sock")) == []


def test_a_path_below_a_file_counts_as_missing(kubelet_root: Path) -> None:
    (kubelet_root / "file").write_text("")
    assert PublishedSocket(kubelet_root / "file" / "dra.sock").is_missing()


def test_shared_holders_live_side_by_side_and_keep_a_lone_one_away(kubelet_root: Path) -> None:
    path = kubelet_root / "dra.net.lock"
    first, second = (OwnerLock(path, shared=True) for _ in range(2))
    first.acquire()
    second.acquire()
    with pytest.raises(SettingsError, match=r"another driver holds .*give each its pod_uid"):
        OwnerLock(path).acquire()
    first.release()
    with pytest.raises(SettingsError, match="another driver holds"):
        OwnerLock(path).acquire()
    second.release()
    lone = OwnerLock(path)
    lone.acquire()
    lone.release()


@pytest.mark.process
def test_a_lone_holder_keeps_a_shared_one_away_and_says_how_to_update(kubelet_root: Path) -> None:
    path = kubelet_root / "dra.net.lock"
    with other_process_holding(path) as other, pytest.raises(SettingsError) as refused:
        OwnerLock(path, shared=True).acquire()
    assert f"another driver (pid {other.pid}) holds {path}" in str(refused.value)
    assert "without pod_uid" in refused.value.hint
    assert "without surge" in refused.value.hint


@pytest.mark.process
def test_who_shares_the_lock_is_not_told_to_be_the_lone_one_before(kubelet_root: Path) -> None:
    path = kubelet_root / "dra.net.lock"
    with other_process_holding(path) as other:
        other.kill()
        other.wait()
    shared = OwnerLock(path, shared=True)
    shared.acquire()
    with pytest.raises(SettingsError, match=r"another driver holds"):  # no process id: it would be a dead one
        OwnerLock(path).acquire()
    shared.release()


def test_who_shares_the_lock_must_be_like_those_that_have_it(kubelet_root: Path) -> None:
    path = kubelet_root / "dra.net.lock"
    first, second = (OwnerLock(path, shared=True, identity="the name dra.net") for _ in range(2))
    stranger = OwnerLock(path, shared=True, identity="the name nic.example.com")
    first.acquire()
    second.acquire()
    for _ in range(2):  # a refused one leaves no word of its own
        with pytest.raises(SettingsError) as refused:
            stranger.acquire()
    assert f"a driver with the name dra.net holds {path}, and this one has the name nic" in str(refused.value)
    assert "give each a driver_name and a state_dir" in refused.value.hint
    first.release()
    with pytest.raises(SettingsError, match=r"the name dra\.net"):
        stranger.acquire()
    second.release()
    stranger.acquire()
    with pytest.raises(SettingsError, match=r"a driver with the name nic\.example\.com"):
        first.acquire()
    stranger.release()


def test_a_disk_that_refuses_keeps_nobody_away(kubelet_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NICs come back also where nothing can be written; what a dead one has left there counts for nothing."""
    path = kubelet_root / "dra.net.lock"
    path.write_text("the name of-a-dead-one")

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "truncate", refuse)
    owner = OwnerLock(path, shared=True, identity="the name dra.net")
    owner.acquire()
    owner.release()


def test_many_that_share_the_lock_can_start_at_once(kubelet_root: Path) -> None:
    path = kubelet_root / "dra.net.lock"
    owners = [OwnerLock(path, shared=True, identity="the name dra.net") for _ in range(16)]
    with ThreadPoolExecutor(len(owners)) as pool:
        list(pool.map(OwnerLock.acquire, owners))
    for owner in owners:
        owner.release()


@pytest.mark.socket
def test_a_socket_that_nobody_listens_on_is_removed_and_a_live_one_is_not(kubelet_root: Path) -> None:
    dead, live, file = (kubelet_root / name for name in ("dead.sock", "live.sock", "file.sock"))
    with listening(dead):
        pass
    file.touch()
    with listening(live):
        assert [remove_dead_socket(path) for path in (dead, live, file, kubelet_root / "none")] == [
            True,
            False,
            False,
            False,
        ]
        dial(live)
    assert not dead.exists()
    assert file.exists()


@pytest.mark.socket
def test_a_listener_that_is_too_busy_to_answer_is_not_taken_for_dead(kubelet_root: Path) -> None:
    path = kubelet_root / "busy.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(path))  # fills the backlog
            assert not remove_dead_socket(path)
    assert path.exists()
