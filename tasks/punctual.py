"""Beat's scheduler: it sleeps until a task is due, and sends nothing into another cluster."""

from typing import Any, ClassVar

from celery.beat import Scheduler

from scheduler.model.validation import InvalidInputError
from scheduler.ports import DatabaseWentBackError, ForeignClusterError, StoreUnavailableError
from workers.logs import get_logger

log = get_logger(__name__)


class PunctualScheduler(Scheduler):
    """Celery's scheduler, but it wakes exactly when the next task is due."""

    refusal: ClassVar[str | None] = None
    """The message of the ForeignClusterError that ended beat."""
    _waits = False

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """Return how long to sleep if the next task is due in `n` seconds.

        Celery subtracts 10 ms and then checks in a busy loop until they have passed: a hundredth of a core for each
        message a second.
        """
        return n + drift

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a due task if this process still belongs to the cluster of its Redis. Otherwise end the process. While
        the database is an older state, send nothing.
        """
        if self._may_send():
            super().apply_entry(entry, producer)

    def _may_send(self) -> bool:
        from tasks.app import services  # noqa: PLC0415 - the app names this module as its scheduler

        try:
            services.ensure_membership()
        except ForeignClusterError as error:
            type(self).refusal = str(error)
            raise SystemExit from None
        except DatabaseWentBackError as error:
            if not self._waits:
                sentence = "The database is an older state; nothing is sent until it is restored."
                log.warning(sentence, action="beat.database_went_back", error=str(error))
            self._waits = True
            return False
        except (StoreUnavailableError, InvalidInputError):
            # Without an answer of the database the task is sent: it expires, and it checks the membership again.
            pass
        self._waits = False
        return True
