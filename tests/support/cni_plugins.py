"""CNI IPAM plugins for tests: those of the distribution, and stand-ins made from the specification."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
"""Debian's (``containernetworking-plugins``), and where clusters have them."""


def find_plugins(name: str) -> Path:
    """The folder that has this plugin; skips the test where none has."""
    for folder in FOLDERS:
        if (folder / name).is_file():
            return folder
    pytest.skip(f"needs the CNI plugin {name} (Debian package containernetworking-plugins)")


def write_plugin(folder: Path, name: str, script: str) -> Path:
    """A plugin as a shell script; returns its folder."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return folder


def read_host_local(data_dir: Path, network: str) -> dict[str, tuple[str, str]]:
    """By address what host-local has given: container id and interface."""
    folder = data_dir / network
    files = [file for file in folder.iterdir() if file.name[0].isdigit()] if folder.is_dir() else []
    return {file.name: _owner(file.read_text()) for file in files}


def _owner(text: str) -> tuple[str, str]:
    container_id, ifname = text.split()
    return container_id, ifname
