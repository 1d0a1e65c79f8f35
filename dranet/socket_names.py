"""Names of the sockets that the kubelet meets: a pair for each instance of the driver, short enough to bind.

Two instances on one node, as in a rolling update, must not meet at one path: each has names of its own, made
from its pod's UID. A UNIX socket's path has a limit, so a hash stands for what does not fit; the name is the
first whose full path fits. Pure: the check of the settings and the code that binds ask for the same paths.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

UNIX_PATH_MAX_BYTES = 107
"""``sockaddr_un`` holds 108 bytes including the terminating zero (``unix(7)``)."""

_UID_HASH_BYTES = 8
_DRIVER_AND_UID_HASH_BYTES = 16


def fits(path: Path) -> bool:
    """Whether a UNIX socket can have this path."""
    return len(os.fsencode(path)) <= UNIX_PATH_MAX_BYTES


def registration_socket(registry: Path, driver_name: str, pod_uid: str = "") -> Path:
    """The path in the kubelet's ``plugins_registry``; without a UID the one of the only instance.

    The last form is as short as a unique name can be; where not even that fits, it is returned all the same,
    for a message.
    """
    if not pod_uid:
        return registry / f"{driver_name}-reg.sock"
    uid_hash = _hash(pod_uid, _UID_HASH_BYTES)
    both_hash = _hash(f"{driver_name}\0{pod_uid}", _DRIVER_AND_UID_HASH_BYTES)
    names = f"{driver_name}-{pod_uid}", f"{driver_name}-{uid_hash}", f"dra-{both_hash}"
    return _first_that_fits(registry / f"{name}-reg.sock" for name in names)


def dra_socket(plugin_dir: Path, pod_uid: str = "") -> Path:
    """The path in the driver's own folder, as :func:`registration_socket`."""
    if not pod_uid:
        return plugin_dir / "dra.sock"
    uid_hash = _hash(pod_uid, _UID_HASH_BYTES)
    names = f"dra-{pod_uid}", f"dra-{uid_hash}", uid_hash  # the last for driver names of 62 and 63 characters
    return _first_that_fits(plugin_dir / f"{name}.sock" for name in names)


def _first_that_fits(paths: Iterable[Path]) -> Path:
    for path in paths:
        if fits(path):
            break
    return path


def _hash(text: str, size: int) -> str:
    """So many bytes of the SHA-256, in letters that a file name may have."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()
