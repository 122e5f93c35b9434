"""The strips of the last hour on the pages Fleet and Queues: how many reservations wait, the leased share, launches and
the longest wait, each as a small curve with its change in words.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from leasehold.console.page import backend, format_span, keep
from leasehold.errors import Unavailable
from scheduler.model.history import HOUR_SECONDS, Sample, find_last_hour
from scheduler.ports import ViewUnavailableError
from scheduler.view.connection import make_redis
from scheduler.view.redis_clock import RedisClock
from scheduler.view.redis_view_cache import RedisViewCache

KEPT_SECONDS: Final = 5.0
"""Seconds for which one read of the history is used for all pages."""
MINUTES: Final = 60
WIDTH, HEIGHT = 240, 40
_STEP: Final = WIDTH / MINUTES
_FULL_HOUR: Final = HOUR_SECONDS - 300
"""A sample of this age in seconds counts as one of an hour ago."""
_LEAST_SPAN: Final = 60.0
"""A change is shown from this number of seconds on."""

Values = Sequence[float | None]
"""A figure for each minute of the last hour, the oldest first; None: there is no sample of that minute."""


@dataclass(frozen=True)
class Strip:
    """The curve of one figure over the last hour. `words`: the newest figure and its change. `text`: the numbers of the
    curve in words, for people who do not see it. `points`: the lines of the curve, as `points` of an SVG polyline; a
    gap in the samples ends a line. `bars`: (left, top, height) of each bar, for figures that are counted.
    """

    name: str
    words: str
    text: str
    points: Sequence[str] = ()
    bars: Sequence[tuple[float, float, float]] = ()


class HistoryReader:
    """Reads the history from Redis, at most once in KEPT_SECONDS."""

    def __init__(self, view_url: str, prefix: str) -> None:
        client = make_redis(view_url)
        self._cache, self._clock = RedisViewCache(client, prefix), RedisClock(client, prefix)
        self._known: list[Sample] = []
        self.read_at = float("-inf")

    def read(self) -> list[Strip]:
        """Return the strips of the last hour; [] before the first sample. While Redis does not answer, or refuses the
        key to this user, the samples are those that were read last.
        """
        if time.monotonic() - self.read_at >= KEPT_SECONDS:
            self.read_at = time.monotonic()
            with suppress(ViewUnavailableError):
                self._known = self._cache.read_history()
        if not self._known:
            return []
        now = self._clock.now()
        return draw_strips(find_last_hour(self._known, now), now)


async def read_strips(request: Request) -> list[Strip]:
    """Return the strips of the last hour; [] before the first sample, and while Redis does not answer at all."""
    services, settings = backend(request), backend(request).settings
    reader = keep(request, "history", lambda: HistoryReader(settings.view_url or "", settings.view.prefix))
    with suppress(Unavailable, ViewUnavailableError):
        return await services.feed.unless_silent(services.run_plain(reader.read))
    return []


def draw_strips(samples: Sequence[Sample], now: float) -> list[Strip]:
    """Return the strips of these samples of the last hour, the oldest first; [] if there are none."""
    if not samples:
        return []
    first, last = samples[0], samples[-1]
    age = now - first.at
    is_hour = age >= _FULL_HOUR
    ago = "an hour ago" if is_hour else f"{format_span(age)} ago" if age >= _LEAST_SPAN else ""
    launches = sum(each.launches for each in samples)
    span = "in the last hour" if is_hour else f"in {format_span(max(age, 1))}"
    leased = "no machine runs" if last.leased is None else f"{_percent(last.leased)} leased"
    if last.leased is not None and first.leased is not None:
        points = round(100 * last.leased) - round(100 * first.leased)
        leased += _compare(points, "points more", "points less", ago)
    longest = f"{format_span(last.longest_wait)} is the longest wait"
    change = last.longest_wait - first.longest_wait
    return [
        _draw(
            "Waiting",
            f"{last.waiting:,} wait" + _compare(last.waiting - first.waiting, "more", "fewer", ago),
            _gather(samples, now, lambda each: each.waiting, max),
            "{:,.0f}".format,
        ),
        _draw("Leased share", leased, _gather(samples, now, lambda each: each.leased, max), _percent, most=1.0),
        _draw(
            "Launches",
            f"{launches:,} {'launch' if launches == 1 else 'launches'} {span}",
            _gather(samples, now, lambda each: each.launches, sum),
            "{:,.0f} a minute".format,
            are_bars=True,
        ),
        _draw(
            "Longest wait",
            longest + _compare(change, "longer", "shorter", ago, format_span),
            _gather(samples, now, lambda each: each.longest_wait, max),
            format_span,
        ),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _compare(change: float, more: str, less: str, ago: str, show: Callable[[float], str] = "{:,.0f}".format) -> str:
    """Return a change since a time (`ago`) in words: `, 4 more than an hour ago`. "" if there is no such time."""
    if not ago:
        return ""
    shown = show(abs(change))
    return f", as {ago}" if shown == show(0.0) else f", {shown} {more if change > 0 else less} than {ago}"


def _gather(
    samples: Sequence[Sample],
    now: float,
    read: Callable[[Sample], float | None],
    join: Callable[[list[float]], float],
) -> Values:
    minutes: list[list[float]] = [[] for _ in range(MINUTES)]
    for each in samples:
        value = read(each)
        if value is not None:
            minutes[max(0, MINUTES - 1 - int(max(0.0, now - each.at) // 60))].append(value)
    return [join(each) if each else None for each in minutes]


def _draw(
    name: str,
    words: str,
    values: Values,
    show: Callable[[float], str],
    *,
    most: float | None = None,
    are_bars: bool = False,
) -> Strip:
    known = [each for each in values if each is not None]
    text = f"{name}: {words}."
    if known:
        text += f" In the last hour at least {show(min(known))}, at most {show(max(known))}."
    top = most or max(known, default=0.0) or 1.0
    places = [
        None if each is None else (round((index + 0.5) * _STEP, 1), round((HEIGHT - 2) * (1 - each / top) + 1, 1))
        for index, each in enumerate(values)
    ]
    if are_bars:
        bars = [(x - _STEP / 2 + 0.5, y, round(HEIGHT - y, 1)) for x, y in filter(None, places) if y < HEIGHT - 1]
        return Strip(name, words, text, bars=bars)
    lines: list[list[str]] = [[]]
    for each in places:
        if each is None:
            lines.append([])
        else:
            lines[-1] += [f"{each[0]},{each[1]}"]
    # A single sample gets a short line, which can be seen.
    return Strip(name, words, text, [" ".join(each * 2 if len(each) == 1 else each) for each in lines if each])
