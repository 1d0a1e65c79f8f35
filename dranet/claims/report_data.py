"""What a pod got with its device, beyond what ``networkData`` has a field for: ``status.devices[].data``.

A JSON object for people and controllers. Where the API has no room for all of it, whole keys give way from
the end (``cluster.claim_status``), so they stand in the order of their worth. Nothing in it changes while the
pod runs but what is known of its GPUs; the time at which a lease ends would, with every renewal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dranet.model.facts import TABLE_MAIN
from dranet.model.plan import AddRule, AttachPlan, CreateLink, DhcpLease, JoinVrf, MoveLink, PreparedDevice
from dranet.model.status import AttachedLink, AttachedRoute

JsonObject = dict[str, Any]

DATA_KEYS = {
    "interfaceName": "the interface in the pod",
    "hostInterfaceName": "the interface on the node: the one that moved, or the one below",
    "type": "`passthrough` (the device itself moved), or `macvlan`, `ipvlan`, `vlan` on top of it",
    "hardwareAddress": "of the interface in the pod",
    "mtu": "of the interface in the pod, in bytes",
    "rdmaDevice": "the RDMA device that belongs to it",
    "pciAddress": "of the PCI function",
    "pcieRoot": "the PCIe root above it",
    "numaNode": "the NUMA node that it is on",
    "alignment": "how far it is from each GPU of its pod, and the best that the node could have given "
    "([table](alignment.md#in-the-claims-status))",
    "vrf": "the VRF that it joined",
    "dhcp": "`server` and `leaseSeconds` of the lease that the address is from",
    "routeCount": "routes through it in the pod, without those that the kernel makes by itself",
    "addresses": "all its addresses in CIDR form; `networkData.ips` holds 16",
    "gids": "GIDs of its RDMA ports as they were after the attach",
    "routes": "`destination`, and where there is one `gateway`, and `table` if it is not main, of each of "
    "those routes",
    "rules": "policy rules that came with it, as read back: `priority`, `table` and what they select",
}
"""Every key with its meaning; ``docs/user/status.md`` lists them. The last give way first."""


def build_data(prepared: PreparedDevice, link: AttachedLink | None) -> JsonObject:
    """What is known of an attached device, without what is empty."""
    known = {**_of_device(prepared), **_of_plan(prepared.plan), **_of_link(link)}
    return {key: known[key] for key in DATA_KEYS if known.get(key) not in (None, "", [], {})}


def _of_device(prepared: PreparedDevice) -> JsonObject:
    device = prepared.device
    return {
        "rdmaDevice": (prepared.rdma.pod_name or device.rdma_device) if prepared.rdma.nodes else "",
        "pciAddress": device.pci_address,
        "pcieRoot": device.pcie_root,
        "numaNode": device.numa_node,
    }


def _of_plan(plan: AttachPlan | None) -> JsonObject:
    if plan is None:
        return {}
    return {
        **_of_origin(plan),
        "vrf": next((step.name for step in plan.steps if isinstance(step, JoinVrf)), ""),
        "dhcp": _describe_lease(plan.lease),
    }


def _of_origin(plan: AttachPlan) -> JsonObject:
    for step in plan.steps:
        if isinstance(step, CreateLink):
            return {"type": step.kind, "hostInterfaceName": step.parent_ifname}
        if isinstance(step, MoveLink):
            return {"type": "passthrough", "hostInterfaceName": plan.host.ifname if plan.host else ""}
    return {}


def _of_link(link: AttachedLink | None) -> JsonObject:
    if link is None:
        return {}
    known: JsonObject = {
        "interfaceName": link.pod_ifname,
        "hardwareAddress": link.mac,
        "mtu": link.mtu,
        "addresses": list(link.addresses),
        "gids": list(link.gids),
        "routeCount": len(link.routes) or None,
        "routes": [_describe_route(route) for route in link.routes],
        "rules": [_describe_rule(rule) for rule in link.rules],
    }
    return {**known, "rdmaDevice": link.rdma_device} if link.rdma_device else known


def _describe_route(route: AttachedRoute) -> JsonObject:
    texts = dict(_given(destination=route.destination, gateway=", ".join(route.gateways)))
    return texts if route.table == TABLE_MAIN else {**texts, "table": route.table}


def _describe_rule(rule: AddRule) -> JsonObject:
    """With the names of the claim's parameters."""
    texts = _given(
        source=rule.source,
        destination=rule.destination,
        mark="" if rule.mark is None else f"{rule.mark:#x}",
        mask="" if rule.mark is None or rule.mask is None else f"{rule.mask:#x}",
        inputInterface=rule.input_interface,
        outputInterface=rule.output_interface,
    )
    version = {} if rule.source or rule.destination else {"family": f"IPv{rule.family}"}
    return {"priority": rule.priority, "table": rule.table, **dict(texts), **version}


def _describe_lease(lease: DhcpLease | None) -> JsonObject:
    return {} if lease is None else {"server": lease.server, "leaseSeconds": lease.lease_seconds}


def _given(**texts: str) -> Iterator[tuple[str, str]]:
    return ((key, text) for key, text in texts.items() if text)
