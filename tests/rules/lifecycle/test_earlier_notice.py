"""A second notice with an earlier deadline: the holder has to stop before its machine is gone."""

import pytest

from tests.reference_model.comparing import compare
from tests.rules.playing import ON_ONE, Cases, Document, a_scenario, a_slot, notice, play_out, tick, ticks

LEAVE = ["drain linux-1 interrupted", "requeue r1 slot_interrupted"]
PAIR: Document = {
    "slots": [
        a_slot("linux-1", leases=[{"reservation": "g", "component": "w.0"}]),
        a_slot("linux-2", leases=[{"reservation": "g", "component": "w.1"}]),
    ],
    "reservations": [
        {"id": "g", "system": "x86_64-linux", "phase": "leased", "components": [{"name": "w", "count": 2}]}
    ],
}
CASES: Cases = {
    "the earlier deadline holds for the revoked lease": (
        a_scenario(notice(0), tick(0), notice(10, deadline=30), *ticks(10, 39, 40), pool={"max_slots": 1}, **ON_ONE),
        [
            LEAVE,
            ["requeue r1 slot_interrupted"],  # by 40 instead of 120
            [],
            ["requeue r1 slot_interrupted", "launch linux-1 demand", "r1 waits booting"],
        ],
    ),
    "an equal or later one changes nothing": (
        a_scenario(
            notice(0, deadline=40),
            tick(0),
            notice(10, deadline=30),
            notice(10, deadline=300),
            *ticks(10, 39, 40),
            pool={"max_slots": 1},
            **ON_ONE,
        ),
        [LEAVE, [], [], ["requeue r1 slot_interrupted", "launch linux-1 demand", "r1 waits booting"]],
    ),
    "a shorter grace than the earlier deadline stays": (
        a_scenario(
            notice(0),
            tick(0),
            notice(5, deadline=60),
            *ticks(5, 20),
            scheduler={"interruption_grace": 20},
            pool={"max_slots": 1},
            **ON_ONE,
        ),
        [LEAVE, [], ["requeue r1 slot_interrupted", "terminate linux-1 drained", "r1 waits at_max_slots"]],
    ),
    "before the first tick: the earlier one counts": (
        a_scenario(notice(0), notice(0, deadline=9), *ticks(0, 8, 9), pool={"max_slots": 1}, **ON_ONE),
        [LEAVE, [], ["requeue r1 slot_interrupted", "launch linux-1 demand", "r1 waits booting"]],
    ),
    "another machine of a gang goes earlier": (
        a_scenario(
            notice(0, "linux-1"),
            tick(0),
            notice(1, "linux-2", deadline=19),
            *ticks(1, 20, 21),
            pool={"max_slots": 2},
            **PAIR,
        ),
        [
            ["drain linux-1 interrupted", "requeue g slot_interrupted"],
            ["requeue g slot_interrupted", "drain linux-2 interrupted"],
            ["requeue g slot_interrupted", "terminate linux-1 drained", "g waits at_max_slots"],
            ["launch linux-1 demand", "launch linux-2 demand", "g waits booting"],
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_earliest_deadline_of_the_machines_holds(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected
    compare(document)


def test_a_revoked_elastic_instance_stops_before_its_machine_is_gone() -> None:
    holder = {
        "id": "e",
        "system": "x86_64-linux",
        "phase": "leased",
        "components": [{"name": "core"}, {"name": "more", "kind": "elastic"}],
    }
    slots = [
        a_slot("linux-1", leases=[{"reservation": "e", "component": "core"}]),
        a_slot("linux-2", leases=[{"reservation": "e", "component": "more"}]),
    ]
    played = play_out(
        a_scenario(
            notice(0, "linux-2"),
            tick(0),
            notice(10, "linux-2", deadline=30),
            *ticks(10, 39, 40),
            pool={"max_slots": 2},
            slots=slots,
            reservations=[holder],
        )
    )
    assert [each for each in played.decisions if "revoke" in each] == [
        "0 revoke e more linux-2 slot_interrupted",
        "10 revoke e more linux-2 slot_interrupted",
        "40 revoke e more linux-2 slot_gone",
    ]
