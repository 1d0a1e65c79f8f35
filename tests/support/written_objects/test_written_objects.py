"""The judge of what the driver writes can say no."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.permissions import NAMESPACE, SERVICE_ACCOUNT, build_rbac
from dranet.cluster.transport import FixedToken, access_from_url
from dranet.errors import ClusterError
from testbed.apiserver.identity import service_account
from testbed.apiserver.journal import FOLDER_VARIABLE
from testbed.apiserver.server import ApiServer
from tests.support.written_objects.journal import JournalReader, judge_write
from tests.support.written_objects.limits import LIMITS, find_limit_faults
from tests.support.written_objects.schemas import NEWER_FIELDS, find_schema_faults

Change = Callable[[JsonObject], Any]


def a_slice() -> JsonObject:
    device = {
        "name": "eth0",
        "attributes": {"dra.net/mtu": {"int": 1500}},
        "capacity": {"x": {"value": "1G"}},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "00000-dra.net-node-a-"},
        "spec": {
            "driver": "dra.net",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }


def device(body: JsonObject) -> JsonObject:
    found: JsonObject = body["spec"]["devices"][0]
    return found


def changed(change: Change) -> JsonObject:
    body = copy.deepcopy(a_slice())
    change(body)
    return body


class TestSchemas:
    def test_a_good_slice_is_valid_in_all_versions(self) -> None:
        assert find_schema_faults(a_slice()) == []

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (lambda s: s["spec"].update(owner="me"), "'owner' was unexpected"),
            (lambda s: device(s).update(basic={}), "'basic' was unexpected"),
            (lambda s: device(s)["attributes"].update(x={"int": "1"}), "'1' is not of type"),
            (lambda s: s["spec"].pop("driver"), "'driver' is a required property"),
            (lambda s: s["spec"]["pool"].pop("generation"), "'generation' is a required property"),
        ],
    )
    def test_a_bad_one_is_a_fault_in_each_version(self, change: Change, text: str) -> None:
        faults = find_schema_faults(changed(change))
        assert [fault.partition(":")[0] for fault in faults] == ["1.34", "1.35", "1.36", "1.37"]
        assert all(text in fault for fault in faults), faults

    def test_a_field_that_is_newer_than_a_version_is_no_fault_only_where_the_table_says_so(self) -> None:
        lists = changed(lambda s: device(s)["attributes"].update(x={"ints": [1]}))
        assert find_schema_faults(lists) == []
        mappings = changed(lambda s: device(s).update(nodeAllocatableResourceMappings={}))
        assert [fault.partition(":")[0] for fault in find_schema_faults(mappings)] == ["1.34", "1.35", "1.37"]
        assert max(NEWER_FIELDS.values()) == 37


class TestLimits:
    def test_a_good_slice_is_within_them(self) -> None:
        assert find_limit_faults(a_slice()) == []

    @pytest.mark.parametrize(
        ("change", "path"),
        [
            (lambda s: s["spec"].update(devices=[{"name": f"d{n}"} for n in range(129)]), "spec.devices"),
            (
                lambda s: s["spec"].update(
                    devices=[{"name": f"d{n}", "taints": [{"key": "a", "effect": "None"}]} for n in range(65)]
                ),
                "spec.devices",
            ),
            (lambda s: device(s)["attributes"].update(x={"string": "y" * 65}), "attributes.{}.string"),
            (lambda s: device(s)["attributes"].update(x={"version": "v1.2.3"}), "attributes.{}.version"),
            (lambda s: device(s)["attributes"].update({"a b": {"int": 1}}), "spec.devices.[].attributes"),
            (lambda s: device(s)["attributes"].update(x={}), "attributes.{}"),
            (lambda s: device(s)["attributes"].update({f"a{n}": {"int": n} for n in range(32)}), "[]"),
            (lambda s: device(s).update(taints=[{"key": "a", "effect": "Maybe"}]), "effect"),
            (lambda s: device(s)["capacity"].update(y={"value": "many"}), "capacity.{}.value"),
            (lambda s: s["spec"].update(allNodes=True), "spec"),
            (lambda s: device(s)["attributes"].update({"a..b/x": {"int": 1}}), "spec.devices.[].attributes"),
            (lambda s: device(s)["attributes"].update({f"{'a' * 64}/x": {"int": 1}}), "[].attributes"),
            (lambda s: s["spec"]["pool"].update(name="A B"), "spec.pool.name"),
            (lambda s: s["spec"].update(nodeName="A B"), "spec.nodeName"),
            (lambda s: device(s).update(taints=[{"key": "-.x/a", "effect": "None"}]), "taints.[].key"),
            (
                lambda s: device(s).update(taints=[{"key": "a", "effect": "None", "timeAdded": "now"}]),
                "timeAdded",
            ),
            (lambda s: device(s)["attributes"].update(x={"versions": ["v1"]}), "attributes.{}.versions.[]"),
            (lambda s: device(s).update(bindingConditions=["a"]), "spec.devices.[]"),
            (lambda s: s["metadata"].update(labels={"a b": "c"}), "metadata.labels"),
        ],
    )
    def test_what_is_over_one_is_named(self, change: Change, path: str) -> None:
        faults = find_limit_faults(changed(change))
        assert [fault for fault in faults if fault.partition(": ")[0].endswith(path)], faults

    @pytest.mark.parametrize(
        "address", ["10.0.0.1", "10.0.0.01/24", "2001:DB8::1/64", "fe80::1%a/64", "x/24"]
    )
    def test_an_address_of_another_form_is_named_also_where_it_is_none(self, address: str) -> None:
        entry = {"driver": "dra.net", "pool": "n", "device": "d", "networkData": {"ips": [address]}}
        body = {"kind": "ResourceClaim", "status": {"devices": [entry]}}
        assert ["canonical interface address" in fault for fault in find_limit_faults(body)] == [True]

    def test_a_device_that_is_told_of_twice_and_a_time_of_another_form_are_named(self) -> None:
        condition = {"type": "Ready", "reason": "Ready", "status": "True", "lastTransitionTime": "12:00"}
        entry = {"driver": "dra.net", "pool": "n", "device": "d", "conditions": [condition]}
        faults = find_limit_faults({"kind": "ResourceClaim", "status": {"devices": [entry, entry]}})
        assert ["device once" in fault or "a time" in fault for fault in faults] == [True] * 3

    def test_there_are_rows_for_every_kind_that_the_driver_writes(self) -> None:
        assert {limit.kind for limit in LIMITS} == {"", "ResourceSlice", "ResourceClaim", "Event"}


class TestJournal:
    @pytest.fixture
    async def client(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiClient]:
        """A server whose journal nobody but this test reads."""
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
        async with ApiServer() as server, ApiClient(access_from_url(server.url)) as connected:
            yield connected

    @pytest.mark.socket
    async def test_what_the_stand_in_takes_and_the_schemas_do_not_is_told(
        self, client: ApiClient, tmp_path: Path
    ) -> None:
        reader = JournalReader(tmp_path)
        await client.create(paths.RESOURCE_SLICES, a_slice())
        assert reader.read_faults() == []
        await client.create(paths.RESOURCE_SLICES, changed(lambda s: s["spec"].update(owner="me")))
        faults = reader.read_faults()
        assert len(faults) == 4
        assert "'owner' was unexpected" in faults[0]
        assert reader.read_faults() == []

    @pytest.mark.socket
    async def test_an_update_and_a_merge_patch_are_judged_whole(
        self, client: ApiClient, tmp_path: Path
    ) -> None:
        reader = JournalReader(tmp_path)
        event = {
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": "n"},
            "type": "Normal",
            "message": "m",
        }
        await client.create(paths.events("default"), event)
        assert reader.read_faults() == []
        await client.patch(paths.event("default", "e"), {"type": "Odd"})
        assert reader.read_faults() == ['Event type: must be Normal or Warning: "Odd"']

    @pytest.mark.socket
    async def test_what_was_refused_to_an_administrator_is_nobodys_fault(
        self, client: ApiClient, tmp_path: Path
    ) -> None:
        with pytest.raises(Exception, match="must be greater than zero"):
            await client.create(
                paths.RESOURCE_SLICES, changed(lambda s: s["spec"]["pool"].update(resourceSliceCount=0))
            )
        assert JournalReader(tmp_path).read_faults() == []

    @pytest.mark.socket
    async def test_what_the_driver_wrote_counts_although_it_was_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A server that refuses it is no reason to write it; the driver may try again for ever."""
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
        user = service_account(NAMESPACE, SERVICE_ACCOUNT, node="node-a", pod="p")
        server = ApiServer(users={"here": user}, manifests=build_rbac())
        reader = JournalReader(tmp_path)
        async with server, ApiClient(access_from_url(server.url, token=FixedToken("here"))) as driver:
            bad = changed(lambda s: s["spec"].update(devices=[{"name": f"d{n}"} for n in range(129)]))
            for dry_run in (True, False):
                with pytest.raises(ClusterError, match="Too many"):
                    await driver.create(paths.RESOURCE_SLICES, bad, dry_run=dry_run)
            assert "must be at most 128" in reader.read_faults()[0]

    def test_whatever_is_written_with_the_drivers_rights_is_judged(self) -> None:
        entry = {"driver": "dra.net", "pool": "n", "device": "d", "networkData": {"ips": ["10.0.0.1"]}}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c"},
            "spec": {},
            "status": {"devices": [entry]},
        }
        for how in ("PUT", "application/merge-patch+json", "application/apply-patch+yaml"):
            write = {"agent": "dranet/1", "admin": False, "how": how, "sent": body, "kept": body}
            assert "canonical interface address" in judge_write(write)[0]

    def test_another_agents_objects_are_not_judged(self) -> None:
        bad = changed(lambda s: s["spec"].update(owner="me"))
        write = {"agent": "dranet/1", "admin": True, "how": "POST", "sent": bad, "kept": bad}
        assert judge_write(write)
        assert not judge_write({**write, "agent": "kubectl/1.37"})

    def test_the_run_itself_has_a_journal(self) -> None:
        """What tests write lies where the plugin reads, also for processes that they start."""
        folder = Path(os.environ[FOLDER_VARIABLE])
        assert folder.is_dir()
        assert folder.stat().st_mode & 0o777 == 0o777
        assert all(json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines())
