"""What the driver's service account may do, as the stand-in enforces it; that it is what the code needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate.utils import validate

from dranet.cluster import paths
from dranet.cluster.claims import apply_device_statuses, fetch_claim_for_node, fetch_other_results
from dranet.cluster.client import ApiClient, JsonObject
from dranet.cluster.events import NORMAL, EventNote, EventRecorder, ObjectRef
from dranet.cluster.permissions import DRIVER_NAME, NAMESPACE, PERMISSIONS, SERVICE_ACCOUNT, build_rbac
from dranet.cluster.slices import SlicePublisher
from dranet.cluster.transport import FixedToken, access_from_url
from dranet.errors import ClusterError, Reason
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device, DeviceKind
from dranet.model.status import Condition, ConditionType, DeviceStatus
from testbed.apiserver.identity import User, service_account
from testbed.apiserver.journal import FOLDER_VARIABLE
from testbed.apiserver.rbac import Attributes, Authorizer
from testbed.apiserver.server import ApiServer
from tests.support.waiting import until
from tests.support.written_objects.journal import JournalReader
from tests.whole_driver.permissions import list_needed
from tools.manifests.admission import build_policies

pytestmark = pytest.mark.socket

official = pytest.importorskip("kubernetes", reason="the official kubernetes client is not installed")

NODE = "node-a"
DRIVER = service_account(NAMESPACE, SERVICE_ACCOUNT, node=NODE, pod="dranet-x")
ELSEWHERE = service_account(NAMESPACE, SERVICE_ACCOUNT, node="node-b", pod="dranet-y")
UNBOUND = service_account(NAMESPACE, SERVICE_ACCOUNT)
USERS = {"here": DRIVER, "elsewhere": ELSEWHERE, "unbound": UNBOUND, "nobody": User("nobody")}
"""User by token."""
SLICES = paths.RESOURCE_SLICES
REPOSITORY = Path(__file__).parents[2]


def open_client(server: ApiServer, token: str = "") -> ApiClient:
    return ApiClient(access_from_url(server.url, token=FixedToken(token)))


async def wait_published(publisher: SlicePublisher, pages: Sequence[Sequence[str]]) -> None:
    publisher.set_desired([[Device(name, DeviceKind.NIC) for name in page] for page in pages])
    await until(lambda: publisher.is_published, "it is published", 10)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """Enforces both manifests of ``deploy``; its journal is in ``tmp_path / "journal"``."""
    (tmp_path / "journal").mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "journal"))
    manifests = [
        document
        for name in ("rbac.yaml", "admission-policy.yaml")
        for document in yaml.safe_load_all((REPOSITORY / "deploy" / name).read_text())
    ]
    async with ApiServer(users=USERS, manifests=manifests) as running:
        yield running


@pytest.fixture
async def admin(server: ApiServer) -> AsyncIterator[ApiClient]:
    async with open_client(server) as client:
        yield client


@pytest.fixture
async def driver(server: ApiServer) -> AsyncIterator[ApiClient]:
    async with open_client(server, "here") as client:
        yield client


def on_node(*nodes: str) -> JsonObject:
    field = {"key": "metadata.name", "operator": "In", "values": list(nodes)}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


async def make_claim(admin: ApiClient, selector: JsonObject | None = None, **status: Any) -> ClaimRef:
    """A claim with a device of ours and one of another driver, allocated on this node."""
    spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "x"}}]}}
    made = await admin.create(paths.resource_claims("default"), {"metadata": {"name": "c"}, "spec": spec})
    results = [
        {"request": "nic", "driver": name, "pool": NODE, "device": "eth0"}
        for name in (DRIVER_NAME, "other.x")
    ]
    allocation = {"devices": {"results": results}, "nodeSelector": selector or on_node(NODE)}
    body = {"status": {"allocation": allocation, **status}}
    await admin.patch(paths.resource_claim_status("default", "c"), body)
    return ClaimRef("default", "c", made["metadata"]["uid"])


def entry_of(name: str) -> JsonObject:
    return {"driver": name, "pool": NODE, "device": "eth0", "networkData": {"interfaceName": "net1"}}


async def apply_entries(client: ApiClient, *drivers: str) -> JsonObject:
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "status": {"devices": [entry_of(name) for name in drivers]},
    }
    return await client.apply(paths.resource_claim_status("default", "c"), body, field_manager="m")


class TestTheTable:
    """``deploy/rbac.yaml`` says what the code needs: no more, no less."""

    async def test_the_code_needs_every_permission_and_no_other(
        self, server: ApiServer, admin: ApiClient, driver: ApiClient, tmp_path: Path
    ) -> None:
        """Every part of the driver that calls the API server, as the driver's own user."""
        node = await admin.create(paths.NODES, {"metadata": {"name": NODE}})
        await self.publish_slices(driver)
        group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "u"}
        ref = await make_claim(admin, reservedFor=[group])
        await self.make_pod_of_group(admin)
        claim = await fetch_claim_for_node(driver, ref, NODE)
        assert [consumer.name for consumer in claim.reserved_for] == ["p"]
        (pod,) = claim.reserved_for
        results = await fetch_other_results(driver, PodRef("default", pod.name, pod.uid), frozenset())
        assert results == claim.results, "its only claim"
        condition = Condition(ConditionType.READY, True, "Attached", "")
        status = DeviceStatus(DRIVER_NAME, NODE, "eth0", (condition,))
        assert await apply_device_statuses(driver, ref, "m", [status])
        about = ObjectRef("v1", "Node", NODE, "", node["metadata"]["uid"])
        recorder = EventRecorder(driver, component=DRIVER_NAME, host=NODE)
        for _ in range(2):
            await recorder.record(EventNote(about, NORMAL, "Tested", "note"))
        assert not [record for record in server.requests if record.status in (401, 403)]

        reader = JournalReader(tmp_path / "journal")
        assert reader.read_faults() == []
        assert reader.get_permissions() == list_needed()

    async def publish_slices(self, driver: ApiClient) -> None:
        publisher = SlicePublisher(driver, DRIVER_NAME, NODE)
        running = asyncio.create_task(publisher.run())
        await wait_published(publisher, [["a"], ["b"]])
        await wait_published(publisher, [["a"], ["b", "c"]])
        await wait_published(publisher, [["a"]])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def make_pod_of_group(self, admin: ApiClient) -> None:
        spec = {
            "nodeName": NODE,
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "nic", "resourceClaimName": "c"}],
            "schedulingGroup": {"podGroupName": "g"},
        }
        await admin.create(paths.pods("default"), {"metadata": {"name": "p"}, "spec": spec})

    @pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
    def test_the_manifests_are_valid_by_the_schemas_of_every_version(self, version: str) -> None:
        for document in [*build_rbac(), *build_policies()]:
            validate(document, version, strict=True)

    def test_nothing_is_wide_open(self) -> None:
        (role,) = [document for document in build_rbac() if document["kind"] == "ClusterRole"]
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"deletecollection", "impersonate", "escalate", "bind"} & set(rule["verbs"])
        touched = {resource for rule in role["rules"] for resource in rule["resources"]}
        assert not {"secrets", "configmaps", "serviceaccounts", "pods/status", "nodes/status"} & touched

    def test_every_rule_says_why_and_when(self) -> None:
        assert all(rule.why and rule.when for rule in PERMISSIONS)


class TestAuthorizer:
    rules: Sequence[JsonObject] = (
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": ["x.y"], "resources": ["things/status"], "verbs": ["*"], "resourceNames": ["one"]},
    )

    @pytest.mark.parametrize(
        ("asked", "allowed"),
        [
            (Attributes("get", "", "pods", "default", "p"), True),
            (Attributes("list", "", "pods"), True),
            (Attributes("delete", "", "pods", "default", "p"), False),
            (Attributes("get", "", "pods/status", "default", "p"), False),
            (Attributes("get", "x.y", "pods"), False),
            (Attributes("patch", "x.y", "things/status", "", "one"), True),
            (Attributes("patch", "x.y", "things/status", "", "two"), False),
            (Attributes("list", "x.y", "things/status"), False),
        ],
    )
    def test_a_rule_allows_what_it_names(self, asked: Attributes, allowed: bool) -> None:
        role = {"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": list(self.rules)}
        binding = {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "b"},
            "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}],
        }
        authorizer = Authorizer([role, binding])
        assert authorizer.allows(User("u"), asked) is allowed
        assert not authorizer.allows(User("v"), asked)

    def test_a_role_binding_holds_in_its_namespace(self) -> None:
        role = {"kind": "Role", "metadata": {"name": "r", "namespace": "a"}, "rules": list(self.rules)}
        binding = {
            "kind": "RoleBinding",
            "metadata": {"name": "b", "namespace": "a"},
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "Group", "name": "g"}],
        }
        authorizer = Authorizer([role, binding])
        user = User("u", ("g",))
        assert authorizer.allows(user, Attributes("get", "", "pods", "a", "p"))
        assert not authorizer.allows(user, Attributes("get", "", "pods", "b", "p"))
        assert not authorizer.allows(user, Attributes("list", "", "pods"))


class TestRefusals:
    @pytest.mark.parametrize(
        ("path", "text"),
        [
            (
                paths.namespace("p"),
                'namespaces "p" is forbidden: User "{user}" cannot get resource "namespaces" in API ',
            ),
            ("/api/v1/secrets", "could not find the requested resource"),
            (paths.DEVICE_CLASSES, 'deviceclasses.resource.k8s.io is forbidden: User "{user}" cannot list'),
            (paths.config_maps("default"), 'in API group "" in the namespace "default"'),
        ],
    )
    async def test_what_the_role_does_not_allow_is_forbidden_with_the_reason(
        self, driver: ApiClient, path: str, text: str
    ) -> None:
        with pytest.raises(ClusterError) as caught:
            await driver.get(path)
        assert text.format(user=DRIVER.name) in str(caught.value)

    async def test_a_token_that_nobody_has_is_unauthorized(self, server: ApiServer) -> None:
        async with open_client(server, "stolen") as client:
            with pytest.raises(ClusterError, match="401"):
                await client.list(SLICES)

    async def test_deletecollection_is_nobodys(self, server: ApiServer, driver: ApiClient) -> None:
        with pytest.raises(ClusterError) as caught:
            await driver.delete(SLICES)
        assert caught.value.reason is Reason.API_FORBIDDEN
        assert server.requests[-1].user == DRIVER.name


class TestStatusByDriverAndNode:
    """Rights on claim status are given by driver and node from 1.36 on."""

    async def test_the_driver_writes_its_own_entries_of_a_claim_on_its_node(
        self, admin: ApiClient, driver: ApiClient
    ) -> None:
        await make_claim(admin)
        answer = await apply_entries(driver, DRIVER_NAME)
        assert answer["status"]["devices"] == [entry_of(DRIVER_NAME)]

    async def test_not_those_of_another_driver_and_none_of_them_removed(
        self, admin: ApiClient, driver: ApiClient
    ) -> None:
        await make_claim(admin)
        with pytest.raises(ClusterError, match=r"resourceclaims/driver.*other\.x.*is forbidden"):
            await apply_entries(driver, "other.x")
        await apply_entries(admin, "other.x")
        with pytest.raises(ClusterError, match=r"changing status\.devices requires"):
            await driver.patch(paths.resource_claim_status("default", "c"), {"status": {"devices": None}})

    @pytest.mark.parametrize("token", ["elsewhere", "unbound"])
    async def test_not_from_another_node_nor_with_a_token_of_no_node(
        self, server: ApiServer, admin: ApiClient, token: str
    ) -> None:
        await make_claim(admin)
        async with open_client(server, token) as client:
            with pytest.raises(ClusterError, match=r"verb=\"\[arbitrary-node:patch\]\"") as caught:
                await apply_entries(client, DRIVER_NAME)
        assert server.requests[-1].status == 422  # a refusal of the object, as of a real server
        assert caught.value.reason is not None

    @pytest.mark.parametrize(
        "selector",
        [
            on_node(NODE, "node-b"),
            {"nodeSelectorTerms": [*on_node(NODE)["nodeSelectorTerms"] * 2]},
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]},
        ],
    )
    async def test_not_of_a_claim_that_is_not_of_exactly_one_node(
        self, admin: ApiClient, driver: ApiClient, selector: JsonObject
    ) -> None:
        await make_claim(admin, selector)
        with pytest.raises(ClusterError, match="arbitrary-node:patch"):
            await apply_entries(driver, DRIVER_NAME)

    async def test_not_the_allocation(self, admin: ApiClient, driver: ApiClient) -> None:
        await make_claim(admin)
        change = {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}
        with pytest.raises(ClusterError, match="resourceclaims/binding"):
            await driver.patch(paths.resource_claim_status("default", "c"), change)

    async def test_a_server_without_the_gate_asks_for_the_status_alone(self) -> None:
        older = ApiServer(profile="1.35", users=USERS, manifests=build_rbac())
        async with older as server, open_client(server) as admin, open_client(server, "elsewhere") as client:
            await make_claim(admin)
            await apply_entries(client, DRIVER_NAME)


class TestPolicies:
    """``deploy/admission-policy.yaml`` binds the driver to its node and its name."""

    def a_slice(self, **spec: Any) -> JsonObject:
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        body = {"driver": DRIVER_NAME, "nodeName": NODE, "pool": pool, "devices": [], **spec}
        return {"metadata": {"name": "s"}, "spec": body}

    async def test_the_driver_writes_slices_of_its_own(self, driver: ApiClient) -> None:
        made = await driver.create(SLICES, self.a_slice())
        made["spec"]["devices"] = [{"name": "d"}]
        await driver.replace(paths.resource_slice("s"), made)
        await driver.delete(paths.resource_slice("s"))
        pool = {"name": f"{NODE}/rail-0", "generation": 1, "resourceSliceCount": 1}
        await driver.create(SLICES, self.a_slice(pool=pool), dry_run=True)

    @pytest.mark.parametrize(
        ("spec", "why"),
        [
            ({"nodeName": "node-b"}, "of the node that it runs on"),
            ({"driver": "other.x"}, "only slices of dra.net"),
            (
                {"pool": {"name": "node-b", "generation": 1, "resourceSliceCount": 1}},
                "only pools named after",
            ),
            (
                {"pool": {"name": f"{NODE}b", "generation": 1, "resourceSliceCount": 1}},
                "only pools named after",
            ),
        ],
    )
    async def test_and_no_others(
        self, server: ApiServer, admin: ApiClient, driver: ApiClient, spec: JsonObject, why: str
    ) -> None:
        for dry_run in (True, False):
            with pytest.raises(ClusterError, match=why) as caught:
                await driver.create(SLICES, self.a_slice(**spec), dry_run=dry_run)
            assert caught.value.reason is Reason.API_FORBIDDEN
        made = await admin.create(SLICES, self.a_slice(**spec))
        made["spec"]["devices"] = [{"name": "d"}]
        with pytest.raises(ClusterError, match=why):
            await driver.replace(paths.resource_slice("s"), made)
        if "pool" in spec:
            await driver.delete(paths.resource_slice("s"))
            return
        with pytest.raises(ClusterError, match=why):
            await driver.delete(paths.resource_slice("s"))
        assert len(server.objects("resourceslices")) == 1

    async def test_slices_of_all_nodes_are_no_drivers(self, driver: ApiClient) -> None:
        body = self.a_slice(allNodes=True)
        del body["spec"]["nodeName"]
        with pytest.raises(ClusterError, match="of the node that it runs on"):
            await driver.create(SLICES, body)

    async def test_a_token_without_a_node_writes_nothing(self, server: ApiServer) -> None:
        async with open_client(server, "unbound") as client:
            with pytest.raises(ClusterError, match="must be bound to a pod"):
                await client.create(SLICES, self.a_slice())

    async def test_others_are_not_spoken_of(self, admin: ApiClient) -> None:
        await admin.create(SLICES, self.a_slice(driver="other.x", nodeName="node-b"))

    async def test_a_role_that_gives_too_much_still_gives_no_other_drivers_entries(self) -> None:
        """The policy holds by itself: with every right on claims, and on a server without finer ones."""
        everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        rbac = [d | {"rules": [everything]} if d["kind"] == "ClusterRole" else d for d in build_rbac()]
        generous = ApiServer(profile="1.34", users=USERS, manifests=[*rbac, *build_policies()])
        path = paths.resource_claim_status("default", "c")
        async with generous as server, open_client(server) as admin, open_client(server, "here") as client:
            await make_claim(admin)
            await apply_entries(admin, "other.x")
            theirs, ours = entry_of("other.x"), entry_of(DRIVER_NAME)
            await client.patch(path, {"status": {"devices": [theirs, ours]}})
            for devices in ([ours], [ours, {**theirs, "data": {}}]):
                with pytest.raises(ClusterError, match=r"only the device entries of dra\.net"):
                    await client.patch(path, {"status": {"devices": devices}})
            pod = {"resource": "pods", "name": "p", "uid": "u"}
            with pytest.raises(ClusterError, match="the allocation or the consumers of a claim"):
                await client.patch(path, {"status": {"reservedFor": [pod]}})


class TestReviews:
    """The official client as the judge: what may I do, and who am I?"""

    @pytest.fixture
    async def judge(self, server: ApiServer, tmp_path: Path) -> AsyncIterator[Any]:
        server.write_kubeconfig(tmp_path / "config", token="here")
        configuration = official.client.Configuration()
        official.config.load_kube_config(str(tmp_path / "config"), client_configuration=configuration)
        with official.client.ApiClient(configuration) as api:
            yield api

    @pytest.mark.parametrize(
        ("attributes", "allowed"),
        [
            ({"verb": "create", "group": "resource.k8s.io", "resource": "resourceslices"}, True),
            ({"verb": "patch", "group": "resource.k8s.io", "resource": "resourceslices"}, False),
            (
                {
                    "verb": "associated-node:patch",
                    "group": "resource.k8s.io",
                    "resource": "resourceclaims",
                    "subresource": "driver",
                    "name": DRIVER_NAME,
                },
                True,
            ),
        ],
    )
    async def test_access(self, judge: Any, attributes: JsonObject, allowed: bool) -> None:
        api = official.client.AuthorizationV1Api(judge)
        body = {"spec": {"resourceAttributes": attributes}}
        answer = await asyncio.to_thread(api.create_self_subject_access_review, body)
        assert answer.status.allowed is allowed

    async def test_rules(self, judge: Any) -> None:
        api = official.client.AuthorizationV1Api(judge)
        body = {"spec": {"namespace": "default"}}
        answer = await asyncio.to_thread(api.create_self_subject_rules_review, body)
        found = {
            (group, resource, verb)
            for rule in answer.status.resource_rules
            for group in rule.api_groups
            for resource in rule.resources
            for verb in rule.verbs
        }
        assert found == list_needed()

    async def test_who_am_i(self, judge: Any) -> None:
        api = official.client.AuthenticationV1Api(judge)
        answer = await asyncio.to_thread(api.create_self_subject_review, {})
        assert answer.status.user_info.username == DRIVER.name
        assert answer.status.user_info.extra["authentication.kubernetes.io/node-name"] == [NODE]
