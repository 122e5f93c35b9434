"""`python -m tasks.worker QUEUE`: the Celery worker of one queue, with the kind of pool that suits the queue. The
Procfile uses this command.

It does the same as `celery -A tasks.app worker -Q QUEUE …`. In addition it takes the concurrency from the settings,
does not import a `tasks.py` of the working folder, and prints faults of the configuration as lines.
"""

import gc
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from celery.exceptions import SecurityWarning
from celery.signals import worker_process_init, worker_ready
from celery.utils.nodenames import host_format

from scheduler.operations.paused_gc import PausedGC
from scheduler.protocol.names import HEALTH, LAUNCH, QUEUE_NAMES, RESERVATIONS, TERMINATE, TICKS
from tasks.alive import NEVER, WORKER_SECONDS, AliveFile, start_self_check
from tasks.queues import HELD_A_PROCESS
from tasks.threads import POOL_NAME, leave
from workers.settings import ConcurrencySettings

Pool = Literal["prefork", "solo", "threads"]

POOLS: Final[dict[str, Pool]] = {
    RESERVATIONS: "prefork",
    TICKS: "prefork",
    LAUNCH: "threads",
    HEALTH: "threads",
    TERMINATE: "threads",
}
"""The kind of Celery pool for each queue: processes where tasks need time limits and compute in Python; threads where
tasks wait for EC2 and machines.
"""


def worker_options(queue: str, concurrency: ConcurrencySettings) -> dict[str, Any]:
    """Return the options of Celery's worker for this queue."""
    return {
        "queues": [queue],
        "hostname": host_format(f"{queue}@%h"),
        "pool": POOL_NAME if POOLS[queue] == "threads" else POOLS[queue],
        "concurrency": getattr(concurrency, queue),
        "without_gossip": True,
        "without_mingle": True,
        "prefetch_multiplier": HELD_A_PROCESS if queue == RESERVATIONS else 1,
        "quiet": True,
    }


def main(arguments: Sequence[str]) -> None:
    """Run the worker until it is stopped; end with status 2 for wrong arguments, 1 for a wrong configuration."""
    if len(arguments) != 1 or arguments[0] not in QUEUE_NAMES:
        sys.stderr.write(f"usage: python -m tasks.worker {{{','.join(QUEUE_NAMES)}}}\n")
        sys.exit(2)
    queue = arguments[0]
    with PausedGC():
        # Imported here, because a wrong configuration ends the process at this import.
        from tasks.app import app, refuse_foreign, require_broker, settings  # noqa: PLC0415 - see above

        require_broker()
        refuse_foreign()
        # Celery warns of pickle in processes of root. We accept JSON only, and containers run as root.
        warnings.simplefilter("ignore", SecurityWarning)
        app.services.import_adapters()
        app.services.name_process(queue)
        if POOLS[queue] == "threads":
            app.services.warm_up(fleet=True)
        # Not by Celery's command line, which imports all of its commands first, also those of Flower.
        worker = app.Worker(**worker_options(queue, settings.celery.concurrency))
    # The objects of the imports stay. Collections here and in the processes of the pool leave them out, so a list of
    # requests does not make the collector look at all of them.
    gc.freeze()
    if settings.celery.alive_file:
        # Once the worker runs, it checks itself and writes its file (tasks/alive.py).
        try:
            file = AliveFile(Path(settings.celery.alive_file), queue, WORKER_SECONDS, NEVER)
        except OSError as error:
            sys.exit(f"leasehold: celery.alive_file: expected a file that can be written, got {error}")
        # A process of a pool may open the database, which holds the keys of signatures; a process that forks may not.
        started = worker_ready if POOLS[queue] == "threads" else worker_process_init
        started.connect(lambda **_signal: start_self_check(app, app.services, file, own=queue), weak=False)
    worker.start()
    leave(worker.exitcode, worker.pool)


if __name__ == "__main__":
    main(sys.argv[1:])
