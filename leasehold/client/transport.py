"""Requests on their way: sent as Celery tasks by name, answered on a Redis list, sent again until answered.

Copies of a request with the same id are sent until its answer is there (`leasehold/client/exchange.py`); the intake
carries a request out once and answers every copy of it alike. So a message lost in Redis, a worker killed before its
commit or before its answer cost a delay, never a reservation (docs/reference/protocol.md, "Answers").
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
from leasehold.client.exchange import Exchange, describe_request
from leasehold.client.signer import Signer, make_signing_producer
from leasehold.common.heartbeats import Heartbeat
from leasehold.common.masking import mask_urls, show_url
from leasehold.common.names import DEFAULT_PREFIX, RESERVATIONS, RedisNames, task_name
from leasehold.errors import Unavailable

if TYPE_CHECKING:
    from celery import Celery
    from kombu.pools import ProducerPool

SOCKET_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.2
_CONNECTIONS: Final = 8
_importing: Final = threading.Lock()


class RequestTransport:
    """Sends requests and waits for their answers; for any number of threads, and again after a fork.

    Messages go to the broker at `url`; answers, rows and notices are in the Redis of the view, mostly the same.
    With `credentials` each message is signed, and each copy of it has a signature of its own.
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
        """The broker's Redis, where that of the view is another one."""

    def ask(
        self, verb: str, document: Mapping[str, Any], timeout: float, *, request: str | None = None
    ) -> dict[str, Any]:
        """Send one request and give its answer.

        Raises NotAnswered when time runs out, Unavailable when Redis could not be reached when it did.
        """
        given = {"request": request, **document} if request else document
        return next(self.ask_each(verb, [given], timeout))

    def ask_each(self, verb: str, documents: Iterable[Mapping[str, Any]], timeout: float) -> Iterator[dict[str, Any]]:
        """The answers to these requests, in their order, with several of them on their way at once.

        `timeout` is how long nothing at all may come back. Raises as `ask` does.
        """
        exchange = Exchange(self, verb, documents, timeout)
        return exchange.answers()

    def reply_address(self, request: str) -> str:
        """The list on which the answer to this request is put."""
        return self.names.reply(request)

    def send(self, verb: str, document: Mapping[str, Any], patience: float | None = None) -> float:
        """Hand one message to the broker; returns the `sent_at` in it. Raises Unavailable when it is not taken.

        `patience`: how many seconds the sender waits for the answer. It then understands `retry_after`, too.
        """
        headers = {} if patience is None else {"patience": round(patience, 3)}
        return self._send(task_name(RESERVATIONS, verb), RESERVATIONS, document, describe_request(document), headers)

    def read_taken(self) -> float | None:
        """The `sent_at` of the request that a worker took last while more of them wait. None: none waits, or it
        cannot be seen, so that a request without an answer may be lost.
        """
        try:
            waiting = self._broker().llen(RESERVATIONS)
            taken = cast("bytes | None", self.redis.get(self.names.taken)) if waiting else None
            return None if taken is None else float(taken)
        except (redis.RedisError, ValueError):
            return None

    def explain(self, error: redis.RedisError, purpose: str) -> Unavailable:
        """The client's error for an error of the Redis of the view."""
        return explain_redis(error, self.view_url, purpose)

    def send_canary(self, queue: str, address: str, expires: float | None = None) -> None:
        """Ask whoever consumes this queue to answer on the list `address`, unless it waited there for longer than
        `expires` seconds. Raises as `send` does.
        """
        # Celery would count from the wall clock of this host.
        until = None if expires is None else datetime.fromtimestamp(self.clock.now() + expires, UTC).isoformat()
        headers = {} if until is None else {"expires": until}
        self._send(f"leasehold.{queue}.canary", queue, address, "canary", headers)

    def sign_heartbeat(self, slot: str, beat: Heartbeat, above: int) -> Heartbeat:
        """The heartbeat as the principal of this client sends it: see Signer. Without a principal as it is."""
        return beat if self._signer is None else self._signer.sign_heartbeat(slot, beat, above)

    def send_tick(self) -> None:
        """Ask for a tick. Raises as `send` does."""
        self._send("leasehold.ticks.tick", "ticks", None, "")

    def pause(self) -> None:
        """Let a moment pass before Redis is tried again; ends at once when the wire is closed."""
        self._closed.wait(_PAUSE_SECONDS)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """Close all connections; waits for an answer end with an error."""
        self._closed.set()
        with self._guard:
            sender, self._sender = self._sender, None
        if sender is not None and sender.pid == os.getpid():
            sender.close()
        # Not those that another thread is reading from: it sees the flag within a moment.
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
        # By it the metrics process and the workers know how long the message has waited.
        self._current_sender().send(task, queue, argument, shown, {"sent_at": sent_at, **(headers or {})})
        return sent_at

    def _current_sender(self) -> "_Sender":
        """This process's own sender: the connections of a parent are not ours to use after a fork."""
        with self._guard:
            if self._sender is None or self._sender.pid != os.getpid():
                self._sender = _Sender(self.url, self._signer)
            return self._sender


class _Sender:
    """Celery, on first use, as an application of our own beside whatever application the producer has."""

    def __init__(self, url: str, signer: Signer | None) -> None:
        self.pid, self._url, self._signer = os.getpid(), url, signer
        self._app: Celery | None = None
        self._producers: ProducerPool | None = None
        self._guard = threading.Lock()

    def send(self, task: str, queue: str, argument: object, shown: str, headers: Mapping[str, Any]) -> None:
        """Send a task with one argument, or with none where it is None. `headers` go before Celery's own."""
        app, producers = self._open()
        from kombu.entity import Queue
        from kombu.exceptions import OperationalError

        try:
            with producers.acquire(block=True, timeout=SOCKET_SECONDS) as producer:
                app.send_task(
                    task,
                    args=[] if argument is None else [argument],
                    # Of the default exchange: straight onto the list, with no binding that a flush could lose.
                    queue=Queue(queue, routing_key=queue),  # type: ignore[arg-type]  # the stubs know names only
                    producer=producer,
                    ignore_result=True,
                    argsrepr=shown,
                    headers=dict(headers),
                    retry=False,
                )
        except (OperationalError, redis.RedisError, OSError) as error:
            raise explain_redis(error, self._url, f"send to the queue {queue}", "takes no message") from error

    def close(self) -> None:
        """Close the pooled connections."""
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

    While either package is imported it puts another module object into `sys.modules`. A thread that imports it at the
    same time waits for the import and then gets the first object, which lacks `Celery` and `Queue`.
    """
    with _importing:
        import_module("celery")
        import_module("kombu")


def _make_app(url: str) -> "Celery":
    # Not from the package, whose lazy attributes another thread of the producer may be importing.
    from celery.app.base import Celery

    # Not the current app: the producer's own tasks go on finding its own.
    app = Celery("leasehold-client", broker=url, set_as_current=False, fixups=[])
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
    )
    return app


def _make_producers(url: str, signer: Signer | None) -> "ProducerPool":
    # The connection is made here because Celery lets CELERY_BROKER_URL of the producer's surroundings win.
    from kombu.connection import Connection
    from kombu.pools import ProducerPool

    options = {
        "socket_timeout": SOCKET_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_keepalive": True,
        # One try: the requests themselves are sent again.
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0,
        "interval_max": 0,
    }
    # By default kombu verifies no certificate; the query of the URL has precedence.
    tls = {"ssl_cert_reqs": "required"} if url.startswith("rediss://") else False
    connection = Connection(url, ssl=tls, transport_options=options, connect_timeout=CONNECT_SECONDS)
    producers = {} if signer is None else {"Producer": make_signing_producer(signer)}
    return ProducerPool(connections=connection.Pool(_CONNECTIONS), limit=_CONNECTIONS, **producers)


def make_redis(url: str) -> redis.Redis:
    """A client that never hangs, whose answers are bytes; safe for threads, and after a fork."""
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
    """The client's error for an error of Redis: it names the user where Redis refuses the user.

    `purpose` names what was tried ("read the view"), `trouble` what is wrong if the user is not the reason.
    """
    user = urlsplit(url).username or "default"
    # kombu wraps the error of redis-py, and keeps it as the cause.
    cause = error.__cause__ if isinstance(error.__cause__, redis.RedisError) else error
    if isinstance(cause, redis.exceptions.NoPermissionError):
        return Unavailable(f"user {user} may not {purpose}; Redis at {show_url(url)} answers: {mask_urls(str(cause))}")
    if isinstance(cause, redis.exceptions.AuthenticationError):
        return Unavailable(f"user {user} may not use Redis at {show_url(url)}: {mask_urls(str(cause))}")
    return Unavailable(f"Redis at {show_url(url)} {trouble}: {mask_urls(str(error))}")
