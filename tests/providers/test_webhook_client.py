"""The client of a webhook provider over real sockets: against a provider stand-in, and against bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dranet.errors import ProviderError, Reason, SettingsError
from dranet.http1 import Pem, Tls
from dranet.model.provider import DeviceIdentity
from dranet.providers.webhook import (
    MAX_BODY_BYTES,
    WebhookCapabilities,
    WebhookClient,
    describe_profile,
    parse_url,
)
from testbed.provider import ATTRIBUTES, CONFIG, HEALTH, PROFILE, RELEASE, Provider, ProviderServer, Trouble
from tests.support.certificates import Authority
from tests.support.waiting import until

pytestmark = pytest.mark.process

NIC = DeviceIdentity("pci-0000-8a-00-0", "eth1", "02:00:00:00:00:01", "0000:8a:00.0")
REQUEST = describe_profile(NIC, "uid-1", {"profile": "rail", "interface": {"mtu": 9000}})


@pytest.fixture
def provider() -> Provider:
    return Provider(
        attributes={"eth1": {"example.com/rack": {"string": "r7"}}},
        configs={NIC.name: {"interface": {"mtu": 1450}}},
        profiles={"rail": {"pool": "10.200.0.0/24"}},
    )


@pytest.fixture
def server(provider: Provider) -> Iterator[ProviderServer]:
    with ProviderServer(provider) as running:
        yield running


@pytest.fixture
def client(server: ProviderServer) -> WebhookClient:
    return connect(server.url)


def connect(url: str, tls: Tls | None = None, seconds: float = 10.0) -> WebhookClient:
    return WebhookClient(parse_url(url, tls or Tls()), seconds)


# --- the wire format is DraNet's ---


@pytest.mark.smoke
async def test_every_request_has_dranets_path_and_fields(provider: Provider, client: WebhookClient) -> None:
    assert await client.read_capabilities() == WebhookCapabilities(True, True)
    assert await client.read_attributes(NIC) == {"example.com/rack": {"string": "r7"}}
    assert await client.read_config(NIC) == {"interface": {"mtu": 1450}}
    assert await client.get_profile(REQUEST) == {"interface": {"addresses": ["10.200.0.1/24"]}}
    await client.release_profile(REQUEST)
    device = {"mac_address": NIC.mac, "pci_address": NIC.pci_address, "name": NIC.name}
    profile = {
        "device": device,
        "claim_uid": "uid-1",
        "config": {"interface": {"mtu": 9000}, "profile": "rail"},
    }
    assert [(call.path, call.body) for call in provider.calls] == [
        (HEALTH, None),
        (ATTRIBUTES, {**device, "name": "eth1"}),
        (CONFIG, device),
        (PROFILE, profile),
        (RELEASE, profile),
    ]
    assert not provider.grants


async def test_what_is_unknown_of_a_device_is_left_out_except_its_name(
    provider: Provider, client: WebhookClient
) -> None:
    await client.read_attributes(DeviceIdentity("dummy0"))
    assert provider.asked(ATTRIBUTES) == [{"name": ""}]


async def test_null_is_an_empty_answer(provider: Provider, client: WebhookClient) -> None:
    provider.trouble[ATTRIBUTES] = Trouble(body=b"null")
    assert await client.read_attributes(NIC) == {}


async def test_capabilities_that_a_provider_does_not_name_are_absent(
    provider: Provider, client: WebhookClient
) -> None:
    provider.capabilities = {"profileProvider": True}
    assert await client.read_capabilities() == WebhookCapabilities(False, True)


async def test_a_base_path_comes_before_each_path(server: ProviderServer, provider: Provider) -> None:
    client = connect(f"{server.url}/dranet/")
    with pytest.raises(ProviderError, match="/health: status 404"):
        await client.read_capabilities()
    assert provider.calls[0].path == "/dranet/health"


# --- where it is ---


async def test_a_provider_on_a_unix_socket_answers(provider: Provider, tmp_path: Path) -> None:
    with ProviderServer(provider, socket_path=tmp_path / "provider.sock") as server:
        assert server.url.startswith("unix:///")
        assert await connect(server.url).read_config(NIC) == {"interface": {"mtu": 1450}}


@pytest.fixture
def tls_server(provider: Provider, tmp_path: Path) -> Iterator[tuple[ProviderServer, Authority]]:
    authority = Authority(tmp_path)
    pair = authority.sign("provider")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.load_cert_chain(pair.certificate, pair.key)
    context.verify_mode = ssl.CERT_REQUIRED
    with ProviderServer(provider, tls=context) as running:
        yield running, authority


async def test_a_provider_that_wants_certificates_gets_ours(
    tls_server: tuple[ProviderServer, Authority],
) -> None:
    server, authority = tls_server
    pair = authority.sign("node")
    tls = Tls(Pem(authority.certificate), Pem(pair.certificate), Pem(pair.key))
    assert await connect(server.url, tls).read_capabilities() == WebhookCapabilities(True, True)


async def test_without_a_certificate_of_ours_it_is_away(
    tls_server: tuple[ProviderServer, Authority],
) -> None:
    server, authority = tls_server
    with pytest.raises(ProviderError) as caught:
        await connect(server.url, Tls(Pem(authority.certificate))).read_capabilities()
    assert (caught.value.reason, caught.value.retryable) == (Reason.PROVIDER_UNAVAILABLE, True)


async def test_a_provider_of_another_authority_is_not_asked(
    tls_server: tuple[ProviderServer, Authority], provider: Provider, tmp_path: Path
) -> None:
    server, authority = tls_server
    pair = authority.sign("node")
    other = Authority(tmp_path / "other")
    tls = Tls(Pem(other.certificate), Pem(pair.certificate), Pem(pair.key))
    with pytest.raises(ProviderError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        await connect(server.url, tls).read_capabilities()
    assert not provider.calls


async def test_a_certificate_that_is_replaced_counts_from_then_on(
    tls_server: tuple[ProviderServer, Authority], tmp_path: Path
) -> None:
    server, authority = tls_server
    strange, pair = Authority(tmp_path / "other").sign("node"), authority.sign("node")
    own = (tmp_path / "own.crt", tmp_path / "own.key")
    for file, text in zip(own, (strange.certificate, strange.key), strict=True):
        file.write_text(text.read_text())
    client = connect(server.url, Tls(Pem(authority.certificate), Pem(own[0]), Pem(own[1])))
    with pytest.raises(ProviderError):
        await client.read_capabilities()
    for file, text in zip(own, (pair.certificate, pair.key), strict=True):
        file.write_text(text.read_text() + "\n")
    assert await client.read_capabilities() == WebhookCapabilities(True, True)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("provider:8080", "must be http://HOST"),
        ("http://", "must be http://HOST"),
        ("ftp://provider", "must be http://HOST"),
        ("http://provider:port", "Port could not be cast"),
        ("http://user:secret@provider", "no user, query or fragment"),
        ("http://provider/?a=b", "no user, query or fragment"),
        ("unix://run/provider.sock", "must be unix:///PATH"),
        ("unix:///", "must be unix:///PATH"),
    ],
)
def test_a_url_of_another_form_is_refused(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match="--webhook-url") as caught:
        parse_url(url, Tls())
    assert words in str(caught.value)


@pytest.mark.parametrize("url", ["http://provider", "unix:///run/provider.sock"])
def test_certificates_without_https_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="must be https"):
        parse_url(url, Tls(Pem(tmp_path / "ca.crt")))


def test_a_certificate_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="TLS files of the webhook provider https://provider"):
        parse_url("https://provider", Tls(Pem(tmp_path / "absent.crt")))


# --- away, slow, and hostile ---


async def test_a_provider_that_does_not_run_is_away(server: ProviderServer) -> None:
    server.stop()
    with pytest.raises(ProviderError, match="is it running") as caught:
        await connect(server.url, seconds=0.5).get_profile(REQUEST)
    assert (caught.value.reason, caught.value.retryable) == (Reason.PROVIDER_UNAVAILABLE, True)


async def test_a_profile_is_asked_for_again_until_the_provider_has_it(
    provider: Provider, client: WebhookClient
) -> None:
    provider.trouble[PROFILE] = Trouble(status=503)
    asking = asyncio.create_task(client.get_profile(REQUEST))
    await until(lambda: len(provider.asked(PROFILE)) == 2)
    del provider.trouble[PROFILE]
    assert await asking == {"interface": {"addresses": ["10.200.0.1/24"]}}


async def test_a_profile_that_is_refused_is_not_asked_for_again(
    provider: Provider, client: WebhookClient
) -> None:
    with pytest.raises(ProviderError, match="status 404: \"profile 'slow' not found\"") as caught:
        await client.get_profile(describe_profile(NIC, "uid-1", {"profile": "slow"}))
    assert (caught.value.reason, caught.value.retryable) == (Reason.PROVIDER_REFUSED, False)
    assert len(provider.asked(PROFILE)) == 1


async def test_a_whole_exchange_has_one_time_limit(provider: Provider, server: ProviderServer) -> None:
    provider.trouble[CONFIG] = Trouble(hang=threading.Event())
    with pytest.raises(ProviderError, match=r"no whole answer within 0.2 s") as caught:
        await connect(server.url, seconds=0.2).read_config(NIC)
    assert caught.value.retryable


async def test_an_answer_that_drips_is_cut_off_by_the_same_limit() -> None:
    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"1\r\n \r\n")
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as dripping:
        url = f"http://127.0.0.1:{dripping.sockets[0].getsockname()[1]}"
        with pytest.raises(ProviderError, match=r"no whole answer within 0.3 s"):
            await connect(url, seconds=0.3).read_config(NIC)


@pytest.mark.parametrize(
    ("trouble", "words", "retryable"),
    [
        (Trouble(status=404, body=b'profile "x" not found\n'), 'status 404: profile "x" not found', False),
        (Trouble(status=409), "status 409", False),
        (Trouble(status=429), "status 429", True),
        (Trouble(status=500, body=b"pool is\nempty"), "status 500: pool is empty", True),
        (Trouble(status=204, body=b""), "status 204", False),
        (
            Trouble(status=302, headers={"Location": "http://127.0.0.1:1/"}),
            "redirects are not followed",
            False,
        ),
        (Trouble(body=b""), "not JSON", False),
        (Trouble(body=b"[]"), "must be a JSON object", False),
        (Trouble(body=b"\xff\xfe"), "not JSON", False),
        (Trouble(body=b"[" * MAX_BODY_BYTES), "not JSON", False),
        (Trouble(body=b'{"a": "\\ud800"}'), "not JSON", False),
        (Trouble(body=b'{"\\udc00": 1}'), "not JSON", False),
        (Trouble(body=b'{"a": NaN}'), "not JSON", False),
        (Trouble(body=b'{"a": 1e999}'), "not JSON", False),
        (Trouble(body=b'{"a": ' + b"9" * 5000 + b"}"), "not JSON", False),
        (Trouble(body=b" " * (MAX_BODY_BYTES + 1)), "over the limit", False),
        (Trouble(headers={"Content-Length": "7, 8"}), "Content-Length not understood", False),
    ],
)
async def test_an_answer_that_cannot_be_used_is_a_clear_error(
    provider: Provider, client: WebhookClient, trouble: Trouble, words: str, retryable: bool
) -> None:
    provider.trouble[CONFIG] = trouble
    with pytest.raises(ProviderError) as caught:
        await client.read_config(NIC)
    assert words in str(caught.value)
    assert client.url in str(caught.value)
    assert "/GetDeviceConfig" in str(caught.value)
    assert caught.value.retryable is retryable


@pytest.mark.parametrize("item", [b"{}", b"[]", b'""', b"1.5"])
async def test_the_largest_answer_about_a_device_takes_little_memory(
    provider: Provider, client: WebhookClient, item: bytes
) -> None:
    count = (MAX_BODY_BYTES - 8) // (len(item) + 1) - 1
    provider.trouble[CONFIG] = Trouble(body=b'{"a":[' + b",".join([item] * count) + b"]}")
    await client.read_config(NIC)
    tracemalloc.start()
    try:
        config = await client.read_config(NIC)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(config["a"]) == count
    assert kept < 4 << 20


@pytest.mark.parametrize("body", [b'{"cloudProvider": "yes"}', b'{"profileProvider": 1}', b"[]"])
async def test_capabilities_of_another_type_are_refused(
    provider: Provider, client: WebhookClient, body: bytes
) -> None:
    provider.trouble[HEALTH] = Trouble(body=body)
    with pytest.raises(ProviderError) as caught:
        await client.read_capabilities()
    assert caught.value.reason is Reason.PROVIDER_ANSWER_INVALID


OK = b"HTTP/1.1 200 OK\r\n"

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
_bytes = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=80).map(lambda body: OK + b"Content-Length: %d\r\n\r\n" % len(body) + body),
    _values.map(lambda value: OK + b"\r\n" + json.dumps(value).encode()),
)


@example(b"")
@example(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
@given(answer=_bytes)
def test_whatever_bytes_arrive_the_answer_is_an_object_or_an_error_of_the_provider(answer: bytes) -> None:
    async def ask() -> object:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            try:
                url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
                return await connect(url).read_config(NIC)
            except ProviderError as error:
                return error

    assert isinstance(asyncio.run(ask()), dict | ProviderError)
