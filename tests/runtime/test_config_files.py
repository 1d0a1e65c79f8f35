"""Configuration files of containerd and CRI-O as administrators write them, for the doctor."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cli.doctor.node_config import parse_duration, read_runtime_config
from dranet.kernel.sysfs.files import PseudoFiles
from dranet.model.findings import RuntimeConfig


def read(root: Path, **files: str) -> RuntimeConfig | None:
    for path, text in files.items():
        file = root / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return read_runtime_config(PseudoFiles(root, []))


TOML = "etc__containerd__config.toml"


def test_containerd_2_says_nri_cdi_and_how_long_it_waits(tmp_path: Path) -> None:
    text = """version = 3
[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "/run/nri/nri.sock"
plugin_request_timeout = "1m30s"
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi"]
"""
    assert read(tmp_path, **{TOML: text}) == RuntimeConfig(
        "/etc/containerd/config.toml", "containerd", True, "/run/nri/nri.sock", 90.0, True, ("/etc/cdi",), 3
    )


def test_containerd_1_7_has_cdi_elsewhere(tmp_path: Path) -> None:
    text = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n'
    found = read(tmp_path, **{TOML: text})
    assert found is not None
    assert (found.cdi, found.nri, found.cdi_dirs, found.version) == (False, None, None, 2)


def test_a_plugin_that_is_disabled_by_name_is_off(tmp_path: Path) -> None:
    found = read(tmp_path, **{TOML: 'disabled_plugins = ["io.containerd.nri.v1.nri"]\n'})
    assert found is not None
    assert found.nri is False


def test_imported_files_win_over_the_one_that_imports_them(tmp_path: Path) -> None:
    nri = '[plugins."io.containerd.nri.v1.nri"]\n'
    found = read(
        tmp_path,
        **{
            TOML: f'imports = ["/etc/containerd/conf.d/*.toml"]\n{nri}disable = true\nsocket_path = "/a"\n',
            "etc__containerd__conf.d__90-nri.toml": f"{nri}disable = false\n",
            "etc__containerd__conf.d__notes.txt": f"{nri}disable = true\n",
        },
    )
    assert found is not None
    assert (found.nri, found.nri_socket) == (True, "/a")


def test_crio_is_found_in_its_folder_of_pieces(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        **{
            "etc__crio__crio.conf": '[crio.nri]\nenable_nri = false\nnri_plugin_request_timeout = "2s"\n',
            "etc__crio__crio.conf.d__10-nri.conf": "[crio.nri]\nenable_nri = true\n",
        },
    )
    assert found == RuntimeConfig("/etc/crio", "CRI-O", True, "", 2.0)


def test_where_there_is_none_nothing_is_said(tmp_path: Path) -> None:
    assert read(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2.0), ("500ms", 0.5), ("1h0m1s", 3601.0), ("", None), ("2", None), ("s", None), ("2s!", None)],
)
def test_durations_are_those_of_go(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


class OneFile(PseudoFiles):
    """That may hold anything."""

    def __init__(self, text: str) -> None:
        super().__init__(Path("/"), [])
        self._text = text

    def whole_text(self, path: str) -> str:
        return self._text if path.startswith("etc/containerd") else ""

    def entries(self, path: str) -> list[str]:
        return ["a.toml"] if path else []


VALUES = st.sampled_from(["true", "3", '"x"', "[1]", "{}", '["/etc/cdi", 3]', '["**", "/"]'])


@given(st.text(max_size=60), VALUES, VALUES, VALUES)
def test_any_file_gives_a_configuration_or_its_defaults(text: str, imports: str, nri: str, dirs: str) -> None:
    odd = (
        f"imports = {imports}\ndisabled_plugins = {dirs}\n"
        f'[plugins."io.containerd.nri.v1.nri"]\ndisable = {nri}\nsocket_path = {nri}\n'
        f'[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = {dirs}\n'
    )
    for content in (text or "x", odd):
        found = read_runtime_config(OneFile(content))
        assert found is not None
        assert found.runtime == "containerd"
