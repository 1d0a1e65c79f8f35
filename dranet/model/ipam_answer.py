"""What sources of addresses give, and the place of a node in a pool."""

from __future__ import annotations

from msgspec import Struct


class IpamRoute(Struct, frozen=True):
    """One route of an answer; ``None`` leaves a thing to the plan."""

    destination: str
    gateway: str = ""
    """Empty: the destination is on the link."""
    metric: int | None = None
    table: int | None = None
    scope: int | None = None
    mtu: int | None = None


class IpamAnswer(Struct, frozen=True):
    """What a source has given for one device."""

    name: str
    """The entry of ``ipam_file``."""
    source: str
    """What gave it, for people: ``host-local``."""
    container_id: str
    addresses: tuple[str, ...]
    """With prefix length."""
    gateways: tuple[str, ...] = ()
    """For each address its gateway, or an empty text."""
    routes: tuple[IpamRoute, ...] = ()
    ignored: tuple[str, ...] = ()
    """Parts of the answer that nothing is done with: ``dns``."""


class IpamProblem(ValueError):
    """``path`` leads to the value in the entry."""

    def __init__(self, text: str, *path: str) -> None:
        super().__init__(text)
        self.path = path


class PoolNode(Struct, frozen=True):
    """What an address pool finds a node's number by."""

    name: str = ""
    addresses: tuple[str, ...] = ()
    """Addresses of the Node object."""
