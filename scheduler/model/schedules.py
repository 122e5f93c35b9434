"""Schedules: limits of a pool that hold at certain times, given by a cron expression, a time zone and a duration.

Times are seconds since the epoch. A cron expression is read as Debian's cron reads it, by the library cronsim.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from scheduler.model.lives import Budget
from scheduler.model.validation import Before, Count, Document, Seconds, expected, suggest

if TYPE_CHECKING:
    from cronsim import CronSim

_FIELDS: Final = 5
_FIRST: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""An instant after which a cron expression must fire at least once. An expression that never fires
after it is refused.
"""
_A_CRON: Final = 'a cron expression of five fields that fires, like "0 8 * * MON-FRI"'
_MOST_WINDOWS: Final = 1500
"""Maximum number of windows of one schedule that are examined for overlaps and changes of the clock."""
_LOOK_AHEAD: Final = timedelta(days=366)
_FOLD: Final = timedelta(hours=3)
"""A duration longer than any repeated time of day. When a clock is put back (by an hour in most zones), that period of
local time occurs twice. A backward search from the second pass starts later by _FOLD, so that it misses no window.
"""
OVERRIDES: Final = ("min_slots", "target_warm_slots", "max_slots", "disruption_budget")
"""The keys of a pool that a schedule may set."""


def _open_cron(text: str, start: datetime, *, reverse: bool = False) -> "CronSim":
    from cronsim import CronSim  # noqa: PLC0415 - most processes have no schedule, and start without the library

    return CronSim(text, start, reverse=reverse)


def _cron(value: object) -> str:
    from cronsim import CronSimError  # noqa: PLC0415 - as above

    if not isinstance(value, str) or len(value.split()) != _FIELDS or not value.isascii():
        raise expected(_A_CRON)
    try:
        next(_open_cron(value, _FIRST))
    except StopIteration:
        raise expected(_A_CRON) from None
    except CronSimError as error:
        raise expected(f"{_A_CRON} ({error})") from None
    return " ".join(value.split())


def _time_zone(value: object) -> str:
    if isinstance(value, str):
        try:
            ZoneInfo(value)
        except (KeyError, ValueError, OSError):
            raise expected(
                lambda: f"a time zone like Europe/Berlin or UTC{suggest(value, available_timezones())}"
            ) from None
        return value
    raise expected("a time zone like Europe/Berlin or UTC")


def _time_of_day(value: object) -> str:
    try:
        if isinstance(value, str) and len(value) == len("HH:MM"):
            return datetime.strptime(value, "%H:%M").replace(tzinfo=UTC).strftime("%H:%M")
    except ValueError:
        pass
    raise expected("a time of day like 18:00")


class Schedule(Document):
    """Limits of the pool that hold for some time, again and again: from each firing of a cron expression on."""

    cron: Annotated[str, Before(_cron)]
    """When a window begins: minute, hour, day of the month, month and day of the week, like `0 8 * * MON-FRI`."""
    time_zone: Annotated[str, Before(_time_zone)] = "UTC"
    """Time zone of `cron` and `until`, like `Europe/Berlin`."""
    duration: Seconds | None = None
    """How long a window lasts. This or `until` is required."""
    until: Annotated[str, Before(_time_of_day)] | None = None
    """Time of day at which a window ends, on the same or on the next day, like `18:00`."""
    min_slots: Count | None = None
    """The pool's `min_slots` in the windows."""
    target_warm_slots: Count | None = None
    """The pool's `target_warm_slots` in the windows."""
    max_slots: Count | None = None
    """The pool's `max_slots` in the windows."""
    disruption_budget: Budget | None = None
    """The pool's `replacement.disruption_budget` in the windows."""

    def check_fields(self) -> None:
        """Raise ExpectedError for a schedule that has neither or both of `duration` and `until`, that sets no limit, or
        whose `min_slots` is above its `max_slots`.
        """
        if (self.duration is None) == (self.until is None):
            raise expected("either `duration` or `until`", key="duration", got=self.duration)
        if self.duration == 0:
            raise expected("a duration > 0", key="duration", got=0)
        if all(getattr(self, key) is None for key in OVERRIDES):
            raise expected(f"at least one of {', '.join(OVERRIDES)}")
        if self.max_slots is not None and (self.min_slots or 0) > self.max_slots:
            raise expected(f"at most max_slots ({self.max_slots})", key="min_slots", got=self.min_slots)


class Window(NamedTuple):
    """The time from `start` to before `end`, in which the limits of a schedule hold."""

    start: float
    end: float


def find_window(schedule: Schedule, now: float) -> Window | None:
    """Return the window of a schedule that is open at `now`, else the next window; None if neither exists.

    If several windows are open at `now`, the one that began last is returned. Its end is its own: windows that overlap
    or touch each other are not joined, although the schedule stays open between them.
    """
    last = _find_last(schedule, now)
    return last if last is not None and now < last.end else next(_list_windows(schedule, now), None)


def list_open(schedules: Sequence[Schedule], now: float) -> tuple[tuple[int, ...], float]:
    """Return the indexes of the schedules whose windows are open at `now`, and the next time at which that may change
    (infinity: never).
    """
    windows = [find_window(each, now) for each in schedules]
    is_open = tuple(index for index, each in enumerate(windows) if each is not None and each.start <= now)
    changes = [each.end if each.start <= now else each.start for each in windows if each is not None]
    return is_open, min(changes, default=float("inf"))


def _find_last(schedule: Schedule, now: float) -> Window | None:
    """Return the last window that began at `now` or before; None if there is none."""
    start = datetime.fromtimestamp(int(now) + 1, _zone(schedule))
    if start.fold:
        # The library compares local times, and takes the second pass of an hour for the first one.
        start += _FOLD
    for found in _open_cron(schedule.cron, start, reverse=True):
        if found.timestamp() <= now:
            return _make_window(schedule, found)
    return None


def _list_windows(schedule: Schedule, now: float) -> Iterator[Window]:
    for found in _open_cron(schedule.cron, datetime.fromtimestamp(int(now), _zone(schedule))):
        if found.timestamp() > now:
            yield _make_window(schedule, found)


def _make_window(schedule: Schedule, found: datetime) -> Window:
    start = found.timestamp()
    if schedule.duration is not None:
        return Window(start, start + schedule.duration)
    hour, minute = str(schedule.until).split(":")
    ends = (each.timestamp() for each in _open_cron(f"{int(minute)} {int(hour)} * * *", found))
    return Window(start, next(end for end in ends if end > start))


@lru_cache(maxsize=64)
def _read_zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _zone(schedule: Schedule) -> ZoneInfo:
    return _read_zone(schedule.time_zone)


def _list_a_year(schedule: Schedule, now: float) -> list[Window]:
    end = (datetime.fromtimestamp(now, UTC) + _LOOK_AHEAD).timestamp()
    return [each for each in islice(_list_windows(schedule, now), _MOST_WINDOWS) if each.start < end]


def find_overlap(schedule: Schedule, other: Schedule, now: float) -> float | None:
    """Return the first instant of the year after `now` at which windows of both `schedule` and `other` are open; None
    if there is none.
    """
    windows = sorted(
        [(each, 0) for each in _list_a_year(schedule, now)] + [(each, 1) for each in _list_a_year(other, now)]
    )
    ends = [0.0, 0.0]
    for window, which in windows:
        if window.start < ends[1 - which]:
            return window.start
        ends[which] = max(ends[which], window.end)
    return None


def find_own_overlap(schedule: Schedule, now: float) -> float | None:
    """Return the first time in the year after `now` at which a window of the schedule begins before its previous window
    has ended. Return None if there is none.
    """
    pairs = pairwise(_list_a_year(schedule, now))
    return next((later.start for earlier, later in pairs if later.start < earlier.end), None)


def find_clock_change(schedule: Schedule, now: float) -> Window | None:
    """Return the first window in the year after `now` during which the clock of the time zone changes, e.g. to summer
    time. Return None if there is none.

    Only schedules with a `duration` are examined; for any other, the result is None. Example: with a `duration` of 8
    hours, windows end at 06:00, and the window with the clock change ends at 07:00.
    """
    if schedule.duration is None:
        return None
    zone = _zone(schedule)
    for window in _list_a_year(schedule, now):
        first, last = (datetime.fromtimestamp(at, zone).utcoffset() for at in window)
        if first != last:
            return window
    return None


def show_instant(schedule: Schedule, at: float) -> str:
    """Return an instant as a text in the schedule's time zone, like `2027-03-28 03:00 CEST`."""
    return datetime.fromtimestamp(at, _zone(schedule)).strftime("%Y-%m-%d %H:%M %Z")
