"""The system calls that the arm64 driver makes are in its seccomp profile.

Calls have other forms there (no ``open``, ``access`` or ``epoll_wait``), and no test runs on an arm64 kernel.
So an emulator of the processor tells them. It knows too little of namespaces for a claim; those calls have
the same names on both.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from dranet.security.seccomp import RULES
from testbed.cluster import Testbed
from testbed.debian.packages import PackagesUnavailable
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.rootfs import mount_root
from testbed.runtimes import stand_in
from tests.tools.image.conftest import build
from tests.tools.image.qemu import fetch_emulator
from tests.tools.image.test_arm64 import ASK_FOR
from tools.image.base import host_architecture

_ROOT = "TEST_ARM64_ROOT"
_UNNAMED = {"293": "rseq", "435": "clone3"}
"""Those that the emulator answers without a name; numbers of ``asm-generic/unistd.h``."""
_WITHOUT_RULES = """
import runpy
from dranet.kernel.discovery import scan

scan.read_rules = lambda rtnl, warnings: ()
runpy.run_path("/usr/bin/dranet", run_name="__main__")
"""
"""The emulator refuses RTM_GETRULE, and so every scan (``linux-user/fd-trans.c`` of QEMU translates links,
addresses and routes alone). The other dumps make the same calls."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The image's, with the emulator in it; made before the private tree, which finds it by the variable."""
    if not os.environ.get(ASK_FOR):
        pytest.skip(f"a minute in an emulator: run by `make test-runtime`, which sets {ASK_FOR}")
    if host_architecture() == "arm64":
        pytest.skip("arm64: each test of the profile shows this here")
    place = tmp_path / "rootfs"
    shutil.copytree(build("arm64").root, place, symlinks=True)
    try:
        shutil.copy(fetch_emulator(), place / "qemu")
    except PackagesUnavailable as error:
        pytest.skip(f"no emulator: {error}")
    (place / "driver.py").write_text(_WITHOUT_RULES)
    os.environ[_ROOT] = str(place)
    return place


def read_calls(trace: Path) -> set[str]:
    text = trace.read_text(errors="replace")
    unnamed = {_UNNAMED.get(number, number) for number in re.findall(r"Unknown syscall (\d+)", text)}
    return unnamed | set(re.findall(r"^\d+ (\w+)\(", text, re.MULTILINE))


@pytest.mark.runtime
@pytest.mark.private_tree
@pytest.mark.usefixtures("root")
def test_the_profile_has_every_call_of_the_arm64_driver() -> None:
    traces = [WORK_DIR / "calls-of-driver", WORK_DIR / "calls-of-probe"]
    enter = mount_root(Path(os.environ[_ROOT]))
    driver, probe = (
        (*enter, "/qemu", "-strace", "-D", str(trace), "/usr/bin/python3.13", "-I", "/driver.py")
        for trace in traces
    )

    async def story() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
            await testbed.driver.start(command=(*driver, "run"))
            await testbed.driver.wait_ready(120)
            ready = await asyncio.create_subprocess_exec(*probe, "ready", str(WORK_DIR / "nowhere"))
            assert await ready.wait() == 1
            assert (await testbed.driver.stop(timeout_seconds=60)).exit_code == 0

    asyncio.run(story())
    made = set[str]().union(*map(read_calls, traces))
    assert {"epoll_pwait", "faccessat", "unlinkat"} <= made  # it was another architecture indeed
    assert sorted(made - {call for rule in RULES for call in rule.calls}) == []
