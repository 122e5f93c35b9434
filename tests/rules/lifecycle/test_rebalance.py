"""Rebalance recommendations: a slot at a higher risk than others is replaced before EC2 takes it."""

import pytest

from tests.rules.lifecycle.draining_notices import Case, check, common_cases
from tests.rules.playing import ON_ONE, Document, a_scenario, a_slot, act, submit, tick, ticks


def hint(at: float, slot: str = "linux-1") -> Document:
    return act(at, "rebalance", slot)


HINTS: dict[str, Case] = {
    **common_cases(hint, "rebalance"),
    "without leases: terminated by the next tick": (
        a_scenario(hint(0), *ticks(0, 5), slots=[a_slot("linux-1")]),
        [["terminate linux-1 drained"], []],
        ["0 slot_draining linux-1"],
    ),
    "ignored": (
        a_scenario(hint(0), submit(0, "r2"), tick(0), pool={"rebalance": "ignore", "max_leases_per_slot": 2}, **ON_ONE),
        [["assign r2 linux-1"]],
        [],
    ),
    "min_slots counts only slots that serve": (
        a_scenario(hint(0), tick(0), pool={"min_slots": 1}, **ON_ONE),
        [["launch linux-2 minimum"]],
        ["0 slot_draining linux-1"],
    ),
}


@pytest.mark.parametrize("name", HINTS)
def test_a_rebalance_recommendation_drains_the_slot_unless_the_pool_ignores_it(name: str) -> None:
    check(HINTS[name])
