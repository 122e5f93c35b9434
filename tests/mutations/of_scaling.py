"""Changes of the rules that launch and drain machines."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_SCALING: Final[Changes] = {
    "scheduler.policy.scaling.launch_limits": {
        "LaunchLimits._is_full": [
            Change("no more active slots than `max_slots`", "self._count(pools) >= most", "self._count(pools) > most"),
        ],
        "LaunchLimits._list_bounds": [
            Change(
                "no more active slots over all pools",
                (
                    "if rules.scheduler.max_slots:\n"
                    "    yield (rules.scheduler.max_slots, tuple({**rules.pools, **self._strangers}))"
                ),
                ("if False:\n    yield (rules.scheduler.max_slots, tuple({**rules.pools, **self._strangers}))"),
            ),
        ],
        "LaunchLimits._find_code_behind": [
            Change("behind a protected gang nothing is launched that could serve it", "code is None", "code"),
        ],
        "LaunchLimits._list_launchable": [
            Change(
                "on-demand serves what no spot offering could ever hold",
                "need.could_hold(name, each.capacity, each.labels)",
                "True",
            ),
        ],
        "LaunchLimits._decide": [
            Change(
                "each launch of a cycle counts for the market of the next one",
                "self.imagine(name, choice.market, 1)",
                "",
            ),
        ],
        "LaunchLimits.undo": [
            Change("what is not started is stopped as before", "'stopped'", "'empty'"),
            Change("an undone launch does not count for the mix", "self.imagine(name, slot_info.market, -1)", ""),
        ],
        "LaunchLimits._count_strangers": [
            Change(
                "machines that no slot knows count towards max_slots",
                "hold.active if hold is not None and self.refusals.goes_on(hold.until) else 0",
                "0",
            ),
        ],
        "LaunchLimits._is_unhealthy": [
            Change(
                "after boots that failed in a row one machine is tried alone",
                "any((slot_info.is_coming for slot_info in self._cycle.pools[name]))",
                "False",
            ),
            Change(
                "the failed boot that reaches unhealthy_after pauses its pool at once",
                "(hold.streak if hold else 0) + len(failed_now)",
                "hold.streak if hold else 0",
            ),
        ],
        "LaunchLimits.choose_code": [
            Change("cordoned slots with capacity are the reason, not max_slots", "code != 'at_max_slots'", "code"),
        ],
        "LaunchLimits.has_cordoned_room": [
            Change("a cordoned slot that was declined has no capacity", "p.slot.id not in demand.declined", "True"),
        ],
        "LaunchLimits._find_start_code": [
            Change(
                "a slot that is too small is not started",
                "need is not None and (not need.could_hold(name, choice.capacity, choice.labels))",
                "False",
            ),
            Change("a start needs EC2's quota", "self.refusals.find_quota(name, choice) is not None", "False"),
        ],
    },
    "scheduler.policy.scaling.launch_refusals": {
        "LaunchRefusals.is_probing": [
            Change(
                "the first launch after a quota back-off goes alone",
                "any((self._is_under_way(name, hold) for hold in over))",
                "False",
            ),
        ],
        "LaunchRefusals._is_quota_over": [
            Change(
                "a quota hold ends with fewer active slots",
                "there.active - there.launches < hold.active",
                "there.active - there.launches > hold.active",
            ),
        ],
        "LaunchRefusals._is_under_way": [
            Change(
                "the trial of one quota class does not delay another class",
                "is_limited_by(subject, hold.subject)",
                "True",
            ),
        ],
        "LaunchRefusals.find_code": [
            Change(
                "the missing permission for one market stops only this market",
                "('*', choice.market)",
                "('*', 'spot')",
            ),
        ],
        "LaunchRefusals.note_launch": [
            Change(
                "the trial of this cycle counts",
                "self._launched[name, quota_subject(self._cycle.rules.pools[name], key, market)] += count",
                "",
            ),
        ],
    },
    "scheduler.policy.scaling.offerings": {
        "PoolLaunches.empty": [
            Change(
                "the first empty slot first", "reversed(self._cycle.pools[self._name])", "self._cycle.pools[self._name]"
            ),
        ],
        "PoolLaunches.startable": [
            Change("the cheapest stopped slot first", "each.slot.price or 0.0", "0.0"),
        ],
        "is_in_tier": [
            Change(
                "a slot is not started before its stop is confirmed", "is_settled_stop(slot, slot_info.pool)", "True"
            ),
        ],
        "list_resized": [
            Change("a slot is resized only if its pool permits it", "not pool.resize_stopped", "False"),
        ],
        "list_eligible": [
            Change("the price factor is inclusive", "1 + SLACK", "1 - SLACK"),
            Change("a price at the factor is not lost by rounding", "1 + SLACK", "1"),
        ],
        "find_end": [
            Change(
                "spot is tried again only after spot_again_after since the last refusal",
                "hold.kind in {'capacity', 'auth'} and market == 'spot' and (0 < pool.on_demand_after <= hold.streak)",
                "False",
            ),
        ],
        "list_fallback": [
            Change(
                "spot's turn without an offering for sale goes to on-demand",
                "spot or turn == 'spot'",
                "spot",
            ),
        ],
        "Choice.rank": [
            Change("at the same price more memory first", "-held.get('memory_mib', 0)", "held.get('memory_mib', 0)"),
        ],
    },
    "scheduler.policy.scaling.market_mix": {
        "find_turn": [
            Change("the base counts the slot that is launched", "mix.slots + 1", "mix.slots"),
            Change("the share is of the slots above the base", "number - rules.on_demand_base", "number"),
            Change(
                "the share is rounded up to whole slots",
                "ceil(round(above * (share or 0.0), _DIGITS))",
                "int(round(above * (share or 0.0), _DIGITS))",
            ),
        ],
        "count_mix": [
            Change("slots that leave do not count for the mix", "state in _STAYING", "state"),
        ],
    },
    "scheduler.policy.scaling.launch": {
        "_launch_for_elastic": [
            Change("what is in flight is set against elastic instances first", "there", "[]"),
            Change(
                "elastic instances of a pending reservation launch only if it waits for slots in flight alone",
                "waits is not None and waits[0] != 'booting'",
                "False",
            ),
        ],
        "TrialLaunch.find_code": [
            Change(
                "for a gang of which a part could be launched max_slots is the reason",
                "self.held if self.first is not None else self.limits.choose_code(self.demand, self.held)",
                "self.limits.choose_code(self.demand, self.held)",
            ),
        ],
    },
    "scheduler.policy.scaling.pool_size": {
        "count_reserve": [
            Change(
                "the reserve contains only slots that no reservation waits for",
                "slot_info.is_serving and slot_info.is_coming and (not slot_info.wanted)",
                "slot_info.is_serving and slot_info.is_coming",
            ),
        ],
        "fill_warm_pools": [
            Change(
                "no more than the minimum",
                "pool.min_slots - count_serving(cycle.pools[name])",
                "pool.min_slots + 1 - count_serving(cycle.pools[name])",
            ),
            Change(
                "the minimum of every pool goes before the reserve of any",
                "if pool.min_slots:\n"
                "    _launch(limits, name, 'minimum', pool.min_slots - count_serving(cycle.pools[name]))",
                "_launch(limits, name, 'minimum', pool.min_slots - count_serving(cycle.pools[name]))\n"
                "_launch(limits, name, 'warm', pool.target_warm_slots - count_reserve(cycle.pools[name]))",
            ),
        ],
        "_list_idle": [
            Change(
                "a slot that a gang at a quota needs does not end as idle",
                "limits.refusals.is_at_quota(each.slot)",
                "False",
            ),
            Change("other slots at a quota end as idle", "each.slot.id in headroom.spared", "True"),
        ],
        "scale_in": [
            Change("longest idle first", "(slot_info.idle_since, slot_info.order)", "(0.0, slot_info.order)"),
        ],
        "count_spare": [
            Change(
                "never below the warm target",
                "min(count_serving(slot_infos) - pool.min_slots, count_reserve(slot_infos) - pool.target_warm_slots)",
                "count_serving(slot_infos) - pool.min_slots",
            ),
        ],
        "keep_tiers": [
            Change("cordoned slots do not count", "not each.slot.cordoned", "True"),
            Change("slots that are to be stopped do not drain", "min(lacking, stoppable)", "0"),
            Change(
                "withheld launches go first",
                "name not in headroom.closed and (not headroom.beyond.get(name))",
                "True",
            ),
        ],
        "_end_surplus": [
            Change("the dearest stopped slot goes first", "-each.price", "each.price"),
        ],
        "_stop_surplus": [
            Change("the longest idle slot is stopped first", "(each.idle_since, each.order)", "(0.0, each.order)"),
            Change("no stop below the minimum", "min(lacking, count_spare(slot_infos, pool))", "lacking"),
        ],
        "may_be_stopped": [
            Change("a spot machine is never stopped", "slot_info.market != 'on-demand'", "False"),
            Change("a machine that will be too old causes a tick", "cycle.timers.add(end)", ""),
        ],
        "_launch_for_tier": [
            Change("slots in flight or idle count before machines are launched", "min(stoppable, spare)", "0"),
        ],
    },
    "scheduler.policy.scaling.headroom": {
        "_ImaginedLaunches._list_possible": [
            Change(
                "no slot goes for a launch that the starvation guard prevents",
                "could_serve(name, choice, self.awaited)",
                "False",
            ),
        ],
        "_ImaginedLaunches.could_be_made": [
            Change(
                "a slot that the gang would use does not go for it",
                "count + stay[name]",
                "count",
            ),
        ],
        "_ImaginedLaunches._are_affordable": [
            Change(
                "no slot goes for a launch that a budget then withholds",
                "self.limits.budgets.allow_all(self.costs, list_ending)",
                "True",
            ),
        ],
        "_count_useful_launches": [
            Change(
                "no slot drains for a launch that would lack capacity all the same",
                "limits.count_left(name) + goes",
                "1 << 32",
            ),
        ],
        "_choose_ending": [
            Change("slots in flight go before ready ones", "not each.is_coming", "each.is_coming"),
            Change(
                "what drains already counts as room being made",
                "filter(_is_leaving, slot_infos)",
                "()",
            ),
        ],
        "_Lacking.take": [
            Change("only slots that use the quota end for it", "not own or is_limited_by(own, limit)", "True"),
            Change(
                "a slot without an offering may use the quota",
                "not own or is_limited_by(own, limit)",
                "is_limited_by(own, limit)",
            ),
        ],
    },
}
