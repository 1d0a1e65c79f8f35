"""The running kernel: is it new enough, and was it built with what claims may ask for?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dranet.desk.doctor.checks import Surroundings, Told, check, fine, join, note, problem, warning
from dranet.model.host_facts import SOFT_OPTIONS

KERNEL = "kernel"

LEAST, LEAST_FOR_RDMA = (4, 20), (5, 3)
"""Strict netlink dumps (``NETLINK_GET_STRICT_CHK``); RDMA devices that move between namespaces."""

_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,4})")


def parse_version(release: str) -> tuple[int, int] | None:
    """``6.12.95+deb12-amd64`` -> (6, 12)."""
    found = _VERSION.match(release)
    return (int(found[1]), int(found[2])) if found else None


@check(
    "kernel-old",
    KERNEL,
    "the version of the kernel",
    matters="The driver reads links with strict netlink dumps (Linux 4.20), and moves RDMA devices between "
    "network namespaces (Linux 5.3).",
    mend="Update the node's kernel; distributions of 2022 and later have 5.14 or more.",
)
def version(seen: Surroundings) -> Iterator[Told]:
    release = seen.host.kernel.release
    found = parse_version(release)
    if found is None:
        return
    if found < LEAST:
        yield problem(f"Linux {release}", matters="No link of this node can be read.")
    elif seen.rdma and found < LEAST_FOR_RDMA:
        yield warning(f"Linux {release}", matters="RDMA devices cannot move into pods.")
    else:
        yield fine(f"Linux {release}")


@check(
    "kernel-options",
    KERNEL,
    "what the kernel was built with (/proc/config.gz, /boot/config-*)",
    matters="A claim that asks for what is missing is refused when it is prepared.",
    mend="Use a kernel of the distribution's standard flavour: slim ones for clouds and micro VMs leave "
    "these out.",
)
def options(seen: Surroundings) -> Iterator[Told]:
    config = seen.host.kernel.config
    if config is None:
        return
    built = dict(config)
    if "NET_NS" not in built:
        yield problem("without NET_NS (network namespaces)", matters="Nothing can be given to a pod.")
    lost = [f"{name} ({what})" for name, what in SOFT_OPTIONS.items() if name not in built]
    if lost:
        yield note(f"without {join(lost, 12)}")
    if "NET_NS" in built and not lost:
        yield fine("built with all that claims can ask for")


CHECKS = (version, options)
