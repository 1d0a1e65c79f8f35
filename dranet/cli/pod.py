"""What the driver's pod runs in addition to ``dranet run``, in an image that has no other programs.

``dranet ready`` is for its readiness probe: is the driver of this very pod ready? ``dranet seccomp`` is for
its init container: the system calls that the driver makes, as a profile for the container runtime.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

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
    ready = commands.add_parser(
        "ready",
        description="Exit with 0 while the driver of this pod is ready, and with 1 while it is not: for a "
        "readiness probe, which an HTTP probe cannot be while two instances overlap.",
    )
    ready.add_argument("file", metavar="FILE", type=Path, help="the driver's --ready-file")
    ready.set_defaults(run=_run_ready)
    seccomp = commands.add_parser(
        "seccomp",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = seccomp.add_mutually_exclusive_group()
    what.add_argument("--write", metavar="FOLDER", type=Path, help="put it there, as dranet-HASH.json")
    what.add_argument("--name", action="store_true", help="print only the name that the file has")
    seccomp.set_defaults(run=_run_seccomp)


def _run_ready(options: argparse.Namespace) -> int:
    """The kubelet shows what is printed."""
    if options.file.exists():
        return 0
    print(f"not ready: {options.file} does not exist; /readyz and the log have the reason", file=sys.stderr)
    return 1


def _run_seccomp(options: argparse.Namespace) -> int:
    from dranet.security.seccomp import SECCOMP_NAME, render_seccomp_profile

    if options.name:
        print(SECCOMP_NAME)
    elif options.write is None:
        sys.stdout.write(render_seccomp_profile())
    else:
        print(write_profile(options.write, SECCOMP_NAME, render_seccomp_profile()))
    return 0


def write_profile(folder: Path, name: str, text: str) -> Path:
    """A runtime that reads meanwhile sees the whole profile or nothing. Raises SettingsError where the disk
    refuses, or another file is in the way."""
    from dranet import files  # not for a probe that starts every few seconds

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
