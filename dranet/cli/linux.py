"""The commands that ask the kernel of a node end elsewhere with a sentence, before they load what only Linux
has."""

from __future__ import annotations

import sys

from dranet.errors import DranetError

_NAMES = {"darwin": "macOS", "win32": "Windows"}


def require_linux(command: str, remedy: str) -> None:
    """Raises DranetError on another system."""
    if sys.platform != "linux":
        system = _NAMES.get(sys.platform, sys.platform)
        raise DranetError(f"{command} looks at a Linux node, and this is {system}", hint=remedy)
