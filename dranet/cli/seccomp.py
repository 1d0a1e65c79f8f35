"""``dranet seccomp``: the system calls that the driver makes, as a profile for the container runtime."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dranet import files
from dranet.errors import SettingsError

_FOLDER_MODE, _FILE_MODE = 0o755, 0o644
"""It holds no secret, and a runtime may read it as another user."""

_DESCRIPTION = """\
Print the seccomp profile of this version of the driver: the system calls that
it makes, and no others. With --write it is put into a folder, under a name with
a hash of its content (dranet-HASH.json), and the path is printed. Profiles of
other versions stay: a pod of theirs may still want to start.
"""

_EPILOG = """\
The DaemonSet's init container does it on each node:
dranet seccomp --write /var/lib/kubelet/seccomp
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "seccomp",
        help="print the driver's seccomp profile, or put it on the node",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", metavar="FOLDER", type=Path, help="put it there, as dranet-HASH.json")
    what.add_argument("--name", action="store_true", help="print only the name that the file has")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the profile, its name, or where it was written."""
    from dranet.security.seccomp import SECCOMP_NAME, render_seccomp_profile

    if options.name:
        print(SECCOMP_NAME)
    elif options.write is None:
        sys.stdout.write(render_seccomp_profile())
    else:
        print(write_profile(options.write, SECCOMP_NAME, render_seccomp_profile()))
    return 0


def write_profile(folder: Path, name: str, text: str) -> Path:
    """Put a profile into a folder; a runtime that reads meanwhile sees the whole of it or nothing.

    Raises:
        SettingsError: the disk refuses, or another file is in the way.
    """
    place, content = folder / name, text.encode()
    try:
        folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        if not files.is_file(place) or files.read_file(place, len(content) + 1) != content:
            files.replace_file(place, folder / f".{name}.new", content, _FILE_MODE, durable=True)
    except OSError as error:
        raise SettingsError(
            f"seccomp profile {place}: {error.strerror}",
            hint=files.hint_for(error, "mount the kubelet's folder seccomp there, writable"),
        ) from error
    return place
