"""Interruptions, draining and timeouts: what heal does about slots."""

import pytest

from tests.scenarios.playing import (
    Document,
    a_holder,
    a_pool,
    a_scenario,
    a_slot,
    act,
    play_out,
    submit,
    tick,
    ticks,
    told,
)


def notice(at: float, slot: str = "linux-1", deadline: float = 120) -> Document:
    return act(at, "interrupt", {"slot": slot, "deadline": deadline})


ON_ONE: Document = {"slots": [a_slot("linux-1", "ready", "r1")], "reservations": [a_holder("r1")]}

CASES: dict[str, tuple[Document, list[list[str]]]] = {
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
    "a grace never outlasts the deadline": (
        a_scenario(
            notice(0, deadline=20), *ticks(0, 19, 20), cloud={"boot": 5}, scheduler={"interruption_grace": 99}, **ON_ONE
        ),
        [
            ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "launch linux-2 demand"],
            [],
            ["requeue r1 slot_interrupted", "assign r1 linux-2"],
        ],
    ),
    # the grace counts from the tick that takes it back, the deadline from the notice
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
    "the deadline passes before any tick: as by lose": (
        a_scenario(notice(0, deadline=3), tick(5), **ON_ONE),
        [["fail r1 slot_gone"]],
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
    "released within its grace": (
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
        a_scenario(
            submit(0, "r1"),
            tick(0),
            notice(5),
            tick(5),
            cloud={"boot": 60},
        ),
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
    "neither reserve nor minimum": (
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
    "its own place in the queue": (
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
    "no notice is heeded of what is empty": (
        a_scenario(notice(0), tick(0), submit(1, "r1"), tick(1), tick(2)),
        [[], ["launch linux-1 demand", "r1 waits booting"], ["assign r1 linux-1"]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_interruption_is_healed_as_its_table_says(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_a_gang_is_taken_back_whole_and_once() -> None:
    gang = {
        "id": "g",
        "system": "x86_64-linux",
        "phase": "leased",
        "components": [{"name": "w", "count": 2}],
    }
    leases = [
        {"id": f"linux-{n}", "pool": "linux", "leases": [{"reservation": "g", "component": f"w.{n - 1}"}]}
        for n in (1, 2)
    ]
    assert told(
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


def test_the_draining_slot_still_holds_its_unit_of_the_maximum() -> None:
    assert told(notice(0), submit(0, "r2"), *ticks(0, 60), pool={"max_slots": 1}, **ON_ONE) == [
        ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "r2 waits at_max_slots"],
        ["r2 waits at_max_slots"],
    ]


DRAINS: dict[str, tuple[Document, list[list[str]]]] = {
    "without leases: terminated by the next tick": (
        a_scenario(act(0, "drain", "linux-1"), *ticks(0, 5), slots=[a_slot("linux-1")]),
        [["terminate linux-1 drained"], []],
    ),
    "its leases run on until they end": (
        a_scenario(act(0, "drain", "linux-1"), *ticks(0, 9000), act(9001, "release", "r1"), tick(9002), **ON_ONE),
        [[], [], ["terminate linux-1 drained"]],
    ),
    "it takes no new leases": (
        a_scenario(
            act(0, "drain", "linux-1"),
            submit(0, "r2"),
            tick(0),
            pool={"max_leases_per_slot": 2},
            **ON_ONE,
        ),
        [["launch linux-2 demand", "r2 waits booting"]],
    ),
    # for at least drain_timeout
    "until drain_timeout": (
        a_scenario(
            act(5, "drain", "linux-1"), *ticks(64, 65, 66), pool={"drain_timeout": 60, "max_slots": 1}, **ON_ONE
        ),
        [
            [],
            ["requeue r1 slot_draining", "terminate linux-1 timeout", "r1 waits at_max_slots"],
            ["launch linux-1 demand", "r1 waits booting"],
        ],
    ),
    "in flight: terminated by the next tick": (
        a_scenario(act(0, "drain", "linux-1"), tick(0), slots=[a_slot("linux-1", "booting")], cloud={"boot": 60}),
        [["terminate linux-1 requested"]],
    ),
    "what is empty, or terminating, is left as it is": (
        a_scenario(
            act(0, "drain", "linux-1"),
            act(0, "drain", "linux-2"),
            tick(0),
            slots=[a_slot("linux-2", "terminating")],
            cloud={"terminate": 60},
        ),
        [[]],
    ),
    "an expired lease lets it go in the same tick": (
        a_scenario(
            act(0, "drain", "linux-1"),
            *ticks(0, 10),
            slots=[a_slot("linux-1", "ready", "r1")],
            reservations=[a_holder("r1", ttl=10)],
        ),
        [[], ["expire r1 ttl", "terminate linux-1 drained"]],
    ),
    "a static host is empty, nothing is terminated": (
        a_scenario(
            act(0, "drain", "hosts-1"),
            *ticks(0, 5),
            pools={"hosts": {"system": "x86_64-linux", "provider": "static"}},
            slots=[a_slot("hosts-1")],
        ),
        [["reset hosts-1 drained"], []],
    ),
}


@pytest.mark.parametrize("name", DRAINS)
def test_a_drained_slot_goes_as_its_table_says(name: str) -> None:
    document, expected = DRAINS[name]
    assert play_out(document).ticks == expected


def hint(at: float, slot: str = "linux-1") -> Document:
    return act(at, "rebalance", slot)


HINTS: dict[str, tuple[Document, list[list[str]], list[str]]] = {
    # It takes nothing new, its leases run on, and whoever comes next gets another machine.
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
    "drain_timeout holds for it": (
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
    "a second hint changes nothing": (
        a_scenario(hint(0), hint(1), tick(1), pool={"drain_timeout": 60, "max_slots": 1}, **ON_ONE),
        [[]],
        ["0 slot_draining linux-1"],
    ),
    "then interrupted: the leases of one that drains already are requeued alike": (
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
    "what is empty, or terminating, is left as it is": (
        a_scenario(
            hint(0), hint(0, "linux-2"), tick(0), slots=[a_slot("linux-2", "terminating")], cloud={"terminate": 60}
        ),
        [[]],
        [],
    ),
    "min_slots counts only what serves": (
        a_scenario(hint(0), tick(0), pool={"min_slots": 1}, **ON_ONE),
        [["launch linux-2 minimum"]],
        ["0 slot_draining linux-1"],
    ),
}


@pytest.mark.parametrize("name", HINTS)
def test_a_rebalance_hint_is_heeded_as_its_table_says(name: str) -> None:
    document, expected, events = HINTS[name]
    played = play_out(document)
    assert played.ticks == expected
    told_of_one = [event for event in played.events if event.endswith(" linux-1")]
    assert told_of_one[: len(events)] == events
    assert events or not any("slot_draining" in event for event in told_of_one)


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
    """Requeued at the end of its grace whatever its restart policy, or failed at once and restarted by it."""
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
    told_of_it = [event for event in played.events if event.endswith(" r1")]
    if policy == "requeue":
        end = GRACES[grace]
        revoking = [] if end == 0 else ["0 reservation_revoking r1"]
        assert told_of_it == [*revoking, f"{end:g} reservation_pending r1", f"{end:g} reservation_leased r1"]
    elif restarts == "on_failure":
        assert told_of_it == ["0 reservation_failed r1", "0 reservation_pending r1", "0 reservation_leased r1"]
    else:
        assert told_of_it == ["0 reservation_failed r1"]
    assert "linux-1" not in played.slots


TIMEOUTS = {
    # state: (the key, the delay that makes it last)
    "launching": ("launch_timeout", "launch"),
    "booting": ("boot_timeout", "boot"),
    "binding": ("binding_timeout", "bind"),
    "terminating": ("terminating_timeout", "terminate"),
}


@pytest.mark.parametrize("state", TIMEOUTS)
@pytest.mark.parametrize(("age", "is_due"), [(29.999, False), (30, True), (31, True)])
def test_a_slot_times_out_when_its_age_in_the_state_is_the_timeout_or_more(
    state: str, age: float, is_due: bool
) -> None:
    key, delay = TIMEOUTS[state]
    assert told(
        tick(age - 10), pool={key: 30, "min_slots": 0}, slots=[a_slot("linux-1", state, since=-10)], cloud={delay: 9999}
    ) == [["terminate linux-1 timeout"] if is_due else []]


def test_each_state_has_a_clock_of_its_own() -> None:
    assert told(
        *ticks(0, 80, 119, 120),
        pool={"min_slots": 1, "max_slots": 1, "launch_timeout": 50, "boot_timeout": 50, "binding_timeout": 40},
        cloud={"launch": 40, "boot": 40, "bind": 9999, "terminate": 60},
    ) == [["launch linux-1 minimum"], [], [], ["terminate linux-1 timeout"]]


def test_a_termination_that_takes_too_long_is_asked_for_again_and_its_clock_starts_anew() -> None:
    played = play_out(
        a_scenario(
            *ticks(29, 30, 59, 60, 61),
            pool={"terminating_timeout": 30},
            slots=[a_slot("linux-1", "terminating")],
            cloud={"terminate": 200},
        )
    )
    assert played.ticks == [[], ["terminate linux-1 timeout"], [], ["terminate linux-1 timeout"], []]
    assert played.events == []


def test_a_lost_slot_is_empty_at_once_and_what_it_held_fails_in_the_next_tick() -> None:
    played = play_out(a_scenario(act(0, "lose", "linux-1"), *ticks(0, 5), **ON_ONE))
    assert played.ticks == [["fail r1 slot_gone"], []]
    assert played.events == ["0 slot_empty linux-1", "0 reservation_failed r1"]


def test_other_slots_and_their_leases_are_untouched() -> None:
    assert told(
        act(0, "remove", "linux-1"),
        *ticks(0, 5),
        slots=[a_slot("linux-1", "ready", "r1"), a_slot("linux-2", "ready", "r2")],
        reservations=[a_holder("r1"), a_holder("r2")],
    ) == [["fail r1 slot_gone"], []]


def test_a_removed_slot_may_be_declared_again_at_once() -> None:
    hosts = {"hosts": {"system": "x86_64-linux", "provider": "static"}}
    assert told(
        act(1, "remove", "hosts-1"),
        submit(1, "r1"),
        tick(1),
        act(2, "slot", a_slot("hosts-1")),
        tick(2),
        pools=hosts,
        slots=[a_slot("hosts-1")],
    ) == [["r1 waits never_fits"], ["assign r1 hosts-1"]]


def test_slots_come_back_when_the_maximum_is_raised_again() -> None:
    assert told(
        act(1, "rules", {"pools": {"linux": {"max_slots": 1}}}),
        act(2, "rules", {"pools": {"linux": {"max_slots": 3, "min_slots": 3}}}),
        tick(2),
        pool=a_pool(),
    ) == [["launch linux-1 minimum", "launch linux-2 minimum", "launch linux-3 minimum"]]
