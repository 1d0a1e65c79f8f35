"""What is said of the peers' features, and where: the verbose readiness page, for people and for programs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.cluster.capabilities import ApiCapabilities, Support
from dranet.cluster.slice_plan import Feature
from dranet.driver.features import (
    find_wanted,
    judge_all,
    judge_api,
    judge_gpus,
    judge_kubelet,
    judge_runtime,
)
from dranet.driver.probes.server import PartState, PortContent, ProbeServer
from dranet.inventory.offer import NO_OTHER_SERVER, UNKNOWN, ServedGpus
from dranet.kubelet.plugin import KubeletCapabilities, KubeletObserver
from dranet.model.findings import Finding, Severity, find_worst, ok, parse_finding
from dranet.runtime.nri import EventForm, RuntimeCapabilities
from dranet.settings import HealthTaints, PublishGpus, Settings
from dranet.telemetry import Metrics

OK, NOTE, WARNING, PROBLEM = Severity.OK, Severity.NOTE, Severity.WARNING, Severity.PROBLEM
CONNECTED = RuntimeCapabilities("containerd", "2.1.4", 2.0, EventForm.OWN_CALL, shows_our_mounts=True)
REGISTERED = KubeletCapabilities(
    asked_at=1.0,
    registered=True,
    registered_at=1.0,
    dra_service="v1.DRAPlugin",
    health_service="v1.DRAResourceHealth",
    health_streams=1,
)


def all_of(support: Support) -> ApiCapabilities:
    return ApiCapabilities(dict.fromkeys(Feature, support))


def severities(findings: list[Finding]) -> set[Severity]:
    return {finding.severity for finding in findings}


# The API server


def test_what_the_server_keeps_is_fine() -> None:
    findings = judge_api(all_of(Support.KEPT), Settings())
    assert severities(findings) == {OK}
    assert findings[0].line == "[+] api: device taints kept"


def test_before_anybody_has_asked_that_is_what_is_said() -> None:
    (finding,) = judge_api(None, Settings())
    assert (finding.severity, finding.line[:3]) == (NOTE, "[-]")


@pytest.mark.parametrize("support", [Support.DROPPED, Support.REFUSED])
def test_a_field_that_is_lost_matters_only_to_who_wants_it(support: Support) -> None:
    lost = all_of(Support.KEPT).but(support, [Feature.LIST_ATTRIBUTES])
    (unwanted,) = [f for f in judge_api(lost, Settings()) if f.severity is not OK]
    assert unwanted.line == f"[-] api: list attributes {support} (feature gate DRAListTypeAttributes)"
    assert (unwanted.severity, unwanted.fix) == (NOTE, "")
    (wanted,) = [f for f in judge_api(lost, Settings(list_attributes=True)) if f.severity is not OK]
    assert wanted.severity is WARNING
    assert "DRAListTypeAttributes" in wanted.fix
    assert "--list-attributes=false" in wanted.fix


@pytest.mark.parametrize("feature", Feature)
def test_each_field_that_is_wanted_and_lost_says_why_and_what_to_do(feature: Feature) -> None:
    wanting = Settings(
        list_attributes=True,
        shared_devices="true",
        default_bandwidth=10**9,
        health_taints=HealthTaints.NONE,
        node_name="n",
        virtual_functions_file=Path("/etc/dranet/virtual-functions.yaml"),
    )
    assert find_wanted(wanting) == set(Feature)
    (finding,) = [
        f
        for f in judge_api(all_of(Support.KEPT).but(Support.DROPPED, [feature]), wanting)
        if f.severity != OK
    ]
    assert finding.severity is WARNING
    assert finding.matters
    assert feature.gate in finding.fix


def test_a_server_that_answers_no_dry_run_is_no_complaint() -> None:
    assert severities(judge_api(ApiCapabilities(), Settings(list_attributes=True))) == {NOTE}


# The kubelet


def test_a_kubelet_that_does_everything_is_fine() -> None:
    findings = judge_kubelet(REGISTERED, shares_devices=True)
    assert severities(findings) == {OK}
    assert [finding.seen for finding in findings] == [
        "registered since 1970-01-01T00:00:01+00:00",
        "calls v1.DRAPlugin",
        "watches device health (v1.DRAResourceHealth)",
    ]


@pytest.mark.parametrize(
    ("capabilities", "seen"),
    [
        (KubeletCapabilities(), "has not found the driver yet"),
        (KubeletCapabilities(asked_at=1.0), "has asked who we are and not answered yet"),
        (KubeletCapabilities(registered=False, registration_error="no such handler"), "no such handler"),
    ],
)
def test_a_driver_that_is_not_registered_is_a_problem_with_its_cause(
    capabilities: KubeletCapabilities, seen: str
) -> None:
    (problem,) = [f for f in judge_kubelet(capabilities, shares_devices=False) if f.severity is PROBLEM]
    assert seen in problem.seen
    assert problem.matters
    assert problem.fix


@pytest.mark.parametrize(("shares_devices", "severity"), [(False, NOTE), (True, WARNING)])
def test_an_old_dra_version_matters_only_where_devices_are_shared(
    shares_devices: bool, severity: Severity
) -> None:
    capabilities = replace(REGISTERED, dra_service="v1beta1.DRAPlugin")
    (finding,) = [
        f for f in judge_kubelet(capabilities, shares_devices=shares_devices) if f.severity is not OK
    ]
    assert (finding.severity, finding.seen) == (severity, "calls v1beta1.DRAPlugin, which has no share IDs")


@pytest.mark.parametrize(
    ("health_service", "seen"), [("", "does not watch"), ("v1.DRAResourceHealth", "not now")]
)
def test_a_kubelet_without_health_is_a_note(health_service: str, seen: str) -> None:
    capabilities = replace(REGISTERED, health_service=health_service, health_streams=0)
    (finding,) = [f for f in judge_kubelet(capabilities, shares_devices=False) if f.severity is not OK]
    assert finding.severity is NOTE
    assert seen in finding.seen


def test_traits_follow_the_kubelets_calls() -> None:
    times = iter(range(1, 100))
    peer = KubeletObserver(lambda: float(next(times)))
    assert peer.capabilities == KubeletCapabilities()
    peer.asked()
    peer.notified(registered=False, error="no")
    assert (peer.capabilities.registered, peer.capabilities.registration_error) == (False, "no")
    peer.notified(registered=True, error="")
    peer.prepares("v1.DRAPlugin")
    peer.unprepares("v1beta1.DRAPlugin")
    with peer.watches_health("v1.DRAResourceHealth"), peer.watches_health("v1alpha1.DRAResourceHealth"):
        assert peer.capabilities.health_streams == 2
    assert peer.capabilities == KubeletCapabilities(
        asked_at=1.0,
        registered=True,
        registered_at=3.0,
        dra_service="v1beta1.DRAPlugin",
        prepared_at=4.0,
        unprepared_at=5.0,
        health_service="v1alpha1.DRAResourceHealth",
        health_opened_at=7.0,
    )
    peer.reset()
    assert (peer.capabilities.registered, peer.capabilities.registered_at) == (None, None)
    assert peer.capabilities.dra_service == "v1beta1.DRAPlugin"


# The runtime


def test_a_runtime_that_says_everything_is_fine() -> None:
    findings = judge_runtime(CONNECTED, 1.5)
    assert severities(findings) == {OK}
    assert [finding.seen for finding in findings] == [
        "containerd 2.1.4",
        "waits 2 s for a hook",
        "reports pods by a call for each event",
        "containers get what our CDI devices add",
    ]


def test_a_runtime_that_never_came_is_a_problem() -> None:
    (finding,) = judge_runtime(RuntimeCapabilities(), 1.5)
    assert finding.severity is PROBLEM
    assert "--nri-socket" in finding.fix


def test_a_runtime_that_waits_less_than_a_hook_may_take_is_a_warning() -> None:
    hasty = judge_runtime(replace(CONNECTED, request_timeout_seconds=1.0), 1.5)
    (finding,) = [f for f in hasty if f.severity is not OK]
    assert finding.severity is WARNING
    assert "less than --hook-budget-seconds (1.5 s)" in finding.seen


def test_what_a_runtime_has_not_shown_is_a_note() -> None:
    assert severities(judge_runtime(RuntimeCapabilities("cri-o", "1.34"), 1.5)) == {OK, NOTE}


def test_a_runtime_that_does_not_tell_its_timeout_is_believed_with_a_warning() -> None:
    judged = judge_runtime(RuntimeCapabilities("containerd", "1.7.24"), 10.0)
    (finding,) = [f for f in judged if f.severity is WARNING]
    assert "plugin_request_timeout of the runtime is above 10 s" in finding.fix


# As findings, and on the page


def test_the_worst_is_found() -> None:
    assert find_worst([]) is OK
    for first, second in product(Severity, repeat=2):
        order = list(Severity)
        worst = order[max(order.index(first), order.index(second))]
        assert find_worst([Finding("x", first, ""), Finding("x", second, "")]) is worst


@given(
    st.builds(
        Finding, st.text(max_size=9), st.sampled_from(Severity), st.text(max_size=9), st.text(max_size=9)
    )
)
def test_a_finding_survives_the_way_through_another_process(finding: Finding) -> None:
    assert parse_finding(json.loads(json.dumps(finding.to_json()))) == finding


@pytest.mark.parametrize(
    "data", [{}, {"severity": "grave"}, {"part": 1, "severity": "ok", "seen": "", "matters": "", "fix": ""}]
)
def test_what_is_no_finding_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no finding|not a valid Severity"):
        parse_finding(data)


def test_gpus_are_said_to_be_whose_they_are() -> None:
    auto = Settings()
    assert [f.line for f in judge_gpus(auto, NO_OTHER_SERVER)] == [
        "[+] gpus: offered: no other driver serves them"
    ]
    assert severities(judge_gpus(auto, UNKNOWN)) == {Severity.WARNING}
    left = ServedGpus(by_vendor={"nvidia": "the DRA driver gpu.nvidia.com"})
    assert [f.line for f in judge_gpus(auto, left)] == [
        "[-] gpus: nvidia: left to the DRA driver gpu.nvidia.com"
    ]
    never = Settings(publish_gpus=PublishGpus.NEVER)
    assert [f.seen for f in judge_gpus(never, left)] == ["never offered, as publish_gpus sets"]


FINDINGS = judge_all(Settings(), all_of(Support.DROPPED), REGISTERED, CONNECTED)


async def fetch(path: str, *, ready: bool = True) -> tuple[int, str]:
    parts = {"kubelet": PartState(ready, "" if ready else "not yet")}
    server = ProbeServer("127.0.0.1:0", Metrics(), PortContent(lambda: parts, read_features=lambda: FINDINGS))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    with contextlib.closing(writer):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    await server.stop()
    return int(head.split()[1]), body.decode()


@pytest.mark.socket
async def test_the_verbose_page_adds_the_features_which_never_make_the_driver_unready() -> None:
    status, body = await fetch("/readyz?verbose")
    assert status == 200
    lines = body.splitlines()
    assert lines[0] == "[+] kubelet"
    assert "[-] api: device taints dropped (feature gate DRADeviceTaints)" in lines
    assert "[+] kubelet: calls v1.DRAPlugin" in lines
    assert "[+] runtime: containerd 2.1.4" in lines


@pytest.mark.socket
async def test_the_short_page_stays_as_it_was() -> None:
    assert await fetch("/readyz") == (200, "[+] kubelet\n")
    assert await fetch("/readyz", ready=False) == (503, "[-] kubelet: not yet\n")


@pytest.mark.socket
async def test_the_page_for_programs_has_parts_and_findings() -> None:
    status, body = await fetch("/readyz?verbose=json", ready=False)
    document = json.loads(body)
    assert status == 503
    assert document["parts"] == [{"name": "kubelet", "ready": False, "detail": "not yet"}]
    assert [parse_finding(data) for data in document["features"]] == FINDINGS
    assert ok("kubelet", "calls v1.DRAPlugin", "kubelet-dra-service") in FINDINGS
