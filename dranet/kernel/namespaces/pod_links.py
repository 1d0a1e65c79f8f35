"""Links inside pods, which the host cannot see: notifications from each pod's network namespace, by a netlink
socket that was opened there and is read on the event loop. The pod is not trusted: however many links it
makes or changes, the loop looks a few times a second at most, and once a second if that goes on."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from dranet.errors import KernelError
from dranet.kernel.counters import CountedLink, parse_counted_link
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.kernel.netlink import rtnl
from dranet.kernel.netlink.socket import (
    NETLINK_ROUTE,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    open_notifications,
    parse_messages,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

SETTLE_SECONDS = 0.1
"""A change is looked at after this long, together with those that follow it."""
STORM_SETTLE_SECONDS = 1.0
"""The same after a look that found a storm, or after several in a row: each may end in a new status of the
pod."""
STORM_MESSAGES = 64
LOOKS_IN_A_ROW = 5
MOST_LINKS = 512
"""Kept of one pod. What was there when it was first looked at is among them."""

_CHUNK_BYTES = 64 * 1024
_MOST_CHUNKS = 1024
"""Read at one look; the receive buffer holds fewer."""


class PodLinks:
    """Follows the links of pods. Made, read and closed on the event loop; :meth:`follow` and :meth:`forget`
    may be called from any thread, and take microseconds."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        """``on_change`` is called on the loop with a pod's UID when a link of it reads differently."""
        self._loop = asyncio.get_running_loop()
        self._on_change = on_change
        self._followed: dict[str, _FollowedPod] = {}
        self._opening: set[asyncio.Task[None]] = set()

    def follow(self, pod_uid: str, netns: NetworkNamespace) -> None:
        """Follow the links in ``netns``, which stays the caller's; instead of another one of the same pod.
        Raises nothing: a pod whose links cannot be followed has NICs of unknown health, and runs."""
        try:
            mine = NetworkNamespace.from_fd(netns.fileno())
        except (KernelError, OSError, ValueError) as error:  # ValueError: it has been closed
            log.warning("links of pod %s are not watched: %s", pod_uid, error)
            return
        try:
            self._loop.call_soon_threadsafe(self._begin, pod_uid, mine)
        except RuntimeError:  # the loop has ended, and with it the driver
            mine.close()

    def forget(self, pod_uid: str) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it the driver
            self._loop.call_soon_threadsafe(self._end, pod_uid)

    @property
    def pods(self) -> Sequence[str]:
        return tuple(self._followed)

    def get_links(self, pod_uid: str) -> Sequence[CountedLink]:
        """The pod's links as last reported; empty for a pod that was not read yet."""
        followed = self._followed.get(pod_uid)
        return tuple(followed.links.values()) if followed else ()

    def open_namespaces(self) -> dict[str, NetworkNamespace]:
        """Handles of the pods' namespaces, by the pods' UIDs; the caller closes them. One that cannot be had
        is left out."""
        opened: dict[str, NetworkNamespace] = {}
        for uid, followed in self._followed.items():
            try:
                opened[uid] = NetworkNamespace.from_fd(followed.netns.fileno())
            except (KernelError, OSError, ValueError) as error:  # for example, no descriptor left
                log.debug("namespace of pod %s: %s", uid, error)
        return opened

    def ask_again(self) -> None:
        for followed in self._followed.values():
            followed.ask()

    async def visit(self, pod_uid: str, function: Callable[[], T]) -> T | None:
        """What ``function`` returns when called in the pod's namespace; ``None`` for an unknown pod."""
        followed = self._followed.get(pod_uid)
        if followed is None:
            return None
        with NetworkNamespace.from_fd(followed.netns.fileno()) as netns:
            return await asyncio.to_thread(netns.run, function)

    def close(self) -> None:
        for pod_uid in self.pods:
            self._end(pod_uid)

    def _begin(self, pod_uid: str, netns: NetworkNamespace) -> None:
        known = self._followed.get(pod_uid)
        if known is not None and known.netns == netns:
            netns.close()
            return
        self._end(pod_uid)
        followed = self._followed[pod_uid] = _FollowedPod(netns, lambda: self._on_change(pod_uid))
        task = self._loop.create_task(followed.open(), name=f"links of pod {pod_uid}")
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _end(self, pod_uid: str) -> None:
        followed = self._followed.pop(pod_uid, None)
        if followed is not None:
            followed.close()


class _FollowedPod:
    """One pod: its namespace, the socket inside, and the reported links. Used on the event loop."""

    def __init__(self, netns: NetworkNamespace, on_change: Callable[[], None]) -> None:
        self.netns = netns
        self.links: dict[int, CountedLink] = {}
        """By ifindex."""
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._look: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self._looks_in_a_row = 0
        self._lock = threading.Lock()
        """Between the thread that opens and :meth:`close`: the later one releases, and no other."""
        self._is_opening = True
        self._is_listening = False
        self._is_closed = False
        self._unseen: set[int] | None = None
        """During a dump: links that were not reported yet and may be gone."""

    async def open(self) -> None:
        try:
            await asyncio.to_thread(self._open_inside)
        except (KernelError, OSError) as error:
            log.warning("links of a pod are not watched: %s", error)
        if self._sock is not None and not self._is_closed:
            self._loop.add_reader(self._sock.fileno(), self._schedule_look)
            self._is_listening = True
            self.ask()

    def _open_inside(self) -> None:
        """On the thread, which goes on when the loop ends: it releases what was closed meanwhile."""
        try:
            self._sock = self.netns.run(lambda: open_notifications(NETLINK_ROUTE, rtnl.RTNLGRP_LINK))
        finally:
            with self._lock:
                self._is_opening = False
                is_closed = self._is_closed
            if is_closed:
                self._release()

    def ask(self) -> None:
        """Request all links again, unless the answer to an earlier request is still arriving."""
        if self._sock is None or self._unseen is not None:
            return
        body = rtnl.link_header()
        header = struct.pack("=IHHII", 16 + len(body), rtnl.RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0)
        try:
            self._sock.send(header + body)
        except OSError as error:
            log.debug("links of a pod cannot be asked for: %s", error)
            return
        self._unseen = set(self.links)

    def close(self) -> None:
        """Stop listening. A namespace that a thread is about to enter is closed when it has left."""
        with self._lock:
            self._is_closed = True
            is_opening = self._is_opening
        if not is_opening:
            self._release()

    def _release(self) -> None:
        if self._look is not None:
            self._look.cancel()
        sock, self._sock = self._sock, None
        if sock is not None:
            if self._is_listening:
                self._loop.remove_reader(sock.fileno())
            sock.close()
        self.netns.close()

    def _schedule_look(self, *, in_storm: bool = False) -> None:
        """Not at once: whatever a pod does, the loop wakes up a few times a second for it."""
        if self._sock is not None and self._look is None:
            self._loop.remove_reader(self._sock.fileno())
            is_calm = self._loop.time() - self._looked_at > 2 * STORM_SETTLE_SECONDS
            self._looks_in_a_row = 1 if is_calm else self._looks_in_a_row + 1
            is_slow = in_storm or self._looks_in_a_row > LOOKS_IN_A_ROW
            seconds = STORM_SETTLE_SECONDS if is_slow else SETTLE_SECONDS
            self._look = self._loop.call_later(seconds, self._read)

    def _read(self) -> None:
        self._look = None
        self._looked_at = self._loop.time()
        if self._sock is None:
            return
        before = dict(self.links)
        chunks, is_lost = _drain(self._sock)
        messages = sum(self._take_in(chunk) for chunk in chunks)
        if is_lost:
            self._unseen = None  # the end of an answer may be among what was lost
            self.ask()
        if messages > STORM_MESSAGES or is_lost:
            self._schedule_look(in_storm=True)
        else:
            self._loop.add_reader(self._sock.fileno(), self._schedule_look)
        if self.links != before:
            self._on_change()

    def _take_in(self, chunk: bytes) -> int:
        count = 0
        try:
            for kind, _, _, payload in parse_messages(chunk):
                count += 1
                self._note(kind, payload)
        except KernelError as error:
            log.debug("odd message about a pod's links: %s", error)
        return count

    def _note(self, kind: int, payload: bytes) -> None:
        if kind == NLMSG_ERROR:  # an earlier answer has not ended: the rest may still arrive
            self._unseen = None
        elif kind == NLMSG_DONE:
            for ifindex in self._unseen or ():
                self.links.pop(ifindex, None)
            self._unseen = None
        elif kind in (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK) and payload[:1] == bytes([socket.AF_UNSPEC]):
            try:
                self._note_link(rtnl.decode(parse_counted_link, payload), is_gone=kind == rtnl.RTM_DELLINK)
            except KernelError as error:  # such as a name of odd bytes; it must not hide the links behind it
                log.debug("odd message about a pod's link: %s", error)

    def _note_link(self, seen: CountedLink, *, is_gone: bool) -> None:
        ifindex = seen.link.ifindex
        if self._unseen is not None:
            self._unseen.discard(ifindex)
        if is_gone:
            self.links.pop(ifindex, None)
        elif (before := self.links.get(ifindex)) is not None:
            is_switch = before.link.is_up and not seen.link.is_up
            self.links[ifindex] = replace(seen, times_off=before.times_off + is_switch)
        elif len(self.links) < MOST_LINKS:
            self.links[ifindex] = seen


def _drain(sock: socket.socket) -> tuple[Iterable[bytes], bool]:
    """Read the waiting datagrams; returns them and whether the buffer overflowed."""
    chunks: list[bytes] = []
    is_lost = False
    for _ in range(_MOST_CHUNKS):
        try:
            chunk, sender = sock.recvfrom(_CHUNK_BYTES)
        except BlockingIOError:
            break
        except OSError as error:
            is_lost = error.errno == errno.ENOBUFS
            if not is_lost:
                break
            continue
        if sender[0] == 0:  # the kernel; a process of the pod could write to our port too
            chunks.append(chunk)
    return chunks, is_lost
