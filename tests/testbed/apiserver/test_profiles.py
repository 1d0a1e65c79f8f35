"""What each Kubernetes version keeps, drops and refuses, as the stand-in plays it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.transport import access_from_url
from dranet.desk.kubeapi.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from dranet.desk.kubeapi.profiles import load_profile
from dranet.desk.kubeapi.quantities import canonical_quantity, parse_quantity
from dranet.desk.kubeapi.validation import validate
from dranet.errors import ClusterError, Reason, SettingsError
from testbed.apiserver.drops import drop_disabled
from testbed.apiserver.server import ApiServer

Change = Callable[[JsonObject], Any]
TAINT = {"key": "dra.net/down", "effect": "NoSchedule"}
POLICY = {"default": "1G", "validRange": {"min": "1G", "step": "1G"}}


def a_slice(*devices: JsonObject, **spec: Any) -> JsonObject:
    return {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "dra.net",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
            **spec,
        },
    }


@asynccontextmanager
async def serving(profile: str, **gates: bool) -> AsyncIterator[tuple[ApiServer, ApiClient]]:
    async with ApiServer(profile=profile, gates=gates) as server, ApiClient(access_from_url(server.url)) as c:
        yield server, c


async def create_device(profile: str, device: JsonObject, **gates: bool) -> JsonObject:
    """What the server keeps of one device."""
    async with serving(profile, **gates) as (_, client):
        stored = await client.create(paths.RESOURCE_SLICES, a_slice({"name": "d", **device}))
        kept: JsonObject = stored["spec"]["devices"][0]
        return {key: value for key, value in kept.items() if key != "name"}


GATED_DEVICES = [
    ({"taints": [TAINT | {"timeAdded": "2026-01-01T00:00:00Z"}]}, "DRADeviceTaints", "1.36"),
    ({"allowMultipleAllocations": True}, "DRAConsumableCapacity", "1.36"),
    (
        {"consumesCounters": [{"counterSet": "a", "counters": {"b": {"value": "1"}}}]},
        "DRAPartitionableDevices",
        "1.36",
    ),
    (
        {"bindingConditions": ["a"], "bindingFailureConditions": ["b"], "bindsToNode": True},
        "DRADeviceBindingConditions",
        "1.36",
    ),
]


class TestGates:
    @pytest.mark.socket
    @pytest.mark.parametrize(("device", "gate", "since"), GATED_DEVICES)
    async def test_a_field_is_dropped_before_its_gate_is_on_and_kept_after(
        self, device: JsonObject, gate: str, since: str
    ) -> None:
        assert await create_device("1.34", device) == {}
        assert await create_device("1.34", device, **{gate: True}) == device
        assert await create_device(since, device) == device
        assert await create_device("1.37", device, **{gate: False}) == {}

    @pytest.mark.socket
    async def test_a_policy_is_dropped_with_the_shared_device_and_its_capacity_stays(self) -> None:
        capacity = {"dra.net/bandwidth": {"value": "100G", "requestPolicy": POLICY}}
        device = {"allowMultipleAllocations": True, "capacity": capacity}
        assert await create_device("1.37", device) == device
        assert await create_device("1.35", device) == {"capacity": {"dra.net/bandwidth": {"value": "100G"}}}

    @pytest.mark.socket
    async def test_a_list_is_dropped_and_an_attribute_that_had_nothing_else_is_refused(self) -> None:
        device = {"attributes": {"dra.net/numa": {"ints": [0, 1]}}}
        assert await create_device("1.36", device, DRAListTypeAttributes=True) == device
        for version in ("1.34", "1.37"):
            with pytest.raises(
                ClusterError, match=r"attributes\[dra.net/numa\].*exactly one value"
            ) as caught:
                await create_device(version, device)
            assert caught.value.reason is Reason.API_INVALID

    @pytest.mark.socket
    async def test_a_status_of_devices_is_dropped_without_its_gate(self) -> None:
        async with serving("1.35", DRAResourceClaimDeviceStatus=False) as (_, client):
            spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "x"}}]}}
            await client.create(paths.resource_claims("default"), {"metadata": {"name": "c"}, "spec": spec})
            device = {"driver": "dra.net", "pool": "p", "device": "d"}
            status = {
                "allocation": {"devices": {"results": [{"request": "nic", **device}]}},
                "devices": [device],
            }
            kept = await client.patch(paths.resource_claim_status("default", "c"), {"status": status})
            assert kept["status"] == {"allocation": status["allocation"]}

    @pytest.mark.socket
    async def test_alternatives_without_their_gate_leave_an_invalid_claim(self) -> None:
        alternative = {"name": "fast", "deviceClassName": "x"}
        spec = {"devices": {"requests": [{"name": "nic", "firstAvailable": [alternative]}]}}
        body = {"metadata": {"name": "c"}, "spec": spec}
        async with serving("1.34") as (_, client):
            await client.create(paths.resource_claims("default"), body)
        async with serving("1.34", DRAPrioritizedList=False) as (_, client):
            with pytest.raises(ClusterError, match="exactly one of `exactly` or `firstAvailable`"):
                await client.create(paths.resource_claims("default"), body)

    @pytest.mark.socket
    async def test_what_is_stored_with_a_feature_keeps_it_when_the_gate_goes_off(self) -> None:
        """A server that is rolled back must not destroy what others wrote."""
        before = a_slice({"name": "d", "taints": [TAINT]})
        async with serving("1.37") as (server, client):
            stored = await client.create(paths.RESOURCE_SLICES, before)
            (kept,) = server.objects("resourceslices")
        changed = copy.deepcopy(kept)
        changed["spec"]["devices"].append({"name": "e", "taints": [TAINT], "allowMultipleAllocations": True})
        drop_disabled(RESOURCE_SLICES, changed, stored, load_profile("1.34"))
        assert [set(device) for device in changed["spec"]["devices"]] == [{"name", "taints"}] * 2
        drop_disabled(RESOURCE_SLICES, changed, None, load_profile("1.34"))
        assert [set(device) for device in changed["spec"]["devices"]] == [{"name"}] * 2

    @pytest.mark.socket
    async def test_a_class_loses_its_extended_resource_name(self) -> None:
        body = {"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/nic"}}
        async with serving("1.35") as (_, client):
            assert (await client.create(paths.DEVICE_CLASSES, body))["spec"] == {}

    @pytest.mark.socket
    async def test_the_version_is_that_of_the_profile(self) -> None:
        async with serving("1.35") as (_, client):
            assert (await client.get("/version"))["minor"] == "35"

    @pytest.mark.parametrize(
        ("version", "gates"),
        [("1.33", {}), ("1.34", {"DRAListTypeAttributes": True}), ("1.37", {"NoSuchGate": True})],
    )
    def test_a_version_or_a_gate_that_does_not_exist_is_refused(
        self, version: str, gates: dict[str, bool]
    ) -> None:
        with pytest.raises(SettingsError, match=r"profile|gate"):
            load_profile(version, gates)


class TestLimitsByVersion:
    def faults(self, version: str, body: JsonObject, before: JsonObject | None = None) -> list[str]:
        return [cause.field for cause in validate(RESOURCE_SLICES, body, before, load_profile(version))]

    def test_taints_per_device(self) -> None:
        taints = [{"key": f"k{n}", "effect": "NoExecute"} for n in range(5)]
        assert self.faults("1.34", a_slice({"name": "d", "taints": taints})) == ["spec.devices[0].taints"]
        assert self.faults("1.35", a_slice({"name": "d", "taints": taints})) == []

    def test_devices_with_taints_per_slice(self) -> None:
        devices = [{"name": f"d{n}", "taints": [TAINT]} for n in range(65)]
        assert self.faults("1.34", a_slice(*devices)) == []
        assert self.faults("1.35", a_slice(*devices)) == ["spec.devices"]

    def test_an_effect_that_the_version_does_not_know_is_refused_unless_it_is_there_already(self) -> None:
        body = a_slice({"name": "d", "taints": [{"key": "a", "effect": "None"}]})
        assert self.faults("1.37", body) == []
        assert self.faults("1.34", body) == ["spec.devices[0].taints[0].effect"]
        assert self.faults("1.34", body, copy.deepcopy(body)) == []

    def test_counters_and_devices_in_one_slice(self) -> None:
        counters = [{"name": "a", "counters": {"b": {"value": "1"}}}]
        body = a_slice({"name": "d"}, sharedCounters=counters)
        assert self.faults("1.34", body) == []
        assert self.faults("1.35", body) == ["spec"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: d.update(taints=[{"key": "a b", "effect": "NoSchedule"}]), "taints[0].key"),
        (lambda d: d.update(taints=[{**TAINT, "value": "-"}]), "taints[0].value"),
        (lambda d: d.update(taints=[{"key": "a"}]), "taints[0].effect"),
        (lambda d: d.update(taints=[TAINT] * 17), "taints"),
        (lambda d: d.update(bindingConditions=["a"]), "bindingFailureConditions"),
        (
            lambda d: d.update(bindingConditions=["a"], bindingFailureConditions=["a"]),
            "bindingFailureConditions",
        ),
        (
            lambda d: d.update(bindingConditions=list("abcde"), bindingFailureConditions=["f"]),
            "bindingConditions",
        ),
        (lambda d: d.update(consumesCounters=[{"counterSet": "a"}]), "consumesCounters[0].counters"),
        (
            lambda d: d.update(
                consumesCounters=[{"counterSet": n, "counters": {"x": {"value": "1"}}} for n in "abc"]
            ),
            "consumesCounters",
        ),
        (lambda d: d.update(nodeName="node-a"), ""),
        (
            lambda d: d.update(capacity={"x": {"value": "1G", "requestPolicy": POLICY}}),
            "capacity[x].requestPolicy",
        ),
    ],
)
def test_a_bad_device_is_refused_with_the_field(change: Change, field: str) -> None:
    device: JsonObject = {"name": "d"}
    change(device)
    faults = [cause.field for cause in validate(RESOURCE_SLICES, a_slice(device), None)]
    assert faults == [f"spec.devices[0].{field}".rstrip(".")]


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (POLICY, ""),
        ({"default": "2G", "validValues": ["1G", "2G"]}, ""),
        ({"validValues": ["1G"]}, ".default"),
        ({"default": "1G", "validValues": ["2G", "1G"]}, ".validValues[1]"),
        ({"default": "3G", "validValues": ["1G"]}, ".validValues"),
        ({"default": "1G", "validValues": ["1G", "200G"]}, ".validValues[1]"),
        ({"default": "1G", "validValues": ["1G"], "validRange": {"min": "1G"}}, ""),
        ({"default": "1G", "validRange": {}}, ".validRange.min"),
        ({"default": "1G", "validRange": {"min": "2G"}}, ".validRange.default"),
        ({"default": "1500M", "validRange": {"min": "1G", "step": "1G"}}, ".validRange.step"),
        ({"default": "1G", "validRange": {"min": "1G", "max": "200G"}}, ".validRange.max"),
    ],
)
def test_a_request_policy_is_checked_against_the_capacity(policy: JsonObject, field: str) -> None:
    capacity = {"x": {"value": "100G", "requestPolicy": policy}}
    device = {"name": "d", "allowMultipleAllocations": True, "capacity": capacity}
    faults = [cause.field for cause in validate(RESOURCE_SLICES, a_slice(device), None)]
    both = "validValues" in policy and "validRange" in policy
    wanted = [f"spec.devices[0].capacity[x].requestPolicy{field}"] if field or both else []
    assert faults == wanted


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: r.update(exactly={}), "exactly.deviceClassName"),
        (lambda r: r["exactly"].update(count=0), "exactly.count"),
        (lambda r: r["exactly"].update(allocationMode="All", count=2), "exactly.count"),
        (lambda r: r["exactly"].update(allocationMode="Some"), "exactly.allocationMode"),
        (
            lambda r: r["exactly"].update(selectors=[{"cel": {"expression": "x" * 10241}}]),
            "exactly.selectors[0].cel.expression",
        ),
        (
            lambda r: r["exactly"].update(tolerations=[{"operator": "Exists"}] * 17),
            "exactly.tolerations",
        ),
        (lambda r: r["exactly"].update(tolerations=[{"effect": "Odd"}]), "exactly.tolerations[0].effect"),
        (lambda r: r.update(firstAvailable=[{"name": "a", "deviceClassName": "x"}]), ""),
        (lambda r: r.update(name="A"), "name"),
    ],
)
def test_a_bad_request_is_refused_with_the_field(change: Change, field: str) -> None:
    request: JsonObject = {"name": "nic", "exactly": {"deviceClassName": "x"}}
    change(request)
    body = {"metadata": {"name": "c", "namespace": "n"}, "spec": {"devices": {"requests": [request]}}}
    faults = [cause.field for cause in validate(RESOURCE_CLAIMS, body, None)]
    assert faults == [f"spec.devices.requests[0].{field}".rstrip(".")]


class TestServerSetFields:
    @pytest.mark.socket
    async def test_the_time_of_a_taint_is_set_where_it_is_missing(self) -> None:
        kept = await create_device(
            "1.37", {"taints": [TAINT, {**TAINT, "timeAdded": "2026-01-01T00:00:00Z"}]}
        )
        assert kept["taints"][0]["timeAdded"] > "2026"
        assert kept["taints"][1]["timeAdded"] == "2026-01-01T00:00:00Z"

    @pytest.mark.socket
    @pytest.mark.parametrize(
        ("text", "canonical"),
        [
            ("1024Mi", "1Gi"),
            ("1000M", "1G"),
            ("100e9", "100e9"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("1025", "1025"),
            ("512Ki", "512Ki"),
            ("0Gi", "0"),
            ("1.5Gi", "1536Mi"),
            ("1000", "1k"),
        ],
    )
    async def test_a_quantity_comes_back_in_its_canonical_form(self, text: str, canonical: str) -> None:
        kept = await create_device("1.37", {"capacity": {"x": {"value": text}}})
        assert kept["capacity"] == {"x": {"value": canonical}}

    @given(
        st.integers(-(10**15), 10**15),
        st.sampled_from(["", "k", "M", "G", "Ki", "Mi", "Gi", "m", "e3", "E-2"]),
    )
    def test_the_canonical_form_has_the_same_value_and_is_its_own(self, number: int, suffix: str) -> None:
        canonical = canonical_quantity(f"{number}{suffix}")
        assert parse_quantity(canonical) == parse_quantity(f"{number}{suffix}")
        assert canonical_quantity(canonical) == canonical


class TestAdminAccess:
    @pytest.mark.socket
    async def test_it_needs_the_label_on_the_namespace(self) -> None:
        request = {"name": "nic", "exactly": {"deviceClassName": "x", "adminAccess": True}}
        body = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
        async with serving("1.37") as (_, client):
            with pytest.raises(
                ClusterError, match=r"requires the `resource.kubernetes.io/admin-access: true`"
            ):
                await client.create(paths.resource_claims("default"), body)
            labels = {"resource.kubernetes.io/admin-access": "true"}
            await client.patch(f"{paths.NAMESPACES}/default", {"metadata": {"labels": labels}})
            await client.create(paths.resource_claims("default"), body)


@pytest.mark.socket
async def test_what_a_replaced_node_owned_is_garbage() -> None:
    async with serving("1.37") as (server, client):
        node = await client.create(paths.NODES, {"metadata": {"name": "node-a"}})
        owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": node["metadata"]["uid"]}
        owned = a_slice({"name": "d"})
        owned["metadata"]["ownerReferences"] = [owner]
        await client.create(paths.RESOURCE_SLICES, owned)
        assert server.collect_garbage() == []
        await client.delete(paths.node("node-a"))
        await client.create(paths.NODES, {"metadata": {"name": "node-a"}})
        assert server.collect_garbage() == ["s"]
        assert server.objects("resourceslices") == []


@pytest.mark.socket
async def test_pod_groups_and_taint_rules_are_served() -> None:
    async with serving("1.37") as (server, client):
        groups = "/apis/scheduling.k8s.io/v1alpha3/namespaces/default/podgroups"
        await client.create(groups, {"metadata": {"name": "g"}, "spec": {}})
        rules = "/apis/resource.k8s.io/v1/devicetaintrules"
        rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {}, "taint": TAINT}}
        stored = await client.create(rules, rule)
        assert stored["spec"]["taint"]["timeAdded"]
        with pytest.raises(ClusterError, match=r"spec\.taint\.effect"):
            await client.patch(f"{rules}/r", {"spec": {"taint": {"effect": "Odd"}}})
        assert [len(server.objects(plural)) for plural in ("podgroups", "devicetaintrules")] == [1, 1]
