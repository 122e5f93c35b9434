"""Reads the heartbeats of static hosts, and answers hosts that query their slot and leases.

Heartbeats do not pass through a queue (see `Heartbeats`), so neither a full queue nor a stopped worker makes a host
appear lost. A heartbeat is stored with its age, and without the time of the host's clock, so only the scheduler's clock
counts. Source: Orchard's workers.
"""

import random
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from scheduler.model.reservations import Reservation, usable_cores
from scheduler.model.rules import Rules, expiry_when_renewed
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED, HOLDING
from scheduler.model.view import Row, View
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.commands.slot_commands import check_host
from scheduler.operations.heartbeats import SAME_BEAT_SECONDS, judge_heartbeats
from scheduler.operations.ports import Ports, announce, cloud_work, hint_to_hosts
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.lifecycle.timers import is_silent
from scheduler.ports import Heard, LeaderTerm

MOST_HINTS = 100
"""The most hosts that get a hint in one run, because each host that gets one reads its slot and leases at once. A hint
is sent to a host whose heartbeats name an old version of its slot.
"""

HOSTS_A_TRANSACTION = 250


def hear_hosts(ports: Ports) -> int:
    """Set `last_seen` of every static host to the time of its last heartbeat. Return the number of hosts that have sent
    a heartbeat since the last call.

    A tick is requested if a host that was silent sends heartbeats again. Hosts whose heartbeats name an old version of
    their slot get a hint that they should read their slot and leases again.
    """
    rules = ports.rules()
    pools = _pools_with_agents(rules)
    if not pools:
        return 0
    # Only the slots of static pools: reading a large EC2 fleet every two seconds would be slow.
    hosts = ports.store.find_slots(states=sorted(HOLDING), pools=sorted(pools))
    heard = _listen(ports, hosts)
    moved = _note(ports, rules, {slot.id: _heard_ago(slot, heard) for slot in hosts}, hosts, heard)
    # A host with an old version did not get the hint to read its slot again, or has not reacted to it yet.
    behind = [
        slot
        for slot in hosts
        if slot.id in heard.versions
        and heard.ages[slot.id] <= rules.pools[slot.pool].offline_timeout
        and heard.versions[slot.id] != name_version(slot, rules.pools[slot.pool].offline_timeout)
    ]
    if hints := list(choose_hints(behind, ports.store.now())):
        hint_to_hosts(ports, hints)
    return len(moved)


def choose_hints(behind: Sequence[Slot], now: float) -> Sequence[Slot]:
    """Choose at most MOST_HINTS of the hosts in `behind`, which know an old version of their slot, to get a hint now.

    The choice is random, so that hosts which never react do not delay the hints to other hosts for long.
    """
    return random.Random(now).sample(behind, min(len(behind), MOST_HINTS))  # noqa: S311 - no secret


def hear_before_judging(ports: Ports, view: View, rules: Rules, leader_term: LeaderTerm, now: float) -> None:
    """Read the heartbeats of hosts that the view shows as silent, before a plan treats them as lost.

    If Redis lost its heartbeats (flushed, restarted), a host that was not silent at the last tick counts as seen at the
    time when Redis began to store heartbeats again. So each such host gets one more offline timeout, once.
    """
    if not _pools_with_agents(rules):
        return
    known = [slot for slot in view.slots.values() if slot.last_seen is not None]
    silent = [slot for slot in known if is_silent(slot, rules.pools.get(slot.pool), now)]
    if not silent:
        return
    heard = _listen(ports, silent)
    ages = {slot.id: _heard_ago(slot, heard) for slot in silent}
    for slot in silent:
        if not is_silent(slot, rules.pools.get(slot.pool), leader_term.ticked_at):
            ages[slot.id] = min(ages[slot.id], heard.kept_for)  # promise: lost-heartbeats-no-silence
    for row in _note(ports, rules, ages, silent, heard):
        view.apply(row)


def describe_host(ports: Ports, name: str, machine: str, run: str | None = None) -> dict[str, Any]:
    """Return the slot `name` of a static host and the leases on it, as the database has them.

    Raises CommandRefused if the slot is unknown, or belongs to another machine than `machine` or to another run of the
    agent than `run` (None: any run).
    """
    with ports.store.transaction() as transaction:
        slot = transaction.load_slots([name]).get(name)
        leases = transaction.load_leases([name]).get(name, [])
        with_command = transaction.load_commands({owner for owner, _ in leases}) if leases else {}
    if slot is None:
        raise CommandRefused("slot", "a slot that a host registered", name, "conflict")
    check_host(slot, machine, run)
    pool = ports.rules().pools.get(slot.pool)
    return {
        "slot": slot.id,
        "state": slot.state,
        "cordoned": slot.cordoned,
        "offline_timeout": None if pool is None else pool.offline_timeout,
        "version": name_version(slot, None if pool is None else pool.offline_timeout),
        **({} if slot.run is None else {"run": slot.run}),
        "leases": [
            {
                "reservation": owner,
                "component": lease.component,
                "token": lease.token,
                "resources": lease.resources,
                "cores": usable_cores(lease),
                "assigned_at": lease.assigned_at,
                "state": lease.state,
                "revoke_by": lease.revoke_by,
                "has_command": owner in with_command,
            }
            for owner, lease in leases
            if lease.epoch == slot.epoch and lease.state != "claimed"
        ],
    }


def name_version(slot: Slot, offline_timeout: float | None) -> str:
    """Return a text that changes whenever the result of `describe_host` for this slot changes.

    It contains the slot's epoch (an earlier slot of the same name had another one), the slot's version, which grows
    with each change of the slot or its leases, and the pool's offline timeout (None: the rules no longer have the
    pool).
    """
    timeout = "-" if offline_timeout is None else f"{offline_timeout:g}"
    return f"{slot.epoch}:{slot.version}:{timeout}"


def _listen(ports: Ports, hosts: Sequence[Slot]) -> Heard:
    """Return the heartbeats of the static hosts in `hosts`, without heartbeats that do not count because of a wrong
    signature or counter.
    """
    runs = {slot.id: slot.run for slot in hosts if slot.run is not None}
    heard = ports.heartbeats.listen({slot.id: slot.machine for slot in hosts if slot.machine is not None}, runs)
    return judge_heartbeats(ports.host_keys, ports.store, ports.meter, hosts, heard)


def _pools_with_agents(rules: Rules) -> set[str]:
    return {name for name, pool in rules.pools.items() if pool.has_agents}


def _heard_ago(slot: Slot, heard: Heard) -> float:
    return heard.ages.get(slot.id, inf)


def _note(ports: Ports, rules: Rules, ages: dict[str, float], hosts: Sequence[Slot], heard: Heard) -> list[Row]:
    """Write `last_seen` and the heartbeat counter of the hosts that have sent newer heartbeats. Return the changed
    slots. `ages`: slot id -> age of its last heartbeat in seconds.

    Without newer heartbeats nothing is written. Thousands of hosts take several transactions, so that ticks and
    requests can write in between.
    """
    now = ports.store.now()
    counters = {name: beat.counter or 0 for name, beat in heard.signed.items()}
    last_seen = {slot.id: now - ages[slot.id] for slot in hosts}
    moved = [slot for slot in hosts if _is_news(slot, last_seen[slot.id], counters.get(slot.id))]
    rows: list[Row] = []
    for start in range(0, len(moved), HOSTS_A_TRANSACTION):
        rows += _note_some(ports, rules, moved[start : start + HOSTS_A_TRANSACTION], last_seen, counters)
    return rows


def _note_some(
    ports: Ports, rules: Rules, moved: Sequence[Slot], last_seen: Mapping[str, float], counters: Mapping[str, int]
) -> list[Row]:
    is_back = False
    with cloud_work(ports) as work:
        work.slots = work.transaction.load_slots([slot.id for slot in moved])
        for seen in moved:
            current, at = work.slots.get(seen.id), last_seen[seen.id]
            if current is None or (current.machine, current.epoch) != (seen.machine, seen.epoch):
                continue
            counter = counters.get(seen.id)
            if _is_news(current, at, counter):
                is_back = is_back or is_silent(current, rules.pools.get(current.pool), work.now)
                seen_at = at if current.last_seen is None else max(at, current.last_seen)
                work.mark(msgspec.structs.replace(current, last_seen=seen_at, heartbeat=counter or current.heartbeat))
        change_set = work.flush()
    announce(ports, change_set, kick=is_back)
    return change_set.rows


def _is_news(slot: Slot, at: float, counter: int | None) -> bool:
    """Return whether a host's heartbeat is newer than what its slot records: a signed one by its counter, an unsigned
    one by its arrival time `at`.
    """
    if counter is not None and counter <= slot.heartbeat:
        return False
    return slot.last_seen is None or counter is not None or at > slot.last_seen + SAME_BEAT_SECONDS


def forgive_outage(ports: Ports, view: View, rules: Rules, leader_term: LeaderTerm, now: float) -> None:
    """Start periods again that ran out during an outage of the scheduler: the ttl of a reservation, and the offline
    timeout of a static host. Called by the first tick after the outage.

    The time of the tick is stored in the same transaction, so that an outage does not count twice if planning fails
    afterwards. Raises DeposedError if another process leads. Sources: the autoscaler's tick, Orchard.
    """
    overdue = [each.id for each in view.reservations.values() if _is_overdue(each, now)]
    silent = [each.id for each in view.slots.values() if _fell_silent(each, rules, leader_term, now)]
    with ports.store.transaction() as transaction:
        transaction.note_tick(leader_term, now)
        work = UnitOfWork(transaction, "tick")
        work.load(reservations=overdue, slots=silent)
        for name in overdue:
            current = work.reservations.get(name)
            if current is not None and _is_overdue(current, now):
                work.mark(msgspec.structs.replace(current, expires_at=expiry_when_renewed(current, rules, now)))
        for name in silent:
            slot = work.slots.get(name)
            if slot is not None and _fell_silent(slot, rules, leader_term, now):
                work.mark(msgspec.structs.replace(slot, last_seen=now))
        change_set = work.flush()
    announce(ports, change_set, kick=False)
    for row in change_set.rows:
        view.apply(row)


def _is_overdue(reservation: Reservation, now: float) -> bool:
    due = reservation.expires_at
    return due is not None and now >= due and reservation.phase not in ENDED


def _fell_silent(slot: Slot, rules: Rules, leader_term: LeaderTerm, now: float) -> bool:
    """Return whether a static host is silent now and was not silent at the last tick (`leader_term.ticked_at`). Only
    such a host may have become silent because of an outage of the scheduler. A host that was silent at the last tick
    stays lost.
    """
    pool = rules.pools.get(slot.pool)
    # promise: outage-fails-no-host
    return is_silent(slot, pool, now) and not is_silent(slot, pool, leader_term.ticked_at)
