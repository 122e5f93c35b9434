"""Send requests as Celery tasks, and receive their answers on Redis lists.

Copies of a request with the same id are sent until its answer arrives (`leasehold/client/exchange.py`). The intake
worker carries the request out once and gives every copy the same answer. So if Redis loses a message, or a worker ends
before its commit or its answer, the request is delayed and no reservation is lost (docs/reference/protocol.md,
"Answers").
"""

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

import redis
from redis.client import PubSub

from leasehold.client import exchange
from leasehold.client.cluster_time import ClientClock
from leasehold.client.credentials import Credentials
from leasehold.client.describing import describe_request
from leasehold.client.exchange import LONGEST_WAIT_SECONDS, Earlier, Exchange, address_request, read_first_answer
from leasehold.client.hints import RedisHints
from leasehold.client.ports import Joined
from leasehold.client.redis_connection import ask_redis, explain_redis, make_redis
from leasehold.client.signer import Signer
from leasehold.client.task_forms import make_writer
from leasehold.client.view_reader import ViewReader
from leasehold.errors import Unavailable
from scheduler.protocol.heartbeats import Heartbeat, format_heartbeat
from scheduler.protocol.masking import show_url
from scheduler.protocol.names import DEFAULT_PREFIX, RESERVATIONS, RedisNames, task_name
from scheduler.protocol.redis_primary import count_left
from scheduler.protocol.task_messages import MessageWriter

if TYPE_CHECKING:
    from leasehold.canaries import Probe
    from leasehold.client.async_watch import RedisNotices

_PAUSE_SECONDS: Final = 0.2
MOST_SUBSCRIBERS: Final = 4
"""The most connections without a subscription that a client keeps for the next subscriptions."""
HEARTBEAT_SECONDS: Final = 86400
"""Seconds after which a heartbeat's key in Redis expires. All hosts use the same value, because the age of a heartbeat
is computed from it.
"""


class RequestTransport:
    """Sends requests and waits for their answers. Safe for threads and after a fork.

    Messages go to the broker at `url`. Answers, rows and notices are in the Redis of the view (`view_url`), which is
    usually the broker's Redis. If there are `credentials`, each message is signed, and a message that is sent again is
    signed again.
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
        self._closed = threading.Event()
        self._rows = ViewReader(self.redis, prefix, self.view_url)
        self._writer = self.make_writer()
        self._subscribers: list[tuple[tuple[int, int], PubSub]] = []
        """Connections of ended subscriptions, each with the id of the process that opened it, which alone may use the
        connection again, and with `count_left` at that time.
        """
        self._other: redis.Redis | None = None
        """The connection to the broker's Redis; None if it was not used yet or the view is in the same Redis."""

    def ask(
        self, verb: str, document: Mapping[str, Any], timeout: float, *, request: str | None = None
    ) -> dict[str, Any]:
        """Send one request and return its answer. Raise NotAnswered if there is no answer within `timeout` seconds, or
        Unavailable if Redis cannot be reached. `request`: the id of the request (default: a random one).
        """
        answer, _ = self._ask(verb, {"request": request, **document} if request else document, timeout, ())
        return answer

    def submit(self, document: Mapping[str, Any], timeout: float) -> tuple[dict[str, Any], Joined | None]:
        """Send the submission of one reservation. Return (1) the answer, and (2) the row of the reservation, if Redis
        sent it together with the answer. The second part is a Joined without a row if the view does not have the row or
        is not valid, and None if the row was not read. Raise NotAnswered or Unavailable.
        """
        answer, replies = self._ask("submit", document, timeout, self._rows.list_commands(str(document.get("id"))))
        if not replies or not answer.get("ok") or answer.get("reservation") != document.get("id"):
            return answer, None
        try:
            return answer, self._rows.read_row(replies)
        except Unavailable:
            return answer, Joined(None)

    def ask_each(self, verb: str, documents: Iterable[Mapping[str, Any]], timeout: float) -> Iterator[dict[str, Any]]:
        """Send several requests at the same time, and yield their answers in the order of the requests. Raise
        NotAnswered or Unavailable if `timeout` seconds pass after the last answer (at first: after the start) without
        another answer.
        """
        exchange = Exchange(self, verb, documents, timeout)
        return exchange.answers()

    def _ask(
        self, verb: str, document: Mapping[str, Any], timeout: float, then: Sequence[tuple[str, ...]]
    ) -> tuple[dict[str, Any], list[Any]]:
        """Send one request. Return (1) its answer, and (2) the replies to the commands `then`, which Redis carries out
        right after the answer came. There are no replies if the answer did not come soon, or if the queue is in another
        Redis.

        The message, the wait for the answer and `then` are sent in one round trip. After an error of Redis, after the
        answer of an overloaded worker, or if no answer comes soon, an Exchange continues the request.
        """
        began, request = time.monotonic(), str(document.get("request") or uuid4().hex)
        earlier: Earlier | None = None
        if self.url == self.view_url and timeout > 0:
            wait = min(timeout, LONGEST_WAIT_SECONDS, exchange.RESEND_SECONDS)
            address = self.reply_address(request)
            with suppress(redis.RedisError, Unavailable):
                # After an error, whether the message was sent is not known. A copy does no harm.
                sent_at, message = self._write_request(verb, address_request(document, request, address), timeout)
                commands = [("LPUSH", RESERVATIONS, message), ("BLPOP", address, f"{wait:.3f}"), *then]
                replies = ask_redis(self.redis, commands)
                found = read_first_answer(replies, sent_at, wait)
                if isinstance(found, dict):
                    return found, replies[2:]
                earlier = found
        return self.resume(verb, document, timeout, request, earlier, time.monotonic() - began), []

    def _write(
        self, task: str, queue: str, argument: object, shown: str, headers: Mapping[str, object]
    ) -> tuple[float, str]:
        """Return (1) the sending time, which is also the header `sent_at` of the message, and (2) the message. The
        metrics process and the workers compute from the header how long the message has waited. `shown`: the text that
        Flower shows in place of the argument.
        """
        self.clock.refresh()
        sent_at = self.clock.now()
        return sent_at, self._writer.write(task, queue, argument, shown, {"sent_at": sent_at, **headers})

    def _write_request(self, verb: str, document: Mapping[str, Any], patience: float | None) -> tuple[float, str]:
        headers = {} if patience is None else {"patience": round(patience, 3)}
        return self._write(task_name(RESERVATIONS, verb), RESERVATIONS, document, describe_request(document), headers)

    def resume(
        self,
        verb: str,
        document: Mapping[str, Any],
        timeout: float,
        request: str,
        earlier: Earlier | None,
        spent: float,
    ) -> dict[str, Any]:
        """Continue a request until its answer arrives, and return the answer. `request`: the id of the request.
        `earlier`: the copy of the request that was sent already; None: no copy was sent. `spent`: the seconds of
        `timeout` that have passed. Raises the errors of `ask`.
        """
        return next(Exchange(self, verb, [{"request": request, **document}], timeout, earlier, spent).answers())

    def reply_address(self, request: str) -> str:
        """Return the name of the Redis list on which the answer to this request arrives."""
        return self.names.reply(request)

    def send(self, verb: str, document: Mapping[str, Any], patience: float | None = None) -> float:
        """Send one message to the broker and return the sending time in its header (`sent_at`). Raise Unavailable if
        the broker does not accept the message.

        `patience`: seconds for which the sender waits for the answer. A worker that is overloaded may ask for the
        request to be sent again later (`retry_after`) only if `patience` is set.
        """
        sent_at, message = self._write_request(verb, document, patience)
        self._push(RESERVATIONS, message)
        return sent_at

    def make_writer(self) -> MessageWriter:
        """Return a writer of messages that are signed as this transport signs them."""
        return make_writer(self._signer)

    @property
    def may_write(self) -> bool:
        """Whether a caller may write messages and send them on a connection of its own. It may if (1) the signature of
        a message needs no read of Redis, and (2) the queue is in the same Redis as the view.
        """
        return self.url == self.view_url and (self._signer is None or self._signer.knows_cluster)

    def read_taken(self) -> float | None:
        """Return the sending time (`sent_at`) of the request that a worker took last from the queue. A request that was
        sent later probably still waits in the queue.

        Return None if the queue is empty or the time cannot be read. A request without an answer may then be lost, so
        it is sent again.
        """
        try:
            waiting = self._broker().llen(RESERVATIONS)
            taken = cast("bytes | None", self.redis.get(self.names.taken)) if waiting else None
            return None if taken is None else float(taken)
        except (redis.RedisError, ValueError):
            return None

    def explain(self, error: redis.RedisError, purpose: str) -> Unavailable:
        """Return the error that the client raises for an error of the view's Redis. `purpose`: what was tried, such as
        "read the view".
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

    def send_heartbeat(self, slot: str, machine: str, version: str | None, above: int, run: str | None = None) -> int:
        """Write a heartbeat to Redis: under the key of the run of the agent, if the slot has one, and under the key of
        the slot, which workers of earlier versions read. It is signed if the principal of this client has the name of
        the slot. Return the counter of the heartbeat, which is greater than `above`; 0 if the heartbeat is not signed.
        Raise Unavailable if Redis does not answer.
        """
        beat = Heartbeat(machine, version)
        if self._signer is not None:
            beat = self._signer.sign_heartbeat(slot, beat, above)
        try:
            with self.redis.pipeline(transaction=False) as pipeline:
                for each in dict.fromkeys([run, None]):
                    pipeline.set(self.names.heartbeat(slot, each), format_heartbeat(beat), ex=HEARTBEAT_SECONDS)
                pipeline.execute()
        except redis.RedisError as error:
            raise explain_redis(error, self.view_url, "write heartbeats", "takes no heartbeat") from error
        return beat.counter or 0

    def take_subscriber(self) -> PubSub:
        """Return a connection for a subscription. If possible, it is the connection of an ended subscription of this
        process, because opening a new one takes four round trips.
        """
        with suppress(IndexError):
            origin, kept = self._subscribers.pop()
            if origin == (os.getpid(), count_left(self.redis)):
                return kept
        return PubSub(self.redis.connection_pool, ignore_subscribe_messages=True)

    def keep_subscriber(self, subscriber: PubSub) -> None:
        """Keep a connection whose subscription has ended for the next subscription. If MOST_SUBSCRIBERS connections are
        kept already, close this one.
        """
        if len(self._subscribers) >= MOST_SUBSCRIBERS:
            subscriber.close()
            return
        self._subscribers.append(((os.getpid(), count_left(self.redis)), subscriber))
        if self.is_closed:
            self._close_subscribers()

    def _close_subscribers(self) -> None:
        with suppress(IndexError):
            while True:
                self._subscribers.pop()[1].close()

    def hint_row(self, reservation: str) -> RedisHints:
        """Return a subscription to the notices that the row of this reservation has changed."""
        return RedisHints(self, self.names.notice(reservation))

    def hint_host(self, slot: str) -> RedisHints:
        """Return a subscription to hints, which report that this slot has changed."""
        return RedisHints(self, self.names.host(slot))

    def collect_notices(self) -> "RedisNotices":
        """Return the receiver of notices about reservations for one event loop."""
        from leasehold.client.async_watch import RedisNotices

        return RedisNotices(self, self.names.notice)

    def collect_host_notices(self) -> "RedisNotices":
        """Return the receiver of hints for hosts, for one event loop. Such a hint reports that the slot of a host has
        changed.
        """
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
        """Wait for a short time before the next attempt to reach Redis. Return at once if the transport is closed."""
        self._closed.wait(_PAUSE_SECONDS)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """Close all connections. Calls that wait for an answer raise an error."""
        self._closed.set()
        # Connections that another thread reads from stay open: that thread checks the flag soon.
        self._close_subscribers()
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
    ) -> None:
        _, message = self._write(task, queue, argument, shown, headers or {})
        self._push(queue, message)

    def _push(self, queue: str, message: str) -> None:
        try:
            self._broker().lpush(queue, message)
        except redis.RedisError as error:
            raise explain_redis(error, self.url, f"send to the queue {queue}", "takes no message") from error
