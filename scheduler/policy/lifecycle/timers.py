"""What time alone changes: reservations expire or reach their limit, slots time out, static hosts become silent, failed
reservations may restart. The first step of a cycle ends the reservations whose time is over, and the last step finds
when the next cycle is due.

Speed: of each static pool, the slot with the oldest heartbeat is kept between cycles, and a cycle examines only slots
that changed. Source: the autoscaler's tick.
"""

from collections.abc import Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import Final

import msgspec

from scheduler.model.decisions import (
    Assign,
    Cores,
    Decision,
    Drain,
    Expire,
    Fail,
    Launch,
    Preempt,
    Requeue,
    Restart,
    Revoke,
    Start,
    Stop,
    Terminate,
)
from scheduler.model.pools import Pool
from scheduler.model.reservations import LIMIT, Reservation
from scheduler.model.rules import Rules, Terms, expiry_of_pending, list_deadlines_of_lease
from scheduler.model.slots import Slot, has_machine_of
from scheduler.model.transitions import HOLDING, SlotState
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState, find_moment_after
from scheduler.policy.plan_cache import list_touched

_sequence = attrgetter("sequence")


def expire_due(cycle: CycleState) -> float:
    """Return when the first reservation expires or reaches its limit. Minus infinity: one has to end now; infinity:
    none ever does.
    """
    due, following = cycle.view.mortal.find_due(cycle.now)
    reached, next_limit = cycle.view.find_at_limit(cycle.now)
    return -inf if due or reached else min(inf if following is None else following, next_limit)


def expire(cycle: CycleState) -> None:
    """End each pending or leased reservation whose `expires_at` has been reached, and each leased one whose leases have
    lasted for the `max_runtime` that its account enforces.

    Its leases end in this cycle, so that `place` can give the slots to other reservations; at a `max_runtime` after
    `preemption_grace`. A reservation that expires is never assigned in the same cycle.
    """
    due, following = cycle.view.mortal.find_due(cycle.now)
    reached, next_limit = cycle.view.find_at_limit(cycle.now)
    cycle.timers.add(following, next_limit)
    for reservation in sorted(due, key=_sequence):
        cycle.decide(Expire(reservation=reservation.id))
        cycle.end(reservation)
    for reservation in sorted(reached, key=_sequence):
        if reservation.id not in cycle.over:
            _end_at_limit(cycle, reservation)


def _end_at_limit(cycle: CycleState, reservation: Reservation) -> None:
    revoke_by = cycle.find_revoke_by(cycle.settings_of(reservation))
    if revoke_by is not None:
        # EC2 may take one of its machines back before that.
        revoke_by = find_end_of_grace(msgspec.structs.replace(reservation, revoke_by=revoke_by), cycle.view.slots)
    if revoke_by is None or cycle.is_due(revoke_by):
        cycle.decide(Expire(reservation=reservation.id, reason=LIMIT))
        cycle.end(reservation)
    else:
        cycle.decide(Expire(reservation=reservation.id, reason=LIMIT, revoke_by=revoke_by))
        cycle.leaving[reservation.id] = reservation


def find_timeout(state: SlotState, pool: Pool) -> float:
    """Return for how many seconds a slot of this pool may be in `state`. Infinity: without limit, as for
    `drain_timeout` 0.
    """
    limits = {
        "launching": pool.launch_timeout,
        "booting": pool.boot_timeout,
        "binding": pool.binding_timeout,
        "draining": pool.drain_timeout or inf,
        "terminating": pool.terminating_timeout,
    }
    return limits.get(state, inf)


def find_deadline(slot: Slot, pool: Pool) -> float:
    """Return when a slot times out if it stays in its state (seconds since the epoch); infinity for a state without a
    timeout. A stop that the cloud has not confirmed yet has the timeout of a termination.
    """
    if slot.state == "stopped" and slot.power == "stop":
        return slot.since + pool.terminating_timeout
    return slot.since + find_timeout(slot.state, pool)


def has_timed_out(slot: Slot, pool: Pool | None, now: float) -> bool:
    """Return whether the slot has been in its state for at least the timeout of that state. False if its pool is not
    configured (None).
    """
    return pool is not None and now >= find_deadline(slot, pool)


def find_end_of_grace(reservation: Reservation, slots: Mapping[str, Slot]) -> float | None:
    """Return the time at which the holder of a revoking reservation has to stop; None: at once. This is the
    reservation's `revoke_by`, or the time at which EC2 takes the first of its machines back if that is earlier.
    """
    if reservation.revoke_by is None:
        return None
    present = [(lease, slot) for lease in reservation.leases if (slot := slots.get(lease.slot)) is not None]
    ends = [slot.interrupted_by for lease, slot in present if has_machine_of(slot, lease.epoch)]
    return min([reservation.revoke_by, *(end for end in ends if end is not None)])


def is_silent(slot: Slot, pool: Pool | None, now: float) -> bool:
    """Return whether the agent on the host of a slot in service has sent nothing for longer than `offline_timeout`.
    Source: Orchard.

    A launched machine without an agent, of rules without `agent`, is never silent.
    """
    if pool is None or not pool.has_agents or slot.state not in HOLDING or slot.last_seen is None:
        return False
    return not (pool.is_elastic and slot.machine is None) and now > slot.last_seen + pool.offline_timeout


def stays_in_service(slot: Slot, pool: Pool | None, now: float) -> bool:
    """Return whether a slot is ready and nothing makes it end: no drain, no interruption, no silence of its host.

    The commit tests this on rows. A plan tests `SlotInfo.takes_leases` instead: its step `heal` has changed the state
    of the slots for which this function returns False, or has marked them as `stuck`.
    """
    is_kept = slot.state == "ready" and slot.drain_reason is None and slot.interrupted_at is None
    return is_kept and not is_silent(slot, pool, now)


Heard = tuple[float, str]
"""(time of a slot's last heartbeat in seconds since the epoch, id of the slot)."""


class OldestHeartbeats:
    """Pool with agents -> the oldest one of the last heartbeats of its slots in service. While it is recent enough, no
    slot of the pool is silent, and a cycle examines none of them.
    """

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._revision = 0
        self._oldest: dict[str, Heard | None] = {}
        """Pool -> its oldest heartbeat; None: no slot of the pool sent one. A pool is missing while its oldest
        heartbeat is not known; then `find` examines its slots.
        """

    def follow(self, cycle: CycleState) -> None:
        """Update the oldest heartbeats by the rows of slots that changed in the view since the last call."""
        if cycle.rules is not self._rules:
            self._oldest = {}
        slots, noted = cycle.view.slots, {oldest[1] for oldest in self._oldest.values() if oldest}
        for name in list_touched(cycle.view, self._revision) if self._oldest else ():
            slot = slots.get(name)
            if slot is None or slot.last_seen is not None or name in noted:  # speed: empty slots send none
                self._note(name, slot)
        self._rules, self._revision = cycle.rules, cycle.view.revision

    def _note(self, name: str, slot: Slot | None) -> None:
        heard = None if slot is None else _find_heard(slot)
        for pool in [pool for pool, oldest in self._oldest.items() if oldest and oldest[1] == name]:
            if slot is None or slot.pool != pool or heard != self._oldest[pool]:
                del self._oldest[pool]
        if slot is not None and heard is not None and slot.pool in self._oldest:
            self._oldest[slot.pool] = min(heard, self._oldest[slot.pool] or heard)

    def find(self, pool: str, cycle: CycleState) -> float | None:
        """Return the oldest one of the last heartbeats of a pool's slots in service (seconds since the epoch); None if
        none of them sent a heartbeat.

        The slots of the pool are examined only if the slot with the oldest heartbeat has changed since the last call.
        """
        if pool not in self._oldest:
            self._oldest[pool] = min(filter(None, (_find_heard(each.slot) for each in cycle.pools[pool])), default=None)
        oldest = self._oldest[pool]
        return None if oldest is None else oldest[0]


def list_silent(cycle: CycleState) -> tuple[list[SlotInfo], float]:
    """Return two things: (1) the slots in service whose agents sent no heartbeat for longer than `offline_timeout`;
    (2) when the next one will be silent; infinity: none will.
    """
    heard_pools = [(name, pool) for name, pool in cycle.rules.pools.items() if pool.has_agents]
    if not heard_pools:
        return [], inf
    silent, ends, heartbeats = list[SlotInfo](), [inf], cycle.cache.recall(OldestHeartbeats)
    heartbeats.follow(cycle)
    moved = {each.slot.pool for each in cycle.list_restless() if each.state != each.slot.state}
    for name, pool in heard_pools:
        oldest = heartbeats.find(name, cycle)
        if oldest is None:
            continue
        first_end = find_moment_after(oldest, pool.offline_timeout)
        if name not in moved and not cycle.is_due(first_end):  # the others are not silent either
            ends.append(first_end)
            continue
        heard = [each for each in cycle.pools[name] if each.state in HOLDING]
        silent += [each for each in heard if is_silent(each.slot, pool, cycle.now)]
        seen = [each.slot.last_seen for each in heard if each.slot.last_seen is not None]
        lasting = (find_moment_after(instant, pool.offline_timeout) for instant in seen)
        ends += [end for end in lasting if not cycle.is_due(end)]
    return silent, min(ends)


def _find_heard(slot: Slot) -> Heard | None:
    return (slot.last_seen, slot.id) if slot.last_seen is not None and slot.state in HOLDING else None


def may_restart_again(reservation: Reservation, rules: Rules) -> bool:
    """Return whether a failed reservation is to be restarted (`restart_policy: on_failure`) and was restarted fewer
    than `max_restarts` times (0: no limit).
    """
    most = rules.settings_of(reservation.request.pool, reservation.request.system).max_restarts
    return reservation.request.restart_policy == "on_failure" and (not most or reservation.restarts < most)


def find_restart(cycle: CycleState, reservation: Reservation) -> float:
    """Return when a failed reservation may be restarted: at once if it was never restarted, else more than
    `restart_delay` seconds after the last restart.
    """
    last = reservation.restarted_at
    return -inf if last is None else find_moment_after(last, cycle.settings_of(reservation).restart_delay)


_MANY: Final = frozenset({Assign, Cores})
"""The frequent kinds of decisions, which `wake` does not examine one by one. `Assign`: the times at which assigned
leases end follow from `Timers.lease_terms`. `Cores` sets how many cpus a lease may use, and needs no later cycle.
"""


_TOGETHER: Final = frozenset({Launch, Preempt})
"""Kinds of decisions that may be many in one cycle. `wake` does not examine them one by one. It adds one time for each
pool with a `Launch`, and one for each different deadline of the `Preempt` decisions and of their victims.
"""


def wake(cycle: CycleState, back_offs_end: float) -> float | None:
    """Return when the next cycle is due (seconds since the epoch); None: at no time.

    This is the earliest of: the times that the steps have added, the times at which the decisions of this cycle need a
    later cycle, and the time at which postponed work may go on. `back_offs_end`: the earliest end of the launch
    back-offs that prevented a launch in this cycle; infinity: there are none.
    """
    cycle.timers.add(back_offs_end, cycle.turns.finish(cycle.now, decided=bool(cycle.decisions)))
    is_plain = _MANY.issuperset(map(type, cycle.decisions))
    others = [] if is_plain else [each for each in cycle.decisions if type(each) not in _MANY]
    for name in {each.pool for each in others if isinstance(each, Launch)}:
        _wake_after_timeout(cycle, cycle.rules.pools[name].launch_timeout)
    for decision in others:
        if type(decision) not in _TOGETHER:
            _wake_after(cycle, decision)
    _wake_after_preemptions(cycle, [each for each in others if isinstance(each, Preempt)])
    for terms in cycle.timers.lease_terms:
        cycle.timers.add(*list_deadlines_of_lease(terms, cycle.rules, cycle.now))
    drained = [
        cycle.slot_infos[each.slot] for each in others if isinstance(each, Drain) and each.slot in cycle.slot_infos
    ]
    if any(slot_info.state == "draining" and not slot_info.leases for slot_info in (*drained, *cycle.list_restless())):
        cycle.timers.add(cycle.now)  # the next cycle ends the drain, also if the last lease ended in this one
    return None if cycle.timers.first == inf else cycle.timers.first


def _wake_after(cycle: CycleState, decision: Decision) -> None:
    match decision:
        case Requeue(revoke_by=None) | Restart():
            request = cycle.view.reservations[decision.reservation].request
            cycle.timers.add(expiry_of_pending(request, cycle.rules, cycle.now))
        case Revoke(revoke_by=float() as deadline) | Expire(revoke_by=float() as deadline):
            cycle.timers.add(deadline)
        case Fail():
            reservation = cycle.view.reservations[decision.reservation]
            if may_restart_again(reservation, cycle.rules):
                cycle.timers.add(find_restart(cycle, reservation))
        case Drain() if decision.slot in cycle.slot_infos and cycle.slot_infos[decision.slot].leases:
            _wake_after_timeout(cycle, cycle.slot_infos[decision.slot].pool.drain_timeout)
        case Start():
            _wake_after_timeout(cycle, cycle.rules.pools[decision.pool].boot_timeout)
        case Terminate() | Stop() if decision.slot in cycle.slot_infos:
            _wake_after_timeout(cycle, cycle.slot_infos[decision.slot].pool.terminating_timeout)
        case _:
            pass


def _wake_after_preemptions(cycle: CycleState, decisions: Sequence[Preempt]) -> None:
    for deadline in {each.revoke_by for each in decisions}:
        cycle.timers.add(cycle.now if deadline is None else deadline)
    requests = (
        cycle.view.reservations[victim].request
        for each in decisions
        for victim in each.victims
        if victim not in each.partial
    )
    for terms in {Terms(each.ttl, each.pool, each.system) for each in requests}:
        cycle.timers.add(expiry_of_pending(terms, cycle.rules, cycle.now))


def _wake_after_timeout(cycle: CycleState, timeout: float) -> None:
    """Schedule a cycle for the end of a timeout that begins now (seconds). Schedule nothing if the timeout is 0.

    A `drain_timeout` of 0 is off. Any other timeout of 0 ends at once, and the next cycle handles its end.
    """
    if timeout:
        cycle.timers.add(cycle.now + timeout)
