"""What beat fires, and how often. Any number of beats may run: each task is exclusive or idempotent by itself.

Every entry expires: after a pause of the workers nobody has to work through a backlog of ticks.
"""

from typing import Any, Final

from celery.schedules import crontab, schedule

from tasks.queues import HEAR, INTERRUPTIONS, PRUNE, RECONCILE, RECOVER, SWEEP, TICK
from workers.settings import Settings

FULL_SWEEP: Final = 3
"""Every machine is looked at, and looked for, once in so many intervals of `recover`."""
PRUNE_MINUTE: Final = 17
"""Of every hour, by the clock: the schedule is kept in memory, so a beat that restarts still gets to it."""


def make_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """Celery's beat schedule, with the intervals of the settings."""
    recover, aws = settings.recover_interval, settings.aws
    notices = {"interruptions": _every(aws.interruption_interval, INTERRUPTIONS)} if aws.interruption_queue else {}
    return {
        "tick": _every(settings.ticks.interval, TICK),
        "recover": _every(recover, RECOVER),
        "sweep": _every(settings.sweep_interval, SWEEP),
        "full sweep": _every(FULL_SWEEP * recover, SWEEP, {"all_machines": True}),
        "hear": _every(settings.sweep_interval, HEAR),
        "reconcile": _every(FULL_SWEEP * recover, RECONCILE),
        "prune": {"task": PRUNE, "schedule": crontab(minute=str(PRUNE_MINUTE)), "options": {"expires": 1800}},
        **notices,
    }


def _every(seconds: float, task: str, kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "task": task,
        "schedule": schedule(run_every=seconds),
        "kwargs": kwargs or {},
        "options": {"expires": 2 * seconds},
    }
