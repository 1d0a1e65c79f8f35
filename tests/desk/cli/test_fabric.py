"""``dranet fabric``: files and a cluster in; tables, documents, a picture and exports out."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dranet.cli.main import main
from dranet.desk.fabric.fabric import read_fabric
from dranet.desk.fabric.picture import draw_fabric
from dranet.pictures.svg import render_svg
from tests.desk.fabric.fabrics import Cabling, cable, change, swap, unplug
from tests.desk.fabric.slices import FLEET, make_fleet, make_slice, make_slices, placed
from tests.support.executed_lines import count_steps

CaptureFixture = pytest.CaptureFixture[str]
JsonObject = dict[str, Any]
TABLE = """\
UNIT      NODES  NAMES      NICS   RAILS  SPEED  LEAVES        MISFITS
leaf-0-0  4      gpu-[0-3]  31/32  0-7    400G   leaf-0-[0-7]  2
leaf-1-0  4      gpu-[4-7]  32/32  0-7    400G   leaf-1-[0-7]  -

MISFIT         NODE   WHAT, AND WHAT TO DO
SwappedCables  gpu-2  the cables of eth3 (leaf-0-5 Ethernet1/3) and eth5 (leaf-0-3 Ethernet1/3) are swapped; exchange the two cables at the node, or at leaf-0-5 Ethernet1/3 and leaf-0-3 Ethernet1/3
NoNeighbour    gpu-1  eth1 has no LLDP neighbor and its link is down; 3 other nodes of its unit have it on leaf-0-1; check cable and transceiver between eth1 and leaf-0-1, and LLDP on that port

8 nodes in 2 units, 16 switches, 2 misfits; known from LLDP neighbors
"""  # noqa: E501


def two_units() -> Cabling:
    cabling = cable(2, 4)
    swap(cabling, ("gpu-2", 3), ("gpu-2", 5))
    unplug(cabling, ("gpu-1", 1))
    return cabling


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    return write(tmp_path, make_slices(two_units().values()))


def write(folder: Path, objects: Sequence[JsonObject]) -> str:
    file = folder / "slices.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    return str(file)


def run(capsys: CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    code = main(["fabric", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_each_unit_is_a_row_and_each_misfit_names_its_fix(fleet: str, capsys: CaptureFixture) -> None:
    assert run(capsys, "-f", fleet) == (1, TABLE, "")


def test_a_fabric_that_fits_ends_with_0(tmp_path: Path, capsys: CaptureFixture) -> None:
    code, text, _ = run(capsys, "-f", write(tmp_path, make_slices(cable(1, 2).values())))
    assert code == 0
    assert text.endswith("2 nodes in 1 unit, 8 switches, no misfits; known from LLDP neighbors\n")


def test_five_hundred_nodes_are_a_row_for_each_unit(tmp_path: Path, capsys: CaptureFixture) -> None:
    _, text, _ = run(capsys, "-f", write(tmp_path, make_slices(cable(16, 32, 2).values())))
    assert len(text.splitlines()) == 1 + 16 + 2


def test_wide_shows_each_nic_of_a_unit(fleet: str, capsys: CaptureFixture) -> None:
    lines = run(capsys, "-f", fleet, "-o", "wide")[1].splitlines()
    assert "eth3  0000:13:00.0  3     400G   leaf-0-3  3/4" in lines
    assert "eth3  0000:13:00.0  3     400G   leaf-1-3  4/4" in lines


def test_a_node_is_shown_with_its_ports_label_and_misfits(fleet: str, capsys: CaptureFixture) -> None:
    code, text, _ = run(capsys, "-f", fleet, "--node", "gpu-2")
    assert code == 1
    assert "eth3  pci-0000-13-00-0  3     400G   leaf-0-5  Ethernet1/3" in text
    assert "label fabric.dra.net/unit=leaf-0-0" in text
    assert "SwappedCables" in text
    assert run(capsys, "-f", fleet, "--node", "gpu-5")[0] == 0


def test_a_misspelt_node_and_a_form_about_all_nodes_are_refused(fleet: str, capsys: CaptureFixture) -> None:
    code, _, error = run(capsys, "-f", fleet, "--node", "gpu-9")
    assert (code, error.startswith("dranet: NotFound: node gpu-9 has no ResourceSlice of the driver")) == (
        1,
        True,
    )
    code, _, error = run(capsys, "-f", fleet, "--node", "gpu-1", "-o", "slurm")
    assert code == 2
    assert "--node: -o slurm is about all nodes" in error


def test_misfits_are_coloured(fleet: str, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows = run(capsys, "-f", fleet)[1].splitlines()
    assert rows[1].startswith("\x1b[1;33m")
    assert not rows[2].startswith("\x1b")


def test_a_narrow_terminal_gets_narrow_lines(
    fleet: str, capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, run(capsys, "-f", fleet)[1].splitlines())) <= 80


def test_programs_get_json_or_yaml(fleet: str, capsys: CaptureFixture) -> None:
    document = json.loads(run(capsys, "-f", fleet, "-o", "json")[1])
    assert document["summary"] == {"nodes": 8, "units": 2, "switches": 16, "misfits": 2}
    assert document["units"][0]["nodes"] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert document["nodes"][2]["links"][3]["switchPort"] == "Ethernet1/3"
    swapped, missing = document["misfits"]
    assert [link["device"] for link in swapped["links"]] == ["pci-0000-13-00-0", "pci-0000-15-00-0"]
    assert missing["fix"].startswith("check cable and transceiver")
    assert yaml.safe_load(run(capsys, "-f", fleet, "-o", "yaml")[1]) == document
    one = json.loads(run(capsys, "-f", fleet, "-o", "json", "--node", "gpu-5")[1])
    assert [node["name"] for node in one["nodes"]] == ["gpu-5"]
    assert one["misfits"] == []


@pytest.mark.parametrize("form", ["slurm", "slurm-block", "slurm-yaml", "kueue", "labels"])
def test_exports_are_written_in_spite_of_misfits_which_are_counted(
    form: str, fleet: str, capsys: CaptureFixture
) -> None:
    code, text, error = run(capsys, "-f", fleet, "-o", form)
    assert (code, error) == (0, "note: 2 misfits: dranet fabric shows them\n")
    assert "leaf-0-0" in text or "fabric.dra.net/unit" in text


def test_an_export_without_a_place_is_refused(tmp_path: Path, capsys: CaptureFixture) -> None:
    file = write(tmp_path, [make_slice("cpu-1", {"eth0": {"dra.net/ifName": {"string": "eth0"}}})])
    assert run(capsys, "-f", file)[1] == (
        "no node has an LLDP neighbor or a placement in a cloud\nplace unknown: 1 node (cpu-1)\n"
    )
    code, text, error = run(capsys, "-f", file, "-o", "slurm")
    assert (code, text) == (1, "")
    assert "there is no hierarchy to export" in error


def test_a_file_is_not_replaced_unless_asked(fleet: str, tmp_path: Path, capsys: CaptureFixture) -> None:
    out = str(tmp_path / "fabric.svg")
    assert run(capsys, "-f", fleet, "-o", "svg", "--output-file", out) == (0, "", f"wrote {out}\n")
    code, _, error = run(capsys, "-f", fleet, "-o", "svg", "--output-file", out)
    assert (code, "exists already" in error) == (2, True)


def test_hosts_with_one_node_each_are_shown_by_the_level_above(
    tmp_path: Path, capsys: CaptureFixture
) -> None:
    slices = [placed(f"vm-{n}", gce_block="b1", gce_subBlock=f"s{n % 2}", gce_host=f"h{n}") for n in range(6)]
    lines = run(capsys, "-f", write(tmp_path, slices))[1].splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["b1/s0", "3", "vm-[0,2,4]"],
        ["b1/s1", "3", "vm-[1,3,5]"],
    ]
    assert "known from Compute Engine's placement" in lines[-1]


# --- the picture, and large fabrics ------------------------------------------------------------------


def draw(slices: Sequence[JsonObject]) -> str:
    return render_svg(draw_fabric(read_fabric(slices, "dra.net")))


def test_the_picture_marks_what_does_not_fit() -> None:
    text = draw(make_slices(two_units().values()))
    root = ET.fromstring(text)
    style = {element.get("class") for element in root.iter()}
    assert {"box nic", "box nic wrong", "box nic wrong loose", "cable wrong", "nodename wrong"} <= style
    shown = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "→ leaf-0-5" in shown
    assert "eth1: none" in shown


@pytest.mark.parametrize("units", [1, 4, 70])
def test_the_picture_grows_with_the_units_and_not_with_their_nodes(units: int) -> None:
    few, many = (draw(make_slices(cable(units, nodes, 4).values())) for nodes in (5, 9))
    assert few.count("<rect") == many.count("<rect")


def test_the_work_grows_with_the_nodes_even_if_they_have_nothing_in_common() -> None:
    few, many = (
        count_steps(lambda slices=slices: draw(slices))  # type: ignore[misc]
        for slices in (make_slices(cable(units, 1).values()) for units in (20, 40))
    )
    assert many < 2.5 * few


def test_a_leaf_that_is_in_every_node_does_not_join_them() -> None:
    cabling = cable(50, 2, 8)
    for node in range(100):
        change(cabling, (f"gpu-{node}", 7), switch="02:ff", switch_name="shared")
    assert len(read_fabric(make_slices(cabling.values()), "dra.net").places) == 50


def test_the_fleet_of_the_documentation_is_up_to_date() -> None:
    assert FLEET.read_text() == make_fleet()


@pytest.mark.parametrize("form", ["text", "labels", "slurm"])
@pytest.mark.parametrize("name", ["n1\nrm -rf x", "n1,n2", "GPU-1", "n[1-9]", "a" * 254])
def test_a_node_name_that_no_server_takes_is_refused_with_its_slice(
    capsys: CaptureFixture, tmp_path: Path, name: str, form: str
) -> None:
    slices = make_slices(cable(1, 2).values())
    slices[1]["spec"]["nodeName"] = name
    code, out, errors = run(capsys, "-f", write(tmp_path, slices), "-o", form)
    assert (code, out) == (2, "")
    assert "slices.json, document 1, item 2: ResourceSlice gpu-1-dra.net-1: spec.nodeName must be" in errors
    assert errors.count("\n") <= 2


def test_a_capture_is_shown_with_the_name_that_the_kubelet_gives_its_host(
    capsys: CaptureFixture, tmp_path: Path
) -> None:
    capture = json.loads((FLEET.parents[1] / "dgx-h100/capture.json").read_text())
    capture["facts"]["host"]["name"] = "GPU-7"
    file = tmp_path / "capture.json"
    file.write_text(json.dumps(capture))
    _, out, errors = run(capsys, "--capture", str(file), "-o", "json")
    assert "gpu-7" in out, errors
