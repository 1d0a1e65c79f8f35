"""What a judge must see: each of these breaks one thing by hand, where the driver cannot mend it."""

from __future__ import annotations

import asyncio

from dranet.cluster import paths
from testbed.cluster import NAMESPACE
from testbed.node.iproute import in_namespace, read_text, run_ip
from testbed.runtime.contract import ContainerSpec
from tests.survival.environment import Stage
from tests.survival.objects import Way
from tests.survival.verification import Verdict

NIC = "enp35s0np0"


async def no_fault(stage: Stage) -> None:
    """Nothing but pods: the judge has nothing to say."""
    await stage.ensure_driver()
    await stage.add_pod("moved")
    await stage.add_pod("shared", Way.SHARED, claims=3)
    await stage.wait_running("moved", "shared")
    await stage.assert_well()
    assert stage.judge.containers_seen >= 2
    await stage.conclude("no fault")


async def a_changed_mtu_is_not_restored(stage: Stage) -> None:
    run_ip("link", "set", "eno1", "mtu", "1400")
    verdict = await stage.judge.examine()
    assert verdict.not_restored == ("+ link eno1: mtu 1400", "- link eno1: mtu 1500")
    run_ip("link", "set", "eno1", "mtu", "1500")


async def a_cdi_spec_that_stays_is_not_restored(stage: Stage) -> None:
    left = stage.testbed.places.cdi_dir / "left.json"
    left.touch()
    assert (await stage.judge.examine()).not_restored == ("+ CDI spec left.json",)
    left.unlink()


async def a_file_for_a_container_that_stays_is_not_restored(stage: Stage) -> None:
    left = stage.testbed.places.work_dir / "state" / "workload" / "claim"
    left.mkdir(parents=True)
    (told,) = (await stage.judge.examine()).not_restored
    assert told == f"+ file for a container: {left}"
    left.rmdir()


async def a_pod_that_does_not_run_is_lost(stage: Stage) -> None:
    await stage.ensure_driver()
    stage.testbed.kubelet.hold_sandboxes(True)
    await stage.add_pod("held")
    await stage.testbed.kubelet.wait_prepared(stage.testbed.pod_uid("held"))
    assert any("pod held does not run: PREPARED" in text for text in (await stage.judge.examine()).lost)
    stage.testbed.kubelet.hold_sandboxes(False)
    await stage.wait_running("held")
    await stage.assert_well()
    await stage.delete_pods("held")


async def a_pod_without_its_link_is_bare_and_lost_and_its_status_wrong(stage: Stage) -> None:
    """The driver is dead, so that it cannot mend it."""
    await stage.ensure_driver()
    await stage.add_pod("shared", Way.SHARED)
    await stage.wait_running("shared")
    await stage.driver.kill()
    await in_pod(stage, "shared", "ip", "link", "delete", "net1")
    verdict = await stage.judge.examine()
    assert "shared-1: pci-0000-83-00-0 is not there" in verdict.lost[0]
    assert "link net1 is not in the pod" in verdict.wrong_statuses[0]
    assert not verdict.bare, "no container has started meanwhile"
    await start_another_container(stage, "shared")
    assert "container late of shared" in (await stage.judge.examine()).bare[0]
    stage.judge.bare.clear()
    await stage.ensure_driver()
    await stage.assert_well()
    await stage.delete_pods("shared")


async def a_link_that_is_down_or_without_address_is_bare(stage: Stage) -> None:
    await stage.ensure_driver()
    await stage.add_pod("moved")
    await stage.wait_running("moved")
    await stage.driver.kill()
    await in_pod(stage, "moved", "ip", "address", "flush", "dev", "net1")
    await start_another_container(stage, "moved")
    assert "net1 lacks ['10.64.0.1/24']" in stage.judge.bare[-1]
    await in_pod(stage, "moved", "ip", "link", "set", "net1", "down")
    await start_another_container(stage, "moved")
    assert "net1 is down" in stage.judge.bare[-1]
    assert any("addresses ['10.64.0.1/24']" in text for text in await wrong(stage))
    stage.judge.bare.clear()
    await stage.ensure_driver()
    await stage.delete_pods("moved")
    await stage.assert_well()


async def a_status_that_says_too_much_is_wrong(stage: Stage) -> None:
    """Of a running pod: another address, and Ready taken back."""
    await stage.ensure_driver()
    await stage.add_pod("moved")
    await stage.wait_running("moved")
    await stage.assert_well()
    await stage.driver.kill()
    claim = await stage.testbed.fetch_claim("moved-1")
    entry = claim["status"]["devices"][0]
    entry["networkData"]["ips"] = ["10.64.0.77/24"]
    next(c for c in entry["conditions"] if c["type"] == "Ready")["status"] = "False"
    body = {"status": {"devices": claim["status"]["devices"]}}
    await stage.testbed.api.patch(paths.resource_claim_status(NAMESPACE, "moved-1"), body)
    found = "\n".join(await wrong(stage))
    assert "Ready is False" in found
    assert "addresses ['10.64.0.77/24'], but the pod has ['10.64.0.1/24']" in found
    await stage.ensure_driver()
    await stage.delete_pods("moved")
    await stage.assert_well()


async def a_nic_that_is_moved_away_is_lost(stage: Stage) -> None:
    """Told last: its addresses do not come back by hand."""
    await stage.ensure_driver()
    run_ip("netns", "add", "elsewhere")
    run_ip("link", "set", NIC, "netns", "elsewhere")
    verdict = await stage.judge.examine()
    assert verdict.lost == (f"NIC {NIC} is neither on the host nor in a pod that has it",)
    run_ip("link", "set", NIC, "netns", "1", netns="elsewhere")
    assert not (await stage.judge.examine()).lost


async def wrong(stage: Stage) -> tuple[str, ...]:
    verdict: Verdict = await stage.judge.examine()
    return verdict.wrong_statuses


async def in_pod(stage: Stage, pod: str, *command: str) -> str:
    """Run it in the pod's network namespace, past everybody."""
    sandbox = stage.testbed.sandbox(pod)
    assert sandbox is not None
    return await asyncio.to_thread(read_text, *in_namespace(sandbox.netns_path, *command))


async def start_another_container(stage: Stage, pod: str) -> None:
    """One that brings no claim, past the kubelet: nothing holds it back while the driver is dead."""
    sandbox = stage.testbed.sandbox(pod)
    assert sandbox is not None
    await stage.testbed.runtime.create_container(sandbox, ContainerSpec("late"))
