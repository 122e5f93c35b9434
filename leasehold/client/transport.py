"""Send requests as Celery tasks, and receive their answers on Redis lists.

Copies of a request with the same id are sent until its answer arrives (`leasehold/client/exchange.py`). The intake
worker carries the request out once and gives every copy the same answer. So if Redis loses a message, or a worker ends
before its commit or its answer, the request is delayed and no reservation is lost (docs/reference/protocol.md,
"Answers").
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from leasehold.client.cluster_time import ClientClock
from leasehold.client.credentials import Credentials
from leasehold.client.describing import describe_request
from leasehold.client.exchange import Exchange
from leasehold.client.hints import RedisHints
from leasehold.client.signer import Signer, make_signing_producer
from leasehold.common.heartbeats import Heartbeat, format_heartbeat
from leasehold.common.masking import mask_urls, show_url
from leasehold.common.names import DEFAULT_PREFIX, RESERVATIONS, RedisNames, task_name
from leasehold.errors import Unavailable

if TYPE_CHECKING:
    from celery import Celery
    from kombu.pools import ProducerPool

    from leasehold.canaries import Probe
    from leasehold.client.async_watch import RedisNotices

SOCKET_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.2
_CONNECTIONS: Final = 8
HEARTBEAT_SECONDS: Final = 86400
"""Seconds after which a heartbeat's key in Redis expires. All hosts use the same value, because the age of a heartbeat
is computed from it.
"""
_importing: Final = threading.Lock()


class RequestTransport:
    """Sends requests and waits for their answers. Safe for threads and after a fork.

    Messages go to the broker at `url`. Answers, rows and notices are in the Redis of the view, which is usually the
    same. If there are `credentials`, each message is signed; a message that
    is sent again is signed again.
    """

    def __init__(
        self,
        url: str,
        prefix: str = DEFAULT_PREFIX,
        view_url: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.url, self.prefix, self.view_url = url, prefix, view_url or url
        self.names = RedisNames(prefix)
        try:
            self.redis = make_redis(self.view_url)
        except ValueError as error:
            raise Unavailable(f"{show_url(self.view_url)} is no URL of a Redis: {error}") from None
        self.clock = ClientClock(self.redis, self.names.clock)
        self._signer = (
            None if credentials is None else Signer(credentials, self.redis, self.names.cluster, self.clock.now)
        )
        self._guard = threading.Lock()
        self._sender: _Sender | None = None
        self._closed = threading.Event()
        self._other: redis.Redis | None = None
        """The connection to the broker's Redis, if it is another one than that of the view."""

    def ask(
        self, verb: str, document: Mapping[str, Any], timeout: float, *, request: str | None = None
    ) -> dict[str, Any]:
        """Send one request and return its answer. Raise NotAnswered if there is no answer within `timeout` seconds, or
        Unavailable if Redis cannot be reached. `request`: the id of the request (default: a random one).
        """
        given = {"request": request, **document} if request else document
        return next(self.ask_each(verb, [given], timeout))

    def ask_each(self, verb: str, documents: Iterable[Mapping[str, Any]], timeout: float) -> Iterator[dict[str, Any]]:
        """Send several requests at the same time, and yield their answers in the order of the requests. Raise
        NotAnswered or Unavailable after `timeout` seconds without any answer.
        """
        exchange = Exchange(self, verb, documents, timeout)
        return exchange.answers()

    def reply_address(self, request: str) -> str:
        """Return the name of the Redis list on which the answer to this request arrives."""
        return self.names.reply(request)

    def send(self, verb: str, document: Mapping[str, Any], patience: float | None = None) -> float:
        """Send one message to the broker and return the `sent_at` in its header. Raise Unavailable if the broker does
        not accept it.

        `patience`: seconds for which the sender waits for the answer. Only if it is set may a worker answer with
        `retry_after`.
        """
        headers = {} if patience is None else {"patience": round(patience, 3)}
        return self._send(task_name(RESERVATIONS, verb), RESERVATIONS, document, describe_request(document), headers)

    def read_taken(self) -> float | None:
        """Return the sending time (`sent_at`) of the request that a worker took last. Return None if no request waits
        in the queue or the time cannot be read; then a request without an answer may be lost.
        """
        try:
            waiting = self._broker().llen(RESERVATIONS)
            taken = cast("bytes | None", self.redis.get(self.names.taken)) if waiting else None
            return None if taken is None else float(taken)
        except (redis.RedisError, ValueError):
            return None

    def explain(self, error: redis.RedisError, purpose: str) -> Unavailable:
        """Return the client's error for an error of the view's Redis. `purpose`: what was tried, such as "read the
        view".
        """
        return explain_redis(error, self.view_url, purpose)

    def send_canary(self, queue: str, address: str, expires: float | None = None) -> None:
        """Send a canary, a task that any worker of this queue answers on the Redis list `address`. If no worker takes
        it within `expires` seconds, it is dropped. Raise Unavailable if the broker does not accept it.
        """
        # Without this, Celery would compute the expiry from the wall clock of this host.
        until = None if expires is None else datetime.fromtimestamp(self.clock.now() + expires, UTC).isoformat()
        headers = {} if until is None else {"expires": until}
        self._send(f"leasehold.{queue}.canary", queue, address, "canary", headers)

    def take_row(self, answer: Mapping[str, Any]) -> None:  # noqa: ARG002 - as in Wire
        """Return None: workers answer with a few fields of the row."""
        return

    def send_heartbeat(self, slot: str, machine: str, version: str | None, above: int) -> int:
        """Write a heartbeat to Redis, signed by the principal of this client if it has the name of the slot. Return its
        counter, which is greater than `above`; 0 if it is not signed. Raise Unavailable if Redis does not answer.
        """
        beat = Heartbeat(machine, version)
        if self._signer is not None:
            beat = self._signer.sign_heartbeat(slot, beat, above)
        try:
            self.redis.set(self.names.heartbeat(slot), format_heartbeat(beat), ex=HEARTBEAT_SECONDS)
        except redis.RedisError as error:
            raise explain_redis(error, self.view_url, "write heartbeats", "takes no heartbeat") from error
        return beat.counter or 0

    def hint_row(self, reservation: str) -> RedisHints:
        """Return a subscription to the notices about this reservation."""
        return RedisHints(self, self.names.notice(reservation))

    def hint_host(self, slot: str) -> RedisHints:
        """Return a subscription to hints that this slot has changed."""
        return RedisHints(self, self.names.host(slot))

    def collect_notices(self) -> "RedisNotices":
        """Return the receiver of notices about reservations for one event loop."""
        from leasehold.client.async_watch import RedisNotices

        return RedisNotices(self, self.names.notice)

    def collect_host_notices(self) -> "RedisNotices":
        """Return the receiver of hints for hosts for one event loop."""
        from leasehold.client.async_watch import RedisNotices

        return RedisNotices(self, self.names.host)

    def make_probe(self) -> "Probe":
        """Return the checks of the stack's health."""
        from leasehold.canaries import Probe

        return Probe(self)

    def send_tick(self) -> None:
        """Request a tick. Raise Unavailable if the broker does not accept the message."""
        self._send("leasehold.ticks.tick", "ticks", None, "")

    def pause(self) -> None:
        """Wait a moment before Redis is tried again. Return at once if the transport is closed."""
        self._closed.wait(_PAUSE_SECONDS)

    @property
    def is_closed(self) -> bool:
        """Return whether `close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """Close all connections. Calls that wait for an answer raise an error."""
        self._closed.set()
        with self._guard:
            sender, self._sender = self._sender, None
        if sender is not None and sender.pid == os.getpid():
            sender.close()
        # Connections that another thread reads from stay open: that thread checks the flag soon.
        self.redis.connection_pool.disconnect(inuse_connections=False)
        if self._other is not None:
            self._other.connection_pool.disconnect(inuse_connections=False)

    def _broker(self) -> redis.Redis:
        if self.url == self.view_url:
            return self.redis
        if self._other is None:
            self._other = make_redis(self.url)
        return self._other

    def _send(
        self, task: str, queue: str, argument: object, shown: str, headers: Mapping[str, object] | None = None
    ) -> float:
        self.clock.refresh()
        sent_at = self.clock.now()
        # The metrics process and the workers compute from it how long the message has waited.
        self._current_sender().send(task, queue, argument, shown, {"sent_at": sent_at, **(headers or {})})
        return sent_at

    def _current_sender(self) -> "_Sender":
        """Return the sender of this process. After a fork a new sender is made, because the connections of the parent
        must not be used.
        """
        with self._guard:
            if self._sender is None or self._sender.pid != os.getpid():
                self._sender = _Sender(self.url, self._signer)
            return self._sender


class _Sender:
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
        from kombu.entity import Queue
        from kombu.exceptions import OperationalError

        try:
            with producers.acquire(block=True, timeout=SOCKET_SECONDS) as producer:
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
        except (OperationalError, redis.RedisError, OSError) as error:
            raise explain_redis(error, self._url, f"send to the queue {queue}", "takes no message") from error

    def close(self) -> None:
        """Close the connections to the broker."""
        if self._producers is not None:
            self._producers.connections.force_close_all()

    def _open(self) -> tuple["Celery", "ProducerPool"]:
        with self._guard:
            if self._app is None or self._producers is None:
                _import_celery()
                self._app, self._producers = _make_app(self._url), _make_producers(self._url, self._signer)
            return self._app, self._producers


def _import_celery() -> None:
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


def make_redis(url: str) -> redis.Redis:
    """Return a Redis client whose answers are bytes and whose waits all have a time limit. It is safe for threads and
    after a fork.
    """
    return redis.Redis.from_url(
        url,
        socket_timeout=SOCKET_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_keepalive=True,
        health_check_interval=10,
        retry=Retry(ConstantBackoff(0.05), 1),
        protocol=2,
    )


def explain_redis(error: Exception, url: str, purpose: str, trouble: str = "cannot be reached") -> Unavailable:
    """Return the client's error for an error of Redis. `purpose`: what was tried, such as "read the view"; it is in the
    message if Redis refuses the user. `trouble`: the words of the message for any other error.
    """
    user = urlsplit(url).username or "default"
    # kombu wraps the error of redis-py and keeps it as the cause.
    cause = error.__cause__ if isinstance(error.__cause__, redis.RedisError) else error
    if isinstance(cause, redis.exceptions.NoPermissionError):
        return Unavailable(f"user {user} may not {purpose}; Redis at {show_url(url)} answers: {mask_urls(str(cause))}")
    if isinstance(cause, redis.exceptions.AuthenticationError):
        return Unavailable(f"user {user} may not use Redis at {show_url(url)}: {mask_urls(str(cause))}")
    return Unavailable(f"Redis at {show_url(url)} {trouble}: {mask_urls(str(error))}")
