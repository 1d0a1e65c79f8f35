"""What each lane needs, what it refuses by name, and what it would tell the programs that are not here."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dranet.cluster.kubeconfig import read_kubeconfig
from dranet.errors import DranetError
from e2e import kind
from e2e.access import Access, LaneUnavailable
from e2e.cluster import config, controlplane
from e2e.cluster.config import KubeletPlan, Plan
from e2e.cluster.etcd import check_health, find_etcd
from e2e.cluster.programs import KUBERNETES, Programs, find_programs
from e2e.command import CLUSTER_REACH, STAND_IN_REACH
from e2e.hands import parse_devices
from e2e.installation import build_installation
from e2e.objects import MARK, NAMESPACE, fit, path_of
from e2e.run import Book
from e2e.table import Reach, describe_table
from testbed.debian.packages import Unavailable
from testbed.isolation import WORK_DIR
from testbed.node.iproute import run_ip

_PAGE = Path(__file__).parents[2] / "docs" / "dev" / "e2e-scenarios.md"


def write_programs(folder: Path, **versions: str) -> Path:
    """Programs that say a version and nothing else."""
    for name in KUBERNETES:
        version = versions.get(name.replace("-", "_"), versions.get("others", "1.36.1"))
        path = folder / name
        path.write_text(f"#!/bin/sh\necho 'Kubernetes v{version}'\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def make_plan(folder: Path) -> Plan:
    return Plan(folder)


def make_kubelet(plan: Plan) -> KubeletPlan:
    return KubeletPlan(plan, "node-1", plan.folder / "c.sock", "dranet-testbed-1")


def play(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, docker: str = "exit 0"
) -> Callable[[], list[str]]:
    """Programs that note how they were called, and do what the script says. Returns the notes."""
    notes = folder / "calls"
    for name, script in (("kind", kind), ("docker", docker)):
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{notes}\n{script}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return lambda: notes.read_text().splitlines()


class TestPrograms:
    @pytest.mark.process
    def test_the_programs_of_a_folder_are_found_with_their_version(self, tmp_path: Path) -> None:
        assert find_programs(write_programs(tmp_path)).version == "1.36.1"

    def test_what_is_missing_is_named(self, tmp_path: Path) -> None:
        (write_programs(tmp_path) / "kubelet").unlink()
        with pytest.raises(LaneUnavailable, match=r"has no kubelet$"):
            find_programs(tmp_path)

    @pytest.mark.process
    def test_an_older_kubernetes_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(LaneUnavailable, match=r"has Kubernetes 1\.33\.9; the driver needs 1\.34"):
            find_programs(write_programs(tmp_path, others="1.33.9"))

    @pytest.mark.process
    def test_programs_of_different_versions_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(LaneUnavailable, match=r"different versions: .*kubelet 1\.35\.0"):
            find_programs(write_programs(tmp_path, kubelet="1.35.0"))

    @pytest.mark.process
    def test_a_program_that_does_not_run_is_named(self, tmp_path: Path) -> None:
        (write_programs(tmp_path) / "kube-scheduler").write_text("#!/bin/nothing\n")
        with pytest.raises(LaneUnavailable, match="kube-scheduler --version"):
            find_programs(tmp_path)

    @pytest.mark.process
    async def test_a_program_that_ends_by_itself_is_told_with_its_last_words(self, tmp_path: Path) -> None:
        program = tmp_path / "kubelet"
        program.write_text("#!/bin/sh\necho no such flag: $1; exit 1\n")
        program.chmod(0o755)

        async def never() -> str:
            return "not ready"

        async with Programs(tmp_path / "logs") as programs:
            await programs.start(program, ["--nonsense"])
            with pytest.raises(Exception, match="kubelet ended by itself: no such flag: --nonsense"):
                await programs.wait("kubelet", never, 30)


USERS = config.users_of(["node-1"])


class TestCluster:
    @pytest.mark.process
    @pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
    def test_certificate_keys_tokens_and_kubeconfigs_fit_together(self, tmp_path: Path) -> None:
        plan = make_plan(tmp_path)
        controlplane.write_files(plan, ["node-1"])
        context = ssl.create_default_context(cafile=plan.certificate)
        (authority,) = context.get_ca_certs()
        names = str(authority["subjectAltName"])
        assert all(name in names for name in (config.SERVICE_ADDRESS, config.NODE_ADDRESS, "'kubernetes'"))
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(plan.certificate, plan.key)
        rows = [line.split(",") for line in plan.tokens.read_text().splitlines()]
        assert len(rows) == len({row[0] for row in rows}) == len(USERS)
        for user in USERS:
            access = read_kubeconfig(plan.kubeconfig(user))
            assert access.url == f"https://{config.SERVICE_ADDRESS}:443"
            assert access.token is not None
            assert access.token.get_token() in {row[0] for row in rows}

    def test_everybody_is_told_of_files_that_are_written(self, tmp_path: Path) -> None:
        plan = make_plan(tmp_path)
        every = [
            *config.apiserver_flags(plan),
            *config.controller_manager_flags(plan),
            *config.scheduler_flags(plan),
            *config.kubelet_flags(make_kubelet(plan)),
        ]
        written = {plan.tokens, plan.certificate, plan.key, plan.accounts_key, make_kubelet(plan).config}
        written |= {plan.kubeconfig(user) for user in USERS}
        named = {
            Path(value)
            for flag in every
            for name, _, value in [flag.partition("=")]
            if name.endswith(("file", "kubeconfig", "--config"))
        }
        assert named <= written

    def test_the_kubelet_is_node_to_the_authorizer_and_finds_the_runtime(self, tmp_path: Path) -> None:
        plan = make_plan(tmp_path)
        tokens = config.build_tokens({user: user for user in USERS}, USERS)
        assert 'kubelet-node-1,system:node:node-1,system:node:node-1,"system:nodes"' in tokens.splitlines()
        kubelet = config.build_kubelet_config(make_kubelet(plan))
        assert kubelet["containerRuntimeEndpoint"] == f"unix://{make_kubelet(plan).runtime_socket}"
        assert "--hostname-override=node-1" in config.kubelet_flags(make_kubelet(plan))
        assert kubelet.get("cgroupsPerQOS", True), (
            "else no pod has a cgroup with its uid, and hands find none"
        )
        assert kubelet["cgroupRoot"] == f"/{make_kubelet(plan).cgroup}", "which is removed at the end"
        assert kubelet["resolvConf"] == "", "the machine's own may be a link into /run"
        assert Path(kubelet["volumePluginDir"]).is_relative_to(plan.folder)
        assert kubelet["failCgroupV1"] is False

    @pytest.mark.process
    @pytest.mark.private_tree
    def test_a_real_etcd_boots_and_is_well(self) -> None:
        async def story() -> None:
            async with Programs(WORK_DIR / "logs") as programs:
                await programs.start(etcd, config.etcd_flags(make_plan(WORK_DIR)))
                await programs.wait("etcd", check_health, 60)
                assert await check_health() == ""

        etcd = Path(os.environ["E2E_TEST_ETCD"])
        run_ip("link", "set", "lo", "up")
        asyncio.run(story())

    @pytest.fixture(autouse=True)
    def _etcd_here(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before the private tree, which has no way to the outside."""
        if request.node.get_closest_marker("private_tree"):
            try:
                monkeypatch.setenv("E2E_TEST_ETCD", str(find_etcd(Path("/nonexistent"))))
            except Unavailable as error:
                pytest.skip(str(error))


class TestKind:
    def test_without_its_programs_the_lane_says_which(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nonexistent")
        with pytest.raises(LaneUnavailable, match="no docker and no kind on PATH"):
            kind.check_programs()

    @pytest.mark.process
    def test_a_cluster_that_is_there_already_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = play(tmp_path, monkeypatch, kind="[ $1 = get ] && echo dranet-e2e")
        with pytest.raises(LaneUnavailable, match="a kind cluster dranet-e2e is there already"):
            kind.run((), Book(tmp_path / "book"))
        assert not any("delete" in call for call in calls())

    @pytest.mark.process
    def test_a_cluster_that_does_not_come_up_is_taken_away_and_the_cause_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("E2E_IMAGE", "registry/dranet:1")
        calls = play(tmp_path, monkeypatch, kind="[ $1 = create ] && { echo no room >&2; exit 1; } || exit 0")
        with pytest.raises(LaneUnavailable, match="kind create cluster: no room"):
            kind.run((), Book(tmp_path / "book"))
        assert calls()[-1] == "kind delete cluster --name dranet-e2e"

    @pytest.mark.process
    def test_an_image_that_docker_has_is_loaded_by_its_own_name_and_nothing_is_left_in_docker(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("E2E_IMAGE", "registry/dranet:1")
        calls = play(tmp_path, monkeypatch, kind="exit 0")
        with pytest.raises(DranetError):  # nobody wrote a kubeconfig
            kind.run((), Book(tmp_path / "book"))
        made = [call for call in calls() if call.startswith("docker")]
        assert "kind load docker-image registry/dranet:1 --name dranet-e2e" in calls()
        assert all(call.split()[1] in ("version", "image", "exec") for call in made), made

    @pytest.mark.process
    def test_an_image_that_docker_does_not_have_is_said_before_a_cluster_is_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("E2E_IMAGE", "registry/dranet:1")
        missing = "[ $1 = image ] && { echo No such image >&2; exit 1; } || exit 0"
        calls = play(tmp_path, monkeypatch, kind="exit 0", docker=missing)
        with pytest.raises(LaneUnavailable, match="docker image inspect: No such image"):
            kind.run((), Book(tmp_path / "book"))
        assert not any("create" in call for call in calls())

    def test_the_configuration_is_of_the_published_form(self) -> None:
        built = kind.build_config()
        assert (built["apiVersion"], built["kind"]) == ("kind.x-k8s.io/v1alpha4", "Cluster")
        assert built.keys() <= {"kind", "apiVersion", "name", "nodes"}
        assert f"{built['name']}-control-plane" == kind.NODE


class TestInstallation:
    def build(self, **fields: Any) -> dict[str, dict[str, Any]]:
        access = Access("a lane", Path("kubeconfig"), "node-1", "registry/dranet:1", "busybox", **fields)
        items = build_installation(access, {"health_taints": "NoExecute"})
        assert all(item["metadata"]["labels"][MARK] == "true" for item in items)
        return {item["kind"]: item for item in items}

    def test_image_and_settings_go_over_those_of_the_manifests(self) -> None:
        items = self.build(settings={"sysfs_root": "/made-up"})
        spec = items["DaemonSet"]["spec"]["template"]["spec"]
        images = {container["image"] for container in (*spec["initContainers"], *spec["containers"])}
        assert images == {"registry/dranet:1"}
        settings = yaml.safe_load(items["ConfigMap"]["data"]["settings.yaml"])
        assert settings["sysfs_root"] == "/made-up"
        assert settings["health_taints"] == "NoExecute"
        assert settings["ready_file"] == "/run/dranet-pod/ready"

    def test_other_settings_are_another_template_so_that_they_are_rolled_out(self) -> None:
        one, two = (self.build(settings={"sysfs_root": root}) for root in ("/one", "/two"))
        templates = [items["DaemonSet"]["spec"]["template"]["metadata"] for items in (one, two)]
        assert templates[0] != templates[1]

    def test_made_up_hardware_is_mounted_where_the_real_one_would_be(self) -> None:
        items = self.build(host_paths={"/proc": "/made-up/proc"}, mounts=("/made-up/sys",))
        spec = items["DaemonSet"]["spec"]["template"]["spec"]
        places = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
        mounts = {
            mount["mountPath"]: places[mount["name"]] for mount in spec["containers"][0]["volumeMounts"]
        }
        assert mounts["/host/proc"] == "/made-up/proc"
        assert mounts["/made-up/sys"] == "/made-up/sys"


class TestObjects:
    def test_a_scenarios_pod_is_made_fit_for_a_real_cluster(self) -> None:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "first"},
            "spec": {"containers": [{"name": "main", "image": "busybox"}]},
        }
        fitted = fit(pod, "registry/busybox:1")
        (container,) = fitted["spec"]["containers"]
        assert path_of(fitted) == f"/api/v1/namespaces/{NAMESPACE}/pods/first"
        assert (container["image"], container["imagePullPolicy"]) == ("registry/busybox:1", "IfNotPresent")
        assert fitted["spec"]["terminationGracePeriodSeconds"] == 1
        assert "namespace" not in pod["metadata"], "the scenario's own object stays as it is"

    def test_device_nodes_are_read_as_stat_prints_them(self) -> None:
        text = "/proc/7/root/dev/null 1 3\n/proc/7/root/dev/nvidia0 c3 0\n"
        assert parse_devices(text, "/proc/7/root") == {"/dev/null": "1:3", "/dev/nvidia0": "195:0"}


def test_the_page_has_the_table_of_what_runs_where() -> None:
    lanes = {
        "cluster": CLUSTER_REACH,
        "stand-in": STAND_IN_REACH,
        "kind": Reach(has_hands=True, has_layout=False),
        "kubeconfig": Reach(has_hands=False, has_layout=False),
    }
    assert describe_table(lanes) in _PAGE.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("kind") is None, reason="kind is not installed")
def test_kind_itself_reads_the_configuration(tmp_path: Path) -> None:
    """Without Docker it comes as far as asking for it, which is after the configuration was read."""
    file = tmp_path / "kind.yaml"
    file.write_text(yaml.safe_dump({**kind.build_config(), "nonsense": 1}))
    refused = subprocess.run(["kind", "create", "cluster", "--config", file], capture_output=True, text=True)
    assert "nonsense" in refused.stderr, refused.stderr
