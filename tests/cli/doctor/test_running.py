"""Who may read what of the probe port: by certificate, by token, by where he comes from."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.cli.doctor import peers
from dranet.cli.doctor.peers import ask_running_driver, fetch_page
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.permissions import AUTHENTICATION_PERMISSIONS, ROLE, build_rbac, build_rules
from dranet.cluster.transport import FixedToken, TokenFile, access_from_url
from dranet.driver.probes import server as probes
from dranet.driver.probes.http import (
    BURST,
    MOST_REMEMBERED,
    Access,
    Caller,
    Request,
    Response,
    TokenReviews,
    parse_request,
)
from dranet.driver.probes.server import MAX_CONNECTIONS, PartState, PortContent, ProbeServer, Routes
from dranet.driver.probes.tls import TlsFiles
from dranet.errors import SettingsError
from dranet.model.findings import Finding, Severity
from dranet.settings import Authentication, NodePage, Settings, load_settings
from dranet.telemetry import Metrics
from testbed.apiserver.identity import User, service_account
from testbed.apiserver.server import ApiServer
from tests.support.waiting import until

PARTS = {"kubelet": PartState(True)}


async def show_page() -> Response:
    return Response("200 OK", b"the page", "text/html")


@asynccontextmanager
async def serving(access: Access | None = None, tls: TlsFiles | None = None) -> AsyncIterator[ProbeServer]:
    server = ProbeServer(
        "127.0.0.1:0", Metrics(), PortContent(lambda: PARTS, read_page=show_page), access=access, tls=tls
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def get(
    server: ProbeServer, path: str, *headers: str, host: str = "localhost", tls: ssl.SSLContext | None = None
) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=tls)
    lines = [f"GET {path} HTTP/1.1", *([f"Host: {host}:{server.port}"] if host else []), *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(30):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


# -- the page of the node ---------------------------------------------------------------------------------


def ask(path: str, *, peer: str = "10.0.0.9", host: str = "node-1:9177") -> Request:
    return parse_request(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), Caller(peer))


@pytest.mark.parametrize(
    ("peer", "host", "is_local"),
    [
        ("127.0.0.1", "localhost:9177", True),
        ("127.3.2.1", "127.0.0.1", True),
        ("::1", "[::1]:9177", True),
        ("::ffff:127.0.0.1", "LOCALHOST", True),
        ("10.0.0.9", "localhost:9177", False),
        ("fe80::1%eth0", "[::1]", False),
        ("127.0.0.1", "rebound.example:9177", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "", False),
        ("", "localhost", False),
        ("no address", "localhost", False),
    ],
)
def test_local_is_who_comes_from_the_node_and_means_the_node(peer: str, host: str, is_local: bool) -> None:
    assert ask("/", peer=peer, host=host).is_local is is_local


def test_two_hosts_are_none() -> None:
    request = parse_request(b"GET / HTTP/1.1\r\nHost: localhost\r\nhost: evil\r\n\r\n", Caller("127.0.0.1"))
    assert not request.is_local


@given(st.binary(max_size=300))
def test_no_request_is_too_odd_to_be_read(data: bytes) -> None:
    request = parse_request(data + b"\r\n\r\n", Caller("127.0.0.1"))
    assert asyncio.run(Access(NodePage.LOCALHOST, Authentication.KUBERNETES).refuse(request)) is None or (
        request.path in ("/", "/node", "/metrics", "/readyz")
    )


@pytest.mark.socket
async def test_the_page_is_shown_on_the_node_alone_and_says_how_to_see_it_from_elsewhere() -> None:
    async with serving() as server:
        for path in ("/", "/node"):
            assert await get(server, path) == (200, "the page")
            status, body = await get(server, path, host="rebound.example")
            assert status == 403
            assert "port-forward" in body
    refusal = await Access().refuse(ask("/"))
    assert refusal is not None
    assert refusal.status.startswith("403")


@pytest.mark.socket
async def test_the_page_can_be_off_or_for_all() -> None:
    async with serving(Access(NodePage.OFF)) as server:
        assert (await get(server, "/"))[0] == 404
        assert (await get(server, "/metrics"))[0] == 200
    assert await Access(NodePage.ALL).refuse(ask("/")) is None


async def test_probes_are_open_whatever_is_set() -> None:
    for way in Authentication:
        access = Access(NodePage.OFF, way)
        assert await access.refuse(ask("/healthz")) is None
        assert await access.refuse(ask("/readyz")) is None


@pytest.mark.parametrize("way", [Authentication.KUBERNETES, Authentication.CLIENT_CERTIFICATE])
async def test_with_authentication_strangers_see_no_more_than_the_kubelet(way: Authentication) -> None:
    access = Access(NodePage.ALL, way)
    for path in ("/metrics", "/", "/node", "/readyz?verbose", "/readyz?verbose=json"):
        refusal = await access.refuse(ask(path))
        assert refusal is not None, path
        assert refusal.status.startswith("401")
    local = {"peer": "127.0.0.1", "host": "localhost:9177"}
    assert await access.refuse(ask("/readyz?verbose=json", **local)) is None, "dranet doctor asks so"
    assert await access.refuse(ask("/", **local)) is None
    assert await access.refuse(ask("/metrics", **local)) is not None, "metrics are for who may have them"


TRICKS = (
    *(
        "/metrics",
        "/metrics?x",
        "//metrics",
        "/metrics/",
        "/%6detrics",
        "/x/../metrics",
        "/METRICS",
        "/metrics;x",
    ),
    *(
        "http://localhost/metrics",
        "http://localhost/",
        "localhost/node",
        "/node",
        "/node?x",
        "/node/",
        "/?verbose",
    ),
    *(
        "/readyz?verbose",
        "/readyz?verbose=json",
        "/readyz?verbose=",
        "/readyz?verbose&x",
        "/readyz?x&verbose",
    ),
    *(
        "/readyz/?verbose",
        "/readyz?verbose=json&x",
        "/readyz?VERBOSE",
        "/readyz?%76erbose",
        "/readyz?verbose#x",
    ),
)


@pytest.mark.parametrize("path", TRICKS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "get", "POST"])
async def test_no_way_to_write_a_path_goes_around_the_question(method: str, path: str) -> None:
    async def read_metrics() -> bytes:
        return b"SECRET"

    async def read_page() -> Response:
        return Response("200 OK", b"SECRET")

    content = PortContent(
        lambda: PARTS,
        read_page=read_page,
        read_features=lambda: [Finding("api", Severity.NOTE, "SECRET")],
    )
    routes = Routes(content, read_metrics, Access(NodePage.ALL, Authentication.KUBERNETES))
    forged = "X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\nAuthorization: Basic eDp5"
    data = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{forged}\r\n\r\n".encode()
    answer = await routes.answer(parse_request(data, Caller("10.0.0.9")))
    assert b"SECRET" not in answer.body


@pytest.mark.socket
async def test_a_page_that_fails_is_a_500_and_the_driver_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> Response:
        raise KeyError("bug")

    server = ProbeServer("127.0.0.1:0", Metrics(), PortContent(dict, read_page=fail))
    await server.start()
    assert (await get(server, "/"))[0] == 500
    assert (await get(server, "/healthz"))[0] == 200
    await server.stop()
    assert "bug in the answer to /" in caplog.text


# -- TLS --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path


def make_pair(folder: Path, name: str, signer: Pair | None = None) -> Pair:
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", pair.key)
    signed = ("-CA", signer.certificate, "-CAkey", signer.key) if signer else ()
    subject = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    command = ["openssl", "req", "-x509", *key, "-days", "2", *subject, *signed, "-out", pair.certificate]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    return pair


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program to make certificates with")
    folder = tmp_path_factory.mktemp("pairs")
    return {name: make_pair(folder, name) for name in ("first", "second", "stranger")}


@pytest.fixture
def files(pairs: dict[str, Pair], tmp_path: Path) -> Pair:
    """Where the driver finds its pair; ``first`` to begin with."""
    mine = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    put(pairs["first"], mine)
    return mine


def put(pair: Pair, to: Pair) -> None:
    """As the kubelet does with a Secret: the old file is replaced."""
    for source, target in ((pair.certificate, to.certificate), (pair.key, to.key)):
        fresh = target.with_suffix(".new")
        shutil.copy(source, fresh)
        fresh.replace(target)


def trusting(*pairs: Pair, mine: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for pair in pairs:
        context.load_verify_locations(pair.certificate)
    if mine is not None:
        context.load_cert_chain(mine.certificate, mine.key)
    return context


@pytest.mark.process
async def test_the_port_speaks_tls_and_nothing_else(pairs: dict[str, Pair], files: Pair) -> None:
    async with serving(tls=TlsFiles(files.certificate, files.key)) as server:
        tls = trusting(pairs["first"])
        assert await get(server, "/healthz", tls=tls) == (200, "ok\n")
        assert (await get(server, "/metrics", tls=tls))[0] == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert b"ok" not in await reader.read()
        writer.close()
        old = trusting(pairs["first"])
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await get(server, "/healthz", tls=old) == (200, "ok\n")


@pytest.mark.process
async def test_a_renewed_certificate_is_shown_without_a_restart(pairs: dict[str, Pair], files: Pair) -> None:
    async with serving(tls=TlsFiles(files.certificate, files.key)) as server:
        assert (await get(server, "/healthz", tls=trusting(pairs["first"])))[0] == 200
        put(pairs["second"], files)
        assert (await get(server, "/healthz", tls=trusting(pairs["second"])))[0] == 200


@pytest.mark.process
async def test_callers_leave_no_sessions_behind(
    pairs: dict[str, Pair], files: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dranet.driver.probes.tls.MOST_SESSIONS", 3)
    caplog.set_level("INFO")
    tls = TlsFiles(files.certificate, files.key)
    caller = trusting(pairs["first"])
    caller.maximum_version = ssl.TLSVersion.TLSv1_2
    caller.options |= ssl.OP_NO_TICKET
    async with serving(tls=tls) as server:
        for _ in range(10):
            assert (await get(server, "/healthz", tls=caller))[0] == 200
            assert tls._context.session_stats()["number"] <= 4
    assert "new certificate" not in caplog.text


@pytest.mark.process
async def test_a_bad_certificate_changes_nothing_and_is_told_once(
    pairs: dict[str, Pair], files: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    tls = TlsFiles(files.certificate, files.key)
    async with serving(tls=tls) as server:
        shutil.copy(pairs["second"].certificate, files.certificate)  # and the key is the first one's still
        for _ in range(3):
            assert (await get(server, "/healthz", tls=trusting(pairs["first"])))[0] == 200
        assert len([r for r in caplog.records if "keeps its certificate" in r.getMessage()]) == 1
        (finding,) = tls.read_findings()
        assert "key values mismatch" in finding.seen
        assert "Secret" in finding.fix
        assert (
            "\ndranet_certificate_ok 0.0\n"
            in (await get(server, "/metrics", tls=trusting(pairs["first"])))[1]
        )
        put(pairs["second"], files)
        assert (await get(server, "/healthz", tls=trusting(pairs["second"])))[0] == 200
        assert (
            "\ndranet_certificate_ok 1.0\n"
            in (await get(server, "/metrics", tls=trusting(pairs["second"])))[1]
        )
        assert tls.read_findings()[0].severity == "ok"


@pytest.mark.process
@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), ("words", "pem")])
def test_files_that_cannot_be_used_refuse_the_start(files: Pair, content: str | None, words: str) -> None:
    files.certificate.unlink()
    if content is not None:
        files.certificate.write_text(content)
    with pytest.raises(SettingsError, match=words) as caught:
        TlsFiles(files.certificate, files.key)
    assert "--metrics-tls-cert" in str(caught.value)


@pytest.mark.process
def test_an_encrypted_key_is_refused_and_asks_nobody_for_a_password(files: Pair, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", str(files.key), "-aes256", "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(SettingsError, match="the key is encrypted"):
        TlsFiles(files.certificate, locked)


@pytest.mark.process
async def test_who_shows_a_certificate_of_the_authority_may_read(
    pairs: dict[str, Pair], files: Pair, tmp_path: Path
) -> None:
    authority = make_pair(tmp_path, "authority")
    client = make_pair(tmp_path, "prometheus", authority)
    tls = TlsFiles(files.certificate, files.key, authority.certificate)
    async with serving(Access(NodePage.ALL, Authentication.CLIENT_CERTIFICATE), tls) as server:
        strange, known = trusting(pairs["first"]), trusting(pairs["first"], mine=client)
        assert (await get(server, "/healthz", tls=strange))[0] == 200, "the kubelet has none"
        assert (await get(server, "/metrics", tls=strange))[0] == 401
        assert (await get(server, "/metrics", tls=known))[0] == 200
        forged = trusting(pairs["first"], mine=pairs["stranger"])
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            await get(server, "/metrics", tls=forged)


@pytest.mark.process
async def test_who_never_ends_the_handshake_is_cut_off_and_takes_no_place(
    pairs: dict[str, Pair], files: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tls=TlsFiles(files.certificate, files.key)) as server:
        monkeypatch.setattr(probes, "REQUEST_TIMEOUT_SECONDS", 600)
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2 * MAX_CONNECTIONS)]
        for _, writer in silent:
            writer.write(b"\x16\x03\x01\x02")
        assert (await get(server, "/healthz", tls=trusting(pairs["first"])))[0] == 200
        await until(lambda: len(server._callers) <= MAX_CONNECTIONS)
        for _, writer in silent:
            writer.transport.abort()
        await until(lambda: not server._callers)
        monkeypatch.setattr(probes, "REQUEST_TIMEOUT_SECONDS", 0.3)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16\x03\x01")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


# -- tokens -----------------------------------------------------------------------------------------------

PROMETHEUS = service_account("monitoring", "prometheus")
USERS = {"driver": service_account("dranet-system", "dranet"), "scraper": PROMETHEUS, "reader": User("jane")}


def grant(name: str, user: JsonObject, rules: list[JsonObject]) -> list[JsonObject]:
    rbac = "rbac.authorization.k8s.io"
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
    return [
        {"kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {"kind": "ClusterRoleBinding", "metadata": {"name": name}, "roleRef": role, "subjects": [user]},
    ]


SCRAPER = {"kind": "ServiceAccount", "namespace": "monitoring", "name": "prometheus"}
DRIVER = {"kind": "ServiceAccount", "namespace": "dranet-system", "name": "dranet"}
MANIFESTS = [
    *grant("scrape", SCRAPER, [{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}]),
    *grant(f"{ROLE}-authentication", DRIVER, build_rules(permissions=AUTHENTICATION_PERMISSIONS)),
]


@asynccontextmanager
async def asking(
    manifests: list[JsonObject], clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[tuple[ApiServer, TokenReviews]]:
    async with ApiServer(users=USERS, manifests=manifests) as server:
        access = access_from_url(server.url, token=FixedToken("driver"))
        async with ApiClient(access) as client:
            yield server, TokenReviews(client, clock)


def status_of(refusal: Response | None) -> int:
    return 200 if refusal is None else int(refusal.status[:3])


@pytest.mark.socket
async def test_a_token_is_let_in_where_its_user_may_get_the_path() -> None:
    async with asking(MANIFESTS) as (_, reviews):
        assert status_of(await reviews.review("scraper", "/metrics")) == 200
        assert status_of(await reviews.review("scraper", "/node")) == 403
        refusal = await reviews.review("reader", "/metrics")
        assert status_of(refusal) == 403
        assert refusal is not None
        assert b"user jane may not get /metrics" in refusal.body
        assert status_of(await reviews.review("made-up", "/metrics")) == 401
        assert status_of(await reviews.review("\x00", "/metrics")) == 401


@pytest.mark.socket
async def test_an_answer_is_remembered_for_a_while_and_then_asked_for_again() -> None:
    now = [100.0]
    async with asking(MANIFESTS, lambda: now[0]) as (server, reviews):
        for _ in range(5):
            await reviews.review("scraper", "/metrics")
        assert len(server.requests) == 2, "whose token, and may he"
        now[0] += 61
        await reviews.review("scraper", "/metrics")
        assert len(server.requests) == 4
    assert b"scraper" not in repr(reviews._known).encode(), "no token is kept"


@pytest.mark.socket
async def test_without_rights_or_an_api_server_nobody_is_let_in() -> None:
    async with asking(build_rbac()) as (_, reviews):
        assert status_of(await reviews.review("scraper", "/metrics")) == 503
    async with ApiClient(access_from_url("http://127.0.0.1:1")) as client:
        assert status_of(await TokenReviews(client).review("scraper", "/metrics")) == 503


@pytest.mark.socket
async def test_made_up_tokens_flood_neither_the_api_server_nor_the_memory() -> None:
    async with asking(MANIFESTS, lambda: 100.0) as (server, reviews):
        statuses = [status_of(await reviews.review(f"made-up-{n}", "/metrics")) for n in range(100)]
        assert [statuses.count(401), statuses.count(503)] == [BURST, 100 - BURST]
        assert len(server.requests) == BURST
        for n in range(2 * MOST_REMEMBERED):
            reviews._remember((b"%d" % n, "/metrics"), None)
        assert len(reviews._known) == MOST_REMEMBERED


@pytest.mark.socket
async def test_made_up_tokens_keep_out_nobody_who_was_let_in_before() -> None:
    now = [100.0]
    async with asking(MANIFESTS, lambda: now[0]) as (_, reviews):
        assert status_of(await reviews.review("scraper", "/metrics")) == 200
        now[0] += 61
        statuses = [status_of(await reviews.review(f"made-up-{n}", "/metrics")) for n in range(BURST + 1)]
        assert statuses[-1] == 503
        assert status_of(await reviews.review("scraper", "/metrics")) == 200


@pytest.mark.socket
async def test_what_is_wrong_with_the_api_server_is_for_the_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asking(build_rbac()) as (_, reviews):
        for _ in range(3):
            refusal = await reviews.review("scraper", "/metrics")
            assert refusal is not None
            assert b"system:serviceaccount" not in refusal.body
            assert b"forbidden" not in refusal.body.lower()
    (told,) = [record.getMessage() for record in caplog.records if record.name.endswith("probes.http")]
    assert "system:serviceaccount:dranet-system:dranet" in told
    assert "scraper" not in told


@pytest.mark.process
async def test_a_scrape_with_a_token_over_the_port(pairs: dict[str, Pair], files: Pair) -> None:
    async with asking(MANIFESTS) as (_, reviews):
        access = Access(NodePage.LOCALHOST, Authentication.KUBERNETES, reviews)
        async with serving(access, TlsFiles(files.certificate, files.key)) as server:
            tls = trusting(pairs["first"])
            assert (await get(server, "/metrics", tls=tls))[0] == 401
            assert (await get(server, "/metrics", "Authorization: Bearer scraper", tls=tls))[0] == 200
            assert (await get(server, "/metrics", "authorization: bearer nobody", tls=tls))[0] == 401
            twice = ("Authorization: Bearer scraper", "Authorization: Bearer scraper")
            assert (await get(server, "/metrics", *twice, tls=tls))[0] == 401


# -- the doctor in the driver's own pod -------------------------------------------------------------------


@asynccontextmanager
async def in_the_drivers_pod(
    files: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[tuple[Settings, TlsFiles]]:
    """A driver that asks its API server about everybody; the settings and the token of a doctor beside it."""
    (tmp_path / "token").write_text("driver\n")
    monkeypatch.setattr(peers, "_TOKEN", tmp_path / "token")
    tls = TlsFiles(files.certificate, files.key)
    async with asking(MANIFESTS) as (_, reviews):
        own = reviews._client.is_own_token
        access = Access(NodePage.LOCALHOST, Authentication.KUBERNETES, reviews, own)
        server = ProbeServer(
            "127.0.0.1:0",
            Metrics(),
            PortContent(lambda: PARTS, read_features=tls.read_findings),
            access=access,
            tls=tls,
        )
        await server.start()
        address = f"127.0.0.1:{server.port}"
        yield Settings(bind_address=address, metrics_tls_cert=files.certificate), tls
        await server.stop()


@pytest.mark.process
async def test_who_shows_the_drivers_own_token_reads_its_metrics_without_a_question(
    files: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with in_the_drivers_pod(files, monkeypatch, tmp_path) as (settings, _):
        page = await asyncio.to_thread(fetch_page, settings, "/metrics")
        assert (page.status, page.is_certified) == (200, True)
        assert b"dranet_" in page.body
        (tmp_path / "token").write_text("reader")
        assert (await asyncio.to_thread(fetch_page, settings, "/metrics")).status == 403
        (tmp_path / "token").unlink()
        assert (await asyncio.to_thread(fetch_page, settings, "/metrics")).status == 401
    assert await Access(way=Authentication.KUBERNETES, is_own_token=bool).refuse(ask("/metrics")) is not None


async def test_without_a_token_of_its_own_the_driver_takes_none_for_its_own() -> None:
    async with ApiClient(access_from_url("http://127.0.0.1:1")) as client:
        assert not client.is_own_token("")
        assert not client.is_own_token("x")
    missing = TokenFile(Path("/none"))
    async with ApiClient(access_from_url("http://127.0.0.1:1", token=missing)) as client:
        assert not client.is_own_token("x")


@pytest.mark.process
async def test_a_doctor_sees_a_secret_that_was_spoilt_and_tells_nobody_else_its_token(
    pairs: dict[str, Pair], files: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with in_the_drivers_pod(files, monkeypatch, tmp_path) as (settings, tls):
        asked = await asyncio.to_thread(ask_running_driver, settings)
        assert asked is not None
        assert [f.severity for f in asked if f.id == "port-certificate"] == [Severity.OK]
        shutil.copy(pairs["second"].certificate, files.certificate)  # and not its key
        assert (await asyncio.to_thread(fetch_page, settings, "/metrics")).status == 401, "no token came"
        asked = await asyncio.to_thread(ask_running_driver, settings)
        assert asked is not None
        assert [f.seen for f in asked if f.id == "port-certificate"] == [
            f"the certificate was not renewed: {tls.problem}"
        ]
        assert [f.part for f in asked if f.id == "part-not-ready"] == ["kubelet"], (
            "the rest is told as always"
        )


@pytest.mark.process
async def test_a_doctor_that_knows_another_certificate_says_so(
    pairs: dict[str, Pair], files: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with in_the_drivers_pod(files, monkeypatch, tmp_path) as (settings, _):
        for other in (pairs["stranger"].certificate, tmp_path / "none"):
            wrong = replace(settings, metrics_tls_cert=other)
            asked = await asyncio.to_thread(ask_running_driver, wrong)
            assert asked is not None
            told = [f for f in asked if f.id == "port-certificate" and f.severity is Severity.WARNING]
            assert f"shows another certificate than that in {other}" in told[0].seen


# -- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"metrics_tls_cert": "/a"}, "--metrics-tls-cert without --metrics-tls-key"),
        ({"metrics_tls_key": "/a"}, "--metrics-tls-key without --metrics-tls-cert"),
        ({"metrics_authentication": "kubernetes"}, "kubernetes without --metrics-tls-cert"),
        (
            {
                "metrics_authentication": "client-certificate",
                "metrics_tls_cert": "/a",
                "metrics_tls_key": "/b",
            },
            "client-certificate without --metrics-client-ca",
        ),
        ({"metrics_client_ca": "/a"}, "none with --metrics-client-ca"),
        ({"node_page": "everyone"}, "must be one of localhost, off, all"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(flags: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(flags, {})
