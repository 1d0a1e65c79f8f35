"""The page of the node in a real browser: on a phone and on a desk, by day and by night."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dranet.driver.status_page.content import Content, SeenClaim
from tests.data.layouts import LAYOUTS
from tests.driver.page import contents
from tests.driver.page.conftest import PagePort
from tests.support.screen import Screen

pytestmark = pytest.mark.process

WIDTHS = (360, 768, 1280)
PAGES = {"empty": contents.empty, "full": contents.full, "hostile": contents.hostile, "large": contents.large}


@pytest.fixture(scope="module", params=PAGES)
def content(request: pytest.FixtureRequest) -> Content:
    return PAGES[request.param]()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_is_cut_off_or_leaves_its_box_and_the_page_is_no_wider_than_the_screen(
    screen: Screen, port: PagePort, content: Content, width: int
) -> None:
    port.content = content
    with screen.look(port.url, width) as sight:
        assert sight.find_overflows() == []
        assert sight.complaints == [], "a page without scripts, calls and errors"


@pytest.mark.parametrize("width", [360, 1280])
def test_no_single_word_of_the_driver_is_broken_over_two_lines(
    screen: Screen, port: PagePort, width: int
) -> None:
    port.content = contents.full()
    with screen.look(port.url, width) as sight:
        lines = sight.page.locator("table span:not(.name)").evaluate_all(
            "spans => spans.map(span => [span.textContent, span.getClientRects().length])"
        )
    assert ["DeviceUnhealthy", 1] in lines
    assert [word for word, count in lines if " " not in word and count > 1] == []


@pytest.mark.parametrize("width", [360, 768, 1024, 1280])
def test_a_name_is_broken_after_a_hyphen_or_slash_only(screen: Screen, port: PagePort, width: int) -> None:
    content = contents.full()
    record = contents.new_claim(7, "work", [content.claims[0].record.devices[-1].device])
    record = replace(record, claim=replace(record.claim, namespace="default", name="nics"))
    pod = replace(record.pod, namespace="default", name="worker-0")
    port.content = replace(content, claims=[*content.claims, SeenClaim(replace(record, pod=pod), True)])
    with screen.look(port.url, width) as sight:
        assert "default/worker-0" in sight.find_elements(".name")
        assert sight.find_broken_names() == []
        assert sight.find_overflows() == []


@pytest.mark.parametrize("width", [360, 1024, 1280])
def test_a_name_without_hyphens_is_broken_where_it_must_be(
    screen: Screen, port: PagePort, width: int
) -> None:
    """As long as a label of DNS can be."""
    content = contents.full()
    record = contents.new_claim(7, "p" * 63, [content.claims[0].record.devices[-1].device], name="c" * 63)
    port.content = replace(content, claims=[*content.claims, SeenClaim(record, is_attached=True)])
    with screen.look(port.url, width) as sight:
        assert sight.find_overflows() == []


def test_a_link_keeps_its_name_in_table_and_picture_while_a_pod_has_it(
    screen: Screen, port: PagePort
) -> None:
    port.content = contents.full()
    with screen.look(port.url, 1280) as sight:
        row = sight.page.get_by_role("row", name="pci-0000-18-00-0").last
        assert "enp24s0np0 · mlx5_0" in row.inner_text()
        assert "enp24s0np0 · mlx5_0" in sight.find_elements("svg.desk text")


def test_readiness_is_a_badge_that_opens_and_open_while_a_part_is_not_ready(
    screen: Screen, port: PagePort
) -> None:
    for content, is_open in ((contents.full(), False), (contents.empty(), True)):
        port.content = content
        with screen.look(port.url, 1280) as sight:
            details = sight.page.locator("details table")
            assert details.is_visible() is is_open
            sight.page.locator("summary").click()
            assert details.is_visible() is not is_open


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_text_stands_out_from_its_ground(
    screen: Screen, port: PagePort, scheme: str, width: int
) -> None:
    for content in (contents.full(), contents.empty()):
        port.content = content
        with screen.look(port.url, width, scheme) as sight:
            assert sight.find_faint() == []


def test_a_screen_reader_finds_its_way(screen: Screen, port: PagePort) -> None:
    port.content = contents.full()
    for width in (360, 1280):
        with screen.look(port.url, width) as sight:
            roles = sight.find_roles()
            assert [roles[name] for name in ("banner", "navigation", "main", "contentinfo")] == [1, 1, 1, 1]
            assert roles["table"] == 4, "cards on a phone are a table still"
            assert roles["row"] == len(sight.find_elements("section tr"))
            assert sight.find_elements("h1") == ["node-1"]
            assert sight.find_elements("h2") == [
                "Claims", "Topology", "Devices", "Recent events", "Surroundings"
            ]  # fmt: skip
            picture = sight.page.get_by_role("img", name="dgx-00")
            assert picture.is_visible()


def test_the_picture_shows_who_has_what_and_what_does_not_work(screen: Screen, port: PagePort) -> None:
    port.content = contents.full()
    with screen.look(port.url, 1280) as sight:
        assert len(sight.find_elements("svg.desk g rect.taken")) == 7 + 1, "devices, and the legend"
        assert len(sight.find_elements("svg.desk g rect.faulty")) == 1 + 1
        assert "in llama-worker-0" in sight.find_elements("svg text")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_machine_has_a_picture_that_fits_on_a_phone_and_on_a_desk(
    screen: Screen, port: PagePort, layout: str
) -> None:
    port.content = contents.bare(layout)
    for width, name in ((360, "phone"), (1280, "desk")):
        with screen.look(port.url, width) as sight:
            assert sight.find_overflows() == []
            assert sight.find_faint() == []
            shown = sight.page.locator(f"svg.{name}")
            assert shown.is_visible()
            box = shown.bounding_box()
            assert box is not None
            assert box["width"] <= width - 2 * 16, "nobody has to scroll"


def test_a_small_picture_is_not_blown_up(screen: Screen, port: PagePort) -> None:
    port.content = contents.empty()
    with screen.look(port.url, 1280) as sight:
        picture = sight.page.locator("svg.desk")
        box, own = picture.bounding_box(), picture.get_attribute("width")
        assert box is not None
        assert own is not None
        assert box["width"] == float(own) < 1100


def test_of_which_moment_it_is_stands_at_the_top_and_a_card_has_no_empty_lines(
    screen: Screen, port: PagePort
) -> None:
    port.content = contents.full()
    with screen.look(port.url, 360) as sight:
        assert "as of 2026-09-21 14:13:20 UTC" in sight.page.locator("header").inner_text()
        shown = sight.page.locator("section", has=sight.page.locator("#devices")).inner_text()
        assert "-" not in shown.split()
    with screen.look(port.url, 1280) as sight:
        assert sight.find_elements("#main td.none")
        assert sight.page.locator("#main td.none").first.is_visible()


def test_what_devices_and_pods_are_called_is_text_and_nothing_else(screen: Screen, port: PagePort) -> None:
    port.content = contents.hostile()
    with screen.look(port.url, 1280) as sight:
        assert sight.find_elements("script, img, iframe, object, form") == []
        assert sight.page.locator("[onerror], [onload], [style]").count() == 0
        shown = sight.page.locator("h1").inner_text()
        assert shown.startswith("</style></td></svg><script>alert(1)</script>")
        assert "\\x1b[31m\\u202e" in shown, (
            "what would move the cursor, or turn the words around, is an escape"
        )


def test_who_has_no_style_sheet_can_read_it(screen: Screen, port: PagePort) -> None:
    port.content = contents.full()
    with screen.look(port.url, 1280) as sight:
        sight.page.evaluate("document.querySelectorAll('style').forEach(style => style.remove())")
        text = sight.page.locator("main").inner_text()
        assert "train/llama-worker-0-nics" in text
        assert "SameNUMANode" in text or "WorseThanPossible" in text


def test_the_policy_lets_nothing_run_even_if_something_got_in(screen: Screen, port: PagePort) -> None:
    port.content = contents.full()
    with screen.look(port.url, 1280) as sight:
        for name, field, value in (
            ("script", "text", "window.ran = 1"),
            ("img", "src", "http://127.0.0.1:1/"),
        ):
            sight.page.evaluate(
                "([name, field, value]) => document.body.append("
                "Object.assign(document.createElement(name), {[field]: value}))",
                [name, field, value],
            )
        assert sight.page.evaluate("window.ran") is None
        told = " ".join(sight.complaints)
        assert "script-src" in told
        assert "img-src" in told
