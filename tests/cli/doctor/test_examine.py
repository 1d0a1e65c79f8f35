"""The doctor's questions: to a driver's probe port, to the API server, to folders and sockets."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from dranet.cli.doctor import examine, peers
from dranet.cli.doctor.examine import judge_places
from dranet.cli.doctor.peers import ask_running_driver, judge_denied, parse_node
from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.permissions import (
    ACCESS_REVIEWS,
    NAMESPACE,
    PERMISSIONS,
    SERVICE_ACCOUNT,
    Denied,
    build_rbac,
)
from dranet.cluster.transport import access_from_url
from dranet.desk.doctor.checks import ClusterFacts
from dranet.driver.probes.server import PartState, PortContent, ProbeServer
from dranet.model.findings import Finding, Severity, ok
from dranet.settings import Settings
from dranet.telemetry import Metrics
from testbed.apiserver.faults import Trouble
from testbed.apiserver.identity import User, service_account
from testbed.apiserver.server import ApiServer

pytestmark = pytest.mark.socket

PROBLEM, WARNING, NOTE, OK = Severity.PROBLEM, Severity.WARNING, Severity.NOTE, Severity.OK
USERS = {
    "driver": service_account(NAMESPACE, SERVICE_ACCOUNT, node="node-a", pod="dranet-x"),
    "nobody": User("nobody"),
}


def unfit(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity in (PROBLEM, WARNING)]


# The running driver


def at(address: str) -> Settings:
    return Settings(bind_address=address)


@asynccontextmanager
async def answering(*findings: Finding, **parts: PartState) -> AsyncIterator[str]:
    server = ProbeServer("127.0.0.1:0", Metrics(), PortContent(lambda: parts, read_features=lambda: findings))
    await server.start()
    yield f"127.0.0.1:{server.port}"
    await server.stop()


async def test_a_running_driver_says_its_parts_and_what_it_has_seen() -> None:
    seen = ok("runtime", "containerd 2.1.4")
    async with answering(seen, slices=PartState(True), kubelet=PartState(True, "as ever")) as address:
        assert await asyncio.to_thread(ask_running_driver, at(address)) == [
            ok("slices", "ready", "part-not-ready"),
            ok("kubelet", "ready: as ever", "part-not-ready"),
            seen,
        ]


async def test_a_part_that_is_not_ready_is_a_problem_that_is_told_once() -> None:
    refused = Finding("kubelet", PROBLEM, "refuses to register the driver: no")
    parts = {"kubelet": PartState(False, "refused"), "slices": PartState(False, "no API server")}
    async with answering(refused, **parts) as address:
        findings = await asyncio.to_thread(ask_running_driver, at(address))
    assert findings is not None
    assert [(finding.part, finding.seen) for finding in findings] == [
        ("slices", "no API server"),
        ("kubelet", "refuses to register the driver: no"),
    ]
    assert all(finding.severity is PROBLEM for finding in findings)


async def test_where_nobody_answers_nothing_is_known() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert await asyncio.to_thread(ask_running_driver, at(f"127.0.0.1:{taken.getsockname()[1]}")) is None


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n[+] runtime\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        b'HTTP/1.1 200 OK\r\n\r\n{"parts": [], "features": [{"severity": "grave"}]}',
        b'HTTP/1.1 200 OK\r\n\r\n{"parts": [1], "features": []}',
        b'HTTP/1.1 200 OK\r\n\r\n{"parts": 1, "features": [[]]}',
        b"no HTTP at all\r\n\r\n",
        b"",
    ],
)
async def test_something_else_that_answers_is_no_driver(answer: bytes) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        findings = await asyncio.to_thread(ask_running_driver, at(address))
    assert findings is not None
    (finding,) = findings
    assert (finding.severity, finding.part) == (WARNING, "driver")


# The API server


async def ask(
    tmp_path: Path, token: str, *, node: bool = True, gates: dict[str, bool] | None = None
) -> list[Finding]:
    async with ApiServer(users=USERS, manifests=build_rbac(), gates=gates) as server:
        if node:
            async with ApiClient(access_from_url(server.url)) as admin:
                body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}
                await admin.create(paths.NODES, body)
        kubeconfig = tmp_path / "kubeconfig"
        server.write_kubeconfig(kubeconfig, token=token)
        settings = Settings(node_name="node-a", kubeconfig=str(kubeconfig), list_attributes=True)
        findings, _ = await peers.ask_cluster(settings, ask_for_features=True)
        return findings


async def test_with_the_drivers_role_nothing_is_to_mend(tmp_path: Path) -> None:
    gates = {"DRADeviceTaints": True, "DRAConsumableCapacity": True, "DRAListTypeAttributes": True}
    findings = await ask(tmp_path, "driver", gates=gates)
    assert unfit(findings) == []
    assert ok("permissions", "all that the driver's role allows", "permission-missing") in findings
    assert ok("api", "list attributes kept", "api-field") in findings
    assert any("knows node node-a" in finding.seen for finding in findings)


async def test_a_feature_gate_that_is_off_is_found_by_a_dry_run(tmp_path: Path) -> None:
    findings = await ask(tmp_path, "driver", gates={"DRAListTypeAttributes": False})
    assert any("DRAListTypeAttributes" in finding.fix for finding in unfit(findings))


async def test_rights_that_lack_are_named_with_what_they_are_for(tmp_path: Path) -> None:
    findings = unfit(await ask(tmp_path, "nobody"))
    seen = [finding.seen for finding in findings if finding.part == "permissions"]
    assert any(text.startswith("may not create resourceslices in resource.k8s.io") for text in seen)
    assert all(finding.matters and finding.fix for finding in findings)


async def test_a_node_name_that_nobody_has_is_a_problem(tmp_path: Path) -> None:
    (problem,) = [f for f in await ask(tmp_path, "driver", node=False) if f.severity is PROBLEM]
    assert problem.seen == "there is no Node called node-a"


async def test_an_api_server_that_is_away_is_one_problem(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
    settings = Settings(node_name="node-a", kubeconfig=str(tmp_path / "kubeconfig"))
    (finding,), facts = await peers.ask_cluster(settings, ask_for_features=True)
    assert facts == ClusterFacts()
    assert (finding.severity, finding.part) == (PROBLEM, "api")


async def test_a_kubeconfig_that_is_not_there_is_one_problem_with_its_mend(tmp_path: Path) -> None:
    settings = Settings(kubeconfig=str(tmp_path / "none"))
    (finding,), _ = await peers.ask_cluster(settings, ask_for_features=True)
    assert finding.severity is PROBLEM
    assert str(tmp_path / "none") in finding.seen
    assert finding.fix


async def test_where_nobody_has_told_of_an_api_server_it_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a node by hand, or on a laptop."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (finding,), _ = await peers.ask_cluster(Settings(), ask_for_features=True)
    assert (finding.severity, finding.id) == (NOTE, "api-server")
    assert "--kubeconfig" in finding.fix
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")  # a pod, but without its token
    (finding,), _ = await peers.ask_cluster(Settings(), ask_for_features=True)
    assert finding.severity is PROBLEM


def test_what_a_node_says_of_its_kubelet_is_taken_in_any_shape() -> None:
    info = {"kubeletVersion": "v1.35.2", "containerRuntimeVersion": "containerd://2.1.4"}
    node = {"status": {"nodeInfo": info, "allocatable": {"cpu": "8", "rdma/hca": "1"}}}
    assert parse_node(node) == ClusterFacts("", "v1.35.2", "containerd://2.1.4", ("rdma/hca",))
    odd: list[dict[str, Any]] = [
        {},
        {"status": None},
        {"status": {"nodeInfo": []}},
        {"status": {"nodeInfo": {"kubeletVersion": "x" * 99}}},
    ]
    assert {parse_node(shape) for shape in odd} == {ClusterFacts()}


def test_a_right_without_which_nothing_works_is_a_problem_and_another_a_warning() -> None:
    by_resource = {permission.resource: permission for permission in PERMISSIONS}
    essential, other = judge_denied(
        [Denied(by_resource["resourceslices"], "create"), Denied(by_resource["events"], "create", "no")]
    )
    assert (essential.severity, other.severity) == (PROBLEM, WARNING)
    assert other.seen == "may not create events (no)"


# Folders and sockets


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Everything in place, the NRI socket listening."""
    for folder in ("kubelet/plugins_registry", "kubelet/plugins/dra.net", "state", "cdi", "sys/class/net"):
        (tmp_path / folder).mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as nri:
        monkeypatch.chdir(tmp_path)  # pytest's paths can be too long for a socket
        nri.bind("nri.sock")
        yield Settings(
            kubelet_root=tmp_path / "kubelet",
            state_dir=tmp_path / "state",
            cdi_dir=tmp_path / "cdi",
            nri_socket=tmp_path / "nri.sock",
            sysfs_root=tmp_path / "sys",
        )


def test_places_that_are_there_and_usable_are_fine(node: Settings) -> None:
    assert {finding.severity for finding in judge_places(node)} == {OK}


@pytest.mark.parametrize("folder", ["kubelet/plugins/dra.net", "state", "cdi"])
def test_a_folder_that_the_driver_makes_is_a_note(node: Settings, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).rmdir()
    (finding,) = [finding for finding in judge_places(node) if finding.severity is not OK]
    assert (finding.severity, finding.seen) == (
        NOTE,
        f"{tmp_path / folder} does not exist yet; the driver makes it",
    )


@pytest.mark.parametrize("folder", ["kubelet/plugins_registry", "sys/class/net"])
def test_a_folder_of_others_that_is_missing_is_a_problem(node: Settings, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).rmdir()
    (finding,) = unfit(judge_places(node))
    assert finding.seen == f"{tmp_path / folder} does not exist"
    assert finding.matters
    assert finding.fix


def test_a_file_in_place_of_a_folder_is_a_problem(node: Settings, tmp_path: Path) -> None:
    (tmp_path / "cdi").rmdir()
    (tmp_path / "cdi").touch()
    (finding,) = unfit(judge_places(node))
    assert finding.seen == f"{tmp_path / 'cdi'} is not a folder"


def test_a_folder_that_cannot_be_written_is_a_problem(
    node: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only mount, which root cannot write either; the kernel's answer is the same."""
    can = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "state" and can(path, mode))
    (finding,) = unfit(judge_places(node))
    assert finding.seen == f"{tmp_path / 'state'} cannot be written"


def test_a_disk_that_is_full_is_a_problem(node: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "LEAST_FREE_BYTES", 1 << 62)
    findings = unfit(judge_places(node))
    assert findings
    assert all(finding.seen.endswith("MiB left") for finding in findings)


@pytest.mark.parametrize("what", ["missing", "a file"])
def test_an_nri_socket_that_is_none_is_a_problem(node: Settings, tmp_path: Path, what: str) -> None:
    path = tmp_path / "other.sock"
    if what == "a file":
        path.touch()
    (finding,) = unfit(judge_places(replace(node, nri_socket=path)))
    assert str(path) in finding.seen
    assert "--nri-socket" in finding.fix


def test_an_nri_socket_that_a_killed_runtime_has_left_is_a_problem(node: Settings) -> None:
    """It looks as ever. NRI was switched off, say, and the runtime killed instead of stopped."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind("left.sock")
    (finding,) = unfit(judge_places(replace(node, nri_socket=Path("left.sock"))))
    assert finding.severity is PROBLEM
    assert finding.seen == "the NRI socket left.sock is left over: no program listens on it"
    assert "enable NRI" in finding.fix


def test_a_runtime_that_listens_does_not_notice_the_doctor(node: Settings) -> None:
    with socket.socket(socket.AF_UNIX) as runtime:
        runtime.bind("live.sock")
        runtime.listen()
        runtime.setblocking(False)
        assert unfit(judge_places(replace(node, nri_socket=Path("live.sock")))) == []
        with pytest.raises(BlockingIOError):
            runtime.accept()


def test_a_socket_that_this_user_may_not_use_is_not_judged(node: Settings, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    (tmp_path / "nri.sock").chmod(0o600)
    with as_nobody():
        (finding,) = [f for f in judge_places(replace(node, nri_socket=Path("nri.sock"))) if "nri" in f.seen]
    assert (finding.severity, finding.fix) == (NOTE, "run the doctor as root")
    assert finding.seen == "the NRI socket nri.sock cannot be looked at by this user"


def test_a_disk_without_room_for_another_file_is_full(
    node: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(node.state_dir)
    fields = list(real)
    fields[5:8] = [1000, 0, 0]  # f_files, f_ffree, f_favail
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    found = {finding.seen for finding in unfit(judge_places(node))}
    assert f"{node.state_dir} has no room for another file (inodes)" in found


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to look everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_an_ordinary_user_may_not_write_is_no_fault_of_the_node(node: Settings, tmp_path: Path) -> None:
    """The driver is root, and makes what does not exist yet."""
    tmp_path.chmod(0o755)
    (tmp_path / "state").rmdir()
    (tmp_path / "nri.sock").chmod(0o666)
    with as_nobody():
        assert unfit(judge_places(replace(node, nri_socket=Path("nri.sock")))) == []


def test_who_may_not_look_into_a_folder_is_told_so(node: Settings, tmp_path: Path) -> None:
    """As on a node without sudo: the state folder and the kubelet's are root's."""
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "state").mkdir()
    closed.chmod(0)
    settings = replace(node, state_dir=closed / "state", nri_socket=closed / "nri.sock")
    with as_nobody():
        findings = {finding.seen: finding.severity for finding in judge_places(settings)}
    closed.chmod(0o700)
    assert findings[f"{closed / 'state'} cannot be looked at by this user"] is NOTE
    assert findings[f"the NRI socket {closed / 'nri.sock'} cannot be looked at by this user"] is NOTE


# Nothing is waited for without end.


def test_a_probe_port_that_answers_drop_by_drop_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PROBE_SECONDS", 0.3)
    ended = threading.Event()

    def drip(server: socket.socket) -> None:
        caller, _ = server.accept()
        with caller:
            caller.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not ended.wait(0.05):
                try:
                    caller.sendall(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        begin = time.monotonic()
        findings = ask_running_driver(at(f"127.0.0.1:{server.getsockname()[1]}"))
        spent = time.monotonic() - begin
        ended.set()
        thread.join()
    assert spent < 20.0, "it would drip on and on"
    assert findings is not None
    assert [finding.severity for finding in findings] == [WARNING]


async def test_an_api_server_that_takes_its_time_with_each_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "CLUSTER_SECONDS", 0.5)
    async with ApiServer() as server:
        server.trouble_next("POST", ACCESS_REVIEWS, Trouble(delay_seconds=0.2), count=1000)
        server.write_kubeconfig(tmp_path / "kubeconfig")
        async with ApiClient(access_from_url(server.url)) as admin:
            await admin.create(paths.NODES, {"metadata": {"name": "node-a"}})
        settings = Settings(node_name="node-a", kubeconfig=str(tmp_path / "kubeconfig"))
        findings, _ = await peers.ask_cluster_with_deadline(settings, ask_for_features=False)
    assert [(finding.severity, finding.part) for finding in findings] == [(PROBLEM, "api")]


def test_a_name_server_that_says_nothing_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def look_up(*_: object, **__: object) -> NoReturn:
        ended.wait(20)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(peers, "CLUSTER_SECONDS", 0.2)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(_kubeconfig("https://api.example:6443")))
    settings = Settings(node_name="node-a", kubeconfig=str(kubeconfig), bind_address="127.0.0.1:1")
    begin = time.monotonic()
    try:
        findings, _ = asyncio.run(peers.ask_cluster_with_deadline(settings, ask_for_features=True))
        assert time.monotonic() - begin < 15.0
    finally:
        ended.set()
    assert [finding.severity for finding in findings] == [PROBLEM]


def _kubeconfig(server: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
