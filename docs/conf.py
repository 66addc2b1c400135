"""The settings of the site, which ``make docs`` builds from these pages and the docstrings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import rsocket_trio

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
# What other libraries' classes have is not repeated.
FOREIGN = "BaseException, Exception, StreamingQueryListener, DataSource, Protocol, Generic, ABC, dict, tuple"
autodoc_default_options = {"members": True, "inherited-members": FOREIGN}
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


def find_attributes(app: Sphinx) -> None:
    """Have the attributes documented of classes that say to be of the package, which is not the module they are in."""
    package = ModuleAnalyzer.for_module("rsocket_trio")
    package.analyze()
    for home in rsocket_trio._HOMES:
        module = ModuleAnalyzer.for_module(f"rsocket_trio.{home}")
        module.analyze()
        package.attr_docs |= module.attr_docs
        package.annotations |= module.annotations
        package.tagorder |= module.tagorder


def shorten_signature(
    app: Sphinx, what: str, name: str, thing: object, options: object, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Show no arguments of a class whose directive has ``()``, as users do not make it, and shorten defaults."""
    if signature is None:
        return None
    if what == "class" and signature == "()":
        return "", None
    return re.sub(r"\b(Limits|StreamuxOptions|Backoff|CallTerms)\([^()]+\)", r"\1()", signature), returned


def setup(app: Sphinx) -> None:
    """Register what these pages need."""
    app.connect("source-read", link_to_repository)
    app.connect("builder-inited", find_attributes)
    app.connect("autodoc-process-signature", shorten_signature)
    app.add_lexer("haproxy", TextLexer)
