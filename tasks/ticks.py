"""The task of the queue `ticks`: it runs one tick after the other in the process that has the leader lock."""

from time import monotonic
from typing import Final

from scheduler.operations.ports import Ports
from scheduler.operations.tick.tick import Ticked, tick
from tasks.app import app
from tasks.base import LeaseholdTask
from tasks.queues import TICK
from workers.logs import get_logger

log = get_logger(__name__)


class TickTask(LeaseholdTask):
    """Base class of the task that runs a tick. It accepts messages of workers and operators."""

    abstract = True
    roles = frozenset({"worker", "operator"})
    needs_membership = False  # each tick checks it after it has taken the lock


WAIT_SECONDS: Final = 0.03
"""How long a process waits for the next kick after a tick."""
MOST_SECONDS: Final = 0.5
"""After this time a task begins no further tick, so that other messages of the queue get their turn."""


@app.task(name=TICK, base=TickTask)
def run_tick() -> str:
    """Run a tick, and further ones while kicks follow soon. If another process has the leader lock, that process runs
    one more tick instead.
    """
    ports, until = app.services.ports, monotonic() + MOST_SECONDS
    done = _tick(ports)
    # Speed: a message costs Celery as much as half of a small tick.
    while done and monotonic() < until and ports.notifier.await_kick(WAIT_SECONDS):
        done += (ticked := _tick(ports))
        if not ticked:
            break
    return f"ticked: {sum(len(each.plan.decisions) for each in done)} decisions" if done else "not_leader"


def _tick(ports: Ports) -> list[Ticked]:
    try:
        done = tick(ports, app.services.leader, lambda: app.services.renewal)
    except Exception:  # counted, and then raised as before
        ports.meter.count("leasehold_ticks_total", {"result": "error"})
        raise
    for ticked in done:
        ports.meter.count("leasehold_ticks_total", {"result": "success"})
        ports.meter.observe("leasehold_tick_duration_seconds", {}, ticked.seconds)
        if ticked.cut:
            ports.meter.count("leasehold_cut_ticks_total", {})
        _log(ticked)
    return done


def _log(ticked: Ticked) -> None:
    for mended in ticked.mended:
        if mended.repairs or mended.rebuilt:
            log.warning(
                "The view lacked changes of the database; it is repaired.",
                action="view.rebuilt" if mended.rebuilt else "view.repaired",
                changes=mended.repairs,
                lag=round(mended.lag, 1),
            )
    for each in ticked.crossed:
        log.warning(
            "A budget is exceeded.", action="budget.exceeded", budget=each.budget, limits=", ".join(each.exceeded)
        )
    if ticked.cut:
        log.warning(
            "A tick took too long and was cut; the next tick does the rest.", action="tick.cut", left=ticked.cut
        )
    if ticked.outdated:
        log.info(
            "Other rules came into force during a tick; the next tick plans again.",
            action="tick.outdated",
            left=ticked.outdated,
        )
    if ticked.plan.decisions:
        log.info(
            "A tick is done.",
            action="tick.done",
            term=ticked.term,
            decisions=len(ticked.plan.decisions),
            skipped=len(ticked.skipped),
            waiting=len(ticked.plan.waiting),
            milliseconds=round(ticked.seconds * 1000, 1),
        )
