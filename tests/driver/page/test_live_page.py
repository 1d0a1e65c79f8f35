"""The page of a real driver on the testbed, in a real browser, through its real port."""

from __future__ import annotations

import asyncio

import pytest

from testbed.cluster import Testbed
from testbed.debian.browser import HeadlessBrowser, find_browser
from testbed.debian.packages import cache_folder
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in
from tests.support.objects import device_class
from tests.support.probe_port import fetch
from tests.support.screen import open_screen
from tests.support.waiting import until_in_thread

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree, pytest.mark.usefixtures("browser")]

URL = "http://localhost:9177/"


def pod_with_nic() -> list[dict[str, object]]:
    nic = {"name": "nic", "exactly": {"deviceClassName": "any"}}
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "nic"}]}}
    claims = [{"name": "nic", "resourceClaimName": "nic"}]
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "nic"}}
    return [
        device_class("any", 'device.attributes["dra.net"].rdma'),
        {**claim, "spec": {"devices": {"requests": [nic]}}},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "worker"},
            "spec": {"resourceClaims": claims, "containers": [container]},
        },
    ]


def look(browser: HeadlessBrowser) -> dict[str, str]:
    """The text of each section, by its heading."""
    with open_screen(browser) as screen, screen.look(URL, 360) as sight:
        assert sight.find_overflows() == []
        assert sight.find_faint() == []
        assert sight.complaints == []
        sections = sight.page.locator("section").all()
        return {part.locator("h2").inner_text(): part.inner_text() for part in sections}


def test_a_person_sees_a_pods_nic_come_and_go() -> None:
    browser = find_browser(cache_folder("browser"))
    assert browser is not None

    async def scenario() -> None:
        async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
            await testbed.driver.start()
            await testbed.driver.wait_ready(30)
            before = await asyncio.to_thread(look, browser)
            assert "No claims are prepared on this node" in before["Claims"]
            assert "this instance of the driver is on-duty" in before["Recent events"]
            await testbed.apply(pod_with_nic())
            async with asyncio.timeout(30):
                await testbed.kubelet.wait_running(testbed.pod_uid("worker"))
            await until_in_thread(lambda: "default/worker" in fetch("/"))  # a page is kept for a second
            after = await asyncio.to_thread(look, browser)
            assert "default/worker" in after["Claims"]
            assert "attached" in after["Claims"], after["Claims"]
            assert "default/worker" in after["Devices"]
            assert "Prepared" in after["Recent events"]
            assert "Attached" in after["Recent events"]

    asyncio.run(scenario())
