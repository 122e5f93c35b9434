"""The Store port implemented with plain dicts, for the simulator and for tests. Rows are immutable, so they are never
copied.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

from typing_extensions import override

from scheduler.model.accounts import Account, BalanceSample
from scheduler.model.costs import Cost
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.market import PriceChange, StoredMarket
from scheduler.model.reservations import Reservation, is_over
from scheduler.model.run_times import RunTimes
from scheduler.model.runs import Execution
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED, PHASES
from scheduler.model.view import KINDS, RecentWrites, Row
from scheduler.ports import (
    AppliedRules,
    ClusterRow,
    EventFilter,
    LeaderTerm,
    OutboxMessage,
    RowVersion,
    RulesVersion,
    Store,
    StoredPrincipal,
    StoredRules,
)
from scheduler.store.memory_transaction import MemoryTransaction, World, list_executions
from scheduler.store.shared_rules import RECENT_SECONDS, ReadsCosts

Key = TypeVar("Key")


class MemoryStore(ReadsCosts, Store):
    """The Store port in memory. `clock`: a function that returns seconds since the epoch, real or virtual.

    Only one transaction is open at a time, in all threads. A second one waits for the first, as on SQLite.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._world = World()
        self._lock = threading.Lock()

    @property
    def events(self) -> list[Event]:
        """All committed events, oldest first. This is the store's own list, which the caller must not change."""
        return self._world.events

    @override
    def transaction(self) -> MemoryTransaction:
        return MemoryTransaction(self._world, self._lock, self._clock)

    @override
    def close(self) -> None:
        # A store in memory has no connections.
        pass

    @override
    def now(self) -> float:
        return self._clock()

    @override
    def read_cluster(self) -> ClusterRow:
        world = self._world
        return ClusterRow(
            now=self._clock(),
            identity=world.identity,
            term=world.leader_term.term,
            token=world.token,
            restores=world.restores,
            principals_version=world.principals_version,
            leader_term=world.leader_term,
            rules_version=world.rules.version,
            market_version=world.market.version,
        )

    @override
    def accept_restores(self, restores: int) -> None:
        # No backup is restored into a store in memory while it is in use.
        pass

    @override
    def rules_version(self) -> int:
        return self._world.rules.version

    @override
    def rules_versions(self) -> RulesVersion:
        return RulesVersion(self._world.rules.version, self._world.market.version)

    @override
    def load_market(self) -> StoredMarket:
        return self._world.market

    @override
    def find_holds(self) -> list[Hold]:
        return sorted(self._world.holds.values(), key=attrgetter("id"))

    @override
    def load_rules(self) -> StoredRules:
        return self._world.rules

    @override
    def read_rules_history(self, *, version: int | None = None, limit: int = 1000) -> list[AppliedRules]:
        return [each for each in self._world.applied if version in {None, each.version}][-limit:]

    @override
    def find_principals(self) -> list[StoredPrincipal]:
        return [row for _, row in sorted(self._world.principals.items())]

    @override
    def is_session_ended(self, session: str) -> bool:
        return session in self._world.ended_sessions

    @override
    def load_leader_term(self) -> LeaderTerm:
        return self._world.leader_term

    @override
    def read_rows(self) -> Iterator[Row]:
        since = self._clock() - RECENT_SECONDS
        yield from [
            row
            for row in self._world.present()
            if not isinstance(row, Reservation) or row.phase not in ENDED or row.changed_at > since or not is_over(row)
        ]

    @override
    def read_stamps(self) -> Iterator[RowVersion]:
        return (
            RowVersion(KINDS[type(row)], row.id, row.version, row.marked_at)
            for row in list(self._world.present())
            if not (isinstance(row, Reservation) and is_over(row))
        )

    @override
    def read_versions_since(self, since: float, known: RecentWrites | None = None) -> list[RowVersion]:
        found: list[RowVersion] = []
        # The rows that were written last come first, so no older rows are read.
        for (kind, row_id), stamp in reversed(self._world.written.items()):
            if stamp < since:
                break
            row = self._world.rows[kind].get(row_id)
            if row is None or row.marked_at < since:
                continue
            name = KINDS[kind]
            key = row.sequence if isinstance(row, Reservation) else row.id
            if known is None or not known.has_all(name, row.marked_at, (key,), row.version):
                is_ended = isinstance(row, Reservation) and is_over(row)
                found.append(RowVersion(name, row.id, row.version, row.marked_at, is_ended))
        return found

    @override
    def find_reservations(
        self, *, ids: Sequence[str] | None = None, phases: Sequence[str] | None = None, limit: int = 1000
    ) -> list[Reservation]:
        known = self._world.reservations
        if ids is not None:
            named = (known[row_id] for row_id in set(ids) if row_id in known)
            found = sorted(
                (row for row in named if phases is None or row.phase in phases), key=lambda row: row.sequence
            )
        elif phases is not None:
            among = (known[row_id] for phase in set(phases) for row_id in self._world.phases.get(phase, ()))
            return nsmallest(limit, among, key=attrgetter("sequence"))
        else:
            return nsmallest(limit, known.values(), key=attrgetter("sequence"))
        return found[:limit]

    @override
    def find_slots(
        self,
        *,
        ids: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        pools: Sequence[str] | None = None,
    ) -> list[Slot]:
        known = self._world.slots
        rows = known.values() if ids is None else [known[row_id] for row_id in set(ids) if row_id in known]
        found = (row for row in rows if states is None or row.state in states)
        return [row for row in found if pools is None or row.pool in pools]

    @override
    def find_slots_of_machines(self, machines: Sequence[str]) -> list[Slot]:
        wanted = set(machines)
        return [row for row in self._world.slots.values() if row.instance_id in wanted]

    @override
    def find_accounts(self) -> list[Account]:
        return sorted(self._world.accounts.values(), key=lambda account: account.id)

    @override
    def find_run_times(self, ids: Sequence[str] | None = None) -> list[RunTimes]:
        known = self._world.run_times
        return [known[name] for name in sorted(known if ids is None else set(ids)) if name in known]

    @override
    def find_command(self, reservation: str) -> str | None:
        return self._world.commands.get(reservation)

    @override
    def find_executions(self, reservation: str) -> list[Execution]:
        with self._lock:
            return list_executions(self._world.executions, [reservation])

    @override
    def read_balances(self, account: str, since: float = 0.0) -> list[BalanceSample]:
        return sorted(
            (sample for sample in self._world.balances.get(account, {}).values() if sample.at >= since),
            key=lambda sample: sample.at,
        )

    @override
    def load_costs(self, since: float) -> tuple[list[Cost], list[Slot], float]:
        with self._lock:
            booked = [cost for cost in self._world.costs.values() if cost.hour >= since]
            return booked, [slot for slot in self._world.slots.values() if slot.meter is not None], self._clock()

    @override
    def read_price_changes(self, types: Sequence[str]) -> list[PriceChange]:
        with self._lock:
            found = [each for each in self._world.price_changes.values() if each.type in types]
        return sorted(found, key=lambda each: each.key)

    @override
    def find_outgoing(self, *, sent_before: float, limit: int = 1000) -> list[OutboxMessage]:
        due = [row for row in self._world.outgoing.values() if row.sent_at < sent_before]
        return sorted(due, key=lambda row: (row.created_at, row.id))[:limit]

    @override
    def count_phases(self) -> dict[str, int]:
        return {phase: len(self._world.phases[phase]) for phase in PHASES}

    @override
    def read_events(self, which: EventFilter) -> list[Event]:
        events = self._world.events
        found = (
            event
            for event in (reversed(events) if which.newest else events)
            if event.number > which.after
            and which.reservation in {None, event.reservation}
            and which.slot in {None, event.slot}
            and which.name in {None, event.name}
            and which.without != event.name
        )
        chosen = list(islice(found, which.limit))
        return chosen[::-1] if which.newest else chosen

    @override
    def prune(self, *, events_before: float, requests_before: float, ended_before: float) -> int:
        world = self._world
        with self._lock:
            gone = len(world.events)
            world.events[:] = [event for event in world.events if event.at >= events_before]
            gone -= len(world.events)
            for samples in world.balances.values():
                gone += _drop_all(samples, [at for at in samples if at < events_before])
            gone += _drop_all(world.answers, [key for key, each in world.answers.items() if each.at < requests_before])
            ended = [
                row_id
                for phase in ENDED
                for row_id in world.phases[phase]
                if world.reservations[row_id].changed_at < ended_before
            ]
            for row_id in ended:
                world.drop((Reservation, row_id))
            return gone + len(ended)

    @override
    def prune_ledger(self, *, costs_before: float, machines_before: float, prices_before: float) -> int:
        world = self._world
        with self._lock:
            gone = _drop_all(world.costs, [key for key in world.costs if key[0] < costs_before])
            old = [name for name, until in world.booked_machines.items() if until < machines_before]
            changed = [key for key, each in world.price_changes.items() if each.hour < prices_before]
            return gone + _drop_all(world.booked_machines, old) + _drop_all(world.price_changes, changed)


def _drop_all(kept: dict[Key, Any], old: Collection[Key]) -> int:
    for key in old:
        del kept[key]
    return len(old)
