"""Changes of the rules that grant and reclaim elastic instances."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_ELASTIC: Final[Changes] = {
    "scheduler.policy.elastic.cascade": {
        "Cascade.is_kept_out": [
            Change(
                "a reclaim that the starvation guard prevents is reported",
                "not self.takes_back or not demand.pools",
                "True",
            ),
        ],
        "Cascade._list_ways": [
            Change(
                "yielding: all essential instances go before elastic ones of others; flexible: only if the use grows",
                "self.settings.elastic == 'yielding'",
                "True",
            ),
            Change(
                "with preemption only instances that rank behind give back",
                "(self._ranks[reservation.id], 0)",
                "_FIRST",
            ),
        ],
        "Cascade._try": [
            Change("flexible starts a reservation if the use grows", "assignment.use <= use + MORE", "True"),
            Change("flexible: the use after the grace counts", "must_grow and self._has_grace", "False"),
            Change("a trial that fails is undone", "assignment.undo(mark)", ""),
        ],
        "Cascade.takes_back": [
            Change("malleable and rigid reclaim nothing", "self.settings.elastic in RECLAIMS", "True"),
        ],
        "Cascade._fill_group": [
            Change(
                "elastic instances that are not in the way go back to their slots",
                "self._assignment.move(elastic_instance, elastic_instance.home)",
                "pass",
            ),
            Change(
                "a cycle in the grace of revoked leases revokes no further ones for the same shortage",
                "self._assignment.expect(elastic_instance)",
                "False",
            ),
        ],
    },
    "scheduler.policy.elastic.instances": {
        "list_groups": [
            Change(
                "no instance of a component is granted in the tick that preempts one",
                "any(find_number(need.component, name) is not None for name in preempted)",
                "False",
            ),
            Change(
                "an instance that was given back without a revocation is not granted again",
                "numbers.keys() | returned",
                "numbers.keys()",
            ),
            Change(
                "a component gets no more instances than its holder wants",
                "min(count - len(excluded), most - len(numbers))",
                "count - len(excluded)",
            ),
        ],
    },
    "scheduler.policy.elastic.wanted": {
        "find_number": [
            Change("a number concerns the component with its name only", "name == component.name", "True"),
        ],
        "list_unwanted": [
            Change(
                "a component that its holder wants less of while a tick plans gets no more",
                "counts[component.name] >= most",
                "False",
            ),
        ],
        "change_wanted": [
            Change(
                "a number for a component replaces what was given back of it before",
                "find_number(component, entry) is None",
                "True",
            ),
        ],
    },
    "scheduler.policy.elastic.victim_search": {
        "_find_turn": [
            Change("instances are reclaimed highest index first", "-elastic_instance.index", "elastic_instance.index"),
        ],
    },
    "scheduler.policy.elastic.assignment": {
        "Assignment.lift_overfull": [
            Change(
                "a host that registers with less gives back",
                "_is_overfull(slot_info) or _lacks_a_name(slot_info, lifted)",
                "False",
            ),
            Change(
                "a resource that a host no longer names counts as 0",
                "_is_overfull(slot_info) or _lacks_a_name(slot_info, lifted)",
                "_is_overfull(slot_info)",
            ),
        ],
    },
    "scheduler.policy.elastic.step": {
        "ElasticDecisions._make_way": [
            Change(
                "with a grace period no capacity is given that a revoked lease may still use",
                "assign if is_over else self._claim(assign)",
                "assign",
            ),
        ],
        "ElasticDecisions._grant": [
            Change("capacity that is reclaimed is granted after the deadline", "not usage.fits()", "False"),
            Change(
                "instances of one component are granted lowest index first",
                "self._take_name(elastic_instance.group)",
                "elastic_instance.instance.name",
            ),
        ],
    },
    "scheduler.policy.quota.reclaim": {
        "_Trial.run": [
            Change("only instances that are in the way are reclaimed", "self._put_back()", ""),
            Change("flexible: nothing is reclaimed unless the use grows", "not self._is_worth_it()", "False"),
        ],
        "_carry_out": [
            Change("with a grace period the new reservation claims the slot", "revoke_by is None or not gone", "True"),
        ],
    },
}
