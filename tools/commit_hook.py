"""Put the commit that a wheel is built from into it, for ``dranet version``. Hatch loads this module
(pyproject.toml)."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Nothing for an editable installation, which asks git, nor outside of a checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        commit = _read_commit(self.root) if version == "standard" else ""
        if commit:
            with tempfile.NamedTemporaryFile("w", prefix="commit-", delete=False) as file:
                file.write(f"{commit}\n")
            self.file = Path(file.name)
            self.file.chmod(0o644)
            build_data["force_include"][file.name] = "dranet/COMMIT"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        if hasattr(self, "file"):
            self.file.unlink()


def _read_commit(checkout: str) -> str:
    if not Path(checkout, ".git").exists():
        return ""
    done = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""
