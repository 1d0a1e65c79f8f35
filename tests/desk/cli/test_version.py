"""``dranet version``: this program and the drivers of a cluster."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import dranet
from dranet.cli.main import main
from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.transport import access_from_url
from dranet.desk.cli.object_cluster import DRIVER_PODS
from dranet.desk.cli.version import find_commit, group_pods, warn_of_skew
from testbed.apiserver.server import ApiServer

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[3]


def pod(name: str, node: str, version: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {**DRIVER_PODS, "app.kubernetes.io/version": version}},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "dranet", "image": f"registry.example/dranet:{version}"}],
        },
    }


PODS = [pod("a", "node-2", "0.1.0"), pod("b", "node-1", "0.1.0"), pod("c", "node-3", "0.0.9")]


def test_nodes_are_grouped_by_version_the_most_first() -> None:
    assert group_pods(PODS) == [
        {"version": "0.1.0", "image": "registry.example/dranet:0.1.0", "nodes": ["node-1", "node-2"]},
        {"version": "0.0.9", "image": "registry.example/dranet:0.0.9", "nodes": ["node-3"]},
    ]


def test_each_kind_of_skew_is_a_warning() -> None:
    def warnings(client: str, *drivers: str) -> list[str]:
        return list(
            warn_of_skew({"client": {"version": client}, "drivers": [{"version": one} for one in drivers]})
        )

    assert warnings("0.1.0", "0.1.0") == warnings("0.1.0") == []
    (skew,) = warnings("0.2.0", "0.1.0")
    assert skew.startswith("this program is 0.2.0, drivers are 0.1.0")
    (among, _) = warnings("0.1.0", "0.1.0", "0.0.9")
    assert among == "the drivers have 2 versions (0.0.9, 0.1.0): has an update stopped?"


def test_the_commit_of_a_checkout_is_its_head() -> None:
    head = subprocess.run(
        ["git", "-C", REPOSITORY, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not head:
        pytest.skip("the tests are not in a checkout of git")
    assert find_commit() == head


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_for_programs_it_is_a_document(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--client", "-o", form]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    assert document.keys() == {"client"}
    assert document["client"]["version"] == dranet.__version__


def test_without_a_cluster_the_client_comes_first_and_then_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["version"]) == 2
    said = capsys.readouterr()
    assert said.out.startswith(f"client   {dranet.__version__}")
    assert "the versions of the drivers are not known: no cluster to ask" in said.err
    assert "(dranet version --client does not ask a cluster)" in said.err


def test_the_chart_gives_its_pods_the_labels() -> None:
    helpers = (REPOSITORY / "charts/dranet/templates/_helpers.tpl").read_text()
    for name, value in DRIVER_PODS.items():
        assert f"{name}: {value}" in helpers


def test_the_drivers_of_a_cluster_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = tmp_path / "kubeconfig"

    async def serve() -> tuple[int, int]:
        async with ApiServer() as server:
            async with ApiClient(access_from_url(server.url)) as admin:
                await admin.create(paths.NAMESPACES, {"metadata": {"name": "dranet-system"}})
                for body in (*PODS, {**pod("other", "node-9", "9"), "metadata": {"name": "other"}}):
                    await admin.create(paths.pods("dranet-system"), body)
            server.write_kubeconfig(kubeconfig)
            asked = ["version", "--kubeconfig", str(kubeconfig)]
            return await asyncio.to_thread(main, asked), await asyncio.to_thread(main, [*asked, "-o", "json"])

    assert asyncio.run(serve()) == (0, 0)
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[1:3] == [
        "drivers  2 nodes: 0.1.0  registry.example/dranet:0.1.0",
        "drivers  1 node: 0.0.9  registry.example/dranet:0.0.9",
    ]
    assert json.loads("\n".join(lines[3:]))["drivers"][0]["nodes"] == ["node-1", "node-2"]
    assert said.err.count("warning: the drivers have 2 versions") == 2
