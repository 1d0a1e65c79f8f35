"""Documents for property tests: valid parameters, nearly valid ones, and any JSON."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dranet.model.parameters.network import Envelope, NetworkConfig
from dranet.model.parameters.part import walk_fields

Document = dict[str, Any]

JSON: SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["10.0.0.1/24", "fd00::1", "1G", "net1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def some(**fields: SearchStrategy[Any]) -> SearchStrategy[Document]:
    """An object with any of the fields; a trailing underscore keeps Python's words apart."""
    return st.fixed_dictionaries({}, optional={name.rstrip("_"): value for name, value in fields.items()})


def octets(prefix: str, tail: str) -> SearchStrategy[str]:
    return st.integers(1, 254).map(lambda n: f"{prefix}.{n}{tail}")


_flag = st.booleans()
_uint32 = st.integers(0, 2**32 - 1)
_names = st.from_regex(r"[a-z][a-z0-9]{0,7}", fullmatch=True).filter(
    lambda n: n not in ("lo", "all", "default")
)
_macs = st.binary(min_size=5, max_size=5).map(lambda b: "02:" + b.hex(":"))
_quantity = st.sampled_from(["10k", "1.5M", "64Ki", "10G", 8000, 10**9])
_interface = some(
    name=_names | st.just(""),
    mtu=st.integers(1280, 65535),
    hardwareAddr=_macs,
    txQueueLength=st.integers(0, 2**31 - 1),
    gsoMaxSize=st.integers(1, 2**32 - 1),
    groIPv4MaxSize=st.integers(1, 2**32 - 1),
    addresses=st.lists(
        octets("10.0.0", "/24") | octets("fd00::1:0:0", "/64").map(lambda t: t.replace(".", ":"))
    ),
    disableEbpfPrograms=_flag,
    forwarding=_flag,
    inheritRouting=_flag,
    arpIgnore=st.sampled_from([0, 1, 2, 3, 8]),
    arpAnnounce=st.integers(0, 2),
    type=st.sampled_from(["passthrough", "macvlan"]),
    ipv6=some(acceptRA=st.integers(1, 2), duplicateAddressDetection=_flag, token=st.just("::5")),
    rateLimit=some(
        egress=st.fixed_dictionaries(
            {"rate": _quantity}, optional={"burst": _quantity.filter(lambda q: q != "10G")}
        )
    ),
)
_route = st.fixed_dictionaries(
    {"destination": octets("10.1", ".0/24"), "gateway": octets("10.0.0", "")},
    optional={
        "source": octets("10.0.0", ""),
        "metric": _uint32,
        "onlink": _flag,
        "mtu": st.integers(68, 65535),
    },
)
_link_route = st.fixed_dictionaries(
    {"destination": octets("10.2", ".0/24"), "scope": st.just(253)}, optional={"table": _uint32}
)
_rule = some(
    priority=st.integers(0, 32767),
    source=octets("10.0.0", "/32"),
    destination=octets("10.1", ".0/24"),
    table=_uint32,
    mark=_uint32 | st.sampled_from(["0x10", "7"]),
    inputInterface=_names,
)
_neighbour = st.fixed_dictionaries({"destination": octets("10.0.0", ""), "hardwareAddr": _macs})


def _distinct(items: SearchStrategy[Document]) -> SearchStrategy[list[Document]]:
    return st.lists(items, max_size=3, unique_by=lambda item: item["destination"])


DOCUMENTS = some(
    interface=_interface,
    routes=_distinct(_route | _link_route),
    rules=st.lists(_rule, max_size=2),
    neighbors=_distinct(_neighbour),
    ethtool=some(
        features=st.dictionaries(_names, _flag, max_size=2),
        privateFlags=st.dictionaries(_names, _flag, max_size=2),
        rings=some(rx=st.integers(1, 2**32 - 1)),
        channels=some(combined=_uint32),
        coalesce=some(rxUsecs=_uint32, adaptiveRx=_flag),
    ),
    sysctls=st.dictionaries(
        st.sampled_from(["net.ipv4.tcp_ecn", "net.ipv4.conf.IFNAME.rp_filter"]), st.integers(0, 2)
    ),
    rdma=some(
        managementDevices=_flag,
        memlock=st.just("unlimited") | _quantity,
        forkSafe=_flag,
        hugePagesSafe=_flag,
    ),
    nccl=some(topologyFile=_flag, configFile=_flag)
    | st.fixed_dictionaries(
        {"configFile": st.just(True)},
        optional={
            "gidIndex": st.just("auto") | st.integers(0, 1023),
            "crossNic": st.just("auto") | st.integers(0, 2),
            "socketInterface": st.just("eth0"),
        },
    ),
    ucx=some(netDevices=_flag),
    memory=some(policy=st.sampled_from(["bind", "preferred", "interleave"])),
)
"""Every one of them is valid."""


def _damage(document: Document, where: list[str], value: Any) -> Document:
    """The document with something else at one place, and all that is there else."""
    if not where:
        return document
    head, *rest = where
    below = document.get(head)
    return {**document, head: _damage(below, rest, value) if rest and isinstance(below, dict) else value}


_PLACES = st.sampled_from(
    [path.split(".") for part in (NetworkConfig, Envelope) for path, _ in walk_fields(part)]
)
NEAR_DOCUMENTS = st.builds(_damage, DOCUMENTS, _PLACES | st.lists(st.text(max_size=5), max_size=3), JSON)
"""Valid ones with one part replaced, which may make them invalid."""
