"""The documentation as a site: ``make docs``."""

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
html_theme_options = {"source_repository": "", "navigation_with_keys": True}

# Anchors as they are on the host of the repository, so that one link works in both.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
copybutton_prompt_text = "$ "


autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
