"""What each action of a scenario does: to the driver, to objects and to pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from testbed.scenario import scenario as actions
from testbed.scenario.expectations import EXPECTATIONS
from testbed.scenario.scenario import Action
from testbed.scenario.walk import Lines, StepFailed, Walk


async def perform(walk: Walk, action: Action) -> Lines:
    """One action within its time limit.

    Raises:
        StepFailed: not as expected, or not in time.
        DranetError: a part of the testbed or the driver failed.
    """
    walk.observation = ""
    within = action.within * walk.patience
    try:
        async with asyncio.timeout(within):
            return await _WORK[type(action)](walk, action)
    except TimeoutError as error:
        raise StepFailed(f"not within {within:g} s: {walk.observation or 'no sign of it'}") from error


# The driver's life


async def _start_driver(walk: Walk, action: actions.StartDriver) -> Lines:
    driver = walk.cluster.driver
    await driver.start(action.settings)
    await walk.eventually(driver.check_ready)
    return (f"{driver.describe()}: ready",)


async def _start_vendor_driver(walk: Walk, action: actions.StartVendorDriver) -> Lines:
    await walk.cluster.start_vendor_driver(action.driver)
    return (f"{action.driver}: registered, and its slice is there",)


async def _add_device_plugin(walk: Walk, action: actions.AddDevicePlugin) -> Lines:
    await walk.cluster.add_device_plugin(action.resource, action.ids)
    return (f"{action.resource}: {len(action.ids)} devices, which the kubelet gives by number",)


async def _stop_driver(walk: Walk, action: actions.StopDriver) -> Lines:
    walk.observation = "the driver still runs"
    exit_code = await walk.cluster.driver.stop(action.within * walk.patience)
    if exit_code is None:
        return ("it has ended; its exit code is unknown",)
    if exit_code != action.exit_code:
        raise StepFailed(f"the driver's exit code is {exit_code}, not {action.exit_code}")
    return (f"exit code {exit_code}",)


async def _kill_driver(walk: Walk, action: actions.KillDriver) -> Lines:
    await walk.cluster.driver.kill(stays_away=action.stays_away)
    return ()


async def _roll_driver(walk: Walk, action: actions.RollDriver) -> Lines:
    walk.observation = "the update still goes on"
    return (await walk.cluster.driver.roll(action.within * walk.patience),)


async def _hold_sandboxes(walk: Walk, _: actions.HoldSandboxes) -> Lines:
    walk.cluster.pods.hold_sandboxes(True)
    return ()


async def _release_sandboxes(walk: Walk, _: actions.ReleaseSandboxes) -> Lines:
    walk.cluster.pods.hold_sandboxes(False)
    return ()


# Objects and pods


async def _apply(walk: Walk, action: actions.Apply) -> Lines:
    await walk.cluster.apply([manifest.body for manifest in action.objects])
    return (", ".join(f"{manifest.kind} {manifest.metadata.name}" for manifest in action.objects),)


async def _allocate(walk: Walk, action: actions.Allocate) -> Lines:
    await walk.cluster.allocate(action.claim, {entry.request: entry.device for entry in action.devices})
    return ()


async def _wait_pod_prepared(walk: Walk, action: actions.WaitPodPrepared) -> Lines:
    for pod in action.pods:
        await _watching(walk, pod, walk.cluster.pods.wait_prepared(pod))
    return ()


async def _wait_pod_running(walk: Walk, action: actions.WaitPodRunning) -> Lines:
    pods = walk.cluster.pods
    for pod in action.pods:
        await _watching(walk, pod, pods.wait_running(pod))
    return tuple(pods.describe_start(pod) for pod in action.pods)


async def _watching(walk: Walk, pod: str, wait: Awaitable[None]) -> None:
    """Wait; when the time is over, the error names where the pod was stuck."""
    try:
        await wait
    except asyncio.CancelledError:
        walk.observation = await walk.cluster.pods.explain(pod)
        raise


async def _wait_pod_failing(walk: Walk, action: actions.WaitPodFailing) -> Lines:
    seen = ""

    async def look() -> str:
        nonlocal seen
        pod = await walk.cluster.fetch_pod(action.pod)
        events = await walk.cluster.fetch_events(action.pod)
        seen = " ".join([str(pod.get("status", "")), *(event.get("message", "") for event in events)])
        missing = [text for text in action.texts if text not in seen]
        return (
            f"pod {action.pod} does not report {', '.join(map(repr, missing))}, but: {seen}"
            if missing
            else ""
        )

    await walk.eventually(look)
    return (await walk.cluster.pods.explain(action.pod),)


async def _delete_pods(walk: Walk, action: actions.DeletePods) -> Lines:
    for pod in action.pods:
        await walk.cluster.delete_pod(pod)
    if action.wait:
        return await _wait_pods_gone(walk, actions.WaitPodsGone(pods=action.pods))
    return ()


async def _wait_pods_gone(walk: Walk, action: actions.WaitPodsGone) -> Lines:
    for pod in action.pods:
        await _watching(walk, pod, walk.cluster.pods.wait_gone(pod))
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
