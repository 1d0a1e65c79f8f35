"""What the kernel and the distribution's own tools say of this machine, read without any code of ours."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until

SYS_PCI = Path("/sys/bus/pci/devices")


def run(*command: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def ip(*arguments: str) -> list[dict[str, Any]]:
    """``ip -json -details`` in this namespace."""
    entries: list[dict[str, Any]] = json.loads(run("ip", "-json", "-details", *arguments) or "[]")
    return [entry for entry in entries if entry]


def ip_lines(text: str) -> None:
    """``ip -batch``: many commands for the price of one process; none for nothing."""
    if not text:
        return
    done = subprocess.run(["ip", "-batch", "-"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def rdma(*arguments: str) -> list[dict[str, Any]]:
    """``rdma -j -d``."""
    entries: list[dict[str, Any]] = json.loads(run("rdma", "-j", "-d", *arguments) or "[]")
    return entries


@cache
def lspci() -> dict[str, dict[str, str]]:
    """Address -> fields of ``lspci -vmmnnkD`` (``Class``, ``Vendor``, ``Driver``, ``NUMANode``)."""
    records = run("lspci", "-vmmnnkD").strip().split("\n\n")
    parsed = [dict(line.split(":\t", 1) for line in record.splitlines()) for record in records]
    return {record["Slot"]: record for record in parsed}


def ethtool_driver(ifname: str) -> dict[str, str]:
    """The fields of ``ethtool -i``: ``driver``, ``bus-info``, ``firmware-version``."""
    lines = (line.partition(": ") for line in run("ethtool", "-i", ifname).splitlines())
    return {name: value.strip() for name, _, value in lines}


def attribute(address: str, name: str) -> str:
    """One sysfs attribute of a PCI function; empty where it has none."""
    try:
        return (SYS_PCI / address / name).read_text().strip()
    except OSError:
        return ""


def raise_links() -> list[dict[str, Any]]:
    """Every interface up, as the machine's script left them; returns what was shown before."""
    entries = ip("link", "show")
    down = [entry["ifname"] for entry in entries if "UP" not in entry["flags"]]
    ip_lines("".join(f"link set {name} up\n" for name in down))
    return entries


def settle() -> None:
    """Every interface up and with a carrier, which comes seconds later, on virtual functions ten."""
    wait_until(
        lambda: all("LOWER_UP" in entry["flags"] for entry in raise_links()),
        "every interface has a carrier",
        60,
    )


def link_name(address: str, name: str) -> str:
    """Where a symbolic link of a PCI function points: the last part; empty without one."""
    place = SYS_PCI / address / name
    return place.readlink().name if place.is_symlink() else ""


def home(address: str) -> tuple[str, ...]:
    """``pci0000:20``, then every function on the way down to this one."""
    parts = Path(os.path.realpath(SYS_PCI / address)).parts
    return parts[3:]  # after "/", "sys", "devices"


def ifname(address: str) -> str:
    """The interface of a PCI function, also through virtio; empty without one in this namespace."""
    folders = [*(SYS_PCI / address).glob("net/*"), *(SYS_PCI / address).glob("virtio*/net/*")]
    return folders[0].name if folders else ""


def rdma_names(address: str) -> list[str]:
    return sorted(path.name for path in (SYS_PCI / address).glob("infiniband/*"))
