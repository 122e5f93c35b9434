"""What beat fires, and how often. Any number of beats may run: each task is exclusive or idempotent by itself.

Every entry expires: after a pause of the workers nobody has to work through a backlog of ticks. What is due follows
from the monotonic clock: a host whose wall clock jumps goes on firing at its intervals.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery.schedules import crontab, schedule

from leasehold.common.clock import read_monotonic
from tasks.queues import HEAR, INTERRUPTIONS, PRUNE, RECONCILE, RECOVER, SWEEP, TICK
from workers.settings import Settings

FULL_SWEEP: Final = 3
"""Every machine is looked at, and looked for, once in so many intervals of `recover`."""
PRUNE_MINUTE: Final = 17
"""Of every hour, by the clock: the schedule is kept in memory, so a beat that restarts still gets to it."""

_STARTED: Final = datetime.now(UTC)
_STARTED_MONOTONIC: Final = read_monotonic()


def make_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """Celery's beat schedule, with the intervals of the settings."""
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
    """The wall clock as it was when this process started, carried on by the monotonic clock: it never jumps."""
    return _STARTED + timedelta(seconds=read_monotonic() - _STARTED_MONOTONIC)


def _every(seconds: float, task: str, kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "task": task,
        "schedule": schedule(run_every=seconds, nowfun=read_steady_time),  # promise: steady-beat
        "kwargs": kwargs or {},
        "options": {"expires": 2 * seconds},
    }
