"""Real TCP between two network namespaces: how much passes, how long a round trip takes, and over what.

Each end is a child process that enters its namespace by path and binds its socket to the NIC's address.
Both read the interface's own byte counters before and after, so that a result also shows whether the bytes
crossed the NIC in question. The figures are those of veth pairs on this machine, not of any hardware.

    python -m testbed.traffic server '{"netns_path": ...}'      the children's own entry
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dranet.errors import KernelError
from dranet.kernel.namespaces.netns import NetworkNamespace

_CHUNK_BYTES = 256 * 1024
_MESSAGE_BYTES = 64
_WARM_UP_ROUND_TRIPS = 50


class TrafficFailed(KernelError):
    """An end could not connect, or broke off; the text is the child's own."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end: a network namespace by path, and the interface and address in it to use."""

    netns_path: str
    ifname: str
    address: str


@dataclass(frozen=True, slots=True)
class TrafficResult:
    """What passed from client to server, and the round trips after it."""

    bytes_received: int
    seconds: float
    round_trips: int
    median_microseconds: float
    p99_microseconds: float
    client_sent_bytes: int
    """Growth of the client interface's transmit counter over the whole run."""
    server_received_bytes: int
    """Growth of the server interface's receive counter over the whole run."""

    @property
    def bits_per_second(self) -> float:
        return self.bytes_received * 8 / self.seconds

    @property
    def crossed_the_interfaces(self) -> bool:
        """Whether both interfaces' counters grew by at least what was transferred."""
        return min(self.client_sent_bytes, self.server_received_bytes) >= self.bytes_received


async def measure_traffic(
    client: Endpoint,
    server: Endpoint,
    *,
    seconds: float = 1.0,
    round_trips: int = 2000,
    deadline_seconds: float = 15.0,
) -> TrafficResult:
    """Send for ``seconds`` from client to server, then ping-pong ``round_trips`` messages of 64 bytes.

    Raises:
        TrafficFailed: no connection, broken off, or not done within ``deadline_seconds``.
    """
    async with _child("server", server, deadline_seconds) as listening:
        port = (await _answer(listening, "server"))["port"]
        peer = {"peer": server.address, "port": port, "seconds": seconds, "round_trips": round_trips}
        async with _child("client", client, deadline_seconds, peer) as sending:
            sent = await _answer(sending, "client")
            received = await _answer(listening, "server")
    return TrafficResult(**sent, **received)


@asynccontextmanager
async def _child(
    role: str, endpoint: Endpoint, deadline_seconds: float, more: Mapping[str, Any] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A child of this module; awaited at the end, killed first when the block fails."""
    request = {**asdict(endpoint), "deadline_seconds": deadline_seconds, **(more or {})}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        role,
        json.dumps(request),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        raise
    finally:
        await process.wait()


async def _answer(process: asyncio.subprocess.Process, role: str) -> dict[str, Any]:
    """One JSON line of a child; its alarm bounds the wait."""
    assert process.stdout is not None
    assert process.stderr is not None
    line = await process.stdout.readline()
    if line:
        answer: dict[str, Any] = json.loads(line)
        return answer
    words = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
    code = await process.wait()
    late = "not done within the deadline" if code == -signal.SIGALRM else f"exit code {code}"
    raise TrafficFailed(f"traffic {role}: {words[-1] if words else late}")


# What follows runs in the children.


def _serve(request: Mapping[str, Any]) -> None:
    listener = socket.create_server((request["address"], 0))
    before = _read_counter(request["ifname"], _RECEIVED)
    _print({"port": listener.getsockname()[1]})
    with listener:
        with listener.accept()[0] as connection:
            received, seconds = _swallow(connection)
        with listener.accept()[0] as connection:
            _echo(connection)
    after = _read_counter(request["ifname"], _RECEIVED)
    _print({"bytes_received": received, "seconds": seconds, "server_received_bytes": after - before})


def _connect(request: Mapping[str, Any]) -> socket.socket:
    connection = socket.create_connection(
        (request["peer"], request["port"]),
        timeout=request["deadline_seconds"],
        source_address=(request["address"], 0),
    )
    connection.settimeout(None)
    return connection


def _send(request: Mapping[str, Any]) -> None:
    before = _read_counter(request["ifname"], _SENT)
    with _connect(request) as connection:
        _flood(connection, request["seconds"])
    with _connect(request) as connection:
        took = sorted(_ping_pong(connection, request["round_trips"]))
    after = _read_counter(request["ifname"], _SENT)
    _print(
        {
            "round_trips": len(took),
            "median_microseconds": took[len(took) // 2] / 1000,
            "p99_microseconds": took[len(took) * 99 // 100] / 1000,
            "client_sent_bytes": after - before,
        }
    )


def _flood(connection: socket.socket, seconds: float) -> None:
    chunk = bytes(_CHUNK_BYTES)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(chunk)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)  # the server has it all


def _swallow(connection: socket.socket) -> tuple[int, float]:
    buffer = bytearray(_CHUNK_BYTES)
    start = time.monotonic()
    received = 0
    while size := connection.recv_into(buffer):
        received += size
    seconds = time.monotonic() - start
    connection.sendall(b".")
    return received, seconds


def _ping_pong(connection: socket.socket, round_trips: int) -> list[int]:
    """Nanoseconds of each round trip, after a warm-up."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    message = bytes(_MESSAGE_BYTES)
    took = []
    for _ in range(_WARM_UP_ROUND_TRIPS + round_trips):
        start = time.perf_counter_ns()
        connection.sendall(message)
        connection.recv(_MESSAGE_BYTES, socket.MSG_WAITALL)
        took.append(time.perf_counter_ns() - start)
    return took[_WARM_UP_ROUND_TRIPS:]


def _echo(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while message := connection.recv(_MESSAGE_BYTES):
        connection.sendall(message)


_RECEIVED, _SENT = 0, 8
"""Columns of ``/proc/net/dev``."""


def _read_counter(ifname: str, column: int) -> int:
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == ifname:
            return int(counters.split()[column])
    raise TrafficFailed(f"no interface {ifname} in this namespace")


def _print(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _main(role: str, text: str) -> None:
    request = json.loads(text)
    signal.setitimer(signal.ITIMER_REAL, request["deadline_seconds"])  # SIGALRM ends the process
    work: Callable[[Mapping[str, Any]], None] = {"server": _serve, "client": _send}[role]
    try:
        with NetworkNamespace.open(request["netns_path"]) as netns:
            netns.run(lambda: work(request))
    except (OSError, KernelError) as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    _main(*sys.argv[1:])
