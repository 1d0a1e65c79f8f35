"""``promtool`` and ``prometheus`` of the distribution: Prometheus' own word on what is exposed and generated.

The tool judges what the driver exposes (``promtool check metrics``), and rules and alerts; the server scrapes
a driver of the testbed.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.debian.packages import Report
from testbed.debian.program import Program

_SUITE = "trixie"
"""Of Debian, whatever release the machine runs: the linter of an older one knows fewer rules."""

PROMTOOL = Program("promtool", (("promtool", _SUITE), ("prometheus", "")))
"""The tool has a package of its own since Debian 13; until then it came with the server."""
PROMETHEUS = Program("prometheus", (("prometheus", _SUITE), ("prometheus", "")))


@dataclass(frozen=True, slots=True)
class Promtool:
    """The program in a folder of its own."""

    program: Path
    version: str

    def check_metrics(self, text: str) -> tuple[str, ...]:
        """What is wrong with an exposition, one complaint a line; nothing is the best."""
        done = self.run("check", "metrics", text=text)
        return tuple(line for line in (done.stderr + done.stdout).splitlines() if line.strip())

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Any of its commands. The exit code is left to the caller."""
        command = [str(self.program), *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=180, check=False)


def find_promtool(cache_dir: Path) -> Promtool | None:
    """One that was fetched before; needs no network."""
    program = PROMTOOL.find(cache_dir)
    return Promtool(program, program.parent.name) if program else None


def fetch_promtool(cache_dir: Path, report: Report) -> Promtool:
    """The cached one, or fetch and unpack it, as :meth:`Program.fetch`."""
    program = PROMTOOL.fetch(cache_dir, report)
    return Promtool(program, program.parent.name)


def find_prometheus(cache_dir: Path) -> Path | None:
    """The server that was fetched before; needs no network."""
    return PROMETHEUS.find(cache_dir)


def fetch_prometheus(cache_dir: Path, report: Report) -> Path:
    """The server (17 MB to download), as :meth:`Program.fetch`."""
    return PROMETHEUS.fetch(cache_dir, report)
