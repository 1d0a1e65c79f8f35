"""Each cloud's module against a stand-in of its metadata service, made from its public documentation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import ProviderError
from dranet.model.parameters.network import NetworkConfig
from dranet.model.provider import check_attributes
from dranet.providers.cloud import alibaba, aws, azure, gce, metadata, oke
from dranet.providers.cloud.answers import CloudFacts, canonical_mac
from dranet.providers.cloud.metadata import MetadataClient, read_all
from testbed.cloud import MetadataService, Mischief, serve_metadata
from tests.providers.cloud.machines import MACHINES, Machine

READERS = {"gce": gce.read, "aws": aws.read, "azure": azure.read, "oke": oke.read, "alibaba": alibaba.read}
OPTIONAL = ("physical_host", "group-name", "zone-id", "network-card", "subnet-id", "vswitch-id")
KEYS = ["compute", "network", "interface", "ipv4", "subnet", "address", "prefix", "macAddress", "mac"]
KEYS += ["ipv6", "ipAddress", "privateIpAddress"]
KEYS += ["vmSize", "rdmaTopologyData", "customerHPCIslandId", "rackId", "instanceType", "ipAliases"]
FIRST = {machine.provider: machine for machine in reversed(MACHINES)}
pytestmark = pytest.mark.socket


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[MetadataService]:
    machine: Machine = request.param
    with serve_metadata(machine.provider, machine.answers) as opened:
        yield opened


def read(service: MetadataService) -> CloudFacts:
    return asyncio.run(READERS[service.provider](MetadataClient("127.0.0.1", service.port)))


async def try_to_read(service: MetadataService) -> CloudFacts | ProviderError:
    async with asyncio.timeout(30):
        try:
            return await READERS[service.provider](MetadataClient("127.0.0.1", service.port))
        except ProviderError as error:
            return error


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_documented_answers_become_the_attributes_of_that_machine(machine: Machine) -> None:
    with serve_metadata(machine.provider, machine.answers) as service:
        facts = read(service)
    labelled = {name for name in machine.attributes if "networkNode" in name or "capacityBlock" in name}
    assert facts.node == {k: v for k, v in machine.attributes.items() if k not in labelled}
    assert facts.by_mac == machine.interfaces
    for values in (facts.node, *facts.by_mac.values()):
        assert not check_attributes(values).problems


@pytest.mark.parametrize("service", FIRST.values(), ids=FIRST, indirect=True)
@pytest.mark.parametrize("mischief", [one for one in Mischief if one is not Mischief.NONE])
def test_a_service_that_misbehaves_gives_an_error_in_time(
    service: MetadataService, mischief: Mischief, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "EXCHANGE_SECONDS", 0.2 if mischief is Mischief.SILENT else 10.0)
    service.mischief = mischief
    found = asyncio.run(try_to_read(service))
    if isinstance(found, ProviderError):
        assert "metadata service 127.0.0.1" in found.message
    else:  # text is text; what is no attribute is left out where it is checked
        assert mischief is Mischief.WRONG_TYPES
        assert not found.by_mac
    assert not any("elsewhere" in request for request in service.requests)


@pytest.mark.parametrize("body", ['{"instanceType": "\\ud800"}', '{"\\udc00": 1}', '{"instanceType": NaN}'])
@pytest.mark.parametrize("service", [FIRST["aws"]], indirect=True)
def test_json_that_is_no_text_is_an_error(service: MetadataService, body: str) -> None:
    service.answers["/latest/dynamic/instance-identity/document"] = body
    found = asyncio.run(try_to_read(service))
    assert isinstance(found, ProviderError)
    assert "is not JSON" in found.message


@pytest.mark.parametrize("service", FIRST.values(), ids=FIRST, indirect=True)
def test_a_fact_that_a_machine_has_not_is_left_out(service: MetadataService) -> None:
    for path in [path for path in service.answers if path.endswith(OPTIONAL)]:
        del service.answers[path]
    facts = read(service)
    assert facts.node
    assert all(value not in ("", None) for value in facts.node.values())


@pytest.mark.parametrize("service", [FIRST["azure"]], indirect=True)
def test_an_older_azure_is_asked_in_a_version_that_it_knows(service: MetadataService) -> None:
    newest, answer = service.answers.popitem()
    service.answers[newest.replace("2025-11-11", "2021-02-01")] = answer
    assert read(service).node["azure.dra.net/vmSize"] == "Standard_ND128isr_GB300_v6"
    assert len(service.requests) == 3


def test_azure_routes_by_source_as_in_dranet() -> None:
    (answer,) = FIRST["azure"].answers.values()
    (config,) = azure.parse(answer).configs.values()
    assert config == {
        "rules": [{"source": "10.0.0.0/16", "table": 100}],
        "routes": [{"destination": "0.0.0.0/0", "gateway": "10.0.0.1", "table": 100}],
    }


def azure_nic(subnet: str, *addresses: str) -> dict[str, Any]:
    network, _, prefix = subnet.partition("/")
    return {
        "macAddress": "000D3AF806EC",
        "ipv4": {"ipAddress": [], "subnet": [{"address": network, "prefix": prefix}] if subnet else []},
        "ipv6": {"ipAddress": [{"privateIpAddress": address} for address in addresses]},
    }


def azure_config(nic: dict[str, Any], router: str) -> Any:
    """Of the second NIC of a machine."""
    facts = azure.parse({"network": {"interface": [{"macAddress": "000D3A000000"}, nic]}})
    return facts.find_config("00:0d:3a:f8:06:ec", lambda: router)


ROUTER = "fe80::1234:5678:9abc"


def test_azure_routes_ipv6_by_source_and_the_router_that_the_kernel_has_learned() -> None:
    nic = azure_nic("10.9.0.0/24", "fda0:ad0a:cdcb:2000::5", "FDA0:AD0A:CDCB:2000::6")
    config = azure_config(nic, ROUTER)
    assert config == {
        "rules": [
            {"source": "10.9.0.0/24", "table": 101},
            {"source": "fda0:ad0a:cdcb:2000::5/128", "table": 101},
            {"source": "fda0:ad0a:cdcb:2000::6/128", "table": 101},
        ],
        "routes": [
            {"destination": "0.0.0.0/0", "gateway": "10.9.0.1", "table": 101},
            {"destination": "::/0", "gateway": ROUTER, "table": 101},
        ],
    }
    assert NetworkConfig.model_validate(config).rules


def test_azure_routes_no_ipv6_without_a_router_or_an_address_of_the_network() -> None:
    of_ipv4 = azure_config(azure_nic("10.9.0.0/24"), ROUTER)
    assert [rule["source"] for rule in of_ipv4["rules"]] == ["10.9.0.0/24"]
    assert azure_config(azure_nic("10.9.0.0/24", "fd00::5"), "") == of_ipv4
    for address in ("", "x", "10.0.0.4", "fe80::5", "fd00::5%eth0", "ff02::1", "::", "::1"):
        assert azure_config(azure_nic("10.9.0.0/24", address), ROUTER) == of_ipv4
    assert azure_config(azure_nic("", "fd00::5"), ROUTER) == {
        "rules": [{"source": "fd00::5/128", "table": 101}],
        "routes": [{"destination": "::/0", "gateway": ROUTER, "table": 101}],
    }


def test_gce_publishes_the_machine_type_although_a_network_has_an_odd_name() -> None:
    facts = gce.parse("projects/1/machineTypes/a3", [{"mac": "42:01:00:00:00:01", "network": "odd"}], "")
    assert facts == CloudFacts({"gce.dra.net/machineType": "a3"}, {"42:01:00:00:00:01": {}})


async def test_when_one_read_fails_the_others_end() -> None:
    async def wait() -> str:
        await asyncio.Event().wait()
        return ""

    async def fail() -> str:
        raise ProviderError("status 500")

    with pytest.raises(ProviderError, match="status 500"):
        await read_all([wait(), fail(), wait()])
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_nobody_there_is_an_error() -> None:
    with serve_metadata("gce", {}) as service:
        port = service.port
    with pytest.raises(ProviderError, match="machine-type"):
        asyncio.run(gce.read(MetadataClient("127.0.0.1", port)))


_TEXTS = st.sampled_from(
    [
        "10.0.0.0",
        "16",
        "31",
        "fd00::5",
        "fe80::1",
        "000D3A000000",
        "ocid1.rack.oc1..a",
        "projects/1/networks/n",
    ]
)
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80) | _TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=6,
        )
    ),
    max_leaves=30,
)


_AZURE = st.builds(
    lambda subnet, addresses: {"network": {"interface": [azure_nic(subnet, *addresses)]}},
    st.text(max_size=12) | st.builds("{}/{}".format, st.ip_addresses(v=4), st.integers(0, 33)),
    st.lists(st.ip_addresses(v=6).map(str) | st.text(max_size=8), max_size=3),
)


@given(answer=_JSON | _AZURE, text=st.text(max_size=200))
def test_no_answer_breaks_the_parsers_and_what_they_find_fits_a_slice_or_is_named(
    answer: Any, text: str
) -> None:
    found = [
        gce.parse(text, answer, text),
        oke.parse(answer, answer),
        aws.parse(answer, text, text, text, {"0a:00:00:00:00:01": (text, text)}),
        alibaba.parse(text, text, {"0a:00:00:00:00:01": text}),
    ]
    if isinstance(answer, dict):
        found.append(azure.parse(answer))
    for facts in found:
        for values in (facts.node, *facts.by_mac.values()):
            checked = check_attributes(values)
            assert len(checked.attributes) + len(checked.problems) == len(values)
        for mac in {*facts.configs, *facts.ipv6_routing}:
            NetworkConfig.model_validate(facts.find_config(mac, lambda: ROUTER))


@given(st.text(max_size=20))
def test_a_mac_is_canonical_or_empty(text: str) -> None:
    mac = canonical_mac(text)
    assert mac == "" or canonical_mac(mac.upper().replace(":", "")) == mac
