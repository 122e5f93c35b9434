"""Changes of the rules that order the queue, protect long waiters and place reservations."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_PLACEMENT: Final[Changes] = {
    "scheduler.policy.queueing.order": {
        "_priority": [
            Change("higher priorities first", "-reservation.priority", "reservation.priority"),
        ],
        "_rank_by_present_size.rank": [
            Change(
                "dynsize: who has come to 0 is ranked by age, not by how long it is past that",
                (
                    "if decay and cycle.is_due(begun + size / decay):\n"
                    "    return 0.0\n"
                    "return max(LEAST_SIZE, size - decay * (cycle.now - begun))"
                ),
                (
                    "if decay and cycle.is_due(begun + size / decay):\n"
                    "    pass\n"
                    "return size - decay * (cycle.now - begun)"
                ),
            ),
        ],
        "_find_first_size": [
            Change("dynsize: all instances of a component count", "each.count", "1"),
        ],
    },
    "scheduler.policy.queueing.starvation_guard": {
        "StarvationGuard.protect": [
            Change(
                "no longer guard than it is due",
                "self._cycle.now - reservation.created_at <= limit",
                "self._cycle.now - reservation.created_at < limit",
            ),
            Change(
                "one that has room on its way is protected whatever holds launches back",
                "is_covered or not self._waits_otherwise(demand)",
                "not self._waits_otherwise(demand)",
            ),
        ],
        "StarvationGuard.is_done_with": [
            Change(
                "who has waited for too long is protected, though a younger one like it was not",
                "is_young or _kind_of(demand) in self._looked_after",
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
            Change("what one instance takes may be what another lacks", "len(demand.alike) > 1", "False"),
        ],
    },
    "scheduler.policy.placement.place": {
        "_block": [
            Change("without backfill the first that waits ends the placing", "blocked[demand.queue] = is_gang", ""),
        ],
        "_is_alone": [
            Change(
                "only those who have their pools for themselves are placed in one go",
                "all((uses[name] == 1 for name in demand.pools))",
                "True",
            ),
        ],
        "_add_late_ones": [
            Change(
                "a replacement is launched while the holder has its grace",
                "_cover_returning(cycle, search)",
                "list[Reservation]()",
            ),
        ],
        "_Search.__init__": [
            Change(
                "the guard does not go on knowing of a shortage that elastic instances have ended",
                "(self._without_room, self._without_cover, self.hopeless, self._few_ready, self._few, few_kept)",
                "(self._without_room, self._without_cover, self.hopeless, self._few_ready, self._few)",
            ),
        ],
        "_serve": [
            Change(
                "without backfill those behind a gang keep no room from it",
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
        "CandidateQueue._rank": [
            Change("pack: the fullest first", "-leases", "leases"),
            Change(
                "spread: the emptiest first",
                "leases if self.spreads else -leases",
                "-leases if self.spreads else -leases",
            ),
        ],
        "RemainingCapacity.can_give": [
            Change(
                "no lease is given beyond those allowed on a slot", "self.most - self.load", "self.most - self.load + 1"
            ),
        ],
        "RemainingCapacities.find_after": [
            Change("no more leases on a machine than `max_uses`", "before.uses_left - 1", "before.uses_left"),
        ],
    },
    "scheduler.policy.capacity.gang": {
        "_take": [
            Change(
                "a gang of different sizes has launched what it takes once all is ready",
                "len(demand.alike) > 1",
                "len(demand.alike) > 9",
            ),
        ],
        "Shortage.note": [
            Change(
                "what one who declined slots did not find says nothing of others",
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
                "nobody else gets a claimed place before its time",
                "all((_has_room(each, reservation) for each in slot_infos))",
                "True",
            ),
        ],
    },
    "scheduler.policy.placement.cpu_bursting": {
        "find_spare": [
            Change(
                "a slot that is smaller than its leases takes nothing from them",
                "left > 0 and rules.settings_of(slot.pool, None).share_cores",
                "rules.settings_of(slot.pool, None).share_cores",
            ),
            Change("spare cores are divided among the leases", "left / len(owns)", "left"),
            Change(
                "what nobody shares stays unshared",
                "rules.settings_of(slot.pool, None).share_cores",
                "rules.settings_of(slot.pool, None).queue != ''",
            ),
        ],
        "_list_changes": [
            Change(
                "who only claims a place has no part yet",
                "lease.state != 'claimed' and owner not in moves.gone and ((owner, component) not in moves.parted)",
                "owner not in moves.gone and (owner, component) not in moves.parted",
            ),
            Change(
                "who goes in this tick counts no more",
                "lease.state != 'claimed' and owner not in moves.gone and ((owner, component) not in moves.parted)",
                "lease.state != 'claimed' and (owner, component) not in moves.parted",
            ),
            Change(
                "a single instance that goes leaves its part",
                "lease.state != 'claimed' and owner not in moves.gone and ((owner, component) not in moves.parted)",
                "lease.state != 'claimed' and owner not in moves.gone",
            ),
        ],
        "share": [
            Change("who comes in this tick counts", "moves.list_left(cycle).union(arrivals)", "moves.list_left(cycle)"),
        ],
    },
}
