"""Beat's schedule: which tasks are sent and how often. Several beats may run, because a task that runs twice does no
harm.

Every message expires, so that ticks that waited during a pause do not delay workers afterwards. Intervals are measured
by the monotonic clock: a jump of the wall clock does not change them.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, cast

from celery.beat import Scheduler
from celery.schedules import crontab, schedule

from scheduler.model.validation import InvalidInputError
from scheduler.ports import DatabaseWentBackError, ForeignClusterError, StoreUnavailableError
from scheduler.protocol.clock import read_monotonic
from tasks.current import LeaseholdApp
from tasks.queues import HEAR, IMAGES, INTERRUPTIONS, LEARN, MARKET, PRUNE, RECONCILE, RECOVER, SWEEP, TICK
from workers.logs import get_logger
from workers.settings import Settings

FULL_SWEEP: Final = 3
"""Number of intervals of the task `recover` after which all machines are checked and compared with EC2, and the run
times of released leases are counted.
"""
PRUNE_MINUTE: Final = 17
"""Minute of each hour at which the task `prune` is sent. `prune` has no interval, because beat stores no schedule: an
interval would start again with each start of beat.
"""

_STARTED: Final = datetime.now(UTC)
_STARTED_MONOTONIC: Final = read_monotonic()


def make_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return Celery's beat schedule: each periodic task with its interval from the settings."""
    recover, aws = settings.recover_interval, settings.aws
    notices = {"interruptions": _every(aws.interruption_interval, INTERRUPTIONS)} if aws.interruption_queue else {}
    market = settings.market.price_interval
    hourly = crontab(minute=str(PRUNE_MINUTE), nowfun=read_steady_time)
    return {
        "tick": _every(settings.ticks.interval, TICK),
        "recover": _every(recover, RECOVER),
        "sweep": _every(settings.sweep_interval, SWEEP),
        "full sweep": _every(FULL_SWEEP * recover, SWEEP, {"all_machines": True}),
        "hear": _every(settings.sweep_interval, HEAR),
        "reconcile": _every(FULL_SWEEP * recover, RECONCILE),
        "learn": _every(FULL_SWEEP * recover, LEARN),
        "images": _every(settings.image_interval, IMAGES),
        "prune": {"task": PRUNE, "schedule": hourly, "options": {"expires": 1800}},
        **({"market": _every(market, MARKET)} if market else {}),
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


log = get_logger(__name__)


class PunctualScheduler(Scheduler):
    """Celery's scheduler, changed to wake exactly when the next task is due."""

    refusal: ClassVar[str | None] = None
    """The text of the ForeignClusterError that ended beat, because its Redis belongs to another cluster. None while
    beat runs.
    """
    _waits = False

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """Return for how many seconds beat sleeps if the next task is due in `n` seconds: until exactly that time.

        Celery would subtract 10 ms and then check in a busy loop, which costs a hundredth of a core at one message a
        second.
        """
        return n + drift

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send the task `entry`, which is due, if the Redis of beat belongs to its cluster; otherwise end the process.
        While the database is reset to an older state, send nothing.
        """
        if self._may_send():
            super().apply_entry(entry, producer)

    def _may_send(self) -> bool:
        try:
            cast("LeaseholdApp", self.app).services.ensure_membership_of_sender()
        except ForeignClusterError as error:
            type(self).refusal = str(error)
            raise SystemExit from None
        except DatabaseWentBackError as error:
            if not self._waits:
                log.warning(
                    "The database is an older state; nothing is sent until it is restored.",
                    action="beat.database_went_back",
                    error=str(error),
                )
            self._waits = True
            return False
        except (StoreUnavailableError, InvalidInputError):
            # Without an answer of the database the task is sent: it expires, and it checks the membership again.
            pass
        self._waits = False
        return True
