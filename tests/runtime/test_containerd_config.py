"""The configuration that keeps a test's containerd apart from the host's."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from testbed.containerd.config import Layout, render_cni_conflist, render_containerd_config

WORK = Path("/run/t/ctd")
LAYOUT = Layout(WORK, Path('/cache/"odd" bin'), Path("/run/t/nri.sock"), Path("/run/t/cdi"), "cg")


def walk_strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for entry in value.values() for text in walk_strings(entry)]
    if isinstance(value, list):
        return [text for entry in value for text in walk_strings(entry)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize(
    ("version", "config_version", "cri"),
    [("1.7.24", 2, "io.containerd.grpc.v1.cri"), ("2.1.9", 3, "io.containerd.cri.v1.runtime")],
)
def test_each_generation_gets_its_own_format(version: str, config_version: int, cri: str) -> None:
    config = tomllib.loads(render_containerd_config(LAYOUT, version))
    plugins = config["plugins"]
    assert config["version"] == config_version
    assert plugins[cri]["enable_cdi"] is True
    assert plugins[cri]["cdi_spec_dirs"] == ["/run/t/cdi"]
    assert plugins[cri]["restrict_oom_score_adj"] is True
    assert plugins["io.containerd.nri.v1.nri"]["disable"] is False
    assert plugins["io.containerd.nri.v1.nri"]["socket_path"] == "/run/t/nri.sock"
    options = plugins[cri]["containerd"]["runtimes"]["runc"]["options"]
    assert options["BinaryName"] == '/cache/"odd" bin/runc'


def test_a_runtime_can_be_had_without_nri() -> None:
    config = tomllib.loads(render_containerd_config(dataclasses.replace(LAYOUT, has_nri=False), "1.7.24"))
    assert config["plugins"]["io.containerd.nri.v1.nri"]["disable"] is True


@pytest.mark.parametrize("version", ["1.7.24", "2.1.9"])
def test_no_path_of_the_host_is_used(version: str) -> None:
    config = tomllib.loads(render_containerd_config(LAYOUT, version))
    paths = [text for text in walk_strings(config) if text.startswith("/")]
    assert paths
    assert [p for p in paths if not p.startswith(("/run/t/", "/cache/"))] == []


def test_the_primary_network_keeps_its_addresses_in_the_work_folder() -> None:
    (plugin,) = json.loads(render_cni_conflist(LAYOUT))["plugins"]
    assert plugin["ipam"]["dataDir"].startswith(str(WORK))


@pytest.mark.parametrize("work_dir", [Path("relative"), Path("/" + "x" * 100)])
def test_a_socket_path_that_cannot_work_is_refused_at_once(work_dir: Path) -> None:
    with pytest.raises(ValueError, match="at most 107 bytes"):
        Layout(work_dir, Path("/b"), Path("/n"), Path("/c"), "cg")
