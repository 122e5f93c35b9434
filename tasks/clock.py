"""`python -m tasks.clock`: beat, the process that sends the periodic tasks of tasks/beat.py. It keeps no schedule file.

If `celery.beat_file` names a file, beat writes it after each task that it sends. By the age of the file the health
check (`leasehold alive beat`) recognises a beat that runs but sends nothing.
"""

import sys
import time
from contextlib import suppress
from pathlib import Path

from celery.signals import after_task_publish

from leasehold.common.clock import read_monotonic
from scheduler.operations.paused_gc import PausedGC


def record_sends(file: Path) -> None:
    """Write the time of the monotonic clock into this file now and after each task that this process sends. A health
    check reads this file to find out when beat last sent a task.

    Raises OSError if the file cannot be written now.
    """
    write_send_time(file)

    def touch(**_signal: object) -> None:
        # A later failure, like a full disk, must not stop beat. The health check reports the old file.
        with suppress(OSError):
            write_send_time(file)

    after_task_publish.connect(touch, weak=False)


def write_send_time(file: Path) -> None:
    """Write the present time of the monotonic clock, which all processes of a host share, into this file."""
    file.write_text(f"{read_monotonic():.3f}\n")


def read_send_age(file: Path) -> float:
    """Return the seconds since `write_send_time` wrote this file. Raises OSError if the file cannot be read.

    If the file has no number (it is just being written, or an older version made it), the time of its last change
    counts.
    """
    text = file.read_text(errors="replace")
    try:
        return max(read_monotonic() - float(text), 0.0)
    except ValueError:
        return time.time() - file.stat().st_mtime


def main() -> None:
    """Run beat until it is stopped."""
    with PausedGC():
        # Imported here, because a wrong configuration ends the process at this import.
        from tasks.app import app, refuse_foreign, require_broker, services, settings  # noqa: PLC0415
        from tasks.beat import PunctualScheduler  # noqa: PLC0415

        require_broker()
        services.name_process("beat")
        refuse_foreign()
    if settings.celery.beat_file:
        try:
            record_sends(Path(settings.celery.beat_file))
        except OSError as error:
            sys.exit(f"leasehold: celery.beat_file: expected a file that can be written, got {error}")
    app.Beat(quiet=True).run()
    if PunctualScheduler.refusal is not None:
        sys.exit(f"leasehold: {PunctualScheduler.refusal}")


if __name__ == "__main__":
    main()
