"""Who else serves the node's GPUs, over time: the first look, a driver that comes, one that goes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dranet.cluster.client import ApiClient, JsonObject, Snapshot
from dranet.cluster.nodes import MAX_SLICES, NodeDevices
from dranet.cluster.transport import access_from_url
from dranet.driver.gpus import (
    PATIENCE_SECONDS,
    TOO_MANY,
    YET_TO_COME,
    GpuCallbacks,
    GpuRules,
    GpuServers,
    OwnGpus,
)
from dranet.inventory.offer import NO_OTHER_SERVER, UNKNOWN
from dranet.model.facts import CharDevice, Gpu
from dranet.settings import PublishGpus
from dranet.telemetry import Metrics

USABLE = (Gpu("0000:1b:00.0", "nvidia", char_devices=(CharDevice("/dev/nvidia0", 195, 0),)),)
GPUS = (Gpu("0000:1b:00.0", "nvidia"), Gpu("0000:1c:00.0", "nvidia"), Gpu("0000:0c:00.0", "amd"))
DRIVER = "the DRA driver gpu.nvidia.com"
PLUGIN = "the device plugin of nvidia.com/gpu"
BACK_AFTER = 300.0


def a_slice(driver: str) -> JsonObject:
    spec: dict[str, Any] = {
        "driver": driver,
        "nodeName": "node",
        "pool": {"name": "node", "generation": 1},
        "devices": [{"name": "gpu-0", "attributes": {}}],
    }
    return {"metadata": {"name": driver, "uid": driver}, "spec": spec}


def kin_slice(driver: str, offers_gpu: bool) -> JsonObject:
    """Of another driver of our kind: a NIC, and perhaps the GPU."""
    found = a_slice(driver)
    places = ["0000:18:00.0", *(["0000:1b:00.0"] if offers_gpu else [])]
    found["spec"]["devices"] = [
        {
            "name": f"d{index}",
            "attributes": {
                "resource.kubernetes.io/pciBusID": {"string": place},
                "dra.net/type": {"string": "x"},
            },
        }
        for index, place in enumerate(places)
    ]
    return found


class Bench:
    def __init__(
        self, mode: PublishGpus = PublishGpus.AUTO, own: str = "dra.net", state: Path | None = None
    ) -> None:
        self.own = own
        self.now = 1000.0
        self.news = 0
        self.wanted = 0
        self.asked = 0
        self.uptime = 1e6
        self.used: tuple[str, ...] | None = ()
        self.is_answering = False
        self.metrics = Metrics()
        self.devices = NodeDevices(ApiClient(access_from_url("http://127.0.0.1:1")), own, "node")
        self.servers = GpuServers(
            self.devices,
            self.metrics.inventory,
            GpuRules(mode, BACK_AFTER, OwnGpus(state / "gpus.json") if state else None, lambda: self.uptime),
            GpuCallbacks(lambda: self.is_answering, self._note_news, self._note_gpus, self._note_ask),
            clock=lambda: self.now,
        )

    def _note_news(self) -> None:
        self.news += 1

    def _note_ask(self) -> None:
        self.asked += 1

    def _note_gpus(self) -> None:
        self.wanted += 1

    def see(self, *drivers: str, resources: Sequence[str] | None = ()) -> None:
        """What the API server tells: slices of these drivers, and the Node's resources."""
        self.devices.take(Snapshot(tuple(a_slice(driver) for driver in drivers), "1"))
        if resources is not None:
            self.servers.take_used(self.used)
            self.servers.take_resources(resources)

    def read_node(self, *resources: str) -> None:
        """It is told what it asked for."""
        self.servers.take_resources(resources)
        self.servers.take_asked()

    def judge(self, gpus: Sequence[Gpu] = GPUS) -> dict[str, str]:
        return dict(self.servers.judge(gpus).by_vendor)

    def may_publish(self) -> bool:
        return self.servers.may_publish(self.servers.served)

    def count(self, state: str) -> float | None:
        return self.metrics.registry.get_sample_value("dranet_inventory_gpus", {"state": state})


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_before_the_first_look_nobody_knows_and_nothing_is_published(bench: Bench) -> None:
    assert bench.servers.judge(GPUS) == UNKNOWN
    assert not bench.may_publish()
    assert bench.count("unknown") == 3
    assert bench.wanted == 1, "the slices of others are asked for when there are GPUs"
    bench.see(resources=None)
    assert bench.servers.judge(GPUS) == UNKNOWN, "the Node has not been read yet"
    bench.see()
    assert bench.servers.judge(GPUS) == NO_OTHER_SERVER
    assert bench.may_publish()
    assert (bench.count("ours"), bench.count("unknown")) == (3, 0)


def test_a_node_without_gpus_asks_and_waits_for_nobody(bench: Bench) -> None:
    assert bench.servers.judge(()) == NO_OTHER_SERVER
    assert bench.may_publish()
    bench.see("gpu.nvidia.com")
    assert (bench.wanted, bench.news) == (0, 0)


def test_where_only_this_look_fails_the_nics_do_not_wait_for_ever(bench: Bench) -> None:
    bench.judge()
    bench.now += PATIENCE_SECONDS + 1
    assert not bench.may_publish(), "the API server is away, and publishing could not succeed"
    bench.is_answering = True
    assert not bench.may_publish(), "after an outage, too, the look gets its time"
    bench.now += PATIENCE_SECONDS + 1
    assert bench.may_publish()
    assert bench.servers.judge(GPUS) == UNKNOWN, "but no GPU is offered"


def test_a_vendors_driver_that_comes_counts_at_once_and_for_its_vendor_alone(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.see()
    assert bench.judge() == {}
    news = bench.news
    with caplog.at_level(logging.INFO):
        bench.see("gpu.nvidia.com")
        assert bench.news == news + 1, "a scan is asked for"
        assert bench.judge() == {"nvidia": DRIVER}
        assert bench.judge() == {"nvidia": DRIVER}
    assert caplog.messages == [f"2 GPUs of nvidia are left to {DRIVER}"]
    assert (bench.count("ours"), bench.count("left")) == (1, 2)


def test_one_that_goes_counts_after_a_while_so_that_its_own_update_changes_nothing(bench: Bench) -> None:
    bench.see("gpu.nvidia.com")
    assert bench.judge() == {"nvidia": DRIVER}
    bench.see()
    bench.now += BACK_AFTER - 1
    assert bench.judge() == {"nvidia": DRIVER}
    bench.see("gpu.nvidia.com")
    assert bench.judge() == {"nvidia": DRIVER}
    bench.see()
    bench.now += BACK_AFTER - 1
    assert bench.judge() == {"nvidia": DRIVER}, "the time counts from when it was found gone"
    bench.now += BACK_AFTER
    bench.judge()
    bench.read_node()
    assert bench.judge() == {}


def test_the_time_counts_from_the_first_scan_without_it_however_long_the_last_one_is_ago(
    bench: Bench,
) -> None:
    bench.see("gpu.nvidia.com")
    bench.judge()
    bench.now += 10 * BACK_AFTER
    bench.see()
    assert bench.judge() == {"nvidia": DRIVER}


def test_before_gpus_come_back_the_node_is_read_again(bench: Bench) -> None:
    bench.see(resources=["nvidia.com/gpu"])
    bench.judge()
    bench.see(resources=[])
    bench.judge()
    bench.now += BACK_AFTER + 1
    asked, news = bench.asked, bench.news
    assert bench.judge() == {"nvidia": PLUGIN}, "what the Node said minutes ago is no answer"
    assert bench.asked == asked + 1
    bench.servers.take_resources(())
    assert (bench.judge(), bench.news) == ({"nvidia": PLUGIN}, news), "the kubelet was not asked with it"
    bench.read_node("nvidia.com/gpu")
    assert bench.news > news
    assert bench.judge() == {"nvidia": PLUGIN}, "the plugin had only been restarted"
    bench.read_node()
    bench.judge()
    bench.now += BACK_AFTER + 1
    bench.judge()
    news = bench.news
    bench.read_node()
    assert bench.news == news + 1, "that it says the same is what decides"
    assert bench.judge() == {}


def test_while_pods_have_devices_of_a_driver_that_is_gone_its_gpus_stay_theirs(bench: Bench) -> None:
    bench.used = ("gpu.nvidia.com", "example.com/nic")
    bench.see()
    held = {"nvidia": "the pods that have devices of gpu.nvidia.com"}
    assert bench.judge() == held
    bench.servers.take_used(None)
    assert bench.judge() == held, "a kubelet that does not answer has not said otherwise"
    bench.servers.take_used(())
    assert bench.judge() == held
    bench.now += BACK_AFTER
    bench.judge()
    bench.read_node()
    assert bench.judge() == {}


def test_a_kubelet_that_does_not_tell_holds_nothing_up(bench: Bench) -> None:
    bench.used = None
    bench.see()
    assert bench.judge() == {}


def test_a_vendors_driver_that_has_taken_all_its_gpus_out_serves_them_still(bench: Bench) -> None:
    empty = a_slice("gpu.nvidia.com")
    empty["spec"]["devices"] = []
    bench.see()
    bench.judge()
    news = bench.news
    bench.devices.take(Snapshot((empty,), "2"))
    assert bench.news == news + 1
    assert bench.judge() == {"nvidia": DRIVER}


def test_who_hides_a_driver_behind_more_slices_than_are_looked_at_gets_no_gpu_given_twice(
    bench: Bench,
) -> None:
    bench.see(*(f"a{number:04}.example" for number in range(MAX_SLICES)), "gpu.nvidia.com")
    assert bench.judge() == {"nvidia": TOO_MANY, "amd": TOO_MANY}


def test_a_node_that_has_just_booted_waits_for_whoever_serves_its_gpus(bench: Bench) -> None:
    bench.uptime = 40.0
    bench.see()
    assert bench.judge(USABLE) == {"nvidia": YET_TO_COME}
    assert bench.may_publish(), "NICs do not wait for it"
    bench.now += BACK_AFTER - 41
    bench.read_node()
    assert bench.judge(USABLE) == {"nvidia": YET_TO_COME}
    bench.now += 2
    bench.judge(USABLE)
    bench.read_node()
    assert bench.judge(USABLE) == {}


def test_gpus_that_were_ours_before_a_boot_are_ours_at_once_and_those_left_to_others_wait(
    tmp_path: Path,
) -> None:
    before = Bench(state=tmp_path)
    before.see("gpu.amd.com")
    amd = Gpu("0000:0c:00.0", "amd", char_devices=(CharDevice("/dev/dri/renderD128", 226, 128),))
    assert set(before.judge((*USABLE, amd))) == {"amd"}
    after = Bench(state=tmp_path)
    after.uptime = 40.0
    after.see()
    assert after.judge((*USABLE, amd)) == {"amd": YET_TO_COME}


def test_gpus_that_were_left_to_others_wait_when_we_start_anew_while_those_are_away(tmp_path: Path) -> None:
    """The update of a node restarts both; a vendor's driver that is not there in that moment is no sign."""
    before = Bench(state=tmp_path)
    before.see("gpu.nvidia.com")
    assert before.judge(USABLE) == {"nvidia": DRIVER}
    after = Bench(state=tmp_path)
    after.see()
    assert after.judge(USABLE) == {"nvidia": YET_TO_COME}
    after.now += BACK_AFTER + 1
    after.judge(USABLE)
    after.read_node()
    assert after.judge(USABLE) == {}
    again = Bench(state=tmp_path)
    again.see()
    assert again.judge(USABLE) == {}, "now they are ours, and a restart takes none back"


@pytest.mark.parametrize(
    ("mode", "after"), [(PublishGpus.ALWAYS, {}), (PublishGpus.NEVER, {"nvidia": YET_TO_COME})]
)
def test_who_goes_back_to_auto_keeps_the_gpus_that_were_always_offered(
    tmp_path: Path, mode: PublishGpus, after: dict[str, str]
) -> None:
    left = Bench(state=tmp_path)
    left.see("gpu.nvidia.com")
    left.judge(USABLE)
    Bench(mode, state=tmp_path).judge(USABLE)
    again = Bench(state=tmp_path)
    again.see()
    assert again.judge(USABLE) == after


def test_a_file_of_own_gpus_that_is_damaged_leads_to_a_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gpus.json").write_text('{"offered": ["nvi')
    bench = Bench(state=tmp_path)
    bench.see()
    assert bench.judge(USABLE) == {"nvidia": YET_TO_COME}
    assert "GPUs wait for their vendors' drivers" in caplog.text


def test_on_a_node_where_this_driver_has_never_been_the_gpus_are_offered_at_once(tmp_path: Path) -> None:
    bench = Bench(state=tmp_path)
    bench.see()
    assert bench.judge(USABLE) == {}


@pytest.mark.parametrize("content", ["", "[" * 100_000, "[]", '{"offered": 7}', '{"offered": [7, null, []]}'])
def test_a_file_of_own_gpus_of_any_shape_is_nobody_known(tmp_path: Path, content: str) -> None:
    path = tmp_path / "gpus.json"
    path.write_text(content)
    assert OwnGpus(path).read() == frozenset(), "which is not the same as no file"
    OwnGpus(path).write(["nvidia"])
    assert OwnGpus(path).read() == frozenset({"nvidia"})


def test_a_file_of_own_gpus_that_cannot_be_written_holds_up_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way")
    bench = Bench(state=tmp_path / "state")
    bench.see()
    assert bench.judge(USABLE) == {}


def test_gpus_whose_driver_has_just_been_loaded_wait_too_and_a_restart_of_ours_does_not(bench: Bench) -> None:
    bench.see()
    assert bench.judge(GPUS[:2]) == {}, "they have no nodes yet, and are not offered for that"
    assert bench.judge(USABLE) == {"nvidia": YET_TO_COME}
    bench.see(resources=["nvidia.com/gpu"])
    assert bench.judge(USABLE) == {"nvidia": PLUGIN}
    again = Bench()
    again.see()
    assert again.judge(USABLE) == {}


def test_two_of_this_driver_do_not_leave_the_gpus_to_each_other_again_and_again() -> None:
    first, second = Bench(own="a.example"), Bench(own="b.example")
    changes = 0
    before: tuple[bool, ...] = (True, True)
    for _ in range(40):
        offers = tuple(not bench.judge(USABLE) for bench in (first, second))
        changes += offers != before
        before = offers
        for bench, other, is_offering in ((first, second, offers[1]), (second, first, offers[0])):
            bench.devices.take(Snapshot((kin_slice(other.own, is_offering),), "1"))
            bench.servers.take_used(())
            bench.now += 60.0
            bench.read_node()
    assert before == (True, False)
    assert changes <= 3


def test_from_a_device_plugin_to_a_dra_driver_the_gpus_are_never_ours_in_between(bench: Bench) -> None:
    bench.see(resources=["nvidia.com/gpu"])
    assert bench.judge() == {"nvidia": PLUGIN}
    bench.see(resources=[])
    assert bench.judge() == {"nvidia": PLUGIN}
    bench.see("gpu.nvidia.com")
    assert bench.judge() == {"nvidia": DRIVER}


def test_the_same_resources_again_are_no_news(bench: Bench) -> None:
    bench.judge()
    bench.see(resources=["nvidia.com/gpu", "example.com/x"])
    news = bench.news
    bench.servers.take_resources(["example.com/x", "nvidia.com/gpu"])
    assert bench.news == news


@pytest.mark.parametrize(("mode", "state"), [(PublishGpus.ALWAYS, "ours"), (PublishGpus.NEVER, "left")])
def test_an_operator_who_has_decided_is_not_overruled(mode: PublishGpus, state: str) -> None:
    bench = Bench(mode)
    assert bench.judge() == {}
    assert bench.may_publish()
    assert bench.wanted == 1, "where a vendor's GPUs sit is asked for all the same: verdicts need it"
    bench.see("gpu.nvidia.com", resources=["nvidia.com/gpu"])
    assert bench.judge() == {}
    assert (bench.news, bench.count(state)) == (0, 3)
