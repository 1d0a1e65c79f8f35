"""The arm64 image runs, in an emulator of the processor; everything else of it is read from its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

import dranet
from testbed.debian.packages import PackagesUnavailable
from tests.tools.image.conftest import build
from tests.tools.image.qemu import fetch_emulator
from tools.image.base import host_architecture
from tools.image.trees import REPOSITORY

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(300)]  # long, as those are

ASK_FOR = "TEST_ALL_RUNTIMES"
CAPTURE = REPOSITORY / "tests/data/dgx-h100/capture.json"

Run = Callable[..., str]

CALL_NATIVE_CODE = """
import ssl, ctypes, lzma, bz2, yaml, grpc, msgspec, google.protobuf.message
from cel_expr_python import cel
ctypes.CDLL("libudev.so.1")
print(len(ssl.create_default_context().get_ca_certs()) > 100, yaml.__with_libyaml__)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a command in a copy of the root filesystem that has the emulator in it."""
    if not os.environ.get(ASK_FOR):
        pytest.skip(f"a minute in an emulator: run by `make test-runtime`, which sets {ASK_FOR}")
    if os.getuid() != 0:
        pytest.skip("NotRoot: chroot(2) needs root")
    emulator = ["/qemu"] if host_architecture() != "arm64" else []
    root = tmp_path_factory.mktemp("arm64") / "rootfs"
    shutil.copytree(build("arm64").root, root, symlinks=True)
    if emulator:
        try:
            shutil.copy(fetch_emulator(), root / "qemu")
        except PackagesUnavailable as error:
            pytest.skip(f"no emulator: {error}")
    shutil.copy(CAPTURE, root / "capture.json")

    def run(*arguments: str) -> str:
        command = ["chroot", str(root), *emulator, "/usr/bin/python3.13", "-I", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    return run


def test_the_arm64_driver_tells_its_version(run: Run) -> None:
    assert run("/usr/bin/dranet", "--version") == f"dranet {dranet.__version__}\n"


def test_the_arm64_driver_shows_a_captured_machine_as_this_one_does(run: Run) -> None:
    here = subprocess.run(
        [sys.executable, "-m", "dranet", "topology", "--facts", CAPTURE],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run("/usr/bin/dranet", "topology", "--facts", "/capture.json") == here.stdout


def test_the_arm64_libraries_can_be_loaded(run: Run) -> None:
    assert run("-c", CALL_NATIVE_CODE) == "True True\n"
