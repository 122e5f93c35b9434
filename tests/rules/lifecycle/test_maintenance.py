"""Scheduled changes of AWS Health: a slot whose machine will be stopped, restarted or retired is replaced before."""

import pytest

from tests.rules.lifecycle.draining_notices import Case, check, common_cases
from tests.rules.playing import ON_ONE, Document, a_scenario, a_slot, act, submit, tick, ticks

REBOOT = "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED"


def plan_change(at: float, slot: str = "linux-1", **fields: object) -> Document:
    return act(at, "maintain", {"slot": slot, **fields})


CHANGES: dict[str, Case] = {
    **common_cases(plan_change, "maintenance"),
    "a lease that lasts until the machine retires is lost with it": (
        a_scenario(plan_change(0, begins_in=600), *ticks(0, 599, 600), pool={"max_slots": 1}, **ON_ONE),
        [[], [], ["fail r1 slot_gone"]],
        ["0 slot_draining linux-1", "600 slot_empty linux-1"],
    ),
    "a machine that is only restarted does not end": (
        a_scenario(plan_change(0, begins_in=600, code=REBOOT), *ticks(0, 700), pool={"max_slots": 1}, **ON_ONE),
        [[], []],
        ["0 slot_draining linux-1"],
    ),
    "the next machine of the slot does not retire": (
        a_scenario(
            plan_change(0, begins_in=600),
            tick(0),
            submit(100, "r1"),
            *ticks(100, 200, 700),
            pool={"max_slots": 1},
            slots=[a_slot("linux-1")],
        ),
        [["terminate linux-1 drained"], ["launch linux-1 demand", "r1 waits booting"], ["assign r1 linux-1"], []],
        ["0 slot_draining linux-1"],
    ),
    "ignored: it serves until the machine retires": (
        a_scenario(
            plan_change(0, begins_in=600),
            submit(0, "r2"),
            *ticks(0, 600),
            pool={"maintenance": "ignore", "max_leases_per_slot": 2},
            **ON_ONE,
        ),
        [["assign r2 linux-1"], ["fail r1 slot_gone", "fail r2 slot_gone"]],
        ["600 slot_empty linux-1"],
    ),
    "a pool that ignores recommendations to replace drains for a scheduled change": (
        a_scenario(plan_change(0), tick(0), pool={"rebalance": "ignore", "max_slots": 1}, **ON_ONE),
        [[]],
        ["0 slot_draining linux-1"],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_scheduled_change_drains_the_slot_unless_the_pool_ignores_it(name: str) -> None:
    check(CHANGES[name])
