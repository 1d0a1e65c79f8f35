"""The DaemonSet: what the driver may do on its node, how it is looked at, how it ends."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dranet.cli.main import NODE_COMMANDS, parse_arguments
from dranet.driver.app import END_SECONDS, LAST_LOG_SECONDS
from dranet.security import context as security
from dranet.security.seccomp import SECCOMP_NAME
from dranet.settings import load_settings
from dranet.view.policy import read_rules
from tests.tools.manifests.chart.rendering import (
    JsonObject,
    container_of,
    find,
    of_kind,
    pod_of,
    render,
    render_texts,
    settings_of,
)
from tests.tools.manifests.chart.value_sets import OWN_PROFILES, POOLS, VALUE_SETS
from tools.manifests import pod_security
from tools.manifests.chart_files import READY_FILE


@pytest.fixture(scope="module")
def daemonset() -> JsonObject:
    return find(render(), "DaemonSet")


@pytest.fixture
def pod(daemonset: JsonObject) -> JsonObject:
    return pod_of(daemonset)


@pytest.fixture
def container(daemonset: JsonObject) -> JsonObject:
    return container_of(daemonset)


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_no_value_makes_it_privileged(values: JsonObject) -> None:
    for daemonset in of_kind(render(values), "DaemonSet"):
        pod = pod_of(daemonset)
        assert (pod["hostNetwork"], pod["hostPID"], pod["hostIPC"]) == (True, False, False)
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            context = container["securityContext"]
            assert context["privileged"] is False
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]


def test_its_rights_are_those_that_are_proven(container: JsonObject) -> None:
    """``tests/runtime`` runs the driver under these, and takes each away in turn."""
    assert container["securityContext"] == pod_security.build_security_context()


def test_it_sees_the_folders_that_are_proven_and_its_own_two(pod: JsonObject, container: JsonObject) -> None:
    own = [
        {"name": "config", "mountPath": "/etc/dranet", "readOnly": True},
        {"name": "pod", "mountPath": "/run/dranet-pod"},
    ]
    assert by_name(container["volumeMounts"]) == by_name([*own, *pod_security.build_volume_mounts()])
    host = [volume for volume in pod["volumes"] if "hostPath" in volume]
    assert by_name(host) == by_name(pod_security.build_volumes())


def by_name(entries: list[Any]) -> dict[str, Any]:
    found = {entry["name"]: entry for entry in entries}
    assert len(found) == len(entries)
    return found


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_each_volume_is_mounted_and_each_mount_has_a_volume(values: JsonObject) -> None:
    for daemonset in of_kind(render(values), "DaemonSet"):
        pod = pod_of(daemonset)
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
        assert mounted == set(by_name(pod["volumes"]))
        for container in containers:
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(paths) == len(set(paths)), "a folder is mounted over another"


def test_its_seccomp_profile_is_written_by_a_container_without_rights(pod: JsonObject) -> None:
    (init,) = pod["initContainers"]
    assert init["securityContext"] == pod_security.build_init_context()
    assert init["volumeMounts"] == [{"name": "seccomp", "mountPath": "/var/lib/kubelet/seccomp"}]
    assert init["command"] == ["dranet", "seccomp", "--write", "/var/lib/kubelet/seccomp"]
    assert pod["containers"][0]["image"] == init["image"]


def test_other_profiles_need_no_init_container() -> None:
    daemonset = find(render(OWN_PROFILES), "DaemonSet")
    assert "initContainers" not in pod_of(daemonset)
    context = container_of(daemonset)["securityContext"]
    assert context["seccompProfile"] == {"type": "Localhost", "localhostProfile": "mine.json"}
    assert context["appArmorProfile"] == {"type": "Localhost", "localhostProfile": "dranet"}
    for kind in ("RuntimeDefault", "Unconfined"):
        chosen = find(render({"securityContext": {"seccomp": {"type": kind}}}), "DaemonSet")
        assert container_of(chosen)["securityContext"]["seccompProfile"] == {"type": kind}
        assert "initContainers" not in pod_of(chosen)


def test_the_profile_s_name_changes_with_its_content(container: JsonObject) -> None:
    """Instances of two versions overlap on a node, each under its own."""
    assert container["securityContext"]["seccompProfile"]["localhostProfile"] == SECCOMP_NAME


def test_two_instances_can_stand_side_by_side(daemonset: JsonObject, container: JsonObject) -> None:
    assert daemonset["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    assert "ports" not in container, "on the host's network they would be the node's"
    variables = {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container["env"]}
    assert variables == {
        "DRANET_NODE_NAME": "spec.nodeName",
        "DRANET_POD_UID": "metadata.uid",
        "DRANET_NODE_ADDRESSES": "status.hostIPs",
    }


def test_only_the_pod_itself_says_that_it_is_ready(container: JsonObject) -> None:
    assert container["readinessProbe"]["exec"]["command"] == ["dranet", "ready", READY_FILE]
    assert settings_of(find(render(), "ConfigMap"))["ready_file"] == READY_FILE


def test_the_probes_that_another_instance_may_answer_only_end_what_hangs(container: JsonObject) -> None:
    for name in ("startupProbe", "livenessProbe"):
        assert container[name]["httpGet"] == {"path": "/healthz", "port": 9177}
    patience = {
        name: container[name]["periodSeconds"] * container[name]["failureThreshold"]
        for name in ("startupProbe", "livenessProbe")
    }
    assert patience == {"startupProbe": 120, "livenessProbe": 60}


@pytest.mark.parametrize("drain", [0, 0.5, 10, 45.2, 3600])
def test_the_grace_period_fits_the_drain(drain: float) -> None:
    pod = pod_of(find(render({"settings": {"drain_seconds": drain}}), "DaemonSet"))
    assert pod["terminationGracePeriodSeconds"] == math.ceil(drain) + 35
    assert pod["terminationGracePeriodSeconds"] > drain + 20 > drain + END_SECONDS + LAST_LOG_SECONDS


def test_it_stays_where_others_have_to_go(pod: JsonObject) -> None:
    assert pod["priorityClassName"] == "system-node-critical"
    assert {entry["effect"] for entry in pod["tolerations"] if entry["operator"] == "Exists"} == {
        "NoSchedule",
        "NoExecute",
    }
    assert all("key" not in entry for entry in pod["tolerations"])
    assert pod["dnsPolicy"] == "Default"


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_the_driver_takes_the_settings_that_it_is_given(values: JsonObject, tmp_path: Path) -> None:
    for number, config_map in enumerate(of_kind(render(values), "ConfigMap")):
        if "settings.yaml" in config_map["data"]:
            file = tmp_path / f"{number}.yaml"
            file.write_text(config_map["data"]["settings.yaml"])
            read = load_settings({}, {}, file)
            assert str(read.procfs_root) == security.HOST_PROC


def test_the_driver_takes_the_rules_for_attributes(tmp_path: Path) -> None:
    gpu, storage = of_kind(render(POOLS), "ConfigMap")
    file = tmp_path / "attributes.yaml"
    counts = []
    for config_map in (gpu, storage):
        file.write_text(config_map["data"]["attributes.yaml"])
        counts.append(len(read_rules(file, "dra.net")[0].rules))
    assert counts == [1, 2]
    assert read_rules(file, "dra.net")[0].rules[1].values == {"dra.net/rail": 1000000}


def test_every_command_that_the_pod_runs_is_one_of_the_driver(pod: JsonObject, container: JsonObject) -> None:
    """The image has no other programs."""
    commands = [entry["command"] for entry in (*pod["containers"], *pod["initContainers"])]
    test = find(render(), "Pod", "test")["spec"]["containers"][0]["command"]
    for program, *arguments in [*commands, test, container["readinessProbe"]["exec"]["command"]]:
        assert program == "dranet"
        assert parse_arguments(arguments).command == arguments[0]


def test_what_the_notes_have_people_type_is_a_command() -> None:
    typed = re.findall(r"(?:-- |`)dranet ([a-z][^>#|`\n]*)", render_texts()["NOTES.txt"])
    assert {"doctor", "claim new"} <= set(typed)
    for command in typed:
        assert parse_arguments(shlex.split(command)).command == command.split()[0]


def test_what_the_notes_run_in_the_driver_pod_is_in_the_image() -> None:
    run_in_the_pod = re.findall(r"-- dranet (\w+)", render_texts()["NOTES.txt"])
    assert run_in_the_pod
    assert set(run_in_the_pod) <= set(NODE_COMMANDS)


def test_the_file_of_lldpd_is_mounted_where_it_is_used() -> None:
    for settings, folder in (({}, "/run/dranet-lldp"), ({"lldpdFile": "/run/a/b.json"}, "/run/a")):
        daemonset = find(render({"settings": {"lldp": "lldpd"} | settings}), "DaemonSet")
        (mount,) = (one for one in container_of(daemonset)["volumeMounts"] if one["name"] == "lldpd")
        assert mount == {"name": "lldpd", "mountPath": folder, "readOnly": True}
