"""Beat's schedule: which tasks are sent and how often. Several beats may run: every task is exclusive or idempotent.

Every entry expires, so that a backlog of ticks does not delay workers after a pause. Times are measured by the
monotonic clock: a jump of the wall clock does not change the intervals.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery.schedules import crontab, schedule

from leasehold.common.clock import read_monotonic
from tasks.queues import HEAR, INTERRUPTIONS, PRUNE, RECONCILE, RECOVER, SWEEP, TICK
from workers.settings import Settings

FULL_SWEEP: Final = 3
"""Intervals of `recover` after which all machines are checked and reconciled."""
PRUNE_MINUTE: Final = 17
"""Minute of each hour by the clock. An interval would start again with each restart of beat, which keeps no file."""

_STARTED: Final = datetime.now(UTC)
_STARTED_MONOTONIC: Final = read_monotonic()


def make_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return Celery's beat schedule with the intervals of the settings."""
    recover, aws = settings.recover_interval, settings.aws
    notices = {"interruptions": _every(aws.interruption_interval, INTERRUPTIONS)} if aws.interruption_queue else {}
    hourly = crontab(minute=str(PRUNE_MINUTE), nowfun=read_steady_time)
    return {
        "tick": _every(settings.ticks.interval, TICK),
        "recover": _every(recover, RECOVER),
        "sweep": _every(settings.sweep_interval, SWEEP),
        "full sweep": _every(FULL_SWEEP * recover, SWEEP, {"all_machines": True}),
        "hear": _every(settings.sweep_interval, HEAR),
        "reconcile": _every(FULL_SWEEP * recover, RECONCILE),
        "prune": {"task": PRUNE, "schedule": hourly, "options": {"expires": 1800}},
        **notices,
    }


def read_steady_time() -> datetime:
    """Return the wall clock at the start of this process plus the monotonic time since then: it never jumps."""
    return _STARTED + timedelta(seconds=read_monotonic() - _STARTED_MONOTONIC)


def _every(seconds: float, task: str, kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "task": task,
        "schedule": schedule(run_every=seconds, nowfun=read_steady_time),  # promise: steady-beat
        "kwargs": kwargs or {},
        "options": {"expires": 2 * seconds},
    }
