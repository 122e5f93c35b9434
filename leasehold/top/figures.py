"""The figures that `leasehold top` shows. The time of a refresh grows with the number of changes since the last
refresh, not with the length of the queue.

The view in Redis is followed with small reads: all rows once, then only the changes of each refresh. The view numbers
its changes without a gap (scheduler/view/publish.lua). A follower that misses a change, because the view was built
again or the changes are no longer kept, reads all rows again.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
import redis

from leasehold.client.redis.connection import explain_redis
from leasehold.client.redis.transport import RequestTransport
from leasehold.errors import LeaseholdError, Unavailable
from scheduler.protocol.masking import show_url
from scheduler.protocol.names import RedisNames
from scheduler.protocol.report import read_head

if TYPE_CHECKING:
    from leasehold.client.client import Client

ENDED: Final = frozenset({"released", "cancelled", "expired", "failed"})
"""Phases of ended reservations."""
HOLDING: Final = frozenset({"ready", "draining"})
"""States of slots that may have leases."""


class LeaseRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of a lease that the counts need. The rows in Redis have more fields, which are skipped."""

    slot: str
    resources: dict[str, float] = {}
    state: str = "held"


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """The field of the state of a command that the counts need."""

    state: str = "waiting"


class ReservationRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of a reservation that the counts need."""

    id: str
    version: int = 0
    marked_at: float = 0.0
    phase: str = "pending"
    restarts: int = 0
    leases: tuple[LeaseRow, ...] = ()
    run: RunRow | None = None


class SlotRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of a slot that the counts need."""

    id: str
    pool: str
    version: int = 0
    marked_at: float = 0.0
    state: str = "empty"
    cordoned: bool = False
    resources: dict[str, float] | None = None


class GoneRow(msgspec.Struct, frozen=True):
    """The kind (`slots` or `reservations`) and the id of a deleted row."""

    kind: str
    id: str


class PoolCounts(msgspec.Struct):
    """The slots of one pool. `states`: number of slots by state, without `empty`. Only slots in a state that permits
    leases count for `busy` and `load`. `busy`: the number of these slots that have a lease. `load`: the share of their
    capacity, from 0 to 1, that leases use, for the resource with the largest share; of slots without resources, the
    share of the slots that have a lease. None: no slot of the pool is in such a state.
    """

    states: dict[str, int] = {}
    busy: int = 0
    cordoned: int = 0
    load: float | None = None


class Happened(NamedTuple):
    """How many reservations were submitted, leased, released, and ended in another way, between two calls of
    `Counts.take_happened`.
    """

    submitted: int = 0
    leased: int = 0
    released: int = 0
    ended: int = 0


class _Place:
    """A slot (`row`; None: not known yet), the number of its leases, and the amounts of its resources that the leases
    use.
    """

    __slots__ = ("leases", "row", "used")

    def __init__(self) -> None:
        self.row: SlotRow | None = None
        self.leases = 0
        self.used: Counter[str] = Counter()


class Counts:
    """Counts the reservations and slots of a view; a changed row changes the counts."""

    def __init__(self) -> None:
        self._reservations: dict[str, ReservationRow] = {}
        self._places: dict[str, _Place] = {}
        self.phases: Counter[str] = Counter()
        """Number of reservations by phase, without ended ones."""
        self.commands: Counter[str] = Counter()
        """Number of these reservations that have a command, by its state."""
        self._happened = [0, 0, 0, 0]

    def take_reservation(self, row: ReservationRow, *, happens: bool) -> None:
        """Count a changed reservation, unless a newer copy is known. `happens`: whether the change counts for
        `take_happened`; it does not while all rows are read.
        """
        known = self._reservations.get(row.id)
        if known is not None and (row.version, row.marked_at) < (known.version, known.marked_at):
            return
        if happens:
            self._note(known, row)
        self._forget(known)
        if row.phase in ENDED:
            return
        self._reservations[row.id] = row
        self._count(row, 1)

    def take_slot(self, row: SlotRow) -> None:
        """Count a changed slot, unless a newer copy is known."""
        place = self._places.setdefault(row.id, _Place())
        known = place.row
        if known is None or (row.version, row.marked_at) >= (known.version, known.marked_at):
            place.row = row

    def drop(self, gone: GoneRow) -> None:
        """Remove a deleted reservation or slot from the counts."""
        if gone.kind == "slots" and (place := self._places.get(gone.id)) is not None:
            # Its leases end with changes of their own.
            place.row = None
        elif gone.kind == "reservations":
            self._forget(self._reservations.get(gone.id))

    def take_happened(self) -> Happened:
        """Return the number of reservations that were submitted, leased, released, and ended in another way since the
        last call.
        """
        found, self._happened = Happened(*self._happened), [0, 0, 0, 0]
        return found

    def list_pools(self) -> dict[str, PoolCounts]:
        pools: dict[str, PoolCounts] = {}
        used: dict[str, Counter[str]] = {}
        total: dict[str, Counter[str]] = {}
        for place in self._places.values():
            row = place.row
            if row is None:
                continue
            pool = pools.get(row.pool)
            if pool is None:
                pool = pools[row.pool] = PoolCounts()
                used[row.pool], total[row.pool] = Counter(), Counter()
            if row.state != "empty":
                pool.states[row.state] = pool.states.get(row.state, 0) + 1
            pool.cordoned += row.cordoned
            if row.state in HOLDING:
                pool.busy += place.leases > 0
                _add(used[row.pool], place.used if row.resources is not None else {"": min(place.leases, 1)})
                _add(total[row.pool], row.resources if row.resources is not None else {"": 1.0})
        for name, pool in pools.items():
            shares = [used[name][each] / amount for each, amount in total[name].items() if amount > 0]
            pool.load = round(max(shares), 4) if shares else None
        return dict(sorted(pools.items()))

    def _note(self, known: ReservationRow | None, row: ReservationRow) -> None:
        is_new = known is None and row.restarts == 0
        before = None if known is None else known.phase
        if is_new:
            self._happened[0] += 1
        if row.phase == before or (before is None and not is_new and row.phase in ENDED):
            return
        if row.phase == "leased" and before != "revoking":
            self._happened[1] += 1
        elif row.phase in ENDED:
            self._happened[2 if row.phase == "released" else 3] += 1

    def _forget(self, known: ReservationRow | None) -> None:
        if known is not None:
            del self._reservations[known.id]
            self._count(known, -1)

    def _count(self, row: ReservationRow, sign: int) -> None:
        self.phases[row.phase] += sign
        if row.run is not None:
            self.commands[row.run.state] += sign
        for lease in row.leases:
            if lease.state != "claimed":
                place = self._places.get(lease.slot)
                if place is None:
                    place = self._places[lease.slot] = _Place()
                place.leases += sign
                for name, amount in lease.resources.items():
                    place.used[name] += sign * amount  # type: ignore[assignment]


def _add(sums: Counter[str], amounts: "dict[str, float] | Counter[str]") -> None:
    for name, amount in amounts.items():
        sums[name] += amount  # type: ignore[assignment]


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
            except redis.exceptions.NoPermissionError:
                self._may_follow = False
        if self._counts is None or time.monotonic() >= self._due:
            begun = time.monotonic()
            self._read()
            self._counts = self._scan()
            self._due = time.monotonic() + REST * (time.monotonic() - begun)
        return self._counts

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


_CLOCK_SECONDS: Final = 1.0
"""Largest difference in seconds between the wall clock of a process and cluster time that is no problem."""


class Rates(msgspec.Struct):
    """How many reservations a second were submitted, leased, released, and ended in another way, since the previous
    refresh, which was `seconds` ago.
    """

    submitted: float
    leased: float
    released: float
    ended: float
    seconds: float


class Figures(msgspec.Struct):
    """The output of `leasehold top --json`. Times are cluster time in seconds since the epoch.

    `problems`: why figures are missing or old. `phases`: number of reservations by phase, without ended ones.
    `commands`: number of those with a command by its state. `waiting`: number of reservations by waiting code at the
    last tick, `longest_wait` the longest wait in seconds. `at_quota`: pools whose launches an EC2 quota holds back.
    `tick`: age and duration of the last tick in seconds, its number of decisions, the leader (`host:pid`) and the lag
    of the view. `queues`: messages that wait in each queue.
    `queue_lag`: age in seconds of the request that a worker took from its queue last, counted from the time at which
    the request was sent; None: no request waits. `rates` is None at the first refresh. `events`: the newest events,
    oldest first; None if the database cannot be read.
    """

    at: float
    url: str = ""
    problems: list[str] = []
    pools: dict[str, PoolCounts] = {}
    phases: dict[str, int] = {}
    commands: dict[str, int] = {}
    waiting: dict[str, int] = {}
    longest_wait: float = 0.0
    at_quota: list[str] = []
    tick: dict[str, Any] = {}
    rates: Rates | None = None
    queues: dict[str, int] = {}
    queue_lag: float | None = None
    processes: int | None = None
    clocks: list[dict[str, Any]] = []
    events: list[dict[str, Any]] | None = None


class Reader:
    """Reads the figures of one stack again and again. `read_events` returns the newest events, or None if the database
    cannot be read.
    """

    def __init__(
        self, client: "Client", read_events: Callable[[], Iterable[dict[str, Any]] | None] = lambda: None
    ) -> None:
        self._client, self._read_events = client, read_events
        transport = client._wire  # noqa: SLF001 - the same connections, for reads that the client does not have
        if not isinstance(transport, RequestTransport):
            raise Unavailable("these figures are read from the Redis of the stack, and this client uses HTTP")
        self._redis, self._names, self._url = transport.redis, transport.names, transport.view_url
        self._read_taken = transport.read_taken
        self._shown_url = show_url(transport.url)
        self._follower = Follower(self._redis, self._names)
        self._refreshed: float | None = None

    @property
    def full_reads(self) -> int:
        return self._follower.reads

    def read(self) -> Figures:
        """Return the figures as of now. Raises Unavailable if Redis does not answer. Any other error is a sentence in
        `Figures.problems`, and the figures that could not be read are missing.
        """
        try:
            return self._read()
        except redis.RedisError as error:
            self._refreshed = None
            raise explain_redis(error, self._url, "read the view") from error

    def _read(self) -> Figures:
        head, now = read_head(self._redis, self._names), self._client.now()
        found = Figures(at=now, url=self._shown_url)
        self._fill_head(found, head)
        try:
            counts = self._follower.refresh()
            happened, now = counts.take_happened(), time.monotonic()
            if self._refreshed is not None and self._follower.follows and now > self._refreshed:
                seconds = now - self._refreshed
                submitted, leased, released, ended = (round(each / seconds, 3) for each in happened)
                found.rates = Rates(submitted, leased, released, ended, round(seconds, 3))
            self._refreshed = now
            found.phases = {phase: count for phase, count in counts.phases.items() if count}
            found.commands = {state: count for state, count in sorted(counts.commands.items()) if count}
            found.pools = counts.list_pools()
            if not self._follower.follows:
                found.problems.append("this user of Redis may not read the changes: counts are read again now and then")
        except LeaseholdError as error:
            self._refreshed = None
            found.problems.append(str(error))
        # Roles that only read rows may have no right to these keys.
        with suppress(LeaseholdError, redis.exceptions.NoPermissionError):
            found.queues = self._client.probe.queue_lengths()
            taken = self._read_taken()
            found.queue_lag = None if taken is None else max(found.at - taken, 0.0)
        with suppress(LeaseholdError):
            offsets = self._client.probe.clock_offsets()
            found.processes = len(offsets) or None
            found.clocks = [each._asdict() for each in offsets if abs(each.seconds) > _CLOCK_SECONDS]
        events = self._read_events()
        found.events = None if events is None else list(events)
        return found

    def _fill_head(self, found: Figures, head: dict[str, Any]) -> None:
        if not head:
            found.problems.append("there was no tick yet")
            return
        found.waiting, found.at_quota = dict(head.get("codes", {})), list(head.get("at_quota", ()))
        found.longest_wait = head.get("longest_wait", 0.0)
        found.tick = {
            "age": max(found.at - head["at"], 0.0),
            "seconds": head.get("seconds"),
            "decisions": head.get("decisions"),
            "leader": head.get("leader") or None,
            "term": head.get("term"),
            "view_lag": head.get("view_lag"),
        }
