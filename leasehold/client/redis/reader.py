"""Read the view (a copy of the stack's rows in Redis) as a producer. Reads are possible only while the view is valid.

A view is valid if its generation names the present Redis server. After a flush, a restart, a failover or a restore of
Redis, reads raise Unavailable until a leader has rebuilt the view.
"""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import msgspec
import redis
from typing_extensions import override

from leasehold.client.models import Account, Explanation, LastWait, Reservation, RunTimes, Slot, find_waits
from leasehold.client.ports import Joined, Reader
from leasehold.client.redis.connection import explain_redis
from leasehold.client.redis.lines import Commands, Line
from leasehold.errors import Unavailable, Unknown
from scheduler.model.run_times import is_class_of
from scheduler.model.runs import describe_run
from scheduler.model.slots import PublicSlot, has_machine_of
from scheduler.protocol.faults import describe_unknown
from scheduler.protocol.masking import show_url
from scheduler.protocol.names import RedisNames
from scheduler.protocol.report import KnownReport, Steps, list_report_steps

ROWS_A_CALL: Final = 1000
Row = TypeVar("Row", Reservation, Slot, Account, RunTimes)
_RUN_ID: Final = re.compile(rb"\brun_id:(\w+)")
_NO_SLOTS: Final[Mapping[str, Slot | None]] = MappingProxyType({})


class ViewReader(Reader):
    """Reads rows and the report of the last tick from the view. Every method raises Unavailable if Redis does not
    answer or the view is not valid.

    `note_view` is called after each read, with whether the view is valid; `refresh` corrects the client's clock if that
    is due.
    """

    checks_names = False

    def __init__(
        self,
        line: Line,
        names: RedisNames,
        url: str,
        note_view: Callable[[bool], None],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._line, self._names, self._url, self._note_view, self._refresh = line, names, url, note_view, refresh
        self._report = KnownReport()

    @override
    async def find_joined(self, ids: Sequence[str], expected: Collection[str] = ()) -> list[Joined]:
        names = list(expected)
        if not names or len(ids) + len(names) > ROWS_A_CALL:
            return await self._join(_decode_rows(await self._fetch(self._names.rows("reservations"), ids)))
        keys = {self._names.rows("reservations"): ids, self._names.rows("slots"): names}
        bodies, slots = await self._fetch_some(keys)
        return await self._join(_decode_rows(bodies), dict(zip(names, map(_decode_slot, slots), strict=True)))

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

    @override
    async def find_slots(self, ids: Sequence[str]) -> list[Slot | None]:
        return [_decode_slot(body) for body in await self._fetch(self._names.rows("slots"), ids)]

    @override
    async def list_reservations(
        self, phases: frozenset[str] | None, wanted: Mapping[str, str | None], tags: Mapping[str, str]
    ) -> list[Reservation]:
        # A scan may return a row twice if the hash grows meanwhile.
        rows = {
            row.id: row
            async for row in self._scan_rows("reservations", Reservation)
            if (phases is None or row.phase in phases)
            and all(value in {None, getattr(row.request, name)} for name, value in wanted.items())
            and tags.items() <= row.request.tags.items()
        }
        ordered = sorted(rows.values(), key=lambda row: row.sequence)
        return [each.row for each in await self._join(ordered) if each.row is not None]

    @override
    async def list_slots(self, pool: str | None, state: str | None) -> list[Slot]:
        found = self._scan_rows("slots", Slot)
        rows = {slot.id: slot async for slot in found if pool in {None, slot.pool} and state in {None, slot.state}}
        return sorted(rows.values(), key=lambda slot: (slot.pool, len(slot.id), slot.id))

    @override
    async def list_accounts(self) -> list[Account]:
        found = {row.id: row async for row in self._scan_rows("accounts", Account) if not row.forgotten}
        return [found[name] for name in sorted(found)]

    @override
    async def list_run_times(self, account: str | None, job: str | None) -> list[RunTimes]:
        rows = self._scan_rows("run_times", RunTimes)
        found = {row.id: row async for row in rows if is_class_of(row.id, account, job)}
        return [found[name] for name in sorted(found)]

    @override
    async def find_etas(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(ids), ROWS_A_CALL):
            names = ids[start : start + ROWS_A_CALL]
            bodies = await self._ask_forecasts(("HMGET", self._names.forecasts, *names)) or []
            found |= {name: json.loads(body) for name, body in zip(names, bodies, strict=False) if body is not None}
        return found

    @override
    async def read_foresight(self) -> dict[str, Any]:
        body = await self._ask_forecasts(("GET", f"{self._names.forecasts}:summary"))
        found: dict[str, Any] = json.loads(body) if body else {}
        return {name: value for name, value in found.items() if name != "forecasts"}

    async def _ask_forecasts(self, command: tuple[str, ...]) -> Any:
        """Return the reply to a command that reads forecasts; None if Redis refuses it, or does not answer."""
        try:
            return (await self._ask([command]))[0]
        except Unavailable:
            return None

    @override
    async def read_report(self) -> dict[str, Any]:
        return await self._carry_out(list_report_steps(self._names))

    @override
    async def find_waits(self, ids: Sequence[str]) -> list[LastWait]:
        return find_waits(await self._read_known(), ids)

    @override
    async def explain(self, reservation: str) -> Explanation:
        (row, _), *_ = await self.find_joined([reservation])
        if row is None:
            raise Unknown(describe_unknown("reservation", reservation))
        report = await self._read_known()
        waiting: dict[str, Any] = report.get("waiting", {})
        found = waiting.get(reservation) if row.phase == "pending" else None
        etas = await self.find_etas([reservation]) if row.phase == "pending" else {}
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
            eta=etas.get(reservation),
            ended=describe_run(row.run),
        )

    async def _read_known(self) -> Mapping[str, Any]:
        return await self._carry_out(self._report.list_steps(self._names))

    async def _carry_out(self, steps: Steps) -> dict[str, Any]:
        try:
            command = next(steps)
            while True:
                command = steps.send((await self._ask([command]))[0])
        except StopIteration as stop:
            report: dict[str, Any] = stop.value
            return report

    @override
    async def check(self) -> None:
        await self._fetch(self._names.rows("slots"), [""])

    async def _join(
        self, rows: Sequence[Reservation | None], known: Mapping[str, Slot | None] = _NO_SLOTS
    ) -> list[Joined]:
        """Return these rows with the machines of their leases. `known`: slots by id that were read together with the
        rows; all other slots of the leases are read now.
        """
        names = sorted({lease.slot for row in rows if row is not None for lease in row.leases}.difference(known))
        slots = {**known, **dict(zip(names, await self.find_slots(names), strict=True))} if names else known
        return [Joined(None) if row is None else join_machines(row, slots) for row in rows]

    async def _fetch(self, key: str, ids: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for start in range(0, len(ids), ROWS_A_CALL):
            found += (await self._fetch_some({key: ids[start : start + ROWS_A_CALL]}))[0]
        return found

    async def _fetch_some(self, ids: Mapping[str, Sequence[str]]) -> list[list[bytes | None]]:
        """Return the JSON of rows, all read in one round trip and at the same moment. `ids`: Redis key of a kind of
        rows -> ids of rows. The result has one list for each key, in the order of its ids; None for an unknown id.
        """
        found = self._read_replies(await self._ask(self._list_commands(ids)))
        await self._refresh()
        return found

    async def _ask(self, commands: Commands) -> list[Any]:
        """Send commands that only read, and return their replies. If the connection is lost, send the commands a second
        time. Raise Unavailable if the connection is lost again, or if Redis refuses a command.
        """
        try:
            try:
                replies = await self._line.ask(commands)
            except (redis.ConnectionError, redis.TimeoutError):
                replies = await self._line.ask(commands)
            if isinstance(replies[-1], redis.RedisError):
                raise replies[-1]
        except redis.RedisError as error:
            raise explain_redis(error, self._url, "read the view") from error
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
        self._note_view(is_valid)
        if not is_valid:
            raise Unavailable(
                f"Redis at {show_url(self._url)} holds no valid view: the next tick builds it, if a scheduler runs"
            )
        return cast("list[list[bytes | None]]", bodies)

    async def _scan_rows(self, kind: str, type_: type[Row]) -> AsyncIterator[Row]:
        await self.check()
        cursor = b"0"
        while True:
            command = ("HSCAN", self._names.rows(kind), cursor, "COUNT", str(ROWS_A_CALL))
            ((cursor, found),) = await self._ask([command])
            for body in found[1::2]:
                yield _decode(body, type_)
            if cursor == b"0":
                return


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
