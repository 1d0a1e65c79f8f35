"""Stable device names, by DraNet's rules: from the PCI address where there is one.

A device name is a DNS-1123 label of at most 63 characters. Names of PCI functions survive renames, moves
between namespaces and reboots; a name made from an interface name changes with it.
"""

from __future__ import annotations

import base64
import re

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def pci_device_name(address: str) -> str:
    """``0000:1a:00.0`` -> ``pci-0000-1a-00-0``."""
    return "pci-" + _flat(address)


def gpu_device_name(address: str) -> str:
    """``0000:1b:00.0`` -> ``gpu-0000-1b-00-0``."""
    return "gpu-" + _flat(address)


def link_device_name(ifname: str) -> str:
    """The interface name itself if it is a DNS label, else :func:`encoded_link_name`.

    It meets no name of the other rules: those with a PCI address have at least 16 characters, an
    interface name at most 15.
    """
    return ifname if _DNS_LABEL.fullmatch(ifname) else encoded_link_name(ifname)


def encoded_link_name(ifname: str) -> str:
    """``net-`` and the interface name in lower-case base32 without padding: ``eth_0`` -> ``net-mv2gqxzq``."""
    return "net-" + _base32(ifname)


def rdma_device_name(rdma_device: str) -> str:
    """Name of an RDMA device without PCI address and interface: ``rxe0`` -> ``rdma-rxe0``.

    A kernel name that is no DNS label (``mlx5_0``) goes through base32 like an interface's.
    """
    name = f"rdma-{rdma_device}"
    return name if _DNS_LABEL.fullmatch(name) else "rdma-" + _base32(rdma_device)[:58]


def _flat(address: str) -> str:
    return address.lower().replace(":", "-").replace(".", "-")


def _base32(text: str) -> str:
    """Names come from the kernel as bytes; those that are not UTF-8 travel as surrogate escapes."""
    return base64.b32encode(text.encode(errors="surrogateescape")).decode().rstrip("=").lower()
