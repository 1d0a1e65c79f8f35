"""Whatever a node says of itself, judging it neither fails nor says half of a thing."""

from __future__ import annotations

from typing import get_type_hints

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.desk.doctor.catalogue import run_checks
from dranet.desk.doctor.checks import ClusterFacts, DevicePlugin
from dranet.model.facts import Gpu, Link, PciFunction, RdmaDevice, RdmaPort
from dranet.model.findings import (
    FlowFacts,
    GpuStack,
    HugePages,
    IdleState,
    KernelFacts,
    KubeletConfig,
    Manager,
    PciFacts,
    Process,
    RuntimeConfig,
    Severity,
    TuningFacts,
    Unseen,
)
from tests.desk.doctor.healthy import GPUS, HEALTHY, HOST, LINKS, NICS, NODE

TEXTS = st.one_of(
    st.sampled_from([*NICS, *GPUS, *LINKS, "", "v1.35.1", "containerd://1.7.2", "6.1"]), st.text(max_size=8)
)
NUMBERS = st.integers(0, 1 << 40)
PLAIN = {
    str: TEXTS,
    int: NUMBERS,
    bool: st.booleans(),
    int | None: st.none() | NUMBERS,
    bool | None: st.none() | st.booleans(),
    float | None: st.none() | st.floats(0, 100),
    tuple[str, ...]: st.lists(TEXTS, max_size=3).map(tuple),
    tuple[str, ...] | None: st.none() | st.lists(TEXTS, max_size=3).map(tuple),
    tuple[int, ...] | None: st.none() | st.lists(NUMBERS, max_size=3).map(tuple),
}


def any_of(kind: type, **given: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Any fact of this kind; fields of other facts keep their defaults unless they are given."""
    hints = get_type_hints(kind)
    fields = {name: PLAIN[hint] for name, hint in hints.items() if hint in PLAIN and name not in given}
    return st.builds(kind, **fields, **given)


def some(kind: type, **given: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(any_of(kind, **given), max_size=3).map(tuple)


HOSTS = st.fixed_dictionaries(
    {
        "kernel": any_of(KernelFacts),
        "pci": some(PciFacts, address=st.sampled_from([f.address for f in HOST.pci])),
        "tuning": any_of(TuningFacts, idle_states=some(IdleState), huge_pages=some(HugePages)),
        "processes": st.none() | some(Process, memlock=st.sampled_from(["", "unlimited", "65536"])),
        "gpus": any_of(GpuStack),
        "flows": some(FlowFacts, pfc_priorities=st.none() | st.integers(0, 255)),
        "managers": some(Manager),
        "runtime": st.none() | any_of(RuntimeConfig),
        "kubelet": st.none() | any_of(KubeletConfig),
        "unseen": some(Unseen),
    }
)
NODES = st.fixed_dictionaries(
    {
        "links": some(Link),
        "pci_functions": st.just(NODE.pci_functions) | some(PciFunction),
        "rdma_devices": some(RdmaDevice, ports=some(RdmaPort)),
        "gpus": some(Gpu),
    }
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(host=HOSTS, node=NODES, cluster=any_of(ClusterFacts), plugins=some(DevicePlugin))
def test_findings_are_whole_whatever_the_facts_are(
    host: dict[str, object], node: dict[str, object], cluster: ClusterFacts, plugins: tuple[DevicePlugin, ...]
) -> None:
    seen = replace(
        HEALTHY,
        host=replace(HOST, **host),
        node=replace(NODE, **node),
        cluster=cluster,
        plugins=plugins,
    )
    for finding in run_checks(seen):
        assert finding.id
        assert finding.seen
        assert finding.severity is Severity.OK or (finding.matters and finding.fix)
