"""Each rule of ``dranet validate``: what breaks it, and what comes near without breaking it."""

from __future__ import annotations

from typing import Any

import pytest

from dranet.cel import Version
from dranet.desk.kubeapi.versions import CURRENT
from dranet.desk.lint import RULES, Key, Scope, find_shared_claims, lint_object
from tests.desk.lint.objects import (
    A_NIC,
    OURS,
    claim,
    config,
    device_class,
    nic_slice,
    pod,
    request,
    scope,
    selectors,
    template,
)

A_GPU = 'device.driver == "dra.net" && device.attributes["dra.net"].?type.orValue("") == "gpu"'
A_RDMA_DEVICE = (
    f'{OURS} && device.attributes["dra.net"].?ifName.orValue("") == "" && device.attributes["dra.net"].rdma'
)
GPU_REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
NIC, GPU = device_class(A_NIC), device_class(A_GPU, name="gpu")
FAST = {"name": "fast", "resourceClaimTemplateName": "fast"}
RDMA_CLASS = device_class(f'{A_NIC} && device.attributes["dra.net"].rdma')
ONE_NODE = nic_slice(
    "a",
    {"dra.net/ifName": "eth1", "resource.kubernetes.io/pcieRoot": "pci0000:00"},
    {"dra.net/type": "gpu", "resource.kubernetes.io/pcieRoot": "pci0000:10"},
)


def broken(body: dict[str, Any], known: Scope | None = None) -> set[str]:
    return {finding.rule.name for finding in lint_object(body, known or scope(NIC))}


def alternatives(*several: dict[str, Any]) -> dict[str, Any]:
    entries = [{"name": f"s{n}", "deviceClassName": "nic", **one} for n, one in enumerate(several)]
    return {"name": "nic", "firstAvailable": entries}


def constraint(*requests: str, attribute: str = "resource.kubernetes.io/pcieRoot") -> list[Any]:
    return [{"matchAttribute": attribute, "requests": list(requests)}]


PORT = nic_slice("b", {"dra.net/ifName": "eth1"})
PORT["spec"]["devices"][0] |= {
    "allowMultipleAllocations": True,
    "capacity": {"dra.net/bandwidth": {"value": "100G", "requestPolicy": {"default": "1G"}}},
}


def bandwidth(amount: str, *expressions: str, name: str = "dra.net/bandwidth") -> dict[str, Any]:
    return claim(request("nic", *expressions, capacity={"requests": {name: amount}}))


CASES: list[tuple[str, dict[str, Any], dict[str, Any], Scope | None]] = [
    # rule, what breaks it, what does not, what is known
    (
        "unknown-field",
        {**claim(), "spec": {"devices": {"requests": [{"name": "nic", "deviceClassName": "nic"}]}}},
        claim(request()),
        None,
    ),
    (
        "unknown-field",
        pod({"name": "fast", "source": {"resourceClaimTemplateName": "fast"}}),
        pod(FAST),
        None,
    ),
    ("unknown-field", pod(FAST, uses=[{"name": "fast", "requests": ["nic"]}]), pod(FAST), None),
    ("unknown-field", pod(FAST, container={"claims": [{"name": "fast"}]}), pod(FAST), None),
    ("refused", pod(FAST, FAST), pod(FAST, {**FAST, "name": "other"}), None),
    (
        "parameters",
        claim(request(), config=[config('{"interface": {}}')]),
        claim(request(), config=[config('{"interface": {}}', driver="gpu.example.com")]),
        None,
    ),
    (
        "parameters",
        claim(request(), config=[config({"interface": {"mtu": 20}})]),
        claim(request(), config=[config({"interface": {"mtu": 9000}})]),
        None,
    ),
    (
        "parameters",
        claim(request(), config=[config({"interface": {"mtu": 9000}})]),
        claim(request(), config=[config({"interface": {"name": "net1"}})]),
        scope(device_class(A_NIC, config=[{"policy": {"allow": ["interface.name"]}}])),
    ),
    (
        "parameters",
        device_class(A_NIC, config=[{"policy": {"allow": ["interface.nam"]}}]),
        device_class(A_NIC, config=[{"policy": {"allow": ["interface.name"]}}]),
        None,
    ),
    (
        "profile",
        claim(request(), config=[config({"profile": "rail"})]),
        claim(request(), config=[config({"profile": ""})]),
        None,
    ),
    (
        "profile",
        device_class(A_NIC, config=[{"profile": "rail"}]),
        device_class(A_NIC, config=[{"interface": {"mtu": 9000}}]),
        None,
    ),
    (
        "no-interface",
        claim(request(), GPU_REQUEST, config=[config({"interface": {"name": "net1"}}, "gpu")]),
        claim(request(), GPU_REQUEST, config=[config({"interface": {"name": "net1"}}, "nic", "gpu")]),
        scope(NIC, GPU),
    ),
    (
        "no-interface",
        claim(request(), config=[config({"interface": {"name": "net1"}})]),
        claim(request(), config=[config({"rdma": {"memlock": "unlimited"}})]),
        scope(device_class(A_RDMA_DEVICE)),
    ),
    (
        "driver-unknown",
        claim(request(), config=[config({}, driver="dranet")]),
        claim(request(), config=[config({}, driver="gpu.example.com")]),
        None,
    ),
    (
        "request-unknown",
        claim(request(), config=[config({}, "nci")]),
        claim(request(), config=[config({}, "nic")]),
        None,
    ),
    (
        "request-unknown",
        claim(alternatives({}, {}), constraints=constraint("nic/s2")),
        claim(alternatives({}, {}), constraints=constraint("nic/s1")),
        None,
    ),
    (
        "request-unknown",
        pod(FAST, uses=[{"name": "fast", "request": "nci"}]),
        pod(FAST, uses=[{"name": "fast", "request": "nic"}]),
        scope(NIC, template(request())),
    ),
    (
        "class-missing",
        claim(request(device_class="nik")),
        claim(request()),
        scope(NIC, is_live=True),
    ),
    ("class-not-given", claim(request(device_class="nik")), claim(request()), None),
    (
        "class-misspelt",
        claim(request(device_class="dranet-rmda")),
        claim(request(device_class="dranet-rail")),
        None,
    ),
    (
        "class-misspelt",
        claim(request(device_class="gpu.nvidai.com")),
        claim(request(device_class="gpu.example.com")),
        scope(),
    ),
    (
        "class-misspelt",  # but for a number, which makes another class
        claim(request(device_class="strorage-nic-1")),
        claim(request(device_class="storage-nic-2")),
        scope(device_class(A_NIC, name="storage-nic-1")),
    ),
    (
        "api-version",
        {**claim(request()), "apiVersion": "resource.k8s.io/v1beta2"},
        {**claim(request()), "apiVersion": "resource.k8s.io/v1"},
        None,
    ),
    (
        "gpu-twice",
        pod(FAST, container={"resources": {"limits": {"nvidia.com/gpu": 1}}}),
        pod(FAST, container={"resources": {"limits": {"example.com/licence": 1}}}),
        scope(NIC, template(request(), request("gpu", device_class="gpu.nvidia.com"))),
    ),
    (
        "gpu-twice",  # not where the claim only watches them
        pod(FAST, container={"resources": {"requests": {"amd.com/gpu": 1}}}),
        pod(
            {"name": "fast", "resourceClaimTemplateName": "watch"},
            container={"resources": {"requests": {"amd.com/gpu": 1}}},
        ),
        scope(
            template(request("gpu", device_class="gpu.amd.com")),
            template(request("gpu", device_class="gpu.amd.com", adminAccess=True), name="watch"),
        ),
    ),
    (
        "gpu-twice",  # a DeviceClass stands for the resource
        pod(FAST, container={"resources": {"limits": {"gpu.intel.com/xe": 1}}}),
        pod(FAST),
        scope(
            {**GPU, "spec": {**GPU["spec"], "extendedResourceName": "gpu.intel.com/xe"}},
            template(request("gpu", device_class="gpu")),
        ),
    ),
    (
        "too-many-devices",
        claim(request(count=20), request("more", count=13)),
        claim(request(count=20), request("more", count=12)),
        None,
    ),
    (
        "alternative-unreachable",
        claim(alternatives({}, {"selectors": selectors(OURS)})),
        claim(alternatives({"selectors": selectors(OURS)}, {})),
        None,
    ),
    (
        "alternative-unreachable",
        claim(alternatives({"count": 2}, {"count": 4})),
        claim(alternatives({"count": 4}, {"count": 2})),
        None,
    ),
    (
        "alternative-unreachable",
        claim(alternatives({}, {}), request("gpu"), constraints=constraint("gpu", "nic")),
        claim(alternatives({}, {}), request("gpu"), constraints=constraint("gpu", "nic/s0")),
        None,
    ),
    (
        "alternative-unreachable",
        claim(alternatives({}, {}), request("gpu"), constraints=constraint("gpu", "nic/s1")),
        claim(
            alternatives({}, {}),
            request("gpu"),
            constraints=[
                *constraint("gpu", "nic/s0"),
                *constraint("gpu", "nic/s1", attribute="dra.net/numaNode"),
            ],
        ),
        None,
    ),
    (
        "constraint-alone",
        claim(request(), request("b"), constraints=constraint("nic")),
        claim(request(), request("b"), constraints=constraint()),
        None,
    ),
    (
        "constraint-alone",
        claim(request(), constraints=constraint()),
        claim(request(count=2), constraints=constraint()),
        None,
    ),
    (
        "constraint-unknown",
        claim(request(count=2), constraints=constraint(attribute="resource.kubernetes.io/pcieroot")),
        claim(request(count=2), constraints=constraint()),
        None,
    ),
    (
        "constraint-never-met",
        claim(request(), request("gpu", device_class="gpu"), constraints=constraint()),
        claim(request(), request("gpu", device_class="gpu"), constraints=[]),
        scope(NIC, GPU, ONE_NODE),
    ),
    (
        "unaligned",
        claim(request(), request("gpu", device_class="gpu.nvidia.com")),
        claim(request(), request("gpu", device_class="gpu.nvidia.com"), constraints=constraint()),
        None,
    ),
    (
        "alignment-by-chance",
        pod(FAST, container={"resources": {"limits": {"nvidia.com/gpu": 1}}}),
        pod(FAST, container={"resources": {"limits": {"example.com/licence": 1}}}),
        scope(NIC, template(request())),
    ),
    (
        "no-match",
        claim(request("nic", 'device.attributes["dra.net"].?ifName.orValue("") == "eth7"')),
        claim(request("nic", 'device.attributes["dra.net"].?ifName.orValue("") == "eth1"')),
        scope(NIC, ONE_NODE),
    ),
    ("capacity-unknown", bandwidth("1G", name="bandwidth"), bandwidth("1G"), scope(NIC)),
    ("capacity-unknown", bandwidth("1G", name="dra.net/bandwith"), bandwidth("1G"), scope(NIC, PORT)),
    ("capacity-unknown", bandwidth("1G", name="other.example/x"), bandwidth("1G"), scope(NIC, PORT)),
    ("capacity-too-much", bandwidth("100001M"), bandwidth("100G"), scope(NIC, PORT)),
    ("bandwidth-uncounted", bandwidth("1G"), claim(request()), scope(NIC, ONE_NODE)),
    (
        "bandwidth-uncounted",
        bandwidth("1G", "!device.allowMultipleAllocations"),
        bandwidth("1G", "device.allowMultipleAllocations"),
        scope(NIC, ONE_NODE, PORT),
    ),
    ("selector", device_class("device.drivr == 1"), device_class(OURS), None),
    ("selector", claim(request("nic", '"yes"')), claim(request("nic", "true")), None),
    (
        "selector-costs",
        device_class(f'{A_NIC} && device.attributes["dra.net"].?ifName.orValue("").matches("^eth")'),
        device_class(f'{A_NIC} && device.attributes["dra.net"].ifName.matches("^eth")'),
        None,
    ),
    (
        "selector-fails",
        device_class('device.attributes["dra.net"].ifName == "eth1"'),
        device_class('device.attributes["dra.net"].?ifName.orValue("") == "eth1"'),
        scope(ONE_NODE),
    ),
    (
        "selector-fails",
        claim(request("nic", 'device.attributes["dra.net"].mtu > 9000')),
        claim(request("nic", 'has(device.attributes["dra.net"].mtu)')),
        scope(NIC, ONE_NODE),
    ),
    (
        "selector-may-fail",
        device_class(f'{OURS} && device.attributes["dra.net"].ifName == "eth1"'),
        device_class(f'{OURS} && device.attributes["dra.net"].rdma'),
        None,
    ),
    (
        "selector-may-fail",
        claim(request("nic", 'device.attributes["dra.net"].linkSpeedMbps > 100000')),
        claim(request("nic", 'device.attributes["dra.net"].mtu > 1500')),  # the class lets NICs pass only
        None,
    ),
    (
        "selector-may-fail",
        device_class('device.attributes["dra.net"].rdma'),
        device_class('device.driver != "dra.net" || device.attributes["dra.net"].rdma'),
        None,
    ),
    (
        "selector-not-judged",
        claim(request("nic", "[1].indexOf(1) == 0")),
        claim(request("nic", "1 in [1]")),
        None,
    ),
    (
        "selector-not-judged",  # which shows only when it is evaluated: no device needs to be given
        device_class(f'{OURS} && url("http://a/#b").getHost() == "a"'),
        device_class(f'{OURS} && url("http://a/b").getHost() == "a"'),
        None,
    ),
    (
        "selector-not-judged",
        device_class(
            'has(device.attributes["gpu.example.com"].v) && device.attributes["gpu.example.com"].v == "1.0"'
        ),
        device_class('device.attributes["gpu.example.com"].?v.orValue(semver("1.0.0")) == semver("1.0.0")'),
        scope(nic_slice("b", {"v": Version("1.0.0")}, driver="gpu.example.com")),
    ),
    (
        "attribute-unknown",
        claim(request("nic", 'device.attributes["dra.net"].?ifname.orValue("") == "x"')),
        claim(request("nic", 'device.attributes["example.com"].?ifname.orValue("") == "x"')),
        None,
    ),
    (
        "attribute-unknown",
        claim(request("nic", 'cel.bind(d, device.attributes["resource.kubernetes.io"], has(d.rdma))')),
        claim(request("nic", 'cel.bind(d, device.attributes["dra.net"], has(d.rdma))')),
        None,
    ),
    (
        "other-type",
        claim(request("nic", 'device.attributes["dra.net"].mtu == "9000"')),
        claim(request("nic", 'device.attributes["dra.net"].mtu > 1500.5')),
        None,
    ),
    (
        "other-type",
        claim(request("nic", 'cel.bind(d, device.attributes["dra.net"], d.rdma == "true")')),
        claim(request("nic", 'device.attributes["dra.net"].?rdma.orValue("none") != "none"')),
        None,
    ),
    (
        "other-type",
        claim(request("nic", '"1" in device.attributes["resource.kubernetes.io"].numaNode')),
        claim(request("nic", 'device.attributes["dra.net"].ifName.substring(3) == "1"')),
        None,
    ),
    (
        "claim-kind",
        pod({"name": "fast", "resourceClaimName": "fast"}),
        pod(FAST),
        scope(NIC, template(request())),
    ),
    (
        "claim-kind",
        pod(FAST),
        pod({"name": "fast", "resourceClaimName": "fast"}),
        scope(NIC, claim(request()), is_live=True),
    ),
    (
        "claim-missing",
        pod({"name": "fast", "resourceClaimName": "slow"}),
        pod({"name": "fast", "resourceClaimName": "fast"}),
        scope(NIC, claim(request()), is_live=True),
    ),
    (
        "claim-misspelt",
        pod({"name": "fast", "resourceClaimTemplateName": "fast-nics"}),
        pod({"name": "fast", "resourceClaimTemplateName": "slow"}),
        scope(NIC, template(request(), name="fast-nic")),
    ),
    (
        "claim-not-given",
        pod({"name": "fast", "resourceClaimTemplateName": "fsat"}),
        pod(FAST),
        scope(NIC, template(request())),
    ),
    ("claim-undeclared", pod(FAST, uses=[{"name": "fats"}]), pod(FAST), None),
    ("claim-unused", pod(FAST, uses=[]), pod(FAST), None),
    ("claim-source", pod({"name": "fast"}), pod(FAST), None),
    ("claim-source", pod({**FAST, "resourceClaimName": "x"}), pod(FAST), None),
    (
        "host-network",
        pod(FAST, hostNetwork=True),
        pod(FAST, hostNetwork=False),
        scope(NIC, template(request())),
    ),
    ("node-name", pod(FAST, nodeName="gpu-3"), pod(FAST), None),
    (
        "node-name",
        pod(FAST, nodeName="gpu-3"),
        {**pod(FAST, nodeName="gpu-3"), "status": {"phase": "Running"}},
        None,
    ),
    (
        "interface-name",
        claim(request(count=2), config=[config({"interface": {"name": "net1"}})]),
        claim(request(), config=[config({"interface": {"name": "net1"}})]),
        None,
    ),
    (
        "interface-name",
        claim(request(), request("b"), config=[config({"interface": {"name": "net1"}})]),
        claim(request(), request("b"), config=[config({"interface": {"name": "net1"}}, "b")]),
        None,
    ),
    (
        "interface-name",
        pod(FAST, {"name": "more", "resourceClaimTemplateName": "fast"}),
        pod(FAST),
        scope(NIC, template(request(), config=[config({"interface": {"name": "net1"}})])),
    ),
    (
        "interface-name-taken",
        claim(request(), config=[config({"interface": {"name": "eth0"}})]),
        claim(request(), config=[config({"interface": {"name": "eth1"}})]),
        None,
    ),
    (
        "privileged",
        pod(FAST, container={"securityContext": {"privileged": True}}),
        pod(FAST, uses=[], container={"securityContext": {"privileged": True}}),
        None,
    ),
    (
        "memlock",
        pod(FAST),
        pod(FAST, container={"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}),
        scope(RDMA_CLASS, template(request())),
    ),
]
ELSEWHERE = {
    "address-shared",
    "shape",
    "duplicate",
    "claim-shared",
    "unknown-kind",
    "unreadable",
    "no-object",
}
"""Rules about files, in tests/desk/cli/test_validate.py, and the one below."""


@pytest.mark.parametrize(("rule", "bad", "_good", "known"), CASES)
def test_what_breaks_the_rule(rule: str, bad: dict[str, Any], _good: Any, known: Scope | None) -> None:
    assert rule in broken(bad, known)


@pytest.mark.parametrize(("rule", "_bad", "good", "known"), CASES)
def test_what_does_not(rule: str, _bad: Any, good: dict[str, Any], known: Scope | None) -> None:
    assert rule not in broken(good, known)


def test_parameters_that_are_refused_cost_no_note_about_memlock() -> None:
    def known(mtu: int) -> Scope:
        parameters = {"interface": {"mtu": mtu}}
        return scope(RDMA_CLASS, template(request(), config=[config(parameters)]))

    assert "memlock" in broken(pod(FAST), known(9000))
    assert "memlock" not in broken(pod(FAST), known(9))


def test_every_rule_is_tried() -> None:
    assert {case[0] for case in CASES} | ELSEWHERE == {rule.name for rule in RULES}


def only(body: dict[str, Any], known: Scope) -> tuple[str, str, str]:
    """The one finding: rule, text and fix."""
    (finding,) = lint_object(body, known)
    return finding.rule.name, finding.text, finding.fix


def test_a_misspelt_domain_is_one_finding_with_the_name_that_was_meant() -> None:
    body = claim(request("nic", 'device.attributes["dranet.net"].rdma'))
    wanted = "did you mean dra.net/rdma?"

    assert only(body, scope(NIC)) == ("attribute-unknown", "no device has dranet.net/rdma", wanted)
    rule, text, fix = only(body, scope(NIC, ONE_NODE))
    assert (rule, fix) == ("selector-fails", wanted)
    assert text.startswith("fails on dra.net/a/d0 of node a: the device has no attribute")
    assert text.endswith("; no device has dranet.net/rdma")
    assert only(device_class('device.attributes["dranet.net"].rdma'), scope())[2] == wanted


def test_a_flat_request_of_v1beta1_hides_nothing_and_has_no_follow_on_errors() -> None:
    flat = {"name": "nic", "deviceClassName": "nic", "count": 40}
    body = claim(flat, request("gpu"), constraints=constraint("nic", "gpu"))

    found = [(f.rule.name, f.path) for f in lint_object({**body, "apiVersion": CURRENT}, scope(NIC))]
    assert found == [
        ("unknown-field", "spec.devices.requests[0].deviceClassName"),
        ("unknown-field", "spec.devices.requests[0].count"),
        ("too-many-devices", "spec.devices.requests"),
    ]
    older = {**body, "apiVersion": "resource.k8s.io/v1beta1"}
    assert [f.rule.name for f in lint_object(older, scope(NIC))] == ["api-version", "too-many-devices"]


def test_a_version_that_cannot_be_converted_is_not_judged_further() -> None:
    rule, text, fix = only({**claim(request(count=40)), "apiVersion": "resource.k8s.io/v1alpha2"}, scope())
    assert (rule, text) == ("api-version", "resource.k8s.io/v1alpha2 is an older version of the API")
    assert fix.startswith("write it as resource.k8s.io/v1: no program can convert")


def test_an_unknown_parameter_with_nothing_near_is_answered_with_the_fields_there_are() -> None:
    body = claim(request(), config=[config({"rdma": {"zzz": 1}})])
    assert only(body, scope(NIC)) == (
        "parameters",
        "unknown field",
        "fields are managementDevices, memlock, forkSafe, hugePagesSafe",
    )

    outside = claim(request(), config=[config({"zzz": 1})])
    assert only(outside, scope(NIC))[2].startswith("fields are profile, interface, routes")


def test_without_the_class_nothing_is_certain() -> None:
    stranger = nic_slice("b", {"gpu.example.com/model": "x"}, driver="gpu.example.com")
    body = claim(request("nic", 'device.attributes["dra.net"].mtu > 9000', device_class="unknown"))
    found = [finding.rule.name for finding in lint_object(body, scope(ONE_NODE, stranger))]

    assert found == ["selector-may-fail"]
    (finding,) = lint_object(body, scope(ONE_NODE))
    assert "unless the class turns it down" in finding.text


def test_a_gpu_needs_no_network_of_its_own_and_no_name() -> None:
    known = scope(GPU, template(request(device_class="gpu"), config=[config({"interface": {"name": "n"}})]))

    assert not broken(pod(FAST, hostNetwork=True), known)


def test_a_claim_that_pods_share_is_told_at_the_second() -> None:
    shared = {"name": "fast", "resourceClaimName": "fast"}
    pods = [(Key("default", name), pod(shared)["spec"]) for name in ("a", "b")]
    other = (Key("elsewhere", "c"), pod(shared)["spec"])

    found = list(find_shared_claims([*pods, other]))

    assert [(owner.name, finding.rule.name) for owner, finding in found] == [("b", "claim-shared")]


def test_a_finding_names_the_field_the_device_and_the_mend() -> None:
    body = claim(request("nic", 'device.attributes["dra.net"].rdmaDevice == "mlx5_0"'))
    (finding,) = lint_object(body, scope(NIC))

    assert finding.path == "spec.devices.requests[0].exactly.selectors[0].cel.expression"
    assert "a NIC without RDMA" in finding.text
    assert "'rdmaDevice'" in finding.text
    assert "orValue" in finding.fix


def test_a_suggestion_is_made_for_what_is_misspelt() -> None:
    body = claim(
        request("nic", 'device.attributes["dra.net"].?rdmaDev.orValue("") == "x"'),
        config=[config({"interface": {"mtuu": 1}}, "nic")],
    )
    fixes = {finding.rule.name: finding.fix for finding in lint_object(body, scope(NIC))}

    assert fixes == {"attribute-unknown": "did you mean rdmaDevice?", "parameters": "did you mean mtu?"}


@pytest.mark.parametrize(
    ("expression", "fix"),
    [
        ('attributes["dra.net/rdma"].BoolValue', 'device.attributes["dra.net"].rdma'),
        ('device.attributes["dra.net/rdma"]', 'device.attributes["dra.net"].rdma'),
        ('device.capacity["a.b/c"] == 1', 'device.capacity["a.b"].c'),
        ("device.attributes.mtu > 1500", 'device.attributes["dra.net"].mtu'),
        ("device.attributes.pcieRoot == ''", 'device.attributes["resource.kubernetes.io"].pcieRoot'),
        ('driver == "dra.net"', "device.driver"),
        ('device.drivr == "dra.net"', "did you mean device.driver?"),
        ('device.driver = "dra.net"', "= is written =="),
        ('device.driver == "dra.net" and true', "and is written &&"),
        ('not (device.driver == "a or b")', "not is written !"),
        ('device.capacity["a.b"].c >= quantity("1")', "quantities compare with .isGreaterThan"),
        ('device.driver == "dra.net', ""),
        ("hostname()", ""),
    ],
)
def test_a_selector_that_does_not_compile_is_mended(expression: str, fix: str) -> None:
    (finding,) = lint_object(claim(request("nic", expression)), scope(NIC))

    assert finding.rule.name == "selector"
    assert finding.fix.startswith(fix)
    assert bool(finding.fix) is bool(fix)


def test_a_template_of_another_namespace_is_told() -> None:
    known = Scope(templates={Key("ml", "fast"): template(request())})
    (finding,) = lint_object(pod(FAST), known)

    assert finding.rule.name == "claim-not-given"
    assert "namespace ml" in finding.fix


def test_the_field_of_older_versions_is_told_where_it_went() -> None:
    body = pod({"name": "fast", "source": {"resourceClaimTemplateName": "fast"}})
    fixes = [finding.fix for finding in lint_object(body, scope()) if finding.rule.name == "unknown-field"]

    assert fixes == ["its content belongs here: resourceClaimTemplateName, resourceClaimName"]
