"""Waiting for a reservation to change: its notice channel is a hint, its row in the view is what counts."""

import time
from types import TracebackType
from typing import Final, Self

import redis
from redis.client import PubSub

from leasehold.errors import Ended, NotAnswered, Unavailable, Unknown
from leasehold.reading import ViewReader
from leasehold.results import Reservation
from leasehold.wire import Wire

POLL_SECONDS: Final = 2.0
"""How often the row is read when nobody hints at a change."""
UNKNOWN_SECONDS: Final = 10.0
"""How long a valid view may lack a row until it is taken for unknown: longer than a tick's look for gaps."""


class Hints:
    """One channel on which we are told that something changed; a hint may be lost. For one thread."""

    def __init__(self, wire: Wire, channel: str) -> None:
        self._wire, self._name = wire, channel
        self._channel = PubSub(wire.redis.connection_pool, ignore_subscribe_messages=True)
        self._subscribed = False

    def listen(self) -> None:
        """Subscribe, if Redis is there; `wait` tries it again."""
        try:
            self._channel.subscribe(self._name)
        except redis.RedisError:
            return
        self._subscribed = True

    def wait(self, seconds: float) -> bool:
        """Return when a hint came (True), or after so many seconds, whichever is first."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._wire.is_closed:
            try:
                if not self._subscribed:
                    self.listen()
                if self._subscribed and self._channel.get_message(timeout=left) is not None:
                    return True
            except redis.RedisError:
                self._wire.pause()
            if not self._subscribed:
                self._wire.pause()
        return False

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()


class Watch:
    """The present row of one reservation, again and again. To be used as a context, by one thread."""

    def __init__(self, wire: Wire, reader: ViewReader, reservation: str) -> None:
        self._reader, self.reservation = reader, reservation
        self._hints = Hints(wire, reader.keys.notice(reservation))

    def __enter__(self) -> Self:
        self._hints.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hints.close()

    def read(self) -> Reservation | None:
        """The row as it is now; None when a valid view has none. Raises Unavailable."""
        return self._reader.find_reservations([self.reservation])[0]

    def wait_for_hint(self, seconds: float) -> None:
        """Return when a notice came, or after so many seconds, whichever is first."""
        self._hints.wait(seconds)


def wait_for_phase(watch: Watch, phases: frozenset[str], timeout: float | None) -> Reservation:
    """The row as soon as its phase is one of these. `timeout` None: for ever.

    Raises Ended when it is over otherwise, Unknown for an id that the view does not get to know, and
    NotAnswered (or Unavailable, when Redis is why) when time runs out.
    """
    started = time.monotonic()
    trouble: Unavailable | None = None
    row: Reservation | None = None
    first_missed: float | None = None
    while True:
        try:
            row, trouble = watch.read(), None
        except Unavailable as error:
            trouble, first_missed = error, None
        now = time.monotonic()
        if trouble is None and row is None:
            first_missed = first_missed or now
        elif row is not None and row.phase in phases:
            return row
        elif row is not None and row.is_over:
            raise Ended(row.id, row.phase, row.reason)
        left = POLL_SECONDS if timeout is None else timeout - (now - started)
        is_unknown = first_missed is not None and now - first_missed >= UNKNOWN_SECONDS
        if left <= 0 or is_unknown:
            _give_up(watch.reservation, row, trouble, now - started)
        watch.wait_for_hint(min(POLL_SECONDS, left))


def _give_up(name: str, row: Reservation | None, trouble: Unavailable | None, seconds: float) -> None:
    if trouble is not None:
        raise trouble
    if row is None:
        raise Unknown(f"no reservation {name} is in the view")
    raise NotAnswered(f"{name} is still {row.phase} after {seconds:.1f} s")
