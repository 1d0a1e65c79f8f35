"""Who lives on the node, as others see it while somebody tidies up behind the dead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dranet.driver.instances.members import Members
from dranet.files import FileLock


@contextmanager
def living(folder: Path, uid: str, on_tidying: Callable[[str], None] = lambda _: None) -> Iterator[Members]:
    """An instance; ``on_tidying`` is called amid its work with the name whose leavings it removes, ``""`` for
    one that had no pod."""

    def find_sockets(name: str) -> tuple[Path, ...]:
        on_tidying(name)
        return ()

    instances = Members(folder, uid, find_sockets)
    instances.join()
    try:
        yield instances
    finally:
        instances.leave()


def leave_behind(folder: Path, uid: str) -> None:
    """What one leaves that was killed after it had asked for the duties."""
    for suffix in ("lock", "wants-duties"):
        (folder / f"{uid}.{suffix}").touch()


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_dead_instance_does_not_seem_to_live_while_somebody_tidies_up_behind_it(tmp_path: Path) -> None:
    """It has asked for the duties, and who has them gives them to whoever lives and asks."""
    folder = tmp_path / "instances"
    seen: dict[str, set[str]] = {}
    living_askers: set[str] = set()

    def look(name: str) -> None:
        seen[name] = set(old.find_others())
        living_askers.update(old.find_others() & old.find_askers())

    with living(folder, "old") as old:
        leave_behind(folder, "dead")
        with living(folder, "new", look):
            assert seen == {"dead": {"new"}, "": {"new"}}
            assert not living_askers
            assert list_names(folder) == ["new.lock", "old.lock"]


def test_two_do_not_tidy_up_at_the_same_time(tmp_path: Path) -> None:
    """The slower one would remove what somebody new under that name has made meanwhile."""
    folder = tmp_path / "instances"
    by_second: list[str] = []

    def start_another(_: str) -> None:
        with living(folder, "second", by_second.append):
            assert "second.lock" in list_names(folder)

    folder.mkdir()
    leave_behind(folder, "dead")
    with living(folder, "first", start_another):
        assert by_second == []
    with living(folder, "second", by_second.append):
        assert by_second == [""], "the first has removed all that the dead one left"


def test_nobody_starts_under_the_name_of_one_while_somebody_tidies_up_behind_it(tmp_path: Path) -> None:
    """A container that restarts has the UID of the one that died: its sockets could be the ones removed."""
    folder = tmp_path / "instances"
    folder.mkdir()
    leave_behind(folder, "again")
    started: dict[str, bool] = {}

    def start_again(name: str) -> None:
        with closing(FileLock(folder / "again.lock")) as lock:
            started[name] = name == "again" and lock.try_acquire()

    with living(folder, "new", start_again):
        assert started["again"] is False
        with living(folder, "again") as again:
            assert again.find_others() == {"new"}
