"""Changes of the rules that grant and reclaim elastic instances."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_ELASTIC: Final[Changes] = {
    "scheduler.policy.elastic.cascade": {
        "Cascade._list_ways": [
            Change(
                "yielding: essential instances of anybody go before elastic ones of others, "
                "flexible: only if more is used",
                "self.settings.elastic == 'yielding'",
                "True",
            ),
            Change(
                "with preemption only those who rank behind give back",
                "self._find_first((self._ranks[reservation.id], 0))",
                "0",
            ),
        ],
        "Cascade._try": [
            Change("flexible admits whoever makes the use grow", "assignment.use > use + MORE", "False"),
            Change("what was tried in vain is undone", "assignment.undo(mark)", ""),
        ],
        "Cascade.takes_back": [
            Change("malleable and rigid take nothing back", "self.settings.elastic in RECLAIMS", "True"),
        ],
        "Cascade._serve_group": [
            Change(
                "elastic instances that are in nobody's way go back",
                "self._assignment.move(elastic_instance, elastic_instance.home)",
                "pass",
            ),
        ],
    },
    "scheduler.policy.elastic.instances": {
        "ElasticGroup.list_last_first": [
            Change(
                "instances are taken back highest index first",
                "(elastic_instance for elastic_instance in reversed(self.elastic_instances) "
                "if elastic_instance.slot_info is not None and (not elastic_instance.is_granted))",
                "(elastic_instance for elastic_instance in self.elastic_instances "
                "if elastic_instance.slot_info is not None and (not elastic_instance.is_granted))",
            ),
        ],
        "list_groups": [
            Change(
                "who shrank by himself gets no more",
                "any((find_number(need.component, name) is not None for name in declined))",
                "False",
            ),
        ],
        "Assignment.lift_overfull": [
            Change(
                "a host that came back smaller gives back",
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
    "scheduler.policy.elastic.decisions": {
        "ElasticDecisions._make_way": [
            Change(
                "with a grace nobody is given room that somebody may still use",
                "assign if is_over else self._claim(assign)",
                "assign",
            ),
        ],
        "ElasticDecisions._grant": [
            Change("what is taken back waits until the deadline", "not usage.fits()", "False"),
            Change(
                "instances of one component are granted lowest index first",
                "self._take_name(elastic_instance.group)",
                "elastic_instance.instance.name",
            ),
        ],
    },
    "scheduler.policy.quota.reclaim": {
        "_Trial.run": [
            Change("only those who are in the way give way", "self._put_back()", ""),
            Change("flexible: nobody gives way for nothing", "not self._is_worth_it()", "False"),
        ],
        "_carry_out": [
            Change("with a grace the newcomer claims the place", "revoke_by is None or not gone", "True"),
        ],
    },
}
