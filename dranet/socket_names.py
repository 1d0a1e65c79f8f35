"""Names of the sockets that the kubelet meets: a pair for each instance of the driver, short enough to bind.

Two instances on one node, as in a rolling update, must not meet at one path, so names are made from the pod's
UID. A UNIX socket's path has a limit: a hash stands for what does not fit.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

UNIX_PATH_MAX_BYTES = 107
"""``sockaddr_un`` holds 108 bytes including the terminating zero (``unix(7)``)."""

_UID_HASH_BYTES = 8
_DRIVER_AND_UID_HASH_BYTES = 16


def fits(path: Path) -> bool:
    """Whether a UNIX socket can have this path."""
    return len(os.fsencode(path)) <= UNIX_PATH_MAX_BYTES


def registration_socket(registry: Path, driver_name: str, pod_uid: str = "") -> Path:
    """The path in the kubelet's ``plugins_registry``; without a UID the one of the only instance. The last
    form is as short as a unique name can be, and is returned, for a message, even if it does not fit."""
    if not pod_uid:
        return registry / f"{driver_name}-reg.sock"
    uid_hash = _hash(pod_uid, _UID_HASH_BYTES)
    both_hash = _hash(f"{driver_name}\0{pod_uid}", _DRIVER_AND_UID_HASH_BYTES)
    names = f"{driver_name}-{pod_uid}", f"{driver_name}-{uid_hash}", f"dra-{both_hash}"
    paths = [registry / f"{name}-reg.sock" for name in names]
    return next(filter(fits, paths), paths[-1])


def dra_socket(plugin_dir: Path, pod_uid: str = "") -> Path:
    """The path in the driver's own folder, as :func:`registration_socket`."""
    if not pod_uid:
        return plugin_dir / "dra.sock"
    uid_hash = _hash(pod_uid, _UID_HASH_BYTES)
    names = f"dra-{pod_uid}", f"dra-{uid_hash}", uid_hash  # the last for driver names of 62 and 63 characters
    paths = [plugin_dir / f"{name}.sock" for name in names]
    return next(filter(fits, paths), paths[-1])


def _hash(text: str, size: int) -> str:
    """So many bytes of the SHA-256, in letters that a file name may have."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()
