"""CDI spec files on a real disk, read back as the testbed's runtime (as strict as containerd) reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dranet.errors import ProtocolError, SettingsError, StoreError
from dranet.model.claim import Mount
from dranet.model.facts import CharDevice
from dranet.runtime.containers import CdiDevice, CdiSpecs
from testbed.runtime.contract import RuntimeFailure
from testbed.runtime.standin_cdi import resolve

UID = "0b51c6a2-7d3f-4c19-9e5c-000000000001"
OTHER_UID = "f0000000-7d3f-4c19-9e5c-000000000002"

UVERBS = CharDevice("/dev/infiniband/uverbs0", 231, 192)
GATE = Mount("/var/lib/dranet/ready/claim", "/run/dranet/ready")
NIC = CdiDevice("pci-0000-8a-00-0", char_devices=(UVERBS,), mounts=(GATE,), env=(("A", "b=c"),))


@pytest.fixture
def specs(tmp_path: Path) -> CdiSpecs:
    return CdiSpecs(tmp_path / "cdi", "dra.net")


@pytest.fixture
def cdi_dir(tmp_path: Path) -> Path:
    return tmp_path / "cdi"


def read_spec(cdi_dir: Path, uid: str = UID) -> Any:
    return json.loads((cdi_dir / f"dra.net-claim_{uid}.json").read_text())


def test_a_claims_file_says_what_its_devices_add(specs: CdiSpecs, cdi_dir: Path) -> None:
    specs.write(UID, [NIC])
    assert read_spec(cdi_dir) == {
        "cdiVersion": "0.5.0",
        "kind": "dra.net/claim",
        "devices": [
            {
                "name": f"{UID}-pci-0000-8a-00-0",
                "containerEdits": {
                    "deviceNodes": [
                        {
                            "path": "/dev/infiniband/uverbs0",
                            "type": "c",
                            "major": 231,
                            "minor": 192,
                            "permissions": "rw",
                        }
                    ],
                    "mounts": [
                        {
                            "hostPath": "/var/lib/dranet/ready/claim",
                            "containerPath": "/run/dranet/ready",
                            "type": "bind",
                            "options": ["ro", "bind"],
                        }
                    ],
                    "env": ["A=b=c"],
                },
            }
        ],
    }


def test_a_runtime_resolves_each_device_by_its_id(specs: CdiSpecs, cdi_dir: Path) -> None:
    gpu = CdiDevice("gpu-0", char_devices=(CharDevice("/dev/nvidia0", 195, 0),))
    specs.write(UID, [NIC, gpu])
    specs.write(OTHER_UID, [CdiDevice("gpu-0", env=(("B", "c"),))])
    nic = resolve(cdi_dir, [specs.device_id(UID, NIC.name)])
    assert nic.devices == {"/dev/infiniband/uverbs0": "231:192"}
    assert nic.mounts == {"/run/dranet/ready": "/var/lib/dranet/ready/claim"}
    assert nic.env == {"A": "b=c"}
    both = resolve(cdi_dir, [specs.device_id(UID, "gpu-0"), specs.device_id(OTHER_UID, "gpu-0")])
    assert (both.devices, both.env) == ({"/dev/nvidia0": "195:0"}, {"B": "c"})


def test_a_device_that_adds_nothing_is_still_one_that_a_runtime_takes(specs: CdiSpecs, cdi_dir: Path) -> None:
    specs.write(UID, [CdiDevice("eth1"), NIC])
    given = resolve(cdi_dir, [specs.device_id(UID, "eth1")])
    assert given.env == {"DRANET_DEVICE_ETH1": UID}


def test_writing_again_replaces(specs: CdiSpecs, cdi_dir: Path) -> None:
    specs.write(UID, [NIC])
    specs.write(UID, [CdiDevice("eth1", env=(("A", "b"),))])
    assert [device["name"] for device in read_spec(cdi_dir)["devices"]] == [f"{UID}-eth1"]
    assert [path.name for path in cdi_dir.iterdir()] == [f"dra.net-claim_{UID}.json"]


def test_an_interrupted_write_leaves_the_old_file_and_is_swept(specs: CdiSpecs, cdi_dir: Path) -> None:
    specs.write(UID, [NIC])
    torn = cdi_dir / f".dra.net-claim_{OTHER_UID}.json.tmp"
    torn.write_text('{"cdiVersion"')
    assert specs.list_claims() == {UID, OTHER_UID}
    resolve(cdi_dir, [specs.device_id(UID, NIC.name)])
    specs.remove(OTHER_UID)
    assert specs.list_claims() == {UID}
    assert not torn.exists()


def test_removing_is_repeatable_and_leaves_other_claims_alone(specs: CdiSpecs) -> None:
    specs.write(UID, [NIC])
    specs.write(OTHER_UID, [NIC])
    specs.remove(UID)
    specs.remove(UID)
    assert specs.list_claims() == {OTHER_UID}


def test_only_files_of_this_driver_are_listed(specs: CdiSpecs, cdi_dir: Path) -> None:
    assert specs.list_claims() == set()
    cdi_dir.mkdir()
    for name in ("dra.net-gpu_x.json", "draXnet-claim_x.json", "other-dra.net-claim_x.json", "x.yaml"):
        (cdi_dir / name).touch()
    assert specs.list_claims() == set()
    CdiSpecs(cdi_dir, "net").write(UID, [NIC])
    assert specs.list_claims() == set()


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", ".hidden", "a b", "x\n", "-a", "a-"])
def test_a_claim_uid_that_is_no_name_never_becomes_a_path(specs: CdiSpecs, cdi_dir: Path, uid: str) -> None:
    with pytest.raises(ProtocolError, match="cannot be part of a CDI device name"):
        specs.write(uid, [NIC])
    with pytest.raises(ProtocolError):
        specs.remove(uid)
    assert not cdi_dir.exists()


def test_a_device_name_that_a_runtime_would_refuse_is_refused(specs: CdiSpecs, cdi_dir: Path) -> None:
    with pytest.raises(ProtocolError):
        specs.write(UID, [CdiDevice("eth 1", env=(("A", "b"),))])
    assert not cdi_dir.exists()


def test_a_driver_name_that_is_no_cdi_vendor_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be a CDI vendor name"):
        CdiSpecs(tmp_path, "0.dra.net")


def test_a_folder_that_cannot_be_written_is_a_store_error_with_path_and_mend(tmp_path: Path) -> None:
    blocker = tmp_path / "cdi"
    blocker.write_text("a file where the folder should be")
    specs = CdiSpecs(blocker, "dra.net")
    with pytest.raises(
        StoreError, match=rf"{blocker}/dra\.net-claim_{UID}\.json: {blocker} is a file, .* move it away"
    ):
        specs.write(UID, [NIC])
    with pytest.raises(StoreError):
        specs.remove(UID)
    with pytest.raises(StoreError):
        specs.list_claims()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"surprise": 1}, "surprise"),
        ({"cdiVersion": "0.4.0"}, "needs cdiVersion 0.5.0"),
        ({"cdiVersion": "9.0.0"}, "cdiVersion"),
        ({"kind": "dra.net"}, "kind"),
        ({"devices": []}, "devices"),
        ({"devices": [{"name": f"{UID}-eth1", "containerEdits": {}}]}, "empty containerEdits"),
        ({"devices": [{"name": "a/b", "containerEdits": {"env": ["A=b"]}}]}, "name"),
    ],
)
def test_the_runtime_that_reads_these_files_is_strict(
    specs: CdiSpecs, cdi_dir: Path, change: dict[str, Any], why: str
) -> None:
    """A test of the counterpart: it refuses what the CDI library refuses, so the others mean something."""
    specs.write(UID, [NIC])
    path = cdi_dir / f"dra.net-claim_{UID}.json"
    path.write_text(json.dumps({**read_spec(cdi_dir), **change}))
    with pytest.raises(RuntimeFailure, match=f"unresolvable CDI devices.*{why}"):
        resolve(cdi_dir, [specs.device_id(UID, NIC.name)])


def test_two_files_with_the_same_device_cancel_each_other(specs: CdiSpecs, cdi_dir: Path) -> None:
    specs.write(UID, [NIC])
    (cdi_dir / "copy.json").write_text(json.dumps(read_spec(cdi_dir)))
    with pytest.raises(RuntimeFailure, match="unresolvable"):
        resolve(cdi_dir, [specs.device_id(UID, NIC.name)])
