"""Follow the view in Redis with small reads: all rows once, then only the changes of each refresh.

The view numbers its changes without a gap (scheduler/view/publish.lua). A follower that misses a change, because the
view was built again or the changes are no longer kept, reads all rows again.
"""

import time
from typing import Any, Final, cast

import msgspec
import redis

from leasehold.errors import Unavailable
from leasehold.top.counts import Counts, GoneRow, ReservationRow, SlotRow
from scheduler.protocol.names import RedisNames

ROWS_A_CALL: Final = 1000
ENTRIES_A_CALL: Final = 200
LOADS_TRIED: Final = 3
"""The most attempts to read all rows, if Redis drops changes during the reading."""
REST: Final = 20
"""If this user of Redis may not read changes, all rows are read again only after REST times the duration of the last
reading, so that reading takes at most about 5 % of the time.
"""
_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    "slots": msgspec.json.Decoder(list[SlotRow]),
    "reservations": msgspec.json.Decoder(list[ReservationRow]),
    "gone": msgspec.json.Decoder(list[GoneRow]),
}
_SLOT: Final = msgspec.json.Decoder(SlotRow)
_RESERVATION: Final = msgspec.json.Decoder(ReservationRow)


class Follower:
    """Keeps the counts of a view up to date by reading from Redis. `client` must return bytes. Errors of the Redis
    client are raised unchanged.
    """

    def __init__(self, client: redis.Redis, names: RedisNames) -> None:
        self._redis, self._names = client, names
        self._counts: Counts | None = None
        self._generation, self._sequence = b"", 0
        self._may_follow = True
        self._due = 0.0
        self.reads = 0
        """How often all rows were read."""

    @property
    def follows(self) -> bool:
        """Whether this user of Redis may read the changes of the view. If not, all rows are read again now and then."""
        return self._may_follow

    def refresh(self) -> Counts:
        """Return the counts as of now. Raises Unavailable if Redis has no valid view."""
        if self._may_follow:
            try:
                return self._follow()
            except redis.exceptions.NoPermissionError:
                self._may_follow = False
        if self._counts is None or time.monotonic() >= self._due:
            begun = time.monotonic()
            self._read()
            self._counts = self._scan()
            self._due = time.monotonic() + REST * (time.monotonic() - begun)
        return self._counts

    def _follow(self) -> Counts:
        if self._counts is not None and self._catch_up(self._counts, happens=True):
            return self._counts
        self._counts = None
        for _ in range(LOADS_TRIED):
            self._generation, self._sequence, _ = self._read()
            counts = self._scan()
            # Changes that were made during the scan; a row that is newer already stays.
            if self._catch_up(counts, happens=False):
                self._counts = counts
                return counts
        raise Unavailable("the view changes faster than it can be read")

    def _read(self, *, after: int | None = None) -> tuple[bytes, int, list[Any]]:
        """Return the generation of the view, the number of its last change, and the first changes after the number
        `after` (None: no changes). Raises Unavailable if the view is not valid.
        """
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.get(self._names.generation)
        pipeline.info("server")
        pipeline.get(self._names.sequence)
        if after is not None:
            pipeline.xrange(self._names.deltas, min=f"{after + 1}-0", count=ENTRIES_A_CALL)
        generation, server, sequence, *entries = pipeline.execute()
        if generation is None or not generation.decode().endswith(f":{server.get('run_id')}"):
            raise Unavailable("Redis holds no valid view: the next tick builds it, if a scheduler runs")
        return generation, int(sequence or 0), entries[0] if entries else []

    def _scan(self) -> Counts:
        """Read all rows. Each row is as it was at some moment during the scan."""
        self.reads += 1
        counts = Counts()
        for _, body in self._redis.hscan_iter(self._names.rows("slots"), count=ROWS_A_CALL):
            counts.take_slot(_SLOT.decode(body))
        for _, body in self._redis.hscan_iter(self._names.rows("reservations"), count=ROWS_A_CALL):
            counts.take_reservation(_RESERVATION.decode(body), happens=False)
        return counts

    def _catch_up(self, counts: Counts, *, happens: bool) -> bool:
        """Apply the changes since the last call to `counts`, and return True. Return False if the view was built again,
        or if Redis no longer has some of the changes.
        """
        while True:
            generation, sequence, entries = self._read(after=self._sequence)
            if generation != self._generation:
                return False
            for number, fields in entries:
                after = int(number.partition(b"-")[0])
                if after - int(fields[b"count"]) != self._sequence:
                    return False
                for row in self._decode("slots", fields):
                    counts.take_slot(row)
                for row in self._decode("reservations", fields):
                    counts.take_reservation(row, happens=happens)
                for row in self._decode("gone", fields):
                    counts.drop(row)
                self._sequence = after
            if self._sequence == sequence:
                return True
            if not entries:
                return False

    def _decode(self, kind: str, fields: dict[bytes, bytes]) -> list[Any]:
        body = fields.get(kind.encode())
        return [] if body is None else cast("list[Any]", _DECODERS[kind].decode(body))
