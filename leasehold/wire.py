"""Requests on their way: sent as Celery tasks by name, answered on a Redis list, sent again until answered.

The same request id goes out every two seconds until its answer is there; the intake carries a request out once
and answers every copy of it alike. So a message lost in Redis, a worker killed before its commit or before its
answer cost a delay, never a reservation (docs/protocol.md, "Answers").
"""

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from leasehold.errors import NotAnswered, Unavailable
from leasehold.running import DEFAULT_PREFIX

if TYPE_CHECKING:
    from celery import Celery
    from kombu.pools import ProducerPool

QUEUE: Final = "reservations"
TASK_PREFIX: Final = "leasehold.reservations."
RESEND_SECONDS: Final = 2.0
REQUESTS_IN_FLIGHT: Final = 8
"""How many requests of one call are on their way at once."""
LONGEST_WAIT_SECONDS: Final = 0.5
"""How long one wait for an answer lasts, until it is seen that the client was closed."""
SOCKET_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.2
_CONNECTIONS: Final = 8
_importing: Final = threading.Lock()


@dataclass
class _Pending:
    """A request without an answer: what was sent, and when it is due to be sent again."""

    index: int
    document: dict[str, Any]
    due: float


class Wire:
    """Sends requests and waits for their answers; for any number of threads, and again after a fork.

    Messages go to the broker at `url`; answers, rows and notices are in the Redis of the view, mostly the same.
    """

    def __init__(self, url: str, prefix: str = DEFAULT_PREFIX, view_url: str | None = None) -> None:
        self.url, self.prefix, self.view_url = url, prefix, view_url or url
        try:
            self.redis = make_redis(self.view_url)
        except ValueError as error:
            raise Unavailable(f"{show_url(self.view_url)} is no URL of a Redis: {error}") from None
        self._guard = threading.Lock()
        self._sender: _Sender | None = None
        self._closed = threading.Event()

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
        exchange = _Exchange(self, verb, documents, timeout)
        return exchange.answers()

    def reply_address(self, request: str) -> str:
        """The list on which the answer to this request is put."""
        return f"{self.prefix}reply:{request}"

    def send(self, verb: str, document: Mapping[str, Any]) -> None:
        """Hand one message to the broker. Raises Unavailable when it is not taken."""
        self._current_sender().send(TASK_PREFIX + verb, QUEUE, document, describe_request(document))

    def send_canary(self, queue: str, address: str, expires: float | None = None) -> None:
        """Ask whoever consumes this queue to answer on the list `address`, unless it waited there for longer than
        `expires` seconds. Raises as `send` does.
        """
        self._current_sender().send(f"leasehold.{queue}.canary", queue, address, "canary", expires)

    def send_tick(self) -> None:
        """Ask for a tick. Raises as `send` does."""
        self._current_sender().send("leasehold.ticks.tick", "ticks", None, "")

    def pause(self) -> None:
        """Let a moment pass before Redis is tried again; ends at once when the wire is closed."""
        self._closed.wait(_PAUSE_SECONDS)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """Let go of all connections; whoever waits for an answer is told so."""
        self._closed.set()
        with self._guard:
            sender, self._sender = self._sender, None
        if sender is not None and sender.pid == os.getpid():
            sender.close()
        # Not those that another thread is reading from: it sees the flag within a moment.
        self.redis.connection_pool.disconnect(inuse_connections=False)

    def _current_sender(self) -> "_Sender":
        """This process's own sender: the connections of a parent are not ours to use after a fork."""
        with self._guard:
            if self._sender is None or self._sender.pid != os.getpid():
                self._sender = _Sender(self.url)
            return self._sender


class _Sender:
    """Celery, on first use, as an application of our own beside whatever application the producer has."""

    def __init__(self, url: str) -> None:
        self.pid, self._url = os.getpid(), url
        self._app: Celery | None = None
        self._producers: ProducerPool | None = None
        self._guard = threading.Lock()

    def send(self, task: str, queue: str, argument: object, shown: str, expires: float | None = None) -> None:
        """Send a task with one argument, or with none where it is None."""
        app, producers = self._open()
        from kombu.entity import Queue  # noqa: PLC0415 - half a second that reads need not wait; after _import_celery
        from kombu.exceptions import OperationalError  # noqa: PLC0415 - as above

        try:
            with producers.acquire(block=True, timeout=SOCKET_SECONDS) as producer:
                app.send_task(
                    task,
                    args=[] if argument is None else [argument],
                    # Of the default exchange: straight onto the list, with no binding that a flush could lose.
                    queue=Queue(queue, routing_key=queue),  # type: ignore[arg-type]  # the stubs know names only
                    producer=producer,
                    ignore_result=True,
                    expires=expires,
                    argsrepr=shown,
                    # By it the metrics process knows how long the message has waited.
                    headers={"sent_at": time.time()},
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
                self._app, self._producers = _make_app(self._url), _make_producers(self._url)
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
    from celery.app.base import Celery  # noqa: PLC0415 - see _Sender.send

    # Not the current app: the producer's own tasks go on finding its own.
    app = Celery("leasehold-client", broker=url, set_as_current=False, fixups=[])
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
    )
    return app


def _make_producers(url: str) -> "ProducerPool":
    # The connection is made here because Celery lets CELERY_BROKER_URL of the producer's surroundings win.
    from kombu.connection import Connection  # noqa: PLC0415 - see _Sender.send
    from kombu.pools import ProducerPool  # noqa: PLC0415 - see _Sender.send

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
    # Without a word kombu would verify no certificate; what the URL's query says goes before this.
    tls = {"ssl_cert_reqs": "required"} if url.startswith("rediss://") else False
    connection = Connection(url, ssl=tls, transport_options=options, connect_timeout=CONNECT_SECONDS)
    return ProducerPool(connections=connection.Pool(_CONNECTIONS), limit=_CONNECTIONS)


class _Exchange:
    """Several requests of one verb, a window of them on their way."""

    def __init__(self, wire: Wire, verb: str, documents: Iterable[Mapping[str, Any]], timeout: float) -> None:
        self._wire, self._verb, self._timeout = wire, verb, timeout
        self._waiting = enumerate(documents)
        self._pending: dict[str, _Pending] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._deadline = 0.0
        self._trouble: Unavailable | None = None

    def answers(self) -> Iterator[dict[str, Any]]:
        """See Wire.ask_each."""
        self._deadline = time.monotonic() + self._timeout
        index = 0
        self._fill()
        while self._pending or index in self._answers:
            if index in self._answers:
                yield self._answers.pop(index)
                index += 1
                continue
            self._send_due()
            self._receive()
            self._fill()

    def _fill(self) -> None:
        while len(self._pending) < REQUESTS_IN_FLIGHT:
            following = next(self._waiting, None)
            if following is None:
                return
            index, document = following
            request = str(document.get("request") or uuid4().hex)
            address = self._wire.reply_address(request)
            full = {**document, "request": request, "reply_to": address}
            self._pending[address] = _Pending(index, full, 0.0)
            self._send_due()

    def _send_due(self) -> None:
        """Send what was never sent or was not answered for two seconds."""
        now = time.monotonic()
        for pending in self._pending.values():
            if pending.due > now:
                continue
            try:
                self._wire.send(self._verb, pending.document)
            except Unavailable as error:
                self._note_trouble(error)
                return
            pending.due = time.monotonic() + RESEND_SECONDS

    def _receive(self) -> None:
        """Wait for one answer, at most until something is due to be sent again."""
        now = time.monotonic()
        if now >= self._deadline or self._wire.is_closed:
            self._give_up()
        until = min(self._deadline, *(max(each.due, now + 0.05) for each in self._pending.values()))
        try:
            wait = min(max(until - now, 0.01), LONGEST_WAIT_SECONDS)
            got = cast("list[bytes] | None", self._wire.redis.blpop(list(self._pending), timeout=wait))
        except redis.RedisError as error:
            self._note_trouble(explain_redis(error, self._wire.view_url, "take answers"))
            return
        if got is None:
            return
        address, body = got
        pending = self._pending.pop(address.decode())
        self._answers[pending.index] = msgspec.json.decode(body)
        self._trouble = None
        self._deadline = time.monotonic() + self._timeout

    def _note_trouble(self, error: Unavailable) -> None:
        self._trouble = error
        if time.monotonic() >= self._deadline:
            raise error
        self._wire.pause()

    def _give_up(self) -> None:
        if self._wire.is_closed:
            raise Unavailable("the client was closed while it waited for an answer")
        if self._trouble is not None:
            raise self._trouble
        first = next(iter(self._pending.values())).document
        raise NotAnswered(
            f"no answer to {self._verb} of {describe_request(first)} for {self._timeout:g} s: messages wait in the"
            f" queue `{QUEUE}` until a worker takes them; asking again with the same id is safe"
        )


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


def describe_request(document: Mapping[str, Any]) -> str:
    """What a request is about, for people: an id, or how many items. Flower shows it."""
    if "items" in document:
        return f"{len(document['items'])} items"
    about = ("reservation", "id", "slot", "account")
    return str(next((document[name] for name in about if document.get(name)), "?"))[:200]


def show_url(url: str) -> str:
    """A URL without what may not be shown: user and password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def explain_redis(error: Exception, url: str, purpose: str, trouble: str = "cannot be reached") -> Unavailable:
    """The client's error for an error of Redis: it names the user where Redis refuses the user.

    `purpose` says what was tried ("read the view"), `trouble` what is wrong when the user is not the reason.
    """
    user = urlsplit(url).username or "default"
    # kombu wraps the error of redis-py, and keeps it as the cause.
    cause = error.__cause__ if isinstance(error.__cause__, redis.RedisError) else error
    if isinstance(cause, redis.exceptions.NoPermissionError):
        return Unavailable(f"user {user} may not {purpose}; Redis at {show_url(url)} says: {cause}")
    if isinstance(cause, redis.exceptions.AuthenticationError):
        return Unavailable(f"user {user} may not use Redis at {show_url(url)}: {cause}")
    return Unavailable(f"Redis at {show_url(url)} {trouble}: {error}")
