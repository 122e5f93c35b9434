"""What forecasts cost the ticks: ticks while the process `foresight` plays all the time, and without it, in turns.

By default the process plays for 30 % of the time. Here it has a whole core, so each measured tick runs beside plays.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final, NamedTuple

from scheduler.model.run_times import RunTimes, list_classes
from scheduler.view.forecasts import RedisForecasts
from testbed.processes import Process, wait_for
from testbed.tick_fleet import LEASES_A_SLOT, REQUEST, Fleet, open_fleet

CHURN: Final = 1_000
"""Reservations that end, and others that come, before each tick."""
TICKS_A_TURN: Final = 10
FIRST_FORECAST_SECONDS: Final = 300.0


class BesideForecasts(NamedTuple):
    """Seconds of a tick without forecasts and beside them, and the median over the turns of their ratio."""

    alone: float
    beside: float
    ratio: float


def measure_ticks(slots: int, waiting: int, turns: int) -> BesideForecasts:
    """Return what a tick takes on a fleet in which each slot is leased and this many reservations wait."""
    alone: list[float] = []
    beside: list[float] = []
    with open_fleet(on_postgresql=False) as fleet, TemporaryDirectory(prefix="leasehold-bench-") as folder:
        _fill(fleet, slots, waiting)
        _time_ticks(fleet)
        for turn in range(turns):
            # In changing order, because ticks get faster or slower while the fleet is used.
            if turn % 2 == 0:
                alone.append(_time_ticks(fleet))
            with _forecasts(fleet, Path(folder)):
                beside.append(_time_ticks(fleet))
            if turn % 2:
                alone.append(_time_ticks(fleet))
    ratios = [after / before for before, after in zip(alone, beside, strict=True)]
    return BesideForecasts(median(alone), median(beside), median(ratios))


def _fill(fleet: Fleet, slots: int, waiting: int) -> None:
    fleet.prepare(slots)
    random = Random(1)
    with fleet.store.transaction() as transaction:
        drawn = tuple(random.expovariate(1e-3) for _ in range(30))
        times = transaction.save([RunTimes(id=name, seconds=drawn) for name in list_classes(REQUEST, None)])
    fleet.ports.view_cache.publish(times)
    fleet.submit(slots * LEASES_A_SLOT)
    fleet.tick()
    fleet.submit(waiting)
    fleet.tick()


def _time_ticks(fleet: Fleet) -> float:
    seconds = []
    for _ in range(TICKS_A_TURN):
        fleet.release(CHURN)
        fleet.submit(CHURN)
        began = perf_counter()
        fleet.tick()
        seconds.append(perf_counter() - began)
    return median(seconds)


@contextmanager
def _forecasts(fleet: Fleet, folder: Path) -> Iterator[None]:
    """Forecasts without a pause, once the first ones are published."""
    published = RedisForecasts(fleet.client)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")},
        "LEASEHOLD_BROKER__URL": fleet.redis_url,
        "LEASEHOLD_DATABASE__URL": fleet.database_url,
        "LEASEHOLD_FORESIGHT__INTERVAL": "1",
        "LEASEHOLD_FORESIGHT__SHARE": "1",
    }
    now = fleet.store.now()
    process = Process("foresight", ["tasks.foresight"], environment, folder)

    def has_published() -> bool:
        assert process.is_alive, process.read_log()
        summary = published.read_summary()
        return summary is not None and summary.as_of > now

    try:
        wait_for(has_published, "forecasts", FIRST_FORECAST_SECONDS)
        yield
        assert process.is_alive, process.read_log()
    finally:
        process.stop()
