"""Changes of the cycle state, the order of steps and the plan cache."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_STATE: Final[Changes] = {
    "scheduler.policy.cycle.state": {
        "CycleState.is_due": [
            Change("work that is due at this instant is due", "self.now >= instant", "self.now > instant"),
        ],
        "CycleState.is_past": [
            Change("idle and offline limits are strict", "self.now > start + limit", "self.now >= start + limit"),
        ],
        "CycleState.end": [
            Change(
                "a slot on which a lease ended in this tick is healed in it",
                "self.note_restless(slot_info)",
                "slot_info",
            ),
        ],
        "CycleState._is_still_there": [
            Change("the next machine of a slot is not the one that was declined", "reservation.changed_at", "self.now"),
            Change(
                "a machine that arrives at the instant of the decline was not declined",
                "slot is None or slot.state != 'ready' or (slot.epoch and (not slot.uses))",
                "slot is None or slot.state != 'ready'",
            ),
        ],
    },
    "scheduler.policy.cycle.queue": {
        "WaitReasons.add": [
            Change(
                "of two codes the first in the contract's order is reported",
                "known is None or _RANK_OF_CODE[code] <= _RANK_OF_CODE[known[0]]",
                "True",
            ),
        ],
    },
    "scheduler.policy.capacity.slot_info": {
        "SlotInfo.has_place": [
            Change(
                "a slot has at most the allowed number of leases",
                "self.pool.lease_limit - self.load",
                "self.pool.lease_limit - self.load + 1",
            ),
        ],
        "SlotInfo.uses_left": [
            Change(
                "a use that is claimed is not left for others",
                "self.given + self.redeemed + claims",
                "self.given",
            ),
        ],
        "SlotInfo.end_lease": [
            Change("idle from the end of the last lease on", "self.idle_since = now", ""),
        ],
        "SlotInfo.is_serving": [
            Change(
                "a cordoned slot does not serve",
                "(self.state == 'ready' or self.is_coming) and (not self.slot.cordoned)",
                "self.state == 'ready' or self.is_coming",
            ),
        ],
    },
    "scheduler.policy.plan": {
        "plan": [
            Change("the step heal", "heal(unexpired)", "(unexpired, {})"),
            Change("the step warm pool", "fill_warm_pools(healed, headroom, limits)", "healed"),
            Change("the step scale in", "scale_in(tiered, headroom, limits, to_stop)", "tiered"),
            Change("the step wake", "wake(shared, limits.next_end)", "None"),
        ],
    },
    "scheduler.policy.plan_cache": {
        "PlanCache.go_on": [
            Change("a full cycle reads again the slots that changed since", "self._drop_slots(self._view)", "pass"),
        ],
        "PlanCache.keep": [
            Change("a plan is not kept beyond what falls due", "inf if plan.wake_at is None else plan.wake_at", "inf"),
            Change(
                "a plan is not kept beyond the next protection of the starvation guard",
                "min(falls_due, next_protection)",
                "falls_due",
            ),
        ],
    },
}
