"""What of DraNet runs in tests, unchanged: verified by the ``go.sum`` of ``module/``.

``main.go`` there is ours; it calls DraNet's webhook client. The provider is a Python script of DraNet's
repository, which is part of its Go module.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from e2e.access import LaneUnavailable
from e2e.cluster.build import find_go
from testbed.debian.packages import cache_folder

MODULE = Path(__file__).parent / "module"
PATH = "sigs.k8s.io/dranet"


def build_client() -> Path:
    """The program ``ask URL``, with DraNet's client: minutes for the first time, then a second.

    Raises:
        LaneUnavailable: there is no Go that is new enough, or its modules cannot be had here.
    """
    program = cache_folder("dranet") / "ask"
    program.parent.mkdir(parents=True, exist_ok=True)
    _run_go("build", "-o", str(program), ".")
    return program


def find_provider() -> Path:
    """The script of the provider in DraNet's end-to-end tests. Raises LaneUnavailable as above."""
    found = json.loads(_run_go("mod", "download", "-json", PATH))
    return Path(found["Dir"], "tests", "webhook.py")


def _run_go(*arguments: str) -> str:
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}
    done = subprocess.run(
        [find_go(), *arguments], cwd=MODULE, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = " | ".join((done.stderr or done.stdout).splitlines()[-3:])
        raise LaneUnavailable(f"go {arguments[0]} of {PATH} failed: {last}")
    return done.stdout
