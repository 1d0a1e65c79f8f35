"""``dranet pool``: the table, and exit codes for what would collide."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dranet.cli.main import main

POOL = r"""
compute: {pool: {rails: 8, subnets: ["10.{rail}.0.0/16"], nodes: {pattern: "gpu-node-(\\d+)"}, gateway: last}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ipam.yaml"
    path.write_text(POOL)
    return path


def test_the_table_has_a_row_for_each_rail_of_each_node(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pool", str(file), "--nodes", "gpu-node-[001-500]"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split() == ["POOL", "NODE", "RAIL", "SLOT", "ADDRESS", "GATEWAY"]
    assert lines[-1].split() == ["compute", "gpu-node-500", "7", "0", "10.7.1.244/16", "10.7.255.254"]
    assert len(lines) == 4001
    assert shown.err == "all 4000 addresses are different\n"


@pytest.mark.parametrize(
    ("text", "nodes", "expected"),
    [
        (POOL, "gpu-node-1,web-1", "compute: node web-1 does not match nodes.pattern"),
        (
            POOL,
            "gpu-node-1,gpu-node-01",
            "10.0.0.1: gpu-node-1 (pool compute, rail 0, slot 0) and gpu-node-01 (pool compute,",
        ),
        (POOL + POOL.replace("compute", "other"), "gpu-node-1", "(pool other, rail 7, slot 0) have it"),
        (POOL, "gpu-node-65534", "node number 65534 gets 10.0.255.254, which is the gateway"),
    ],
)
def test_what_collides_is_named_and_fails(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, nodes: str, expected: str
) -> None:
    file.write_text(text)
    assert main(["pool", str(file), "--nodes", nodes]) == 1
    assert expected in capsys.readouterr().err


def test_nodes_of_the_cluster_have_their_addresses(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(POOL.replace(r'pattern: "gpu-node-(\\d+)"', "addressIn: 192.0.2.0/24"))
    addresses = [{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": "x"}]
    node = {"metadata": {"name": "x"}, "status": {"addresses": addresses}}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"items": [node, None, {"metadata": 1}]})))
    assert main(["pool", str(file), "--nodes-from", "-"]) == 0
    assert "10.3.0.7/16" in capsys.readouterr().out
    assert main(["pool", str(file), "--nodes", "a=192.0.2.9"]) == 0
    assert "10.3.0.9/16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("a: {cni: {ipam: {type: host-local}}}", ["--nodes", "a"], "has no pool"),
        (POOL, [], "no nodes to number"),
        (POOL, ["--nodes", "a-[9-1]"], "--nodes a-[9-1]: [9-1] must count upwards"),
        (POOL, ["--nodes-from", "/nowhere"], "--nodes-from /nowhere: No such file"),
        ("a: {pool: {}}", ["--nodes", "a"], "a.pool.rails: is required"),
        ("a: {dhcpv6: {}}", ["--nodes", "a"], "the driver has no DHCPv6 client: run dhcpcd in the pod"),
    ],
)
def test_bad_input_is_told(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, arguments: list[str], expected: str
) -> None:
    file.write_text(text)
    assert main(["pool", str(file), *arguments]) == 2
    assert expected in capsys.readouterr().err
