"""The image runs: its root filesystem, read-only, with the node's folders in it as a pod has them.

No container engine is needed: a private tree and chroot(2). Only the image's own files run in there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dranet
from dranet.cli.main import NODE_COMMANDS
from testbed.cluster import Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.rootfs import mount_root
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.tools.image.conftest import image_inside

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.usefixtures("image_here")]

REPOSITORY = Path(__file__).parents[3]
CAPTURE = REPOSITORY / "tests/data/dgx-h100/capture.json"
NOBODY = 65532

TOOLS_OF_EXTRAS = {"rich", "resvg_py", "fontpkg_arimo", "testbed"}
"""What the image leaves out: pictures, and the testbed."""

LOAD_ALL = """
import importlib, json, pkgutil, dranet
missing = {}
for module in pkgutil.walk_packages(dranet.__path__, "dranet."):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except ImportError as error:
        missing[module.name] = error.name
print(json.dumps(missing))
"""

USE_LIBRARIES = """
import ssl, xml.etree.ElementTree, lzma, bz2, zlib, json
import grpc.aio, msgspec, yaml
from dranet.kernel.discovery import watch
monitor = watch._open_hardware_events()
print(json.dumps({
    "authorities": len(ssl.create_default_context().get_ca_certs()),
    "libyaml": yaml.__with_libyaml__,
    "monitor": monitor.fileno() > 0,
}))
"""


def run(command: list[str], user: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    chroot, root = _enter()
    start = [chroot, f"--userspec={user}:{user}", root] if user else [chroot, root]
    return subprocess.run([*start, *command], capture_output=True, text=True, check=False, **options)


@cache
def _enter() -> tuple[str, ...]:
    return mount_root(image_inside().root)


def python(code: str) -> Any:
    done = run(["/usr/bin/python3.13", "-I", "-c", code])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def a_pod_with_a_nic() -> list[dict[str, Any]]:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "nic"},
        "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "any"}}]}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "worker"},
        "spec": {
            "resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}],
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}],
        },
    }
    return [device_class("any", 'device.attributes["dra.net"].rdma'), claim, pod]


def test_a_pod_gets_its_nic_from_the_driver_of_the_image() -> None:
    root = image_inside().root
    command = (*mount_root(root), "/usr/bin/dranet", "run")

    async def scenario() -> None:
        settings = {"filter": 'attributes["dra.net/rdma"].BoolValue == true'}  # by CEL
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR, settings) as testbed:
            await testbed.driver.start(command=command)
            await testbed.driver.wait_ready(60)
            mapped = await asyncio.to_thread(Path(f"/proc/{testbed.driver.pid}/maps").read_text)
            await testbed.apply(a_pod_with_a_nic())
            uid = testbed.pod_uid("worker")
            async with asyncio.timeout(60):
                await testbed.kubelet.wait_running(uid)
                (claim,) = await testbed.fetch_pod_claims("worker")
                (device,) = claim["status"]["devices"]
                assert device["networkData"]["interfaceName"]
                await testbed.delete_pod("worker")
                await testbed.kubelet.wait_gone(uid)
            ended = await testbed.driver.stop()
            assert ended.exit_code == 0
            assert "libudev" not in ended.log, ended.log  # it would miss hardware events
            files = set(re.findall(r" (/\S+)$", mapped, re.MULTILINE))
            assert [name for name in files if "python3" in name]
            strange = [
                n for n in files if not Path(n).is_relative_to(root) and not n.startswith(("/dev", "/run"))
            ]
            assert strange == []  # no library of this machine

    asyncio.run(scenario())


def test_the_command_is_what_it_says() -> None:
    done = run(["/usr/bin/dranet", "--version"])
    assert (done.stdout, done.returncode) == (f"dranet {dranet.__version__}\n", 0)


def test_what_needs_no_rights_runs_as_nobody_in_particular() -> None:
    if os.getuid() != 0 or Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        pytest.skip("NotRoot: no other user to be")
    shutil.copy(CAPTURE, WORK_DIR / CAPTURE.name)
    for arguments, wanted in (
        (["--help"], "COMMAND"),
        (["topology", "--facts", str(WORK_DIR / CAPTURE.name)], "gpu"),
        (["devices", "--facts", str(WORK_DIR / CAPTURE.name)], "mlx5"),
        (["seccomp"], "SCMP_ACT_ERRNO"),
    ):
        done = run(["/usr/bin/dranet", *arguments], user=NOBODY)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        assert wanted in done.stdout


def test_a_readiness_probe_by_a_command_works_as_nobody_in_particular() -> None:
    """The only way to look into a pod whose image has no shell; as the DaemonSet of two instances asks."""
    if os.getuid() != 0 or Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        pytest.skip("NotRoot: no other user to be")
    file = WORK_DIR / "ready"
    done = run(["/usr/bin/dranet", "ready", str(file)], user=NOBODY)
    assert done.returncode == 1
    assert "does not exist" in done.stderr
    file.touch()
    assert run(["/usr/bin/dranet", "ready", str(file)], user=NOBODY).returncode == 0


def test_every_module_can_be_loaded_but_those_of_extras() -> None:
    missing = python(LOAD_ALL)
    strange = {
        module: name for module, name in missing.items() if not str(name).startswith(tuple(TOOLS_OF_EXTRAS))
    }
    assert strange == {}


def test_the_libraries_behind_the_modules_work() -> None:
    said = python(USE_LIBRARIES)
    assert said["authorities"] > 100
    assert said["libyaml"]
    assert said["monitor"]


def test_a_command_that_is_left_out_names_where_to_run_it() -> None:
    for command, remedy in (
        (["testbed", "list"], "in a checkout, make setup, then .venv/bin/dranet testbed list"),
        (["claim", "new"], "where your kubeconfig is"),
        (["validate", "claim.yaml"], "where your kubeconfig is"),
    ):
        done = run(["/usr/bin/dranet", *command])
        assert done.returncode == 1
        assert remedy in done.stderr
        assert done.stderr.count("\n") == 1


def test_the_help_lists_the_commands_that_are_there() -> None:
    listed = run(["/usr/bin/dranet", "--help"]).stdout
    assert re.findall(r"^  (\w+) +[a-z]", listed, re.MULTILINE) == list(NODE_COMMANDS)


def test_nothing_of_the_pod_adds_code_to_the_driver() -> None:
    folder = WORK_DIR / "planted"
    folder.mkdir()
    (folder / "dranet.py").write_text("raise SystemExit('planted')")
    environment = {"PYTHONPATH": str(folder), "PYTHONSTARTUP": str(folder / "dranet.py"), "PATH": os.defpath}
    done = run(["/usr/bin/dranet", "--version"], env=environment, cwd=folder)
    assert done.stdout == f"dranet {dranet.__version__}\n"
