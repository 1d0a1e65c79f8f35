"""What Helm makes of the chart, over many value sets: objects that every supported Kubernetes takes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tools.manifests.chart import published
from tests.tools.manifests.chart.rendering import (
    CHART,
    NAMESPACE,
    JsonObject,
    container_of,
    find,
    helm,
    identity,
    of_kind,
    parse,
    pod_of,
    render,
    render_texts,
    settings_of,
)
from tests.tools.manifests.chart.value_sets import (
    CLIENT_CERTIFICATES,
    EVERYTHING_OFF,
    MONITORED,
    OTHER_NAME,
    OTHER_PLACES,
    POOLS,
    TLS,
    VALUE_SETS,
)

LONG = "a-release-name-of-fifty-three-characters-as-helm-takes"[:53]


@pytest.fixture(params=VALUE_SETS)
def values(request: pytest.FixtureRequest) -> JsonObject:
    return VALUE_SETS[request.param]


def test_lint_has_nothing_against_it(values: JsonObject) -> None:
    report = helm.lint(CHART, values, strict=True, namespace="dranet-system", kube_version="v1.34.0")
    # Severity 1 is a recommendation: an icon would have to come from somebody's host.
    assert [message for message in report["messages"] if message["severity"] > 1] == []


def test_every_object_is_valid_by_the_schemas_of_every_version(values: JsonObject) -> None:
    for item in render(values):
        published.check(item)


def test_no_document_is_empty(values: JsonObject) -> None:
    for name, text in render_texts(values).items():
        if name != "NOTES.txt" and text.strip():
            parts = [part for part in re.split(r"^---$", text, flags=re.MULTILINE) if part.strip()]
            assert all(re.search(r"^kind: ", part, re.MULTILINE) for part in parts), name


def test_every_object_carries_the_usual_labels(values: JsonObject) -> None:
    for item in render(values):
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "dranet"
        assert labels["app.kubernetes.io/instance"] == "dranet"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"] == "dranet-0.1.0"
        assert values.get("commonLabels", {}).items() <= labels.items()


def test_names_are_short_enough_under_any_release_name(values: JsonObject) -> None:
    for release in ("dranet", "d", LONG, "dranet" + "x" * 47):
        objects = render(values, name=release)
        for item in objects:
            assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", item["metadata"]["name"])
            assert len(item["metadata"]["name"]) <= 63, identity(item)
            assert all(len(value) <= 63 for value in item["metadata"]["labels"].values())
        assert len({identity(item) for item in objects}) == len(objects), "two objects of one name"


def test_what_is_namespaced_says_where(values: JsonObject) -> None:
    cluster_wide = {
        "Namespace", "ClusterRole", "ClusterRoleBinding", "DeviceClass",
        "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    }  # fmt: skip
    for item in render(values, namespace="elsewhere"):
        namespace = item["metadata"].get("namespace", "")
        assert (namespace == "") == (item["kind"] in cluster_wide), identity(item)
        assert namespace in ("", "elsewhere", "monitoring")


def test_two_releases_with_different_driver_names_do_not_meet() -> None:
    first = {identity(item) for item in render({}, name="dranet", namespace="one")}
    for name, values in (("nics", OTHER_NAME), ("second", {"settings": {"driver_name": "nic.example.com"}})):
        second = {identity(item) for item in render(values, name=name, namespace="one")}
        assert first & second == set()


def test_release_names_that_begin_alike_do_not_meet() -> None:
    one, other = (render({}, name=LONG[:-1] + last) for last in "ab")
    shared = {identity(item) for item in one} & {identity(item) for item in other}
    assert {kind for kind, _, _ in shared} == {"DeviceClass"}, (
        "these are named for users, not for the release"
    )


def test_a_short_release_name_is_told_apart_by_the_chart() -> None:
    assert find(render({}, name="net"), "DaemonSet")["metadata"]["name"] == "net-dranet"
    assert find(render({"fullnameOverride": "x"}), "DaemonSet")["metadata"]["name"] == "x"
    assert find(render({"nameOverride": "nic"}, name="net"), "DaemonSet")["metadata"]["name"] == "net-nic"


@pytest.mark.parametrize("name", ["true", "null", "0123", "1e3"])
def test_a_namespace_or_release_that_yaml_takes_for_something_else_stays_text(name: str) -> None:
    for values in (MONITORED, POOLS, CLIENT_CERTIFICATES):
        for item in render(values, name=name, namespace=name):
            published.check(item, minors=(37,))


def test_labels_of_an_admin_never_stand_twice_nor_in_place_of_those_that_select() -> None:
    """A pool's win over the common ones, the chart's own over both."""
    ours = {"app.kubernetes.io/name": "theirs", "dra.net/pool": "theirs", "team": "net"}
    pools = [{"name": "gpu", "podLabels": {"team": "gpu"}, "podAnnotations": {"a": "2"}}]
    objects = render(
        {
            "podLabels": ours, "commonLabels": ours, "podAnnotations": {"a": "1"}, "pools": pools,
            "podMonitor": {"enabled": True, "additionalLabels": ours},
        }
    )  # fmt: skip
    assert all(item["metadata"]["labels"]["team"] == "net" for item in objects)
    assert all(item["metadata"]["labels"]["app.kubernetes.io/name"] == "dranet" for item in objects)
    daemonset = find(objects, "DaemonSet")
    metadata = daemonset["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == "gpu"
    assert metadata["annotations"]["a"] == "2"
    assert daemonset["spec"]["selector"]["matchLabels"].items() <= metadata["labels"].items()


def test_the_token_is_for_those_who_ask() -> None:
    """Another pod of the account gets none, and the driver gets it also by an account that gives none."""
    objects = render()
    assert find(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    assert pod_of(find(objects, "DaemonSet"))["automountServiceAccountToken"] is True


def test_it_can_be_a_part_of_another_chart(tmp_path: Path) -> None:
    """Which switches it by a condition, and Helm then gives it the value ``enabled``."""
    parent = tmp_path / "platform"
    shutil.copytree(CHART, parent / "charts" / "dranet")
    (parent / "Chart.yaml").write_text(
        "apiVersion: v2\nname: platform\nversion: 1.0.0\n"
        "dependencies: [{name: dranet, version: '*', condition: dranet.enabled}]\n"
    )
    values = {"dranet": {"enabled": True, "settings": {"log_level": "debug"}}, "global": {"a": 1}}
    with helm.Chart.load(parent) as loaded:
        texts = loaded.render(values, name="p", namespace=NAMESPACE)
    (text,) = [text for path, text in texts.items() if path.endswith("daemonset.yaml")]
    for item in parse(text):
        published.check(item)
        assert item["metadata"]["name"] == "p-dranet"


def notes(values: JsonObject) -> str:
    return render_texts(values)["NOTES.txt"]


def test_the_notes_tell_of_an_image_without_a_registry_and_of_missing_rights() -> None:
    assert "names no registry" in render_texts()["NOTES.txt"]
    quiet = render_texts({"image": {"repository": "r.example/dranet"}})["NOTES.txt"]
    assert "NOTE" not in quiet
    assert "its scrapes are answered with 401" in render_texts(TLS)["NOTES.txt"]
    assert (
        "this release has no ClusterRole for the driver"
        in render_texts({"rbac": {"create": False}})["NOTES.txt"]
    )


def test_the_notes_fit_the_values() -> None:
    for daemonset in of_kind(render(POOLS), "DaemonSet"):
        assert f"rollout status daemonset/{daemonset['metadata']['name']}\n" in notes(POOLS)
    by_hand = notes({"updateStrategy": {"type": "OnDelete"}})
    assert "rollout status" not in by_hand, "kubectl knows no status of that"
    assert "replaced only when you delete it" in by_hand
    assert "kubectl get deviceclasses" not in notes(EVERYTHING_OFF)
    digest = "r.example/dranet@sha256:" + "0" * 64
    image = dict(zip(("repository", "digest"), digest.split("@"), strict=True))
    assert notes({"image": image}).startswith(f"{digest} as dra.net in dranet-system")
    trusting = {**TLS, "podMonitor": {"enabled": True}}
    assert "has no authority to verify it with" in notes(trusting)
    assert "has no authority to verify it with" not in notes(TLS)
    open_page = {"pools": [{"name": "a", "settings": {"node_page": "all"}}]}
    assert "sees the status page of the node" in notes(open_page)
    assert "sees the status page of the node" not in notes(TLS) + notes({})


def test_a_folder_that_is_written_in_two_ways_is_mounted_once() -> None:
    container = container_of(find(render({"settings": {"cdi_dir": "/etc/cdi/"}}), "DaemonSet"))
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"].startswith("/etc/cdi")]
    assert mount == {"name": "cdi", "mountPath": "/etc/cdi"}, "the driver writes there"


class TestPools:
    """A DaemonSet and its settings for each pool."""

    def test_each_has_its_own_over_the_common_ones(self) -> None:
        objects = render(POOLS)
        gpu, storage = of_kind(objects, "ConfigMap")
        common = {
            "procfs_root": "/host/proc",
            "ready_file": "/run/dranet-pod/ready",
            "attributes_file": "/etc/dranet/attributes.yaml",
        }
        assert settings_of(gpu) == common | {
            "drain_seconds": 60.5,
            "health_taints": "NoExecute",
            "device_metadata": False,
        }
        assert settings_of(storage) == common | {"drain_seconds": 20, "publish_gpus": "never"}
        assert '"rail":1000000' in storage["data"]["attributes.yaml"]
        assert "rail" not in gpu["data"]["attributes.yaml"]

    def test_pods_of_one_are_not_those_of_another(self) -> None:
        gpu, storage = of_kind(render(POOLS), "DaemonSet")
        assert gpu["metadata"]["name"] == "dranet-gpu"
        assert gpu["spec"]["selector"] != storage["spec"]["selector"]
        for daemonset in (gpu, storage):
            labels = daemonset["spec"]["template"]["metadata"]["labels"]
            assert daemonset["spec"]["selector"]["matchLabels"].items() <= labels.items()

    def test_what_a_pool_says_counts_there_alone(self) -> None:
        gpu, storage = map(pod_of, of_kind(render(POOLS), "DaemonSet"))
        assert gpu["nodeSelector"] == {"kubernetes.io/os": "linux", "example.com/pool": "gpu"}
        assert gpu["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        assert len(storage["tolerations"]) == 2
        assert storage["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}}
        assert (gpu["terminationGracePeriodSeconds"], storage["terminationGracePeriodSeconds"]) == (96, 55)

    def test_a_pool_may_be_what_another_leaves_over(self) -> None:
        term = {"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}
        away = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        }
        pools = [{"name": "gpu", "nodeSelector": {"gpu": "yes"}}, {"name": "rest", "affinity": away}]
        assert pod_of(of_kind(render({"pools": pools}), "DaemonSet")[1])["affinity"] == away

    def test_a_change_of_one_restarts_no_other(self) -> None:
        changed = json.loads(json.dumps(POOLS))
        changed["pools"][0]["settings"]["log_level"] = "debug"
        before, after = (
            [item["spec"]["template"] for item in of_kind(render(values), "DaemonSet")]
            for values in (POOLS, changed)
        )
        assert before[0] != after[0]
        assert before[1] == after[1]


def test_a_change_of_attributes_restarts_nobody() -> None:
    one, other = ({"attributes": [{"set": {"rail": number}}]} for number in (1, 2))
    assert find(render(one), "DaemonSet") == find(render(other), "DaemonSet")
    assert find(render(one), "ConfigMap") != find(render(other), "ConfigMap")


def test_other_places_on_the_node_are_mounted_where_the_driver_looks() -> None:
    objects = render(OTHER_PLACES)
    container = container_of(find(objects, "DaemonSet"))
    paths = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {
        "/var/lib/k0s/kubelet/plugins/dra.net",
        "/var/lib/k0s/kubelet/plugins_registry",
        "/srv/dranet",
        "/etc/cdi",
        "/run/k3s/nri",
    } <= paths
    (writable,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == "/etc/cdi"]
    assert "readOnly" not in writable, "the driver writes there"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 9999, "host": "127.0.0.1"}
    init = pod_of(find(objects, "DaemonSet"))["initContainers"][0]
    assert init["command"][-1] == "/var/lib/k0s/kubelet/seccomp"


def test_switched_off_means_gone() -> None:
    kinds = {item["kind"] for item in render(EVERYTHING_OFF)}
    assert kinds == {"ConfigMap", "DaemonSet"}
    pod = pod_of(find(render(EVERYTHING_OFF), "DaemonSet"))
    assert pod["serviceAccountName"] == "mine"
    assert not {"tolerations", "nodeSelector", "priorityClassName", "initContainers"} & pod.keys()


def test_the_image_by_digest_wins() -> None:
    digest = "sha256:" + "0" * 64
    images: list[Any] = [
        container_of(find(render({"image": image}), "DaemonSet"))["image"]
        for image in ({}, {"tag": "1.2"}, {"repository": "r.example:5000/d", "tag": "1.2", "digest": digest})
    ]
    assert images == ["dranet:0.1.0", "dranet:1.2", f"r.example:5000/d@{digest}"]


def test_another_driver_name_and_namespace_are_everywhere() -> None:
    """In the texts of the policies, too, where no transformation of kustomize reaches."""
    objects = render(OTHER_NAME, name="nics", namespace="networking")
    text = json.dumps([item for item in objects if item["kind"] != "DeviceClass"])
    assert "dranet-system" not in text
    assert "system:serviceaccount:networking:nics" in text
    assert "== 'nic.example.com'" in text
    assert "'dra.net'" not in text
    assert "/var/lib/kubelet/plugins/nic.example.com" in text
    for item in of_kind(objects, "DeviceClass"):
        (selector,) = item["spec"]["selectors"]
        assert selector["cel"]["expression"].startswith('device.driver == "nic.example.com"')
        assert all(
            config["opaque"]["driver"] == "nic.example.com" for config in item["spec"].get("config", ())
        )
        assert item["metadata"]["name"].startswith("nic.example.com")
