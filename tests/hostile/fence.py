"""``python -m tests.hostile.fence FOLDER... -- PROGRAM...``: only the folders can be written there.

In a mount namespace of its own everything else is read-only, /proc excepted (sysctls of pods). Mounts that
come later, as those of pods' namespaces, still arrive. ``mount_setattr(2)``, ``mount_namespaces(7)``.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE, _MS_SHARED = 0x1000, 0x4000, 0x80000, 0x100000
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_RDONLY = 1
_ATTR = struct.Struct("=QQQQ")
"""``struct mount_attr``: set, clear, propagation, user namespace."""

_libc = ctypes.CDLL(None, use_errno=True)


def share_root() -> None:
    """So that mounts made here from now on are seen behind a fence, too."""
    _mount(None, "/", _MS_REC | _MS_SHARED)


def main() -> None:
    at = sys.argv.index("--")
    folders, program = sys.argv[1:at], sys.argv[at + 1 :]
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    _mount(None, "/", _MS_REC | _MS_SLAVE)
    for folder in folders:
        Path(folder).mkdir(mode=0o755, parents=True, exist_ok=True)
        _mount(folder, folder, _MS_BIND)
    _set("/", _RDONLY, 0)
    for folder in (*folders, "/proc"):
        _set(folder, 0, _RDONLY)
    os.execv(program[0], program)


def _mount(source: str | None, target: str, flags: int) -> None:
    encoded = source.encode() if source else None
    result = _libc.mount(encoded, target.encode(), None, ctypes.c_ulong(flags), None)
    _check(result, f"mount {target}")


def _set(target: str, wanted: int, unwanted: int) -> None:
    attributes = _ATTR.pack(wanted, unwanted, 0, 0)
    flags = _AT_RECURSIVE
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, target.encode(), flags, attributes, ctypes.c_size_t(_ATTR.size)
    )
    _check(result, f"mount_setattr {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
