"""The documentation as a site: ``make docs``."""

import re

from sphinx.application import Sphinx

from mlflow_ngraph.version import __version__

project = "mlflow-ngraph"
author = "the mlflow-ngraph developers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "mlflow-ngraph"
html_show_copyright = False
html_show_sourcelink = False
html_static_path = html_css_files = ["site.css"]
html_theme_options = {"source_repository": "", "navigation_with_keys": True}

# Anchors as they are on the host of the repository, so that one link works in both.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
copybutton_prompt_text = "$ "


autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False


def _name_rows(_app: object, _page: str, source: list[str]) -> None:
    """Make targets of the rows that pages name as HTML does."""
    source[0] = re.sub(r'<a id="(\w+)"></a>', "[\u200b]{#\\1}", source[0])


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _name_rows)
