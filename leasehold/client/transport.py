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
from typing import TYPE_CHECKING, Any, Final, cast

import redis

from leasehold.client.cluster_time import ClientClock
from leasehold.client.credentials import Credentials
from leasehold.client.describing import describe_request
from leasehold.client.exchange import Earlier, Exchange
from leasehold.client.hints import RedisHints
from leasehold.client.redis_connection import explain_redis, make_redis
from leasehold.client.sending import MessageWriter, Sender
from leasehold.client.signer import Signer
from leasehold.common.heartbeats import Heartbeat, format_heartbeat
from leasehold.common.masking import show_url
from leasehold.common.names import DEFAULT_PREFIX, RESERVATIONS, RedisNames, task_name
from leasehold.errors import Unavailable

if TYPE_CHECKING:
    from leasehold.canaries import Probe
    from leasehold.client.async_watch import RedisNotices

_PAUSE_SECONDS: Final = 0.2
HEARTBEAT_SECONDS: Final = 86400
"""Seconds after which a heartbeat's key in Redis expires. All hosts use the same value, because the age of a heartbeat
is computed from it.
"""


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
        self._sender: Sender | None = None
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

    def resume(
        self, verb: str, document: Mapping[str, Any], timeout: float, request: str, earlier: Earlier | None
    ) -> dict[str, Any]:
        """Continue a request of which a copy was sent already (`earlier`). See `ask`."""
        return next(Exchange(self, verb, [{"request": request, **document}], timeout, earlier).answers())

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

    def make_writer(self) -> MessageWriter:
        """Return a writer of messages that are signed as this transport signs them. This imports Celery."""
        return MessageWriter(self._signer)

    @property
    def may_write(self) -> bool:
        """Whether messages can be written without reading Redis, and their queue is in the same Redis as the view."""
        return self.url == self.view_url and (self._signer is None or self._signer.knows_cluster)

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

    def _current_sender(self) -> "Sender":
        """Return the sender of this process. After a fork a new sender is made, because the connections of the parent
        must not be used.
        """
        with self._guard:
            if self._sender is None or self._sender.pid != os.getpid():
                self._sender = Sender(self.url, self._signer)
            return self._sender
