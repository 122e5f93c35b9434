"""Read the view (a copy of the stack's rows in Redis) as a producer. Reads are possible only while the view is valid.

A view is valid if its generation names the present Redis server. After a flush, a restart, a failover or a restore of
Redis, reads raise Unavailable until a leader has rebuilt the view.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import msgspec
import redis

from leasehold.client.cluster_time import ClientClock
from leasehold.client.models import Account, Explanation, LastWait, Reservation, Slot, find_waits
from leasehold.client.ports import Joined
from leasehold.client.redis_connection import ask_redis, explain_redis
from leasehold.errors import Unavailable, Unknown
from scheduler.model.slots import PublicSlot, has_machine_of
from scheduler.protocol.faults import describe_unknown
from scheduler.protocol.masking import show_url
from scheduler.protocol.names import RedisNames
from scheduler.protocol.redis_primary import note_view
from scheduler.protocol.report import KnownReport, read_report

ROWS_A_CALL: Final = 1000
Row = TypeVar("Row", Reservation, Slot, Account)
_RUN_ID: Final = re.compile(rb"\brun_id:(\w+)")
_NO_SLOTS: Final[Mapping[str, Slot | None]] = MappingProxyType({})


class ViewReader:
    """Reads rows and the report of the last tick from the view. Every method raises Unavailable if Redis does not
    answer or the view is not valid.

    `clock`: the clock with which the caller compares the times in rows. Each read also corrects this clock.
    """

    checks_names = False

    def __init__(self, client: redis.Redis, prefix: str, url: str, clock: ClientClock | None = None) -> None:
        self._redis, self._url, self._clock = client, url, clock
        self._names = RedisNames(prefix)
        self._report = KnownReport()

    def find_joined(self, ids: Sequence[str], expected: Collection[str] = ()) -> list[Joined]:
        """Return the reservations with these ids and their machines, in the given order. Each result names the slots of
        its leases whose machine is missing in the view.

        `expected`: ids of slots that the reservations probably have leases on. These slots are read in the same round
        trip as the reservations; other slots need a second round trip.
        """
        names = list(expected)
        if not names or len(ids) + len(names) > ROWS_A_CALL:
            return self._join(_decode_rows(self._fetch(self._names.rows("reservations"), ids)))
        bodies, slots = self._fetch_some({self._names.rows("reservations"): ids, self._names.rows("slots"): names})
        return self._join(_decode_rows(bodies), dict(zip(names, map(_decode_slot, slots), strict=True)))

    def list_commands(self, reservation: str) -> list[tuple[str, ...]]:
        """Return the Redis commands that read the row of one reservation as `find_joined` does. A caller sends them on
        a connection of its own and passes the replies to `read_row`.
        """
        return self._list_commands({self._names.rows("reservations"): [reservation]})

    def read_row(self, replies: Sequence[Any]) -> Joined | None:
        """Return the row of a reservation, read from the replies to `list_commands`. The result is a Joined without a
        row if the view does not have the reservation. Return None if the row has leases, because their machines need
        another read. Raise Unavailable if the view is not valid.
        """
        (bodies,) = self._read_replies(replies)
        (row,) = _decode_rows(bodies)
        return Joined(row) if row is None or not row.leases else None

    def find_slots(self, ids: Sequence[str]) -> list[Slot | None]:
        """Return the slots with these ids in the given order. The list has None for an id that the view
        does not have.
        """
        return [_decode_slot(body) for body in self._fetch(self._names.rows("slots"), ids)]

    def list_reservations(
        self, phases: frozenset[str] | None, wanted: Mapping[str, str | None], tags: Mapping[str, str]
    ) -> list[Reservation]:
        """Return the reservations of the view that match all given conditions, with machines, in order of submission.
        `phases`: the possible phases; None: any phase. `wanted`: field of the request -> its value; None: any value.
        `tags`: tags that a reservation must have.
        """
        found = (
            row
            for row in self._scan_rows("reservations", Reservation)
            if (phases is None or row.phase in phases)
            and all(value in {None, getattr(row.request, name)} for name, value in wanted.items())
            and tags.items() <= row.request.tags.items()
        )
        # A scan may return a row twice if the hash grows meanwhile.
        rows = {row.id: row for row in found}
        ordered = sorted(rows.values(), key=lambda row: row.sequence)
        return [each.row for each in self._join(ordered) if each.row is not None]

    def list_slots(self, pool: str | None, state: str | None) -> list[Slot]:
        """Return the slots of this pool and in this state (None: any), sorted by name."""
        found = self._scan_rows("slots", Slot)
        rows = {slot.id: slot for slot in found if pool in {None, slot.pool} and state in {None, slot.state}}
        return sorted(rows.values(), key=lambda slot: (slot.pool, len(slot.id), slot.id))

    def list_accounts(self) -> list[Account]:
        """Return the quota accounts of the view, sorted by name, without deleted (forgotten) ones."""
        found = {row.id: row for row in self._scan_rows("accounts", Account) if not row.forgotten}
        return [found[name] for name in sorted(found)]

    def read_report(self) -> dict[str, Any]:
        """Return the report of the last tick, or {} before the first tick."""
        try:
            return read_report(self._redis, self._names)
        except redis.RedisError as error:
            raise explain_redis(error, self._url, "read the view") from error

    def find_waits(self, ids: Sequence[str]) -> list[LastWait]:
        """Return why the reservations with these ids wait, as the last tick reported it, in the given order."""
        return find_waits(self._read_known(), ids)

    def explain(self, reservation: str) -> Explanation:
        """Return the state of a reservation and the reason why it waits, as the last tick reported it. Raise Unknown if
        the view does not have the reservation.
        """
        row = self.find_joined([reservation])[0].row
        if row is None:
            raise Unknown(describe_unknown("reservation", reservation))
        report = self._read_known()
        waiting: dict[str, Any] = report.get("waiting", {})
        found = waiting.get(reservation) if row.phase == "pending" else None
        code, detail = found or (None, None)
        return Explanation(
            reservation=row.id,
            phase=row.phase,
            reason=row.reason,
            code=code,
            detail=detail,
            position=list(waiting).index(reservation) + 1 if found else None,
            waiting=len(waiting),
            as_of=report.get("at"),
        )

    def _read_known(self) -> Mapping[str, Any]:
        try:
            return self._report.read(self._redis, self._names)
        except redis.RedisError as error:
            raise explain_redis(error, self._url, "read the view") from error

    def check(self) -> None:
        """Raise Unavailable unless Redis answers and has a valid view."""
        self._fetch(self._names.rows("slots"), [""])

    def _join(self, rows: Sequence[Reservation | None], known: Mapping[str, Slot | None] = _NO_SLOTS) -> list[Joined]:
        """Return these rows with the machines of their leases. `known`: slots by id that were read together with the
        rows; all other slots of the leases are read now.
        """
        names = sorted({lease.slot for row in rows if row is not None for lease in row.leases}.difference(known))
        slots = {**known, **dict(zip(names, self.find_slots(names), strict=True))} if names else known
        return [Joined(None) if row is None else join_machines(row, slots) for row in rows]

    def _fetch(self, key: str, ids: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for start in range(0, len(ids), ROWS_A_CALL):
            found += self._fetch_some({key: ids[start : start + ROWS_A_CALL]})[0]
        return found

    def _fetch_some(self, ids: Mapping[str, Sequence[str]]) -> list[list[bytes | None]]:
        """Return the JSON of rows, all read in one round trip and at the same moment. `ids`: Redis key of a kind of
        rows -> ids of rows. The result has one list for each key, in the order of its ids; None for an unknown id.
        """
        try:
            replies = self._ask(self._list_commands(ids))
        except redis.RedisError as error:
            raise explain_redis(error, self._url, "read the view") from error
        found = self._read_replies(replies)
        if self._clock is not None:
            self._clock.refresh()
        return found

    def _ask(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        """Send commands that only read, and return their replies. If the connection is lost, send the commands a second
        time. Raise RedisError if the connection is lost again, or if Redis refuses a command.
        """
        try:
            replies = ask_redis(self._redis, commands)
        except (redis.ConnectionError, redis.TimeoutError):
            replies = ask_redis(self._redis, commands)
        if isinstance(replies[-1], redis.RedisError):
            raise replies[-1]
        return replies

    def _list_commands(self, ids: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
        rows = [("HMGET", key, *names) for key, names in ids.items()]
        return [("MULTI",), ("GET", self._names.generation), ("INFO", "server"), *rows, ("EXEC",)]

    def _read_replies(self, replies: Sequence[Any]) -> list[list[bytes | None]]:
        """Return the JSON of the rows in the replies to `_list_commands`: one list for each key. Raise Unavailable if
        the view is not valid.
        """
        if not isinstance(replies[-1], list):
            raise Unavailable(f"Redis at {show_url(self._url)} refuses to read the view: {replies[-1]}")
        for found in replies[-1]:
            if isinstance(found, Exception):
                raise explain_redis(found, self._url, "read the view")
        generation, server, *bodies = replies[-1]
        run_id = _RUN_ID.search(server)
        is_valid = generation is not None and run_id is not None and generation.endswith(run_id[1])
        note_view(self._redis, is_valid=is_valid)
        if not is_valid:
            raise Unavailable(
                f"Redis at {show_url(self._url)} holds no valid view: the next tick builds it, if a scheduler runs"
            )
        return cast("list[list[bytes | None]]", bodies)

    def _scan_rows(self, kind: str, type_: type[Row]) -> Iterator[Row]:
        return (_decode(body, type_) for body in self._scan(self._names.rows(kind)))

    def _scan(self, key: str) -> Iterator[bytes]:
        self.check()
        try:
            for _, body in self._redis.hscan_iter(key, count=ROWS_A_CALL):
                yield cast("bytes", body)
        except redis.RedisError as error:
            raise explain_redis(error, self._url, "read the view") from error


def join_machines(row: Reservation, slots: Mapping[str, PublicSlot | None]) -> Joined:
    """Return the reservation with the machines of its leases. `slots`: the rows of slots by id.

    A machine is missing in three cases: the view does not have the slot; it has another epoch of the slot; or it has
    the slot in a state in which a slot has no leases. In the last case one of the two rows in the view is outdated: the
    slot's row if the lease has just begun, or the reservation's row if the lease has ended.
    """
    leases, missing = [], []
    for lease in row.leases:
        slot = slots.get(lease.slot)
        if slot is not None and has_machine_of(slot, lease.epoch):
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
