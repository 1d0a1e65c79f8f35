"""``dranet devices`` and ``topology`` while pods have devices: on the node, by the records of the state
folder, and elsewhere, by the claims of a support bundle."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from dranet.cli.doctor.bundle import Piece, pack
from dranet.cli.main import main
from dranet.inventory.offer import take_inventory
from dranet.model.capture import Capture, encode_capture
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.device import Device
from dranet.model.facts import NodeFacts
from dranet.model.plan import AttachPlan, LinkState, PreparedClaim, PreparedDevice
from dranet.store.claim_store import ClaimStore
from tests.cli.small_node import SMALL
from tests.support.records import write_newer

NIC, GPU = "pci-0000-23-00-0", "gpu-0000-24-00-0"
SEEN = replace(SMALL, links=tuple(link for link in SMALL.links if link.ifname != "rail0"))
"""The node while a pod has ``rail0``."""
FREE = {one.device.name: one.device for one in take_inventory(SMALL, {}) if one.published}


class Reader:
    """The scan of a node that does not change."""

    is_live = True

    def set_protected_addresses(self, targets: Sequence[object]) -> None: ...

    def read(self, *_: object) -> NodeFacts:
        return SEEN


def hold(device: Device, **fields: Any) -> PreparedDevice:
    host = LinkState(3, device.ifname, "02:00:00:00:00:03", 1500, up=True)
    plan = AttachPlan("net1", host=host) if device.ifname else None
    return PreparedDevice("nic", "node", device, plan=plan, **fields)


Show = Callable[..., str]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def show(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Show:
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("boot\n")
    monkeypatch.setattr("dranet.cli.look.make_scanner", lambda _: Reader())

    def run(*arguments: str) -> str:
        capsys.readouterr()
        given = [*arguments, "--state-dir", str(state), "--procfs-root", str(tmp_path / "proc")]
        assert main(given) == 0
        return capsys.readouterr().out

    return run


def keep(state: Path, *devices: PreparedDevice) -> None:
    store = ClaimStore(state / "claims")
    store.open()
    pod = PodRef("default", "trainer", "pod-uid")
    claim = ClaimRef("default", "nics", "claim-uid")
    store.put(PreparedClaim(claim, pod, devices, "boot", sandbox_id="1", netns_path="/run/netns/pod"))
    store.close()


def row(shown: str, name: str) -> str:
    return " ".join(next(line for line in shown.splitlines() if name in line).split())


def test_a_device_of_a_pod_is_offered_and_says_whose_it_is(show: Show, state: Path) -> None:
    keep(state, hold(FREE[NIC]), hold(FREE[GPU]))
    shown = show("devices", "--all")
    assert row(shown, NIC) == f"{NIC} nic rail0 mlx5_0 0 pci0000:20 yes, in pod default/trainer"
    assert row(shown, GPU).endswith("yes, in pod default/trainer")
    assert shown.endswith("4 NICs, 1 GPU offered; 2 not offered\n")
    assert "in pod default/trainer" in row(show("topology"), NIC)
    assert row(show("topology", "-o", "matrix"), NIC).endswith("yes, in pod default/trainer")
    found = {one["name"]: one["pod"] for one in json.loads(show("devices", "-o", "json"))}
    assert found[NIC] == found[GPU] == "default/trainer"
    assert found["dummy0"] is None


def test_the_slices_are_those_that_are_published(show: Show, state: Path) -> None:
    keep(state, hold(FREE[NIC]))
    devices = {
        device["name"]: device["attributes"]
        for body in yaml.safe_load_all(show("devices", "-o", "slices"))
        for device in body["spec"].get("devices", ())
    }
    assert devices.keys() == FREE.keys()
    assert devices[NIC]["dra.net/ifName"] == {"string": "rail0"}


def test_a_gpu_of_admin_access_is_in_no_pod(show: Show, state: Path) -> None:
    keep(state, hold(FREE[GPU], admin_access=True))
    assert row(show("devices", "--all"), GPU).endswith(" yes")


@pytest.mark.parametrize("is_newer", [False, True], ids=["no state folder", "records of a newer driver"])
def test_where_nothing_says_what_pods_have_it_is_not_known(show: Show, state: Path, is_newer: bool) -> None:
    if is_newer:
        write_newer(state / "claims")
    assert row(show("devices", "--all"), NIC).endswith(
        "no: has no network interface in the host's network namespace (a pod may have it: dranet prepared)"
    )


def test_the_store_is_neither_locked_nor_written(show: Show, state: Path) -> None:
    keep(state, hold(FREE[NIC]))
    before = {file: file.stat() for file in state.rglob("*")}
    lock = ClaimStore(state / "claims")
    lock.open()
    with lock._writing(None):  # another process that writes all the time
        assert "yes, in pod" in show("devices", "--all")
    lock.close()
    after = {file: file.stat() for file in state.rglob("*")}
    assert {file: (s.st_mtime_ns, s.st_size) for file, s in after.items() if file.suffix == ".json"} == {
        file: (s.st_mtime_ns, s.st_size) for file, s in before.items() if file.suffix == ".json"
    }


def write_bundle(file: Path, claims: object) -> str:
    pieces = [
        Piece("capture.json", "", encode_capture(Capture(SEEN))),
        Piece("claims.json", "", json.dumps(claims)),
    ]
    file.write_bytes(pack(pieces, {}, redacts=True))
    return str(file)


def claims_of(place: str) -> object:
    pod = {"namespace": "default", "name": "pod-1"}
    return {"claims": [{"pod": pod, "devices": [{"name": NIC, "place": place}]}]}


def test_a_bundle_knows_which_pod_had_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_bundle(tmp_path / "bundle.tgz", claims_of("pod"))
    assert main(["devices", "--all", "-f", file]) == 0
    shown = capsys.readouterr().out
    assert row(shown, NIC).endswith("yes, in pod default/pod-1")
    assert shown.endswith("4 NICs, 1 GPU offered; 2 not offered\n")


@pytest.mark.parametrize(
    "claims",
    [claims_of("host"), {}, [], {"claims": [{"devices": 1}]}, {"claims": [{"pod": 1, "devices": [{}]}]}],
)
def test_a_bundle_that_does_not_say_leaves_it_open(
    claims: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_bundle(tmp_path / "bundle.tgz", claims)
    assert main(["devices", "--all", "-f", file]) == 0
    assert row(capsys.readouterr().out, NIC).endswith("network namespace (a pod may have it)")
