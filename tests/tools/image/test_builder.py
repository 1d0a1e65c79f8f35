"""How the image is built: from locks alone, the same each time, and what it says where that does not work."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import dranet
from dranet.cli.main import DESK_COMMANDS, NODE_COMMANDS
from testbed.debian.packages import PackagesUnavailable, cache_folder
from tests.tools.image.conftest import build
from tools.image import debian
from tools.image.__main__ import _parse_arguments
from tools.image.build import build_image, find_or_build, make_config
from tools.image.debian import (
    ARCHITECTURES,
    ImageError,
    Package,
    StaleLock,
    describe_changes,
    fetch_packages,
    find_files,
    read_lock,
)
from tools.image.trees import REPOSITORY, list_driver_files
from tools.image.wheels import fetch_wheels, locked_versions, unpack_wheels

pytestmark = pytest.mark.process(unless="the image is kept")

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()


def final_stage() -> str:
    return DOCKERFILE.rpartition("FROM scratch")[2].replace("\\\n", " ")


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", final_stage(), re.MULTILINE)


def test_both_architectures_lock_the_same_packages_and_versions() -> None:
    versions = [{p.name: p.version.partition("+b")[0] for p in read_lock(a)} for a in ARCHITECTURES]
    assert versions[0] == versions[1]
    assert "libpython3.13-stdlib" in versions[0]


def test_the_python_lock_has_what_filters_need() -> None:
    assert {"grpcio", "msgspec", "pyudev", "cel-expr-python"} <= set(locked_versions())


def test_two_builds_are_the_same_bytes_wherever_they_are_made(tmp_path: Path) -> None:
    first = build()
    cache = tmp_path / "another-cache"
    cache.mkdir()
    kept = cache_folder("image")
    for found in (
        kept / "debs",
        *kept.glob("wheels-*"),
    ):  # downloads are shared, nothing that was made of them
        (cache / found.name).symlink_to(found)
    second = build_image(first.architecture, tmp_path / "b", cache=cache, report=lambda _: None)
    if find_or_build().folder != first.folder:
        pytest.skip("the sources were edited meanwhile")
    assert second.digest == first.digest
    assert second.archive.read_bytes() == first.archive.read_bytes()


def test_a_mirror_that_has_moved_on_is_named_package_by_package(tmp_path: Path) -> None:
    old = Package("libexpat1", "arm64", "1.0-1", "0" * 64)
    gone = Package("zlib1g", "arm64", "0.9-1", "1" * 64)
    try:
        with pytest.raises(StaleLock) as caught:
            fetch_packages((old, gone), tmp_path, strict=True)
    except PackagesUnavailable as error:
        pytest.skip(str(error))
    assert [change.partition(",")[0] for change in caught.value.changes] == [
        "libexpat1 (arm64): locked 1.0-1",
        "zlib1g (arm64): locked 0.9-1",
    ]
    assert all(", served " in change for change in caught.value.changes)
    assert "make image-lock" in str(caught.value)


def test_a_file_that_is_not_the_locked_one_is_refused(tmp_path: Path) -> None:
    package = Package("libexpat1", "amd64", "1.0-1", "0" * 64)
    place = debian._place(tmp_path, package)
    place.parent.mkdir()
    place.write_bytes(b"something else")
    with pytest.raises(ImageError, match=r"is not the locked libexpat1 amd64 1\.0-1"):
        find_files(fetch_packages((package,), tmp_path, strict=True), tmp_path)


def test_a_lock_without_a_wanted_package_says_which(tmp_path: Path) -> None:
    file = tmp_path / "packages.lock"
    debian.write_lock([p for p in read_lock("arm64") if p.name != "libudev1"], file)
    with pytest.raises(ImageError, match=r"differ for arm64: libudev1 \(make image-lock\)"):
        read_lock("arm64", file)
    file.write_text("libudev1 arm64\n")
    with pytest.raises(ImageError, match="not a package: 'libudev1 arm64'"):
        read_lock("arm64", file)


def test_only_what_changed_is_told_after_locking_anew() -> None:
    before = (Package("a", "amd64", "1", "x"), Package("b", "amd64", "1", "x"))
    now = {("a", "amd64"): "1", ("b", "amd64"): "2"}
    assert describe_changes(before, now) == ["b (amd64): locked 1, served 2"]


def test_a_locked_package_under_a_condition_is_refused(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.lock"
    requirements.write_text("pyudev==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:00\n")
    with pytest.raises(ImageError, match="pyudev has a condition"):
        locked_versions(requirements)


def test_wheels_that_are_not_the_locked_ones_are_refused(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.lock"
    requirements.write_text(f"pyudev==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    name = debian.hash_file(requirements)[:16]
    folder = tmp_path / f"wheels-amd64-{name}"
    folder.mkdir()
    (folder / "pyudev-1.0-py3-none-any.whl").write_bytes(b"another")
    with pytest.raises(ImageError, match=r"not what is locked: \['pyudev-1.0"):
        fetch_wheels("amd64", tmp_path, requirements)


@pytest.mark.parametrize("name", ["tool-1.0.data/scripts/tool", "../outside.py", "/etc/passwd"])
def test_a_wheel_that_wants_to_install_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    wheel = tmp_path / "tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(name, "")
    with pytest.raises(ImageError, match="only wheels whose files are used unchanged"):
        unpack_wheels([wheel], tmp_path / "site")


def test_the_image_holds_every_module_that_the_commands_of_a_node_load() -> None:
    files = {str(path.relative_to(REPOSITORY)) for path in list_driver_files()}
    assert {"dranet/__init__.py", "dranet/cli/run.py", "dranet/driver/app.py"} <= files
    assert not [name for name in files if not name.startswith("dranet/") or not name.endswith(".py")]
    program = (
        f"import sys, {', '.join(NODE_COMMANDS.values())}, dranet.driver.app; "
        "print(*(module.__file__ for name, module in sys.modules.items() if name.split('.')[0] == 'dranet'))"
    )
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert {str(Path(name).relative_to(REPOSITORY)) for name in loaded.stdout.split()} <= files


@pytest.mark.parametrize("module", [*DESK_COMMANDS.values(), "dranet.desk.allocation.allocator"])
def test_the_image_leaves_out_what_no_command_of_a_node_reaches(module: str) -> None:
    assert REPOSITORY / f"{module.replace('.', '/')}.py" not in list_driver_files()


def test_the_dockerfile_makes_the_image_that_the_archive_has() -> None:
    config = make_config({})
    assert instructions("USER") == [config["User"]]
    assert [part for line in instructions("ENV") for part in shlex.split(line)] == config["Env"]
    assert [json.loads(line) for line in instructions("ENTRYPOINT")] == [config["Entrypoint"]]
    assert [json.loads(line) for line in instructions("CMD")] == [config["Cmd"]]
    assert instructions("WORKDIR") == [config["WorkingDir"]]
    labels = dict(part.split("=", 1) for line in instructions("LABEL") for part in shlex.split(line))
    labels = {name: text.replace("${VERSION}", dranet.__version__) for name, text in labels.items()}
    assert labels == config["Labels"]
    assert instructions("COPY") == ["--from=build /image/base /", "--from=build /image/driver /"]


def test_what_the_dockerfile_copies_is_there_and_is_all_that_an_engine_is_sent() -> None:
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {source for line in lines for source in line.split()}
    assert all((REPOSITORY / source).exists() for source in sources)
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == sources


def test_without_a_container_engine_it_says_what_to_do_instead() -> None:
    script = REPOSITORY / "tools/image/with-engine"
    environment = {"PATH": "/usr/bin:/bin", "ENGINE": "no-such-engine"}
    done = subprocess.run([script, "dranet"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "tried: no-such-engine" in done.stderr
    assert "make rootfs" in done.stderr


def test_an_engine_whose_daemon_does_not_answer_is_told_by_its_own_words(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n")
    engine.chmod(0o755)
    script = REPOSITORY / "tools/image/with-engine"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ENGINE": "none engine"}
    done = subprocess.run([script, "dranet"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    first, second, _ = done.stderr.splitlines()
    assert first == "image: engine info: Cannot connect to the daemon"
    assert "no container engine works here" in second


def test_a_name_without_a_tag_gets_that_by_which_pods_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, wanted in (
        ("registry.example.com:5000/dranet", f"registry.example.com:5000/dranet:{dranet.__version__}"),
        ("registry.example.com/dranet:dev", "registry.example.com/dranet:dev"),
    ):
        monkeypatch.setattr(sys, "argv", ["image", "rootfs", "--output", "x", "--name", name])
        assert _parse_arguments().name == wanted


def test_an_engine_that_works_is_given_the_version_and_the_architecture(tmp_path: Path) -> None:
    said = tmp_path / "said"
    engine = tmp_path / "engine"
    engine.write_text(f'#!/bin/sh\n[ "$1" = info ] || echo "$@" > {said}\n')
    engine.chmod(0o755)
    script = REPOSITORY / "tools/image/with-engine"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ENGINE": "engine", "LOCKED": "1"}
    subprocess.run([script, "dranet", "arm64"], env=environment, check=True)
    version = dranet.__version__
    arguments = f"--build-arg VERSION={version} --build-arg LOCKED=1"
    git = ["git", "rev-parse", "HEAD"]
    head = subprocess.run(git, cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()
    label = f"--label org.opencontainers.image.revision={head} " if head else ""
    wanted = f"build --platform linux/arm64 {arguments} {label}--tag dranet:{version} ."
    assert said.read_text().strip() == wanted


def test_the_command_names_what_is_wrong_in_one_line() -> None:
    command = [sys.executable, "-m", "tools.image", "rootfs", "--output", "/proc/nowhere", "--arch", "mips"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 2
    assert "invalid choice: 'mips'" in done.stderr


def test_an_image_knows_what_it_was_built_of() -> None:
    image = build()
    assert json.loads((image.folder / "image.json").read_text())["digest"] == image.digest
    assert debian.read_all(image.folder / "packages.lock") == tuple(sorted(image.packages))
    assert (image.packages == read_lock(image.architecture)) == (not image.changes)
