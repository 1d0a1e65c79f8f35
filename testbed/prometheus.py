"""A real Prometheus alongside the testbed: scrapes a driver each second, and evaluates rules as often.

Talks HTTP with it, on loopback. Knows nothing of what is scraped.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.debian.packages import Report
from testbed.debian.program import Program

JsonObject = dict[str, Any]

PORT = 9090
_START_SECONDS = 30.0
_PAUSE_SECONDS = 0.05


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def get(self, path: str, **arguments: str) -> Any:
        """``data`` of an answer of its HTTP API, as ``query``. Raises OSError where it refuses."""
        query = urllib.parse.urlencode(arguments)
        return await asyncio.to_thread(_fetch, f"{self._url}/api/v1/{path}?{query}")

    async def query(self, expr: str) -> list[JsonObject]:
        """The samples of an expression now: ``metric`` and ``value``."""
        found: list[JsonObject] = (await self.get("query", query=expr))["result"]
        return found

    async def list_alerts(self, state: str = "firing") -> list[Mapping[str, str]]:
        """The labels of those that fire, or are ``pending``."""
        alerts = (await self.get("alerts"))["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == state]


@asynccontextmanager
async def run_prometheus(
    program: Path, folder: Path, scrape: Sequence[JsonObject], rules: JsonObject
) -> AsyncIterator[Prometheus]:
    """With these scrape configs and rules; ``folder`` is for its files and must be there.

    Raises:
        TimeoutError: it did not come up; its log is in the folder.
    """
    (folder / "rules.json").write_text(json.dumps(rules))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.json")],
        "scrape_configs": list(scrape),
    }
    (folder / "prometheus.json").write_text(json.dumps(config))
    with (folder / "prometheus.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            str(program),
            f"--config.file={folder / 'prometheus.json'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{PORT}",
            stdout=log,
            stderr=log,
        )
        try:
            server = Prometheus(f"http://127.0.0.1:{PORT}")
            await _wait_ready(server)
            yield server
        finally:
            process.kill()
            await process.wait()


async def _wait_ready(server: Prometheus) -> None:
    async with asyncio.timeout(_START_SECONDS):
        while True:
            try:
                await server.get("status/runtimeinfo")
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return


def _fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
        return json.load(answer)["data"]


_SUITE = "trixie"
"""The Debian suite, whatever release the machine runs: the linter of an older one knows fewer rules."""

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
