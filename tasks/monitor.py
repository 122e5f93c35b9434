"""`python -m tasks.monitor [--local]`: Flower, Celery's web page, on the address that the settings say.

Flower shows which tasks ran, without their arguments and results (tasks/requests.py), and can stop workers. So it
starts without a password in the local stack only (`--local`, which `leasehold up` passes), and there on loopback only.
"""

import os
import sys
from collections.abc import Sequence

from celery import Celery
from flower.utils.broker import Broker
from flower.views.monitor import Metrics
from kombu.transport.redis import QoS
from tornado.web import authenticated

from workers.settings import FlowerSettings, is_loopback


def refuse(flower: FlowerSettings, *, local: bool) -> str | None:
    """Why Flower may not start like this; None when it may."""
    if flower.basic_auth is not None or (local and is_loopback(flower.host)):
        return None
    return (
        'flower.basic_auth: expected "user:password" (without one, Flower starts in the local stack only), got nothing'
    )


def restore_nothing() -> None:
    """Flower's connection would look for messages that went unacknowledged, as any of kombu's does, and put them back
    onto their queues. Its user has no right to that, and Flower takes no message that is to be acknowledged.
    """
    setattr(QoS, "restore_visible", lambda *_args, **_options: None)  # noqa: B010 - a method of kombu's


def connect_per_use(app: Celery) -> None:
    """Make Flower open a connection for each command instead of taking it from a pool of limited size.

    An inspection of a worker runs in eight threads. Each takes one connection and then waits without a time limit for
    a second one. With a limit of five connections all of them wait for ever, and so does everything after them.
    """
    app.conf.broker_pool_limit = 0


def count_as(url: str) -> None:
    """Make Flower count the messages of queues as the user of this URL: Flower's own user has no right to a queue. In
    Redis 6.2 a user's commands go for all of its keys, and the user needs SET and DEL for keys of its own.
    """
    make = Broker.__new__
    Broker.__new__ = lambda cls, _url, *args, **options: make(cls, url, *args, **options)


def close_metrics() -> None:
    """Make Flower's page /metrics ask for the password, as all pages do except the health check: it names every worker
    and task.
    """
    Metrics.get = authenticated(Metrics.get)


def main(arguments: Sequence[str]) -> None:
    """Serve until stopped; ends with status 1 when it may not start."""
    from tasks.app import app, require_broker, settings  # noqa: PLC0415 - a fault in the configuration ends it

    require_broker()
    restore_nothing()
    connect_per_use(app)
    count_as(settings.view_url or "")
    close_metrics()
    flower = settings.flower
    if fault := refuse(flower, local="--local" in arguments):
        sys.exit(f"leasehold: {fault}")
    if flower.basic_auth is not None:
        # Not on the command line, which every user of this host may read.
        os.environ["FLOWER_BASIC_AUTH"] = flower.basic_auth.get_secret_value()
    app.start(["flower", f"--address={flower.host}", f"--port={flower.port}"])


if __name__ == "__main__":
    main(sys.argv[1:])
