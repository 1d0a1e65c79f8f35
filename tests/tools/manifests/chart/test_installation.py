"""Helm installs into the API server stand-in, upgrades, goes back and takes all of it away."""

from __future__ import annotations

import asyncio
import re
import shutil
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.transport import access_from_url
from testbed.apiserver.server import ApiServer
from tests.documents.kubectl import find_kubectl
from tests.tools.manifests.chart.cluster import extend_server, list_objects
from tests.tools.manifests.chart.rendering import (
    CHART,
    NAMESPACE,
    REPOSITORY,
    JsonObject,
    helm,
    identity,
    is_hook,
    render,
)
from tests.tools.manifests.chart.value_sets import GKE, MONITORED, POOLS, TLS, VALUE_SETS

pytestmark = pytest.mark.process

OURS: JsonObject = {"namespace": {"create": True}}
PLAIN: JsonObject = {"tests": {"enabled": False}}
"""The plain manifests have no `helm test`."""


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    extend_server(monkeypatch)
    async with ApiServer() as running:
        async with ApiClient(access_from_url(running.url)) as admin:
            await admin.create(paths.NAMESPACES, {"metadata": {"name": "monitoring"}})
        yield running


class Release:
    """What ``helm`` does, with releases kept in memory (the stand-in reads no protobuf, as which Helm writes
    its Secrets)."""

    def __init__(self, kubeconfig: Path, name: str = "dranet", namespace: str = NAMESPACE) -> None:
        helm.disable_logging()
        self._config = helm.Config(kubeconfig_path=kubeconfig, namespace=namespace, storage_driver="memory")
        self._name = name

    async def install(self, values: JsonObject, create_namespace: bool = False) -> None:
        install = partial(self._config.install, create_namespace=create_namespace)
        await self._run(install, CHART, self._name, OURS | values)

    async def upgrade(self, values: JsonObject) -> None:
        await self._run(self._config.upgrade, CHART, self._name, OURS | values)

    async def rollback(self) -> None:
        await self._run(self._config.rollback, self._name)

    async def uninstall(self) -> None:
        await self._run(self._config.uninstall, self._name)

    @staticmethod
    async def _run(call: Callable[..., Any], *arguments: Any) -> None:
        await asyncio.to_thread(call, *arguments, timeout=60)


@pytest.fixture(scope="module")
def kubectl() -> Path:
    return find_kubectl()


@pytest.fixture
def release(server: ApiServer, tmp_path: Path) -> Release:
    server.write_kubeconfig(tmp_path / "config")
    return Release(tmp_path / "config")


def names_of(values: JsonObject) -> set[tuple[str, str]]:
    return {(kind, name) for kind, _, name in map(identity, installed(values))}


def installed(values: JsonObject) -> list[JsonObject]:
    """What Helm renders, without the pod that `helm test` makes."""
    return [item for item in render(OURS | values) if not is_hook(item)]


def fresh(found: dict[tuple[str, str], JsonObject]) -> set[tuple[str, str]]:
    """Without the namespaces of a new cluster."""
    return {key for key in found if key[0] != "Namespace" or key[1] == NAMESPACE}


@pytest.mark.parametrize("name", ["defaults", "monitored pools", "gke", "tls", "all policies"])
async def test_what_helm_installs_is_what_it_rendered(server: ApiServer, release: Release, name: str) -> None:
    values = VALUE_SETS[name]
    await release.install(values)
    found = await list_objects(server)
    assert fresh(found) == names_of(values)
    for item in installed(values):
        stored = found[item["kind"], item["metadata"]["name"]]
        content = item.keys() - {"apiVersion", "kind", "metadata"}  # lists leave the first two out
        assert {key: stored[key] for key in content} == {key: item[key] for key in content}


@pytest.mark.parametrize("after", [POOLS, MONITORED, TLS, GKE], ids=["pools", "monitored", "tls", "gke"])
async def test_an_upgrade_and_the_way_back(server: ApiServer, release: Release, after: JsonObject) -> None:
    await release.install({})
    first = await list_objects(server)
    await release.upgrade(after)
    second = await list_objects(server)
    assert fresh(second) == names_of(after)
    for key in first.keys() & second.keys():
        if key[0] == "DaemonSet":
            assert first[key]["spec"]["selector"] == second[key]["spec"]["selector"], "it can never change"
        if key[0] == "ClusterRoleBinding":
            assert first[key]["roleRef"] == second[key]["roleRef"], "it can never change"
    await release.rollback()
    again = await list_objects(server)
    assert {key: item.get("spec") for key, item in again.items()} == {
        key: item.get("spec") for key, item in first.items()
    }


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ({}, {"settings": {"driver_name": "a.b"}}, "settings.driver_name: this release runs with dra.net"),
        (POOLS, {"settings": {"state_dir": "/x"}}, "settings.state_dir: this release runs with /var/lib/d"),
        (
            {"settings": {"kubelet_root": "/var/lib/k0s/kubelet"}},
            POOLS,
            "settings.kubelet_root: this release runs with /var/lib/k0s/kubelet",
        ),
        (
            POOLS,
            {"pools": [POOLS["pools"][0] | {"settings": {"state_dir": "/x"}}, POOLS["pools"][1]]},
            "this release runs with /var/lib/dranet (ConfigMap dranet-gpu), and a driver with /x does",
        ),
        (
            {"pools": [{"name": "gpu"}]},
            {"pools": [{"name": "all"}], "settings": {"driver_name": "a.b"}},
            "settings.driver_name: this release runs with dra.net (ConfigMap dranet-gpu)",
        ),
        ({}, {"nameOverride": "foo"}, "its objects would be named dranet-foo (foo): Helm would"),
        (POOLS, {"fullnameOverride": "net"}, "its objects would be named net (dranet): Helm would delete"),
        ({"fullnameOverride": "nic-default"}, {}, "this release has the ConfigMap nic-default (app.kuber"),
    ],
)  # fmt: skip
async def test_an_upgrade_that_would_forget_the_claims_in_use_is_refused(
    release: Release, before: JsonObject, after: JsonObject, says: str
) -> None:
    await release.install(before)
    with pytest.raises(helm.HelmError) as caught:
        await release.upgrade(after)
    assert says in str(caught.value)
    assert ", end the pods with claims, `helm uninstall`, then install" in str(caught.value)
    await release.upgrade(before | {"podLabels": {"team": "net"}})


async def test_a_place_written_in_another_way_is_no_change(release: Release) -> None:
    await release.install({})
    await release.upgrade(
        {"settings": {"state_dir": "/var/lib/dranet/", "kubelet_root": "/var/lib//kubelet"}}
    )


@pytest.mark.parametrize(("name", "namespace"), [("nics", NAMESPACE), ("nics", "nics"), ("dranet", "nics")])
async def test_a_second_release_of_one_driver_name_is_refused_and_told_of_the_first(
    release: Release, tmp_path: Path, name: str, namespace: str
) -> None:
    await release.install({})
    second = Release(tmp_path / "config", name, namespace)
    with pytest.raises(helm.HelmError) as caught:
        await second.install({})
    assert f"release dranet in namespace {NAMESPACE} serves dra.net already" in str(caught.value)
    await release.upgrade({"podLabels": {"team": "net"}})  # is nobody else's to itself
    if name != "dranet":
        other = {"settings": {"driver_name": "nic.example.com"}, "namespace": {"create": False}}
        await second.install(other, create_namespace=True)


async def test_the_namespace_may_be_a_part_of_the_release(server: ApiServer, release: Release) -> None:
    """With `--create-namespace`, as there is no release without a namespace to keep it in."""
    await release.install(OURS, create_namespace=True)
    labels = (await list_objects(server))["Namespace", NAMESPACE]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


async def test_uninstalled_means_gone(server: ApiServer, release: Release) -> None:
    before = (await list_objects(server)).keys()
    await release.install(MONITORED)
    await release.uninstall()
    assert (await list_objects(server)).keys() == before


async def test_kubectl_can_apply_the_plain_manifests(server: ApiServer, tmp_path: Path) -> None:
    """With the official client, file by file, in the order in which kustomize has them."""
    official = pytest.importorskip("kubernetes", reason="the official kubernetes client is not installed")
    server.write_kubeconfig(tmp_path / "config")
    folder = REPOSITORY / "deploy"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    documents = [document for name in listed for document in yaml.safe_load_all((folder / name).read_text())]

    def apply() -> None:
        configuration = official.client.Configuration()
        official.config.load_kube_config(str(tmp_path / "config"), client_configuration=configuration)
        with official.client.ApiClient(configuration) as api:
            client = official.dynamic.DynamicClient(api, cache_file=str(tmp_path / "cache"))
            for document in documents:
                resource = client.resources.get(api_version=document["apiVersion"], kind=document["kind"])
                client.server_side_apply(
                    resource,
                    body=document,
                    name=document["metadata"]["name"],
                    namespace=document["metadata"].get("namespace"),
                    field_manager="kubectl",
                )

    await asyncio.to_thread(apply)
    assert fresh(await list_objects(server)) == names_of(PLAIN)


async def test_files_in_the_order_of_their_names_make_all_of_it(
    server: ApiServer, kubectl: Path, tmp_path: Path
) -> None:
    """As `kubectl apply -f deploy` takes them. Each is applied before kubectl ends with what it thinks of the
    kustomization; what comes before its namespace would be left out, without a word."""
    server.write_kubeconfig(tmp_path / "config")
    deploy = str(REPOSITORY / "deploy")
    command = [str(kubectl), "--kubeconfig", str(tmp_path / "config"), "apply", "-f", deploy]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    said, _ = await process.communicate()
    assert fresh(await list_objects(server)) == names_of(PLAIN), said.decode()


async def test_what_the_page_has_people_type_works(server: ApiServer, kubectl: Path, tmp_path: Path) -> None:
    """The whole of `deploy`, a kustomization of one's own over it, and the way back, by kubectl itself."""
    server.write_kubeconfig(tmp_path / "config")
    shutil.copytree(REPOSITORY / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("image"))
    text = (REPOSITORY / "deploy" / "README.md").read_text()
    (block,) = [one for one in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "patches" in one]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kustomization.yaml").write_text(block)

    async def run(*arguments: str) -> None:
        command = [str(kubectl), "--kubeconfig", str(tmp_path / "config"), *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT, cwd=tmp_path)
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()

    await run("apply", "-k", "deploy")
    assert fresh(await list_objects(server)) == names_of(PLAIN)
    await run("apply", "-k", "mine")
    found = await list_objects(server)
    assert "health_taints: NoExecute" in found["ConfigMap", "dranet"]["data"]["settings.yaml"]
    pod = found["DaemonSet", "dranet"]["spec"]["template"]["spec"]
    images = {entry["image"] for entry in (*pod["containers"], *pod["initContainers"])}
    assert images == {"registry.example.com/dranet:0.1.0"}
    limit = 262144
    for item in found.values():
        assert sum(map(len, item["metadata"].get("annotations", {}).values())) < limit, "kubectl's own record"
    await run("delete", "-k", "deploy", "--ignore-not-found")
    assert fresh(await list_objects(server)) == set()
