"""Vendors' CDI specs: the device that is one whole GPU, whatever else lies in the folders."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dranet.model.facts import CharDevice
from dranet.runtime.vendor_cdi import MAX_FILE_BYTES, SpecDevice, VendorSpecs, choose_device

KIND = "nvidia.com/gpu"
UUIDS = ("GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c")


def nvidia(minor: int) -> CharDevice:
    return CharDevice(f"/dev/nvidia{minor}", 195, minor)


def render(number: int) -> CharDevice:
    return CharDevice(f"/dev/dri/renderD{number}", 226, number)


def a_device(name: str, *nodes: str | dict[str, Any]) -> dict[str, Any]:
    entries = [{"path": node} if isinstance(node, str) else node for node in nodes]
    return {"name": name, "containerEdits": {"deviceNodes": entries}}


def a_spec(*devices: dict[str, Any], kind: str = KIND, **more: Any) -> dict[str, Any]:
    shared = {"deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}]}
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": list(devices),
        "containerEdits": shared,
        **more,
    }


EIGHT = a_spec(
    *(
        a_device(name, f"/dev/nvidia{index}", f"/dev/dri/card{index + 1}", f"/dev/dri/renderD{128 + index}")
        for index in range(2)
        for name in (str(index), UUIDS[index])
    ),
    a_device("all", "/dev/nvidia0", "/dev/nvidia1"),
)
"""As ``nvidia-ctk cdi generate`` makes it of two GPUs, by number and by UUID."""


def write(folder: Path, name: str, spec: object) -> None:
    folder.mkdir(exist_ok=True)
    text = json.dumps(spec) if name.endswith(".json") else yaml.safe_dump(spec)
    (folder / name).write_text(text)


def find(
    *folders: Path,
    kind: str = KIND,
    own: Sequence[CharDevice] = (nvidia(0),),
    others: Sequence[CharDevice] = (nvidia(1),),
    uuid: str = "",
) -> str:
    found = choose_device(VendorSpecs(folders).list_devices(kind), own, others, uuid)
    return found.id if found else ""


@pytest.mark.parametrize("name", ["nvidia.json", "nvidia.yaml"])
def test_the_device_with_the_gpus_uuid_is_preferred_and_then_its_number(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, EIGHT)

    assert find(tmp_path, uuid=UUIDS[0]) == f"{KIND}={UUIDS[0]}"
    assert find(tmp_path, uuid="") == f"{KIND}=0"
    assert find(tmp_path, own=[nvidia(1)], others=[nvidia(0)], uuid=UUIDS[1]) == f"{KIND}={UUIDS[1]}"


def test_numbers_of_a_spec_that_run_otherwise_than_the_kernels_mislead_nobody(tmp_path: Path) -> None:
    write(tmp_path, "nvidia.json", a_spec(a_device("0", "/dev/nvidia1"), a_device("1", "/dev/nvidia0")))
    assert find(tmp_path) == f"{KIND}=1"


def test_a_node_is_known_by_its_numbers_and_by_its_path_on_the_host(tmp_path: Path) -> None:
    inside = {"path": "/dev/gpu", "hostPath": "/dev/nvidia0"}
    write(tmp_path, "a.json", a_spec(a_device("by-host-path", inside)))
    assert find(tmp_path) == f"{KIND}=by-host-path"
    write(tmp_path, "a.json", a_spec(a_device("by-numbers", {"path": "/dev/x", "major": 195, "minor": 0})))
    assert find(tmp_path) == f"{KIND}=by-numbers"
    stale = {"path": "/dev/nvidia0", "major": 195, "minor": 1, "type": "c"}
    write(tmp_path, "a.json", a_spec(a_device("0", stale)))
    assert find(tmp_path) == "", "the numbers are another GPU's"


@pytest.mark.parametrize(
    "device",
    [
        a_device("all", "/dev/nvidia0"),
        a_device("two", "/dev/nvidia0", "/dev/nvidia1"),
        a_device("0:0", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"),
        a_device("none"),
        a_device("other", "/dev/nvidia1"),
        a_device("a block device", {"path": "/dev/nvidia0", "type": "b"}),
        {"name": "0"},
        {"name": 0, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        a_device("-no-name-", "/dev/nvidia0"),
    ],
    ids=lambda device: str(device.get("name")),
)
def test_what_is_more_or_less_than_the_gpu_is_never_chosen(tmp_path: Path, device: dict[str, Any]) -> None:
    write(tmp_path, "nvidia.json", a_spec(device))
    assert find(tmp_path) == ""


def test_a_gpu_of_amd_is_found_by_its_render_node_and_kfd_tells_none_apart(tmp_path: Path) -> None:
    spec = a_spec(
        a_device("0", "/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128"),
        a_device("1", "/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD129"),
        kind="amd.com/gpu",
    )
    write(tmp_path, "amd.json", spec)
    assert find(tmp_path, kind="amd.com/gpu", own=[render(129)], others=[render(128)]) == "amd.com/gpu=1"
    assert find(tmp_path, own=[render(129)], others=[]) == "", "of another kind"


def test_a_name_in_two_files_of_a_folder_is_unknown_to_the_runtime_and_a_later_folder_counts_more(
    tmp_path: Path,
) -> None:
    etc, run = tmp_path / "etc", tmp_path / "run"
    write(etc, "nvidia.json", a_spec(a_device("0", "/dev/nvidia1"), a_device("x", "/dev/nvidia0")))
    write(run, "nvidia.json", a_spec(a_device("0", "/dev/nvidia0")))
    assert find(etc, run) == f"{KIND}=0"
    assert find(run, etc) == f"{KIND}=x"
    write(run, "again.json", a_spec(a_device("0", "/dev/nvidia0")))
    assert find(etc, run) == f"{KIND}=x"


def test_a_file_that_changes_is_read_again_and_one_that_goes_is_forgotten(tmp_path: Path) -> None:
    specs = VendorSpecs([tmp_path, tmp_path / "not there"])
    assert specs.list_devices(KIND) == ()
    write(tmp_path, "nvidia.yaml", EIGHT)
    assert len(specs.list_devices(KIND)) == 5
    write(tmp_path, "nvidia.yaml", a_spec(a_device("0", "/dev/nvidia0")))
    assert [device.name for device in specs.list_devices(KIND)] == ["0"]
    (tmp_path / "nvidia.yaml").unlink()
    assert specs.list_devices(KIND) == ()


def test_things_in_the_folder_that_are_no_files_hold_up_nothing(tmp_path: Path) -> None:
    write(tmp_path, "nvidia.json", EIGHT)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "huge.json").write_bytes(b" " * (MAX_FILE_BYTES + 1))
    (tmp_path / "half.json").write_text('{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [')
    (tmp_path / "twice.json").write_text(json.dumps(a_spec(a_device("7", "/dev/x"), a_device("7", "/dev/y"))))

    assert find(tmp_path) == f"{KIND}=0"


HOSTILE = {
    "deep flow": "kind: nvidia.com/gpu\nx: " + "[" * 100_000,
    "deep block": "kind: nvidia.com/gpu\nx:\n" + "- " * 20_000 + "y",
    "deep braces": "{" * 50_000 + " nvidia.com/gpu",
    "bomb": "kind: nvidia.com/gpu\na: &a {k: v}\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [*{chr(97 + i)}, *{chr(97 + i)}]}}\n" for i in range(24)),
    "python": "kind: nvidia.com/gpu\ndevices: !!python/object/apply:os.system [exit]",
    "number": "kind: nvidia.com/gpu\ncdiVersion: " + "9" * 10_000,
    "date": "kind: nvidia.com/gpu\ncdiVersion: 2026-99-99",
    "bytes": "kind: nvidia.com/gpu\n\x00\x01",
    "keys": "kind: nvidia.com/gpu\n? [a, b]\n: c",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_hostile_file_is_passed_over(tmp_path: Path, text: str, suffix: str) -> None:
    (tmp_path / f"bad{suffix}").write_text(text)
    write(tmp_path, "nvidia.json", EIGHT)
    assert find(tmp_path) == f"{KIND}=0"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
NAMES = st.sampled_from(
    [
        "cdiVersion",
        "kind",
        "devices",
        "name",
        "containerEdits",
        "deviceNodes",
        "path",
        "major",
        "minor",
        "type",
    ]
)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["0.5.0", KIND, "/dev/nvidia0", "0", "c"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)


@given(
    spec=VALUES | st.builds(lambda devices: a_spec() | {"devices": devices}, VALUES), is_json=st.booleans()
)
@example(spec=a_spec(a_device("0", {"path": "/dev/nvidia0", "major": True, "minor": "0"})), is_json=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_a_file_of_any_shape_gives_devices_or_nothing(tmp_path: Path, spec: object, is_json: bool) -> None:
    write(tmp_path / "odd", "odd.json" if is_json else "odd.yaml", spec)
    specs = VendorSpecs([tmp_path / "odd"])
    devices = specs.list_devices(KIND)
    assert all(isinstance(device, SpecDevice) for device in devices)
    assert choose_device(devices, [], [nvidia(0)]) is None
    for file in (tmp_path / "odd").iterdir():
        file.unlink()


def test_what_every_device_of_a_spec_brings_counts_for_each_of_them(tmp_path: Path) -> None:
    everything = {"deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia1"}]}
    write(tmp_path, "nvidia.json", a_spec(a_device("0", "/dev/nvidia0"), containerEdits=everything))
    assert find(tmp_path) == "", "the container would have the other GPU, too"
