"""What the testbed's node brings into the driver's pod: its programs, folders, volumes and made-up hardware.

The programs are either this machine's with the source as it is written here, mounted read-only, or those of
the driver's own image, as on a cluster's node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.cluster import NODE_NAME, Places
from testbed.containerd import node as containerd_node
from testbed.containerd.image import BUSYBOX_IMAGE
from testbed.driver.pod_spec import NodeView
from testbed.driver.process import COMMAND
from testbed.node.iproute import NETNS_FOLDER
from testbed.node.node import Node
from testbed.pb import cri_pb2 as pb

SYSCTLS = "sys/net"
_REPOSITORY = Path(__file__).parents[2]
_PROGRAM = "dranet"


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the driver's programs are. Without an image of its own: this machine's."""

    image: str = ""
    """Its name in the archive."""
    archive: Path | None = None

    @property
    def image_of_container(self) -> str:
        return self.image or BUSYBOX_IMAGE

    def build_command(self, words: Sequence[str]) -> list[str]:
        """What starts ``dranet ...``, or ``python -m dranet ...``, of the programs that the container has."""
        start = (_PROGRAM,) if self.image else COMMAND[:-1]
        for known in ((_PROGRAM,), COMMAND[:-1]):
            if tuple(words[: len(known)]) == known:
                return [*start, *words[len(known) :]]
        return list(words)

    def list_folders(self) -> list[Path]:
        """To be mounted where they are, read-only."""
        if self.image:
            return []
        libraries = (Path("/usr"), Path("/lib"), Path("/lib64"))
        return [*libraries, Path(sys.base_prefix), Path(sys.prefix), _REPOSITORY]

    def iter_variables(self) -> Iterator[tuple[str, str]]:
        if not self.image:
            yield "PYTHONDONTWRITEBYTECODE", "1"
            yield "PYTHONPATH", str(_REPOSITORY)


def show_to_driver(node: Node, netns_twin: Path) -> None:
    """What a node has by itself, and a private tree has not: the namespaces of pods, as they come and go, at
    ``netns_twin``; the kernel's own sysctls alongside the described hardware."""
    containerd_node.share_mount(NETNS_FOLDER)
    # containerd looks for its mount by the text, and may find the machine's own, under the tree's /run
    containerd_node.bind(NETNS_FOLDER, netns_twin)
    # As in a real /proc: there without the mount of its own, too, but read-only like the rest of it.
    containerd_node.bind(Path("/proc", SYSCTLS), node.procfs_root / SYSCTLS, read_only=True)


def list_machine_mounts(programs: Programs, places: Places, node: Node) -> list[pb.Mount]:
    """The programs, and the hardware that this machine lacks; all of it read-only."""
    wanted = (*programs.list_folders(), node.sysfs_root, places.driver_kubeconfig)
    return [
        pb.Mount(container_path=str(path), host_path=str(path), readonly=True)
        for path in wanted
        if path.exists()
    ]


def build_view(
    places: Places, stand_ins: Mapping[str, str], volumes: Mapping[str, str], pod_uid: str
) -> NodeView:
    """Where the folders of an ordinary node are in the testbed."""
    moved = {
        "/var/lib/kubelet": str(places.kubelet_root),
        "/var/lib/dranet": str(places.work_dir / "state"),
        "/var/run/cdi": str(places.cdi_dir),
        "/var/run/nri": str(places.nri_socket.parent),
    }
    return NodeView(NODE_NAME, str(places.kubelet_root), moved, stand_ins, volumes, pod_uid)


def list_stand_ins(places: Places, netns_twin: Path, procfs_root: Path | None) -> dict[str, str]:
    """What the container sees at its usual place: with a ``procfs_root`` made-up hardware, and the kernel's
    own sysctls; the processes of the testbed without."""
    found = {"/etc/cdi": str(places.work_dir / "etc-cdi"), str(NETNS_FOLDER): str(netns_twin)}
    if procfs_root is not None:
        found |= {"/proc": str(procfs_root), f"/proc/{SYSCTLS}": f"/proc/{SYSCTLS}"}
    return found


def make_volumes(
    spec: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, str]], folder: Path
) -> dict[str, str]:
    """Those that are no folders of the node: files of ConfigMaps, and empty ones."""
    made = {}
    for volume in spec.get("volumes", ()):
        if "hostPath" not in volume:
            place = folder / volume["name"]
            place.mkdir(parents=True, exist_ok=True)
            made[volume["name"]] = str(place)
            files = config_maps.get(volume.get("configMap", {}).get("name", ""), {})
            for name, text in files.items():
                (place / name).write_text(text)
    return made
