"""`python -m tasks.clock`: beat, which fires the schedule of tasks/beat.py. It keeps no schedule file.

Where `celery.beat_file` names a file, it writes that one whenever it has sent a task, so that a health check
(`leasehold alive beat`) can tell a beat that sends from one that merely runs.
"""

import sys
import time
from contextlib import suppress
from pathlib import Path

from celery.signals import after_task_publish

from leasehold.common.clock import read_monotonic
from workers.imports import without_collecting


def keep_pulse(file: Path) -> None:
    """From now on write the monotonic clock into this file with every task that this process sends. Raises OSError if
    it cannot be written.
    """
    write_pulse(file)

    def touch(**_signal: object) -> None:
        # A disk that is full later on is the health check's to tell, and no reason to send less.
        with suppress(OSError):
            write_pulse(file)

    after_task_publish.connect(touch, weak=False)


def write_pulse(file: Path) -> None:
    """Note in this file that a task was sent now. All processes of a host have one monotonic clock."""
    file.write_text(f"{read_monotonic():.3f}\n")


def read_pulse_age(file: Path) -> float:
    """How many seconds ago `write_pulse` wrote this file. Raises OSError when it cannot be read.

    A file that was just emptied to be written, or that an older version touched, has the age of its last change.
    """
    text = file.read_text(errors="replace")
    try:
        return max(read_monotonic() - float(text), 0.0)
    except ValueError:
        return time.time() - file.stat().st_mtime


def main() -> None:
    """Fire until stopped."""
    with without_collecting():
        # A fault in the configuration ends the process here.
        from tasks.app import app, refuse_foreign, require_broker, services, settings  # noqa: PLC0415
        from tasks.punctual import PunctualScheduler  # noqa: PLC0415

        require_broker()
        services.name_process("beat")
        refuse_foreign()
    if settings.celery.beat_file:
        try:
            keep_pulse(Path(settings.celery.beat_file))
        except OSError as error:
            sys.exit(f"leasehold: celery.beat_file: expected a file that can be written, got {error}")
    app.Beat(quiet=True).run()
    if PunctualScheduler.refusal is not None:
        sys.exit(f"leasehold: {PunctualScheduler.refusal}")


if __name__ == "__main__":
    main()
