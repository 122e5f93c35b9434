"""The Celery application with which a client sends tasks, or writes their messages."""

import os
import threading
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import redis

from leasehold.client.redis_connection import CONNECT_SECONDS, SOCKET_SECONDS, explain_redis
from leasehold.client.signer import Signer, make_signing_producer

if TYPE_CHECKING:
    from celery import Celery
    from kombu.pools import ProducerPool

_CONNECTIONS: Final = 8
_importing: Final = threading.Lock()


class Sender:
    """The Celery application with which one process sends tasks. It is separate, so that the producer's own application
    is not affected. It is made when it is first used.
    """

    def __init__(self, url: str, signer: Signer | None) -> None:
        self.pid, self._url, self._signer = os.getpid(), url, signer
        self._app: Celery | None = None
        self._producers: ProducerPool | None = None
        self._guard = threading.Lock()

    def send(self, task: str, queue: str, argument: object, shown: str, headers: Mapping[str, Any]) -> None:
        """Send a task with one argument, or without arguments if `argument` is None. `shown`: the text that Flower
        shows in place of the argument. `headers` are added before Celery's own headers.
        """
        app, producers = self._open()
        from kombu.exceptions import OperationalError

        try:
            with producers.acquire(block=True, timeout=SOCKET_SECONDS) as producer:
                _send_task(app, producer, task, queue, argument, shown, headers)
        except (OperationalError, redis.RedisError, OSError) as error:
            raise explain_redis(error, self._url, f"send to the queue {queue}", "takes no message") from error

    def close(self) -> None:
        """Close the connections to the broker."""
        if self._producers is not None:
            self._producers.connections.force_close_all()

    def _open(self) -> tuple["Celery", "ProducerPool"]:
        with self._guard:
            if self._app is None or self._producers is None:
                import_celery()
                self._app, self._producers = _make_app(self._url), _make_producers(self._url, self._signer)
            return self._app, self._producers


class MessageWriter:
    """Writes the messages of one client as they are put on the Redis list of their queue, without a connection. For one
    thread at a time.
    """

    def __init__(self, signer: Signer | None) -> None:
        import_celery()
        from kombu.connection import Connection

        from leasehold.client.broker import WritingTransport

        kind = make_signing_producer(signer) if signer is not None else import_module("kombu").Producer
        self._app = _make_app("memory://")
        self._producer: Any = kind(Connection(transport=WritingTransport))

    def write(self, task: str, queue: str, argument: object, shown: str, headers: Mapping[str, Any]) -> str:
        """Return a message, see `Sender.send`."""
        _send_task(self._app, self._producer, task, queue, argument, shown, headers)
        found: str = self._producer.channel.take()
        return found


def _send_task(
    app: "Celery", producer: Any, task: str, queue: str, argument: object, shown: str, headers: Mapping[str, Any]
) -> None:
    from kombu.entity import Queue

    app.send_task(
        task,
        args=[] if argument is None else [argument],
        # The default exchange writes to the list directly and needs no binding, which a flush could remove.
        queue=Queue(queue, routing_key=queue),  # type: ignore[arg-type]  # the stubs know names only
        declare=[],
        producer=producer,
        ignore_result=True,
        argsrepr=shown,
        headers=dict(headers),
        retry=False,
    )


def import_celery() -> None:
    """Import celery and kombu completely, in one thread at a time.

    While one of these packages is imported, it replaces its module object in `sys.modules`. Another thread that imports
    it at the same time would get the first object, which lacks `Celery` and `Queue`.
    """
    with _importing:
        import_module("celery")
        import_module("kombu")


def _make_app(url: str) -> "Celery":
    # Import from the submodule: another thread may be importing the package's lazy attributes.
    from celery.app.base import Celery

    # Do not make this the current app, so that the producer's tasks keep using their own.
    app = Celery("leasehold-client", broker=url, set_as_current=False, fixups=[])
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
    )
    return app


def _make_producers(url: str, signer: Signer | None) -> "ProducerPool":
    # Connect here, because Celery would prefer CELERY_BROKER_URL of the producer's environment.
    from kombu.connection import Connection
    from kombu.pools import ProducerPool

    from leasehold.client.broker import Transport

    options = {
        "socket_timeout": SOCKET_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_keepalive": True,
        # Try once, because whole requests are sent again.
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0,
        "interval_max": 0,
    }
    # By default kombu does not verify certificates. Parameters of the URL have precedence.
    tls = {"ssl_cert_reqs": "required"} if url.startswith("rediss://") else False
    connection = Connection(
        url, transport=Transport, ssl=tls, transport_options=options, connect_timeout=CONNECT_SECONDS
    )
    producers = {} if signer is None else {"Producer": make_signing_producer(signer)}
    return ProducerPool(connections=connection.Pool(_CONNECTIONS), limit=_CONNECTIONS, **producers)
