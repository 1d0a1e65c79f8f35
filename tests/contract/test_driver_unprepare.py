"""Section 2.4 against the real driver: everything is given back, whoever is gone by then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dranet.cluster import paths
from tests.contract.calls import SERVICES, refs
from tests.contract.driver_node import NIC, OTHER_NIC, DrivenNode, Result
from tests.support.waiting import until

pytestmark = [pytest.mark.testbed, pytest.mark.shared_node, pytest.mark.timeout(300)]


async def test_unprepare_of_the_unknown_succeeds_in_both_versions(node: DrivenNode) -> None:
    """2.4: state was lost, another instance prepared it, or Prepare never succeeded: nothing to give back."""
    for version in SERVICES:
        claims = (await node.calls.unprepare(refs("u1", "u2"), version)).claims
        assert {uid: entry.error for uid, entry in claims.items()} == {"u1": "", "u2": ""}


async def test_unprepare_needs_no_claim_object(node: DrivenNode) -> None:
    """2.4: only namespace, name and UID arrive, and the object may be gone by then."""
    claim = await node.claim("gone", Result(NIC))
    await node.calls.prepare([claim])
    await node.delete_claim(claim)
    assert not (await node.calls.unprepare([claim])).claims[claim.uid].error
    assert (node.stored(), node.cdi_names()) == (set(), set())


async def test_unprepare_asks_the_api_server_nothing(node: DrivenNode) -> None:
    """2.4: no decision depends on it; with an API server that hangs the pod still ends."""
    claim = await node.claim("offline", Result(NIC))
    await node.calls.prepare([claim])
    node.proxy.stall()
    assert not (await node.calls.unprepare([claim], seconds=5)).claims[claim.uid].error
    assert node.stored() == set()


async def test_unprepare_removes_the_cdi_file_and_the_record_and_may_be_repeated(node: DrivenNode) -> None:
    """2.4: visible effects first, then the CDI spec, then what is stored; again is success."""
    kept, given_back = await node.claim("kept", Result(NIC)), await node.claim("back", Result(OTHER_NIC))
    await node.calls.prepare([kept, given_back])
    for _ in range(2):
        assert not (await node.calls.unprepare([given_back])).claims[given_back.uid].error
        assert node.stored() == {kept.uid}
        assert all(kept.uid in name for name in node.cdi_names())


async def test_an_unprepare_that_failed_half_way_is_ended_by_its_repetition(node: DrivenNode) -> None:
    """2.4: the record goes last, so that the retry still knows what there is to give back."""
    claim = await node.claim("stuck", Result(NIC))
    await node.calls.prepare([claim])
    file = node.testbed.places.cdi_dir / f"dra.net-claim_{claim.uid}.json"
    await asyncio.to_thread(_put_folder_in_place_of, file)
    assert str(file) in (await node.calls.unprepare([claim])).claims[claim.uid].error
    assert node.stored() == {claim.uid}
    await asyncio.to_thread(file.rmdir)
    assert not (await node.calls.unprepare([claim])).claims[claim.uid].error
    assert node.stored() == set()


def _put_folder_in_place_of(file: Path) -> None:
    file.unlink()
    file.mkdir()


async def test_one_claim_that_cannot_be_given_back_does_not_keep_the_others(node: DrivenNode) -> None:
    """2.4: an entry for each UID, and the error of one is its own."""
    bad, good = await node.claim("bad", Result(NIC)), await node.claim("good", Result(OTHER_NIC))
    await node.calls.prepare([bad, good])
    file = node.testbed.places.cdi_dir / f"dra.net-claim_{bad.uid}.json"
    await asyncio.to_thread(_put_folder_in_place_of, file)
    claims = (await node.calls.unprepare([bad, good])).claims
    await asyncio.to_thread(file.rmdir)
    assert (bool(claims[bad.uid].error), claims[good.uid].error) == (True, "")
    assert node.stored() == {bad.uid}


async def test_a_device_is_free_for_the_next_claim_once_it_was_given_back(node: DrivenNode) -> None:
    """2.4, 2.3: the same name with another UID is another claim, and gets the device."""
    first = await node.claim("again", Result(NIC))
    await node.calls.prepare([first])
    await node.delete_claim(first)
    second = await node.claim("again", Result(NIC))
    assert (await node.calls.prepare([second])).claims[second.uid].error
    await node.calls.unprepare([first])
    assert not (await node.calls.prepare([second])).claims[second.uid].error


async def test_a_pod_deleted_by_force_while_the_kubelet_was_down_is_cleaned_up(node: DrivenNode) -> None:
    """2.4: the kubelet finds at its return that the pod vanished, and unprepares its claims."""
    uid = await node.running_pod("forced", "forced")
    await node.testbed.api.delete(paths.pod("default", "forced"), uid=uid, grace_period_seconds=0)
    await node.testbed.kubelet.wait_gone(uid)
    node.forget_pod("forced")
    await until(lambda: asyncio.to_thread(lambda: not node.stored()))
    assert node.cdi_names() == set()


async def test_a_pod_stays_terminating_until_its_driver_is_back(node: DrivenNode) -> None:
    """2.4: where the driver is absent the pod hangs; the next instance ends what this one began."""
    uid = await node.running_pod("orphan", "orphan")
    await node.testbed.driver.kill()
    await node.testbed.delete_pod("orphan")
    await node.testbed.kubelet.wait_driver("dra.net", registered=False)
    assert await node.testbed.fetch_pod("orphan")
    await node.start()
    await node.testbed.kubelet.wait_gone(uid)
    node.forget_pod("orphan")
    assert (node.stored(), node.cdi_names()) == (set(), set())
