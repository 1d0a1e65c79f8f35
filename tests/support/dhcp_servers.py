"""DHCP servers for tests: two real ones (``udhcpd`` of BusyBox, ``dnsmasq``), and one that is scripted.

All run in a namespace of the test, on the far end of a link. The real ones come from the distribution's
packages and are not installed; who asks for one skips where it cannot be had.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from dranet.kernel.dhcp import message
from dranet.kernel.dhcp.message import Message, MessageType, Option
from testbed.containerd.fetch import find_toolchain
from testbed.debian.packages import (
    PackagesUnavailable,
    PrivateApt,
    cache_folder,
    make_cache,
    read_release,
    unpack,
)
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

SO_BINDTODEVICE = 25
SERVER = "10.77.0.1"

_NEVER = re.compile(
    r"libc6|libc-bin|adduser|passwd|debconf.*|dbus.*|perl.*|libpam.*|libaudit.*|libsemanage.*"
)
"""What each Debian has; a second libc would not even start."""


def find_busybox() -> Path:
    """BusyBox with its DHCP server: as the container lane has it, else from the distribution's package.

    Raises:
        PackagesUnavailable: it cannot be had on this machine.
    """
    toolchain = find_toolchain(cache_folder("containerd"))
    if toolchain is not None:
        return toolchain.bin_dir / "busybox"
    return _find_package("busybox-static") / "bin/busybox"


def _find_package(name: str) -> Path:
    """A package and all that it depends on, unpacked below one folder of the cache."""
    folder = cache_folder("dhcp")
    kept = folder / name
    if kept.exists():
        return kept
    make_cache(folder)
    release = read_release()
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as temporary:
        work = Path(temporary)
        apt = PrivateApt(work / "apt", release.source, (release.suite,), release.architecture)
        apt.update()
        wanted = [n for n in apt.resolve([name], release.suite) if not _NEVER.fullmatch(n)]
        for deb in apt.download(wanted, work / "debs").values():
            unpack(deb, work / "tree")
        if not kept.exists():  # somebody else may have been faster
            shutil.move(work / "tree", kept)
    return kept


@dataclass
class RealServer:
    """A running server. It gives out 10.77.0.100 to .110 for ten minutes; its own address is 10.77.0.1."""

    process: subprocess.Popen[bytes]
    lease_file: Path
    log_file: Path

    def leased(self) -> dict[str, str]:
        """Hardware address to address of every lease that has not ended, as the server tells."""
        raise NotImplementedError

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


@dataclass
class Udhcpd(RealServer):
    """BusyBox'. It speaks through raw packets and looks for duplicates by ARP."""

    def leased(self) -> dict[str, str]:
        self._begin_lease_file()
        whole = self.lease_file.replace(self.lease_file.with_name("whole"))
        self._begin_lease_file()  # it is through with one when it begins the next
        command = [str(find_busybox()), "dumpleases", "-f", str(whole)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in text.splitlines()[1:]]
        return {row[0]: row[1] for row in rows if "expired" not in row}

    def _begin_lease_file(self) -> None:
        self.lease_file.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)  # write the lease file now
        wait_until(self.lease_file.exists, "udhcpd writes its leases")


@dataclass
class Dnsmasq(RealServer):
    """As hypervisors run it. It speaks through plain UDP sockets and refuses what it does not know."""

    def leased(self) -> dict[str, str]:
        rows = [line.split() for line in self.lease_file.read_text().splitlines()]
        return {row[1]: row[2] for row in rows if len(row) == 5}


_UDHCPD_CONFIG = """
start 10.77.0.100
end 10.77.0.110
interface {interface}
lease_file {home}/leases
pidfile {home}/pid
opt subnet 255.255.255.0
opt router 10.77.0.1
opt lease 600
opt mtu 1450
opt staticroutes 10.99.0.0/16 10.77.0.9, 0.0.0.0/0 10.77.0.8
{reserved}
"""


def start_udhcpd(
    namespace: Namespace, interface: str, folder: Path, reserved: Mapping[str, str] | None = None
) -> Udhcpd:
    """Start one on a link; skips the test where there is none. The caller stops it.

    ``reserved`` maps hardware addresses to the address that only they get.
    """
    busybox = _or_skip(find_busybox)
    home = _make_home(namespace, interface, folder)
    lines = [f"static_lease {mac} {address}" for mac, address in (reserved or {}).items()]
    config = _UDHCPD_CONFIG.format(interface=interface, home=home, reserved="\n".join(lines))
    (home / "conf").write_text(config)
    options = ("-f", "-vv", "-a", "200")  # ms that it looks for duplicates; 2000 unless told
    process = _start(namespace, home, str(busybox), "udhcpd", *options, str(home / "conf"))
    server = Udhcpd(process, home / "leases", home / "log")
    wait_until(lambda: "started" in server.log, "udhcpd starts")
    return server


def start_dnsmasq(
    namespace: Namespace, interface: str, folder: Path, reserved: Mapping[str, str] | None = None
) -> Dnsmasq:
    """As :func:`start_udhcpd`."""
    tree = _or_skip(lambda: _find_package("dnsmasq-base"))
    home = _make_home(namespace, interface, folder)
    options = ("option:router,10.77.0.1", "option:mtu,1450", "121,10.99.0.0/16,10.77.0.9,0.0.0.0/0,10.77.0.8")
    process = _start(
        namespace,
        home,
        str(tree / "usr/sbin/dnsmasq"),
        *("--no-daemon", "--conf-file=/dev/null", "--port=0", "--user=root", "--log-dhcp", "--no-ping"),
        *("--bind-interfaces", f"--interface={interface}", "--dhcp-authoritative"),
        "--dhcp-range=10.77.0.100,10.77.0.110,600",
        f"--dhcp-leasefile={home / 'leases'}",
        f"--pid-file={home / 'pid'}",
        *(f"--dhcp-option={option}" for option in options),
        *(f"--dhcp-host={mac},{address}" for mac, address in (reserved or {}).items()),
        libraries=tree / "usr/lib" / f"{os.uname().machine}-linux-gnu",
    )
    server = Dnsmasq(process, home / "leases", home / "log")
    wait_until(lambda: "DHCP, IP range" in server.log, "dnsmasq starts")
    return server


def find_program_or_skip(program: str, package: str) -> tuple[Path, Path | None]:
    """A program as it is installed, or of the distribution's package with the folder of its libraries."""
    installed = Path("/usr/sbin", program)
    if installed.exists():
        return installed, None
    tree = _or_skip(lambda: _find_package(package))
    return tree / "usr/sbin" / program, tree / "usr/lib" / f"{os.uname().machine}-linux-gnu"


def _or_skip(find: Callable[[], Path]) -> Path:
    try:
        return find()
    except PackagesUnavailable as error:
        pytest.skip(f"no DHCP server: {error}")


def _make_home(namespace: Namespace, interface: str, folder: Path) -> Path:
    namespace.ip("addr", "replace", f"{SERVER}/24", "dev", interface)
    home = Path(tempfile.mkdtemp(prefix="dhcp-", dir=folder))
    (home / "leases").touch()
    return home


def _start(
    namespace: Namespace, home: Path, *command: str, libraries: Path | None = None
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)} if libraries else None
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            ["ip", "netns", "exec", namespace.name, *command],
            stderr=log,
            stdout=log,
            stdin=subprocess.DEVNULL,
            env=environment,
        )


Answer = Callable[[Message], Sequence[bytes | Message]]


@dataclass
class ScriptedServer:
    """A server in a thread: to each message it broadcasts what ``answer`` returns, from port 67.

    It speaks through a plain UDP socket, as most servers do, so its checksums are left to the hardware.
    """

    namespace: Namespace
    interface: str
    answer: Answer
    heard: list[Message] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._sock = self.namespace.run(self._open)
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.close()
        self._thread.join(10)
        self._sock.close()
        self._stopped.close()

    def heard_types(self) -> list[MessageType]:
        return [said.type for said in self.heard]

    def _open(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, self.interface.encode())
        sock.bind(("", 67))
        return sock

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._stopped, select.POLLIN)
        while poll.poll() and not select.select([self._stopped], [], [], 0)[0]:
            said = message.parse(self._sock.recv(65536))
            self.heard.append(said)
            for reply in self.answer(said):
                data = reply if isinstance(reply, bytes) else message.encode(reply)
                self._sock.sendto(data, ("255.255.255.255", 68))


def reply_to(
    said: Message, kind: MessageType, address: str = "10.77.0.50", server: str = SERVER, **options: bytes
) -> Message:
    """What a good server says: an address in 10.77.0.0/24 for ten minutes.

    ``options`` by name: ``ROUTER=b"..."``; an empty one is left out.
    """
    given = {
        "SERVER_ID": socket.inet_aton(server),
        "SUBNET_MASK": bytes((255, 255, 255, 0)),
        "LEASE_TIME": (600).to_bytes(4),
        **options,
    }
    return Message(
        kind,
        said.xid,
        said.client_mac,
        your_address="0.0.0.0" if kind is MessageType.NAK else address,
        is_reply=True,
        options={Option[name]: value for name, value in given.items() if value},
    )


def good_answers(said: Message, **how: Any) -> list[Message]:
    """OFFER for a DISCOVER, ACK for a REQUEST, nothing for a RELEASE."""
    kinds = {MessageType.DISCOVER: MessageType.OFFER, MessageType.REQUEST: MessageType.ACK}
    return [reply_to(said, kinds[said.type], **how)] if said.type in kinds else []
