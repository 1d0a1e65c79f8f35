"""What the rate limits of links in a pod have dropped: a link itself does not count it."""

from __future__ import annotations

import struct

from dranet.kernel.attachment.rates import BUCKET_HANDLE
from dranet.kernel.netlink import NetlinkSocket, parse_attributes
from dranet.kernel.rtnl import decode
from dranet.kernel.tc import TCMSG, dump_qdiscs_request

_TCA_STATS2, _TCA_STATS_QUEUE = 7, 3
_QUEUE = struct.Struct("=5I")
"""``struct gnet_stats_queue``: waiting packets and bytes, drops, requeues, overlimits."""


def read_limit_drops() -> dict[int, int]:
    """Packets that our token buckets have dropped, by the ifindex of the link (or of the ``ifb`` beside it)
    in the calling thread's network namespace.

    Raises:
        KernelError: netlink failed.
    """
    with NetlinkSocket.open() as rtnl:
        found = (decode(_parse, payload) for payload in rtnl.dump(dump_qdiscs_request()))
        return {ifindex: drops for ifindex, drops in found if drops is not None}


def _parse(payload: bytes) -> tuple[int, int | None]:
    _, ifindex, handle, _, _ = TCMSG.unpack_from(payload)
    if handle != BUCKET_HANDLE:
        return ifindex, None
    told = parse_attributes(payload, TCMSG.size, frozenset({_TCA_STATS2})).get(_TCA_STATS2, b"")
    queue = parse_attributes(told, 0, frozenset({_TCA_STATS_QUEUE})).get(_TCA_STATS_QUEUE, b"")
    return ifindex, int(_QUEUE.unpack_from(queue)[2]) if len(queue) >= _QUEUE.size else None
