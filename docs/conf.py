"""How `make docs` builds the site from the pages: Sphinx with MyST. Nothing is fetched, while it is built or read."""

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

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


def setup(app: Sphinx) -> None:
    """Show the source of Mermaid drawings, which GitHub draws: drawing them here needs a program from the network."""
    app.add_lexer("mermaid", TextLexer)
