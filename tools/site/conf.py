"""Configuration of Sphinx; the manuals of Sphinx, MyST and Furo explain the options."""

from __future__ import annotations

from pygments.lexers.go import GoLexer
from sphinx.application import Sphinx

from dranet import __version__
from tools.project import REPOSITORY
from tools.site.pages import PROJECT, add_index_entries, add_navigation, copy_index, lead_outside_links_home

project = "dranet"
version = release = __version__
html_title = f"dranet {__version__}"

extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "README"  # the index that code hosts show as well
exclude_patterns = ["**/*.yaml"]
nitpicky = True
smartquotes = False  # it makes one dash of the two of --flag

myst_heading_anchors = 4  # the anchors that code hosts give to headings
myst_enable_extensions: list[str] = []  # what code hosts do not show has no place in the pages

highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # excerpts with "..."; tests/documents judges the blocks
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # outputs are not for copying
copybutton_prompt_text = "$ "

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("sidebar.js", {"defer": "defer"})]
html_search_scorer = str(REPOSITORY / "tools/site/scorer.js")
html_favicon = str(REPOSITORY / "charts/icon.svg")
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "source_view_link": PROJECT.page("docs/{filename}"),
    "top_of_page_buttons": ["view"],
}

linkcheck_ignore = [r"https?://([\w-]+\.)*example\.(com|net|org)"]
linkcheck_anchors = False  # many sites make theirs with scripts


def setup(app: Sphinx) -> None:
    app.add_lexer("cel", GoLexer)  # Pygments has none for CEL, whose literals and operators resemble Go
    app.connect("source-read", add_navigation)
    app.connect("source-read", add_index_entries)
    app.connect("source-read", lead_outside_links_home)
    app.connect("build-finished", copy_index)
