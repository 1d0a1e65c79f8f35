"""Claims that several pods may name: their ready file is there only while a container is being started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.driver.start_gate import WINDOW_SECONDS, StartGate, StartWindows
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.plan import PreparedClaim
from tests.driver.bench import Bench, sandbox
from tests.support.namespaces import Namespace

SHARED = PreparedClaim(ClaimRef("default", "c", "uid"), PodRef("default", "p", "pod"), (), boot_id="boot")
OF_A_TEMPLATE = replace(SHARED, pod_claim_name="nic")


@dataclass
class Clock:
    seconds: float = 0.0

    def read(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(tmp_path: Path) -> StartGate:
    """Of a claim that is attached."""
    made = StartGate(tmp_path)
    made.note_attached("uid", str(tmp_path))
    return made


@pytest.fixture
def windows(gate: StartGate, clock: Clock) -> StartWindows:
    return StartWindows(gate, clock.read)


def test_a_shared_claim_is_open_from_the_creation_of_a_container_until_its_start(
    windows: StartWindows, gate: StartGate
) -> None:
    windows.begin("pod", "a", [SHARED])
    assert gate.is_open("uid")
    windows.end("pod", "a", [SHARED])
    assert not gate.is_open("uid")
    assert gate.is_attached("uid")


def test_containers_that_start_together_wait_for_each_other(windows: StartWindows, gate: StartGate) -> None:
    windows.begin("pod", "a", [SHARED])
    windows.begin("pod", "b", [SHARED])
    windows.end("pod", "a", [SHARED])
    assert gate.is_open("uid")
    windows.end("pod", "b", [SHARED])
    assert not gate.is_open("uid")


def test_the_claim_of_one_pod_alone_stays_open(windows: StartWindows, gate: StartGate) -> None:
    windows.begin("pod", "a", [OF_A_TEMPLATE])
    windows.end("pod", "a", [OF_A_TEMPLATE])
    windows.sweep("pod", [OF_A_TEMPLATE])
    assert gate.is_open("uid")


def test_a_container_that_never_started_holds_the_gate_open_for_a_minute(
    windows: StartWindows, gate: StartGate, clock: Clock
) -> None:
    windows.begin("pod", "a", [SHARED])
    windows.sweep("pod", [SHARED])
    assert gate.is_open("uid")
    clock.seconds = WINDOW_SECONDS
    windows.sweep("pod", [SHARED])
    assert not gate.is_open("uid")


class SlowGate(StartGate):
    """Waits before it shuts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()

    def shut(self, claim_uid: str) -> None:
        self.is_asked.set()
        assert self.may_go_on.wait(10)
        super().shut(claim_uid)


def test_a_sweep_that_has_begun_does_not_shut_what_a_container_is_given_meanwhile(tmp_path: Path) -> None:
    gate = SlowGate(tmp_path)
    gate.note_attached("uid", str(tmp_path))
    windows = StartWindows(gate)
    sweep = threading.Thread(target=windows.sweep, args=("pod", [SHARED]))
    begin = threading.Thread(target=windows.begin, args=("pod", "a", [SHARED]))
    sweep.start()
    assert gate.is_asked.wait(10)
    begin.start()
    begin.join(0.1)
    windows.forget("another")  # the end of a pod waits for no disk
    gate.may_go_on.set()
    for thread in (sweep, begin):
        thread.join(10)
    assert gate.is_open("uid")


def test_what_a_killed_driver_left_open_is_shut(gate: StartGate) -> None:
    gate.open_again("uid")
    StartWindows(gate).sweep("pod", [SHARED])
    assert not gate.is_open("uid")


def test_a_new_sandbox_of_the_pod_knows_nothing_of_the_containers_of_the_old_one(
    windows: StartWindows, gate: StartGate
) -> None:
    windows.begin("pod", "a", [SHARED])
    windows.forget("pod")
    windows.begin("pod", "b", [SHARED])
    windows.end("pod", "b", [SHARED])
    assert not gate.is_open("uid")


@pytest.mark.kernel
def test_the_hooks_keep_the_window(start: Callable[..., Bench], pod: Namespace) -> None:
    bench = start()
    bench.prepare("eth1", "net1", is_shared=True)
    bench.run_sandbox(sandbox(pod))
    assert bench.gate.is_attached("claim-uid")
    assert not bench.gate.is_open("claim-uid"), "no container is being started"
    bench.create_container(sandbox(pod))
    assert bench.gate.is_open("claim-uid")
    assert bench.start_container(sandbox(pod))
    assert not bench.gate.is_open("claim-uid")
    assert len(bench.told.attached_claims) == 1, "a gate that is shut is no reason to attach again"
    bench.create_container(sandbox(pod))
    assert bench.gate.is_open("claim-uid"), "a container that failed starts again"
    bench.files.shut_gates()
    assert bench.gate.is_open("claim-uid"), "and the regular look waits for it"
    bench.stop_sandbox(sandbox(pod))
    assert not bench.gate.is_open("claim-uid")


@pytest.mark.kernel
def test_a_driver_that_was_killed_in_the_window_is_followed_by_one_that_shuts_it(
    start: Callable[..., Bench], pod: Namespace
) -> None:
    first = start()
    first.prepare("eth1", "net1", is_shared=True)
    first.run_sandbox(sandbox(pod))
    first.create_container(sandbox(pod))
    second = start()
    second.reconcile(sandbox(pod))
    second.files.shut_gates()
    assert not second.gate.is_open("claim-uid")
    assert second.gate.is_attached("claim-uid")
