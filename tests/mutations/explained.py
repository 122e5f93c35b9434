"""Drawn mutants that no test can notice, each with the reason why nothing changes. See `tests.mutations.draw`."""

from typing import Final

from tests.mutations.mutant import Change, Changes

EXPLAINED: Final[Changes] = {
    "scheduler.policy.capacity.candidate_queue": {
        "CandidateQueue.open": [
            Change(
                "the flag only saves filtering the slots again, which finds the same slots",
                "slot_class.has_removed = False",
                "slot_class.has_removed = True",
            ),
        ],
    },
    "scheduler.policy.capacity.slot_index": {
        "SlotIndex._note": [
            Change(
                "the number is only compared with 0 and with the number at an earlier time",
                "self.changes += 1",
                "self.changes += 2",
            ),
        ],
        "SlotIndex.count_fits": [
            Change(
                "the sum ends one slot later: at 0 and below 0 the result is `most`",
                "left <= 0",
                "left < 0",
            ),
        ],
    },
    "scheduler.policy.elastic.cascade": {
        "Cascade._try": [
            Change(
                "MORE only excludes rounding errors, and no change of the utilisation is exactly as large",
                "assignment.use > use + MORE",
                "assignment.use >= use + MORE",
            ),
        ],
    },
    "scheduler.policy.lifecycle.heal": {
        "_end_unconfirmed": [
            Change("the end of the leases notes the same slots", "cycle.note_restless(slot_info)", ""),
        ],
    },
    "scheduler.policy.placement.place": {
        "_serve": [
            Change(
                "`_pass_over` returns None for a single instance while no queue is blocked",
                "len(demand.needs) > 1 or blocked",
                "len(demand.needs) >= 1 or blocked",
            ),
        ],
        "_Search.find_ready": [
            Change(
                "a second search for such a demand finds no slot either: capacity shrinks until `stretch` forgets",
                "self._without_room.add(demand)",
                "",
            ),
        ],
    },
    "scheduler.policy.quota.accounting": {
        "_earn": [
            Change(
                "a balance at the cap stays there either way: rates are never negative", "paid < cap", "paid <= cap"
            ),
        ],
    },
    "scheduler.policy.quota.preempt": {
        "find_movable": [
            Change(
                "a balance of exactly SAVED is within the bounds, so this line is not reached",
                "balance > SAVED",
                "balance >= SAVED",
            ),
        ],
    },
    "scheduler.policy.quota.run": {
        "QuotaRun.drop_full": [
            Change("the flag only saves filtering the idle slots again, which finds the same slots", "False", "True"),
        ],
    },
    "scheduler.policy.scaling.launch": {
        "_Refusal.still_holds": [
            Change(
                "the launch is tried again and refused again: in its pools nothing was launched meanwhile",
                "self.launches = limits.launches\nreturn True",
                "self.launches = limits.launches\nreturn False",
            ),
        ],
    },
    "scheduler.policy.scaling.launch_limits": {
        "list_eligible": [
            Change("without choices no price is compared with this number", "0.0", "1.0"),
        ],
    },
}
