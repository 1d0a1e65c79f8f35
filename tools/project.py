"""Where the project lives: ``Repository`` in ``[project.urls]`` of ``pyproject.toml``. Every other address
follows from it, in this module.

``python -m tools.project https://github.com/OWNER/NAME`` moves the project: it writes the new address into
each file that has the old one. ``make docs`` then writes the files that are generated.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dranet import __version__

REPOSITORY = Path(__file__).parents[1]

_ADDRESS = re.compile(r"https://[a-z0-9.-]+(/[A-Za-z0-9_.-]+){2}")
_RESERVED = re.compile(r"(^|\.)(example|example\.(com|net|org)|invalid|test|localhost)$")
"""Host names that are reserved, so that they have no owner (RFC 2606)."""


class ProjectError(Exception):
    """The address of the project cannot be used; the text gives the reason and a fix."""


@dataclass(frozen=True, slots=True)
class Project:
    """Addresses of the project. ``repository`` is that of its source, as GitHub lays it out."""

    repository: str

    @property
    def is_placeholder(self) -> bool:
        """Whether the project has no public home yet."""
        return _RESERVED.search(urlsplit(self.repository).hostname or "") is not None

    @property
    def issues(self) -> str:
        return f"{self.repository}/issues"

    @property
    def security(self) -> str:
        """Where a vulnerability is reported privately."""
        return f"{self.repository}/security/advisories/new"

    @property
    def releases(self) -> str:
        return f"{self.repository}/releases"

    def page(self, path: str) -> str:
        """Return the address of a file of this version."""
        return f"{self.repository}/blob/v{__version__}/{path}"

    def raw(self, path: str) -> str:
        """Return the address of a file's content, as of the main branch."""
        return f"{self.repository}/raw/main/{path}"

    def download(self, name: str) -> str:
        """Return the address of a file of this release."""
        return f"{self.releases}/download/v{__version__}/{name}"

    @property
    def registry(self) -> str:
        """The registry of images, and the name of the owner in it."""
        parts = urlsplit(self.repository)
        host = "ghcr.io" if parts.hostname == "github.com" else f"registry.{parts.hostname}"
        return f"{host}/{parts.path.split('/')[1].lower()}"

    @property
    def image(self) -> str:
        """The driver's image, without a tag."""
        return f"{self.registry}/dranet"

    @property
    def charts(self) -> str:
        """Where charts are pushed to; the name of the chart follows."""
        return f"oci://{self.registry}/charts"

    @property
    def urls(self) -> Mapping[str, str]:
        """``[project.urls]``: the labels that PyPI knows."""
        return {
            "Repository": self.repository,
            "Documentation": self.page("docs/README.md"),
            "Issues": self.issues,
            "Changelog": self.page("CHANGELOG.md"),
            "Releases": self.releases,
        }


def read_project(folder: Path = REPOSITORY) -> Project:
    """Return the project of ``pyproject.toml``."""
    urls = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["urls"]
    return Project(urls["Repository"])


def write_urls(text: str, project: Project) -> str:
    """Return the text of ``pyproject.toml`` with ``[project.urls]`` as the project's address has it."""
    lines = "".join(f'{name} = "{url}"\n' for name, url in project.urls.items())
    return re.sub(r"(?<=\[project\.urls\]\n)(?:\w+ = .*\n)+", lines, text)


def move(address: str, folder: Path = REPOSITORY) -> list[str]:
    """Write a new address of the project into each file that has the old one, and return their names.

    Raises:
        ProjectError: it is no address of a repository.
    """
    if _ADDRESS.fullmatch(address) is None:
        raise ProjectError(f"{address}: not the address of a repository: write https://HOST/OWNER/NAME")
    old, new = read_project(folder), Project(address)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=folder, capture_output=True, text=True, check=True)
    changed = []
    for name in filter(None, listed.stdout.split("\0")):
        if name.startswith(("tests/", "CHANGELOG")) or not (folder / name).is_file():
            continue
        before = (folder / name).read_bytes()
        after = before
        for one in ("repository", "registry"):
            after = after.replace(getattr(old, one).encode(), getattr(new, one).encode())
        if after != before:
            (folder / name).write_bytes(after)
            changed.append(name)
    return changed


if __name__ == "__main__":
    try:
        names = move(sys.argv[1])
    except (ProjectError, IndexError) as error:
        sys.exit(f"project: {error}")
    sys.stdout.write("".join(f"{name}\n" for name in names) + "run `make docs` for what is generated\n")
