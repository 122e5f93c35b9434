"""The page Forecasts: how well the forecasts of starts were kept, by classes of reservations, with a picture of the
stated probabilities beside what happened.
"""

from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.console.page import Page, backend, caller, render

SIDE: Final = 200
"""Width and height of the picture, in its own units."""


@dataclass(frozen=True)
class Calibration:
    """A picture of one class: a point for each stated probability, at the part of the starts that kept it."""

    points: tuple[tuple[float, float], ...]
    """(x, y) from the top left, in units of the picture."""
    texts: tuple[str, ...]

    @property
    def line(self) -> str:
        """The points as SVG writes them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)


def draw_calibration(pairs: list[list[float]]) -> Calibration:
    """Draw (stated probability, part of the starts before the stated time) for some probabilities."""
    points = tuple((stated * SIDE, (1 - seen) * SIDE) for stated, seen in pairs)
    return Calibration(points, tuple(f"{stated:.0%} stated, {seen:.0%} started by then" for stated, seen in pairs))


async def show_forecasts(request: Request) -> Response:
    """Show the quality of the forecasts by class."""
    client = await backend(request).client(caller(request))
    found: dict[str, Any] = await client.foresight()
    qualities = found.get("qualities", [])
    overall = next((each for each in qualities if each["name"] == "all"), None)
    pairs = overall.get("calibration") if overall else None
    return render(
        request,
        "forecasts.html",
        page="forecasts",
        found=found,
        age=client.now() - found["as_of"] if found else None,
        overall=overall,
        qualities=[each for each in qualities if each is not overall],
        picture=draw_calibration(pairs) if pairs else None,
        side=SIDE,
    )


PAGE: Final = Page("forecasts", "Forecasts", "/forecasts", 650, [Route("/forecasts", show_forecasts)])
