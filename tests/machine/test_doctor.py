"""What the doctor reads of a stock kernel, beside ``lspci``: config space, RDMA, rails, tuning."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dranet.cli.doctor.examine import look_around
from dranet.desk.doctor.catalogue import run_checks
from dranet.desk.doctor.checks import ClusterFacts, Surroundings
from dranet.model.findings import Finding, Severity
from dranet.security.context import CAPABILITIES
from dranet.settings import Settings
from testbed.machine.hardware import MACHINE
from tests.machine import kernel_view

pytestmark = pytest.mark.machine

HCA = Path("/sys/kernel/vnode_hca")
RAILS = (MACHINE.function("igb0"), MACHINE.function("igb1"))


@pytest.fixture(scope="module")
def seen() -> Surroundings:
    return look()


def look() -> Surroundings:
    blind: list[Finding] = []
    found = look_around(Settings(node_name="virtual-node"), ClusterFacts(), [], None, blind)
    assert blind == []
    return found


def judge(seen: Surroundings) -> dict[str, list[Finding]]:
    findings: dict[str, list[Finding]] = {}
    for finding in run_checks(seen):
        findings.setdefault(finding.id, []).append(finding)
    return findings


def test_the_config_space_says_what_lspci_says(seen: Surroundings) -> None:
    records = re.split(r"\n(?=\S)", kernel_view.run("lspci", "-vv", "-D"))
    compared = 0
    for record in records:
        facts = seen.pci.get(record.partition(" ")[0])
        request = re.search(r"MaxReadReq (\d+) bytes", record)
        if facts is None or request is None:
            continue
        compared += 1
        assert facts.is_readable
        assert facts.max_read_request == int(request[1])
        assert facts.relaxed_ordering == ("RlxdOrd+" in record)
        assert (facts.acs_control is not None) == ("ACSCtl:" in record)
        kind = re.search(r"Express \(v\d\) (Root Port|Upstream Port|Downstream Port|Endpoint)", record)
        assert kind is None or facts.port == kind[1].lower()
    assert compared > 8


def test_acs_bits_are_seen_as_they_are_set_and_a_root_port_that_redirects_is_no_matter(
    seen: Surroundings,
) -> None:
    port = next(f.address for f in seen.host.pci if f.port == "root port" and f.acs_control is not None)
    before = kernel_view.run("setpci", "-s", port, "ECAP_ACS+0x6.w").strip()
    kernel_view.run("setpci", "-s", port, "ECAP_ACS+0x6.w=000c")
    try:
        again = look()
        assert again.pci[port].acs_control == 0x0C
        assert "acs-redirect" not in judge(again)
    finally:
        kernel_view.run("setpci", "-s", port, f"ECAP_ACS+0x6.w={before}")


def test_rdma_is_in_exclusive_mode_and_programs_find_its_nodes(seen: Surroundings) -> None:
    found = judge(seen)
    for id_ in ("rdma-shared-mode", "rdma-verbs-missing", "rdma-cm-missing"):
        assert [finding.severity for finding in found[id_]] == [Severity.OK], id_


def test_the_distributions_kernel_has_all_that_claims_may_ask_for(seen: Surroundings) -> None:
    assert [finding.severity for finding in judge(seen)["kernel-old"]] == [Severity.OK]
    for finding in judge(seen).get("kernel-options", []):
        assert finding.severity is Severity.OK, finding.seen


@contextmanager
def a_second_rail() -> Iterator[None]:
    """An RDMA device on the other physical function of the same model, too."""
    (HCA / "add").write_text(f"mlx5_8 {RAILS[1].address} eth")
    try:
        yield
    finally:
        (HCA / "del").write_text("mlx5_8")


def test_an_mtu_that_differs_along_the_rails_is_told_with_the_links() -> None:
    names = [next(Path(f"/sys/bus/pci/devices/{rail.address}/net").iterdir()).name for rail in RAILS]
    with a_second_rail():
        assert all(finding.severity is Severity.OK for finding in judge(look())["mtu-differs"])
        kernel_view.run("ip", "link", "set", "dev", names[1], "mtu", "4200")
        try:
            (finding,) = judge(look())["mtu-differs"]
        finally:
            kernel_view.run("ip", "link", "set", "dev", names[1], "mtu", "1500")
    assert finding.severity is Severity.WARNING
    assert f"4200: {names[1]}" in finding.seen
    assert f"1500: {names[0]}" in finding.seen


def test_the_command_says_of_the_machine_what_is_amiss_and_no_more() -> None:
    """Without a cluster and a runtime there are problems; of the hardware there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "dranet", "doctor", "-o", "json", "--kubeconfig", "/none"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    bad = {f["id"] for f in findings if f["severity"] in ("problem", "warning")}
    assert bad == {"api-server", "place", "driver-silent"}


_LOOK = """
import json
from dranet.kernel.discovery.scan import NodeScanner
from dranet.kernel.host_checks import find_root, read_host_facts
from dranet.settings import Settings
settings = Settings()
root = find_root(settings.procfs_root)
node = NodeScanner(settings.sysfs_root, settings.procfs_root).read()
host = read_host_facts(settings.sysfs_root, settings.procfs_root, root, node)
print(json.dumps({"root": str(root), "unseen": [f"{unseen.what}: {unseen.why}" for unseen in host.unseen]}))
"""


def look_as_container(capabilities: Iterable[str]) -> dict[str, object]:
    """What root sees that has no more rights than these, and a file system of its own."""
    names = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)])
    rights = ("setpriv", f"--bounding-set={names}", "--inh-caps=-all")
    told = kernel_view.run("unshare", "--mount", *rights, sys.executable, "-c", _LOOK)
    return dict(json.loads(told))


def test_with_the_rights_of_the_daemonset_the_doctor_sees_all_of_the_node_and_names_what_it_does_not() -> (
    None
):
    ours = {capability.name for capability in CAPABILITIES}
    assert look_as_container(ours) == {"root": "/proc/1/root", "unseen": []}
    files = (
        "the node's files below /etc and /run, and the kubelet's: "
        "a container sees those of the node with CAP_SYS_PTRACE, or through --host-root"
    )
    assert look_as_container(ours - {"SYS_PTRACE"}) == {"root": "None", "unseen": [files]}
    config = "PCI config space (ACS, read requests): takes root with CAP_SYS_ADMIN"
    assert look_as_container(ours - {"SYS_ADMIN"}) == {"root": "/proc/1/root", "unseen": [config]}
