"""Kernel settings: those that parameters stand for, and those that a claim names itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dranet.claims.plan.inputs import PlanInput
from dranet.model.parameters.network import NetworkConfig
from dranet.model.parameters.sysctls import (
    build_sysctl_path,
    find_refusal,
    find_value_problem,
    is_per_interface,
)
from dranet.model.plan import SetSysctl

VRF_SYSCTLS = ("ipv4/tcp_l3mdev_accept", "ipv4/udp_l3mdev_accept")
"""What joining a VRF sets to 1, so that sockets of the pod take connections that come through it."""


def plan_early_sysctls(inputs: PlanInput) -> Iterator[SetSysctl]:
    """What must hold before the link is up and has addresses: everything that belongs to it."""
    for key, value in _find_values(inputs).items():
        yield SetSysctl(_link_path(key, inputs.pod_ifname), str(int(value)))
    for name, text in inputs.config.sysctls.items():
        if is_per_interface(name):
            yield SetSysctl(build_sysctl_path(name, inputs.pod_ifname), str(text))


def plan_late_sysctls(config: NetworkConfig) -> Iterator[SetSysctl]:
    """What belongs to the pod's whole namespace; also a device without a link may bring that."""
    for name, text in config.sysctls.items():
        if not is_per_interface(name):
            yield SetSysctl(build_sysctl_path(name, ""), str(text), early=False)


def _find_values(inputs: PlanInput) -> Mapping[str, int]:
    """What the parameters set, by folder and name.

    Forwarding makes IPv6 ignore router advertisements, unless ``acceptRA`` is 2.
    """
    interface, ipv6 = inputs.config.interface, inputs.config.interface.ipv6
    detect = ipv6.duplicate_address_detection
    asked: Mapping[str, int | None] = {
        "ipv4/conf/forwarding": interface.forwarding,
        "ipv4/conf/arp_ignore": interface.arp_ignore,
        "ipv4/conf/arp_announce": interface.arp_announce,
        "ipv6/conf/disable_ipv6": None if ipv6.enabled is None else not ipv6.enabled,
        "ipv6/conf/accept_ra": ipv6.accept_ra,
        "ipv6/conf/accept_dad": detect,
        "ipv6/conf/dad_transmits": 0 if detect is False else None,
        "ipv6/conf/forwarding": interface.forwarding,
    }
    return {
        key: value
        for key, value in asked.items()
        if value is not None and (inputs.link_has_ipv6 or not key.startswith("ipv6/"))
    }


def _link_path(key: str, ifname: str) -> str:
    folder, _, name = key.rpartition("/")
    return f"{folder}/{ifname}/{name}"


def check_sysctls(inputs: PlanInput) -> Iterator[str]:
    """Settings that no claim may write, that this kernel lacks, or that a parameter sets already."""
    for name, value in inputs.config.sysctls.items():
        problem = find_refusal(name) or _find_trouble(name, inputs) or find_value_problem(value)
        if problem:
            yield f'sysctls["{name}"]: {problem}'


def check_namespace_sysctls(config: NetworkConfig) -> Iterator[str]:
    """As :func:`check_sysctls`, for a device without a link."""
    for name, value in config.sysctls.items():
        problem = find_refusal(name) or find_value_problem(value)
        if problem:
            yield f'sysctls["{name}"]: {problem}'


def _find_trouble(name: str, inputs: PlanInput) -> str:
    """What speaks against an allowed setting on this link."""
    path = build_sysctl_path(name, inputs.pod_ifname)
    if path in {_link_path(key, inputs.pod_ifname) for key in _find_values(inputs)}:
        # The settings of the other parameters are on no claim's list.
        return "interface.ipv6.duplicateAddressDetection sets it too; leave one of them out"
    if path in VRF_SYSCTLS and inputs.config.interface.vrf:
        return "interface.vrf sets it to 1; leave it out"
    if name.startswith("net.ipv6.") and not inputs.node_has_ipv6:
        return inputs.ipv6_blocker
    return _find_absence(name, inputs) if is_per_interface(name) else ""


def _find_absence(name: str, inputs: PlanInput) -> str:
    """The kernel gives each link the same settings: what the host's link lacks, the pod's will lack."""
    if name.startswith("net.ipv6.") and not inputs.link_has_ipv6:
        return inputs.ipv6_blocker
    _, family, kind, _, key = name.split(".")
    family_was_read = any(known.startswith(f"{family}/") for known in inputs.host.sysctls)
    if family_was_read and f"{family}/{kind}/{key}" not in inputs.host.sysctls:
        return "the kernel of this node has no such setting"
    return ""
