"""The view as a producer reads it: straight from Redis, and only when it is valid.

A view whose generation does not name this very server (flushed, restarted, restored) is not to be believed:
then reads raise Unavailable until a leader has rebuilt it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
import redis

from leasehold.client.cluster_time import ClientClock
from leasehold.client.models import Account, Reservation, Slot
from leasehold.client.transport import explain_redis
from leasehold.common.masking import show_url
from leasehold.common.names import RedisNames
from leasehold.errors import Unavailable

ROWS_A_CALL: Final = 1000
Row = TypeVar("Row", Reservation, Slot, Account)


class Joined(NamedTuple):
    """A row with the machines of its leases. `missing`: the slots of leases whose machine is not known, because the
    slot's row is missing or belongs to another epoch. A machine without an address is known: its `address` is None.
    """

    row: Reservation | None
    missing: frozenset[str] = frozenset()


class ViewReader:
    """Reads rows and the report. Every method raises Unavailable without a Redis or without a valid view.

    `clock`: the one by which the caller judges the times of the rows; it is kept right with the reads.
    """

    def __init__(self, client: redis.Redis, prefix: str, url: str, clock: ClientClock | None = None) -> None:
        self._redis, self._url, self._clock = client, url, clock
        self._names = RedisNames(prefix)

    def find_reservations(self, ids: Sequence[str]) -> list[Reservation | None]:
        """The rows of these ids with their machines, in that order; None for an id that the view has not."""
        return [each.row for each in self.find_joined(ids)]

    def find_joined(self, ids: Sequence[str]) -> list[Joined]:
        """The rows of these ids with their machines, in that order, and which machines the view does not have."""
        bodies = self._fetch(self._names.rows("reservations"), ids)
        return self._join([None if body is None else _decode(body, Reservation) for body in bodies])

    def find_slots(self, ids: Sequence[str]) -> list[Slot | None]:
        """The rows of these slots, in that order; None for an id that the view has not."""
        return [None if body is None else _decode(body, Slot) for body in self._fetch(self._names.rows("slots"), ids)]

    def scan_reservations(self) -> Iterator[Reservation]:
        """Every reservation of the view, without its machines, in no order."""
        return (_decode(body, Reservation) for body in self._scan(self._names.rows("reservations")))

    def scan_slots(self) -> Iterator[Slot]:
        """Every slot of the view, in no order."""
        return (_decode(body, Slot) for body in self._scan(self._names.rows("slots")))

    def scan_accounts(self) -> Iterator[Account]:
        """Every account of the view, forgotten ones too, in no order."""
        return (_decode(body, Account) for body in self._scan(self._names.rows("accounts")))

    def read_report(self) -> dict[str, Any]:
        """Return the report of the last tick; {} before the first."""
        try:
            body = cast("bytes | None", self._redis.get(self._names.report))
        except redis.RedisError as error:
            raise explain_redis(error, self._url, "read the view") from error
        return msgspec.json.decode(body, type=dict[str, Any]) if body else {}

    def with_machines(self, rows: Iterable[Reservation | None]) -> list[Reservation | None]:
        """The same with instance id, address, type and zone at each of their leases."""
        return [each.row for each in self._join(list(rows))]

    def check(self) -> None:
        """Raise Unavailable unless Redis answers and holds a valid view."""
        self._fetch(self._names.rows("slots"), [""])

    def _join(self, rows: Sequence[Reservation | None]) -> list[Joined]:
        wanted = {lease.slot for row in rows if row is not None for lease in row.leases}
        names = sorted(wanted)
        slots = dict(zip(names, self.find_slots(names), strict=True)) if names else {}
        return [Joined(None) if row is None else _join_machines(row, slots) for row in rows]

    def _fetch(self, key: str, ids: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for start in range(0, len(ids), ROWS_A_CALL):
            found += self._fetch_some(key, ids[start : start + ROWS_A_CALL])
        return found

    def _fetch_some(self, key: str, ids: Sequence[str]) -> list[bytes | None]:
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.get(self._names.generation)
        pipeline.info("server")
        pipeline.hmget(key, list(ids))
        try:
            generation, server, bodies = pipeline.execute()
        except redis.RedisError as error:
            raise explain_redis(error, self._url, "read the view") from error
        self._check_generation(generation, server)
        if self._clock is not None:
            self._clock.refresh()
        return cast("list[bytes | None]", bodies)

    def _scan(self, key: str) -> Iterator[bytes]:
        self.check()
        try:
            for _, body in self._redis.hscan_iter(key, count=ROWS_A_CALL):
                yield cast("bytes", body)
        except redis.RedisError as error:
            raise explain_redis(error, self._url, "read the view") from error

    def _check_generation(self, generation: bytes | None, server: dict[str, Any]) -> None:
        if generation is None or not generation.decode().endswith(str(server.get("run_id"))):
            raise Unavailable(
                f"Redis at {show_url(self._url)} holds no valid view: the next tick builds it, if a scheduler runs"
            )


def _join_machines(row: Reservation, slots: Mapping[str, Slot | None]) -> Joined:
    leases, missing = [], []
    for lease in row.leases:
        slot = slots.get(lease.slot)
        if slot is not None and slot.epoch == lease.epoch:
            machine = {
                "instance_id": slot.instance_id,
                "address": slot.address,
                "type": slot.instance_type,
                "zone": slot.zone,
            }
            leases.append(msgspec.structs.replace(lease, **machine))
        else:
            leases.append(lease)
            missing.append(lease.slot)
    return Joined(msgspec.structs.replace(row, leases=tuple(leases)), frozenset(missing))


def _decode(body: bytes, type_: type[Row]) -> Row:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the view was written by another version of Leasehold: {error}") from error
