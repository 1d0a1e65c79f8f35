"""The committed messages are what the protos and the locked generator give, byte for byte."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.internal import api_implementation

from dranet.kubelet.kubelet_plugin import REGISTRATION_SERVICE
from dranet.kubelet.plugin import DRA_VERSIONS, HEALTH_SERVICES

pytest.importorskip("grpc_tools", reason="the generator is a development dependency")

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("dranet", "testbed")
PROTOS = sorted(
    proto for package in PACKAGES for proto in (REPOSITORY / "proto" / package / "pb").glob("*.proto")
)


def generate(folder: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-Iproto",
            f"--python_out={folder}",
            f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
            f"--mypy_out=quiet:{folder}",
            *(str(proto.relative_to(REPOSITORY)) for proto in PROTOS),
        ],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )


def read_messages(folder: Path) -> dict[str, str]:
    return {
        entry.name: entry.read_text()
        for entry in folder.iterdir()
        if entry.suffix in {".py", ".pyi"} and entry.name != "__init__.py"
    }


@pytest.mark.process
def test_generated_messages_are_up_to_date_and_none_is_left_over(tmp_path: Path) -> None:
    generate(tmp_path)
    for package in PACKAGES:
        fresh = read_messages(tmp_path / package / "pb")
        committed = read_messages(REPOSITORY / package / "pb")
        assert sorted(committed) == sorted(fresh), "a proto without messages, or messages without a proto"
        stale = [name for name in fresh if fresh[name] != committed[name]]
        assert not stale, f"run the generator again: {stale}"


def test_all_messages_live_side_by_side_in_one_descriptor_pool() -> None:
    for proto in PROTOS:
        importlib.import_module(f"{proto.parts[-3]}.pb.{proto.stem}_pb2")


def test_messages_are_parsed_by_the_fast_implementation() -> None:
    assert api_implementation.Type() == "upb"


@pytest.mark.parametrize(
    ("messages", "service"),
    [
        ("dranet.pb.registration", REGISTRATION_SERVICE),
        ("dranet.pb.dra_v1", DRA_VERSIONS[0].service),
        ("testbed.pb.dra_v1beta1", DRA_VERSIONS[1].service),
        ("dranet.pb.health_v1", HEALTH_SERVICES[0]),
        ("testbed.pb.health_v1alpha1", HEALTH_SERVICES[1]),
    ],
)
def test_the_service_names_in_the_code_are_those_of_the_protos(messages: str, service: str) -> None:
    services = importlib.import_module(f"{messages}_pb2").DESCRIPTOR.services_by_name
    assert [found.full_name for found in services.values()] == [service]
