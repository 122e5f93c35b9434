"""`python -m tasks.monitor [--local]`: Flower, Celery's web page, on the address of the settings.

Flower shows which tasks ran, without their arguments and results (tasks/requests.py), and it can stop workers. So it
starts without a password only in the local stack (`--local`, which `leasehold up` passes) on a loopback address.
"""

import os
import sys
from collections.abc import Sequence

from celery.bin.base import CLIContext
from click import Command, Context
from flower.command import flower as command
from flower.utils.broker import Broker
from flower.views.monitor import Metrics
from kombu.transport.redis import QoS
from tornado.web import authenticated

from scheduler.protocol.loopback import is_loopback
from workers.environment import find_taken_port
from workers.settings import FlowerSettings


def refuse(flower: FlowerSettings, *, local: bool) -> str | None:
    """Return the reason why Flower must not start with these settings: it has no password, and does not run in the
    local stack on a loopback address. Return None if Flower may start.
    """
    if flower.basic_auth is not None or (local and is_loopback(flower.host)):
        return None
    return (
        'flower.basic_auth: expected "user:password" (without one, Flower starts in the local stack only), got nothing'
    )


def count_as(url: str) -> None:
    """Let Flower read the lengths of queues as the user of this URL, because Flower's own user has no right to queues.

    In Redis 6.2 a user's rights to commands hold for all keys of this user. Flower's user needs SET and DEL for its own
    keys; with a right to the queues it could therefore also overwrite and delete queues.
    """
    make = Broker.__new__
    Broker.__new__ = lambda cls, _url, *args, **options: make(cls, url, *args, **options)


def main(arguments: Sequence[str]) -> None:
    """Run Flower, Celery's web page, until it is stopped; end with status 1 if it must not start."""
    from tasks.app import app, require_broker, settings  # noqa: PLC0415 - a fault in the configuration ends it

    require_broker()
    # The kombu connections of this process restore no unacknowledged messages. Flower's Redis user has no right to do
    # this, and Flower consumes no message that needs an acknowledgement.
    setattr(QoS, "restore_visible", lambda *_args, **_options: None)  # noqa: B010 - a method of kombu's
    # Flower opens a connection for each command instead of taking it from a limited pool. An inspection of workers runs
    # in eight threads, and each thread takes a second connection while it holds one. With the pool's limit of five they
    # block each other without end.
    app.conf.broker_pool_limit = 0
    count_as(settings.view_url or "")
    # The page /metrics requires the password, because it lists workers and tasks. All other pages except the health
    # check require it already.
    Metrics.get = authenticated(Metrics.get)
    flower = settings.flower
    fault = refuse(flower, local="--local" in arguments)
    if fault := fault or find_taken_port("flower.port", flower.host, flower.port):
        sys.exit(f"leasehold: {fault}")
    if flower.basic_auth is not None:
        # The password is passed by the environment, because every user of this host can read a command line.
        os.environ["FLOWER_BASIC_AUTH"] = flower.basic_auth.get_secret_value()
    # By default Flower runs a flowerconfig.py of the working folder.
    options = [f"--conf={os.devnull}", f"--address={flower.host}", f"--port={flower.port}"]
    # Not by `celery flower`, which imports all other commands too, with a shell: 8 MiB.
    celery = Context(Command("celery"), obj=CLIContext(app=app, no_color=True, workdir=None))
    command.main(options, prog_name="flower", parent=celery)


if __name__ == "__main__":
    main(sys.argv[1:])
