"""The picture: sound XML, texts that fit into their boxes, near things close together, a PNG with a font."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.cli.main import main
from dranet.errors import SettingsError
from dranet.inventory.offer import take_inventory
from dranet.inventory.policy import Policy
from dranet.model.capture import Capture, encode_capture
from dranet.model.facts import Distance, Gpu, Host, Link, NodeFacts, NumaNode
from dranet.pictures.boxes import Tone, build_picture
from dranet.pictures.layout import (
    DESK,
    PHONE,
    Drawing,
    Measures,
    Rect,
    Text,
    fit_text,
    fit_words,
    lay_out,
    text_width,
)
from dranet.pictures.svg import ZOOM, draw_svg, render_png, render_svg
from dranet.view.node_view import NodeView
from dranet.view.options import read_capture
from tests.cli.small_node import SMALL, nic, pci
from tools.pages.examples import PAGES, PICTURES, fill_page, print_out

REPOSITORY = Path(__file__).parents[2]
DOCUMENTATION = REPOSITORY / "docs"
SVG = "{http://www.w3.org/2000/svg}"

needs_pictures = pytest.mark.skipif(
    find_spec("resvg_py") is None or find_spec("fontpkg_arimo") is None,
    reason="dranet[pictures] is not installed",
)


def look(facts: NodeFacts) -> NodeView:
    return NodeView(facts, take_inventory(facts, {}), Policy(), is_capture=True)


def drawing(facts: NodeFacts, measures: Measures = DESK) -> Drawing:
    return lay_out(build_picture(look(facts)), measures)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_picture_is_a_standalone_document_that_names_every_device() -> None:
    svg = draw_svg(look(SMALL))
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    _, _, width, height = (float(number) for number in root.attrib["viewBox"].split())
    assert (root.attrib["width"], root.attrib["height"]) == (f"{width:g}", f"{height:g}")
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", ""), "nothing comes from outside"
    shown = texts(svg)
    for text in ("node-1", "ACME Box 9000 · 4 NICs, 1 GPU offered; 1 not offered", "NUMA node 0", "CPUs 0-3"):
        assert text in shown
    for text in ("GPU0", "NIC0", "NIC1", "NIC2", "NIC3", "rail0 · mlx5_0", "400 Gb/s NDR", "dummy0", "PIX"):
        assert text in shown


def test_it_has_colours_for_dark_pages_and_a_list_of_fonts() -> None:
    svg = draw_svg(look(SMALL))
    assert "@media (prefers-color-scheme:dark)" in svg
    assert ET.fromstring(svg).attrib["font-family"].endswith("sans-serif")


def test_gpu_and_nic_of_one_switch_are_tied_and_others_say_how_far_they_are() -> None:
    groups = [group for panel in build_picture(look(SMALL)).panels for group in panel.groups]
    (tied,) = [group for group in groups if group.bond is not None]
    assert (tied.bond, [box.name for box in (*tied.gpus, *tied.others)]) == (Distance.PIX, ["GPU0", "NIC1"])
    boxes = {box.name: box for group in groups for box in (*group.gpus, *group.others)}
    assert boxes["NIC2"].lines[1] == ("SYS to GPU0", "Mellanox ConnectX-7")
    assert boxes["NIC1"].lines[1] == ("", "Mellanox ConnectX-7")


def test_the_uplink_is_muted_and_its_reason_is_in_the_tooltip() -> None:
    boxes = [b for p in build_picture(look(SMALL)).panels for g in p.groups for b in g.others]
    (uplink,) = [box for box in boxes if box.tone is Tone.NOT_OFFERED]
    assert uplink.lines[1] == ("is the node's uplink",)
    assert uplink.tooltip.endswith("not offered: is the node's uplink: eno1 carries a default route")
    assert 'class="box held"' in draw_svg(look(SMALL))


def test_a_link_that_is_down_says_so_instead_of_a_speed() -> None:
    boxes = {b.name: b for p in build_picture(look(SMALL)).panels for g in p.groups for b in g.others}
    assert (boxes["NIC3"].corner, boxes["NIC2"].corner) == ("down", "400 Gb/s")


def test_many_virtual_functions_of_one_card_are_one_box() -> None:
    card = "0000:81:00.0"
    functions = [f"0000:81:00.{number}" for number in range(1, 8)]
    facts = NodeFacts(
        links=(nic(2, "pf", card), *(nic(3 + n, f"vf{n}", address) for n, address in enumerate(functions))),
        pci_functions=(
            replace(pci(card, "pci0000:80", "0000:80:01.0"), sriov_total_vfs=8, sriov_num_vfs=7),
            *(
                replace(
                    pci(address, "pci0000:80", "0000:80:01.0"),
                    physical_function=card,
                    virtual_function_index=number,
                )
                for number, address in enumerate(functions)
            ),
        ),
    )
    (group,) = build_picture(look(facts)).panels[0].groups
    assert [box.name for box in group.others] == ["NIC0", "7 VFs"]
    assert group.others[1].lines == (("virtual functions of NIC0",), ("7 of them offered",))


def test_a_node_full_of_links_has_a_picture_of_bounded_size() -> None:
    links = tuple(Link(n, f"dummy{n}", kind="dummy", virtual=True) for n in range(1, 2000))
    (panel,) = build_picture(look(NodeFacts(links=links))).panels
    assert len(panel.groups[0].others) == 49
    assert panel.groups[0].others[-1].lines == (("and 1951 more",),)


def test_what_is_offered_is_told_whole_on_a_phone_and_pushes_the_panels_down() -> None:
    picture = build_picture(look(SMALL))
    _, *lines, panel = islice(lay_out(picture, PHONE).shapes, 4)
    assert isinstance(panel, Rect)
    told = [line for line in lines if isinstance(line, Text)]
    assert len(told) == 2
    assert " ".join(line.text for line in told) == picture.subtitle
    assert panel.y > told[-1].y


def test_odd_names_are_escaped(tmp_path: Path) -> None:
    odd = replace(SMALL, host=Host("<&>\x1b\"'", product="\udcff\ufffe"))
    svg = draw_svg(look(odd))
    assert texts(svg)[0] == "<&>\\x1b\"'"
    (tmp_path / "utf8.svg").write_text(svg, encoding="utf-8")


# -- texts fit ------------------------------------------------------------------------------------------


def every_text(facts: NodeFacts, measures: Measures) -> Iterator[tuple[Text, float, float]]:
    """Each text of the picture with the left and right edge of what it is written on."""
    canvas = drawing(facts, measures)
    for shape in canvas.shapes:
        if isinstance(shape, Text):
            yield shape, 0, canvas.width
        elif isinstance(shape, Rect):
            assert shape.x >= 0
            assert shape.x + shape.width <= canvas.width
            assert shape.y + shape.height <= canvas.height
            yield from ((text, shape.x, shape.x + shape.width) for text in shape.texts)


def assert_all_texts_fit(facts: NodeFacts) -> None:
    both = chain(every_text(facts, DESK), every_text(facts, PHONE))
    for text, left, right in both:
        width = text_width(text.text, text.size, bold=text.bold)
        start = {"start": text.x, "middle": text.x - width / 2, "end": text.x - width}[text.anchor]
        assert width <= text.room + 0.01, text
        assert left <= start, text
        assert start + width <= right + 0.01, text


LONG = st.text(min_size=1, max_size=120)


@given(host=LONG, product=LONG, ifname=LONG, model=LONG, cpus=LONG)
def test_no_text_runs_over_the_edge_of_its_box(
    host: str, product: str, ifname: str, model: str, cpus: str
) -> None:
    address = SMALL.gpus[0].pci_address
    assert_all_texts_fit(
        replace(
            SMALL,
            links=tuple(replace(k, ifname=ifname) if k.ifname == "ens1f0" else k for k in SMALL.links),
            gpus=(Gpu(address, "nvidia", model=model),),
            host=Host(host, product=product),
            numa_nodes=(NumaNode(0, cpus), NumaNode(1, "4-7")),
        )
    )


@given(st.text(max_size=60), st.floats(0, 400))
def test_text_is_cut_to_the_room_that_there_is(text: str, room: float) -> None:
    fitted = fit_text(text, 12, room)
    assert text_width(fitted, 12) <= room + 0.001
    assert fitted == text or fitted in ("", fitted.rstrip("…") + "…")


@given(st.text(alphabet="abcXYZ 0123", min_size=1, max_size=60), st.sampled_from([10.5, 11, 12, 13, 22]))
def test_text_is_whole_where_the_room_is_its_own_width(text: str, size: float) -> None:
    assert fit_text(text, size, text_width(text, size)) == text


def test_of_several_words_the_first_ones_that_fit_whole_are_shown() -> None:
    words = ("NODE to 4 GPUs", "Mellanox ConnectX-7")
    assert fit_words(words, 11, 500) == "NODE to 4 GPUs · Mellanox ConnectX-7"
    assert fit_words(words, 11, 120) == "NODE to 4 GPUs"
    assert fit_words(words, 11, 60).endswith("…")
    assert fit_words(("", "b"), 11, 60) == "b"


def test_switches_in_switches_are_boxes_in_boxes_and_stay_on_the_canvas() -> None:
    outer = ("0000:20:01.0", "0000:21:00.0")
    inner = [(*outer, f"0000:22:0{n}.0", f"0000:3{n}:00.0") for n in (0, 1)]
    addresses = [f"0000:4{n}:0{m}.0" for n in (0, 1) for m in (0, 1)]
    functions = tuple(
        pci(address, "pci0000:20", *inner[n // 2], f"0000:5{n // 2}:0{n % 2}.0")
        for n, address in enumerate(addresses)
    )
    facts = NodeFacts(
        links=(nic(2, "a", addresses[0]), nic(3, "b", addresses[2])),
        pci_functions=(*functions, pci("0000:60:00.0", "pci0000:20", "0000:20:02.0")),
        gpus=(Gpu(addresses[1], "amd"), Gpu(addresses[3], "amd")),
    )
    (root,) = build_picture(look(facts)).panels[0].groups
    (switch,) = root.groups
    assert [group.bond for group in switch.groups] == [Distance.PIX, Distance.PIX]
    assert_all_texts_fit(facts)


# -- PNG ------------------------------------------------------------------------------------------------


def read_pixels(png: bytes) -> tuple[int, int, set[bytes]]:
    """Width, height and the distinct colours of an 8-bit RGBA image, by the PNG specification."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, colour = struct.unpack(">IIBB", png[16:26])
    assert (depth, colour) == (8, 6)
    data, position = b"", 8
    while position < len(png):
        (length,) = struct.unpack(">I", png[position : position + 4])
        if png[position + 4 : position + 8] == b"IDAT":
            data += png[position + 8 : position + 8 + length]
        position += length + 12
    return width, height, _colours(zlib.decompress(data), width)


def _colours(raw: bytes, width: int) -> set[bytes]:
    """Undo the row filters."""
    stride, above, found = width * 4, bytes(width * 4), set()
    for start in range(0, len(raw), stride + 1):
        kind, row = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        for i in range(stride):
            left = row[i - 4] if i >= 4 else 0
            corner = above[i - 4] if i >= 4 else 0
            guess = left + above[i] - corner
            nearest = min((left, above[i], corner), key=lambda value: abs(guess - value))
            row[i] = (row[i] + (0, left, above[i], (left + above[i]) // 2, nearest)[kind]) & 255
        above = bytes(row)
        found |= {above[i : i + 4] for i in range(0, stride, 4)}
    return found


TINY = Drawing(60, 30, "t", (Text(5, 20, "Wi", 14, "title", 50),))


@needs_pictures
def test_text_is_drawn_with_the_font_that_comes_along() -> None:
    """No system fonts are used, so what is black here is drawn by the packaged one."""
    with_text = render_png(render_svg(TINY))
    without = render_png(render_svg(replace(TINY, shapes=())))
    width, height, colours = read_pixels(with_text)
    assert (width, height) == (60 * ZOOM, 30 * ZOOM)
    assert b"\x1c\x23\x2b\xff" in colours
    assert read_pixels(without)[2] == {b"\xff\xff\xff\xff"}


@needs_pictures
def test_the_png_has_twice_the_size_of_the_svg(tmp_path: Path) -> None:
    capture, out = tmp_path / "facts.json", tmp_path / "out.png"
    capture.write_text(encode_capture(Capture(SMALL)))
    assert main(("topology", "--facts", str(capture), "-o", "png", "--output-file", str(out))) == 0
    size = struct.unpack(">II", out.read_bytes()[16:24])
    canvas = drawing(SMALL)
    assert size == (round(canvas.width * ZOOM), round(canvas.height * ZOOM))


def test_without_the_optional_packages_the_error_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dranet.pictures.svg.find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"pip install '\.\[pictures\]' in a checkout.*-o svg needs none"):
        render_png("<svg/>")


# -- the documentation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_in_the_documentation_is_not_stale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert (DOCUMENTATION / name).read_text() == print_out(PICTURES[name]), "run `make docs`"


@pytest.mark.parametrize("name", PAGES)
def test_the_outputs_in_the_documentation_are_real(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.delenv("COLUMNS", raising=False)
    page = (DOCUMENTATION / name).read_text()
    assert "```\n$ dranet " in page
    assert fill_page(page) == page, "run `make docs`"


def test_every_captured_machine_has_a_picture_whose_texts_fit() -> None:
    captures = sorted((REPOSITORY / "tests/data").glob("*/capture.json"))
    assert len(captures) >= 10
    for capture in captures:
        assert_all_texts_fit(read_capture(str(capture), "--facts").facts)
