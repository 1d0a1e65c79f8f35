"""An etcd: the one next to Kubernetes' programs, or the distribution's, fetched without installing it."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

from e2e.cluster.config import ETCD_URL
from testbed.debian.program import Program

_ETCD = Program("etcd", (("etcd-server", "trixie"), ("etcd-server", "")))
"""Kubernetes wants one of 3.5 or newer."""


def find_etcd(folder: Path) -> Path:
    """The folder's own, a cached one, or a fetched one.

    Raises:
        PackagesUnavailable: etcd is missing and cannot be fetched.
    """
    own = folder / "etcd"
    return own if own.exists() else _ETCD.fetch()


async def check_health() -> str:
    """What etcd's own health check does not like; empty when it is well."""
    text = await asyncio.to_thread(_read, f"{ETCD_URL}/health")
    return "" if json.loads(text).get("health") == "true" else text


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 -- our own loopback address
        return str(answer.read().decode())
