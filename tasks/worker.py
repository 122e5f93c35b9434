"""`python -m tasks.worker QUEUE`: the Celery worker of one queue, with the pool that suits it. The Procfile's lines.

The same as `celery -A tasks.app worker -Q QUEUE …`; but the concurrency comes from the settings, a stray
`tasks.py` in the working folder cannot hide ours, and what is wrong with the configuration is said in a line.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import Any, Final, Literal

from celery.exceptions import SecurityWarning
from celery.utils.nodenames import host_format

from tasks.queues import HEALTH, LAUNCH, QUEUE_NAMES, RESERVATIONS, TERMINATE, TICKS
from tasks.threads import POOL_NAME, leave
from workers.imports import without_collecting
from workers.settings import ConcurrencySettings

Pool = Literal["prefork", "solo", "threads"]

POOLS: Final[dict[str, Pool]] = {
    RESERVATIONS: "prefork",
    TICKS: "prefork",
    LAUNCH: "threads",
    HEALTH: "threads",
    TERMINATE: "threads",
}
"""Processes where time limits must hold and Python computes; threads where EC2 and machines are waited for."""


def worker_options(queue: str, concurrency: ConcurrencySettings) -> dict[str, Any]:
    """What Celery's worker is to be for this queue."""
    return {
        "queues": [queue],
        "hostname": host_format(f"{queue}@%h"),
        "pool": POOL_NAME if POOLS[queue] == "threads" else POOLS[queue],
        "concurrency": getattr(concurrency, queue),
        "without_gossip": True,
        "without_mingle": True,
        "quiet": True,
    }


def main(arguments: Sequence[str]) -> None:
    """Work until stopped; ends with status 2 when the arguments are wrong, 1 when the configuration is."""
    if len(arguments) != 1 or arguments[0] not in QUEUE_NAMES:
        sys.stderr.write(f"usage: python -m tasks.worker {{{','.join(QUEUE_NAMES)}}}\n")
        sys.exit(2)
    queue = arguments[0]
    with without_collecting():
        from tasks.app import app, refuse_foreign, require_broker, services, settings  # noqa: PLC0415 - only when it is to be used

        require_broker()
        refuse_foreign()
        # Said of root, for fear of pickle: we take JSON only. Containers run as root.
        warnings.simplefilter("ignore", SecurityWarning)
        services.import_adapters()
        services.name_process(queue)
        if POOLS[queue] == "threads":
            services.warm_up(fleet=True)
        # Not by Celery's command line, which imports all of its commands first, Flower's and the shell's too.
        worker = app.Worker(**worker_options(queue, settings.celery.concurrency))
    worker.start()
    leave(worker.exitcode, worker.pool)


if __name__ == "__main__":
    main(sys.argv[1:])
