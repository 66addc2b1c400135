"""The settings of the site, which ``make docs`` builds from these pages and the docstrings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Source"]

project = "rsocket_trio"
author = "the rsocket_trio developers"
project_copyright = author
version = release = PROJECT["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinxcontrib_trio"]
exclude_patterns = ["newsfragments"]
# Nothing is fetched: `make docs-inventories` renews these files.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "inventories/python.inv"),
    "trio": ("https://trio.readthedocs.io/en/stable", "inventories/trio.inv"),
}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
myst_heading_anchors = 4
html_theme = "furo"
html_title = "rsocket_trio"
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e4f", "color-brand-content": "#0b6e4f"},
    "dark_css_variables": {"color-brand-primary": "#5fd3a6", "color-brand-content": "#5fd3a6"},
}


def link_to_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Have links to files that are no pages of the site lead to the repository."""
    folder = (app.srcdir / page).parent

    def absolute(link: re.Match[str]) -> str:
        path = (folder / link[1]).resolve()
        if not path.exists() or (path.is_relative_to(app.srcdir) and "newsfragments" not in path.parts):
            return link[0]
        return f"]({REPOSITORY}/blob/main/{path.relative_to(app.srcdir.parent).as_posix()})"

    source[0] = re.sub(r"\]\(([^)#:]+)\)", absolute, source[0])


def setup(app: Sphinx) -> None:
    """Register what these pages need."""
    app.connect("source-read", link_to_repository)
    app.add_lexer("haproxy", TextLexer)
