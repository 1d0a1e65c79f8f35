"""Stable device names, by DraNet's rules: from the PCI address where there is one.

A device name is a DNS-1123 label of at most 63 characters. Names of PCI functions survive renames, moves
between namespaces and reboots; a name made from an interface name changes with it.
"""

from __future__ import annotations

import base64
import re
import zlib
from functools import lru_cache

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MAX_LENGTH = 63
_CHECKSUM_DIGITS = 8


def is_device_name(name: str) -> bool:
    """Whether the API accepts it."""
    return _DNS_LABEL.fullmatch(name) is not None


def pci_device_name(address: str) -> str:
    """``0000:1a:00.0`` -> ``pci-0000-1a-00-0``."""
    return "pci-" + _flat(address)


_GPU = "gpu-"


def gpu_device_name(address: str) -> str:
    """``0000:1b:00.0`` -> ``gpu-0000-1b-00-0``."""
    return _GPU + _flat(address)


def may_be_gpu(name: str) -> bool:
    """Whether a device of that name may be a GPU; an interface may also have such a name."""
    return name.startswith(_GPU)


@lru_cache(maxsize=4096)  # a node full of pods asks for the same thousand names at each scan
def link_device_name(ifname: str) -> str:
    """The interface name itself if it is a DNS label, else :func:`encoded_link_name`.

    It meets no name of the other rules: those with a PCI address have at least 16 characters, an
    interface name at most 15.
    """
    return ifname if is_device_name(ifname) else encoded_link_name(ifname)


def encoded_link_name(ifname: str) -> str:
    """``net-`` and the interface name in lower-case base32 without padding: ``eth_0`` -> ``net-mv2gqxzq``."""
    return _encoded("net-", ifname)


def rdma_device_name(rdma_device: str) -> str:
    """Name of an RDMA device without PCI address and interface: ``rxe0`` -> ``rdma-rxe0``.

    A kernel name that is no DNS label (``mlx5_0``) goes through base32 like an interface's.
    """
    name = f"rdma-{rdma_device}"
    return name if is_device_name(name) else _encoded("rdma-", rdma_device)


def _flat(address: str) -> str:
    return address.lower().replace(":", "-").replace(".", "-")


def _encoded(prefix: str, text: str) -> str:
    """What would be too long (an RDMA device may have 63 characters) ends in a checksum, so that two names
    that begin alike stay two."""
    data = _to_bytes(text)
    name = prefix + base64.b32encode(data).decode().rstrip("=").lower()
    if len(name) <= _MAX_LENGTH:
        return name
    return f"{name[: _MAX_LENGTH - _CHECKSUM_DIGITS]}{zlib.crc32(data):08x}"


def _to_bytes(text: str) -> bytes:
    """Names come from the kernel as bytes; those that are not UTF-8 travel as surrogate escapes. A capture
    that was edited may also hold any other surrogate."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")
