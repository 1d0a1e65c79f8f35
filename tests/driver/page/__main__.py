"""Draws the pictures of ``docs/operations/status-page.md`` anew: ``python -m tests.driver.page``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from msgspec.structs import replace

from dranet.driver.status_page.document import render
from testbed.debian.browser import fetch_browser
from testbed.debian.packages import cache_folder
from tests.driver.page import contents
from tests.support.screen import open_screen

DOCUMENTATION = Path(__file__).parents[3] / "docs/operations"
PICTURES = {
    "status-page.png": (1280, 1300, "light", ""),
    "status-page-phone.png": (360, 760, "dark", "#topology"),
}


def main() -> None:
    content = contents.full()
    browser = fetch_browser(cache_folder("browser"), print)
    with tempfile.TemporaryDirectory() as folder, open_screen(browser) as screen:
        document = Path(folder) / "page.html"
        document.write_bytes(render(replace(content, driver=replace(content.driver, node="dgx-00"))))
        for name, (width, height, scheme, anchor) in PICTURES.items():
            with screen.look(document.as_uri(), width, scheme) as sight:
                sight.page.set_viewport_size({"width": width, "height": height})
                sight.page.goto(f"{document.as_uri()}{anchor}")
                sight.page.screenshot(path=DOCUMENTATION / name)


if __name__ == "__main__":
    main()
