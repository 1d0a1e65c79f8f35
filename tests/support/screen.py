"""Looks at a page in a browser as a person with good eyes and a ruler would.

What is found comes back as sentences, so that a failure says which text is where it should not be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from testbed.debian.browser import HeadlessBrowser, fetch_browser
from testbed.debian.packages import Unavailable, cache_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_OVERFLOWS = """scrolled => {
  const told = [], root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) told.push(`the page is ${root.scrollWidth} wide`);
  const isScrolled = node => node.closest(scrolled);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest('svg, script, style') || isScrolled(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    let box = parent;
    while (getComputedStyle(box).display === 'inline') box = box.parentElement;
    const inner = box.getBoundingClientRect();
    for (const rect of range.getClientRects()) {
      const left = Math.max(inner.left, 0), right = Math.min(inner.right, root.clientWidth);
      if (rect.left < left - 1 || rect.right > right + 1)
        told.push(`"${node.data.slice(0, 40)}" runs from ${rect.left} to ${rect.right}, its box to ${right}`);
    }
  }
  for (const element of document.body.querySelectorAll('*')) {
    if (element.closest('svg') || isScrolled(element)) continue;
    const style = getComputedStyle(element);
    const isClipped = style.overflowX !== 'visible' && element.scrollWidth > element.clientWidth + 1;
    if (isClipped) told.push(`${element.tagName} is clipped`);
  }
  return told.slice(0, 20);
}"""

_PICTURE = """() => {
  const told = [], inside = (text, frame, who) => {
    const a = text.getBoundingClientRect(), b = frame.getBoundingClientRect();
    if (a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1)
      told.push(`"${text.textContent}" runs over ${who}`);
  };
  for (const svg of document.querySelectorAll('svg')) {
    for (const text of svg.querySelectorAll('text:not(:empty)')) {
      inside(text, svg, 'the picture');
      const frame = text.parentElement.querySelector(':scope > rect');
      if (text.parentElement !== svg) inside(text, frame, 'its box');
    }
    for (const g of svg.querySelectorAll('g')) {
      const boxes = [...g.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()]);
      for (const [i, [one, a]] of boxes.entries()) for (const [other, b] of boxes.slice(i + 1))
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
          told.push(`"${one.textContent}" covers "${other.textContent}"`);
    }
  }
  return told.slice(0, 20);
}"""

_CONTRAST = """() => {
  const told = [], numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = colour => {
    const [r, g, b] = numbers(colour).map(
      v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const isSeen = colour => colour.startsWith('rgb') && (numbers(colour)[3] ?? 1) > 0;
  const ratio = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  };
  const ground = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (isSeen(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const judge = (element, colour, behind) => {
    const found = ratio(colour, behind);
    const words = `"${element.textContent.slice(0, 30)}": ${found.toFixed(2)} (${colour} on ${behind})`;
    if (found < 4.5) told.push(words);
  };
  for (const element of document.body.querySelectorAll('*')) {
    const isText = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (element.closest('svg') || !isText) continue;
    judge(element, getComputedStyle(element).color, ground(element));
  }
  for (const text of document.querySelectorAll('svg text')) {
    const svg = text.closest('svg');
    const frame = text.parentElement === svg ? svg.querySelector('rect.page')
                                             : text.parentElement.querySelector(':scope > rect');
    judge(text, getComputedStyle(text).fill, getComputedStyle(frame).fill);
  }
  return [...new Set(told)].slice(0, 20);
}"""


_BROKEN_NAMES = r"""() => {
  const told = [];
  for (const span of document.querySelectorAll('.name')) {
    const text = span.firstChild;
    let start = 0;
    for (const piece of text.data.split(/(?<=[-\/. ])/)) {
      const range = document.createRange();
      range.setStart(text, start);
      range.setEnd(text, start += piece.length);
      if (range.getClientRects().length > 1) told.push(`"${piece}" of "${text.data}" is on two lines`);
    }
  }
  return told;
}"""


@dataclass
class Sight:
    """A page as it is shown now."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """What the console said, and what the page asked for beside itself."""

    def resize(self, width: int, scheme: str) -> None:
        """Show the page on a screen of that width."""
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    def find_overflows(self) -> list[str]:
        """Text outside its box, cut off, or beyond the edge of the screen."""
        return [*self.find_text_overflows(".scroll, .skip, thead"), *self.find_picture_overflows()]

    def find_text_overflows(self, scrolled: str) -> list[str]:
        """The same without pictures; what the selector ``scrolled`` names may be wider than its box."""
        return list(self.page.evaluate(_OVERFLOWS, scrolled))

    def find_picture_overflows(self) -> list[str]:
        return self._ask(_PICTURE)

    def find_faint(self) -> list[str]:
        """Text whose contrast is less than 4.5."""
        return self._ask(_CONTRAST)

    def find_broken_names(self) -> list[str]:
        """Names that are broken elsewhere than after ``-``, ``/`` or ``.``."""
        return self._ask(_BROKEN_NAMES)

    def find_elements(self, selector: str) -> list[str]:
        """Their texts."""
        return self.page.locator(selector).all_text_contents()

    def find_roles(self) -> dict[str, int]:
        """How often each role is there, as a screen reader is told."""
        roles = ("banner", "navigation", "main", "contentinfo", "heading", "table", "row", "region", "img")
        return {role: self.page.get_by_role(role).count() for role in roles}  # type: ignore[arg-type]

    def _ask(self, script: str) -> list[str]:
        answer: Any = self.page.evaluate(script)
        return list(answer)


class Screen:
    """A browser with no window."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @contextmanager
    def look(self, url: str, width: int, scheme: str = "light") -> Iterator[Sight]:
        """``url`` as a screen of that width shows it."""
        context = self._browser.new_context(ignore_https_errors=True)
        page = context.new_page()
        sight = Sight(page)
        sight.resize(width, scheme)
        page.on("console", lambda message: sight.complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: sight.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: sight.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: sight.complaints.append(f"asks for {request.url}"))
        page.goto(url)
        sight.complaints.remove(f"asks for {page.url}")
        if "asks for data:," in sight.complaints:  # the icon that is none
            sight.complaints.remove("asks for data:,")
        try:
            yield sight
        finally:
            context.close()


@contextmanager
def open_screen(browser: HeadlessBrowser) -> Iterator[Screen]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=browser.program, args=["--no-sandbox"], env=dict(browser.environment)
        )
        try:
            yield Screen(launched)
        finally:
            launched.close()


@pytest.fixture(scope="session")
def browser() -> HeadlessBrowser:
    """Downloaded once; skips by name where it cannot be had."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    try:
        return fetch_browser(cache_folder("browser"), print)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def screen(browser: HeadlessBrowser) -> Iterator[Screen]:
    with open_screen(browser) as opened:
        yield opened
