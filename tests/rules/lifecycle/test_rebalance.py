"""Rebalance recommendations: a slot at a higher risk than others is replaced before EC2 takes it."""

import pytest

from tests.rules.playing import ON_ONE, Document, a_scenario, a_slot, act, notice, play_out, submit, tick, ticks


def hint(at: float, slot: str = "linux-1") -> Document:
    return act(at, "rebalance", slot)


HINTS: dict[str, tuple[Document, list[list[str]], list[str]]] = {
    # It takes no new lease, its leases run on, and the next reservation gets another machine.
    "drains; its leases run on until they end": (
        a_scenario(
            hint(0),
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
    "without leases: terminated by the next tick": (
        a_scenario(hint(0), *ticks(0, 5), slots=[a_slot("linux-1")]),
        [["terminate linux-1 drained"], []],
        ["0 slot_draining linux-1"],
    ),
    "in flight: terminated by the next tick, and replaced": (
        a_scenario(
            hint(0),
            tick(0),
            pool={"min_slots": 1},
            slots=[a_slot("linux-1", "booting")],
            cloud={"boot": 60, "terminate": 9},
        ),
        [["terminate linux-1 rebalance", "launch linux-2 minimum"]],
        [],
    ),
    "drain_timeout applies to it": (
        a_scenario(hint(5), *ticks(64, 65), pool={"drain_timeout": 60, "max_slots": 1}, **ON_ONE),
        [[], ["requeue r1 slot_draining", "terminate linux-1 timeout", "r1 waits at_max_slots"]],
        ["5 slot_draining linux-1"],
    ),
    "ignored": (
        a_scenario(hint(0), submit(0, "r2"), tick(0), pool={"rebalance": "ignore", "max_leases_per_slot": 2}, **ON_ONE),
        [["assign r2 linux-1"]],
        [],
    ),
    "ignored in flight": (
        a_scenario(
            hint(0),
            *ticks(0, 60),
            pool={"rebalance": "ignore", "min_slots": 1},
            slots=[a_slot("linux-1", "booting")],
            cloud={"boot": 60},
        ),
        [[], []],
        ["60 slot_binding linux-1", "60 slot_ready linux-1"],
    ),
    "a second recommendation changes nothing": (
        a_scenario(hint(0), hint(1), tick(1), pool={"drain_timeout": 60, "max_slots": 1}, **ON_ONE),
        [[]],
        ["0 slot_draining linux-1"],
    ),
    "then interrupted: the leases of a slot that drains already are requeued in the same way": (
        a_scenario(
            hint(0),
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
            hint(0), hint(0, "linux-2"), tick(0), slots=[a_slot("linux-2", "terminating")], cloud={"terminate": 60}
        ),
        [[]],
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
    document, expected, events = HINTS[name]
    played = play_out(document)
    assert played.ticks == expected
    events_of_one = [event for event in played.events if event.endswith(" linux-1")]
    assert events_of_one[: len(events)] == events
    assert events or not any("slot_draining" in event for event in events_of_one)
