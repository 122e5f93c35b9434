"""`python -m tasks.clock`: beat, the process that sends the periodic tasks of tasks/beat.py. It keeps no schedule file.

If `celery.beat_file` names a file, beat writes into it when it last sent a task, and whether workers accept its
messages (tasks/alive.py). By this file the health check (`leasehold alive beat`) recognises a beat that runs but sends
nothing, and one whose messages are refused.
"""

import sys
from pathlib import Path
from typing import Final

from celery.signals import after_task_publish

from scheduler.operations.paused_gc import PausedGC
from scheduler.protocol.clock import read_monotonic
from scheduler.protocol.names import CANARY
from tasks.alive import AliveFile, start_self_check

LATE_INTERVALS: Final = 3
"""Beat fails its health check if it has sent no task for this number of tick intervals."""


def record_sends(path: Path, tick_seconds: float) -> AliveFile:
    """Write into this file now and after each periodic task that this process sends, so that a health check sees when
    beat last sent one.

    Raises OSError if the file cannot be written now.
    """
    file = AliveFile(path, "beat", LATE_INTERVALS * tick_seconds, read_monotonic())

    def note(sender: object = None, **_signal: object) -> None:
        # The canaries of the self-check are sent by another thread, also while the schedule hangs.
        if not str(sender).endswith(f".{CANARY}"):
            file.note_life()

    after_task_publish.connect(note, weak=False)
    return file


def main() -> None:
    """Run beat until it is stopped."""
    with PausedGC():
        # Imported here, because a wrong configuration ends the process at this import.
        from tasks.app import app, refuse_foreign, require_broker, settings  # noqa: PLC0415
        from tasks.beat import PunctualScheduler  # noqa: PLC0415

        require_broker()
        app.services.name_process("beat")
        refuse_foreign()
    if settings.celery.beat_file:
        try:
            file = record_sends(Path(settings.celery.beat_file), settings.ticks.interval)
        except OSError as error:
            sys.exit(f"leasehold: celery.beat_file: expected a file that can be written, got {error}")
        start_self_check(app, app.services, file, own=None)
    app.Beat(quiet=True).run()
    if PunctualScheduler.refusal is not None:
        sys.exit(f"leasehold: {PunctualScheduler.refusal}")


if __name__ == "__main__":
    main()
