"""How Sphinx builds the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

_PACKAGE = Path(__file__).parent.parent / "src" / "treesnap" / "__init__.py"
_VERSION = re.search(r'__version__ = "(.+)"', _PACKAGE.read_text(encoding="utf-8"))
assert _VERSION

project = "treesnap"
author = "The treesnap developers"
copyright = author
release = version = _VERSION[1]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["build"]
nitpicky = True
# Only our own names have to resolve: the build needs no network, so it knows no
# other project's names.
nitpick_ignore_regex = [("py:.*", r"(?!treesnap\.).*")]
# What a handle is made of is not public: programs call treesnap.open.
nitpick_ignore = [("py:class", "treesnap.core.ops.context.Context")]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
python_maximum_signature_line_length = 80

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["treesnap.css"]
pygments_style, pygments_dark_style = "friendly", "monokai"
html_title = f"treesnap {release}"


def clear_generated_docstring(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Leaves a field of a named tuple undescribed, rather than saying its number."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def setup(app: Sphinx) -> None:
    """Connects what this file adds to the build."""
    app.connect("autodoc-process-docstring", clear_generated_docstring)
