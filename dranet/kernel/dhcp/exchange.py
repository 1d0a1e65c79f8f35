"""The conversation with DHCP servers on one link, until a lease or a deadline (RFC 2131, 3.1 and 4.4).

The first usable offer wins. What is lost is said again after 1, 2, 4 s, each a little shorter or longer by
chance: tighter than RFC 2131 4.1, because the kubelet waits. What is no answer to us is passed over
and named if nothing better comes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat

from msgspec.structs import replace

from dranet.errors import KernelError, ProtocolError, Reason
from dranet.kernel.dhcp import message
from dranet.kernel.dhcp.message import Message, MessageType, leased_ip
from dranet.kernel.dhcp.wire import Wire
from dranet.model.facts import Link
from dranet.model.plan import DhcpLease

_FIRST_WAITS_SECONDS = (1.0, 2.0)
_LAST_WAIT_SECONDS = 4.0
_JITTER = 0.25
"""Each wait is up to this part shorter or longer."""
_REQUESTS_PER_OFFER = 3
"""A server that offers and then falls silent is given up after so many."""
_MOST_OFFERS = 5
"""A server that offers and refuses, over and over, is given up after so many."""

_random = secrets.SystemRandom()


class _Refused(Exception):
    """A NAK; the text is the server's."""


class _Silence(Exception):
    """Nobody answered what was said, however often."""


class Exchange:
    """One client on one link. ``deadline`` is of ``time.monotonic``."""

    def __init__(self, link: Link, deadline: float) -> None:
        self._link = link
        self._deadline = deadline
        self._started = time.monotonic()
        self._sent = 0
        self._oddity = ""

    def acquire(self, mac: str, wanted: str = "") -> DhcpLease:
        """DISCOVER, OFFER, REQUEST, ACK; from the start again after a refusal.

        Raises:
            KernelError: ``DHCPFailed``, or the link went down.
        """
        for _ in range(_MOST_OFFERS):
            try:
                return self._acquire_once(mac, wanted)
            except _Refused as refusal:
                self._oddity = f"the server refused: {refusal}"
                wanted = ""
            except _Silence:
                if self._is_over:
                    break
        raise self._failure(f"no DHCP lease on {self._link.ifname}")

    def renew(self, lease: DhcpLease, *, any_server: bool) -> DhcpLease:
        """More time for a lease that is in use, from its own server or from any.

        Who gave a lease may take it back, and nobody else: a refusal of another server is passed over. The
        address stays in the form that the link has it, whatever mask comes with it now.

        Raises:
            KernelError: ``DHCPLeaseRefused``: its own server says no, or gives another address;
                ``DHCPFailed``: nobody answered; or the link went down.
        """
        what = f"DHCP lease of {lease.address} on {self._link.ifname} is not renewed"
        asked_at = time.time()
        xid = secrets.randbits(32)

        def say() -> None:
            asking = message.request_more_time(xid, lease, self._seconds)
            if any_server:
                wire.broadcast(asking, source=asking.client_address)
            else:
                wire.send_to(lease.server_mac, lease.server, asking)

        def read(server_mac: str, said: Message) -> DhcpLease | None:
            if said.server == lease.server:
                return _read_renewal(server_mac, said, asked_at, lease)
            return self._read_of_other(server_mac, said, asked_at, lease) if any_server else None

        with Wire(self._link, lease.client_mac, xid) as wire:
            try:
                return self._ask(wire, lease.client_mac, say, read, _waits())
            except _Refused as refusal:
                told = f"{what}: its server has taken it back: {refusal}"
                raise self._failure(told, reason=Reason.DHCP_LEASE_REFUSED) from None
            except _Silence:
                raise self._failure(what) from None

    def _read_of_other(
        self, server_mac: str, said: Message, asked_at: float, lease: DhcpLease
    ) -> DhcpLease | None:
        try:
            return _read_renewal(server_mac, said, asked_at, lease)
        except _Refused as refusal:
            self._oddity = f"the server {said.server}, which did not give it, refused: {refusal}"
            return None

    def _acquire_once(self, mac: str, wanted: str) -> DhcpLease:
        xid = secrets.randbits(32)
        with Wire(self._link, mac, xid) as wire:
            offer = self._find_offer(wire, mac, xid, wanted)
            return self._take(wire, xid, offer)

    def _find_offer(self, wire: Wire, mac: str, xid: int, wanted: str) -> DhcpLease:
        def say() -> None:
            wire.broadcast(message.discover(xid, mac, wanted, self._seconds))

        def read(server_mac: str, said: Message) -> DhcpLease | None:
            is_offer = said.type is MessageType.OFFER
            return message.read_lease(said, server_mac, time.time()) if is_offer else None

        return self._ask(wire, mac, say, read, _waits())

    def _take(self, wire: Wire, xid: int, offer: DhcpLease) -> DhcpLease:
        asked_at = time.time()

        def say() -> None:
            wire.broadcast(message.request_offered(xid, offer, self._seconds))

        def read(server_mac: str, said: Message) -> DhcpLease | None:
            return _read_answer(server_mac, said, asked_at) if said.server == offer.server else None

        return self._ask(wire, offer.client_mac, say, read, islice(_waits(), _REQUESTS_PER_OFFER))

    def _ask(
        self,
        wire: Wire,
        mac: str,
        say: Callable[[], None],
        read: Callable[[str, Message], DhcpLease | None],
        waits: Iterator[float],
    ) -> DhcpLease:
        """Say it until an answer can be read, or there are no more ``waits``, or the deadline has passed.

        Raises:
            _Silence: no answer.
            _Refused: the answer is no.
        """
        for wait in waits:
            if self._is_over:
                break
            say()
            self._sent += 1
            until = min(time.monotonic() + wait, self._deadline)
            while heard := wire.receive(until):
                server_mac, said = heard
                if not said.is_reply or said.client_mac != mac:
                    continue
                try:
                    lease = read(server_mac, said)
                except ProtocolError as error:
                    self._oddity = f"{said.type.name} from {server_mac} cannot be used: {error.message}"
                    continue
                if lease is not None:
                    return lease
            self._oddity = self._oddity or wire.oddity
        raise _Silence

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    @property
    def _seconds(self) -> int:
        return int(time.monotonic() - self._started)

    def _failure(self, what: str, *, reason: Reason = Reason.DHCP_FAILED) -> KernelError:
        """What did not come to pass; how often was asked says nothing where somebody answered."""
        is_silence = reason is Reason.DHCP_FAILED
        elapsed = time.monotonic() - self._started
        asked = f": asked {self._sent} times within {elapsed:.1f} s" if is_silence else ""
        odd = f"; {self._oddity}" if is_silence and self._oddity else ""
        return KernelError(
            f"{what}{asked}{odd}",
            operation="speak DHCP",
            link=self._link.ifname,
            hint="is there a server or a relay in this link's network?" if is_silence and not odd else "",
            reason=reason,
        )


def _read_renewal(server_mac: str, said: Message, asked_at: float, lease: DhcpLease) -> DhcpLease | None:
    """The lease with more time; ``None`` for what is neither yes nor no.

    Raises:
        _Refused: no, or another address: that is another lease, and not what was asked for.
        ProtocolError: as :func:`_read_answer`.
    """
    renewed = _read_answer(server_mac, said, asked_at)
    if renewed is not None and leased_ip(renewed) != leased_ip(lease):
        raise _Refused(f"it gives {renewed.address} instead")
    return renewed and replace(renewed, address=lease.address)


def _read_answer(server_mac: str, said: Message, asked_at: float) -> DhcpLease | None:
    """The lease of an ACK; ``None`` for what is neither yes nor no.

    Raises:
        _Refused: a NAK.
        ProtocolError: an ACK that gives nothing usable.
    """
    if said.type is MessageType.NAK:
        raise _Refused(said.text or "NAK")
    if said.type is not MessageType.ACK:
        return None
    return message.read_lease(said, server_mac, asked_at)


def _waits() -> Iterator[float]:
    """Seconds to wait for an answer before saying it again."""
    for seconds in chain(_FIRST_WAITS_SECONDS, repeat(_LAST_WAIT_SECONDS)):
        yield seconds * _random.uniform(1 - _JITTER, 1 + _JITTER)
