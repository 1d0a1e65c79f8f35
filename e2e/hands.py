"""Acts on a node whose processes can be seen: this machine's, or a node that is a container here.

A pod's processes are found by its uid in their cgroups, as kubelet and runtime name them under either cgroup
driver; its network namespace is that of any of them. Talks to procfs through ordinary programs, which is the
same inside a container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from e2e.access import E2eFailed
from testbed.containerd.image import PAUSE_COMMAND
from testbed.node.iproute import read_text
from testbed.runtime.contract import RunningContainer

_FIND = "grep -lsE '{}' /proc/[0-9]*/cgroup | cut -d/ -f3"
_DEVICES = "find /proc/{0}/root/dev \\( -type c -o -type b \\) -exec stat -c '%n %t %T' {{}} +"
_ENVIRONMENT = "tr '\\0' '\\n' < /proc/{0}/environ"
_COMMAND = "tr '\\0' ' ' < /proc/{0}/cmdline"
_PAUSES = ("/pause", " ".join(PAUSE_COMMAND))
"""What a pod's sandbox runs: the image of most clusters, and the testbed's."""


class ProcHands:
    """``before`` is put before every command: ``docker exec NODE``, or nothing."""

    def __init__(self, before: Sequence[str] = ()) -> None:
        self._before = tuple(before)

    async def run(self, *command: str) -> str:
        return await asyncio.to_thread(read_text, *self._before, *command)

    async def find_netns(self, pod_uid: str) -> str:
        for pid in await self._find_processes(pod_uid):
            return f"/proc/{pid}/ns/net"
        return ""

    async def inspect_container(self, pod_uid: str) -> RunningContainer | None:
        for pid, command in (await self._find_commands(pod_uid)).items():
            if command not in _PAUSES:
                devices = await self._shell(_DEVICES.format(pid))
                environment = await self._shell(_ENVIRONMENT.format(pid))
                pairs = (line.partition("=") for line in environment.splitlines() if "=" in line)
                return RunningContainer(
                    id=pid,
                    name="main",
                    devices=parse_devices(devices, f"/proc/{pid}/root"),
                    env={key: value for key, _, value in pairs},
                )
        return None

    async def kill_driver(self, pod_uid: str) -> None:
        commands = await self._find_commands(pod_uid)
        pids = [pid for pid, command in commands.items() if "dranet" in command]
        if not pids:
            raise E2eFailed(
                f"pod {pod_uid} has no driver process on the node; it has {list(commands.values())}"
            )
        await self.run("kill", "-KILL", *pids)

    async def _find_processes(self, pod_uid: str) -> list[str]:
        """Pids, the oldest first. systemd's cgroups have the uid with underscores."""
        found = await self._shell(_FIND.format(pod_uid.replace("-", "[-_]")) + " || true")
        return sorted(found.split(), key=int)

    async def _find_commands(self, pod_uid: str) -> dict[str, str]:
        pids = await self._find_processes(pod_uid)
        return {pid: (await self._shell(_COMMAND.format(pid) + " || true")).strip() for pid in pids}

    async def _shell(self, script: str) -> str:
        return await self.run("sh", "-c", script)


def parse_devices(text: str, root: str) -> dict[str, str]:
    """Path -> ``major:minor`` out of stat's hexadecimal numbers."""
    rows = (line.rsplit(" ", 2) for line in text.splitlines() if line)
    return {path.removeprefix(root): f"{int(major, 16)}:{int(minor, 16)}" for path, major, minor in rows}
