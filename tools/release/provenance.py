"""What a release was made of, and by what: an in-toto statement with SLSA's provenance; and the checksums.

The statement is not signed here. The release workflow has its own signed by the workflow's identity.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tools.image.debian import LOCK_FILE, hash_file
from tools.image.wheels import REQUIREMENTS
from tools.project import REPOSITORY, Project

CHECKSUMS = "SHA256SUMS"
_TOOLS = REPOSITORY / "requirements-dev.lock"
"""What builds, and what is in kubectl-dranet."""


def write_statement(files: Iterable[Path], project: Project, version: str, builder: str) -> str:
    """Return the statement about the files of a release. ``builder`` is the address of what built it."""
    source = f"git+{project.repository}"
    subjects = [{"name": file.name, "digest": {"sha256": hash_file(file)}} for file in files]
    locks = [
        {"uri": str(file.relative_to(REPOSITORY)), "digest": {"sha256": hash_file(file)}}
        for file in (LOCK_FILE, REQUIREMENTS, _TOOLS)
    ]
    commit = {"uri": f"{source}@refs/tags/v{version}", "digest": {"gitCommit": read_git("rev-parse", "HEAD")}}
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": project.page("docs/dev/releasing.md"),
                "externalParameters": {"source": source, "ref": f"refs/tags/v{version}"},
                "resolvedDependencies": [commit, *locks],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }
    return json.dumps(statement, indent=1) + "\n"


def write_checksums(files: Iterable[Path]) -> str:
    """Return them as ``sha256sum --check`` reads them."""
    return "".join(f"{hash_file(file)}  {file.name}\n" for file in files)


def read_git(*arguments: str) -> str:
    """Return what a command of git prints about this checkout."""
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.strip()
