"""Sends messages to the queues of a stack, for the client and for the tools of operators. Its connections block; they
open when they are first used.
"""

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

import redis

from leasehold.client.credentials import Credentials
from leasehold.client.describing import describe_request
from leasehold.client.redis.cluster_time import ClientClock
from leasehold.client.redis.connection import explain_redis, make_redis
from leasehold.client.redis.signer import Signer
from leasehold.client.redis.task_forms import make_writer
from leasehold.errors import Unavailable
from scheduler.protocol.masking import show_url
from scheduler.protocol.names import DEFAULT_PREFIX, RESERVATIONS, RedisNames, task_name

_PAUSE_SECONDS: Final = 0.2


class RequestTransport:
    """Sends messages. Safe for threads and after a fork.

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
        self.signer = (
            None if credentials is None else Signer(credentials, self.redis, self.names.cluster, self.clock.now)
        )
        self._closed = threading.Event()
        self._writer = make_writer(self.signer)
        self._other: redis.Redis | None = None
        """The connection to the broker's Redis; None if it was not used yet or the view is in the same Redis."""

    def write(
        self, task: str, queue: str, argument: object, shown: str, headers: Mapping[str, object]
    ) -> tuple[float, str]:
        """Return (1) the sending time, which is also the header `sent_at` of the message, and (2) the message. The
        metrics process and the workers compute from the header how long the message has waited. `shown`: the text that
        Flower shows in place of the argument. Raise Unavailable if the message must be signed and the identity of the
        cluster cannot be read.
        """
        sent_at = self.clock.now()
        return sent_at, self._writer.write(task, queue, argument, shown, {"sent_at": sent_at, **headers})

    def write_request(self, verb: str, document: Mapping[str, Any], patience: float | None) -> tuple[float, str]:
        """Return the sending time and the message of a request. `patience`: seconds for which the sender waits for the
        answer. A worker that is overloaded may ask for the request to be sent again later (`retry_after`) only if
        `patience` is set.
        """
        headers = {} if patience is None else {"patience": round(patience, 3)}
        return self.write(task_name(RESERVATIONS, verb), RESERVATIONS, document, describe_request(document), headers)

    def reply_address(self, request: str) -> str:
        """Return the name of the Redis list on which the answer to this request arrives."""
        return self.names.reply(request)

    def send(self, verb: str, document: Mapping[str, Any], patience: float | None = None) -> float:
        """Send one request, whose answer the caller does not wait for, and return the sending time in its header
        (`sent_at`). Raise Unavailable if the broker does not accept the message.
        """
        self.clock.refresh()
        sent_at, message = self.write_request(verb, document, patience)
        self._push(RESERVATIONS, message)
        return sent_at

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

    def send_canary(self, queue: str, address: str, expires: float | None = None) -> None:
        """Send a canary, a task that any worker of this queue answers on the Redis list `address`. If no worker takes
        it within `expires` seconds, it is dropped. Raise Unavailable if the broker does not accept it.
        """
        # Without this, Celery would compute the expiry from the wall clock of this host.
        until = None if expires is None else datetime.fromtimestamp(self.clock.now() + expires, UTC).isoformat()
        headers = {} if until is None else {"expires": until}
        self._send(f"leasehold.{queue}.canary", queue, address, "canary", headers)

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
        """Close all connections."""
        self._closed.set()
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
    ) -> None:
        self.clock.refresh()
        _, message = self.write(task, queue, argument, shown, headers or {})
        self._push(queue, message)

    def _push(self, queue: str, message: str) -> None:
        try:
            self._broker().lpush(queue, message)
        except redis.RedisError as error:
            raise explain_redis(error, self.url, f"send to the queue {queue}", "takes no message") from error
