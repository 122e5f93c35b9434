"""Drawn mutants that no test can notice, each with the reason why nothing changes. See `tests.mutations.draw`."""

from typing import Final

from tests.mutations.mutant import Change, Changes

EXPLAINED: Final[Changes] = {
    "scheduler.policy.capacity.fits": {
        "fits": [
            Change(
                "SLACK only excludes rounding errors, and no amount exceeds another one by exactly as much",
                "amount > free.get(name, 0) + SLACK",
                "amount >= free.get(name, 0) + SLACK",
            ),
        ],
    },
    "scheduler.policy.cycle.queue": {
        "_find_place": [
            Change(
                "the number only decides for how many rows a key is computed",
                "2 * step",
                "2 // step",
            ),
        ],
    },
    "scheduler.policy.scaling.launch_limits": {
        "SlotBounds.may_grow": [
            Change(
                "True only means that the warm pools are filled, which launches or starts nothing then",
                "has_tier and bool(self._pools[name].startable)",
                "has_tier or bool(self._pools[name].startable)",
            ),
        ],
    },
    "scheduler.policy.scaling.replacement": {
        "list_replaceable": [
            Change(
                "without keys of `replacement`, which a static pool cannot have, no slot is due",
                "pool.is_elastic and pool.replacement.is_on",
                "pool.is_elastic or pool.replacement.is_on",
            ),
        ],
    },
    "scheduler.policy.capacity.gang": {
        "_IndexSpace._settle_together": [
            Change(
                "both lists have one entry for each slot on which instances were placed",
                "zip(taken, spent, strict=True)",
                "zip(taken, spent, strict=False)",
            ),
        ],
        "_find_best_in": [
            Change(
                "it names the index of a slot that the extender adds: the slot's class notes what is taken, and the "
                "right index reads it with the addition before its next search",
                "(slot_index[-1], None)",
                "(slot_index[-2], None)",
            ),
        ],
    },
    "scheduler.foresight.forecaster": {
        "ArrivalRecord.forget_old": [
            Change(
                "no play repeats what is forgotten",
                "gone > len(self._times) // 2",
                "gone >= len(self._times) // 2",
            ),
        ],
    },
    "scheduler.foresight.margins": {
        "Margins.note": [
            Change(
                "there are three ends",
                "zip(self._ends, waits, given.ends, strict=True)",
                "zip(self._ends, waits, given.ends, strict=False)",
            ),
        ],
    },
    "scheduler.foresight.play": {
        "": [
            Change("a bound of the time that one play takes", "40", "41"),
        ],
        "Play.run": [
            Change("the time is the same", "self._coming[0][0] < at", "self._coming[0][0] <= at"),
        ],
    },
    "scheduler.foresight.present": {
        "Room._count_on": [
            Change(
                "both vectors are of one group", "zip(left, amounts, strict=True)", "zip(left, amounts, strict=False)"
            ),
        ],
    },
    "scheduler.model.run_times": {
        "Estimates.find_run_time": [
            Change("equal times are one time", "stated * ratio < found", "stated * ratio <= found"),
        ],
        "RunTimes": [
            Change("only Python's garbage collector looks at more objects", "False", "True"),
        ],
    },
    "scheduler.operations.foresight": {
        "_load_ended": [
            Change("one more question asks for no rows", "len(found) < most", "len(found) <= most"),
        ],
    },
    "scheduler.operations.run_times": {
        "": [
            Change("a batch may have any size", "500", "501"),
            Change("only a bound of the space that the classes take", "100000", "100001"),
        ],
    },
    "scheduler.policy.capacity.slot_index": {
        "CandidateQueue.catch_up": [
            Change(
                "with as many changes as slots the queue is filled again, and has the same slots",
                "len(each.changed) - self.read[each] > len(each.slot_infos)",
                "len(each.changed) - self.read[each] >= len(each.slot_infos)",
            ),
        ],
        "CandidateQueue.open": [
            Change(
                "the flag only saves filtering the slots again, which finds the same slots",
                "slot_class.has_removed = False",
                "slot_class.has_removed = True",
            ),
        ],
        "SlotIndex.take_often": [
            Change(
                "the queue reads the change before its next search instead, and finds the same slot",
                "queues[0].read_at == self.changes",
                "queues[0].read_at != self.changes",
            ),
        ],
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
    "scheduler.policy.elastic.assignment": {
        "RatedSlots.starts_before": [
            Change(
                "no key is equal to a position that a search has reached: its third number is 0 or less, and not 1",
                "self._heap[0][0] < key",
                "self._heap[0][0] <= key",
            ),
        ],
        "_may_exceed": [
            Change(
                "True only means that the exact rule is applied afterwards",
                "opened is None or is_changed or slot_info.leases is not opened.slot_info.leases",
                "opened is not None or is_changed or slot_info.leases is not opened.slot_info.leases",
            ),
            Change(
                "True only means that the exact rule is applied afterwards",
                "opened is None or slot_info.given or slot_info.lifted",
                "opened is not None or slot_info.given or slot_info.lifted",
            ),
        ],
    },
    "scheduler.policy.elastic.victim_search": {
        "_ClassHeadroom.move": [
            Change(
                "on slots without a place for a further lease no instance is counted",
                "after[0] > 0",
                "after[0] >= 0",
            ),
        ],
        "_find_headroom": [
            Change(
                "the bound may be too high: a search applies the exact rule afterwards",
                "slot_info.pool.lease_limit - slot_info.load",
                "slot_info.pool.lease_limit + slot_info.load",
            ),
        ],
        "RelaxedCapacity.count_fits": [
            Change(
                "a number above `most` is only compared with `most`",
                "_count_fits(headroom, need.given[slot_info.slot.pool], most - found)",
                "_count_fits(headroom, need.given[slot_info.slot.pool], most + found)",
            ),
        ],
        "RelaxedCapacity.take": [
            Change("there is one slot for each request", "True", "False"),
        ],
        "_Candidates._walk": [
            Change(
                "the caller goes on after each group until a slot is found, and examines the same slots",
                "not to_the_end and self._slots.starts_before(self._reached)",
                "not to_the_end or self._slots.starts_before(self._reached)",
            ),
        ],
        "_Candidates.find": [
            Change(
                "the loop below examines the same slots, one group after the other",
                "self._walk(bound, to_the_end=True)",
                "",
            ),
        ],
        "": [
            Change(
                "every turn is greater than either value, because no rank is as small",
                "(-(1 << 62), 0, 0, 0)",
                "(-(1 << 62), 0, 0, 1)",
            ),
        ],
    },
    "scheduler.policy.elastic.cascade": {
        "Cascade._try": [
            Change(
                "MORE only excludes rounding errors, and no change of the utilisation is exactly as large",
                "assignment.use <= use + MORE",
                "assignment.use < use + MORE",
            ),
        ],
        "Cascade._fill_group": [
            Change(
                "later groups of the request class are tried too, and find no slot either",
                "if not (group.lifted or self._assignment.could_place(group.need) or self._find_victims(group)):\n"
                "    return False",
                "if not (group.lifted or self._assignment.could_place(group.need) or self._find_victims(group)):\n"
                "    return True",
            ),
        ],
    },
    "scheduler.policy.lifecycle.heal": {
        "requeue_unconfirmed": [
            Change("the end of the leases notes the same slots", "cycle.note_restless(slot_info)", ""),
        ],
    },
    "scheduler.policy.placement.place": {
        "_Search.cover": [
            Change(
                "relaxed capacity that is too high only leads to a search, which applies the exact rule",
                "self._elastic.spend(demand, slot_infos)",
                "",
            ),
        ],
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
        "RunningUse.__init__": [
            Change("the first `follow` reads all slots", "0", "1"),
        ],
        "_Tally.sum_used": [
            Change("in no time a lease uses nothing", "now > self.since", "now >= self.since"),
        ],
        "settle": [
            Change("in no time a lease costs nothing", "now <= lease.charged_at", "now < lease.charged_at"),
        ],
        "_earn": [
            Change(
                "a balance at the cap stays there either way: rates are never negative", "paid < cap", "paid <= cap"
            ),
        ],
    },
    "scheduler.policy.quota.preempt": {
        "choose_victims": [
            Change(
                "on a slot with up to 2,000 leases this line is reached after no single victim made room",
                "len(chosen) > 1",
                "len(chosen) >= 1",
            ),
        ],
        "find_movable": [
            Change(
                "without work the amount is not read",
                "if not (running.has_work(name, level) if is_overdrawn else running.has_worse(name, level)):\n"
                "    return ([], 0.0)",
                "if not (running.has_work(name, level) if is_overdrawn else running.has_worse(name, level)):\n"
                "    return ([], 1.0)",
            ),
            Change(
                "a balance of exactly OVERDRAWN is within the bounds, so this line is not reached",
                "balance < OVERDRAWN",
                "balance <= OVERDRAWN",
            ),
            Change(
                "a balance of exactly SAVED is within the bounds, so this line is not reached",
                "balance > SAVED",
                "balance >= SAVED",
            ),
        ],
        "_Preemption._is_out": [
            Change(
                "a group without an account gets no victims, and the least cost is set before each search",
                "True",
                "False",
            ),
            Change(
                "victims cost at least the least cost, so a balance of exactly that pays for none",
                "self._left[group.account.id] <= self._least",
                "self._left[group.account.id] < self._least",
            ),
        ],
        "_sort": [
            Change("a list of one entry is sorted already", "len(victims) > 1", "len(victims) >= 1"),
        ],
        "_list_victims": [
            Change("the only lease of a reservation is essential", "len(run.leases) > 1", "len(run.leases) >= 1"),
        ],
    },
    "scheduler.policy.quota.reclaim": {
        "_could_fit": [
            Change("True only means that the exact rule is applied afterwards", "amount > 0", "amount > 1"),
        ],
        "_Reclaimable._find_most": [
            Change(
                "what a trial lifts in vain from a slot that is not above its limit is put back",
                "measure(slot_info.leases.values()).count > limit - slot_info.given",
                "measure(slot_info.leases.values()).count >= limit - slot_info.given",
            ),
        ],
    },
    "scheduler.policy.quota.run": {
        "QuotaRun.drop_full": [
            Change("the flag only saves filtering the idle slots again, which finds the same slots", "False", "True"),
        ],
    },
    "scheduler.policy.scaling.launch": {
        "_refuse_demands": [
            Change("no reservation is left behind the last one", "False", "True"),
        ],
        "_Refused.still_holds": [
            Change(
                "the launch is tried again and refused again: in its pools nothing was launched meanwhile",
                "self.launches = limits.launches\nreturn True",
                "self.launches = limits.launches\nreturn False",
            ),
        ],
    },
    "scheduler.policy.scaling.offerings": {
        "list_eligible": [
            Change("without choices no price is compared with this number", "0.0", "1.0"),
        ],
    },
    "scheduler.policy.lifecycle.timers": {
        "OldestHeartbeats.__init__": [
            Change("the first `follow` knows no heartbeats, and so reads no changes", "0", "1"),
        ],
    },
    "scheduler.policy.placement.cpu_bursting": {
        "share": [
            Change(
                "without shared cores, and without cpus, the limits are computed and none changes",
                "rules.has_shared_cores and _have_cpus(cycle.slot_infos.values())",
                "rules.has_shared_cores or _have_cpus(cycle.slot_infos.values())",
            ),
            Change("nothing is placed on a slot without a row", "(0.0, None)", "(1.0, None)"),
        ],
        "is_same": [
            Change(
                "SLACK only excludes rounding errors, and no change of a limit is exactly as large",
                "abs(cores - other) <= SLACK",
                "abs(cores - other) < SLACK",
            ),
        ],
    },
    "scheduler.policy.queueing.starvation_guard": {
        "Lender.may_lend": [
            Change(
                "the table only spares searches that find nothing: `lend` finds no room for the demand, either",
                "self.refused.add(demand)\nreturn False",
                "self.refused.add(demand)\nreturn True",
            ),
            Change(
                "the table only spares searches that find nothing",
                "self.refused.add(demand)",
                "",
            ),
        ],
        "Lender.add": [
            Change(
                "the planned slots were among the ready ones before, where the demand found no room",
                "self.unlent.clear()",
                "",
            ),
            Change(
                "a copy without a free place holds nothing",
                "slot_info.pool.lease_limit > each.load",
                "slot_info.pool.lease_limit >= each.load",
            ),
            Change(
                "the planned slots were among the ready ones before, where the demand fitted neither",
                "self.refused.clear()",
                "",
            ),
        ],
        "Lender.lend": [
            Change(
                "between two calls room is only taken, so a search with the same end finds none, either",
                "end >= refused",
                "end > refused",
            ),
        ],
        "_limit": [
            Change(
                "the planned slot itself has as few uses left, and `may_lend` examines it before its copy",
                "real.redeemed + real.given",
                "real.redeemed - real.given",
            ),
        ],
        "_find_free": [
            Change(
                "a slot has free amounts exactly if it has a capacity",
                "free is None or capacity is None",
                "free is None and capacity is None",
            ),
        ],
        "StarvationGuard._plan_start": [
            Change(
                "a reservation that could start now has been placed before, so no planned start is the present time",
                "start.time <= now",
                "start.time < now",
            ),
        ],
        "StarvationGuard._keep": [
            Change(
                "the kept slots were among the ready ones before, where the demand did not fit",
                "self._kept_out.clear()",
                "",
            ),
        ],
        "StarvationGuard._keep_slots": [
            Change(
                "kept slots are not in the ready index any more, so that a second search finds none",
                "self._kept_for.update((need.likeness for need in needs))",
                "",
            ),
        ],
    },
    "scheduler.policy.quota.group_table": {
        "_list_groups": [
            Change(
                "the groups that are left out fit on no slot, even empty, so no step places one of them",
                "not waiters",
                "waiters",
            ),
        ],
    },
    "scheduler.policy.quota.match_idle": {
        "_Matching._find_all": [
            Change(
                "a group for which the later instances find no slot is tried on more slots, and fits on none of them",
                "group.demand.needs[1:]",
                "group.demand.needs[2:]",
            ),
        ],
    },
    "scheduler.policy.quota.running": {
        "RunningIndex._read_changes": [
            Change(
                "the work on slots that did not change is computed again, with the same result",
                "self._revision or 0",
                "self._revision and 0",
            ),
        ],
        "RunningIndex.__init__": [
            Change("no work has a level beyond the free one", "1", "2"),
            Change(
                "`begin` sets the level to 0 before it is compared", "self._worst_begun = 0", "self._worst_begun = 1"
            ),
            Change("the numbers of new work are only compared with each other", "self._added = 0", "self._added = 1"),
        ],
        "RunningWork": [
            Change("only the text of the object for people differs", "field(repr=False)", "field(repr=True)"),
        ],
    },
    "scheduler.policy.quota.step": {
        "_make_terms": [
            Change("both accounts that are compared get the same number", "0", "1"),
            Change(
                "both accounts that are compared get the same time",
                "return msgspec.structs.replace(account, version=0, marked_at=0.0, balance=NOTHING, charged_at=0.0, "
                "due=NOTHING)",
                "return msgspec.structs.replace(account, version=0, marked_at=1.0, balance=NOTHING, charged_at=0.0, "
                "due=NOTHING)",
            ),
            Change(
                "both accounts that are compared get the same time",
                "return msgspec.structs.replace(account, version=0, marked_at=0.0, balance=NOTHING, charged_at=0.0, "
                "due=NOTHING)",
                "return msgspec.structs.replace(account, version=0, marked_at=0.0, balance=NOTHING, charged_at=1.0, "
                "due=NOTHING)",
            ),
        ],
    },
    "scheduler.policy.replan.kept_cycle": {
        "_Section.make_block": [
            Change(
                "the bytes state that each reservation stays, as their absence does",
                "self.count < len(self.keys)",
                "self.count <= len(self.keys)",
            ),
        ],
        "KeyHeap.push_all": [
            Change(
                "the number only decides how often outdated keys are removed",
                "2 * len(self._present) + MOST_STALE",
                "2 * len(self._present) - MOST_STALE",
            ),
            Change("the number only decides how often outdated keys are removed", "2", "3"),
        ],
        "KeptCycle._check_protection": [
            Change(
                "at this very time a full cycle makes the plan, and makes the same one",
                "self.cycle.now > self.next_protection",
                "self.cycle.now >= self.next_protection",
            ),
        ],
        "KeptCycle._open_queue": [
            Change(
                "both lists have one entry for each waiting reservation",
                "zip(keys, demands, strict=True)",
                "zip(keys, demands, strict=False)",
            ),
        ],
        "KeptCycle.tidy": [
            Change(
                "the number only decides how often the slot index is made again",
                "CHANGES_A_SLOT * len(self.cycle.slot_infos)",
                "CHANGES_A_SLOT // len(self.cycle.slot_infos)",
            ),
        ],
        "": [
            Change(
                "the number only decides how often the slot index is made again",
                "MOST_CHANGES: Final = 1000",
                "MOST_CHANGES: Final = 1001",
            ),
        ],
        "KeptCycle._open_indexes": [
            Change(
                "the queue of candidates that is not made here is made by the first search that reads it",
                "self._by_quota is None",
                "self._by_quota is not None",
            ),
        ],
    },
    "scheduler.policy.scaling.headroom": {
        "_imagine_launches": [
            Change("imagined slots keep their order among each other, behind all slots", "1", "2"),
        ],
        "_could_matter": [
            Change(
                "a pool at `max_slots` without unneeded slots launches and ends nothing, whatever is counted for it",
                "limits.bounds.count_left(slot_infos[0].slot.pool) > 0",
                "limits.bounds.count_left(slot_infos[0].slot.pool) >= 0",
            ),
        ],
    },
    "scheduler.policy.queueing.feasibility": {
        "list_kinds": [
            Change("equal kinds are yielded more than once, and give the same answer", "known.add(kind)", ""),
        ],
    },
    "scheduler.policy.plan_cache": {
        "PlanCache.__init__": [
            Change(
                "the first `follow` sets the number before it is read",
                "self._revision = 0",
                "self._revision = 1",
            ),
        ],
        "list_touched": [
            Change(
                "slots that changed at `since` are examined again, with the same result",
                "revision <= since",
                "revision < since",
            ),
        ],
    },
    "tasks.foresight": {
        "Publisher.publish.has_time": [
            Change(
                "no measured time is exactly as long",
                "time.thread_time() - began < self._allowed",
                "time.thread_time() - began <= self._allowed",
            ),
        ],
    },
}
