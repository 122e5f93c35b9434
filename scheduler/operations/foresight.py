"""Makes forecasts from the view, and publishes them. The process `foresight` does this, and never a tick."""

from collections.abc import Callable
from time import monotonic
from typing import Final

from scheduler.foresight.forecaster import DAY, MOST_ARRIVALS, MOST_DAYS, Forecaster
from scheduler.model.forecasts import Forecast, Foreseen, name_kind
from scheduler.model.reservations import Reservation
from scheduler.model.view import View
from scheduler.operations.costs import read_spending
from scheduler.operations.ports import Ports
from scheduler.operations.run_times import ROWS_A_BATCH
from scheduler.ports import Counted

MOST_FORECASTS: Final = 20_000
"""The most reservations whose forecasts are published: the first ones of the queue."""
NEW_SECONDS: Final = 300.0
"""The newest reservation of a kind stands for newcomers if it is not older than this."""


def open_forecaster(ports: Ports) -> Forecaster:
    """Return a forecaster that knows what the process before it has published. Raises ViewUnavailableError."""
    forecaster = Forecaster()
    record = ports.forecasts.read_record()
    if record is not None:
        forecaster.load(record)
    return forecaster


def look_ahead(ports: Ports, forecaster: Forecaster, has_time: Callable[[], bool] = lambda: True) -> Foreseen | None:
    """Forecast when the reservations start that wait now, and publish that. Return what was published; None if the view
    is not valid. `has_time`: no further play is begun when it returns False; at least one is made.

    Raises ViewUnavailableError or StoreUnavailableError.
    """
    view = ports.view_cache.catch_up() or ports.view_cache.load()
    if view is None:
        return None
    began, now = monotonic(), ports.store.now()
    rules = ports.rules_at(now).rules
    spending = read_spending(ports.store, rules, now, ports.time_zero)
    document = ports.stored_rules().rules.model_dump(exclude_unset=True)
    # After a change of these tables the outcomes of earlier forecasts count no more.
    policy = repr([document.get(name) for name in ("scheduler", "pools", "accounts")])
    forecaster.see(view, rules, policy, now, spending)
    if forecaster.lacks_past:
        forecaster.recall(*_load_past(ports, now))
    forecaster.play_while(has_time)
    found = _gather(view, forecaster, now, monotonic() - began)
    ports.forecasts.publish(found, forecaster.dump())
    return found


def _load_past(ports: Ports, now: float) -> tuple[list[Reservation], float]:
    """Return reservations that have ended in the last days, and since when none of those that were submitted is
    missing. A new process would else expect no arrivals for a day, and too early starts.
    """
    found: list[Reservation] = []
    since = before = now
    for day in range(1, MOST_DAYS + 2):
        begin, left = now - day * DAY, MOST_ARRIVALS - len(found)
        rows = _load_ended(ports, begin, before, left)
        if len(rows) == left:
            break
        if rows:
            # What was pruned ended before the first row that is left. What was submitted after its end is complete.
            since = rows[0].changed_at
        found.extend(rows)
        before = begin
    return found, since


def _load_ended(ports: Ports, after: float, before: float, most: int) -> list[Reservation]:
    """Return the reservations that ended between these times, in the order of their ends; `most`: the first ones."""
    found: list[Reservation] = []
    place = Counted(after)
    while len(found) < most:
        with ports.store.transaction() as transaction:
            rows = transaction.find_ended(place, before, min(ROWS_A_BATCH, most - len(found)))
        if not rows:
            break
        found.extend(rows)
        place = Counted(rows[-1].changed_at, rows[-1].sequence)
    return found


def _gather(view: View, forecaster: Forecaster, now: float, seconds: float) -> Foreseen:
    forecasts: dict[str, Forecast] = {}
    newest: dict[str, str] = {}
    for row in view.waiters.list()[0]:
        if len(forecasts) == MOST_FORECASTS:
            break
        forecasts[row.id] = forecaster.answer(row)
        if now - row.created_at <= NEW_SECONDS:
            newest[name_kind(row.request, row.priority)] = row.id
    return Foreseen(
        as_of=now,
        forecasts=forecasts,
        newcomers={kind: forecasts[name] for kind, name in newest.items() if not forecasts[name].unknown},
        qualities=forecaster.qualities.list(),
        plays=forecaster.plays,
        seconds=seconds,
    )
