"""GPUs and NICs that nothing holds together are found, with the claim that would be right."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from dranet.desk.hardware.nodes import read_hardware
from dranet.desk.lint import LintFinding, Scope, lint_object, read_devices
from dranet.desk.templates.choose import Choice, choose_claim
from dranet.desk.templates.request import ClaimRequest
from dranet.model.attributes import (
    MORE_NEAREST_GPUS,
    MORE_NUMA_NODE_GPUS,
    NEAREST_GPUS,
    NUMA_NODE_GPUS,
    Attribute,
)
from tests.data import gpu_drivers
from tests.data.layouts import CLAIMED_LAYOUTS, read_gpus
from tests.desk.lint.objects import OURS, claim, device_class, pod, request, scope, selectors, template
from tests.desk.templates.distances import classes_of, has_rdma
from tests.desk.templates.layout_clusters import Gpus, World, world

Json = dict[str, Any]
ROOT, NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
NIC = device_class(f'{OURS} && device.attributes["dra.net"].rdma', name="nic")
OUR_GPU = device_class(f'{OURS} && device.attributes["dra.net"].?type.orValue("") == "gpu"', name="gpu")
VENDORS = {body["metadata"]["name"]: body for body in gpu_drivers.device_classes()}
GPU_CLASSES = ("gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com", "gpu.intel.com", "dranet-gpu")
WITH_GPUS = [layout for layout in CLAIMED_LAYOUTS if world(layout).gpus and has_rdma(world(layout))]


def known(machine: World, *more: Json) -> Scope:
    """The slices of one node and the vendors' classes."""
    bodies = {body["metadata"]["name"]: body for body in (NIC, OUR_GPU, *VENDORS.values(), *more)}
    return Scope(classes=bodies, devices=read_devices(machine.slices), slices=machine.slices)


def found(body: Json, scope: Scope, *rules: str) -> list[LintFinding]:
    wanted = rules or ("unaligned", "alignment-by-chance")
    return [finding for finding in lint_object(body, scope) if finding.rule.name in wanted]


def pair(gpu_class: str = "gpu.nvidia.com", gpus: int = 1, nics: int = 1, **rest: Any) -> Json:
    return claim(*requests(gpu_class, gpus, nics), **rest)


def requests(gpu_class: str, gpus: int, nics: int) -> tuple[Json, Json]:
    return request("gpu", device_class=gpu_class, count=gpus), request("nic", count=nics)


def constraint(*names: str, attribute: str = ROOT) -> list[Json]:
    return [{"matchAttribute": attribute, "requests": list(names)}]


def class_of(machine: World) -> str:
    return "gpu" if machine.gpu_driver == "dra.net" else machine.gpu_driver


# --- claims ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GPU_CLASSES)
def test_a_claim_without_a_constraint_is_found_for_gpus_of_any_driver(name: str) -> None:
    (finding,) = found(pair(name), scope(NIC))

    assert finding.rule.name == "unaligned"
    assert finding.path == "spec.devices.requests[1].exactly"
    assert finding.text == "no constraint relates gpu and nic"
    assert finding.fix.startswith(
        f"constraints: [{{matchAttribute: {ROOT}, requests: [gpu, nic]}}]; dranet claim"
    )
    assert "--gpus 1 --nics 1" in finding.fix


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "gpu.nvidia.com"',
        "device.driver == 'gpu.amd.com' && device.attributes['gpu.amd.com'].type == 'amdgpu'",
        f'{OURS} && device.attributes["dra.net"].?type.orValue("") == "gpu"',
    ],
)
def test_a_class_of_another_name_is_known_by_its_selector(expression: str) -> None:
    own = device_class(expression, name="fast-gpus")

    assert len(found(pair("fast-gpus"), scope(NIC, own))) == 1
    assert found(pair("fast-gpus"), scope(NIC)) == []


def test_a_class_that_may_be_either_is_not_judged() -> None:
    assert found(pair("any"), scope(NIC, device_class("true", name="any"))) == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (pair(constraints=constraint("gpu", "nic")), "a constraint on the root"),
        (pair(constraints=constraint("gpu", "nic", attribute="dra.net/pcieSwitch")), "on the switch"),
        (pair(constraints=constraint()), "over all requests"),
        (claim(request("nic")), "no GPU"),
        (claim(request("gpu", device_class="gpu.nvidia.com")), "no NIC"),
        (pair(gpus=8, nics=8), "it may be the whole node"),
        (
            claim(request("gpu", device_class="gpu.nvidia.com", allocationMode="All"), request("nic")),
            "all GPUs",
        ),
    ],
)
def test_what_is_related_or_takes_the_whole_node_is_no_finding(body: Json, why: str) -> None:
    assert found(body, scope(NIC)) == [], why


@pytest.mark.parametrize("attribute", ["dra.net/rdmaLinkLayer", "dra.net/linkSpeedMbps"])
def test_a_constraint_on_something_else_relates_no_places(attribute: str) -> None:
    assert len(found(pair(constraints=constraint("gpu", "nic", attribute=attribute)), scope(NIC))) == 1


def test_devices_that_are_named_on_both_sides_are_no_luck() -> None:
    gpu = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"'
    nic = 'device.attributes["dra.net"].?numaNode.orValue(-1) == 0'
    named = request("gpu", gpu, device_class="gpu.nvidia.com"), request("nic", nic)
    half = request("gpu", gpu, device_class="gpu.nvidia.com"), request("nic")

    assert found(claim(*named), scope(NIC)) == []
    assert len(found(claim(*half), scope(NIC))) == 1


def test_a_nic_for_storage_beside_an_aligned_pair_is_no_finding() -> None:
    body = claim(*requests("gpu.nvidia.com", 1, 1), request("storage"), constraints=constraint("gpu", "nic"))

    assert found(body, scope(NIC)) == []


def test_a_template_is_judged_as_a_claim() -> None:
    (finding,) = found(template(*requests("gpu.amd.com", 1, 1)), scope(NIC))

    assert finding.path == "spec.spec.devices.requests[1].exactly"


# --- with slices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", Gpus)
@pytest.mark.parametrize("layout", WITH_GPUS)
def test_with_slices_the_odds_and_the_claim_for_this_hardware_are_named(layout: str, gpus: Gpus) -> None:
    machine = world(layout, gpus)
    findings = found(pair(class_of(machine)), known(machine))
    choice = chosen(machine, 1, 1)
    (node,) = read_hardware(machine.slices).nodes

    constraints = [c["matchAttribute"] for c in choice.attempt.shape.constraints]
    if len(node.gpus) == 1:
        assert findings == []
        return
    (finding,) = findings
    assert finding.text.startswith("no constraint relates gpu and nic; by chance ")
    assert finding.text.endswith(" on node-1")
    if not is_aligned(choice):
        assert finding.fix.startswith("no claim aligns them here; dranet claim new --per-node ")
        return
    assert finding.fix.startswith("dranet claim new --gpus 1 --nics 1")
    if len(constraints) == 1 == len(choice.attempt.shape.relations):
        assert finding.fix.endswith(f"matchAttribute: {constraints[0]}, requests: [gpu, nic]}}]")
    else:
        assert finding.fix.endswith(f": {choice.attempt.shape.title}")


@pytest.mark.parametrize("with_slices", [True, False])
@pytest.mark.parametrize("gpus", Gpus)
@pytest.mark.parametrize("layout", WITH_GPUS)
def test_what_claim_new_writes_is_no_finding(layout: str, gpus: Gpus, with_slices: bool) -> None:
    machine = world(layout, gpus)
    number = len(machine.gpus)
    for count in {1, 2, number // 2, number} - {0}:
        if count == number < 4 and not with_slices:
            continue  # it might be a part of a node
        choice = chosen(machine, count, count)
        if not is_aligned(choice) and count < number:
            continue
        classes = classes_of(choice).values()
        for body in choice.templates:
            judged = known(machine, *classes) if with_slices else scope(*classes)
            assert found(body, judged, "unaligned", "constraint-never-met") == [], count


def is_aligned(choice: Choice) -> bool:
    """Whether the drivers publish enough for a claim to relate GPU and NIC."""
    return bool(choice.attempt.shape.constraints) or choice.attempt.shape.is_for_one_pod


def chosen(machine: World, gpus: int, nics: int) -> Choice:
    """By the vendor's own class."""
    ask = ClaimRequest(gpus, nics, rdma=True)
    return choose_claim(ask, read_hardware(machine.slices), dict(VENDORS))


def test_all_gpus_of_the_node_are_no_luck_and_four_of_eight_are() -> None:
    assert found(pair("gpu.nvidia.com", 8, 8), known(world("dgx-h100", Gpus.VENDOR))) == []
    assert len(found(pair("gpu.nvidia.com", 4, 4), known(world("dgx-h100", Gpus.VENDOR)))) == 1
    assert found(pair("gpu.nvidia.com", 4, 4), known(world("oci-gb200", Gpus.VENDOR))) == []


def test_the_gpus_of_another_driver_do_not_decide() -> None:
    """NVIDIA's driver and ours publish the same GPUs."""
    vendor, ours = world("dgx-h100", Gpus.VENDOR), world("dgx-h100")
    both = World("node-1", (*vendor.slices[1:], *ours.slices), {}, {})
    for name in ("gpu.nvidia.com", "gpu"):
        (finding,) = found(pair(name), known(both))
        assert finding.text.endswith("; by chance PIX in 1/10, NODE in 2/5, SYS in 1/2 on node-1"), name


MIG = {
    "by its class": request("gpu", device_class="mig.nvidia.com"),
    "by a profile": request(
        "gpu", 'device.attributes["gpu.nvidia.com"].profile == "1g.10gb"', device_class="mig.nvidia.com"
    ),
}


def with_mig(*profiles: gpu_drivers.Mig) -> World:
    """A DGX H100 whose GPUs are all cut into these parts."""
    gpus, ours = read_gpus("dgx-h100"), world("dgx-h100", Gpus.VENDOR)
    parts = [gpu_drivers.nvidia_mig_0_4(gpu, mig, mig.starts[0]) for gpu in gpus for mig in profiles]
    slices = (ours.slices[0], gpu_drivers.build_slice("gpu.nvidia.com", "node-1", parts))
    return World("node-1", slices, {}, {})


@pytest.mark.parametrize("asked", MIG)
def test_mig_devices_are_as_their_gpus_and_the_claim_for_their_profile_is_named(asked: str) -> None:
    body = claim(MIG[asked], request("nic"))
    (finding,) = found(body, known(with_mig(gpu_drivers.MIG_1G)))

    assert finding.text.endswith("; by chance PIX in 1/10, NODE in 2/5, SYS in 1/2 on node-1")
    assert finding.fix == (
        "dranet claim new --gpus 1 --nics 1 --gpu-part 1g.10gb --class nic: "
        f"constraints: [{{matchAttribute: {ROOT}, requests: [gpu, nic]}}]"
    )


@pytest.mark.parametrize(("asked", "profile"), [("by its class", "PROFILE"), ("by a profile", "1g.10gb")])
def test_without_slices_the_profile_is_that_of_the_selector(asked: str, profile: str) -> None:
    (finding,) = found(claim(MIG[asked], request("nic")), scope(NIC, VENDORS["mig.nvidia.com"]))

    assert f"dranet claim new --gpus 1 --nics 1 --gpu-part {profile} --class nic writes" in finding.fix


def test_of_several_profiles_none_is_named_and_many_parts_are_no_whole_node() -> None:
    both = with_mig(gpu_drivers.MIG_1G, gpu_drivers.MIG_3G)
    (finding,) = found(pair("mig.nvidia.com", 8, 8), known(both))

    assert (
        finding.fix
        == "dranet claim new --gpus 8 --nics 8 --gpu-part PROFILE --class nic, which reads the hardware"
    )


def test_a_constraint_that_is_never_met_names_the_claim_that_is() -> None:
    machine = world("azure-nd-h100-v5", Gpus.VENDOR)
    body = pair("gpu.nvidia.com", constraints=constraint("gpu", "nic"))
    (finding,) = found(body, known(machine), "constraint-never-met")

    assert finding.fix.startswith(
        "dranet claim new --gpus 1 --nics 1 --class nic: each NIC with a GPU on the same NUMA"
    )
    assert found(body, known(machine)) == []


# --- pods --------------------------------------------------------------------------------------------

GPUS = template(request("gpu", device_class="gpu.nvidia.com"), name="gpus")
NICS = template(request("nic"), name="nics")


def uses(*names: str) -> list[Json]:
    return [{"name": name, "resourceClaimTemplateName": name} for name in names]


def with_limits(*claims: Json, **limits: object) -> Json:
    body = pod(*claims)
    body["spec"]["containers"][0]["resources"]["limits"] = limits
    return body


def test_a_gpu_and_a_nic_in_two_claims_of_a_pod_are_found() -> None:
    (finding,) = found(pod(*uses("gpus", "nics")), scope(NIC, GPUS, NICS))

    assert finding.rule.name == "unaligned"
    assert finding.path == "spec.resourceClaims[1]"
    assert finding.text == "no constraint can relate the GPUs of claim gpus and the NICs of claim nics"
    assert finding.fix.startswith("one claim for both: ")
    assert "dranet claim new --gpus 1 --nics 1" in finding.fix


def test_an_aligned_claim_beside_nics_for_storage_is_no_finding() -> None:
    both = template(*requests("gpu.nvidia.com", 1, 1), name="both", constraints=constraint())

    assert found(pod(*uses("both", "nics")), scope(NIC, both, NICS)) == []


def test_two_claims_for_the_whole_node_are_no_finding() -> None:
    whole = template(request("gpu", device_class="gpu.nvidia.com", allocationMode="All"), name="whole")

    assert found(pod(*uses("whole", "nics")), scope(NIC, whole, NICS)) == []


@pytest.mark.parametrize(
    "resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "gpu.intel.com/xe"]
)
def test_gpus_of_a_device_plugin_are_chance(resource: str) -> None:
    (finding,) = found(with_limits(*uses("nics"), **{resource: "1"}), scope(NIC, NICS))

    assert finding.rule.name == "alignment-by-chance"
    assert finding.text == f"the kubelet chooses {resource} without regard to the NICs of claim nics"
    assert finding.fix.startswith("GPUs of a DRA driver, in one claim for both: ")
    _, whole, each = finding.fix.split("; or ")
    assert whole == "dranet claim new --per-node takes all GPUs and NICs of a node"
    command = f"dranet claim new --gpus 1 --nics 1 --gpu-resource {resource} --each-numa"
    assert each == f"{command} takes NICs of each NUMA node"


def test_nics_of_several_numa_nodes_are_meant_for_gpus_of_any() -> None:
    numa = 'device.attributes["resource.kubernetes.io"].?numaNode.orValue(-1) == {}'
    on_each = template(*(request(f"numa-{n}", numa.format(n)) for n in (0, 1)), name="nics")
    on_one = template(request("nic", numa.format(0)), name="nics")
    body = with_limits(*uses("nics"), **{"nvidia.com/gpu": 1})

    assert found(body, scope(NIC, on_each)) == []
    assert len(found(body, scope(NIC, on_one))) == 1


def test_only_the_nics_that_a_request_selects_count_for_the_odds() -> None:
    near = 'device.attributes["dra.net"].?nearestGpuDistance.orValue("") == "PIX"'
    machine = world("dgx-h100", Gpus.VENDOR)
    body = claim(request("gpu", device_class="gpu.nvidia.com"), request("nic", near))
    (finding,) = found(body, known(machine))

    assert finding.text.endswith("; by chance PIX in 1/8, NODE in 3/8, SYS in 1/2 on node-1")


def test_init_containers_and_requests_count_as_well() -> None:
    body = pod(*uses("nics"))
    resources = {"requests": {"amd.com/gpu": 1}}
    body["spec"]["initContainers"] = [{"name": "check", "image": "x", "resources": resources}]

    assert [finding.rule.name for finding in found(body, scope(NIC, NICS))] == ["alignment-by-chance"]


@pytest.mark.parametrize("limits", [{"nvidia.com/gpu": 8}, {"cpu": "4", "example.com/licence": 1}, {}])
def test_the_whole_node_and_other_resources_are_no_finding(limits: Json) -> None:
    assert found(with_limits(*uses("nics"), **limits), scope(NIC, NICS)) == []


@pytest.mark.parametrize("gpus", [Gpus.OURS, Gpus.VENDOR])
def test_the_odds_of_chance_are_those_of_the_slices(gpus: Gpus) -> None:
    body = with_limits(*uses("nics"), **{"nvidia.com/gpu": 1})
    plain = {
        **VENDORS["gpu.nvidia.com"],
        "spec": {"selectors": selectors('device.driver == "gpu.nvidia.com"')},
    }
    machine = world("dgx-h100", gpus)
    judged = known(machine, plain)
    (finding,) = found(body, Scope(**as_fields(judged, templates=scope(NICS).templates)))

    assert finding.rule.name == "alignment-by-chance"
    assert finding.text.endswith("; by chance PIX in 1/10, NODE in 2/5, SYS in 1/2 on node-1")


def as_fields(judged: Scope, **more: Any) -> Json:
    return {name: getattr(judged, name) for name in ("classes", "devices", "slices")} | more


def test_an_extended_resource_that_a_class_stands_for_is_another_claim() -> None:
    (finding,) = found(
        with_limits(*uses("nics"), **{"nvidia.com/gpu": 1}), scope(NIC, NICS, VENDORS["gpu.nvidia.com"])
    )

    assert finding.rule.name == "unaligned"
    assert finding.text == "no constraint can relate the GPUs of nvidia.com/gpu and the NICs of claim nics"


def test_two_extended_resources_of_classes_are_related_by_nothing() -> None:
    nics = {**NIC, "spec": {**NIC["spec"], "extendedResourceName": "example.com/nic"}}
    body = with_limits(**{"nvidia.com/gpu": 1, "example.com/nic": 1})
    (finding,) = found(body, scope(nics, VENDORS["gpu.nvidia.com"]))

    assert finding.rule.name == "unaligned"
    assert finding.text.endswith("the NICs of example.com/nic")


@pytest.mark.parametrize("attribute", [NEAREST_GPUS, MORE_NEAREST_GPUS, NUMA_NODE_GPUS, MORE_NUMA_NODE_GPUS])
def test_a_nic_is_placed_by_the_gpus_that_it_names(attribute: Attribute) -> None:
    """The GPU is named, too, so there is nothing left to relate."""
    gpu = 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:18:00.0"'
    near = f'device.attributes["dra.net"].{attribute.name}.contains("0000:18:00.0")'
    body = claim(request("gpu", gpu, device_class="gpu.nvidia.com"), request("nic", near))

    assert not found(body, scope(NIC))
    assert found(claim(request("gpu", device_class="gpu.nvidia.com"), request("nic", near)), scope(NIC))


def test_what_is_found_for_one_claim_is_not_looked_for_again() -> None:
    """A cluster has hundreds of claims and thousands of devices, and most claims are alike."""
    asked: list[str] = []

    def find(key: str) -> str:
        asked.append(key)
        return key.upper()

    judged = scope(NIC)
    answers = [judged.once(key, partial(find, key)) for key in ("a", "b", "a")]

    assert answers == ["A", "B", "A"]
    assert asked == ["a", "b"]
