"""Read the view (a copy of the stack's rows in Redis) as a producer. Reads are possible only while the view is valid.

A view is valid if its generation names the present Redis server. After a flush, a restart or a restore of Redis, reads
raise Unavailable until a leader has rebuilt the view.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
import redis

from leasehold.client.cluster_time import ClientClock
from leasehold.client.models import Account, Reservation, Slot
from leasehold.client.transport import explain_redis
from leasehold.common.masking import show_url
from leasehold.common.names import RedisNames
from leasehold.common.report import read_report
from leasehold.errors import Unavailable

ROWS_A_CALL: Final = 1000
Row = TypeVar("Row", Reservation, Slot, Account)
_NO_SLOTS: Final[Mapping[str, Slot | None]] = MappingProxyType({})


class Joined(NamedTuple):
    """The row of a reservation with the machines of its leases. `missing`: the slots of leases whose machine is
    unknown, because the view does not have the slot or has another epoch of it.

    A machine without an address is known; its `address` is None.
    """

    row: Reservation | None
    missing: frozenset[str] = frozenset()


class ViewReader:
    """Reads rows and the report of the last tick from the view. Every method raises Unavailable if Redis does not
    answer or the view is not valid.

    `clock`: the clock with which the caller compares the times in rows. Each read also corrects this clock.
    """

    def __init__(self, client: redis.Redis, prefix: str, url: str, clock: ClientClock | None = None) -> None:
        self._redis, self._url, self._clock = client, url, clock
        self._names = RedisNames(prefix)

    def find_reservations(self, ids: Sequence[str]) -> list[Reservation | None]:
        """Return the reservations with these ids and their machines, in the given order. The list has None for an id
        that the view does not have.
        """
        return [each.row for each in self.find_joined(ids)]

    def find_joined(self, ids: Sequence[str], expected: Collection[str] = ()) -> list[Joined]:
        """Return the reservations with these ids and their machines, in the given order. Each has the list of its slots
        whose machine is missing in the view.

        `expected`: ids of slots that the reservations probably have leases on. They are read in the same round trip as
        the reservations; other slots need another one.
        """
        names = list(expected)
        if not names or len(ids) + len(names) > ROWS_A_CALL:
            return self._join(_decode_rows(self._fetch(self._names.rows("reservations"), ids)))
        bodies, slots = self._fetch_some({self._names.rows("reservations"): ids, self._names.rows("slots"): names})
        return self._join(_decode_rows(bodies), dict(zip(names, map(_decode_slot, slots), strict=True)))

    def find_slots(self, ids: Sequence[str]) -> list[Slot | None]:
        """Return the slots with these ids in the given order. The list has None for an id that the view
        does not have.
        """
        return [_decode_slot(body) for body in self._fetch(self._names.rows("slots"), ids)]

    def scan_reservations(self) -> Iterator[Reservation]:
        """Yield every reservation of the view in any order, without machines."""
        return (_decode(body, Reservation) for body in self._scan(self._names.rows("reservations")))

    def scan_slots(self) -> Iterator[Slot]:
        """Yield every slot of the view in any order."""
        return (_decode(body, Slot) for body in self._scan(self._names.rows("slots")))

    def scan_accounts(self) -> Iterator[Account]:
        """Yield every quota account of the view in any order, including deleted (forgotten) ones."""
        return (_decode(body, Account) for body in self._scan(self._names.rows("accounts")))

    def read_report(self) -> dict[str, Any]:
        """Return the report of the last tick, or {} before the first tick."""
        try:
            return read_report(self._redis, self._names)
        except redis.RedisError as error:
            raise explain_redis(error, self._url, "read the view") from error

    def with_machines(self, rows: Iterable[Reservation | None]) -> list[Reservation | None]:
        """Return these reservations with the instance id, address, type and zone of the machine added to each of their
        leases.
        """
        return [each.row for each in self._join(list(rows))]

    def check(self) -> None:
        """Raise Unavailable unless Redis answers and has a valid view."""
        self._fetch(self._names.rows("slots"), [""])

    def _join(self, rows: Sequence[Reservation | None], known: Mapping[str, Slot | None] = _NO_SLOTS) -> list[Joined]:
        """Add the machines of their leases to the rows. `known`: slots by id that were read together with the rows; the
        others are read now.
        """
        names = sorted({lease.slot for row in rows if row is not None for lease in row.leases}.difference(known))
        slots = {**known, **dict(zip(names, self.find_slots(names), strict=True))} if names else known
        return [Joined(None) if row is None else _join_machines(row, slots) for row in rows]

    def _fetch(self, key: str, ids: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for start in range(0, len(ids), ROWS_A_CALL):
            found += self._fetch_some({key: ids[start : start + ROWS_A_CALL]})[0]
        return found

    def _fetch_some(self, ids: Mapping[str, Sequence[str]]) -> list[list[bytes | None]]:
        """Return the bodies of rows (key of a kind -> ids) in one round trip, as they were at one moment: a list for
        each key.
        """
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.get(self._names.generation)
        pipeline.info("server")
        for key, names in ids.items():
            pipeline.hmget(key, list(names))
        try:
            generation, server, *bodies = pipeline.execute()
        except redis.RedisError as error:
            raise explain_redis(error, self._url, "read the view") from error
        self._check_generation(generation, server)
        if self._clock is not None:
            self._clock.refresh()
        return cast("list[list[bytes | None]]", bodies)

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


def _decode_rows(bodies: Iterable[bytes | None]) -> list[Reservation | None]:
    return [None if body is None else _decode(body, Reservation) for body in bodies]


def _decode_slot(body: bytes | None) -> Slot | None:
    return None if body is None else _decode(body, Slot)


def _decode(body: bytes, type_: type[Row]) -> Row:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the view was written by another version of Leasehold: {error}") from error
