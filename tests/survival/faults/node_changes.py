"""What stories do to a node: namespaces that end, NICs that the system sets up again, uevents."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from testbed.node.hardware import PlacedNic
from testbed.node.iproute import run_batch
from testbed.runtime.contract import RunningSandbox
from testbed.runtime.pod_netns import held_netns
from tests.survival.environment import Stage

_NETLINK_KOBJECT_UEVENT = 15
_UEVENT_MESSAGE = 0x10
_NLM_F_REQUEST = 1


def get_sandbox(stage: Stage, pod: str) -> RunningSandbox:
    sandbox = stage.testbed.sandbox(pod)
    assert sandbox is not None
    return sandbox


async def end_namespace(stage: Stage, pod: str) -> None:
    """Everything in it dies, its name goes, and with the last reference the namespace. The kernel sends its
    physical NICs home."""
    path = Path(get_sandbox(stage, pod).netns_path)
    with held_netns(path) as held:
        assert held is not None
        await asyncio.to_thread(_kill_all_in, held)
        await unpin_namespace(path)
        await asyncio.to_thread(stage.testbed.node.reclaim, held)


async def unpin_namespace(path: Path) -> None:
    """Its name goes; whoever is in it, or holds it, stays. A runtime that sees its pod's end may be first."""
    unmount = ["umount", "--lazy", str(path)]
    await asyncio.to_thread(subprocess.run, unmount, check=False, stderr=subprocess.DEVNULL)
    await asyncio.to_thread(path.unlink, missing_ok=True)  # refuses while something is mounted there


def _kill_all_in(netns_path: str) -> None:
    for pid in _processes_in(Path(netns_path).stat().st_ino):
        with suppress(ProcessLookupError):  # one may take others with it
            os.kill(pid, signal.SIGKILL)


def _processes_in(netns_number: int) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if (folder / "ns/net").stat().st_ino == netns_number:
                yield int(folder.name)


def set_up_again(nic: PlacedNic, name: str) -> None:
    """What the node's own configuration does to a NIC that appears: its name, MTU, address and routes."""
    ifname, network = nic.nic.ifname, nic.network
    gateway = network.gateway.ip
    run_batch(
        [
            f"link set {name} name {ifname} mtu {network.mtu}",
            f"address add {nic.nic.address} broadcast + dev {ifname}",
            f"link set {ifname} up",
            *(
                f"route add {route.to} via {gateway} dev {ifname} proto static metric {route.metric}"
                for route in network.routes
            ),
        ]
    )


def send_uevent(action: str, device_path: str, subsystem: str) -> None:
    """As the kernel tells of a device, to this network namespace: ``NETLINK_KOBJECT_UEVENT`` takes a message
    of who may administer it, adds its number and passes it on (``lib/kobject_uevent.c``)."""
    fields = {"ACTION": action, "DEVPATH": device_path, "SUBSYSTEM": subsystem}
    text = f"{action}@{device_path}\0" + "".join(f"{key}={value}\0" for key, value in fields.items())
    payload = text.encode()
    header = struct.pack("=IHHII", 16 + len(payload), _UEVENT_MESSAGE, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_KOBJECT_UEVENT) as kernel:
        kernel.sendto(header + payload, (0, 0))
