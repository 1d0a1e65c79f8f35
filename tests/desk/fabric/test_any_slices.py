"""Slices that no driver would write: each form of the fabric is still what its readers can read."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from dranet.desk.cli.fabric import render_form
from dranet.desk.fabric.fabric import read_fabric
from dranet.desk.kubeapi.shapes import find_fault
from dranet.errors import NotFoundError
from dranet.terminal import Screen
from tests.desk.fabric.slices import make_slice

JsonObject = dict[str, Any]

ODD = st.text(st.characters(codec="utf-8") | st.sampled_from("\x1b\x00<>&\"'\u202e\n"), max_size=12)
LONG = st.integers(1, 9).map(lambda digit: str(digit) * 5000)
VALUES = st.fixed_dictionaries({}, optional={"string": ODD | LONG, "int": st.integers(-(2**63), 2**63 - 1)})
NAMES = st.sampled_from(
    [
        *(f"dra.net/{name}" for name in ("switchName", "switchChassisId", "switchPortId", "rail", "ifName")),
        *(f"dra.net/{name}" for name in ("linkSpeedMbps", "pciAddress", "pciDevice")),
        *("gce.dra.net/block", "gce.dra.net/host", "oke.dra.net/rackId", "switchName"),
    ]
)
DEVICES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.dictionaries(NAMES, VALUES, max_size=6), max_size=3
)
SLICES = st.lists(
    st.builds(make_slice, st.sampled_from(["n1", "n2", "n3", "x"]), DEVICES), min_size=1, max_size=5
)
FORMS = ("text", "wide", "json", "yaml", "svg", "slurm", "slurm-block", "slurm-yaml", "kueue", "labels")


@given(SLICES, st.sampled_from(FORMS), st.booleans())
def test_any_slices_are_shown_in_every_form(slices: list[JsonObject], form: str, of_one: bool) -> None:
    assert not any(map(find_fault, slices))
    fabric = read_fabric(slices, "dra.net")
    nodes = list(fabric.nodes)[:1] if of_one and form in ("text", "wide", "json", "yaml") else []
    try:
        text = render_form(fabric, form, "dra.net", nodes, Screen())
    except NotFoundError:
        assert not fabric.places
        return
    if form in ("text", "wide", "slurm", "slurm-block", "labels"):
        assert all(line.isprintable() for line in text.split("\n"))
    if form == "json":
        json.loads(text)
    if form in ("yaml", "slurm-yaml", "kueue"):
        list(yaml.safe_load_all(text))
    if form == "svg":
        ET.fromstring(text)
    if form in ("slurm", "slurm-block"):
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        pattern = r"(SwitchName|BlockName)=[\w.-]{1,64} (Nodes|Switches)=[\w.,\[\]-]+|BlockSizes=\d+"
        assert all(re.fullmatch(pattern, line, re.ASCII) for line in lines), lines
