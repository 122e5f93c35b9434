"""Scheduled changes of AWS Health: a slot whose machine will be stopped, restarted or retired is replaced before."""

import pytest

from tests.rules.playing import ON_ONE, Document, a_scenario, a_slot, act, notice, play_out, submit, tick, ticks

REBOOT = "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED"


def plan_change(at: float, slot: str = "linux-1", **fields: object) -> Document:
    return act(at, "maintain", {"slot": slot, **fields})


CHANGES: dict[str, tuple[Document, list[list[str]], list[str]]] = {
    # It takes no new lease, its leases run on, and the next reservation gets another machine.
    "drains; its leases run on until they end": (
        a_scenario(
            plan_change(0),
            submit(0, "r2"),
            *ticks(0, 9000),
            act(9001, "release", "r1"),
            tick(9002),
            pool={"max_leases_per_slot": 2},
            **ON_ONE,
        ),
        [["launch linux-2 demand", "r2 waits booting"], ["assign r2 linux-2"], ["terminate linux-1 drained"]],
        ["0 slot_draining linux-1"],
    ),
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
    "in flight: terminated by the next tick, and replaced": (
        a_scenario(
            plan_change(0),
            tick(0),
            pool={"min_slots": 1},
            slots=[a_slot("linux-1", "booting")],
            cloud={"boot": 60, "terminate": 9},
        ),
        [["terminate linux-1 maintenance", "launch linux-2 minimum"]],
        [],
    ),
    "drain_timeout applies to it": (
        a_scenario(plan_change(5), *ticks(64, 65), pool={"drain_timeout": 60, "max_slots": 1}, **ON_ONE),
        [[], ["requeue r1 slot_draining", "terminate linux-1 timeout", "r1 waits at_max_slots"]],
        ["5 slot_draining linux-1"],
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
    "ignored in flight": (
        a_scenario(
            plan_change(0),
            *ticks(0, 60),
            pool={"maintenance": "ignore", "min_slots": 1},
            slots=[a_slot("linux-1", "booting")],
            cloud={"boot": 60},
        ),
        [[], []],
        ["60 slot_binding linux-1", "60 slot_ready linux-1"],
    ),
    "a pool that ignores recommendations to replace drains for a scheduled change": (
        a_scenario(plan_change(0), tick(0), pool={"rebalance": "ignore", "max_slots": 1}, **ON_ONE),
        [[]],
        ["0 slot_draining linux-1"],
    ),
    "a second announcement changes nothing": (
        a_scenario(plan_change(0), plan_change(1), tick(1), pool={"drain_timeout": 60, "max_slots": 1}, **ON_ONE),
        [[]],
        ["0 slot_draining linux-1"],
    ),
    "then interrupted: the leases of a slot that drains already are requeued": (
        a_scenario(
            plan_change(0),
            tick(0),
            notice(5),
            *ticks(5),
            scheduler={"interruption_grace": 0},
            pool={"max_slots": 1},
            **ON_ONE,
        ),
        [[], ["requeue r1 slot_interrupted", "terminate linux-1 drained", "r1 waits at_max_slots"]],
        ["0 slot_draining linux-1"],
    ),
    "an empty or terminating slot stays as it is": (
        a_scenario(
            plan_change(0),
            plan_change(0, "linux-2"),
            tick(0),
            slots=[a_slot("linux-2", "terminating")],
            cloud={"terminate": 60},
        ),
        [[]],
        [],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_scheduled_change_drains_the_slot_unless_the_pool_ignores_it(name: str) -> None:
    document, expected, events = CHANGES[name]
    played = play_out(document)
    assert played.ticks == expected
    events_of_one = [event for event in played.events if event.endswith(" linux-1")]
    assert events_of_one[: len(events)] == events
    assert events or not any("slot_draining" in event for event in events_of_one)
