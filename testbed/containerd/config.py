"""The folders and the configuration of a containerd that shares nothing with the host's own.

Pure: folders in, text out. Everything that containerd would put at a fixed place is moved below one work
folder, except the shims' sockets, whose place (``/run/containerd/s``) is compiled in.

Sources: containerd's ``docs/cri/config.md`` and ``docs/NRI.md``, the CNI specification 1.0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dranet.socket_names import UNIX_PATH_MAX_BYTES
from testbed.containerd.image import PAUSE_IMAGE

POD_SUBNET = "10.88.0.0/24"
"""Addresses of the pods' primary interface ``eth0``, on a node that is alone."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one containerd lives.

    ``volatile`` is a tmpfs of the runtime's own: overlayfs works on it whatever the host's file system is,
    and unmounting it removes all state. ``cgroup`` is a folder name below the root of each hierarchy.
    """

    work_dir: Path
    bin_dir: Path
    nri_socket: Path
    cdi_dir: Path
    cgroup: str
    has_nri: bool = True
    """Without it ``nri_socket`` is never made: what a runtime costs by itself."""
    has_own_netns: bool = True
    """Else network namespaces of pods lie where all runtimes have them, in ``/var/run/netns``."""
    pod_subnet: str = POD_SUBNET

    def __post_init__(self) -> None:
        for path in (self.socket, self.ttrpc_socket, self.nri_socket):
            if not path.is_absolute() or len(bytes(path)) > UNIX_PATH_MAX_BYTES:
                raise ValueError(f"{path}: must be absolute and at most {UNIX_PATH_MAX_BYTES} bytes long")

    @property
    def volatile(self) -> Path:
        return self.work_dir / "v"

    @property
    def socket(self) -> Path:
        return self.volatile / "c.sock"

    @property
    def ttrpc_socket(self) -> Path:
        return self.volatile / "c.sock.ttrpc"

    @property
    def cni_config_dir(self) -> Path:
        return self.volatile / "cni"

    @property
    def cni_bin_dir(self) -> Path:
        """Links to the fetched network plugins."""
        return self.volatile / "cni-bin"

    @property
    def netns_dir(self) -> Path:
        """Where it mounts the network namespaces of pods."""
        state = self.volatile / "state" / "io.containerd.grpc.v1.cri"
        return state / "netns" if self.has_own_netns else Path("/var/run/netns")

    @property
    def config_file(self) -> Path:
        return self.work_dir / "containerd.toml"

    def read_oci_spec(self, container_id: str) -> str:
        """The OCI spec that runc got for a container."""
        tasks = self.volatile / "state" / "io.containerd.runtime.v2.task" / "k8s.io"
        return (tasks / container_id / "config.json").read_text(encoding="utf-8")

    @property
    def log_file(self) -> Path:
        """Kept after the end, for debugging."""
        return self.work_dir / "containerd.log"


def render_containerd_config(layout: Layout, version: str) -> str:
    """``containerd.toml`` for ``version``: format 2 for 1.x, format 3 from 2.0 on."""
    if int(version.partition(".")[0]) < 2:
        return _render_common(layout, 2) + _render_cri_v1(layout)
    return _render_common(layout, 3) + _render_cri_v2(layout)


def render_cni_conflist(layout: Layout) -> str:
    """A veth pair with one end in the testbed's namespace, like the primary network of a real pod."""
    ptp = {
        "type": "ptp",
        "ipam": {
            "type": "host-local",
            "dataDir": str(layout.volatile / "ipam"),
            "ranges": [[{"subnet": layout.pod_subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "testbed", "plugins": [ptp]}, indent=1)


def _render_common(layout: Layout, config_version: int) -> str:
    volatile = layout.volatile
    return f"""\
version = {config_version}
root = {_quote(volatile / "root")}
state = {_quote(volatile / "state")}

[grpc]
address = {_quote(layout.socket)}

[ttrpc]
address = {_quote(layout.ttrpc_socket)}

[debug]
level = "info"

[plugins."io.containerd.internal.v1.opt"]
path = {_quote(volatile / "opt")}

[plugins."io.containerd.nri.v1.nri"]
disable = {"false" if layout.has_nri else "true"}
socket_path = {_quote(layout.nri_socket)}
plugin_path = {_quote(volatile / "nri-plugins")}
plugin_config_path = {_quote(volatile / "nri-conf.d")}
"""


# Without CAP_SYS_RESOURCE (many CI machines) runc cannot lower oom_score_adj and reports only that its child
# is gone: hence restrict_oom_score_adj.
_RUNTIME_SWITCHES = """\
disable_apparmor = true
disable_hugetlb_controller = true
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
enable_cdi = true
"""


def _render_cri_v1(layout: Layout) -> str:
    cri = "io.containerd.grpc.v1.cri"
    return f"""
[plugins."{cri}"]
sandbox_image = "{PAUSE_IMAGE}"
{_RUNTIME_SWITCHES}{_render_netns(layout)}cdi_spec_dirs = [{_quote(layout.cdi_dir)}]

[plugins."{cri}".cni]
bin_dir = {_quote(layout.cni_bin_dir)}
conf_dir = {_quote(layout.cni_config_dir)}
{_render_runc(cri, layout)}"""


def _render_cri_v2(layout: Layout) -> str:
    cri = "io.containerd.cri.v1.runtime"
    return f"""
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."{cri}"]
{_RUNTIME_SWITCHES}{_render_netns(layout)}cdi_spec_dirs = [{_quote(layout.cdi_dir)}]

[plugins."{cri}".cni]
bin_dirs = [{_quote(layout.cni_bin_dir)}]
conf_dir = {_quote(layout.cni_config_dir)}
{_render_runc(cri, layout)}"""


def _render_netns(layout: Layout) -> str:
    return f"netns_mounts_under_state_dir = {'true' if layout.has_own_netns else 'false'}\n"


def _render_runc(cri: str, layout: Layout) -> str:
    return f"""
[plugins."{cri}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."{cri}".containerd.runtimes.runc.options]
BinaryName = {_quote(layout.bin_dir / "runc")}
Root = {_quote(layout.volatile / "runc")}
SystemdCgroup = false
"""


def _quote(path: Path) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's."""
    return json.dumps(str(path))
