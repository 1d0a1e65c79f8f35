"""A container's hook that is late, in a pod that has its devices and other containers that use them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dranet.errors import KernelError
from dranet.model.claim import PodSandbox
from tests.driver.bench import Bench, names, sandbox
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel


def test_a_late_hook_of_a_container_takes_nothing_from_a_running_pod(
    start: Callable[..., Bench],
    pod: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = start()
    bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    go_on = threading.Event()
    find_missing = bench.attachments.find_missing

    def find_late(pod: PodSandbox, *, deadline: float) -> tuple[str, ...]:
        assert go_on.wait(10)
        return find_missing(pod, deadline=deadline + 60)

    with monkeypatch.context() as slow:
        slow.setattr(bench.attachments, "find_missing", find_late)
        bench.hooks.connected("impatient", "1", 0.2)
        with pytest.raises(KernelError):
            bench.create_container(sandbox(pod))
        go_on.set()
        wait_until(
            lambda: "behind the runtime's answer" in caplog.text and "thread" not in running(),
            "the hook has ended",
        )
    assert "net1" in names(pod)
    bench.hooks.connected("patient", "1", 60.0)
    assert bench.create_container(sandbox(pod)).devices, "the next try finds all there"


def test_a_hook_that_hangs_in_the_kernel_does_not_keep_the_driver_from_its_end(
    start: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranet.driver.instances.members.CLOSE_SECONDS", 0.05)
    bench, hangs, go_on = start(), threading.Event(), threading.Event()

    def hang() -> None:
        with bench.attachments.locked():
            hangs.set()
            go_on.wait(10)

    hook = threading.Thread(target=hang)
    hook.start()
    assert hangs.wait(10)
    bench.attachments.close()
    assert hook.is_alive()
    go_on.set()
    hook.join()


def running() -> list[str]:
    return ["thread" for thread in threading.enumerate() if thread.name == "hook"]
