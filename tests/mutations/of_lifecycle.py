"""Changes of the rules that end, heal and retire leases and slots."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_LIFECYCLE: Final[Changes] = {
    "scheduler.policy.lifecycle.timers": {
        "find_end_of_grace": [
            Change(
                "an earlier notice holds for a reservation that is being revoked",
                "min([reservation.revoke_by, *(end for end in ends if end is not None)])",
                "reservation.revoke_by",
            ),
        ],
        "expire": [
            Change("an expired reservation gives back its leases", "cycle.end(reservation)", "pass"),
        ],
        "find_timeout": [
            Change("every state has a timeout of its own", "pool.boot_timeout", "pool.launch_timeout"),
        ],
        "_wake_after": [
            Change(
                "a drain that a tick begins ends in time",
                "cycle.slot_infos[decision.slot].pool.drain_timeout",
                "cycle.slot_infos[decision.slot].pool.terminating_timeout * 0",
            ),
        ],
        "is_restart_due": [
            Change(
                "the first restart does not wait for the delay, later ones do",
                "last is None or cycle.is_past(last, cycle.settings_of(reservation).restart_delay)",
                "True",
            ),
        ],
    },
    "scheduler.policy.lifecycle.heal": {
        "_heal_stuck": [
            Change(
                "a cool-down ends",
                "cycle.move_slot(slot_info, Reset(slot=slot.id, reason='cooled_down'))",
                "cycle.decide(Reset(slot=slot.id, reason='cooled_down'))",
            ),
            Change(
                "a machine that boots is replaced if AWS Health schedules a change of it",
                "slot.state in IN_FLIGHT | {'stopped'} and slot.drain_reason",
                "slot.state in IN_FLIGHT | {'stopped'} and slot.drain_reason not in {None, 'maintenance'}",
            ),
        ],
        "": [
            Change(
                "a slot that is replaced for a scheduled change has its reason",
                "frozenset({'rebalance', 'maintenance'})",
                "frozenset({'rebalance'})",
            ),
        ],
        "_heal_interrupted": [
            Change(
                "an interrupted slot takes no leases",
                "cycle.move_slot(slot_info, Drain(slot=slot_info.slot.id, reason='interrupted'))",
                "cycle.decide(Drain(slot=slot_info.slot.id, reason='interrupted')); slot_info.stuck = False",
            ),
        ],
        "_find_grace_end": [
            Change("a grace never outlasts the machine", "return min(ends)", "return max(ends)"),
        ],
        "_requeue_interrupted": [
            Change("`on_interruption: fail` fails", "'fail'", "'never'"),
        ],
        "_find_loss": [
            Change(
                "an elastic lease that was preempted has this reason at the end of its grace, too",
                "'preempted' if lease.revoke_reason == 'preempted' else 'reclaimed'",
                "'reclaimed'",
            ),
            Change(
                "an interrupted instance stays until the machine ends",
                "_find_grace_end(cycle, reservation, [slot])",
                "None",
            ),
            Change(
                "an earlier notice holds for an instance that is being revoked",
                "None if min(ends) == lease.revoke_by else ('slot_interrupted', min(ends))",
                "None",
            ),
            Change(
                "a revoked instance ends at its deadline",
                "lease.revoke_by is not None and (not cycle.is_due(min(ends)))",
                "lease.revoke_by is not None",
            ),
        ],
        "_end_unconfirmed": [
            Change("unconfirmed leases in a row are counted for the slot", "1", "0"),
        ],
    },
    "scheduler.policy.capacity.slot_info": {
        "find_reason_to_retire": [
            Change(
                "a host with an unknown occupant is not retired for max_uses",
                "not count_uses_left(slot, pool) and (not slot_info.leases) and (slot.stranger is None)",
                "not count_uses_left(slot, pool) and (not slot_info.leases)",
            ),
            Change(
                "a static host is retired for max_uses, too",
                "not count_uses_left(slot, pool)",
                "pool.is_elastic and not count_uses_left(slot, pool)",
            ),
            Change(
                "a slot whose offering is no longer configured drains",
                "slot.offering is not None and (not is_configured(slot, pool))",
                "False",
            ),
        ],
    },
    "scheduler.model.rules": {
        "_own_ttl": [
            Change("an own ttl of 0 means never", "request.ttl is not None", "request.ttl"),
        ],
        "_first_pool": [
            Change("the first pool that serves its system", "0", "-1"),
        ],
    },
}
