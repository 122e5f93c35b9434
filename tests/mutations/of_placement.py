"""Changes of the rules that order the queue, protect reservations that wait too long, and place them."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_PLACEMENT: Final[Changes] = {
    "scheduler.policy.queueing.order": {
        "": [
            Change(
                "a reservation that returns to the queue keeps its position",
                "attrgetter('created_at', 'sequence')",
                "attrgetter('changed_at', 'sequence')",
            ),
        ],
        "_priority": [
            Change("higher priorities first", "-reservation.priority", "reservation.priority"),
        ],
        "_rank_by_present_size.rank": [
            Change(
                "dynsize: reservations of size 0 are ranked by age alone",
                "return 0.0",
                "return size - decay * (cycle.now - begun)",
            ),
        ],
        "_find_first_size": [
            Change("dynsize: all instances of a component count", "each.count", "1"),
        ],
    },
    "scheduler.policy.queueing.starvation_guard": {
        "has_waited_too_long": [
            Change(
                "the guard protects after its time, not at it",
                "now > created_at + limit",
                "now >= created_at + limit",
            ),
        ],
        "StarvationGuard.protect": [
            Change(
                "a reservation with capacity in flight is protected even if launches pause",
                "is_covered or not self._waits_otherwise(demand)",
                "not self._waits_otherwise(demand)",
            ),
        ],
        "StarvationGuard.is_done_with": [
            Change(
                "a reservation that waited too long is protected, although a younger equal one was not",
                "not is_due or _kind_of(demand) in self._looked_after",
                "True",
            ),
        ],
        "StarvationGuard._keep_slots": [
            Change(
                "only slots that could serve it are kept",
                "slot_info.slot.id not in demand.declined and _could_hold(needs, slot_info)",
                "slot_info.slot.id not in demand.declined",
            ),
            Change(
                "a slot that its holder declined is not kept for it",
                "slot_info.slot.id not in demand.declined and _could_hold(needs, slot_info)",
                "_could_hold(needs, slot_info)",
            ),
        ],
        "StarvationGuard._waits_otherwise": [
            Change("capacity that one instance takes may be what another lacks", "len(demand.alike) > 1", "False"),
        ],
    },
    "scheduler.policy.placement.place": {
        "_block": [
            Change("without backfill the first that waits ends the placing", "blocked[demand.queue] = is_gang", ""),
        ],
        "_is_alone": [
            Change(
                "only requests that share no pool are placed in one run",
                "all((uses[name] == 1 for name in demand.pools))",
                "True",
            ),
        ],
        "_add_late_ones": [
            Change(
                "a replacement is launched during the grace period of the holder",
                "_cover_returning(cycle, search)",
                "list[Reservation]()",
            ),
        ],
        "_Search.__init__": [
            Change(
                "the guard forgets a shortage that elastic instances have ended",
                "(self._without_room, self.uncovered, self.hopeless, self._few_ready, self._few, few_kept)",
                "(self._without_room, self.uncovered, self.hopeless, self._few_ready, self._few)",
            ),
        ],
        "_serve": [
            Change(
                "without backfill reservations behind a gang keep no capacity from it",
                "not is_covered and len(demand.needs) > 1",
                "False",
            ),
        ],
    },
    "scheduler.policy.capacity.fits": {
        "find_obstacle": [
            Change("a machine takes no more leases than `max_uses`", "uses < count", "False"),
            Change("what is given was free", "free is not None and not fits(request, free)", "False"),
        ],
        "Occupancy.sum": [
            Change(
                "a claim begins when the revoking leases have ended",
                "max(revoking.count, claimed.count)",
                "revoking.count + claimed.count",
            ),
            Change(
                "a new lease fits beside the revoking leases and later beside the claimed ones",
                "max(revoking.amounts.get(name, 0), claimed.amounts.get(name, 0))",
                "claimed.amounts.get(name, 0)",
            ),
        ],
    },
    "scheduler.policy.capacity.candidate_queue": {
        "RemainingCapacity.can_give": [
            Change(
                "no lease is given beyond those allowed on a slot", "self.most - self.load", "self.most - self.load + 1"
            ),
        ],
        "RemainingCapacities.find_after": [
            Change("no more leases on a machine than `max_uses`", "before.uses_left - 1", "before.uses_left"),
        ],
        "CandidateQueue._rank": [
            Change("pack: the fullest first", "-leases", "leases"),
            Change(
                "spread: the emptiest first",
                "leases if self.spreads else -leases",
                "-leases if self.spreads else -leases",
            ),
        ],
    },
    "scheduler.policy.capacity.gang": {
        "place": [
            Change(
                "if the order of writing fails, instances are placed by their shares",
                "order != sorted(order)",
                "False",
            ),
            Change(
                "a gang of eight different requests is placed by backtracking",
                "len(demand.alike) <= MOST_REQUESTS",
                "len(demand.alike) < MOST_REQUESTS",
            ),
            Change(
                "a gang of nine different requests is not placed by backtracking",
                "len(demand.alike) <= MOST_REQUESTS",
                "True",
            ),
        ],
        "_find_share": [
            Change("of equal shares, instances that fewer slots could hold come first", "count += number", "pass"),
        ],
        "_IndexSpace.undo": [
            Change("a reservation whose slots cannot all be launched launches none", "self._extender.undo()", ""),
        ],
        "_IndexSpace.settle": [
            Change(
                "for a gang of different sizes slots are launched until all instances fit once all is ready",
                "self.added and len(self._demand.alike) > 1",
                "False",
            ),
        ],
        "Shortage.note": [
            Change(
                "a shortage of a reservation with declined slots implies nothing for others",
                "not demand.declined and (len(demand.alike) == 1 or demand.needs[found] is demand.needs[0])",
                "len(demand.alike) == 1 or demand.needs[found] is demand.needs[0]",
            ),
        ],
    },
    "scheduler.policy.queueing.claims": {
        "_redeem": [
            Change(
                "min_run_time counts from the assignment, not from the claim",
                "msgspec.structs.replace(claim, state='held', assigned_at=cycle.now)",
                "msgspec.structs.replace(claim, state='held')",
            ),
        ],
        "assign_claims": [
            Change(
                "a reservation that has claimed a slot gets it",
                "hold(reservation, tuple((_redeem(cycle, lease) for lease in reservation.leases)))",
                "",
            ),
            Change(
                "no other reservation gets a claimed slot",
                "all((_has_room(each, reservation) for each in slot_infos))",
                "True",
            ),
        ],
    },
    "scheduler.policy.placement.cpu_bursting": {
        "_is_filled": [
            Change(
                "leases that had spare cores lose them when their slot is filled",
                "opened is not None and slot_info.is_plain and slot_info.leases is opened.slot_info.leases",
                "opened is not None and slot_info.leases is opened.slot_info.leases",
            ),
        ],
        "find_spare": [
            Change(
                "a slot that is smaller than its leases takes no cores from them",
                "left > 0 and rules.settings_of(slot.pool, None).share_cores",
                "rules.settings_of(slot.pool, None).share_cores",
            ),
            Change("spare cores are divided among the leases", "left / len(owns)", "left"),
            Change(
                "with share_cores off no cores are shared",
                "rules.settings_of(slot.pool, None).share_cores",
                "rules.settings_of(slot.pool, None).queue != ''",
            ),
        ],
        "_find_changes": [
            Change(
                "a claim has no part yet",
                "[key for key, lease in leases.items() if lease.state != 'claimed']",
                "list(leases)",
            ),
        ],
        "_list_staying": [
            Change(
                "a reservation that ends in this tick counts no more",
                "key[0] not in moves.gone and key not in moves.parted",
                "key not in moves.parted",
            ),
            Change(
                "a single instance that ends leaves its part",
                "key[0] not in moves.gone and key not in moves.parted",
                "key[0] not in moves.gone",
            ),
        ],
        "_decide_all": [
            Change(
                "the limits of one reservation stand in slot order",
                "len(set(numbers)) < len(numbers)",
                "False",
            ),
        ],
        "_follow": [
            Change(
                "leases on a slot that keeps capacity for a waiting reservation share its spare cores",
                "sum(map(len, leases)) - len(came) == sum(filled.values())",
                "True",
            ),
        ],
        "share": [
            Change("a lease of this tick counts", "moves.list_owns()", "{}"),
        ],
    },
}
