"""The desk runs where the driver cannot: on macOS, and without the libraries that only a node needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

DATA = Path(__file__).parents[1] / "data"
CAPTURE = str(DATA / "dgx-h100/capture.json")

AS_ON_MACOS = """
import importlib.abc, os, pkgutil, socket, sys

LINUX_ONLY = ("grpc", "pyudev", "prometheus_client", "pyroute2", "_scproxy", "dranet.driver", "dranet.kernel",
              "dranet.kubelet", "dranet.runtime", "dranet.store", "dranet.telemetry")

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(LINUX_ONLY):
            raise ModuleNotFoundError(f"{name} is not on this system", name=name)

for name in [name for name in sys.modules if name.startswith(LINUX_ONLY)]:
    del sys.modules[name]
sys.meta_path.insert(0, Absent())
for module, names in {socket: ("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "SO_BINDTODEVICE"),
                      os: ("sched_getaffinity", "sched_setaffinity", "memfd_create", "eventfd", "setns",
                           "unshare", "pidfd_open", "O_PATH", "O_TMPFILE", "listxattr")}.items():
    for name in names:
        vars(module).pop(name, None)
sys.platform = "darwin"
os.geteuid = lambda: 501
"""

IMPORT_ALL = """
import dranet.desk
from importlib import import_module
modules = [module.name for module in pkgutil.walk_packages(dranet.desk.__path__, "dranet.desk.")]
for module in modules:
    import_module(module)
print(len(modules))
"""

RUN = """
from dranet.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def run_as_on_macos(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_ON_MACOS + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_every_module_of_the_desk_can_be_imported() -> None:
    done = run_as_on_macos(IMPORT_ALL)
    assert done.stderr == ""
    assert int(done.stdout) > 30


def test_what_only_linux_has_is_really_absent() -> None:
    for module in ("grpc", "dranet.driver.app", "dranet.kernel.netlink.socket"):
        assert "is not on this system" in run_as_on_macos(f"import {module}").stderr
    assert "AttributeError" in run_as_on_macos("socket.AF_NETLINK").stderr


def test_claim_new_writes_a_claim_for_a_capture() -> None:
    done = run_as_on_macos(RUN, "claim", "new", "--facts", CAPTURE, "-o", "json")
    assert done.returncode == 0, done.stderr
    kinds = [item["kind"] for item in json.loads(done.stdout)["items"]]
    assert set(kinds) == {"DeviceClass", "ResourceClaimTemplate", "Pod"}


@pytest.mark.parametrize("name", ["mistakes.yaml", "guarded.yaml"])
def test_validate_lints_a_file(name: str) -> None:
    done = run_as_on_macos(RUN, "validate", str(DATA / "validate" / name))
    assert done.returncode in (0, 1), done.stderr
    assert "DeviceClass" in done.stdout or "claim" in done.stdout


def test_explain_says_which_devices_a_claim_gets() -> None:
    done = run_as_on_macos(
        RUN, "explain", "claim", "pair", "-f", str(DATA / "explain/cluster"), "--facts", CAPTURE
    )
    assert done.returncode == 0, done.stderr
    assert "it can be allocated" in done.stdout
