"""Cases from Arvados: one pass over the queue, and how slots are drained when the pool is full."""

import pytest

from tests.rules.arvados import EIGHT, SLOW, a_case, an_outage, c, t, types
from tests.rules.playing import Cases, a_holder, a_pool, a_slot, act, play_out, reported, submit, tick, ticks

CASES: Cases = {
    # ---- one pass
    "L 8: ready slot of 3 cpus, offerings from t2": (
        a_case(
            *(c(n) for n in (1, 2, 3, 4)),
            tick(0),
            pool={**EIGHT, "offerings": types(2, 3, 4, 8)},
            slots=[t("linux-1", 3)],
        ),
        [
            [
                *("assign c4 linux-1", "assign c3 linux-1", "assign c2 linux-1"),
                *("launch linux-2 t2 demand", "c1 waits booting"),
            ]
        ],
    ),
    "L 8: the same, slot of 4 cpus": (
        a_case(
            *(c(n) for n in (1, 2, 3, 4)),
            tick(0),
            pool={**EIGHT, "offerings": types(2, 3, 4, 8)},
            slots=[t("linux-1", 4)],
        ),
        [[f"assign c{n} linux-1" for n in (4, 3, 2, 1)]],
    ),
    "L 8: no slots; 9, then 5, then 1 cpu": (
        a_case(c(3, 9), c(2, 5), c(1, 1), tick(0), pool=EIGHT),
        [["launch linux-1 t16 demand", "c3 waits booting", "c2 waits booting", "c1 waits booting"]],
    ),
    "L 1, max 2: two idle slots of 2 cpus": (
        a_case(c(3, 2), c(2, 2), tick(0), pool={"max_slots": 2}, slots=[t("linux-1", 2), t("linux-2", 2)]),
        [["assign c3 linux-1", "assign c2 linux-2"]],
    ),
    # ready slots before slots in flight, whatever the profile prefers by labels or leases
    "ready before in flight": (
        a_case(c(1), tick(0), slots=[t("linux-1", 1, "booting"), t("linux-2", 16)], cloud=SLOW),
        [["assign c1 linux-2"]],
    ),
    "memory counts as well": (
        a_case(submit(0, "r1", resources={"cpus": 1, "memory_mib": 3400}), tick(0)),
        [["launch linux-1 t4 demand", "r1 waits booting"]],
    ),
    # ---- full
    "max 1: an idle slot that is too small drains": (
        a_case(c(3, 3), *ticks(0, 1, 3, 6), pool={"max_slots": 1}, slots=[t("linux-1", 2)], cloud=SLOW),
        [
            ["drain linux-1 at_quota", "c3 waits at_max_slots"],
            ["terminate linux-1 drained", "c3 waits at_max_slots"],
            ["c3 waits at_max_slots"],
            ["launch linux-1 t3 demand", "c3 waits booting"],
        ],
    ),
    "max 1: minimum and warm do not protect it": (
        a_case(
            c(3, 3), tick(0), pool={"max_slots": 1, "min_slots": 1, "target_warm_slots": 1}, slots=[t("linux-1", 2)]
        ),
        [["drain linux-1 at_quota", "c3 waits at_max_slots"]],
    ),
    "a pool is full because it has no further slots": (
        a_case(c(3, 3), tick(0), pool={"max_slots": 2}, slots=[t("linux-1", 2), a_slot("linux-2", "error")]),
        [["drain linux-1 at_quota", "c3 waits at_max_slots"]],
    ),
    "one slot for each launch withheld": (
        a_case(
            c(5, 3), c(4, 3), tick(0), pool={"max_slots": 3}, slots=[t("linux-1", 1), t("linux-2", 1), t("linux-3", 1)]
        ),
        [["drain linux-1 at_quota", "drain linux-2 at_quota", "c5 waits at_max_slots", "c4 waits at_max_slots"]],
    ),
    "L 8: two that would share one launch are one launch": (
        a_case(
            c(5, 3),
            c(4, 1),
            tick(0),
            pool={**EIGHT, "max_slots": 2, "offerings": types(2, 4)},
            slots=[t("linux-1", 2, cordoned=True), t("linux-2", 2, "booting", idle_since=0)],
            cloud=SLOW,
        ),
        # c4 fits the slot that boots, so that slot is needed
        [["c5 waits at_max_slots", "c4 waits booting"]],
    ),
    "L 8: what two share is withheld once": (
        a_case(
            c(5, 3),
            c(4, 5),
            tick(0),
            pool={**EIGHT, "max_slots": 2, "offerings": types(2, 8)},
            slots=[t("linux-1", 2), t("linux-2", 2)],
        ),
        [["drain linux-1 at_quota", "c5 waits at_max_slots", "c4 waits at_max_slots"]],
    ),
    "in flight before ready, then longest idle, then slot order": (
        a_case(
            *(c(n, 3) for n in (9, 8, 7, 6)),
            tick(0),
            pool={"max_slots": 12},
            slots=[
                *(t(f"linux-{n}", 1, cordoned=True) for n in (1, 4, 5, 6, 7, 8, 9)),
                t("linux-2", 1, idle_since=-1),
                t("linux-3", 1, idle_since=-9),
                t("linux-10", 1, idle_since=-9),
                t("linux-11", 1, "binding"),
                t("linux-12", 1, "booting"),
            ],
            cloud={"boot": 99, "bind": 99},
        ),
        [
            ["terminate linux-11 at_quota", "terminate linux-12 at_quota", "drain linux-3 at_quota"]
            + ["drain linux-10 at_quota"]
            + [f"c{n} waits at_max_slots" for n in (9, 8, 7, 6)]
        ],
    ),
    "draining and terminating ones count as room being made": (
        a_case(
            c(5, 3),
            c(4, 3),
            c(3, 3),
            tick(0),
            pool={"max_slots": 4},
            slots=[t("linux-1", 1), t("linux-2", 1), t("linux-3", 1, "draining", "h"), t("linux-4", 1, "terminating")],
            reservations=[a_holder("h")],
            cloud=SLOW,
        ),
        [["drain linux-1 at_quota", "c5 waits at_max_slots", "c4 waits at_max_slots", "c3 waits at_max_slots"]],
    ),
    "cordoned ones and leased ones stay": (
        a_case(
            c(5, 3),
            tick(0),
            pool={"max_slots": 2},
            slots=[t("linux-1", 1, cordoned=True), t("linux-2", 1, "ready", "h")],
            reservations=[a_holder("h")],
        ),
        [["c5 waits at_max_slots"]],
    ),
    "a slot that takes a lease in this tick stays": (
        a_case(c(5, 3), c(4, 1), tick(0), pool={"max_slots": 1}, slots=[t("linux-1", 1)]),
        [["assign c4 linux-1", "c5 waits at_max_slots"]],
    ),
    "a slot that is kept for a reservation behind a blocked queue stays": (
        a_case(
            c(5, 3), c(4, 1), tick(0), scheduler={"backfill": False}, pool={"max_slots": 1}, slots=[t("linux-1", 1)]
        ),
        [["c5 waits at_max_slots", "c4 waits behind_queue"]],
    ),
    "no reservation waits: nothing is drained": (
        a_case(*ticks(0, 1), pool={"max_slots": 1}, slots=[t("linux-1", 1)]),
        [[], []],
    ),
    "no reservation can be served: nothing is drained": (
        a_case(
            submit(0, "r1", resources={"cpus": 99}),
            submit(0, "r2", priority=0),
            submit(0, "r3", system="mac"),
            tick(0),
            pool={"max_slots": 1},
            slots=[t("linux-1", 1)],
        ),
        [["r1 waits never_fits", "r3 waits no_pool", "r2 waits on_hold"]],
    ),
    "without a quota refusal nothing is drained": (
        a_case(c(3, 3), tick(0), slots=[t("linux-1", 1)], pool={"max_slots": 2}),
        [["launch linux-2 t3 demand", "c3 waits booting"]],
    ),
    "a slot that no reservation waits for any more boots on": (
        a_case(c(1), tick(0), act(1, "cancel", "c1"), tick(1), pool={"max_slots": 1}, cloud=SLOW),
        [["launch linux-1 t1 demand", "c1 waits booting"], []],
    ),
    "the idle slot drains as idle, and is the headroom": (
        a_case(c(3, 3), tick(0), pool={"max_slots": 2}, slots=[t("linux-1", 1, idle_since=-999), t("linux-2", 1)]),
        [["drain linux-1 idle", "c3 waits at_max_slots"]],
    ),
    # the launch would pause all the same
    "full and short of capacity: nothing is drained": (
        a_case(
            an_outage("capacity", offering="t3"),
            c(3, 3),
            tick(0),
            act(1, "slot", t("linux-2", 1)),
            tick(1),
            pool={"max_slots": 2, "price_factor": 1},
            slots=[t("linux-1", 1)],
        ),
        [["launch linux-2 t3 demand", "c3 waits booting"], ["c3 waits at_max_slots"]],
    ),
    "a gang that max_slots will never hold drains nothing": (
        a_case(
            submit(0, "g", components=[{"name": "w", "count": 2}]),
            *ticks(0, 1),
            pool={"max_slots": 1, "target_warm_slots": 1},
            slots=[t("linux-1", 1)],
            cloud=SLOW,
        ),
        [["g waits at_max_slots"], ["g waits at_max_slots"]],
    ),
    "the slots that a gang would use stay": (
        a_case(
            submit(0, "g", components=[{"name": "w", "count": 2, "resources": {"cpus": 3}}]),
            tick(0),
            pool={"max_slots": 2},
            slots=[t("linux-1", 3), t("linux-2", 2)],
        ),
        [["drain linux-2 at_quota", "g waits at_max_slots"]],
    ),
    "no slot goes for a gang that needs a slot more than max_slots beside the one that it would use": (
        a_case(
            submit(
                0,
                "g",
                components=[
                    {"name": "w", "resources": {"cpus": 2}},
                    {"name": "x", "count": 2, "resources": {"cpus": 3}},
                ],
            ),
            tick(0),
            pool={"max_slots": 2},
            slots=[t("linux-1", 2), t("linux-2", 2)],
        ),
        [["g waits at_max_slots"]],
    ),
    "as many launches are withheld as the pool has slots: a later gang keeps none of these slots": (
        a_case(
            c(5, 3),
            c(4, 3),
            submit(
                0,
                "g",
                priority=1,
                components=[{"name": "w", "resources": {"cpus": 2}}, {"name": "x", "resources": {"cpus": 3}}],
            ),
            tick(0),
            pool={"max_slots": 2},
            slots=[t("linux-1", 2), t("linux-2", 2)],
        ),
        [
            [
                "drain linux-1 at_quota",
                "drain linux-2 at_quota",
                *(f"{name} waits at_max_slots" for name in ("c5", "c4", "g")),
            ]
        ],
    ),
    "a slot that is launched in this tick after its cool-down does not drain": (
        a_case(
            c(3, 3),
            tick(60),
            pool={"max_slots": 2, "target_warm_slots": 1, "price_factor": 1},
            slots=[a_slot("linux-1", "error"), t("linux-2", 2, "ready", "h")],
            reservations=[a_holder("h")],
        ),
        [["reset linux-1 cooled_down", "launch linux-1 t3 demand", "c3 waits booting"]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_pass_places_reservations_and_a_full_pool_makes_headroom(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_slots_of_other_pools_do_not_drain_for_a_full_pool() -> None:
    assert reported(
        c(3, 3),
        tick(0),
        pools={
            "linux": a_pool(max_slots=1, offerings=types(1, 3)),
            "spare": a_pool(system="mac", max_slots=1, offerings=types(1, 3)),
        },
        slots=[t("linux-1", 1, cordoned=True), t("spare-1", 1)],
    ) == [["c3 waits at_max_slots"]]


def test_of_several_pools_that_make_headroom_the_first_configured_one_drains_first() -> None:
    assert reported(
        submit(0, "m1", system="mac", resources={"cpus": 3}),
        submit(1, "l1", resources={"cpus": 3}),
        tick(1),
        pools={
            "linux": a_pool(max_slots=1, offerings=types(1, 3)),
            "mac": a_pool(system="mac", max_slots=1, offerings=types(1, 3)),
        },
        slots=[t("linux-1", 1), t("mac-1", 1)],
    ) == [["drain linux-1 at_quota", "drain mac-1 at_quota", "m1 waits at_max_slots", "l1 waits at_max_slots"]]


def test_a_reservation_shares_the_withheld_launch_of_the_first_configured_pool() -> None:
    """`r3` may use both pools. Beside `r2` it leaves no capacity for `r4`, which needs a launch of its own."""
    pools = {
        name: a_pool(system="s", max_slots=most, offerings=types(1, 4)) for name, most in (("first", 2), ("second", 1))
    }
    wishes = [{"pool": "second"}, {"pool": "first"}, {"system": "s"}, {"pool": "first"}]
    submitted = [{"id": f"r{number}", "resources": {"cpus": 2}, **wish} for number, wish in enumerate(wishes, 1)]
    slots = [t("first-1", 1), t("first-2", 1), t("second-1", 1)]
    assert reported({"at": 0, "submit": submitted}, tick(0), pools=pools, slots=slots) == [
        [
            *("drain first-1 at_quota", "drain first-2 at_quota", "drain second-1 at_quota"),
            *(f"r{number} waits at_max_slots" for number in range(1, 5)),
        ]
    ]
