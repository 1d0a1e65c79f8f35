"""The lane that makes a cluster of its own with kind, where there is Docker, and deletes it at the end.

The node is a container, whose kernel is this machine's: it gets a NIC for the suite from ``docker exec``, a
dummy link, which is enough for everything that the basics show. ``KEEP=1`` leaves the cluster. One that is
there already belongs to the user, perhaps an earlier run's, and stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e import image
from e2e.access import LaneUnavailable
from e2e.hands import ProcHands
from e2e.kubeconfig import run_on
from e2e.run import Book
from testbed.cli.shutdown import run_in_order

LANE = "kind"
CLUSTER = "dranet-e2e"
NODE = f"{CLUSTER}-control-plane"
NIC = "e2enic0"
_PROGRAMS = ("docker", "kind")
_CREATE_SECONDS = 600


def build_config() -> dict[str, Any]:
    """What ``kind create cluster --config`` reads: one node, and nothing switched on. From Kubernetes 1.34 on
    resource.k8s.io/v1 and the devices' status are served by themselves, and the node images for it have a
    containerd of 2.0 or newer, where NRI and CDI are on. Older node images are refused by their version."""
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": CLUSTER,
        "nodes": [{"role": "control-plane"}],
    }


def run(names: Sequence[str], book: Book) -> int:
    """Make the cluster, run what can be run on it, and delete it.

    Raises:
        LaneUnavailable: no kind, no Docker, or they refuse.
    """
    check_programs()
    check_no_cluster()
    with tempfile.TemporaryDirectory(prefix="dranet-kind-") as folder:
        name, load = _find_image(Path(folder))
        with _cluster(Path(folder)) as kubeconfig:
            _call("kind", "load", *load, "--name", CLUSTER)
            _exec("ip", "link", "add", NIC, "type", "dummy")
            _exec("ip", "link", "set", NIC, "up")
            hands = ProcHands(("docker", "exec", NODE))
            return run_in_order(run_on(kubeconfig, name, LANE, names, book, hands))


def check_programs() -> None:
    """Before anything is made.

    Raises:
        LaneUnavailable: with what is missing.
    """
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        raise LaneUnavailable(
            f"no {' and no '.join(missing)} on PATH",
            hint="install it, or name a cluster with KUBECONFIG, or a folder of programs with KUBE_BIN_DIR",
        )
    _call("docker", "version", "--format", "{{.Server.Version}}")


def check_no_cluster() -> None:
    """A cluster with our name, which would be deleted at the end.

    Raises:
        LaneUnavailable: there is one.
    """
    if CLUSTER in _call("kind", "get", "clusters").split():
        raise LaneUnavailable(
            f"a kind cluster {CLUSTER} is there already, of an earlier run or of one that goes on",
            hint=f"kind delete cluster --name {CLUSTER}",
        )


@contextmanager
def _cluster(folder: Path) -> Iterator[Path]:
    """A cluster of its own and its kubeconfig; the caller's own kubeconfig is not written."""
    config, kubeconfig = folder / "kind.yaml", folder / "kubeconfig"
    config.write_text(yaml.safe_dump(build_config(), sort_keys=False))
    node_image = os.environ.get("KIND_NODE_IMAGE", "")
    try:
        _call(
            *("kind", "create", "cluster", "--config", str(config), "--kubeconfig", str(kubeconfig)),
            *("--wait", "180s"),
            *(("--image", node_image) if node_image else ()),
        )
        yield kubeconfig
    finally:
        if os.environ.get("KEEP") == "1":
            sys.stdout.write(f"e2e: the cluster {CLUSTER} stays: kind delete cluster --name {CLUSTER}\n")
        else:
            subprocess.run(["kind", "delete", "cluster", "--name", CLUSTER], check=False)


def _find_image(folder: Path) -> tuple[str, Sequence[str]]:
    """The driver's image, and how kind takes it: built unless ``E2E_IMAGE`` names one that Docker has."""
    if archive := os.environ.get("E2E_IMAGE", ""):
        _call("docker", "image", "inspect", "--format", "{{.Id}}", archive)
        return archive, ("docker-image", archive)
    return image.NAME, ("image-archive", str(image.build_archive(folder / "image")))


def _exec(*command: str) -> None:
    _call("docker", "exec", NODE, *command)


def _call(*command: str) -> str:
    """Standard output of a program.

    Raises:
        LaneUnavailable: it failed; with its last words.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CREATE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LaneUnavailable(f"{' '.join(command[:3])}: no end after {error.timeout:g} s") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise LaneUnavailable(f"{' '.join(command[:3])}: {words[-1] if words else f'exit {done.returncode}'}")
    return done.stdout
