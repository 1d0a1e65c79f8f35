"""The NRI plugin: one operating-system thread that stays connected to the container runtime.

It connects to the runtime's socket by path (the runtime makes a new one at each start), registers, runs
the hooks inline and, when the connection is lost, starts again. The thread is its own so that
nothing else in the driver can make a hook late: a late answer lets the pod start without its NIC. What
happens on one connection is :mod:`dranet.runtime.session`.
"""

from __future__ import annotations

import errno
import logging
import random
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from dranet.errors import KernelError, ProtocolError
from dranet.runtime.capabilities import RuntimeCapabilities
from dranet.runtime.session import IsOurMount, Observer, PluginIdentity, PluginSession, RuntimeHooks
from dranet.wire.mux import ConnectionLost, Mux

__all__ = ["NriListeners", "NriPlugin", "Observer", "RuntimeHooks", "Wait", "backoff_delays"]

log = logging.getLogger(__name__)

SEND_TIMEOUT_SECONDS = 2
"""A runtime that does not take our answer for this long has given us up already."""

TURN_SECONDS = 0.0005
"""How long a thread of this process may compute while another one waits for its turn (Python's default is ten
times that). A hook makes a hundred system calls and asks for a turn after each: with eight threads at work it
took up to 1.7 s by the default, and takes 0.1 s by this."""

_BACKOFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_JITTER = 0.2

Wait = Callable[[threading.Event, float], bool]
"""Wait for the event or the seconds, whichever is first; true when it was the event."""


def _ignore(method: str, outcome: str, seconds: float) -> None:
    """Observe nothing."""
    del method, outcome, seconds


class NriListeners(Struct, frozen=True):
    """Called on the plugin's thread."""

    hook_run: Observer = _ignore
    """A hook was run."""
    died: Callable[[], None] = lambda: None
    """The thread ends although it was not asked to (see :attr:`NriPlugin.fault`)."""
    ready: Callable[[float], None] = lambda _: None
    """The runtime calls our hooks, after it did not for so many seconds."""


class NriPlugin:
    """Keeps the hooks connected to the runtime behind ``socket_path``.

    Args:
        socket_path: the runtime's NRI socket; need not exist yet.
        name: plugin name (letters, digits, ``- _ . +``).
        index: two digits; the runtime calls plugins in ascending order.
        hooks: what to run. See :class:`~dranet.runtime.session.RuntimeHooks`.
        listeners: called on the plugin's thread.
        is_our_mount: recognizes the mounts of our CDI devices, for :attr:`capabilities`.
        wait: how to wait between attempts.
    """

    def __init__(
        self,
        socket_path: Path,
        name: str,
        index: str,
        hooks: RuntimeHooks,
        *,
        listeners: NriListeners | None = None,
        is_our_mount: IsOurMount | None = None,
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._socket_path = socket_path
        self._identity = PluginIdentity(name, index)
        self._hooks = hooks
        listeners = listeners or NriListeners()
        self._observe = listeners.hook_run
        self._is_our_mount: IsOurMount = _is_of_others if is_our_mount is None else is_our_mount
        self._wait = wait
        self._on_death = listeners.died
        self._on_ready = listeners.ready
        self._away_since = time.monotonic()
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._mux: Mux | None = None
        self._thread = threading.Thread(target=self._run, name="nri", daemon=True)
        self._last_failure = ""
        self._session: PluginSession | None = None
        self._last_capabilities = RuntimeCapabilities()

    def __repr__(self) -> str:
        state = "ready" if self.is_ready else "stopped" if self._stopping.is_set() else "connecting"
        return f"<NriPlugin {self._identity.index}-{self._identity.name} {self._socket_path} {state}>"

    @property
    def is_ready(self) -> bool:
        """Registered and synchronized: the runtime calls our hooks. False while there is no connection."""
        return self._ready.is_set()

    @property
    def fault(self) -> str:
        """Empty, or that the thread ended without a stop: only a new process will ever answer the
        runtime."""
        was_started = self._thread.ident is not None
        if was_started and not self._thread.is_alive() and not self._stopping.is_set():
            return f"the thread that answers the runtime is gone: {self._last_failure or 'no word of it'}"
        return ""

    @property
    def last_failure(self) -> str:
        """Why the latest connection, or attempt at one, ended; empty before the first."""
        return self._last_failure

    @property
    def capabilities(self) -> RuntimeCapabilities:
        """What the runtime has shown on this connection or, without one, on the last one."""
        session = self._session
        return session.capabilities if session is not None and session.introduced else self._last_capabilities

    def wait_ready(self, timeout_seconds: float) -> bool:
        """Block until :attr:`is_ready`, for at most this long."""
        return self._ready.wait(timeout_seconds)

    def start(self) -> None:
        """Start the thread, and have all threads of the process take turns more often. Once only.

        Raises:
            KernelError: there is no thread to be had; a driver without it would attach nothing.
        """
        sys.setswitchinterval(TURN_SECONDS)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise KernelError(
                f"cannot start the thread that answers the runtime: {error}",
                hint="raise the limit of processes or of memory of the driver's container",
            ) from error

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Finish the hook in progress, answer it, and leave. Repeatable; fine before ``start``.

        Returns after ``timeout_seconds`` even if a hook is stuck in the kernel.
        """
        self._stopping.set()
        with self._lock:
            if self._mux is not None:
                self._mux.stop_reading()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                log.error("a hook is still running after %s s; leaving it behind", timeout_seconds)

    def _run(self) -> None:
        try:
            self._stay_connected()
        finally:
            if not self._stopping.is_set():
                log.critical("the thread that answers the runtime ends, and no hook is answered any more")
                self._on_death()

    def _stay_connected(self) -> None:
        delays = backoff_delays()
        while not self._stopping.is_set():
            try:
                ending = self._serve_one_connection()
                self._note(ending)
                if ending.was_ready:
                    delays = backoff_delays()
            except BaseException as error:
                # No memory left, or our bug. The node needs the hooks more than it needs us to fall over.
                self._last_failure = f"internal error: {error!r}"
                log.exception("bug next to the NRI connection")
            if self._stopping.is_set() or self._wait(self._stopping, next(delays)):
                return

    def _serve_one_connection(self) -> _Closed:
        try:
            mux = self._connect()
        except ConnectionLost as error:
            return _Closed(str(error))
        try:
            session = PluginSession(mux, self._hooks, self._observe, self._note_ready, self._is_our_mount)
            self._session = session
            reason = self._serve(session)
            self._last_capabilities = self.capabilities
            return _Closed(reason, introduced=session.introduced, was_ready=self.is_ready)
        finally:
            if self._ready.is_set():
                self._away_since = time.monotonic()
            self._ready.clear()
            self._disconnect(mux)

    def _note_ready(self) -> None:
        self._ready.set()
        self._on_ready(time.monotonic() - self._away_since)

    def _serve(self, session: PluginSession) -> str:
        """Until the connection ends; returns why. Not even a hook that asks the thread to end ends it."""
        try:
            session.run(self._identity)
        except ProtocolError as error:
            return str(error)
        except BaseException as error:
            log.exception("bug on the NRI connection")
            return f"internal error: {error!r}"

    def _connect(self) -> Mux:
        try:
            trunk = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:  # no descriptor left now; this thread must outlive that
            raise ConnectionLost(f"cannot open a socket: {error.strerror}") from error
        try:
            # Also limits connect(), which blocks while the runtime's backlog is full.
            trunk.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_SECONDS, 0)
            )
            trunk.connect(str(self._socket_path))
        except OSError as error:
            trunk.close()
            raise ConnectionLost(f"cannot connect to {self._socket_path}: {self._describe(error)}") from error
        mux = Mux(trunk)
        with self._lock:
            if self._stopping.is_set():
                mux.stop_reading()
            self._mux = mux
        return mux

    def _describe(self, error: OSError) -> str:
        """The kernel refuses a path that is no socket with the error for a socket without a listener."""
        if error.errno == errno.ECONNREFUSED:
            try:
                if not stat.S_ISSOCK(self._socket_path.stat().st_mode):
                    return "it is no socket"
            except OSError as gone:
                return gone.strerror or str(gone)
        return error.strerror or str(error)

    def _disconnect(self, mux: Mux) -> None:
        with self._lock:
            self._mux = None
        mux.close()

    def _note(self, ending: _Closed) -> None:
        """Notify the hooks of a lost runtime. One that was never there is logged, each reason once and not
        every five seconds."""
        previous, self._last_failure = self._last_failure, ending.reason
        if self._stopping.is_set():
            return
        if ending.introduced:
            self._report_disconnected(ending.reason)
        elif ending.reason != previous:
            log.info("no NRI connection: %s; trying again until there is one", ending.reason)

    def _report_disconnected(self, reason: str) -> None:
        try:
            self._hooks.disconnected(reason)
        except Exception:
            log.exception("bug in the disconnected hook")


class _Closed(NamedTuple):
    """How a connection, or an attempt at one, ended."""

    reason: str
    introduced: bool = False
    """The hooks know of the runtime."""
    was_ready: bool = False


def backoff_delays() -> Iterator[float]:
    """Seconds to wait before each next attempt: growing, capped, each a little off so that nodes and plugins
    do not move in step."""
    source = random.SystemRandom()
    attempt = 0
    while True:
        base = _BACKOFF_SECONDS[min(attempt, len(_BACKOFF_SECONDS) - 1)]
        yield base * source.uniform(1 - _JITTER, 1 + _JITTER)
        attempt += 1


def _is_of_others(source: str) -> bool:
    """Default: no mount is ours."""
    del source
    return False
