"""Every value does something: with another one, other objects come out. And some of the places where they
must come out, which only the text of a template says."""

from __future__ import annotations

import pytest

from tests.tools.manifests.chart.each_value import BESIDE, LEAVES, OTHER, build_pair
from tests.tools.manifests.chart.rendering import (
    container_of,
    find,
    identity,
    of_kind,
    pod_of,
    render,
    settings_of,
)
from tests.tools.manifests.chart.value_sets import (
    AIR_GAPPED,
    PODS,
    POOLS,
    SERVICE_MONITORED,
    TLS,
    UMBRELLA,
)
from tools.manifests.values import list_values


@pytest.mark.parametrize("path", LEAVES)
def test_a_value_changes_what_is_made(path: str) -> None:
    without, with_other = build_pair(path)
    assert render(with_other) != render(without)


def test_the_table_has_no_value_that_there_is_not() -> None:
    assert BESIDE.keys() <= set(LEAVES)
    assert set(OTHER) == {value.name for value in list_values()}


def test_pods_are_selected_by_release_and_pool() -> None:
    """Whatever is left out here takes over the pods of others, and can never be changed."""
    for daemonset in of_kind(render(POOLS), "DaemonSet"):
        assert daemonset["spec"]["selector"] == {
            "matchLabels": {
                "app.kubernetes.io/name": "dranet",
                "app.kubernetes.io/instance": "dranet",
                "app.kubernetes.io/component": "driver",
                "dra.net/pool": daemonset["metadata"]["name"].removeprefix("dranet-"),
            }
        }


def test_each_driver_reads_the_settings_of_its_own_pool() -> None:
    for daemonset in of_kind(render(POOLS), "DaemonSet"):
        volumes = {volume["name"]: volume for volume in pod_of(daemonset)["volumes"]}
        assert volumes["config"]["configMap"] == {"name": daemonset["metadata"]["name"]}
        assert volumes["pod"]["emptyDir"] == {}
        assert container_of(daemonset)["command"] == [
            "dranet",
            "run",
            "--config",
            "/etc/dranet/settings.yaml",
        ]


def test_a_change_of_settings_restarts_the_driver_by_an_annotation_alone() -> None:
    items = [find(render(values), "DaemonSet") for values in ({}, {"settings": {"log_level": "debug"}})]
    before, after = (dict(item["spec"]["template"]["metadata"]["annotations"]) for item in items)
    assert before.pop("checksum/settings") != after.pop("checksum/settings")
    assert before == after
    assert pod_of(items[0]) == pod_of(items[1])


def test_an_image_of_a_private_registry_is_fetched_alike_for_both_containers() -> None:
    pod = pod_of(find(render(AIR_GAPPED | {"resources": {"limits": {"memory": "1Gi"}}}), "DaemonSet"))
    assert pod["imagePullSecrets"] == [{"name": "mirror"}]
    assert pod["containers"][0]["image"] == f"registry.example.com/mirror/dranet@sha256:{'a' * 64}"
    (init,), (driver,) = pod["initContainers"], pod["containers"]
    for name in ("image", "imagePullPolicy", "resources"):
        assert init[name] == driver[name], name
    assert driver["resources"]["limits"] == {"memory": "1Gi"}


def test_probes_are_as_the_values_say() -> None:
    probes = {f"{name}Probe": OTHER[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    container = container_of(find(render(probes), "DaemonSet"))
    for name, probe in probes.items():
        assert probe.items() <= container[name].items()


def test_capabilities_are_those_of_the_values() -> None:
    container = container_of(find(render({"securityContext": {"capabilities": ["NET_ADMIN"]}}), "DaemonSet"))
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}


def test_rights_are_bound_to_the_account_that_the_pods_have() -> None:
    for values in ({}, {"serviceAccount": {"create": False, "name": "mine"}}, {"fullnameOverride": "nics"}):
        objects = render(values, namespace="elsewhere")
        binding = find(objects, "ClusterRoleBinding")
        role = find(objects, "ClusterRole")["metadata"]["name"]
        assert binding["roleRef"] == {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role,
        }
        account = pod_of(find(objects, "DaemonSet"))["serviceAccountName"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "elsewhere"}]


def test_the_port_speaks_tls_where_the_probes_and_the_driver_are_told_so() -> None:
    objects = render(TLS)
    assert (
        settings_of(find(objects, "ConfigMap")).items()
        >= {
            "metrics_tls_cert": "/etc/dranet-tls/tls.crt",
            "metrics_tls_key": "/etc/dranet-tls/tls.key",
            "metrics_authentication": "kubernetes",
        }.items()
    )
    container = container_of(find(objects, "DaemonSet"))
    assert {container[f"{name}Probe"]["httpGet"]["scheme"] for name in ("startup", "liveness")} == {"HTTPS"}


def test_a_network_policy_is_for_the_driver_s_pods_and_its_port() -> None:
    values = {**POOLS, "networkPolicy": {"enabled": True}, "settings": {"bind_address": ":9000"}}
    objects = render(values)
    policies = of_kind(objects, "NetworkPolicy")
    for policy, daemonset in zip(policies, of_kind(objects, "DaemonSet"), strict=True):
        assert policy["spec"]["podSelector"] == daemonset["spec"]["selector"]
        assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 9000}]}]
        assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_the_quota_is_for_the_priority_class_of_the_pods() -> None:
    objects = render({"criticalPodsQuota": {"enabled": True}, "priorityClassName": "mine"})
    (wanted,) = find(objects, "ResourceQuota")["spec"]["scopeSelector"]["matchExpressions"]
    assert wanted == {"scopeName": "PriorityClass", "operator": "In", "values": ["mine"]}
    assert pod_of(find(objects, "DaemonSet"))["priorityClassName"] == "mine"


def test_a_registry_for_all_charts_wins_over_the_one_of_the_image() -> None:
    objects = render(UMBRELLA)
    for pod in (pod_of(find(objects, "DaemonSet")), find(objects, "Pod", "test")["spec"]):
        images = {one["image"] for one in (*pod["containers"], *pod.get("initContainers", ()))}
        assert images == {"registry.example.com/dranet:0.1.0"}
        assert pod["imagePullSecrets"] == [{"name": "mirror"}, {"name": "more"}]
    own = render({"image": {"registry": "r.example:5000/mirror", "repository": "nics/dranet"}})
    assert container_of(find(own, "DaemonSet"))["image"] == "r.example:5000/mirror/nics/dranet:0.1.0"


def test_the_viewer_reads_and_is_bound_to_nobody() -> None:
    objects = render()
    rules = find(objects, "ClusterRole", "viewer")["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert {resource for rule in rules for resource in rule["resources"]} == {
        *("resourceslices", "deviceclasses", "resourceclaims", "resourceclaimtemplates", "devicetaintrules"),
        *("nodes", "pods", "events"),
    }
    bound = {item["roleRef"]["name"] for item in objects if item["kind"].endswith("RoleBinding")}
    assert bound == {"dranet", "dranet-test"}
    label = "rbac.authorization.k8s.io/aggregate-to-view"
    assert label not in find(objects, "ClusterRole", "viewer")["metadata"]["labels"]
    assert find(render(UMBRELLA), "ClusterRole", "viewer")["metadata"]["labels"][label] == "true"


def test_the_service_of_a_monitor_selects_the_driver_s_pods_and_its_port() -> None:
    objects = render({**POOLS, **SERVICE_MONITORED, "settings": {"bind_address": ":9000"}})
    monitor = find(objects, "ServiceMonitor")
    for service, daemonset in zip(of_kind(objects, "Service"), of_kind(objects, "DaemonSet"), strict=True):
        assert service["spec"]["selector"] == daemonset["spec"]["selector"]["matchLabels"]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["ports"] == [{"name": "metrics", "port": 9000}]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} == {"metrics"}


def test_objects_of_the_administrator_may_use_templates() -> None:
    (made,) = of_kind(render(PODS, name="nics"), "Secret")
    assert made["metadata"]["name"] == "nics-more"
    assert made["metadata"]["labels"]["app.kubernetes.io/instance"] == "nics"


def test_the_test_pod_can_do_no_more_than_read_and_is_no_driver() -> None:
    objects = render(POOLS)
    pod = find(objects, "Pod", "test")
    selector = of_kind(objects, "DaemonSet")[0]["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= pod["metadata"]["labels"].items()
    context = pod["spec"]["containers"][0]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    rules = [*find(objects, "Role", "test")["rules"], *find(objects, "ClusterRole", "test")["rules"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}
    tolerated = [toleration.get("key") for toleration in pod["spec"]["tolerations"]]
    assert tolerated == ["nvidia.com/gpu", None, None], "it must find a node of any pool"


def test_objects_of_a_pool_carry_its_name() -> None:
    for item in render({**POOLS, "networkPolicy": {"enabled": True}}):
        if item["kind"] in ("DaemonSet", "ConfigMap"):
            assert item["metadata"]["labels"]["dra.net/pool"] in identity(item)[2]
