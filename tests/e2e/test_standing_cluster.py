"""``make cluster-up``, and the README's installation on it word for word: a real cluster that stays."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import build
from e2e.cluster.standing import Place, is_up

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="a real containerd needs root"),
    pytest.mark.skipif(
        not all(map(build.find_built, (build.kubernetes(build.known_versions()[-1]), build.HELM))),
        reason="`make cluster` has not built Kubernetes' programs",
    ),
]


def find_block(heading: str) -> str:
    """The first block of commands in a section of the README."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(next(text for language, text in blocks if not language))


RANKS = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: rail0}
spec:
  spec:
    devices:
      requests:
      - name: nic
        exactly:
          deviceClassName: dranet-nic
          selectors:
          - cel: {expression: 'device.attributes["dra.net"].ifName == "enp24s0np0"'}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: ranks}
spec:
  serviceName: ranks
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: ranks}}
  template:
    metadata: {labels: {app: ranks}}
    spec:
      terminationGracePeriodSeconds: 0
      resourceClaims: [{name: nic, resourceClaimTemplateName: rail0}]
      containers:
      - name: rank
        image: busybox:1.37
        command: [sleep, infinity]
        resources: {claims: [{name: nic}]}
"""
"""Each node has one NIC of this name, so the pods are on different nodes."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment that `make cluster-up` says to use, in a checkout of its own for its files."""
    place = Place(REPOSITORY / ".cache" / "cluster")
    if is_up(place):
        pytest.fail("a cluster is up already; make cluster-down ends it")
    said = run_shell("make cluster-up HARDWARE=dgx-h100 NODES=2", dict(os.environ))
    try:
        exported = re.search(r"export (KUBECONFIG=\S+) PATH=(\S+):\$PATH", said)
        assert exported, said
        variable, path = exported.groups()
        folder = tmp_path_factory.mktemp("user")
        (folder / "ranks.yaml").write_text(RANKS)
        yield {
            **os.environ,
            "KUBECONFIG": variable.partition("=")[2],
            "PATH": f"{path}:{os.environ['PATH']}",
            "FOLDER": str(folder),
        }
    finally:
        run_shell("make cluster-down", dict(os.environ))
    assert not is_up(place)


def run_shell(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euxc", script], cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_readmes_installation_ends_with_an_aligned_pod(shell: dict[str, str]) -> None:
    install, use = find_block("Install"), find_block("Claim a NIC next to a GPU")
    published = run_shell(install, shell)
    assert 'daemon set "dranet" successfully rolled out' in published
    seen = run_shell(use, shell)
    assert re.search(r"net1@\S+: <BROADCAST,MULTICAST,UP,LOWER_UP\b", seen), seen
    assert "PIX to gpu-" in seen
    assert "testbed-node" in run_shell("kubectl dranet nodes", shell)
    logs = run_shell("kubectl -n dranet-system logs daemonset/dranet", shell)
    assert "registered with the kubelet as dra.net" in logs
    run_shell("kubectl delete -f examples/aligned-gpu-and-nic.yaml", shell)


def test_pods_on_two_nodes_reach_each_other_through_their_nics(shell: dict[str, str]) -> None:
    """On the driver of the test before."""
    run_shell("kubectl apply -f $FOLDER/ranks.yaml", shell)
    run_shell("kubectl rollout status statefulset/ranks --timeout=90s", shell)
    nodes = run_shell("kubectl get pods -l app=ranks -o jsonpath='{.items[*].spec.nodeName}'", shell)
    assert sorted(nodes.split()) == ["testbed-node", "testbed-node-2"]
    address = run_shell("kubectl exec ranks-1 -- ip -4 -o address show enp24s0np0", shell).split()[3]
    said = run_shell(
        f"kubectl exec ranks-0 -- ping -c 1 -W 5 -I enp24s0np0 {address.partition('/')[0]}", shell
    )
    assert "1 packets received" in said
    run_shell("kubectl delete -f $FOLDER/ranks.yaml; helm uninstall dranet -n dranet-system --wait", shell)
