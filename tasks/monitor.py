"""`python -m tasks.monitor [--local]`: Flower, Celery's web page, on the address that the settings say.

Flower shows which tasks ran, without their arguments and results (tasks/requests.py), and can stop workers. So it
starts without a password in the local stack only (`--local`, which `leasehold up` passes), and there on loopback only.
"""

import os
import sys
from collections.abc import Sequence

from celery import Celery

from tasks.queues import PREFIX
from workers.settings import FlowerSettings, is_loopback


def refuse(flower: FlowerSettings, *, local: bool) -> str | None:
    """Why Flower may not start like this; None when it may."""
    if flower.basic_auth is not None or (local and is_loopback(flower.host)):
        return None
    return (
        'flower.basic_auth: expected "user:password" (without one, Flower starts in the local stack only), got nothing'
    )


def keep_to_own_keys(app: Celery) -> None:
    """Flower's connection looks for messages that went unacknowledged, as any of kombu's does, and puts them back
    onto their queues: from lists of its own, where there are none, for its user may push to no queue of ours.
    """
    own = {f"{name}_key": f"{PREFIX}:flower:{name}" for name in ("unacked", "unacked_index", "unacked_mutex")}
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, **own}


def connect_per_use(app: Celery) -> None:
    """Make Flower open a connection for each command instead of taking it from a pool of limited size.

    An inspection of a worker runs in eight threads. Each takes one connection and then waits without a time limit for
    a second one. With a limit of five connections all of them wait for ever, and so does everything after them.
    """
    app.conf.broker_pool_limit = 0


def main(arguments: Sequence[str]) -> None:
    """Serve until stopped; ends with status 1 when it may not start."""
    from tasks.app import app, require_broker, settings  # noqa: PLC0415 - a fault in the configuration ends it

    require_broker()
    keep_to_own_keys(app)
    connect_per_use(app)
    flower = settings.flower
    if fault := refuse(flower, local="--local" in arguments):
        sys.exit(f"leasehold: {fault}")
    if flower.basic_auth is not None:
        # Not on the command line, which every user of this host may read.
        os.environ["FLOWER_BASIC_AUTH"] = flower.basic_auth.get_secret_value()
    app.start(["flower", f"--address={flower.host}", f"--port={flower.port}"])


if __name__ == "__main__":
    main(sys.argv[1:])
