"""Interruptions: how a tick handles slots that the cloud takes away, and their leases."""

import pytest

from tests.rules.playing import (
    ON_ONE,
    Cases,
    a_holder,
    a_scenario,
    a_slot,
    act,
    notice,
    play_out,
    reported,
    submit,
    tick,
    ticks,
)

CASES: Cases = {
    # grace unset: until the deadline; the replacement is launched at once
    "unset grace": (
        a_scenario(notice(0), *ticks(0, 50, 119, 120, 121), cloud={"boot": 60}, **ON_ONE),
        [
            ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "launch linux-2 demand"],
            [],
            [],
            ["requeue r1 slot_interrupted", "assign r1 linux-2"],
            [],
        ],
    ),
    "grace 0": (
        a_scenario(notice(0), *ticks(0, 60), cloud={"boot": 60}, scheduler={"interruption_grace": 0}, **ON_ONE),
        [
            ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "launch linux-2 demand", "r1 waits booting"],
            ["terminate linux-1 drained", "assign r1 linux-2"],
        ],
    ),
    "grace 0: placed in the same tick": (
        a_scenario(
            notice(0),
            tick(0),
            scheduler={"interruption_grace": 0},
            slots=[a_slot("linux-1", "ready", "r1"), a_slot("linux-2")],
            reservations=[a_holder("r1")],
        ),
        [["drain linux-1 interrupted", "requeue r1 slot_interrupted", "assign r1 linux-2"]],
    ),
    "grace 30": (
        a_scenario(notice(0), *ticks(0, 29.9, 30), cloud={"boot": 5}, scheduler={"interruption_grace": 30}, **ON_ONE),
        [
            ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "launch linux-2 demand"],
            [],
            ["requeue r1 slot_interrupted", "terminate linux-1 drained", "assign r1 linux-2"],
        ],
    ),
    "a grace period never outlasts the deadline": (
        a_scenario(
            notice(0, deadline=20), *ticks(0, 19, 20), cloud={"boot": 5}, scheduler={"interruption_grace": 99}, **ON_ONE
        ),
        [
            ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "launch linux-2 demand"],
            [],
            ["requeue r1 slot_interrupted", "assign r1 linux-2"],
        ],
    ),
    # the grace counts from the tick that revokes the lease, the deadline from the notice
    "the tick comes late": (
        a_scenario(
            notice(0, deadline=100),
            *ticks(80, 99, 100),
            cloud={"boot": 5},
            scheduler={"interruption_grace": 30},
            **ON_ONE,
        ),
        [
            ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "launch linux-2 demand"],
            [],
            ["requeue r1 slot_interrupted", "assign r1 linux-2"],
        ],
    ),
    "the deadline passes before any tick: as if the slot was lost": (
        a_scenario(notice(0, deadline=3), tick(5), **ON_ONE),
        [["fail r1 slot_gone"]],
    ),
    # the smaller one takes what is left of linux-2, so the larger one needs a launch
    "revoked reservations reserve existing capacity in queue order": (
        a_scenario(
            notice(5),
            tick(5),
            scheduler={"queue": "size"},
            pool={
                "max_leases_per_slot": 2,
                "offerings": [
                    {"name": "s", "price": 1, "resources": {"cpus": 1}},
                    {"name": "l", "price": 9, "resources": {"cpus": 4}},
                ],
            },
            slots=[
                a_slot("linux-1", "ready", "large", "small", offering="l"),
                a_slot("linux-2", "ready", "other", offering="l"),
            ],
            reservations=[
                a_holder("large", resources={"cpus": 3}, size=2),
                a_holder("small", resources={"cpus": 1}, size=1),
                a_holder("other", resources={"cpus": 1}),
            ],
            cloud={"boot": 60},
        ),
        [
            [
                "drain linux-1 interrupted",
                "requeue large slot_interrupted",
                "requeue small slot_interrupted",
                "launch linux-3 l demand",
            ]
        ],
    ),
    "surrender": (
        a_scenario(
            notice(0),
            *ticks(0),
            act(10, "surrender", {"reservation": "r1"}),
            *ticks(10, 60),
            cloud={"boot": 60},
            **ON_ONE,
        ),
        [
            ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "launch linux-2 demand"],
            ["terminate linux-1 drained", "r1 waits booting"],
            ["assign r1 linux-2"],
        ],
    ),
    "released within its grace period": (
        a_scenario(notice(0), *ticks(0), act(10, "release", "r1"), tick(10), cloud={"boot": 60}, **ON_ONE),
        [
            ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "launch linux-2 demand"],
            ["terminate linux-1 drained"],
        ],
    ),
    "on_interruption: fail": (
        a_scenario(
            notice(0),
            *ticks(0, 5),
            slots=[a_slot("linux-1", "ready", "r1")],
            reservations=[a_holder("r1", on_interruption="fail")],
        ),
        [["drain linux-1 interrupted", "fail r1 slot_interrupted"], ["terminate linux-1 drained"]],
    ),
    "on_interruption: fail, and its policy restarts it by the following tick": (
        a_scenario(
            notice(0),
            *ticks(0, 5),
            slots=[a_slot("linux-1", "ready", "r1"), a_slot("linux-2")],
            reservations=[a_holder("r1", on_interruption="fail", restart_policy="on_failure")],
        ),
        [
            ["drain linux-1 interrupted", "fail r1 slot_interrupted"],
            ["terminate linux-1 drained", "restart r1 restart_due", "assign r1 linux-2"],
        ],
    ),
    "whatever its restart policy": (
        a_scenario(
            notice(0),
            tick(0),
            scheduler={"interruption_grace": 0},
            slots=[a_slot("linux-1", "ready", "r1", "r2")],
            reservations=[a_holder("r1"), a_holder("r2", restart_policy="on_failure")],
            pool={"max_leases_per_slot": 2, "max_slots": 1},
        ),
        [
            [
                "drain linux-1 interrupted",
                "requeue r1 slot_interrupted",
                "requeue r2 slot_interrupted",
                "r1 waits at_max_slots",
                "r2 waits at_max_slots",
            ]
        ],
    ),
    "a slot that drains already": (
        a_scenario(
            notice(0),
            tick(0),
            scheduler={"interruption_grace": 0},
            slots=[a_slot("linux-1", "draining", "r1"), a_slot("linux-2")],
            reservations=[a_holder("r1")],
        ),
        [["requeue r1 slot_interrupted", "terminate linux-1 drained", "assign r1 linux-2"]],
    ),
    "in flight: terminated and replaced at once": (
        a_scenario(submit(0, "r1"), tick(0), notice(5), tick(5), cloud={"boot": 60}),
        [
            ["launch linux-1 demand", "r1 waits booting"],
            ["terminate linux-1 interrupted", "launch linux-2 demand", "r1 waits booting"],
        ],
    ),
    "launching: terminated and replaced at once": (
        a_scenario(submit(0, "r1"), tick(0), notice(5), tick(5), cloud={"launch": 60}),
        [
            ["launch linux-1 demand", "r1 waits booting"],
            ["terminate linux-1 interrupted", "launch linux-2 demand", "r1 waits booting"],
        ],
    ),
    "an interrupted slot counts neither for the warm pool nor for the minimum": (
        a_scenario(
            notice(0),
            notice(0, "linux-2"),
            tick(0),
            pool={"min_slots": 1, "target_warm_slots": 1},
            slots=[a_slot("linux-1"), a_slot("linux-2", "booting")],
            cloud={"boot": 60},
        ),
        [["drain linux-1 interrupted", "terminate linux-2 interrupted", "launch linux-3 minimum"]],
    ),
    "it keeps its own position in the queue": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            submit(1, "r2"),
            notice(2),
            *ticks(2, 40),
            pool={"max_slots": 1},
            scheduler={"interruption_grace": 0},
            slots=[a_slot("linux-1")],
            cloud={"terminate": 10},
        ),
        [
            ["assign r1 linux-1"],
            [
                "drain linux-1 interrupted",
                "requeue r1 slot_interrupted",
                "r1 waits at_max_slots",
                "r2 waits at_max_slots",
            ],
            ["terminate linux-1 drained", "r1 waits at_max_slots", "r2 waits at_max_slots"],
        ],
    ),
    "on hold: nothing is launched for it": (
        a_scenario(act(0, "priority", {"reservation": "r1", "priority": 0}), notice(0), tick(0), **ON_ONE),
        [["drain linux-1 interrupted", "requeue r1 slot_interrupted"]],
    ),
    "a second notice changes nothing": (
        a_scenario(
            notice(0, deadline=100), tick(0), notice(50, deadline=100), *ticks(99, 100), pool={"max_slots": 1}, **ON_ONE
        ),
        [
            ["drain linux-1 interrupted", "requeue r1 slot_interrupted"],
            [],
            ["requeue r1 slot_interrupted", "launch linux-1 demand", "r1 waits booting"],
        ],
    ),
    "a notice for an empty slot changes nothing": (
        a_scenario(notice(0), tick(0), submit(1, "r1"), tick(1), tick(2)),
        [[], ["launch linux-1 demand", "r1 waits booting"], ["assign r1 linux-1"]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_interruption_is_handled_by_slot_state_grace_and_policy(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_a_gang_is_revoked_whole_and_once() -> None:
    gang = {"id": "g", "system": "x86_64-linux", "phase": "leased", "components": [{"name": "w", "count": 2}]}
    leases = [
        {"id": f"linux-{n}", "pool": "linux", "leases": [{"reservation": "g", "component": f"w.{n - 1}"}]}
        for n in (1, 2)
    ]
    assert reported(
        notice(0, "linux-1"),
        notice(0, "linux-2", 60),
        *ticks(0, 60),
        slots=leases,
        reservations=[gang],
        pool={"max_slots": 2},
    ) == [
        ["drain linux-1 interrupted", "requeue g slot_interrupted", "drain linux-2 interrupted"],
        # until the first of its machines goes, at 60
        ["requeue g slot_interrupted", "terminate linux-1 drained", "g waits at_max_slots"],
    ]


def test_at_the_deadline_the_machine_is_gone_and_the_slot_empty() -> None:
    played = play_out(a_scenario(notice(0), tick(0), until=120, pool={"max_slots": 1}, **ON_ONE))
    assert played.events == ["0 slot_draining linux-1", "0 reservation_revoking r1", "120 slot_empty linux-1"]


def test_the_draining_slot_still_counts_towards_max_slots() -> None:
    assert reported(notice(0), submit(0, "r2"), *ticks(0, 60), pool={"max_slots": 1}, **ON_ONE) == [
        ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "r2 waits at_max_slots"],
        ["r2 waits at_max_slots"],
    ]


GRACES: dict[float | None, float] = {
    # interruption_grace: when a holder that ignores the notice has lost its lease (notice at 0, deadline 100)
    None: 100.0,
    0: 0.0,
    30: 30.0,
    500: 100.0,
}


@pytest.mark.parametrize("policy", ["requeue", "fail"])
@pytest.mark.parametrize("restarts", ["never", "on_failure"])
@pytest.mark.parametrize("grace", GRACES)
def test_every_combination_of_grace_policy_and_restart(grace: float | None, restarts: str, policy: str) -> None:
    """The reservation is requeued at the end of its grace period whatever its restart policy, or fails at once and is
    restarted by its policy.
    """
    scheduler = {} if grace is None else {"interruption_grace": grace}
    played = play_out(
        a_scenario(
            notice(0, deadline=100),
            kicks=True,
            wakes=True,
            until=200,
            scheduler=scheduler,
            slots=[a_slot("linux-1", "ready", "r1"), a_slot("linux-2")],
            reservations=[a_holder("r1", restart_policy=restarts, on_interruption=policy)],
        )
    )
    events_of_it = [event for event in played.events if event.endswith(" r1")]
    if policy == "requeue":
        end = GRACES[grace]
        revoking = [] if end == 0 else ["0 reservation_revoking r1"]
        assert events_of_it == [*revoking, f"{end:g} reservation_pending r1", f"{end:g} reservation_leased r1"]
    elif restarts == "on_failure":
        assert events_of_it == ["0 reservation_failed r1", "0 reservation_pending r1", "0 reservation_leased r1"]
    else:
        assert events_of_it == ["0 reservation_failed r1"]
    assert "linux-1" not in played.slots
