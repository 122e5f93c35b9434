"""Draws curves with logarithmic axes as SVG."""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final, NamedTuple

WIDTH: Final = 470
HEIGHT: Final = 420
LEFT, RIGHT, TOP, BOTTOM = 62, 34, 34, 48
LEGEND_LINE: Final = 17
COLOURS: Final = ("#1f5fa8", "#c2571a", "#2d8a4e", "#8a4fb0", "#b0862a", "#4a9aa8", "#a83a5b", "#666666")
_STYLE: Final = (
    "text{font-family:sans-serif;font-size:12px;fill:#222}.title{font-size:14px;font-weight:bold}"
    ".grid{stroke:#ddd}.curve{fill:none;stroke-width:2}.linear{fill:none;stroke:#aaa;stroke-dasharray:4 4}"
)

Point = tuple[float, float]


class Curve(NamedTuple):
    """A name and its points, in the order of x. All coordinates are more than 0."""

    name: str
    points: Sequence[Point]


class Panel(NamedTuple):
    """Axes with some curves. A dashed line shows linear growth."""

    title: str
    x_title: str
    y_title: str
    curves: Sequence[Curve]


class _Axis(NamedTuple):
    """Whole decades from `low` to `high`, drawn from the pixel `start` to the pixel `end`."""

    low: int
    high: int
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (log10(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def list_decades(self) -> list[float]:
        """Return the values of the grid lines."""
        return [10.0**power for power in range(self.low, self.high + 1)]


def draw(panels: Sequence[Panel]) -> str:
    """Return the panels, side by side, as the text of an SVG file."""
    height = HEIGHT + LEGEND_LINE * max((len(each.curves) + 1 for each in panels), default=0) + 12
    parts = [part for number, panel in enumerate(panels) for part in _draw_panel(panel, number * WIDTH)]
    size = f'width="{WIDTH * len(panels)}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, background, *parts, "</svg>\n"])


def _draw_panel(panel: Panel, offset: int) -> Iterator[str]:
    yield f'<g transform="translate({offset},0)">'
    yield _write(f"{panel.title}, {panel.y_title}", LEFT, 20, "title")
    points = [point for curve in panel.curves for point in curve.points]
    if not points:
        yield _write("not measured", LEFT, 60)
    else:
        yield from _draw_curves(panel, points)
    yield "</g>"


def _draw_curves(panel: Panel, points: Sequence[Point]) -> Iterator[str]:
    across = _make_axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    up = _make_axis([y for _, y in points], HEIGHT - BOTTOM, TOP)
    yield from _draw_grid(across, up)
    yield _write(panel.x_title, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, anchor="middle")
    yield _draw_linear(across, up)
    for number, curve in enumerate(panel.curves):
        colour = COLOURS[number % len(COLOURS)]
        if curve.points:
            places = " ".join(f"{across.place(x)},{up.place(y)}" for x, y in curve.points)
            yield f'<polyline class="curve" stroke="{colour}" points="{places}"/>'
        for x, y in curve.points:
            yield f'<circle cx="{across.place(x)}" cy="{up.place(y)}" r="3" fill="{colour}"/>'
        line = HEIGHT + 6 + number * LEGEND_LINE
        yield f'<rect x="{LEFT}" y="{line - 9}" width="14" height="4" fill="{colour}"/>'
        yield _write(curve.name, LEFT + 20, line - 3)
    yield _write("dashed: linear growth", LEFT + 20, HEIGHT + 3 + len(panel.curves) * LEGEND_LINE)


def _make_axis(values: Sequence[float], start: float, end: float) -> _Axis:
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return _Axis(low, max(high, low + 1), start, end)


def _draw_grid(across: _Axis, up: _Axis) -> Iterator[str]:
    for value in across.list_decades():
        x = across.place(value)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{up.start}" y2="{up.end}"/>'
        yield _write(f"{value:,.9g}", x, up.start + 16, anchor="middle")
    for value in up.list_decades():
        y = up.place(value)
        yield f'<line class="grid" x1="{across.start}" x2="{across.end}" y1="{y}" y2="{y}"/>'
        yield _write(f"{value:,.9g}", across.start - 6, y + 4, anchor="end")


def _draw_linear(across: _Axis, up: _Axis) -> str:
    """Draw linear growth from the lower left corner, as far as the axes go."""
    decades = min(across.high - across.low, up.high - up.low)
    ends = [(across.place(10.0 ** (across.low + n)), up.place(10.0 ** (up.low + n))) for n in (0, decades)]
    return f'<polyline class="linear" points="{" ".join(f"{x},{y}" for x, y in ends)}"/>'


def _write(text: str, x: float, y: float, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'
