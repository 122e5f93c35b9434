"""`python -m tasks.foresight`: the process that forecasts when waiting reservations start.

It reads the view like the tick, plays it forward, and publishes what it found in Redis (the port Forecasts). It sends
no message and writes nothing into the database, so that it can be stopped at any time. Without it there are no
forecasts. Two of these processes publish in turns, which is harmless.
"""

import signal
import sys
import threading
import time
from pathlib import Path

from scheduler.foresight.forecaster import Forecaster
from scheduler.operations.foresight import look_ahead, open_forecaster
from scheduler.operations.membership import check_membership
from scheduler.operations.paused_gc import PausedGC
from scheduler.operations.ports import Ports
from scheduler.ports import ForeignClusterError, StoreUnavailableError, ViewUnavailableError
from scheduler.protocol.clock import read_monotonic
from tasks.alive import AliveFile
from tasks.clock import LATE_INTERVALS
from workers.logs import get_logger

log = get_logger(__name__)


class Publisher:
    """Publishes forecasts again and again. `share`: the part of one core that it may use. `stop`: ends the plays."""

    def __init__(self, ports: Ports, interval: float, share: float, stop: threading.Event) -> None:
        self._ports, self._allowed, self._stop = ports, interval * share, stop
        self._forecaster: Forecaster | None = None
        self._failures = 0
        """How often in a row nothing could be published."""

    def publish(self) -> bool:
        """Publish forecasts of the present state. Return whether that was possible: database and Redis answer, and the
        view is valid. Raises ForeignClusterError if Redis belongs to another cluster.
        """
        began = time.thread_time()

        def has_time() -> bool:
            return not self._stop.is_set() and time.thread_time() - began < self._allowed

        try:
            check_membership(self._ports)
            if self._forecaster is None:
                self._forecaster = open_forecaster(self._ports)
            with PausedGC():
                found = look_ahead(self._ports, self._forecaster, has_time)
        except ForeignClusterError:
            raise
        except (ViewUnavailableError, StoreUnavailableError) as error:
            self._note_trouble(str(error))
            return False
        if found is None:
            self._note_trouble("the view in Redis is not valid: the next tick builds it")
            return False
        self._failures = 0
        return True

    def _note_trouble(self, trouble: str) -> None:
        # The first time is usual while a stack starts.
        if self._failures == 1:
            log.warning("No forecasts can be made now.", action="foresight.paused", error=trouble)
        self._failures += 1


def main() -> int:
    """Publish forecasts until the process is stopped, and return 0; 1 if Redis belongs to another cluster."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    with PausedGC():
        # Imported here, because a wrong configuration ends the process at this import.
        from tasks.app import app, refuse_foreign, require_broker, settings  # noqa: PLC0415

        require_broker()
        refuse_foreign()
        app.services.name_process("foresight")
    interval = settings.foresight.interval
    file = None
    if settings.celery.alive_file:
        try:
            file = AliveFile(Path(settings.celery.alive_file), "foresight", LATE_INTERVALS * interval, read_monotonic())
        except OSError as error:
            sys.stderr.write(f"leasehold: celery.alive_file: expected a file that can be written, got {error}\n")
            return 1
    publisher = Publisher(app.services.ports, interval, settings.foresight.share, stop)
    try:
        while not stop.is_set():
            due = read_monotonic() + interval
            if publisher.publish() and file is not None:
                file.note_life()
            stop.wait(max(due - read_monotonic(), 0.0))
    except ForeignClusterError as error:
        sys.stderr.write(f"leasehold: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
