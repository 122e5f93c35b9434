"""A gang of different parts fits or does not, in whatever order its parts and slots are written."""

from collections.abc import Sequence
from itertools import permutations
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.accounts import FREE
from scheduler.model.decisions import Assign, Claim, Cores, Revoke
from scheduler.model.reservations import Component, Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.capacity import gang as gang_module
from scheduler.policy.capacity.gang import fill
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.work_budget import PAUSE_SECONDS, WorkBudget
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import Turns
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot, some_rules
from tests.rules.fleets import QUICKLY
from tests.rules.playing import a_holder, a_scenario, play_out, submit, tick
from tests.rules.playing import a_slot as a_held_slot
from tests.rules.quotas import an_account

PARTS = ((5, 2), (4, 2), (3, 4))
"""Parts as (cpus, count) that fill three slots of 10 cpus, and that neither their order nor that of shares places."""


def _make_slots(sizes: Sequence[tuple[float, float]]) -> list[Slot]:
    return [
        a_slot(f"linux-{number}", resources={"cpus": cpus, "memory_mib": memory})
        for number, (cpus, memory) in enumerate(sizes, 1)
    ]


def _make_gang(parts: Sequence[Component], name: str = "g", **fields: object) -> Reservation:
    return a_reservation(name, components=tuple(parts), **fields)


def _make_parts(parts: Sequence[tuple[int, int]] = PARTS) -> list[Component]:
    return [a_component(f"c{cpus}", count=count, resources={"cpus": cpus}) for cpus, count in parts]


def _make_rules(queue: str = "fifo") -> Rules:
    pool = {"provider": "static", "offline_timeout": 1e9, "max_leases_per_slot": 9}
    return some_rules({"scheduler": {"queue": queue}, "limits": {"work_per_tick": 0}, "pools": {"linux": pool}})


def _is_placed(slots: Sequence[Slot], parts: Sequence[Component], queue: str) -> bool:
    view = View([*slots, _make_gang(parts, account="A"), an_account("A", 100)])
    decisions = plan(view, _make_rules(queue), NOW).decisions
    return any(isinstance(each, Assign) for each in decisions)


@QUICKLY
@given(st.integers(0, 2**32), st.sampled_from(["fifo", "quota"]))
def test_whether_a_gang_fits_does_not_depend_on_the_order_of_parts_and_slots(seed: int, queue: str) -> None:
    draw = Random(seed)
    sizes = [(draw.randint(3, 9), draw.randint(3, 9)) for _ in range(draw.randint(2, 4))]
    wishes: list[tuple[int, int]] = []
    for cpus, memory in sizes:
        cut, other = draw.randint(1, cpus - 1), draw.randint(1, memory - 1)
        wishes += [(cut, other), (cpus - cut, memory - other + draw.choice([0, 0, 0, 1]))]
    parts = [
        a_component(f"c{number}", resources={"cpus": cpus, "memory_mib": memory})
        for number, (cpus, memory) in enumerate(wishes)
    ]
    found = set()
    for _ in range(4):
        draw.shuffle(sizes)
        draw.shuffle(parts)
        found.add(_is_placed(_make_slots(sizes), parts, queue))
    assert len(found) == 1


@pytest.mark.parametrize("queue", ["fifo", "quota"])
def test_a_gang_that_only_backtracking_places_is_placed_in_every_order(queue: str) -> None:
    slots = _make_slots([(10, 0)] * 3)
    assert all(_is_placed(slots, parts, queue) for parts in permutations(_make_parts()))


@pytest.mark.parametrize("queue", ["fifo", "quota"])
def test_backtracking_uses_slots_that_elastic_instances_fill(queue: str) -> None:
    """Nothing more fits on a slot until one of its nine leases is reclaimed, and all slots are needed."""
    slots = _make_slots([(10, 0)] * 3)
    leases = tuple(
        a_lease(slot.id, component=f"more.{9 * at + number}", kind="elastic", level=FREE)
        for at, slot in enumerate(slots)
        for number in range(9)
    )
    core = a_lease("linux-4", level=FREE)
    parts = (a_component(), a_component("more", count=27, kind="elastic"))
    holder = a_reservation("h", phase="leased", leases=(core, *leases), components=parts)
    for order in permutations(_make_parts()):
        gang = _make_gang(order, created_at=NOW + 1, sequence=1)
        view = View([*slots, a_slot("linux-4", cordoned=True), holder, gang])
        decisions = plan(view, _make_rules(queue), NOW).decisions
        kinds = [type(each) for each in decisions if not isinstance(each, Cores)]
        assert kinds == [*[Revoke] * 8, Claim]


@pytest.mark.parametrize("size", [0.1, 1, 10])
def test_backtracking_places_a_gang_whatever_the_unit_of_its_amounts(size: float) -> None:
    parts = [a_component(f"c{cpus}", count=count, resources={"cpus": size * cpus}) for cpus, count in PARTS]
    assert _is_placed(_make_slots([(size * 10, 0)] * 3), parts, "fifo")


OTHERS = tuple(a_component(f"other{number}", resources={"gpus": number}) for number in range(1, 8))
"""Seven further different parts, which fill a slot with 28 gpus."""


def test_a_gang_of_nine_different_parts_is_placed_by_their_shares() -> None:
    parts = [a_component("small", resources={"cpus": 3}), a_component("large", resources={"cpus": 5}), *OTHERS]
    slots = [*_make_slots([(5, 0), (3, 0)]), a_slot("linux-3", resources={"gpus": 28})]
    assert all(_is_placed(slots, each, queue) for each in (parts, parts[::-1]) for queue in ("fifo", "quota"))


def test_a_gang_of_eight_different_parts_is_placed_by_backtracking() -> None:
    slots = [*_make_slots([(10, 0)] * 3), a_slot("linux-4", resources={"gpus": 28})]
    assert _is_placed(slots, [*_make_parts(), *OTHERS[:5]], "fifo")


def test_a_gang_of_nine_different_parts_is_not_placed_by_backtracking() -> None:
    slots = [*_make_slots([(10, 0)] * 3), a_slot("linux-4", resources={"gpus": 28})]
    assert not _is_placed(slots, [*_make_parts(), *OTHERS[:6]], "fifo")


@pytest.mark.parametrize("queue", ["fifo", "quota"])
def test_of_equal_shares_the_part_that_fewer_slots_could_hold_comes_first(queue: str) -> None:
    """It has too many parts for backtracking, and the second and the third one fit on the slot with the disk."""
    first, *others = (a_component(f"other{number}", labels={"row": str(number)}) for number in range(7))
    parts = [first, a_component("any", labels={"zone": "a"}), a_component("disk", labels={"disk": "ssd"}), *others]
    slots = [
        a_slot("linux-1", labels={"zone": "a", "disk": "ssd"}),
        a_slot("linux-2", labels={"zone": "a", "rack": "1", "floor": "2"}),
        *(a_slot(f"linux-{number + 3}", labels={"row": str(number)}) for number in range(7)),
    ]
    view = View([*slots, _make_gang(parts)])
    pool = {"provider": "static", "offline_timeout": 1e9}
    rules = some_rules({"scheduler": {"queue": queue}, "pools": {"linux": pool}})
    [decision] = plan(view, rules, NOW).decisions
    assert isinstance(decision, Assign)
    assert [each.slot for each in decision.leases[1:3]] == ["linux-2", "linux-1"]


def test_the_part_with_the_largest_share_tries_slots_first() -> None:
    cycle, gang = _open(_make_parts(), [10, 10, 10])
    found = fill(cycle.demand_of(gang), (cycle.ready,))
    assert found is not None
    assert [each.slot.id[-1] for each in found] == list("11232233")


def test_each_step_of_backtracking_counts_for_the_work_budget() -> None:
    counts = []
    for most in (9, 13):
        cycle, gang = _open(_make_parts([(5, 2), (4, 2), (3, 4)]), [9.5, 9.5, 11])
        with patch.object(gang_module, "MOST_STEPS", most):
            assert fill(cycle.demand_of(gang), (cycle.ready,)) is None
        counts.append(cycle.count_steps())
    assert counts[1] - counts[0] == 4


def _open(parts: Sequence[Component], sizes: Sequence[float]) -> tuple[CycleState, Reservation]:
    gang = _make_gang(parts)
    cycle = CycleState(View([*_make_slots([(cpus, 0) for cpus in sizes]), gang]), _make_rules(), NOW)
    cycle.open_indexes()
    return cycle, gang


def test_a_failed_search_takes_nothing() -> None:
    cycle, gang = _open(_make_parts([(5, 2), (4, 2), (3, 4)]), [9.5, 9.5, 11])
    before = [(each.free, each.given, each.wanted) for each in cycle.slot_infos.values()]
    assert fill(cycle.demand_of(gang), (cycle.ready,)) is None
    assert [(each.free, each.given, each.wanted) for each in cycle.slot_infos.values()] == before


def test_under_quota_backtracking_has_a_budget_of_its_own_with_turns() -> None:
    memory: Turns = {}
    first, second, third = (a_reservation(name, account="A") for name in ("g1", "g2", "g3"))
    budget = WorkBudget(memory, 10)
    assert budget.may_backtrack(first)
    budget.charge_backtracking(first, 2_000)
    assert budget.may_backtrack(second)
    budget.charge_backtracking(second, 2_000)
    assert not budget.may_backtrack(third)
    assert budget.finish(NOW, decided=False) == NOW + PAUSE_SECONDS
    budget = WorkBudget(memory, 10)
    assert [budget.may_backtrack(each) for each in (first, second, third)] == [True, False, True]


@pytest.mark.parametrize("parts", [("x", "y"), ("y", "x")])
def test_the_sentence_of_gang_incomplete_names_the_part_that_lacks_room(parts: tuple[str, str]) -> None:
    sizes = {"x": 30, "y": 50}
    played = play_out(
        a_scenario(
            submit(0, "g", components=[{"name": name, "resources": {"cpus": sizes[name]}} for name in parts]),
            tick(0),
            pool={"provider": "static", "max_slots": 2},
            slots=[
                {"id": "linux-1", "pool": "linux", "state": "ready", "resources": {"cpus": 31}},
                a_held_slot("linux-2", "ready", "h") | {"resources": {"cpus": 53}},
            ],
            reservations=[a_holder("h")],
        )
    )
    [waiting] = next(line["waiting"] for line in played.lines if "tick" in line)
    sentence = "some of its instances would fit, but not all: component y lacks room"
    assert (waiting["code"], waiting["detail"]) == ("gang_incomplete", sentence)
