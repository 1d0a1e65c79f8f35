"""``python -m tools.image``: build the image's root filesystem and archive, or update the lock of its
packages."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dranet import __version__
from testbed.debian.packages import PackagesUnavailable
from tools.image.base import host_architecture
from tools.image.build import DEFAULT_NAME, build_image
from tools.image.debian import (
    ARCHITECTURES,
    LOCK_FILE,
    ImageError,
    describe_changes,
    list_current,
    read_all,
    write_lock,
)


def main() -> int:
    options = _parse_arguments()
    try:
        return int(options.run(options))
    except (ImageError, PackagesUnavailable) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.image", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    rootfs = commands.add_parser(
        "rootfs",
        help="build the root filesystem and the archive",
        description="With LOCKED=1 in the environment the build fails if a locked package is not available; "
        "otherwise it uses the packages that the mirror serves now, and warns.",
    )
    rootfs.add_argument("--arch", choices=ARCHITECTURES, help="default: that of this machine")
    rootfs.add_argument("--output", type=Path, required=True, help="a folder, which is replaced")
    about = f"name of the image in the archive; default {DEFAULT_NAME}"
    rootfs.add_argument("--name", type=_read_name, default=DEFAULT_NAME, help=about)
    rootfs.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="additional label")
    rootfs.set_defaults(run=_build)
    lock = commands.add_parser("lock", help="lock the Debian packages that the mirror serves now")
    lock.set_defaults(run=_lock)
    return parser.parse_args()


def _read_name(text: str) -> str:
    """A name without a tag gets that of this version, by which the pods ask for it."""
    return text if ":" in text.rpartition("/")[2] else f"{text}:{__version__}"


def _build(options: argparse.Namespace) -> int:
    labels = dict(label.partition("=")[::2] for label in options.label)
    architecture = options.arch or host_architecture()
    strict = os.environ.get("LOCKED", "") not in ("", "0")
    image = build_image(architecture, options.output, name=options.name, labels=labels, strict=strict)
    print(f"root filesystem  {image.root}\narchive          {image.archive}")
    print(f"image            {image.name} ({architecture})\ndigest           {image.digest}")
    return 0


def _lock(_: argparse.Namespace) -> int:
    """Write the lock and print what has changed."""
    before = read_all() if LOCK_FILE.exists() else ()
    packages = [package for architecture in ARCHITECTURES for package in list_current(architecture)]
    write_lock(packages)
    changes = describe_changes(before, {(p.name, p.architecture): p.version for p in packages})
    print("\n".join(changes) or "nothing is newer than what was locked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
