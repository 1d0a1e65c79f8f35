"""The node of the lane of programs: hardware, containerd and image in a private tree that hides the machine.

A kubelet writes to places and settings of the machine that no namespace keeps apart. They are covered in the
tree's own mounts, which the kernel removes with it. Knows nothing of the control plane.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import dranet
from e2e import image
from e2e.access import E2eFailed, LaneUnavailable
from e2e.cluster import config
from testbed.containerd.fetch import Toolchain
from testbed.containerd.image import BUSYBOX_IMAGE
from testbed.containerd.node import bind, enable_controllers, mount_tmpfs, share_mount
from testbed.containerd.runtime import ContainerdRuntime
from testbed.driver.pod_node import show_to_driver
from testbed.isolation import require_isolation
from testbed.node.hardware import Hardware
from testbed.node.iproute import NETNS_FOLDER
from testbed.node.node import Node
from tools.project import read_project

_PUBLISHED_NAMES = {
    image.NAME: (
        "localhost/dranet:0.1.0",
        "registry.example.com/dranet:0.1.0",
        "docker.io/library/dranet:0.1.0",
        f"{read_project().image}:{dranet.__version__}",
    ),
    BUSYBOX_IMAGE: ("docker.io/library/busybox:1.37", "docker.io/library/busybox:latest"),
}
"""As the chart's values, ``deploy/``, a release and the documentation name the images: the tree reaches no
registry."""
_VAR_LIB, _VAR_LOG = Path("/var/lib"), Path("/var/log")
_POD_LOGS = _VAR_LOG / "pods"
_NRI_SOCKET, _CDI_DIR = Path("/var/run/nri/nri.sock"), Path("/var/run/cdi")
_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""What a kubelet sets at its start: for the whole machine, since no namespace has its own."""


@dataclass(frozen=True, slots=True)
class LaneNode:
    """What a kubelet finds. ``logs`` is where the lane's logs are seen in the tree."""

    hardware: Node
    runtime: ContainerdRuntime
    logs: Path
    netns_twin: Path
    """The pods' network namespaces, at a place where containerd knows their mount."""

    @property
    def pod_logs(self) -> Path:
        return self.logs / "pods"

    @property
    def host_paths(self) -> dict[str, str]:
        """Where the manifests' places of the hardware are here."""
        procfs = self.hardware.procfs_root
        return {
            "/proc": str(procfs),
            "/proc/irq": str(procfs / "irq"),
            str(NETNS_FOLDER): str(self.netns_twin),
        }


def check_uncovered(places: Iterable[Path]) -> None:
    """That what is still to be read does not lie where the tree will be empty.

    Raises:
        LaneUnavailable: with the first that does.
    """
    for place in [*places, Path(sys.prefix), Path(sys.base_prefix), Path(__file__)]:
        for covered in (_VAR_LIB, _VAR_LOG):
            if place.resolve().is_relative_to(covered):
                raise LaneUnavailable(
                    f"{place} is below {covered}, which this lane covers", hint="put it elsewhere"
                )


async def boot_node(
    stack: AsyncExitStack,
    toolchain: Toolchain,
    archive: Path,
    hardware: Hardware,
    work_dir: Path,
    logs: Path,
    number: int = 0,
) -> LaneNode:
    """Inside a private tree only. ``number`` of the node in its cluster."""
    require_isolation()
    here = work_dir / "logs"
    share_mount(
        Path("/"), recursive=True
    )  # as systemd leaves a node's; this tree's copies, not the machine's
    cover_machine(work_dir / "machine", logs, here)
    node = Node(hardware, work_dir, number)
    await asyncio.to_thread(stack.enter_context, node)
    folder = work_dir / "containerd"
    folder.mkdir(parents=True)
    runtime = ContainerdRuntime(
        toolchain,
        folder,
        _NRI_SOCKET,
        _CDI_DIR,
        has_own_netns=False,
        pod_subnet=config.pod_subnet(number),
    )
    await runtime.start()
    stack.push_async_callback(runtime.stop)
    enable_controllers()
    if image.NAME not in await runtime.import_archive(archive):
        raise E2eFailed(f"{archive} has no {image.NAME}", hint=f"make rootfs IMAGE={image.NAME}")
    for name, others in _PUBLISHED_NAMES.items():
        await runtime.tag_image(name, *others)
    twin = work_dir / "netns-of-pods"
    show_to_driver(node, twin)
    return LaneNode(node, runtime, here, twin)


def cover_machine(folder: Path, logs: Path, logs_here: Path) -> None:
    """What a kubelet writes, for the tree alone. ``logs`` stay, and are seen at ``logs_here``."""
    (logs / "pods").mkdir(parents=True, exist_ok=True)
    bind(logs, logs_here)
    mount_tmpfs(_VAR_LIB)
    mount_tmpfs(_VAR_LOG)
    bind(logs_here / "pods", _POD_LOGS)
    for name in _SYSCTLS:
        setting, own = Path("/proc/sys", name), folder / name
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(setting.read_text())
        bind(own, setting)
