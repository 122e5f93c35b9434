"""Parts of drawings: SVG text for boxes, arrows and the frame around them."""

from collections.abc import Iterable
from html import escape
from typing import Final

WIDTH: Final = 860
"""The width of every drawing, in pixels."""
_STYLE: Final = (
    "text{font-family:sans-serif;font-size:14px;fill:#222}.name{font-weight:bold}.note{fill:#555;font-size:12px}"
    ".label{fill:#555;font-size:12px;text-anchor:middle}"
    "rect{fill:#eef3f8;stroke:#5b7a99}.frame{fill:none;stroke-dasharray:4}"
    "path{fill:none;stroke:#8a8a8a}.process{fill:#345;font-weight:bold}"
)


def box(x: float, y: float, width: float, name: str, note: str) -> list[str]:
    """Return a box of 46 pixels height with its upper left corner at (x, y), a name and a note."""
    return [
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="46" rx="4"/>',
        f'<text class="name" x="{x + 8:.0f}" y="{y + 19:.0f}">{escape(name)}</text>',
        f'<text class="note" x="{x + 8:.0f}" y="{y + 37:.0f}">{escape(note)}</text>',
    ]


def arrow(path: str) -> str:
    """Return an arrow along a path, in the language of the attribute `d` of SVG."""
    return f'<path marker-end="url(#end)" d="{path}"/>'


def frame(lines: Iterable[str], height: float) -> str:
    """Return the text of an SVG file with these elements. `height`: in pixels."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}">'
    marker = (
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8" /></marker></defs>'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", marker, *lines, "</svg>", ""])
