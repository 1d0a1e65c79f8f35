"""Build the site: ``python -m tools.site [FOLDER]``. ``--links`` looks up links to other sites instead."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from tools.project import REPOSITORY
from tools.site.pages import DOCS

FOLDER = REPOSITORY / "build/site"


def build(folder: Path, builder: str = "html", *options: str) -> int:
    """Return Sphinx's exit code: not 0 if there was a warning, which a broken link is."""
    own = ["--builder", builder, "--conf-dir", str(Path(__file__).parent), "--fresh-env", "--quiet"]
    strict = ["--fail-on-warning", "--keep-going"]
    return build_main([*own, *strict, "--doctree-dir", f"{folder}.cache", *options, str(DOCS), str(folder)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--links", action="store_true", help="look up the links that leave the site")
    arguments = parser.parse_args()
    code = build(arguments.folder, "linkcheck" if arguments.links else "html")
    if code == 0 and not arguments.links:
        print(f"open {arguments.folder / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
