"""A CNI plugin of the suite's own, chained behind the runtime's network plugin.

* It holds the sandboxes of pods while a file exists, as a slow network plugin would. The runtime runs it
  after the kubelet has had the pod's claims prepared and before it calls the NRI hook of RunPodSandbox.
* At a pod's end it returns NICs that the driver has not returned. The kernel does this for physical
  NICs when the network namespace dies; the ends of veth pairs, which are the lane's NICs, would die with it.

Pods on the host's network, the driver's among them, have no CNI.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

from testbed.containerd.config import Layout
from testbed.node.fabric import PORT_INDEXES

_NAME = "dranet-e2e"
_PROGRAM = """\
#!{python} -SE
import fcntl, json, os, sys, time

config = json.load(sys.stdin)
if os.environ["CNI_COMMAND"] == "ADD":
    while os.path.exists(config["file"]):
        time.sleep(0.02)
    json.dump(config["prevResult"], sys.stdout)
elif os.environ["CNI_COMMAND"] == "DEL" and os.path.exists(os.environ.get("CNI_NETNS", "")):
    sys.path[:0] = {paths!r}
    from testbed.node.fabric import reclaim

    with open(config["file"] + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel takes dying namespaces one by one
        reclaim(os.environ["CNI_NETNS"], range({first}, {end}))
"""
"""Source: the CNI specification, 1.0.0: a chained plugin passes the result of the one before it on."""


class CniPlugin:
    """Made ready by :meth:`install`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._file = layout.volatile / "hold-sandboxes"

    def install(self) -> None:
        program = self._layout.cni_bin_dir / _NAME
        paths = [str(Path(__file__).parents[2]), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        program.write_text(
            _PROGRAM.format(
                python=sys.executable,
                paths=paths,
                first=PORT_INDEXES.start,
                end=PORT_INDEXES.stop,
            )
        )
        program.chmod(0o755)
        (conflist,) = self._layout.cni_config_dir.glob("*.conflist")
        config = json.loads(conflist.read_text())
        config["plugins"].append({"type": _NAME, "file": str(self._file)})
        _replace(conflist, json.dumps(config, indent=1))

    def hold(self, hold: bool) -> None:
        if hold:
            self._file.touch()
        else:
            self._file.unlink(missing_ok=True)


def _replace(file: Path, text: str) -> None:
    """In one step: the runtime watches the folder and must not read half a file."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)
