"""How the driver starts when the node is in a bad hour."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.cluster.client import ApiClient
from dranet.cluster.transport import ClusterAccess
from dranet.driver import app
from dranet.driver.app import Shutdown
from dranet.driver.assembly import Services
from dranet.driver.instances.leader import InstanceState
from dranet.driver.probes.server import PartState
from dranet.errors import KernelError, SettingsError
from dranet.kernel.discovery.scan import NodeScanner
from dranet.settings import Settings
from dranet.telemetry import Metrics
from dranet.view.policy import PolicySource
from testbed.runtime.nri_link import NriCapabilities
from testbed.runtime.nri_server import NriServer
from tests.support.records import remove_record, write_newer


def settings(tmp_path: Path) -> Settings:
    return Settings(node_name="n1", state_dir=tmp_path, cdi_dir=tmp_path / "cdi")


@pytest.fixture
async def client() -> AsyncIterator[ApiClient]:
    async with ApiClient(ClusterAccess("192.0.2.1", 443)) as client:
        yield client


async def test_a_first_scan_that_the_kernel_does_not_answer_does_not_end_the_start(
    tmp_path: Path, client: ApiClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While a node boots its tables change too fast to be read; a start that fails comes back much later."""

    def fail(*_: object) -> None:
        raise KernelError("read links: the table kept changing while it was read")

    monkeypatch.setattr(NodeScanner, "read", fail)
    own = settings(tmp_path)
    parts = Services(own, client, PolicySource(own), NodeScanner(tmp_path, tmp_path), Metrics())
    parts.store.open()
    await app.Driver(parts)._prepare_state()
    parts.store.close()
    assert "the first scan failed" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [({"facts_file": Path("/nonexistent.json")}, "No such file"), ({"filter": "1+"}, "--filter")],
)
async def test_what_the_operator_wrote_wrong_is_told_before_the_cluster_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], complaint: str
) -> None:
    def refuse(*_: object) -> ApiClient:
        raise AssertionError("asked for the cluster")

    monkeypatch.setattr(app, "_api_client", refuse)
    with pytest.raises(SettingsError, match=complaint), Shutdown(0) as ending:
        await app.run_driver(replace(settings(tmp_path), **wrong), ending)


async def test_a_part_that_fails_ends_the_driver_with_its_own_error(
    tmp_path: Path, client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with a group of errors, of which the command line knows nothing but a traceback."""

    class Broken:
        def __init__(self, *_: object) -> None: ...

        def describe_work(self) -> list[str]:
            return []

        async def run(self, _: asyncio.Event) -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.fail())

        async def fail(self) -> None:
            raise KernelError("receive notifications of changes: I/O error")

    monkeypatch.setattr(app, "Driver", Broken)
    monkeypatch.setattr(app, "_api_client", lambda *_: client)
    with pytest.raises(KernelError, match="I/O error"), Shutdown(0) as ending:
        await app.run_driver(settings(tmp_path), ending)


async def test_an_instance_leaves_the_duties_to_a_newer_driver_whose_records_it_cannot_read(
    tmp_path: Path, client: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    own = replace(settings(tmp_path), pod_uid="old")
    parts = Services(own, client, PolicySource(own), NodeScanner(tmp_path, tmp_path), Metrics())
    parts.leadership.join()
    parts.store.open()
    parts.leadership._on_company()
    before = parts.leadership.state
    write_newer(tmp_path / "claims")
    parts.leadership._on_company()
    assert (before, parts.leadership.state) == (InstanceState.LEADER, InstanceState.ASIDE)
    state = parts.readiness.read()["instance"]
    assert (state.ready, state.detail) == (False, "pod old is aside")
    assert caplog.text.count("stepping aside: a newer driver") == 1
    remove_record(tmp_path / "claims", "new")  # drained and rolled back
    parts.leadership._on_company()
    assert parts.leadership.state is InstanceState.WAITING
    parts.store.close()
    parts.leadership.leave()


async def test_readiness_tells_of_a_newcomer_and_stays_ready_beside_it(
    tmp_path: Path, client: ApiClient
) -> None:
    def instance(uid: str) -> Services:
        own = replace(settings(tmp_path), pod_uid=uid)
        return Services(own, client, PolicySource(own), NodeScanner(tmp_path, tmp_path), Metrics())

    old, new = instance("old"), instance("new")
    old.leadership.join()
    assert old.readiness.read()["instance"] == PartState(True, "pod old is on-duty")
    new.leadership.join()
    assert new.readiness.read()["instance"] == PartState(False, "pod new is waiting")
    assert new.readiness.read()["slices"] == PartState(True, "published by another instance")
    await old.leadership.relieve(0)
    told = "pod old is on-duty; new not ready to take over yet"
    assert old.readiness.read()["instance"] == PartState(True, told)
    for parts in (old, new):
        parts.leadership.leave()


@pytest.mark.socket
@pytest.mark.parametrize(
    ("has_company", "has_runtime"), [(True, True), (True, False), (False, False)], ids=str
)
async def test_an_instance_beside_another_registers_when_the_runtime_calls_its_hooks(
    tmp_path: Path, client: ApiClient, monkeypatch: pytest.MonkeyPatch, has_company: bool, has_runtime: bool
) -> None:
    """The kubelet would call it with a claim, and be refused. Without a runtime it registers too, and says
    so."""
    monkeypatch.setattr(app, "RUNTIME_SECONDS", 20.0 if has_runtime or not has_company else 0.1)
    own = replace(settings(tmp_path), pod_uid="new", nri_socket=tmp_path / "nri.sock")
    old, new = (
        Services(its, client, PolicySource(its), NodeScanner(tmp_path, tmp_path), Metrics())
        for its in (replace(own, pod_uid="old"), own)
    )
    was_ready: list[bool] = []

    async def register() -> None:
        was_ready.append(new.nri.is_ready)

    async def nothing() -> None: ...

    for part, name, replacement in (
        (new.kubelet, "start", register),
        (new.kubelet, "stop", nothing),
        (new.probes, "start", nothing),
        (new.probes, "stop", nothing),
    ):
        monkeypatch.setattr(part, name, replacement)
    with contextlib.ExitStack() as stack:
        if has_company:
            old.leadership.join()
            stack.callback(old.leadership.leave)
        new.leadership.join()
        stack.callback(new.leadership.leave)
        new.store.open()
        stack.callback(new.store.close)
        if has_runtime:
            runtime = NriServer(tmp_path / "nri.sock", NriCapabilities())
            runtime.start()
            stack.callback(runtime.stop)
        async with app.Driver(new)._serving(asyncio.Event()):
            assert was_ready == [has_runtime]


async def test_an_instance_that_waits_for_the_runtime_ends_when_it_is_told(
    tmp_path: Path, client: ApiClient
) -> None:
    own = replace(settings(tmp_path), pod_uid="new", nri_socket=tmp_path / "nri.sock")
    old, new = (
        Services(its, client, PolicySource(its), NodeScanner(tmp_path, tmp_path), Metrics())
        for its in (replace(own, pod_uid="old"), own)
    )
    old.leadership.join()
    new.leadership.join()
    stop = asyncio.Event()
    waiting = asyncio.create_task(app._done_before(stop, app.Driver(new)._wait_for_runtime()))
    stop.set()
    assert await waiting is False
    for parts in (old, new):
        parts.leadership.leave()


def list_modules(statement: str) -> set[str]:
    """What a Python of its own has loaded after a statement."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.process
def test_a_start_loads_nothing_that_only_claims_need() -> None:
    loaded = list_modules("import dranet.driver.app")
    assert "dranet.model.facts" in loaded
    assert not loaded & {"dranet.driver.planner", "dranet.model.parameters.network", "dranet.cel"}


@pytest.mark.process
def test_claims_load_our_own_modules_and_no_library() -> None:
    """Decoding parameters by pydantic was 10 MB, a sixth of the driver, and a tenth of a second."""
    asked = {"interface": {"mtu": 9000, "rateLimit": {"egress": {"rate": "10G"}}}, "routes": [], "rdma": {}}
    decode = (
        f"from dranet.model.parameters.network import NetworkConfig; NetworkConfig.model_validate({asked})"
    )
    before = list_modules("import dranet.driver.app")
    after = list_modules(f"import dranet.driver.app, dranet.driver.planner\n{decode}")
    assert "dranet.model.parameters.network" in after - before
    assert "dranet.cel" not in after
    assert sorted(name for name in after - before if not name.startswith("dranet.")) == []
