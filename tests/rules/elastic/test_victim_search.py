"""The searches for elastic instances find what a walk over all slots and instances finds."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.reservations import Lease, Reservation
from scheduler.model.view import View
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.elastic.assignment import Assignment
from scheduler.policy.elastic.instances import ElasticGroup, ElasticInstance, Rank, list_groups
from scheduler.policy.elastic.victim_search import RelaxedCapacity, VictimSearch
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot, some_rules
from tests.rules.fleets import QUICKLY

pytestmark = pytest.mark.no_cover
SIZES = [{"cpus": 1}, {"cpus": 2}, {"cpus": 3}, {"cpus": 1, "gpus": 1}, {"cpus": 0.5}]
SLOTS = [f"linux-{number}" for number in range(1, 6)]


def a_holder(random: Random, number: int) -> Reservation:
    parts = [a_component(name, count=4, kind="elastic", resources=random.choice(SIZES)) for name in ("x", "y")]
    held: list[Lease] = []
    for part in parts:
        held += [
            a_lease(random.choice(SLOTS), component=f"{part.name}.{index}", kind="elastic", resources=part.resources)
            for index in range(4)
            if random.random() < 0.6
        ]
    components = (a_component(), *parts)
    return a_reservation(f"r{number}", sequence=number, components=components, phase="leased", leases=tuple(held))


@dataclass
class Scene:
    """The elastic instances of some reservations in a cycle, and the searches that are compared with a plain walk."""

    random: Random
    cycle: CycleState
    groups: list[ElasticGroup]
    assignment: Assignment
    search: VictimSearch
    relaxed: RelaxedCapacity

    def list_standing(self) -> list[ElasticInstance]:
        """The instances that can be lifted: not those on a slot that was removed from the index."""
        found = [each for group in self.groups for each in group.elastic_instances]
        return [each for each in found if each.slot_info is not None and self.cycle.ready.has(each.slot_info)]

    def list_victims(self) -> list[list[ElasticInstance]]:
        return [list(self.search.find(group.need, (0, 0))) for group in self.groups]

    def change(self) -> None:
        """Lift an instance, put one on a slot on which it fits, or take the capacity of a slot."""
        choice, slot_info = self.random.randrange(4), self.random.choice(list(self.cycle.slot_infos.values()))
        missing = [each for group in self.groups for each in group.elastic_instances if each.slot_info is None]
        if choice < 2 and (standing := self.list_standing()):
            self.assignment.move(self.random.choice(standing), None)
        elif choice == 2 and missing:
            need = (each := self.random.choice(missing)).need
            if (found := self.assignment.find(need)) is not None:
                self.assignment.move(each, found)
        elif find_obstacle({"cpus": 1}, slot_info.free) is None and self.cycle.ready.has(slot_info):
            self.take_behind_its_back(slot_info)
        self.assignment.update_index()

    def take_behind_its_back(self, slot_info: SlotInfo) -> None:
        """Place an instance without the assignment, or remove the slot as the starvation guard does."""
        if self.random.random() < 0.2:
            self.cycle.ready.remove(slot_info)
            self.cycle.make_index().add(slot_info)
            return
        need = self.random.choice(self.groups).need
        if (found := self.cycle.ready.find(need)) is not None:
            self.cycle.ready.take(found, need)
            self.relaxed.take([need], [found])

    def walk(self, need: InstanceRequest, bound: Rank, declined: Sequence[str]) -> list[ElasticInstance]:
        """Pass the instances one after the other, the last in rank first, until the request fits on a slot."""
        passed: dict[int, list[ElasticInstance]] = {}
        for group in reversed([each for each in self.groups if each.rank >= bound]):
            granted = [each for each in reversed(group.elastic_instances) if each.is_granted]
            others = [each for each in reversed(group.elastic_instances) if each.slot_info and not each.is_granted]
            for each in granted + others:
                slot_info = each.slot_info
                if slot_info is None or not self.assignment.could_serve(need, slot_info, declined):
                    continue
                passed.setdefault(slot_info.order, []).append(each)
                if self.would_fit(need, slot_info, passed[slot_info.order]):
                    return passed[slot_info.order]
        return []

    def would_fit(self, need: InstanceRequest, slot_info: SlotInfo, gone: list[ElasticInstance]) -> bool:
        free = dict(slot_info.free or {})
        for each in gone:
            free = {name: amount + each.amounts_on(slot_info).get(name, 0) for name, amount in free.items()}
        leases = slot_info.pool.lease_limit - slot_info.load + len(gone)
        uses = slot_info.uses_left + sum(each.is_granted for each in gone)
        return find_obstacle(need.given[slot_info.slot.pool], free, leases, uses) is None


def make_scene(random: Random) -> Scene:
    """Some leased reservations on five slots; a few leases have an unknown amount of the slot."""
    holders = [a_holder(random, number) for number in range(random.randint(1, 5))]
    slots = [a_slot(name, resources={"cpus": random.choice([2, 4, 8]), "gpus": random.randint(0, 2)}) for name in SLOTS]
    pool = {"max_uses": random.choice([0, 0, 6]), "max_leases_per_slot": random.choice([3, 6, 99])}
    rules = some_rules({"scheduler": {"elastic": "yielding"}, "pools": {"linux": pool}})
    cycle = CycleState(View([*slots, *holders]), rules, NOW)
    cycle.open_indexes()
    groups = [
        group
        for rank, each in enumerate(holders)
        for group in list_groups(cycle, each, cycle.demand_of(each), rank, each.leases)
    ]
    for group in groups:
        list(group.walk_missing())
    assignment = Assignment(cycle)
    assignment.enter(groups)
    standing = [each for group in groups for each in group.elastic_instances]
    relaxed = RelaxedCapacity([cycle.ready], standing)
    return Scene(random, cycle, groups, assignment, VictimSearch(groups, assignment), relaxed)


@QUICKLY
@given(st.integers(0, 1 << 32))
def test_the_instances_to_lift_are_those_that_a_walk_over_all_instances_passes_on_the_first_slot(seed: int) -> None:
    random = Random(seed)
    scene = make_scene(random)
    for _ in range(random.randint(1, 30)):
        scene.change()
        for group in scene.groups if random.random() < 0.5 else ():
            declined: tuple[str, ...] = random.choice([(), (), (SLOTS[0], SLOTS[1])])
            bound = random.choice([(0, 0), group.rank, (group.rank[0] + 1, 0)])
            expected = scene.walk(group.need, bound, declined)
            assert list(scene.search.find(group.need, bound, declined)) == expected
            if expected:
                whole = scene.cycle.demand_of(group.holder)
                one = Demand(whole.shape, whole.pools, whole.queue, whole.settings, (group.need,), declined=declined)
                assert scene.relaxed.could_hold(one)


@QUICKLY
@given(st.integers(0, 1 << 32))
def test_an_undone_trial_leaves_the_searches_as_they_were(seed: int) -> None:
    random = Random(seed)
    scene = make_scene(random)
    for _ in range(random.randint(1, 5)):
        before = scene.list_victims()
        mark, stamp = scene.assignment.mark, scene.assignment.stamp
        for each in random.sample(standing := scene.list_standing(), min(len(standing), 3)):
            scene.assignment.move(each, None)
            assert scene.list_victims() == [scene.walk(group.need, (0, 0), ()) for group in scene.groups]
        scene.assignment.undo(mark)
        scene.assignment.update_index()
        assert scene.list_victims() == before
        assert scene.assignment.stamp == stamp
        scene.change()
