"""Generic netlink: families by name, and the header that each of their messages starts with.

See the kernel's ``Documentation/userspace-api/netlink/intro.rst``. A family gets its message type when it is
registered, so it is asked for by name; ``ethtool`` is the one that we speak.
"""

from __future__ import annotations

import struct

from dranet.errors import KernelError
from dranet.kernel.netlink import NetlinkSocket, Request, attribute_text, parse_attributes

# linux/netlink.h, linux/genetlink.h
NETLINK_GENERIC = 16
GENL_ID_CTRL = 16
CTRL_CMD_GETFAMILY = 3
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 1, 2

GENL_HEADER_BYTES = 4
"""Where the attributes of a message begin."""

_GENL_HEADER = struct.Struct("=BBH")
_U16 = struct.Struct("=H")

_families: dict[str, int] = {}
"""What was resolved before. Two threads that ask at once both get the kernel's answer, which is the same."""


def genl_body(command: int, *attributes: bytes, version: int = 1) -> bytes:
    """The body of a generic netlink request."""
    return _GENL_HEADER.pack(command, version, 0) + b"".join(attributes)


def resolve_family(genl: NetlinkSocket, name: str) -> int:
    """The message type of a family; the kernel is asked once in the life of the process.

    Raises:
        KernelError: the kernel has no such family (ENOENT), or netlink failed.
    """
    known = _families.get(name)
    if known is not None:
        return known
    body = genl_body(CTRL_CMD_GETFAMILY, attribute_text(CTRL_ATTR_FAMILY_NAME, name))
    answers = genl.request(Request(GENL_ID_CTRL, body, operation=f"find netlink family {name}"))
    found = parse_family(answers[0].payload if answers else b"", name)
    _families[name] = found
    return found


def parse_family(payload: bytes, name: str) -> int:
    """The message type in the kernel's answer about the family ``name``.

    Raises:
        KernelError: the answer does not hold one.
    """
    wanted = frozenset({CTRL_ATTR_FAMILY_ID})
    family = parse_attributes(payload, GENL_HEADER_BYTES, wanted).get(CTRL_ATTR_FAMILY_ID, b"")
    if len(family) != _U16.size:
        raise KernelError(f"the kernel's answer about netlink family {name} has no number")
    return int(_U16.unpack(family)[0])
