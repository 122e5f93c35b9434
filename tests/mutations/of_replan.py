"""Changes of the rules by which the last cycle goes on in a later tick."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_REPLAN: Final[Changes] = {
    "scheduler.policy.replan.kept_cycle": {
        "KeptCycle._list_changed": [
            Change("a slot whose new lease was not written is read again", "self._spent.copy()", "{}"),
        ],
        "KeptCycle._follow_queue": [
            Change(
                "a reservation whose lease was not written waits again",
                "[(pending[name], shapes[name], True) for name in self._given if name not in left]",
                "[]",
            ),
            Change(
                "a reservation that left is not reported any more",
                "self._gone += known.values()",
                "pass",
            ),
        ],
        "KeptCycle._list_open": [
            Change(
                "a request of a new kind is searched on all slots",
                "demand in self._fresh or fitting.have_place(demand)",
                "fitting.have_place(demand)",
            ),
        ],
        "KeptCycle._plan": [
            Change(
                "an expiry needs a full cycle",
                "cycle.decisions or cycle.returning or failed_boots or any(each.stuck for each in changed)",
                "cycle.returning or failed_boots or any(each.stuck for each in changed)",
            ),
        ],
        "_check_plain": [
            Change(
                "a queue without backfill needs a full cycle",
                "len(demand.needs) != 1 or demand.elastic or not demand.is_shared or not demand.settings.backfill",
                "len(demand.needs) != 1 or demand.elastic or not demand.is_shared",
            ),
        ],
    },
    "scheduler.policy.replan.changed_slots": {
        "renew_all": [
            Change(
                "a slot that takes no leases any more needs a full cycle",
                "opened.is_at_rest and opened.is_sound and takes_leases",
                "opened.is_at_rest and opened.is_sound",
            ),
        ],
    },
    "scheduler.policy.replan.kept_queue": {
        "KeptQueue._insert": [
            Change(
                "a reservation is reported at its position in the queue",
                "bisect_left(keys, key)",
                "len(keys)",
            ),
        ],
        "KeyHeap.push_all": [
            Change(
                "of the reservations with equal requests the first in queue order is placed",
                "bisect_left(keys, self._keys[-1]) if self._keys else 0",
                "0",
            ),
        ],
        "KeyHeap._find_first": [
            Change(
                "a reservation that returns is placed before younger ones with equal requests",
                "early[0] < keys[begin]",
                "early[0] > keys[begin]",
            ),
        ],
        "KeptQueue.remove_all": [
            Change(
                "a block of which all reservations left is removed",
                "not count",
                "at < 0",
            ),
        ],
    },
    "scheduler.policy.replan.idle_slots": {
        "IdleSlots._stays": [
            Change(
                "an idle slot makes room for a withheld launch",
                "(lacks and self._limits.count_left(name)) or (idle and name in withheld)",
                "lacks and self._limits.count_left(name)",
            ),
            Change(
                "a slot that is idle for too long needs a full cycle",
                "not self._cycle.is_past(self._oldest[name], pool.idle_scale_down)",
                "True",
            ),
            Change(
                "the next cycle is due when an idle slot is to be drained",
                "self._cycle.timers.add_after(self._oldest[name], pool.idle_scale_down)",
                "pass",
            ),
        ],
    },
    "scheduler.policy.replan.by_quota": {
        "PlacementByQuota.find_rank": [
            Change("another level of an account needs a full cycle", "_find_levels(cycle) != self._levels", "False"),
        ],
    },
}
