"""Beat's own scheduler, which sleeps until something is due."""

from celery.beat import Scheduler


class PunctualScheduler(Scheduler):
    """Celery's, but it wakes when the next task is due, and no sooner."""

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """How long to sleep when the next task is due in `n` seconds. Celery's takes 10 ms off, and then asks again and
        again, without a pause, until they have gone: a hundredth of a core for each message a second.
        """
        return n + drift
