"""One run of the machine, with a shell script in QEMU's place; and how the lane says that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import testbed.machine.__main__ as command
from testbed.debian.packages import Release
from testbed.debian.sources import AptSource
from testbed.machine import fetch
from testbed.machine.fetch import Cause, MachineUnavailable, Packages, check_release, merge_usr
from testbed.machine.hardware import MACHINE
from testbed.machine.image import Image
from testbed.machine.lane import REPOSITORY, TESTS, Options, run_lane
from testbed.machine.machine import Job, Machine, MachineDied, Outcome

QEMU = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "QEMU emulator"; exit 0; fi
for word in "$@"; do
  case "$word" in local,id=out,path=*) out=${word#local,id=out,path=}; out=${out%%,*};; esac
done
"""

SOURCE = AptSource("http://m.example", ("bookworm",), ("main",), {})


@pytest.fixture
def boot(tmp_path: Path) -> Callable[..., Outcome]:
    """Run a machine whose QEMU is ``behaviour``, with ``$out`` the exchange folder."""

    def run(behaviour: str, show: Callable[[str], None] = print, timeout_seconds: float = 20.0) -> Outcome:
        program = tmp_path / "packages/prefix/usr/bin/qemu-system-x86_64"
        program.parent.mkdir(parents=True)
        program.write_text(QEMU + behaviour)
        program.chmod(0o755)
        exchange = tmp_path / "exchange"
        exchange.mkdir()
        packages = Packages(tmp_path / "packages", "6.12-test", {})
        job = Job("true", tmp_path, {}, timeout_seconds)
        return Machine(packages, Image(tmp_path / "image"), MACHINE).run(job, exchange, show)

    return run


@pytest.mark.process
def test_the_status_and_the_stages_come_back_and_the_output_is_shown(boot: Callable[..., Outcome]) -> None:
    shown: list[str] = []
    outcome = boot(
        "test -s $out/guest.sh || exit 9\n"
        "echo hello >> $out/output; echo '4.25 booted' > $out/marks; echo 3 > $out/status\n",
        shown.append,
    )
    assert (outcome.status, outcome.marks) == (3, ((4.25, "booted"),))
    assert "".join(shown) == "hello\n"


@pytest.mark.process
def test_a_guest_that_hands_back_no_status_died_with_its_last_words(boot: Callable[..., Outcome]) -> None:
    with pytest.raises(MachineDied, match=r"no exit status.*its console ends:\n.*Kernel panic"):
        boot("echo 'Kernel panic - not syncing'; exit 0\n")


@pytest.mark.process
def test_a_guest_that_hangs_is_ended(boot: Callable[..., Outcome], tmp_path: Path) -> None:
    shown: list[str] = []
    with pytest.raises(MachineDied, match="no exit status"):
        # It opens a pipe that nobody writes to, which is a wait in the shell itself.
        boot("mkfifo $out/never; read word < $out/never; echo ended >> $out/output\n", shown.append, 1.0)
    assert "".join(shown) == ""
    assert find_processes(tmp_path) == []


def find_processes(folder: Path) -> list[bytes]:
    """Command lines that have the folder in them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            found.append((entry / "cmdline").read_bytes())
    return [line for line in found if bytes(folder) in line]


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("", "No such file"),
        ("#!/bin/sh\necho 'libfdt.so.1: cannot open shared object file' >&2; exit 127\n", "libfdt"),
        ("#!/bin/sh\nexit 4\n", "exit code 4"),
    ],
)
def test_a_qemu_that_cannot_start_is_named(tmp_path: Path, program: str, complaint: str) -> None:
    place = tmp_path / "prefix/usr/bin/qemu-system-x86_64"
    place.parent.mkdir(parents=True)
    if program:
        place.write_text(program)
        place.chmod(0o755)
    (tmp_path / "exchange").mkdir()
    machine = Machine(Packages(tmp_path, "k", {}), Image(tmp_path), MACHINE)
    with pytest.raises(MachineUnavailable, match=rf"^NotRunnable: qemu-system-x86_64: .*{complaint}"):
        machine.run(Job("true", tmp_path, {}), tmp_path / "exchange", print)


@pytest.mark.parametrize(
    ("distribution", "suite", "architecture", "cause"),
    [
        ("ubuntu", "noble", "amd64", Cause.UNKNOWN_RELEASE),
        ("debian", "bullseye", "amd64", Cause.UNKNOWN_RELEASE),
        ("debian", "trixie", "arm64", Cause.WRONG_ARCHITECTURE),
    ],
)
def test_a_release_without_our_packages_is_refused_by_name(
    distribution: str, suite: str, architecture: str, cause: Cause
) -> None:
    with pytest.raises(MachineUnavailable, match="only Debian bookworm and trixie on amd64") as caught:
        check_release(Release(distribution, suite, architecture, SOURCE))
    assert caught.value.cause is cause


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_the_releases_with_our_packages_are_taken(suite: str) -> None:
    check_release(Release("debian", suite, "amd64", SOURCE))


@pytest.mark.parametrize(("extra", "expected"), [([], 0), (["--require"], 1)])
def test_the_lane_is_skipped_by_name_where_there_is_no_apt(
    extra: list[str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.argv", ["machine", *extra])
    assert command.main() == expected
    assert capsys.readouterr().out.startswith(
        "the machine lane was skipped: NoApt: this machine has no apt-get"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_made_is_named_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(fetch, "read_release", lambda: Release("debian", "bookworm", "amd64", SOURCE))
    with pytest.raises(MachineUnavailable, match=r"^FetchFailed: .*XDG_CACHE_HOME"):
        run_lane(Options(), print)


def test_packages_that_were_fetched_before_need_no_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_digest", lambda _: "same")
    folder = tmp_path / "packages-bookworm-6.12-same"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"kernel": "6.12", "versions": {"kmod": "30"}}')
    (tmp_path / "packages-bookworm-6.13-other").mkdir()
    (tmp_path / "packages-bookworm-6.13-other/manifest.json").write_text('{"kernel": "6.13"}')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fetch.fetch_packages(tmp_path, print) == Packages(folder, "6.12", {"kmod": "30"})


def test_a_tree_from_before_the_merge_gets_the_new_shape(tmp_path: Path) -> None:
    for name in ("bin/kmod", "sbin/other", "usr/bin/tool", "lib/x86_64-linux-gnu/libkmod.so", "etc/passwd"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "sbin/depmod").symlink_to("/bin/kmod")
    merge_usr(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bin", "lib", "lib64", "sbin", "usr"]
    assert (tmp_path / "lib").readlink() == Path("usr/lib")
    assert (tmp_path / "usr/sbin/depmod").read_text() == "bin/kmod"
    assert (tmp_path / "usr/lib/x86_64-linux-gnu/libkmod.so").is_file()
    assert {entry.name for entry in (tmp_path / "usr/bin").iterdir()} == {"kmod", "tool"}


def test_every_file_of_the_machines_own_tests_is_run() -> None:
    own = {f"tests/machine/{file.name}" for file in (REPOSITORY / "tests/machine").glob("test_*.py")}
    assert own - set(TESTS) == set(), "add these to TESTS of testbed/machine/lane.py"
    assert [name for name in TESTS if not (REPOSITORY / name.partition("::")[0]).is_file()] == []
