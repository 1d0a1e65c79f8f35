"""Two managers of one NIC: what else allocates, configures or takes the devices that this driver offers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dranet.desk.doctor.checks import Evaluation, Surroundings, check, fine, join, note, warning
from dranet.model.findings import WITHOUT_CONNECTION

MANAGERS = "managers"

NETWORK_MANAGER, NETWORKD = "NetworkManager", "systemd-networkd"


def _managed_by(seen: Surroundings, name: str) -> dict[str, str]:
    """Links that are offered, with what is known of how they are managed."""
    return {m.link: m.detail for m in seen.host.managers if m.name == name and m.link in seen.offered_links}


@check(
    "networkmanager",
    MANAGERS,
    "NetworkManager on links that the driver offers",
    matters="When a link comes back from a pod it is configured again (addresses, DHCP, routes) before "
    "the driver has restored what was there, and a link that NetworkManager is busy with may not leave. A "
    "link without a connection is left as it is until a connection is made for it.",
    fix="/etc/NetworkManager/conf.d/90-dranet.conf: `[keyfile]` "
    "`unmanaged-devices=interface-name:LINK;...`, then `nmcli general reload`.",
)
def network_manager(seen: Surroundings) -> Iterator[Evaluation]:
    links = _managed_by(seen, NETWORK_MANAGER)
    if links:
        names = ";".join(f"interface-name:{link}" for link in list(links)[:16])
        idle = all(detail == WITHOUT_CONNECTION for detail in links.values())
        severity, suffix = (note, f", {WITHOUT_CONNECTION}") if idle else (warning, "")
        yield severity(
            f"NetworkManager manages {join(links)}{suffix}",
            fix=f"/etc/NetworkManager/conf.d/90-dranet.conf: [keyfile] unmanaged-devices={names}, then "
            "nmcli general reload.",
        )
    elif seen.process(NETWORK_MANAGER):
        yield fine("NetworkManager leaves what is offered alone")


@check(
    "networkd",
    MANAGERS,
    "systemd-networkd on links that the driver offers",
    matters="When a link comes back from a pod it is configured again, and foreign addresses and routes "
    "are removed (ManageForeignRoutes), before the driver has restored what was there.",
    fix="/etc/systemd/network/05-dranet.network: `[Match]` `Name=LINK ...` `[Link]` `Unmanaged=yes`, then "
    "`networkctl reload`.",
)
def networkd(seen: Surroundings) -> Iterator[Evaluation]:
    links = _managed_by(seen, NETWORKD)
    if links:
        yield warning(
            f"systemd-networkd manages {join(links)}",
            fix=f"/etc/systemd/network/05-dranet.network: [Match] Name={' '.join(list(links)[:16])} [Link] "
            f"Unmanaged=yes, then networkctl reload.",
        )
    elif seen.process("systemd-networkd"):
        yield fine("systemd-networkd leaves what is offered alone")


@check(
    "cni-takes-link",
    MANAGERS,
    "CNI configurations (Multus, SR-IOV, host-device, macvlan) that name a link the driver offers",
    matters="Kubernetes does not know that both give out the same link: the pod that comes second does "
    "not start, or finds the link of another pod.",
    fix="Take the link out of one of the two: change the network, or leave it out here (`--filter`).",
)
def cni(seen: Surroundings) -> Iterator[Evaluation]:
    ours = seen.offered_links | seen.offered_addresses
    for manager in seen.host.managers:
        if manager.name.startswith("/") and manager.link in ours:
            yield warning(f"{manager.name} ({manager.detail}) takes {manager.link}")


@check(
    "device-plugin-overlap",
    MANAGERS,
    "device plugins (SR-IOV, RDMA) that give out functions which the driver offers",
    matters="The scheduler counts the same NIC twice: two pods get it, and the second one does not start.",
    fix="One manager for each function: other selectors in the device plugin's configuration, or leave "
    "it out here (`--filter`). How to move over: docs/networking/sriov-and-multus.md.",
)
def device_plugins(seen: Surroundings) -> Iterator[Evaluation]:
    for plugin in seen.plugins:
        both = sorted(seen.offered_addresses.intersection(plugin.ids))
        if both:
            yield warning(f"{plugin.resource} gives out {join(both)}")


_NIC_WORDS = ("sriov", "rdma", "hca", "netdevice", "/nic", "efa", "ib_", "roce")


@check(
    "device-plugin-of-nics",
    MANAGERS,
    "extended resources of this node that are NICs by their names",
    matters="Another device plugin gives out NICs here. Nothing is wrong while they are others than "
    "those of this driver; which ones it has cannot be seen from here.",
    fix="Compare its configuration with `dranet devices`: docs/networking/sriov-and-multus.md.",
)
def plugins_by_name(seen: Surroundings) -> Iterator[Evaluation]:
    known = {plugin.resource for plugin in seen.plugins}
    names = [name for name in seen.cluster.resources if any(word in name.lower() for word in _NIC_WORDS)]
    unsure = [name for name in names if name not in known or not _names_functions(seen, name)]
    if unsure and seen.offered_addresses:
        yield note(f"device plugins that look like NICs: {join(unsure)}")


def _names_functions(seen: Surroundings, resource: str) -> bool:
    """Whether the plugin's ids are PCI addresses, so that an overlap would have been seen."""
    known = {function.address for function in seen.node.pci_functions}
    return any(p.resource == resource and known.intersection(p.ids) for p in seen.plugins)


@check(
    "dra-driver-overlap",
    MANAGERS,
    "other DRA drivers that offer a NIC which this driver offers",
    matters="The scheduler sees two devices where there is one: both are given out, and one pod does not "
    "start.",
    fix="Leave the NIC out of one of them (here: `--filter`), or remove the other driver's slices.",
)
def other_drivers(seen: Surroundings) -> Iterator[Evaluation]:
    both: dict[str, list[str]] = defaultdict(list)
    for device in seen.cluster.others:
        if device.pci_address in seen.offered_addresses:
            both[device.driver].append(device.pci_address)
    for driver, addresses in sorted(both.items()):
        yield warning(f"{driver} also offers {join(sorted(addresses))}")


CHECKS = (network_manager, networkd, cni, device_plugins, plugins_by_name, other_drivers)
