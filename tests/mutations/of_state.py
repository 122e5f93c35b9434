"""Changes of the tick's state, its order of steps and its kept plans."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_STATE: Final[Changes] = {
    "scheduler.policy.cycle.state": {
        "CycleState.is_due": [
            Change("what is due at this very instant is due", "self.now >= instant", "self.now > instant"),
        ],
        "CycleState.is_past": [
            Change("idle and offline limits are strict", "self.now - start > limit", "self.now - start >= limit"),
        ],
        "CycleState.wait": [
            Change(
                "of two codes the first in the contract's order is told",
                "known is None or _RANK_OF_CODE[code] <= _RANK_OF_CODE[known[0]]",
                "True",
            ),
        ],
        "": [
            Change(
                "who returns to the queue keeps the place of its age",
                "attrgetter('created_at', 'sequence')",
                "attrgetter('changed_at', 'sequence')",
            ),
        ],
        "CycleState.end": [
            Change(
                "what ended on a slot in this tick is looked after in it", "self.note_restless(slot_info)", "slot_info"
            ),
        ],
        "CycleState._is_still_there": [
            Change("the next machine of a slot is not the one that was declined", "reservation.changed_at", "self.now"),
            Change(
                "nor is the one that comes in the instant of the decline",
                "slot is None or slot.state != 'ready' or (slot.epoch and (not slot.uses))",
                "slot is None or slot.state != 'ready'",
            ),
        ],
    },
    "scheduler.policy.capacity.slot_info": {
        "SlotInfo.has_place": [
            Change(
                "no more leases on a slot than allowed",
                "self.pool.lease_limit - self.load",
                "self.pool.lease_limit - self.load + 1",
            ),
        ],
        "SlotInfo.uses_left": [
            Change(
                "a use that is claimed is not left for others",
                "most - self.slot.uses - self.given - self.redeemed - claims",
                "most - self.slot.uses - self.given",
            ),
        ],
        "SlotInfo.end_lease": [
            Change("idle from the end of the last lease on", "self.idle_since = now", ""),
        ],
        "SlotInfo.is_serving": [
            Change(
                "a cordoned slot serves nobody",
                "(self.state == 'ready' or self.is_coming) and (not self.slot.cordoned)",
                "self.state == 'ready' or self.is_coming",
            ),
        ],
    },
    "scheduler.policy.plan": {
        "plan": [
            Change("the step heal", "heal(cycle)", ""),
            Change("the step keep", "keep(cycle, limits)", ""),
            Change("the step shrink", "shrink(cycle)", ""),
            Change("the step wake", "wake(cycle)", ""),
        ],
    },
    "scheduler.policy.plan_cache": {
        "keep_in_mind": [
            Change(
                "a plan is not kept beyond what falls due", "inf if outcome.wake_at is None else outcome.wake_at", "inf"
            ),
            Change(
                "a plan is not kept beyond the next one whom the starvation guard protects",
                "min([falls_due, *_list_protections(view, rules, now)])",
                "falls_due",
            ),
        ],
    },
}
