"""How `make docs` builds the site from the pages: Sphinx with MyST. Nothing is fetched, while it is built or read."""

from importlib import metadata

project = "Leasehold"
author = "the Leasehold contributors"
release = metadata.version("leasehold")
extensions = ["myst_parser", "sphinx_copybutton"]
# A copy of a command has neither its prompt nor its output.
copybutton_prompt_text = "$ "
myst_heading_anchors = 5
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Leasehold {release}"
html_copy_source = False
html_show_sourcelink = False
nitpicky = True
