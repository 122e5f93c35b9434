"""Changes of the rules that launch machines and let them go."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_SCALING: Final[Changes] = {
    "scheduler.policy.limits": {
        "Limits._is_full": [
            Change("no more active slots than `max_slots`", "self._count(pools) >= most", "self._count(pools) > most"),
        ],
        "Limits._list_bounds": [
            Change(
                "no more active slots over all pools",
                (
                    "if rules.scheduler.max_slots:\n"
                    "    yield (rules.scheduler.max_slots, tuple({**self._active, **self._strangers}))"
                ),
                ("if False:\n    yield (rules.scheduler.max_slots, tuple({**self._active, **self._strangers}))"),
            ),
        ],
        "Limits.__init__": [
            Change("the first empty slot first", "reversed(places)", "places"),
        ],
        "Limits._find_code_behind": [
            Change("behind a protected gang nothing is launched that could serve it", "code is None", "code"),
        ],
        "Limits.is_probing": [
            Change(
                "the first launch after a quota hold goes alone",
                "self.may_probe(name, market) and self._is_probed(name, market)",
                "False",
            ),
        ],
        "Limits._is_quota_over": [
            Change(
                "a quota hold ends with fewer active slots",
                "self._active_at_first[name] < hold.active",
                "self._active_at_first[name] > hold.active",
            ),
        ],
        "Limits._count_strangers": [
            Change(
                "machines that no slot knows count towards max_slots",
                "0 if hold is None or self._draft.is_due(hold.until) else hold.active",
                "0",
            ),
        ],
        "Limits._is_unhealthy": [
            Change(
                "after boots that failed in a row one machine is tried alone",
                "any((place.is_coming for place in self._draft.pools[name]))",
                "False",
            ),
            Change(
                "the boot that makes it enough holds its pool at once",
                "(hold.streak if hold else 0) + len(failed_now)",
                "hold.streak if hold else 0",
            ),
        ],
        "Limits.choose_code": [
            Change("cordoned slots with room are the reason, not max_slots", "code == 'at_max_slots'", "not code"),
        ],
    },
    "scheduler.policy.launch": {
        "_launch_for": [
            Change("what cannot be launched whole launches nothing", "attempt.undo()", ""),
        ],
        "launch_for_elastic": [
            Change("what is on its way is set against elastic instances first", "there", "[]"),
            Change(
                "elastic instances of who waits launch only where machines are all that he waits for",
                "waits is not None and waits[0] != 'booting'",
                "False",
            ),
        ],
    },
    "scheduler.policy.offerings": {
        "list_eligible": [
            Change("the price factor is inclusive", "choice.price <= most", "choice.price < most"),
        ],
        "Choice.rank": [
            Change("at the same price more memory first", "-held.get('memory_mib', 0)", "held.get('memory_mib', 0)"),
        ],
    },
    "scheduler.policy.attempt": {
        "Attempt.find_code": [
            Change(
                "for a gang of which a part could be launched max_slots is the reason",
                "self.held if self.launched else self.limits.choose_code(self.demand, self.held)",
                "self.limits.choose_code(self.demand, self.held)",
            ),
        ],
    },
    "scheduler.policy.keep": {
        "count_reserve": [
            Change(
                "the reserve is what nobody waits for",
                "place.is_serving and place.is_coming and (not place.wanted)",
                "place.is_serving and place.is_coming",
            ),
        ],
        "keep": [
            Change(
                "no more than the minimum",
                "pool.min_slots - count_serving(places)",
                "pool.min_slots + 1 - count_serving(places)",
            ),
        ],
    },
    "scheduler.policy.shrink": {
        "_longest_first": [
            Change("longest idle first", "place.idle_since", "0.0"),
        ],
        "shrink": [
            Change(
                "never below the warm target",
                "min(count_serving(places) - pool.min_slots, count_reserve(places) - pool.target_warm_slots)",
                "count_serving(places) - pool.min_slots",
            ),
        ],
    },
    "scheduler.policy.release": {
        "_count_room": [
            Change("nothing goes for what would lack room all the same", "limits.count_left(name) + goes", "1 << 32"),
        ],
        "_list_unneeded": [
            Change("those in flight go before ready ones", "not place.is_coming", "place.is_coming"),
        ],
        "release": [
            Change(
                "what drains already counts as room being made",
                "sum((place.state in {'draining', 'terminating'} for place in places))",
                "0",
            ),
        ],
    },
}
