"""`python -m tasks.clock`: beat, which fires the schedule of tasks/beat.py. It keeps no schedule file.

Where `celery.beat_file` names a file, it touches that one whenever it has sent a task, so that a health check
(`leasehold alive beat`) can tell a beat that sends from one that merely runs.
"""

import sys
from contextlib import suppress
from pathlib import Path

from celery.signals import after_task_publish

from workers.imports import without_collecting


def keep_pulse(file: Path) -> None:
    """From now on touch this file with every task that this process sends. Raises OSError if it cannot be written."""
    file.touch()

    def touch(**_signal: object) -> None:
        # A disk that is full later on is the health check's to tell, and no reason to send less.
        with suppress(OSError):
            file.touch()

    after_task_publish.connect(touch, weak=False)


def main() -> None:
    """Fire until stopped."""
    with without_collecting():
        from tasks.app import app, refuse_foreign, require_broker, settings  # noqa: PLC0415 - a fault in the configuration ends it

        require_broker()
        refuse_foreign()
    if settings.celery.beat_file:
        try:
            keep_pulse(Path(settings.celery.beat_file))
        except OSError as error:
            sys.exit(f"leasehold: celery.beat_file: expected a file that can be written, got {error}")
    app.Beat(quiet=True).run()


if __name__ == "__main__":
    main()
