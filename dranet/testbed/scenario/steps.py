"""What each action of a scenario does: to the driver's process, to objects and to pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dranet.testbed.cluster import DRIVER_NAME
from dranet.testbed.scenario import scenario as actions
from dranet.testbed.scenario.expectations import EXPECTATIONS
from dranet.testbed.scenario.scenario import Action
from dranet.testbed.scenario.walk import Lines, StepFailed, Walk


async def perform(walk: Walk, action: Action) -> Lines:
    """One action within its time limit.

    Raises:
        StepFailed: not as expected, or not in time.
        DranetError: a part of the testbed or the driver failed.
    """
    walk.observation = ""
    try:
        async with asyncio.timeout(action.within):
            return await _WORK[type(action)](walk, action)
    except TimeoutError as error:
        raise StepFailed(f"not within {action.within:g} s: {walk.observation or 'no sign of it'}") from error


# The driver's life


async def _start_driver(walk: Walk, action: actions.StartDriver) -> Lines:
    driver = walk.testbed.driver
    await driver.start(action.settings)
    await walk.eventually(driver.check_ready)
    return (f"dranet run, pid {driver.pid}: ready",)


async def _start_vendor_driver(walk: Walk, action: actions.StartVendorDriver) -> Lines:
    await walk.testbed.add_vendor(action.driver)
    await walk.testbed.kubelet.wait_driver(action.driver)
    return (f"{action.driver}: registered, and its slice is there",)


async def _add_device_plugin(walk: Walk, action: actions.AddDevicePlugin) -> Lines:
    walk.testbed.kubelet.add_device_plugin(action.resource, action.ids)
    return (f"{action.resource}: {len(action.ids)} devices, which the kubelet gives by number",)


async def _stop_driver(walk: Walk, action: actions.StopDriver) -> Lines:
    walk.observation = "the driver still runs"
    ended = await walk.testbed.driver.stop(action.within)
    if ended.exit_code != action.exit_code:
        raise StepFailed(f"the driver's exit code is {ended.exit_code}, not {action.exit_code}")
    return (f"exit code {ended.exit_code}",)


async def _kill_driver(walk: Walk, _: actions.KillDriver) -> Lines:
    await walk.testbed.driver.kill()
    await walk.testbed.kubelet.wait_driver(DRIVER_NAME, registered=False)
    return ()


async def _roll_driver(walk: Walk, action: actions.RollDriver) -> Lines:
    walk.observation = "the update still goes on"
    roll = await walk.testbed.roll_driver(action.within)
    if roll.old.exit_code != 0:
        raise StepFailed(f"the old driver's exit code is {roll.old.exit_code}")
    ready, gone = f"{roll.ready_seconds:.1f} s", f"{roll.stop_seconds:.1f} s"
    return (f"pid {walk.testbed.driver.pid} was ready after {ready}, the old one gone {gone} later",)


async def _hold_sandboxes(walk: Walk, _: actions.HoldSandboxes) -> Lines:
    walk.testbed.kubelet.hold_sandboxes(True)
    return ()


async def _release_sandboxes(walk: Walk, _: actions.ReleaseSandboxes) -> Lines:
    walk.testbed.kubelet.hold_sandboxes(False)
    return ()


# Objects and pods


async def _apply(walk: Walk, action: actions.Apply) -> Lines:
    await walk.testbed.apply([manifest.body for manifest in action.objects])
    return (", ".join(f"{manifest.kind} {manifest.metadata.name}" for manifest in action.objects),)


async def _allocate(walk: Walk, action: actions.Allocate) -> Lines:
    await walk.testbed.allocate(action.claim, {entry.request: entry.device for entry in action.devices})
    return ()


async def _wait_pod_prepared(walk: Walk, action: actions.WaitPodPrepared) -> Lines:
    kubelet = walk.testbed.kubelet
    for pod in action.pods:
        await _watching(walk, pod, kubelet.wait_prepared(walk.testbed.pod_uid(pod)))
    return ()


async def _wait_pod_running(walk: Walk, action: actions.WaitPodRunning) -> Lines:
    testbed = walk.testbed
    for pod in action.pods:
        await _watching(walk, pod, testbed.kubelet.wait_running(testbed.pod_uid(pod)))
    return tuple(_describe_start(walk, pod) for pod in action.pods)


def _describe_start(walk: Walk, pod: str) -> str:
    timings = walk.testbed.kubelet.timings(walk.testbed.pod_uid(pod))
    phases = {
        "Prepare": timings.prepare_seconds,
        "sandbox with NRI hook": timings.sandbox_seconds,
        "containers": timings.containers_seconds,
    }
    return f"{pod}: " + ", ".join(
        f"{name} {seconds * 1000:.0f} ms" for name, seconds in phases.items() if seconds is not None
    )


async def _watching(walk: Walk, pod: str, wait: Awaitable[None]) -> None:
    """Wait; when the time is over, the observation says where the pod was stuck."""
    try:
        await wait
    except asyncio.CancelledError:
        kubelet, uid = walk.testbed.kubelet, walk.testbed.pod_uid(pod)
        stage = kubelet.stage(uid).name.lower()
        walk.observation = (
            f"pod {pod} is {stage}: {kubelet.failure(uid) or 'no failure known to the kubelet'}"
        )
        raise


async def _wait_pod_failing(walk: Walk, action: actions.WaitPodFailing) -> Lines:
    seen = ""

    async def look() -> str:
        nonlocal seen
        pod = await walk.testbed.fetch_pod(action.pod)
        events = await walk.testbed.fetch_events(action.pod)
        seen = " ".join([str(pod.get("status", "")), *(event.get("message", "") for event in events)])
        missing = [text for text in action.texts if text not in seen]
        return (
            f"pod {action.pod} does not say {', '.join(map(repr, missing))}; it says: {seen}"
            if missing
            else ""
        )

    await walk.eventually(look)
    return (walk.testbed.kubelet.failure(walk.testbed.pod_uid(action.pod)),)


async def _delete_pods(walk: Walk, action: actions.DeletePods) -> Lines:
    for pod in action.pods:
        await walk.testbed.delete_pod(pod)
    if action.wait:
        return await _wait_pods_gone(walk, actions.WaitPodsGone(pods=action.pods))
    return ()


async def _wait_pods_gone(walk: Walk, action: actions.WaitPodsGone) -> Lines:
    testbed = walk.testbed
    for pod in action.pods:
        await _watching(walk, pod, testbed.kubelet.wait_gone(testbed.pod_uid(pod)))
    return ()


_WORK: Mapping[type[Action], Callable[[Walk, Any], Awaitable[Lines]]] = {
    actions.StartDriver: _start_driver,
    actions.StartVendorDriver: _start_vendor_driver,
    actions.AddDevicePlugin: _add_device_plugin,
    actions.StopDriver: _stop_driver,
    actions.KillDriver: _kill_driver,
    actions.RollDriver: _roll_driver,
    actions.HoldSandboxes: _hold_sandboxes,
    actions.ReleaseSandboxes: _release_sandboxes,
    actions.Apply: _apply,
    actions.Allocate: _allocate,
    actions.WaitPodPrepared: _wait_pod_prepared,
    actions.WaitPodRunning: _wait_pod_running,
    actions.WaitPodFailing: _wait_pod_failing,
    actions.DeletePods: _delete_pods,
    actions.WaitPodsGone: _wait_pods_gone,
    **EXPECTATIONS,
}
