"""Addresses from outside the claim: their source (an entry of ``ipam_file``), the request, the answer.

An entry is a tagged union: the file has ``NAME: {cni: {...}}``, and so do the journal's records, which
keep what is needed to give an address back after the file has changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Union

from msgspec import Struct

from dranet.model.ipam_answer import IpamAnswer as IpamAnswer
from dranet.model.ipam_answer import IpamProblem as IpamProblem
from dranet.model.ipam_answer import IpamRoute as IpamRoute
from dranet.model.ipam_answer import PoolNode as PoolNode

if TYPE_CHECKING:
    from dranet.model.address_pool import AddressPool

CNI_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""Versions of the CNI specification whose results the driver reads."""
DEFAULT_CNI_VERSION = "1.0.0"

IPAM_NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
_NAME = re.compile(IPAM_NAME_PATTERN)
_NETWORK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""As the CNI specification has it: it may become the name of a folder."""
_PLUGIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""A file in ``cni_bin_dirs``: no path leads out of these."""


class CniNetwork(Struct, frozen=True, tag="cni", tag_field="by"):
    """An IPAM plugin of CNI, by its network configuration; complete, with ``cniVersion`` and ``name``."""

    config: Mapping[str, Any]

    @property
    def plugin(self) -> str:
        return str(self.config["ipam"]["type"])

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, self.config["cniVersion"].split(".")))

    @property
    def has_check(self) -> bool:
        """CHECK came with 0.4.0, and an administrator may switch it off (``disableCheck``)."""
        return self.version >= (0, 4, 0) and self.config.get("disableCheck") is not True


IpamSource = CniNetwork
"""The program that gives addresses; ``by`` distinguishes the kinds."""
AddressSource = Union["IpamSource", "AddressPool"]
"""What an entry of the file is; of a pool nothing is asked."""


class IpamRequest(Struct, frozen=True):
    """What is asked for one device of a claim, and how it is released. It stays as it is over retries."""

    device: str
    """Which device of the claim: a key of the answers."""
    name: str
    """The entry of ``ipam_file``."""
    source: IpamSource
    container_id: str
    """With ``ifname`` what the address belongs to: a claim, for one pod."""
    ifname: str
    """Name of the link in the pod."""
    pod_namespace: str
    pod_name: str
    pod_uid: str

    @property
    def key(self) -> tuple[str, str]:
        return self.container_id, self.ifname


def parse_cni(name: str, value: object) -> CniNetwork:
    """The network configuration below ``cni``; ``name`` is its entry's. Raises IpamProblem."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise IpamProblem("must be a CNI network configuration: a mapping with the key ipam")
    version = value.get("cniVersion", DEFAULT_CNI_VERSION)
    if not isinstance(version, str) or version not in CNI_VERSIONS:
        raise IpamProblem(f"must be one of {', '.join(CNI_VERSIONS)}", "cniVersion")
    network = value.get("name", name)
    if not isinstance(network, str) or not _NETWORK_NAME.fullmatch(network):
        raise IpamProblem("must be a name of letters, digits, _, . and -", "name")
    if "plugins" in value:
        raise IpamProblem("must be absent: give the one plugin's configuration, not a list", "plugins")
    if not isinstance(value.get("disableCheck", False), bool):
        raise IpamProblem("must be true or false", "disableCheck")
    ipam = value.get("ipam")
    if not isinstance(ipam, dict):
        raise IpamProblem("must be the configuration of an IPAM plugin, with its type", "ipam")
    plugin = ipam.get("type")
    if not isinstance(plugin, str) or not _PLUGIN_NAME.fullmatch(plugin):
        raise IpamProblem("must be the name of an IPAM plugin, such as host-local", "ipam", "type")
    if plugin == "dhcp":
        raise IpamProblem(
            "dhcp asks from inside the pod's network namespace, which does not exist when a claim is "
            "prepared; set interface.dhcp: true in the claim instead",
            "ipam",
            "type",
        )
    return CniNetwork({**value, "cniVersion": version, "name": network})


def _parse_pool(name: str, value: object, driver: str) -> AddressPool:
    from dranet.model.address_pool import parse_pool

    return parse_pool(name, value, driver)


PARSERS: Mapping[str, Callable[[str, object, str], AddressSource]] = {
    "cni": lambda name, value, _driver: parse_cni(name, value),
    "pool": _parse_pool,
}
"""By the key that names the kind of source."""


def parse_entry(name: object, value: object, driver: str = "dra.net") -> AddressSource:
    """One entry of the file; ``driver`` is ``device.driver`` of its expressions. Raises IpamProblem."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise IpamProblem("a name has at most 63 letters, digits, _, . and -; quote numbers")
    if isinstance(value, dict) and "dhcpv6" in value:
        raise IpamProblem(
            "the driver has no DHCPv6 client: run dhcpcd in the pod, see docs/networking/address-pools.md",
            "dhcpv6",
        )
    if not isinstance(value, dict) or len(value) != 1 or (kind := next(iter(value))) not in PARSERS:
        raise IpamProblem(f"must be a mapping with one key of {', '.join(PARSERS)}")
    try:
        return PARSERS[kind](name, value[kind], driver)
    except IpamProblem as problem:
        raise IpamProblem(str(problem), kind, *problem.path) from None
