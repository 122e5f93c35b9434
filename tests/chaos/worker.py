"""`python -m tests.chaos.worker QUEUE`: tasks.worker with the named points, under the host name of CHAOS_HOST."""

import os
import socket
import sys
from pathlib import Path

from celery.signals import worker_ready

from tests.chaos.commands.switches import WORKER_SWITCHES
from tests.chaos.points import note_ready, place_points
from tests.chaos.switches import SWITCHES

FOLDER = "CHAOS_POINTS"
HOST = "CHAOS_HOST"
OFF = "CHAOS_OFF"


def main() -> None:
    """Run the worker until it is stopped."""
    host = os.environ[HOST]
    # Two hosts on one machine: Celery names its nodes after the host.
    socket.gethostname = lambda: host
    folder = Path(os.environ[FOLDER])
    place_points(folder)
    worker_ready.connect(lambda **_: note_ready(folder), weak=False)
    if switch := {**SWITCHES, **WORKER_SWITCHES}.get(os.environ.get(OFF, "")):
        switch()
    from tasks.worker import main as work

    work(sys.argv[1:])


if __name__ == "__main__":
    main()
