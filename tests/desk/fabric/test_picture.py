"""The picture of the fabric in a real browser: every text in its box, and with contrast."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.desk.fabric.fabric import read_fabric
from dranet.desk.fabric.picture import draw_fabric
from dranet.pictures.svg import render_svg
from tests.desk.fabric.fabrics import Cabling, cable, change, swap, unplug
from tests.desk.fabric.slices import JsonObject, make_slices, placed
from tests.support.screen import Screen

pytestmark = [pytest.mark.process, pytest.mark.slow]


def with_misfits(units: int, nodes: int) -> Cabling:
    cabling = cable(units, nodes)
    swap(cabling, ("gpu-1", 3), ("gpu-1", 5))
    unplug(cabling, ("gpu-0", 1))
    change(cabling, ("gpu-1", 0), speed_mbps=200_000)
    return cabling


def with_long_names() -> list[JsonObject]:
    cabling = cable(2, 3)
    for place, link in list(cabling.items()):
        name = f"datacenter-west-row-12-rack-7-{link.switch_name}-WWWWWWWWWWWWWWWWWWW"
        change(cabling, place, switch_name=name, ifname=f"enp{place[1]}s0f0np0-{'漢' * 4}")
    swap(cabling, ("gpu-1", 3), ("gpu-1", 5))
    return make_slices(cabling.values())


SLICES = {
    "2 nodes": make_slices(with_misfits(1, 2).values()),
    "16 nodes": make_slices(with_misfits(2, 8).values()),
    "128 nodes": make_slices(with_misfits(4, 32).values()),
    "long names": with_long_names(),
    "a cloud": [placed(f"vm-{n}", gce_block=f"b{n // 9}", gce_subBlock=f"s{n // 3}") for n in range(40)],
    "nothing": [placed("vm-1")],
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SLICES)
def test_the_picture_can_be_read(screen: Screen, tmp_path: Path, name: str, scheme: str) -> None:
    svg = render_svg(draw_fabric(read_fabric(SLICES[name], "dra.net")))
    page = tmp_path / "fabric.html"
    page.write_text(f'<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">{svg}')
    with screen.look(page.as_uri(), 1280, scheme) as sight:
        assert sight.find_picture_overflows() == []
        assert sight.find_faint() == []
        assert sight.complaints == []
