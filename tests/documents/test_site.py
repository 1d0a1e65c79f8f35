"""The site of the documentation: Sphinx builds it without a warning, and every page fits on its screen."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dranet import __version__
from tests.documents.blocks import REPOSITORY
from tests.support.screen import Screen, Sight
from tools.site.pages import DOCS, PROJECT, SECTIONS, list_pages

# The build of the site counts for the first test; on a busy machine it takes longer than other tests may.
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PAGES = sorted(str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md"))
SCREENS = ((390, "dark"), (1280, "light"))
SCROLLED = ".table-wrapper, .highlight, .sidebar-drawer, .toc-drawer, .visually-hidden, .skip-to-content"
"""What may be wider than its box: tables and code scroll, drawers wait outside, the rest is not shown."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "html"
    built = subprocess.run(
        [sys.executable, "-m", "tools.site", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert (built.returncode, built.stderr) == (0, ""), built.stderr
    return folder


def hrefs(page: Path) -> list[str]:
    return re.findall(r'href="([^"]+)"', page.read_text())


def test_the_sidebar_leads_to_every_page_and_the_front_page_is_where_servers_look(site: Path) -> None:
    front = site / "index.html"
    linked = {href.partition("#")[0] for href in hrefs(front)} | {
        f"decisions/{href}" for href in hrefs(site / "decisions/README.html")
    }
    assert {f"{page}.html" for page in PAGES} - linked - {"README.html"} == set()
    captions = re.findall(r'class="caption-text">([^<]+)<', front.read_text())
    assert captions == list(SECTIONS.values())
    assert f"dranet {__version__}" in front.read_text()


def test_pages_follow_the_order_of_the_index(site: Path) -> None:
    first, second, *_ = list_pages("guides")
    assert f"{Path(second).name}.html" in re.findall(
        r'<a class="next-page" href="([^"]+)"', (site / f"{first}.html").read_text()
    )


def test_links_that_leave_the_pages_lead_to_this_version_at_the_home_of_the_project(site: Path) -> None:
    start = PROJECT.page("")
    leaving = {
        href.removeprefix(start)
        for page in PAGES
        for href in hrefs(site / f"{page}.html")
        if href.startswith(start)
    }
    assert {"examples", "benchmarks/README.md#a-run"} <= leaving
    assert [path for path in leaving if not (REPOSITORY / path.partition("#")[0]).exists()] == []


def test_the_search_knows_the_words_of_the_pages(site: Path) -> None:
    text = (site / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    pages = index["docnames"]

    def find(term: str) -> set[str]:
        found = index["terms"].get(term, [])
        return {pages[number] for number in ([found] if isinstance(found, int) else found)}

    assert "reference/metrics" in find("dranet_build_info")
    assert "reference/settings" in find("kubelet_root")
    assert len(find("resourceclaim")) > 5
    assert set(pages) == set(PAGES)


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def list_complaints(sight: Sight, site: Path) -> Iterator[str]:
    """All but the requests for files of the site itself."""
    own = f"asks for {site.as_uri()}/"
    return (complaint for complaint in sight.complaints if not complaint.startswith(own))


def test_the_page_fits_on_a_phone_and_on_a_desk(screen: Screen, site: Path, page: str) -> None:
    with screen.look((site / f"{page}.html").as_uri(), *SCREENS[0]) as sight:
        for width, scheme in SCREENS:
            sight.resize(width, scheme)
            sight.page.wait_for_function("[...document.images].every(image => image.complete)")
            assert sight.find_text_overflows(SCROLLED) == [], width
            assert list(list_complaints(sight, site)) == [], "the site needs nothing but itself"
            broken = "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
            assert sight.page.evaluate(broken) == [], scheme
            assert sight.find_faint() == [], scheme


def test_the_check_sees_what_does_not_fit_and_what_is_faint(screen: Screen, site: Path) -> None:
    with screen.look((site / "index.html").as_uri(), 390) as sight:
        sight.page.evaluate(
            "document.querySelector('article').insertAdjacentHTML('beforeend', "
            '\'<p style="width: 900px; color: #ccc">wide and faint</p><img src="https://127.0.0.1:1/x.png">\')'
        )
        assert sight.find_text_overflows(SCROLLED)
        assert "wide and faint" in "".join(sight.find_faint())
        sight.page.wait_for_function("[...document.images].every(image => image.complete)")
        assert "asks for https://127.0.0.1:1/x.png" in list_complaints(sight, site)


def test_commands_have_a_button_that_copies_them_and_outputs_have_none(screen: Screen, site: Path) -> None:
    with screen.look((site / "guides/quickstart.html").as_uri(), 1280) as sight:
        assert sight.page.locator("div.highlight-none button.copybtn").count() > 3
        assert sight.page.locator("div.highlight-text button.copybtn").count() == 0


def test_options_keep_their_two_dashes(site: Path) -> None:
    assert "(--bind-address" in (site / "reference/doctor-checks.html").read_text()


@pytest.mark.parametrize("page", ["guides/concepts", "operations/troubleshooting", "reference/versions"])
def test_the_sidebar_shows_where_the_reader_is(screen: Screen, site: Path, page: str) -> None:
    with screen.look((site / f"{page}.html").as_uri(), 1280) as sight:
        box = sight.page.locator(".sidebar-tree .current-page > a").bounding_box()
        height = sight.page.evaluate("window.innerHeight")
        assert box is not None
        assert 0 < box["y"] < height - box["height"]
        assert sight.page.evaluate("window.scrollY") == 0, "the page itself stays at its top"


def search(screen: Screen, site: Path, words: str) -> list[str]:
    """The pages found, best first, as the site's own search finds them without a server."""
    with screen.look(f"{(site / 'search.html').as_uri()}?q={words}", 390) as sight:
        sight.page.wait_for_function(
            "document.querySelector('#search-results p').textContent.includes('found')"
        )
        found = sight.page.locator("ul.search li a").evaluate_all("links => links.map(link => link.href)")
    return [href.partition("/html/")[2].partition(".html")[0] for href in found]


@pytest.mark.parametrize(
    ("words", "page"), [("NIC down", "operations/health"), ("runbook", "reference/alerts")]
)
def test_the_search_puts_the_page_first_that_is_meant(
    screen: Screen, site: Path, words: str, page: str
) -> None:
    assert search(screen, site, words)[0] == page


def test_the_search_finds_pages_and_those_for_users_first(screen: Screen, site: Path) -> None:
    assert "reference/settings" in search(screen, site, "kubelet_root")
    folders = [page.partition("/")[0] for page in search(screen, site, "dhcp")]
    are_for_developers = [folder in ("decisions", "dev") for folder in folders]
    assert len(folders) > 3
    assert are_for_developers == sorted(are_for_developers)
    assert any(are_for_developers)
