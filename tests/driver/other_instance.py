"""A second instance of the driver in a process of its own: the walks over a shared state folder, by order.

Reads calls as lines of JSON and answers each with a line. It can be told to die within its next call.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from dranet.driver import attachments
from dranet.driver.hooks import HookListeners, PodHooks
from dranet.driver.instances.members import Work, WorkLocks
from dranet.driver.start_gate import StartGate
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.model.claim import PodSandbox
from dranet.model.plan import PreparedClaim
from dranet.model.status import AttachedLink
from dranet.runtime.containers import CdiDevice
from dranet.store.claim_store import ClaimStore
from tests.driver.bench import Bench, Told
from tests.support.namespaces import Namespace

REPOSITORY = Path(__file__).parents[2]
DEATHS: dict[str, tuple[object, str]] = {
    "before the kernel's part": (attachments, "attach"),
    "before the gate opens": (StartGate, "open"),
    "before the kernel gives back": (attachments, "detach"),
    "before the release is committed": (ClaimStore, "put_all"),
}
"""By point in a walk: the function at whose call the process is killed."""


class OtherInstances:
    """From outside: one at a time, each in a process of its own, forked from one that has loaded all."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.driver.other_instance"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        self.pid = 0
        """Of the instance; 0 when there is none."""

    def use(self, folder: Path, node: Namespace) -> None:
        """Start one over a state folder."""
        self.start(str(folder), str(node.path))
        pid = self.answer()
        assert isinstance(pid, int)
        self.pid = pid

    def start(self, *call: object) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps(call) + "\n")
        self._parent.stdin.flush()

    def answer(self) -> object:
        """Of the call that was started; ``None`` where the process died over it."""
        assert self._parent.stdout is not None
        answer: object = json.loads(self._parent.stdout.readline())
        if answer is None:
            self.pid = 0
        return answer

    def do(self, *call: object) -> object:
        self.start(*call)
        return self.answer()

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            assert self.answer() is None

    def close(self) -> None:
        self._parent.communicate()


class _Stopping(Told):
    """The process gets no time while it tells users, and the hook has given it up when it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up = threading.Event()

    def attached(self, records: Sequence[PreparedClaim], links: Sequence[AttachedLink]) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        self.given_up.wait()
        super().attached(records, links)


class _Inside:
    """What can be called; each returns something for JSON."""

    def __init__(self, folder: Path, node: Namespace) -> None:
        self._folder = folder
        self._bench = Bench(folder, node)

    def run(self, *pod: str) -> bool:
        return self._bench.run_sandbox(_sandbox(*pod))

    def run_late(self, runtime_waits_seconds: float, *pod: str) -> bool:
        """The process is stopped once the pod has its devices, and until somebody lets it go on."""
        bench, told = self._bench, _Stopping()
        bench.hooks = PodHooks(
            bench.store, bench.attachments, told, HookListeners(bench.snapshots.append), 30
        )
        bench.hooks.connected("impatient", "1", runtime_waits_seconds)
        has_devices = self._bench.run_sandbox(_sandbox(*pod))
        told.given_up.set()
        for thread in threading.enumerate():
            if thread.name == "hook":
                thread.join()
        return has_devices

    def stop(self, *pod: str) -> bool:
        return self._bench.stop_sandbox(_sandbox(*pod))

    def create(self, *pod: str) -> list[str]:
        return [device.path for device in self._bench.create_container(_sandbox(*pod)).devices]

    def come_and_go(self, times: int, *pod: str) -> bool:
        sandbox_id, *rest = pod
        for number in range(times):
            self.run(f"{sandbox_id}-{number}", *rest)
            self.stop(f"{sandbox_id}-{number}", *rest)
        return True

    def prepare(self, ifname: str, pod_ifname: str, uid: str, pod_uid: str) -> str:
        return self._bench.prepare(ifname, pod_ifname, uid, pod_uid=pod_uid).claim.uid

    def prepare_files(self, count: int) -> list[str]:
        """Records and CDI files, one after the other as Prepare writes them; those that are gone since."""
        bench = self._bench
        for number in range(count):
            uid = f"file-{number}"
            with bench.attachments.locked():
                bench.prepare("eth1", "net1", uid, pod_uid=uid)
            bench.cdi.write(uid, [CdiDevice("nic")])
        return sorted({f"file-{number}" for number in range(count)} - bench.cdi.list_claims())

    def told(self) -> list[int]:
        told = self._bench.told
        return [len(told.attached_links), len(told.found_links), len(told.reports), len(told.failures)]

    def hold_devices(self) -> NoReturn:
        with self._bench.attachments.locked():
            self._wait_for_the_end()

    def hold_claim(self, uid: str) -> None:
        async def hold() -> None:
            async with WorkLocks(self._folder).hold(Work.CLAIM, [uid]):
                self._wait_for_the_end()

        asyncio.run(hold())

    def _wait_for_the_end(self) -> NoReturn:
        _say("held")
        while True:
            signal.pause()

    def die(self, point: str) -> bool:
        owner, name = DEATHS[point]
        setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        return True


def spell(pod: PodSandbox) -> tuple[str, str, str]:
    """The arguments that stand for a pod."""
    return pod.id, pod.uid, pod.netns_path


def _sandbox(sandbox_id: str, uid: str, netns_path: str) -> PodSandbox:
    return PodSandbox(sandbox_id, "pod", "default", uid, netns_path=netns_path, pid=4711)


def _say(answer: object) -> None:
    os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


def _serve(stdin: BinaryIO, folder: str, path: str) -> None:
    inside = _Inside(Path(folder), Namespace("node", NetworkNamespace.open(path)))
    _say(os.getpid())
    for line in stdin:
        name, *arguments = json.loads(line)
        call: Callable[..., object] = getattr(inside, name)
        _say(call(*arguments))


def main() -> None:
    with open(0, "rb", buffering=0) as stdin:  # each process reads its own lines only
        while line := stdin.readline():
            instance = os.fork()
            if not instance:
                _serve(stdin, *json.loads(line))
                os._exit(0)
            os.waitpid(instance, 0)
            _say(None)


if __name__ == "__main__":
    main()
