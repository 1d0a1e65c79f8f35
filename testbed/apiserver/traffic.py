"""What came in and what went out: one record for each request, and sums for each client."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace

from testbed.apiserver.http import HttpRequest

_MAX_RECORDS = 10_000


@dataclass(slots=True, eq=False, repr=False)
class RequestRecord:
    """One request. ``method`` is WATCH for a watch. The fields of the answer are filled in when it is sent;
    ``status`` is 0 until then."""

    method: str
    path: str
    agent: str = ""
    """User agent."""
    user: str = ""
    status: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    """For a watch: so far."""
    events: int = 0
    """Sent on a watch, bookmarks included."""


@dataclass(slots=True)
class Traffic:
    """Sums of one client."""

    requests: int = 0
    watches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    events: int = 0


class RequestLog:
    """The newest requests, and sums of all of them by user agent."""

    def __init__(self) -> None:
        self.records: deque[RequestRecord] = deque(maxlen=_MAX_RECORDS)
        self._sums: defaultdict[str, Traffic] = defaultdict(Traffic)

    def note_request(self, request: HttpRequest) -> RequestRecord:
        """Begin the record of a request that has just been read."""
        agent = request.headers.get("user-agent", "")
        method = "WATCH" if request.is_watch else request.method
        record = RequestRecord(method, request.path, agent, bytes_in=request.size)
        self.records.append(record)
        sums = self._sums[agent]
        sums.requests += 1
        sums.watches += request.is_watch
        sums.bytes_in += request.size
        return record

    def note_answer(self, record: RequestRecord, size: int, *, events: int = 0) -> None:
        """Count ``size`` bytes that were sent, with the watch events in them."""
        record.bytes_out += size
        record.events += events
        sums = self._sums[record.agent]
        sums.bytes_out += size
        sums.events += events

    def sums(self) -> dict[str, Traffic]:
        """Sums since the start by user agent; a copy."""
        return {agent: replace(sums) for agent, sums in self._sums.items()}
