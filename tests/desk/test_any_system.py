"""What people run at their desk works where the driver cannot: on macOS, and without the libraries that
only a node needs. ``pip install dranet`` leaves those out there."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dranet.cli.main import COMMANDS

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "data"
CAPTURE = str(DATA / "dgx-h100/capture.json")

AS_ON_MACOS = """
import importlib.abc, os, pkgutil, socket, sys, types

LINUX_ONLY = ("grpc", "pyudev", "prometheus_client", "pyroute2", "dranet.driver", "dranet.kernel",
              "dranet.kubelet", "dranet.runtime", "dranet.store", "dranet.telemetry", "dranet.pb")

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
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)  # macOS has it
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
    assert kinds == ["ResourceClaimTemplate", "Pod"]


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


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("devices", "--all", "-f", CAPTURE), "is the node's uplink"),
        (("devices", "-o", "slices", "--facts", CAPTURE), "kind: ResourceSlice"),
        (("topology", "-f", CAPTURE), "NUMA node 1"),
        (("topology", "-o", "matrix", "-f", CAPTURE), "PIX"),
        (("topology", "-o", "svg", "-f", CAPTURE), "</svg>"),
        (("version", "--client"), "client   "),
        (("completion", "zsh"), "compdef"),
        (("doctor", "--list"), "acs-redirect"),
        (("seccomp", "--name"), ".json"),
        (("--version",), "dranet "),
        ((), "Write and check claims:"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_what_needs_no_node_runs(arguments: tuple[str, ...], wanted: str) -> None:
    done = run_as_on_macos(RUN, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert wanted in done.stdout


def test_a_support_bundle_of_a_node_can_be_read(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tgz"
    made = subprocess.run(
        [sys.executable, "-m", "dranet", "doctor", "--bundle", bundle, "--fail-on", "never"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr
    done = run_as_on_macos(RUN, "doctor", "-f", str(bundle), "--fail-on", "never")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"its hardware: dranet topology -f {bundle}" in done.stdout
    findings = json.loads(
        run_as_on_macos(RUN, "doctor", "--read", str(bundle), "-o", "json", "--fail-on", "never").stdout
    )["findings"]
    assert len(findings) > 10
    assert "no: is the loopback" in run_as_on_macos(RUN, "devices", "-a", "-f", str(bundle)).stdout


@pytest.mark.parametrize(
    "arguments",
    [("run",), ("devices",), ("topology",), ("doctor",), ("capture",), ("prepared",), ("forget", "uid")],
    ids=lambda words: words[0],
)
def test_what_looks_at_a_node_ends_with_a_sentence(arguments: tuple[str, ...]) -> None:
    done = run_as_on_macos(RUN, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"dranet: dranet {arguments[0]} looks at a Linux node, and this is macOS (")
    assert done.stderr.count("\n") == 1


def test_an_installation_without_the_drivers_libraries_says_so_on_linux() -> None:
    """The single-file ``kubectl-dranet`` leaves them out."""
    without = "import sys\nsys.modules['grpc'] = None\n"
    command = [sys.executable, "-c", f"{without}{RUN}", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("dranet: the driver is not in this installation")


@pytest.mark.parametrize("command", [name for name, one in COMMANDS.items() if "testbed" not in one.module])
def test_every_command_has_its_help(command: str) -> None:
    done = run_as_on_macos(RUN, command, "--help-all" if command == "devices" else "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: dranet {command}" in done.stdout


def test_the_package_leaves_out_there_what_the_driver_alone_needs() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    marker = " ; sys_platform == 'linux'"
    kept = {one.partition(">")[0] for one in project["dependencies"] if not one.endswith(marker)}
    assert kept == {"argcomplete", "cel-expr-python", "msgspec", "protobuf", "pyyaml"}
