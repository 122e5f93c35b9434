"""How `make docs` builds the site from the pages: Sphinx with MyST. Nothing is fetched, while it is built or read."""

project = "Leasehold"
author = "the Leasehold contributors"
extensions = ["myst_parser"]
myst_heading_anchors = 5
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Leasehold"
html_copy_source = False
html_show_sourcelink = False
nitpicky = True
