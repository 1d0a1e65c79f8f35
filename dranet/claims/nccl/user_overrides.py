"""Files for NCCL, RCCL and UCX that a container brings itself, as far as its mounts show: images are opaque.

NCCL reads ``~/.nccl.conf`` and ``/etc/nccl.conf``, RCCL files called ``rccl`` there (``param.cc``). Where no
topology is named both look for the one that a cloud may give to its machines (``topo.cc``). UCX reads a
``ucx.conf`` in several folders (``src/ucs/config/parser.c``).
"""

from __future__ import annotations

from collections.abc import Iterable
from posixpath import basename, normpath

from dranet.model.sandbox import Mount
from dranet.model.workload import FOLDER

VIRTUAL_TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
_CONFIGS = frozenset({"/etc/nccl.conf", "/etc/rccl.conf"})
_HOME_CONFIGS = frozenset({".nccl.conf", ".rccl.conf"})
_UCX_CONFIG = "ucx.conf"


def has_config(mounts: Iterable[Mount]) -> bool:
    """Whether one of them is a config file of NCCL's or RCCL's."""
    places = {_place(mount) for mount in mounts}
    return not places.isdisjoint(_CONFIGS) or any(basename(place) in _HOME_CONFIGS for place in places)


def has_ucx_config(mounts: Iterable[Mount]) -> bool:
    """Whether one of them is a config file of UCX'."""
    return any(basename(_place(mount)) == _UCX_CONFIG for mount in mounts)


def has_topology(mounts: Iterable[Mount]) -> bool:
    """Whether one of them is a topology where NCCL looks for one, or the folder of it."""
    wanted = _resolve(VIRTUAL_TOPOLOGY)
    return any(_place(mount) in (wanted, wanted.rpartition("/")[0]) for mount in mounts)


def has_other(mounts: Iterable[Mount], source: str) -> bool:
    """Whether something else than this source is mounted at the place of the driver's files."""
    wanted = _resolve(FOLDER)
    return any(_place(mount) == wanted and mount.source != source for mount in mounts)


def _place(mount: Mount) -> str:
    return _resolve(mount.destination)


def _resolve(path: str) -> str:
    """``/var/run`` is a link to ``/run``, but in old images."""
    path = normpath("/" + path.lstrip("/"))
    return path.removeprefix("/var") if path.startswith("/var/run/") else path
