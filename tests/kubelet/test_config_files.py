"""How the kubelet was set up, from its disk: configuration, states, and what device plugins registered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dranet.cli.doctor.node_config import read_device_plugins, read_kubelet_config
from dranet.kernel.sysfs.files import PseudoFiles

CONFIG = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
memoryManagerPolicy: Static
featureGates:
  DynamicResourceAllocation: false
  Odd: 3
"""


def files(root: Path, **contents: str) -> PseudoFiles:
    for name, text in contents.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return PseudoFiles(root, [])


def test_the_configuration_of_kubeadm_says_policies_and_gates(tmp_path: Path) -> None:
    found = read_kubelet_config(None, files(tmp_path, **{"config.yaml": CONFIG}))
    assert found is not None
    assert (found.topology_policy, found.topology_scope) == ("single-numa-node", "pod")
    assert (found.cpu_policy, found.memory_policy) == ("none", "Static")
    assert found.feature_gates == (("DynamicResourceAllocation", False),)


def test_a_managed_cluster_has_it_elsewhere_and_as_json(tmp_path: Path) -> None:
    document = {"kind": "KubeletConfiguration", "cpuManagerPolicy": "static"}
    root = files(tmp_path / "root", **{"etc__kubernetes__kubelet__config.json": json.dumps(document)})
    found = read_kubelet_config(root, files(tmp_path / "kubelet"))
    assert found is not None
    assert (found.path, found.cpu_policy) == ("/etc/kubernetes/kubelet/config.json", "static")


def test_the_states_say_what_is_at_work_where_no_configuration_is_in_sight(tmp_path: Path) -> None:
    states = {
        "cpu_manager_state": '{"policyName":"static","checksum":1}',
        "memory_manager_state": '{"policyName":"Static"}',
    }
    found = read_kubelet_config(None, files(tmp_path, **states))
    assert found is not None
    assert (found.cpu_policy, found.memory_policy, found.topology_policy) == ("static", "Static", "")


@pytest.mark.parametrize("text", ["", "- 1", "{", "kind: Pod", "a: [", "{" * 5000, "a: 2026-99-99"])
def test_what_is_no_configuration_says_nothing(tmp_path: Path, text: str) -> None:
    odd = files(tmp_path, **{"config.yaml": text, "cpu_manager_state": "[]", "memory_manager_state": text})
    assert read_kubelet_config(odd, odd) is None


def test_device_plugins_and_their_devices_are_in_the_kubelets_checkpoint(tmp_path: Path) -> None:
    data = {"RegisteredDevices": {"x/sriov": ["0000:3b:02.1", "0000:3b:02.0", 3], "x/odd": None}}
    checkpoint = {"device-plugins__kubelet_internal_checkpoint": json.dumps({"Data": data, "Checksum": 1})}
    found = read_device_plugins(files(tmp_path, **checkpoint))
    assert found == (("x/odd", ()), ("x/sriov", ("0000:3b:02.0", "0000:3b:02.1")))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"Data": 1}', '{"Data": {"RegisteredDevices": []}}'])
def test_a_checkpoint_of_any_shape_does_no_harm(tmp_path: Path, text: str) -> None:
    assert read_device_plugins(files(tmp_path, **{"device-plugins__kubelet_internal_checkpoint": text})) == ()
