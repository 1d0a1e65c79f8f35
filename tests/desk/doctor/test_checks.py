"""Each check of the doctor: what triggers it, what does not, and what it says then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dranet.cli.doctor.examine import find_shown, judge_places
from dranet.cli.doctor.peers import judge_denied, no_answer, parse_running
from dranet.cluster.capabilities import ApiCapabilities, Support
from dranet.cluster.permissions import PERMISSIONS, Denied
from dranet.cluster.slice_plan import Feature
from dranet.desk.doctor.catalogue import CHECKS, ENTRIES, list_entries, run_checks
from dranet.desk.doctor.checks import Surroundings
from dranet.desk.doctor.pcie import compute_roce_mtu
from dranet.desk.doctor.rdma import find_ports_between, find_redirecting
from dranet.driver.features import judge_api, judge_gpus, judge_kubelet, judge_runtime
from dranet.inventory.offer import ServedGpus
from dranet.kubelet.plugin import KubeletCapabilities
from dranet.model.findings import Finding, FlowFacts, Severity
from dranet.runtime.nri import RuntimeCapabilities
from dranet.settings import PublishGpus, Settings
from tests.desk.doctor.cases import CASES
from tests.desk.doctor.healthy import (
    DOWN_TO_GPU,
    HEALTHY,
    KERNEL,
    NICS,
    PLAIN,
    with_adapter,
    with_host,
    with_link,
    with_mlx5,
    with_pci,
    with_tuning,
)

IDS = [check.entry.id for check in CHECKS]
TRIGGERS = [(id_, *case) for id_, cases in CASES.items() for case in cases]
NAMES = [f"{case[0]}-{number}" for number, case in enumerate(TRIGGERS)]


def amiss(surroundings: Surroundings) -> list[Finding]:
    return [finding for finding in run_checks(surroundings) if finding.severity is not Severity.OK]


def test_every_check_has_a_node_that_triggers_it() -> None:
    assert sorted(CASES) == sorted(IDS)


def test_a_node_as_it_should_be_triggers_none() -> None:
    assert amiss(HEALTHY) == []


def test_of_a_node_without_gpus_and_rdma_nothing_is_said_that_only_they_need() -> None:
    """It has a doubtful governor, swap, no huge pages, irqbalance and an IOMMU; it does not matter."""
    assert amiss(PLAIN) == []


@pytest.mark.parametrize(
    ("id_", "surroundings", "severity", "words"),
    TRIGGERS,
    ids=NAMES,
)
def test_a_node_with_one_thing_amiss_is_told_just_that(
    id_: str, surroundings: Surroundings, severity: Severity, words: str
) -> None:
    found = [finding for finding in amiss(surroundings) if finding.id == id_]
    assert any(finding.severity is severity and words in finding.seen for finding in found), found
    assert all(finding.matters and finding.fix for finding in found)


MEANT_TOGETHER = {
    "roce-mtu-small": {"mtu-differs"},
    "gpudirect-no-path": {"gpu-persistence"},
    "kubelet-gate-off": {"topology-manager"},
    "rdma-lost-with-link": {"rdma-immobile"},
    "rdma-immobile": {"rdma-lost-with-link"},
    "memlock-low": {"fabric-manager-missing", "gpu-persistence"},
}
"""What one change of the healthy node brings beside the id itself."""


@pytest.mark.parametrize(("id_", "surroundings"), [t[:2] for t in TRIGGERS], ids=NAMES)
def test_nothing_else_is_told_of_it(id_: str, surroundings: Surroundings) -> None:
    others = {finding.id for finding in amiss(surroundings)} - {id_}
    assert others <= MEANT_TOGETHER.get(id_, set())


def test_ids_are_plain_words_and_each_is_there_once() -> None:
    ids = [entry.id for entry in list_entries()]
    assert len(ids) == len(set(ids))
    assert all(id_ == id_.lower() and " " not in id_ and 4 < len(id_) < 25 for id_ in ids)
    assert all(entry.what and entry.matters and entry.fix for entry in list_entries())
    assert {entry.id for entry in ENTRIES}.isdisjoint(IDS)


def test_what_cannot_be_read_is_not_judged_and_not_praised() -> None:
    blind = with_pci(DOWN_TO_GPU[0], is_readable=False, acs_control=None)
    assert find_redirecting(blind) == ([], False)
    assert not [finding for finding in run_checks(blind) if finding.id == "acs-redirect"]
    nobody = with_host(processes=None)
    judged = {finding.id for finding in run_checks(nobody)}
    assert judged.isdisjoint({"memlock-low", "irqbalance", "fabric-manager-missing", "gpu-persistence"})


def estimate(seen: Surroundings) -> Finding:
    (found,) = [finding for finding in run_checks(seen) if finding.id == "hook-estimate"]
    return found


def test_nics_with_many_channels_take_longer_than_a_hook_has_and_fewer_channels_help() -> None:
    found = estimate(with_mlx5(8, 63))
    assert found.severity is Severity.NOTE
    assert found.seen.endswith("some 3.5 s for all of them in one pod, a hook has 1.7 s")
    assert "`ethtool -L rail0 combined 16`" in found.fix
    assert "and 5 more on the node: 0.9 s" in found.fix
    assert "starts late and is not broken" in found.matters


def test_nics_with_few_channels_are_in_time() -> None:
    found = estimate(with_mlx5(8, 16))
    assert (found.severity, found.fix) == (Severity.OK, "")
    assert "8 mlx5 NICs with 128 channels: some 0.9 s" in found.seen
    assert estimate(with_mlx5(8, 63, timeout_seconds=10.0)).severity is Severity.OK


def test_where_fewer_channels_do_not_help_the_runtime_has_to_wait_longer() -> None:
    assert estimate(with_mlx5(32, 16)).fix.startswith("Raise `plugin_request_timeout`")


def test_a_root_port_that_redirects_does_not_matter() -> None:
    """Traffic between devices of two root ports goes by the CPU anyway; in the healthy node both redirect."""
    assert find_ports_between(("r1", "nic"), ("r2", "gpu")) == ()
    assert find_ports_between(("r", "up", "d1", "nic"), ("r", "up", "d2", "gpu")) == ("d1", "d2")
    assert find_ports_between(("r", "up", "d1", "nic"), ("r", "up", "d1", "gpu")) == ()


def test_powersave_is_fine_where_the_processor_chooses_the_clock_eagerly() -> None:
    eager = with_tuning(governors=("powersave",), energy_preferences=("balance_performance", "performance"))
    assert amiss(eager) == []


@pytest.mark.parametrize(
    ("mtu", "roce"), [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (1280, 1024), (200, 0)]
)
def test_the_rdma_mtu_is_what_the_kernel_makes_of_the_links(mtu: int, roce: int) -> None:
    assert compute_roce_mtu(mtu) == roce


def test_amd_gpus_give_their_memory_by_themselves() -> None:
    gpus = tuple(replace(gpu, vendor="amd") for gpu in HEALTHY.gpus)
    kernel = replace(KERNEL, modules=("amdgpu",))
    amd = replace(with_host(kernel=kernel), node=replace(HEALTHY.node, gpus=gpus))
    seen = [finding.seen for finding in run_checks(amd) if finding.id == "gpudirect-no-path"]
    assert seen == ["amdgpu gives its memory as dma-buf"]


# What is not judged from facts of the node has ids, too.

TRAITS = (
    KubeletCapabilities(),
    KubeletCapabilities(registered=False, registration_error="no"),
    KubeletCapabilities(
        registered=True, dra_service="v1beta1.DRAPlugin", health_service="v1.DRAResourceHealth"
    ),
)


def list_told(tmp_path: Path) -> list[Finding]:
    settings = Settings(state_dir=tmp_path / "none", cdi_dir=tmp_path, nri_socket=tmp_path / "nri.sock")
    always = Settings(publish_gpus=PublishGpus.ALWAYS)
    runtimes = (RuntimeCapabilities(), RuntimeCapabilities(name="containerd", request_timeout_seconds=1.0))
    page = {"parts": [{"name": "slices", "ready": False, "detail": "no"}], "features": []}
    return [
        *judge_api(None, settings),
        *judge_api(ApiCapabilities(dict.fromkeys(Feature, Support.REFUSED)), settings),
        *(finding for capabilities in TRAITS for finding in judge_kubelet(capabilities, shares_devices=True)),
        *(finding for capabilities in runtimes for finding in judge_runtime(capabilities, 1.5)),
        *judge_gpus(settings, ServedGpus()),
        *judge_gpus(always, ServedGpus()),
        *judge_places(settings),
        *judge_denied([Denied(PERMISSIONS[0], "get")]),
        *judge_denied([]),
        *parse_running(json.dumps(page).encode()),
        no_answer(":1"),
    ]


def test_every_finding_has_an_id_that_the_docs_know(tmp_path: Path) -> None:
    known = {entry.id: entry for entry in list_entries()}
    told = list_told(tmp_path)
    assert [finding for finding in told if finding.id not in known] == []
    assert len({finding.id for finding in told}) > 9


FILES = {
    "runtime-old",
    "nri-off",
    "nri-socket-elsewhere",
    "nri-timeout-short",
    "cdi-off",
    "cdi-folder-unread",
}


@pytest.mark.parametrize("id_", sorted(FILES))
def test_what_the_running_driver_has_seen_counts_for_more_than_a_file(id_: str) -> None:
    works = RuntimeCapabilities("containerd", "2.1.4", 1.7, shows_our_mounts=True)
    shown = find_shown(judge_runtime(works, 1.5))
    for surroundings, severity, _ in CASES[id_]:
        if (id_, severity) == ("runtime-old", Severity.PROBLEM):
            continue  # it cannot have connected
        assert not [f for f in amiss(replace(surroundings, shown=shown)) if f.id in FILES]


def test_that_it_does_not_know_how_long_the_runtime_waits_is_no_word_of_its_own() -> None:
    assert "runtime-patience" not in find_shown(judge_runtime(RuntimeCapabilities("containerd"), 1.5))
    assert "runtime-patience" in find_shown(judge_runtime(RuntimeCapabilities("containerd", "", 1.0), 1.5))


def rails_amiss(seen: Surroundings) -> set[str]:
    return {finding.id for finding in amiss(seen)} & {"mtu-differs", "speed-differs", "pfc-differs"}


def differing(**of_the_second: Any) -> Surroundings:
    """Its second NIC has another MTU, speed and PFC, and what else is given."""
    links = list(with_link(1, mtu=4500, speed_mbps=200_000).node.links)
    links[1] = replace(links[1], **of_the_second)
    node = replace(HEALTHY.node, links=tuple(links))
    flows = (FlowFacts("ens1", 0b1000), FlowFacts("ens2", 0b0001))
    return replace(with_host(flows=flows), node=node)


def test_nics_are_compared_with_their_like_alone() -> None:
    assert rails_amiss(differing()) == {"mtu-differs", "speed-differs", "pfc-differs"}
    assert rails_amiss(differing(operstate="down")) != set()  # a pod may be given it
    assert rails_amiss(differing(arp_type=32)) == set()  # InfiniBand
    other = with_adapter(1, board_id="MT_0000000800").node.rdma_devices
    storage = differing()
    assert rails_amiss(replace(storage, node=replace(storage.node, rdma_devices=other))) == set()


def test_the_second_port_of_a_card_is_none_of_the_rails_while_it_has_no_cable() -> None:
    address = f"{NICS[0].rpartition('.')[0]}.1"
    port = replace(HEALTHY.node.links[0], ifindex=9, ifname="ens1f1", pci_address=address, mtu=1500)
    second = replace(HEALTHY.node.rdma_devices[0], name="mlx5_9", pci_address=address)
    for operstate, expected in (("down", set()), ("up", {"mtu-differs"})):
        node = replace(
            HEALTHY.node,
            links=(*HEALTHY.node.links, replace(port, operstate=operstate)),
            rdma_devices=(*HEALTHY.node.rdma_devices, second),
        )
        assert rails_amiss(replace(HEALTHY, node=node)) == expected


def test_a_nic_whose_slot_is_hidden_is_neither_blamed_nor_praised() -> None:
    """As in a virtual machine."""
    pci = tuple(facts for facts in HEALTHY.host.pci if not facts.port.endswith("port"))
    assert not [f for f in run_checks(with_host(pci=pci)) if f.id == "pcie-link-below"]
