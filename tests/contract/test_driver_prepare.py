"""Sections 2.1 to 2.6 against the real driver: what a claim gets, whatever is cut, repeated or gone."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dranet.cluster import paths
from tests.contract.calls import SERVICES, refs
from tests.contract.driver_node import GPU, NIC, OTHER_NIC, DrivenNode, Result
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.shared_node, pytest.mark.timeout(300)]


async def test_an_answer_names_the_main_request_the_allocated_device_and_resolvable_cdi_names(
    node: DrivenNode,
) -> None:
    """2.2: ``nic/fast`` is answered as ``nic``; pool and device are the allocation's; each CDI name is of
    this claim, unique, and in a spec file before the answer is given."""
    spec = [{"name": "nic", "firstAvailable": [{"name": "fast", "deviceClassName": "any"}]}]
    claim = await node.claim("alternatives", Result(NIC, request="nic/fast"), spec=spec)
    (device,) = (await node.calls.prepare([claim])).claims[claim.uid].devices
    resolvable = node.cdi_names()
    assert list(device.request_names) == ["nic"]
    assert (device.pool_name, device.device_name) == ("testbed-node", NIC)
    assert not device.HasField("share_id")
    assert len(set(device.cdi_device_ids)) == len(device.cdi_device_ids) > 0
    assert set(device.cdi_device_ids) <= resolvable
    assert all(claim.uid in name for name in device.cdi_device_ids)


async def test_every_device_of_a_claim_is_answered_once_with_cdi_names_of_its_own(node: DrivenNode) -> None:
    """2.2: one entry for each allocated device; no CDI name stands twice in a response."""
    claim = await node.claim("three", Result(NIC, "a"), Result(OTHER_NIC, "b"), Result(GPU, "c"))
    devices = (await node.calls.prepare([claim])).claims[claim.uid].devices
    assert [(list(d.request_names), d.device_name) for d in devices] == [
        (["a"], NIC),
        (["b"], OTHER_NIC),
        (["c"], GPU),
    ]
    names = [name for device in devices for name in device.cdi_device_ids]
    assert len(set(names)) == len(names)


async def test_results_of_other_drivers_are_ignored(node: DrivenNode) -> None:
    """2.5: only results of our name are ours; a claim without any is prepared with nothing."""
    both = await node.claim("both", Result(NIC, "a"), Result("gpu-0", "b", driver="gpu.example.com"))
    none = await node.claim("none", Result("gpu-1", "a", driver="gpu.example.com"))
    claims = (await node.calls.prepare([both, none])).claims
    assert [device.device_name for device in claims[both.uid].devices] == [NIC]
    assert (claims[none.uid].error, len(claims[none.uid].devices)) == ("", 0)


async def test_preparing_again_gives_the_same_answer_in_both_versions(node: DrivenNode) -> None:
    """2.3: Prepare(UID) twice is the same result, byte for byte."""
    claim = await node.claim("twice", Result(NIC))
    first = await node.calls.prepare([claim])
    again = [await node.calls.prepare([claim], version) for version in SERVICES]
    assert {answer.SerializeToString(deterministic=True) for answer in again} == {
        first.SerializeToString(deterministic=True)
    }


async def test_one_bad_claim_does_not_fail_the_others_of_its_call(node: DrivenNode) -> None:
    """2.3: an entry for every UID; the error of one is its own."""
    good = await node.claim("good", Result(NIC))
    bad = await node.claim("bad", Result("pci-0000-ff-00-0"))
    claims = (await node.calls.prepare([good, bad, *refs("unknown")])).claims
    assert claims[good.uid].error == ""
    assert "pci-0000-ff-00-0" in claims[bad.uid].error
    assert "does not exist" in claims["unknown"].error
    assert len(claims) == 3


async def test_a_claim_that_was_replaced_is_refused(node: DrivenNode) -> None:
    """4.3: the object has another UID than the kubelet says: it is another claim."""
    old = await node.claim("reborn", Result(NIC))
    await node.delete_claim(old)
    new = await node.claim("reborn", Result(NIC))
    claims = (await node.calls.prepare([old])).claims
    assert "was replaced" in claims[old.uid].error
    assert new.uid in claims[old.uid].error
    assert node.stored() == set()


async def test_a_claim_that_is_not_allocated_is_refused(node: DrivenNode) -> None:
    """4.3: no ``status.allocation`` yet, or not any more."""
    claim = await node.claim("early", Result(NIC))
    status = {"status": {"allocation": None, "reservedFor": None}}
    await node.testbed.api.patch(paths.resource_claim_status("default", "early"), status)
    assert "is not allocated" in (await node.calls.prepare([claim])).claims[claim.uid].error


async def test_a_device_that_another_claim_holds_is_refused_until_it_is_free(node: DrivenNode) -> None:
    """2.5: the last line of defence when scheduler and API server were wrong."""
    holder, late = await node.claim("holder", Result(NIC)), await node.claim("late", Result(NIC))
    assert not (await node.calls.prepare([holder])).claims[holder.uid].error
    assert "default/holder" in (await node.calls.prepare([late])).claims[late.uid].error
    await node.calls.unprepare([holder])
    assert not (await node.calls.prepare([late])).claims[late.uid].error


async def test_admin_access_takes_nothing_from_the_devices_user(node: DrivenNode) -> None:
    """2.5: it is granted beside an exclusive holder, and does not stand in an exclusive holder's way."""
    admin = await node.claim("admin", Result(NIC, admin_access=True))
    user = await node.claim("user", Result(NIC))
    for _ in range(2):
        claims = (await node.calls.prepare([admin, user])).claims
        assert [claims[ref.uid].error for ref in (admin, user)] == ["", ""]
    await node.calls.unprepare([admin])
    assert node.stored() == {user.uid}


async def test_a_kill_between_the_commit_and_the_answer_is_repaired_by_the_repetition(
    node: DrivenNode,
) -> None:
    """2.3, 10: the promise is on disk and nobody heard of it. The kubelet asks again and gets it."""
    claim = await node.claim("cut", Result(NIC))
    await node.testbed.driver.stop()
    await node.start(command=dies_at("prepare:record-committed", node.testbed.places.work_dir))
    with pytest.raises(grpc.aio.AioRpcError) as cut:
        await node.calls.prepare([claim])
    assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
    await until(lambda: asyncio.to_thread(lambda: not node.testbed.driver.is_running))
    assert claim.uid in node.stored()
    await node.start()
    assert node.stored() == {claim.uid}
    (device,) = (await node.calls.prepare([claim])).claims[claim.uid].devices
    assert set(device.cdi_device_ids) <= node.cdi_names()


def dies_at(step: str, folder: Path) -> tuple[str, ...]:
    """A build of the driver that kills itself when it comes to the step for the first time."""
    build = (sys.executable, "-m", "tests.survival.builds.dying_driver", str(folder))
    return (*build, "--die-at", f"{step}:1")


async def test_what_was_prepared_by_one_process_is_unprepared_by_the_next(node: DrivenNode) -> None:
    """4.2: state is on disk, so that any instance can end what another has begun."""
    claim = await node.claim("handed-over", Result(NIC))
    await node.calls.prepare([claim])
    await node.testbed.driver.kill()
    await node.start()
    assert not (await node.calls.unprepare([claim])).claims[claim.uid].error
    assert (node.stored(), node.cdi_names()) == (set(), set())


async def test_a_call_that_the_kubelet_cut_is_finished_and_found_by_its_repetition(node: DrivenNode) -> None:
    """2.3, 11.12: the deadline passes while the API server hangs; late completion is harmless."""
    claim = await node.claim("impatient", Result(NIC))
    node.proxy.stall()
    with pytest.raises(grpc.aio.AioRpcError) as cut:
        await node.calls.prepare([claim], seconds=0.2)
    assert cut.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    node.proxy.flow()
    assert (await node.calls.prepare([claim])).claims[claim.uid].devices
    assert node.stored() == {claim.uid}


async def test_get_info_and_empty_requests_are_answered_at_once_while_everything_hangs(
    node: DrivenNode,
) -> None:
    """1.3, 9.3: GetInfo within its second, and the liveness probe without waiting for a lock, with hundreds
    of Prepares in flight and an API server that answers nothing."""
    claims = refs(*(f"none-{number}" for number in range(300)))
    node.proxy.stall()
    async with asyncio.TaskGroup() as tasks:
        hanging = tasks.create_task(node.calls.prepare_each(claims))
        await node.calls.prepare([])  # answered after those that came before it were begun
        for _ in range(20):
            assert (await node.calls.get_info()).name == "dra.net"
            assert not (await node.calls.prepare([], seconds=1)).claims
            assert not (await node.calls.unprepare([], seconds=1)).claims
        assert not hanging.done()
        node.proxy.flow()
    errors = [entry.error for answer in hanging.result() for entry in answer.claims.values()]
    assert len(errors) == len(claims)
    assert all("does not exist" in error for error in errors)


async def test_a_prepared_claim_is_answered_without_the_api_server(node: DrivenNode) -> None:
    """2.3: after a kubelet restart everything is prepared again; that must not depend on the API server."""
    claim = await node.claim("known", Result(NIC))
    first = await node.calls.prepare([claim])
    node.proxy.stall()
    assert await node.calls.prepare([claim], seconds=5) == first


async def test_a_restarted_kubelet_prepares_a_running_pod_again_and_nothing_is_disturbed(
    node: DrivenNode,
) -> None:
    """2.3: the checkpoint keeps claims and calls them unprepared. Same devices, same names, same link."""
    uid = await node.running_pod()
    claim = node.claim_of("nic")
    before = await node.calls.prepare([claim])
    link, container = await _links_of(node, "worker"), node.testbed.containers("worker")["main"]
    tries = node.testbed.kubelet.timings(uid).tries
    await node.testbed.kubelet.restart()
    await until(lambda: asyncio.to_thread(lambda: node.testbed.kubelet.timings(uid).tries > tries))
    assert await node.calls.prepare([claim]) == before
    assert await _links_of(node, "worker") == link
    assert node.testbed.containers("worker")["main"] == container


async def _links_of(node: DrivenNode, pod: str) -> str:
    """The pod's links and addresses as ``ip`` shows them, indexes included."""
    sandbox = node.testbed.sandbox(pod)
    assert sandbox is not None
    process = await asyncio.create_subprocess_exec(
        "nsenter", f"--net={sandbox.netns_path}", "ip", "-json", "address", stdout=asyncio.subprocess.PIPE
    )
    return (await process.communicate())[0].decode()


async def test_slices_ask_for_prepare_and_unprepare(node: DrivenNode) -> None:
    """2.6: a node driver sets no ``skipNodeOperations``, or the kubelet would not call it."""
    await until(node.testbed.fetch_slices)
    slices = await node.testbed.fetch_slices()
    assert not any("skipNodeOperations" in found["spec"] for found in slices)
