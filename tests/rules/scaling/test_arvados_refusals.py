"""Cases from Arvados: launches that the cloud refuses for lack of capacity or quota."""

import pytest

from tests.rules.arvados import a_case, an_outage, c, t, types
from tests.rules.playing import Cases, a_holder, a_slot, act, play_out, submit, tick, ticks

TWO_MARKETS = [
    {"name": "small", "market": "spot", "price": 1, "resources": {"cpus": 1, "memory_mib": 1000}},
    {"name": "large", "market": "on-demand", "price": 2, "resources": {"cpus": 8, "memory_mib": 8000}},
]

CASES: Cases = {
    # ---- capacity
    "t4 pauses: reservations that need another offering are served": (
        a_case(an_outage("capacity", offering="t4"), c(3, 4), tick(0), c(2, 4, at=1), c(1, 1, at=1), tick(1)),
        [
            ["launch linux-1 t4 demand", "c3 waits booting"],
            ["launch linux-1 t1 demand", "c3 waits capacity", "c2 waits capacity", "c1 waits booting"],
        ],
    ),
    "at capacity nothing idle is drained": (
        a_case(an_outage("capacity", offering="t4"), c(3, 4), *ticks(0, 1, 59, 60), slots=[t("linux-1", 1)]),
        [
            ["launch linux-2 t4 demand", "c3 waits booting"],
            ["c3 waits capacity"],
            ["c3 waits capacity"],
            ["launch linux-2 t4 demand", "c3 waits booting"],
        ],
    ),
    "after the pause the first in queue order gets it": (
        a_case(
            an_outage("capacity", 5, offering="t4"),
            c(1, 4),
            tick(0),
            c(3, 4, at=10),
            *ticks(10, 60),
            pool={"max_slots": 1},
        ),
        [
            ["launch linux-1 t4 demand", "c1 waits booting"],
            ["c3 waits capacity", "c1 waits capacity"],
            ["launch linux-1 t4 demand", "c3 waits booting", "c1 waits at_max_slots"],
        ],
    ),
    # ---- quota
    "quota: one unneeded slot drains for each launch withheld": (
        a_case(
            an_outage("quota", 5),
            c(3, 3),
            *ticks(0, 1, 2, 8),
            slots=[t("linux-1", 1), t("linux-2", 1)],
            cloud={"terminate": 5},
        ),
        [
            ["launch linux-3 t3 demand", "c3 waits booting"],
            ["drain linux-1 at_quota", "c3 waits at_quota"],
            ["terminate linux-1 drained", "c3 waits at_quota"],
            # fewer are active than at the refusal
            ["launch linux-1 t3 demand", "c3 waits booting"],
        ],
    ),
    "quota: later reservations that fit a ready slot get it": (
        a_case(an_outage("quota", 5), c(3, 3), tick(0), c(2, 1, at=1), tick(1), slots=[t("linux-1", 1)]),
        [["launch linux-2 t3 demand", "c3 waits booting"], ["assign c2 linux-1", "c3 waits at_quota"]],
    ),
    "quota: the minimum is launched in a market that has no back-off while a launch in the other one is withheld": (
        a_case(
            an_outage("quota", 5, offering="large"),
            c(3, 8),
            *ticks(0, 1),
            pool={"offerings": TWO_MARKETS, "min_slots": 1},
        ),
        [["launch linux-1 large demand", "c3 waits booting"], ["launch linux-1 small minimum", "c3 waits at_quota"]],
    ),
    "quota and full: at_max_slots": (
        a_case(
            an_outage("quota", 5),
            c(3, 3),
            tick(0),
            act(1, "slot", t("linux-2", 1, cordoned=True)),
            tick(1),
            slots=[t("linux-1", 1, cordoned=True)],
            pool={"max_slots": 2},
        ),
        [["launch linux-2 t3 demand", "c3 waits booting"], ["c3 waits at_max_slots"]],
    ),
    "quota refused with 2 others active; one ends after 10 s": (
        a_case(
            an_outage("quota", 5),
            c(3),
            c(2),
            *ticks(0, 5, 9.9),
            act(10, "release", "h1"),
            act(10, "drain", "linux-1"),
            *ticks(10, 11, 12, 16),
            slots=[t("linux-1", 16, "ready", "h1"), t("linux-2", 16, "ready", "h2")],
            reservations=[a_holder("h1"), a_holder("h2")],
            cloud={"terminate": 5, "launch": 3},
        ),
        [
            ["launch linux-3 t1 demand", "launch linux-4 t1 demand", "c3 waits booting", "c2 waits booting"],
            ["c3 waits at_quota", "c2 waits at_quota"],
            ["c3 waits at_quota", "c2 waits at_quota"],
            ["terminate linux-1 drained", "c3 waits at_quota", "c2 waits at_quota"],
            ["c3 waits at_quota", "c2 waits at_quota"],
            ["c3 waits at_quota", "c2 waits at_quota"],
            # one launch, for the first, alone
            ["launch linux-1 t1 demand", "c3 waits booting", "c2 waits at_quota"],
        ],
    ),
    "quota refused, no slot active: only the time counts": (
        a_case(an_outage("quota", 5), c(3), *ticks(0, 5, 30, 59, 60), pool={"max_slots": 2}),
        [
            ["launch linux-1 t1 demand", "c3 waits booting"],
            *[["c3 waits at_quota"]] * 3,
            ["launch linux-1 t1 demand", "c3 waits booting"],
        ],
    ),
    "the launch after a quota back-off goes alone, and nothing is drained for the second": (
        a_case(
            an_outage("quota", 5),
            c(3, 3),
            c(2, 3),
            tick(0),
            act(63, "slot", t("linux-4", 1)),
            *ticks(63, 64, 67),
            cloud={"launch": 3, "boot": 99},
        ),
        [
            ["launch linux-1 t3 demand", "launch linux-2 t3 demand", "c3 waits booting", "c2 waits booting"],
            ["launch linux-1 t3 demand", "c3 waits booting", "c2 waits at_quota"],
            ["c3 waits booting", "c2 waits at_quota"],
            ["launch linux-2 t3 demand", "c3 waits booting", "c2 waits booting"],
        ],
    ),
    "a second refusal of that instant, in another market, does not count as a slot that ended": (
        a_case(
            an_outage("quota", 5),
            c(3, 1),
            c(2, 8),
            *ticks(0, 1, 59, 60),
            pool={"offerings": TWO_MARKETS},
            slots=[a_slot("linux-3", "ready", "h")],
            reservations=[a_holder("h")],
        ),
        [
            ["launch linux-1 small demand", "launch linux-2 large demand", "c3 waits booting", "c2 waits booting"],
            *[["c3 waits at_quota", "c2 waits at_quota"]] * 2,
            ["launch linux-1 small demand", "launch linux-2 large demand", "c3 waits booting", "c2 waits booting"],
        ],
    ),
    "a launch that is refused at that instant for lack of capacity does not either": (
        a_case(
            an_outage("quota", 5, offering="small"),
            an_outage("capacity", 5, offering="large"),
            c(3, 1),
            c(2, 8),
            *ticks(0, 1, 60),
            pool={"offerings": TWO_MARKETS},
            slots=[a_slot("linux-3", "ready", "h")],
            reservations=[a_holder("h")],
        ),
        [
            ["launch linux-1 small demand", "launch linux-2 large demand", "c3 waits booting", "c2 waits booting"],
            ["c3 waits at_quota", "c2 waits capacity"],
            ["launch linux-1 small demand", "launch linux-2 large demand", "c3 waits booting", "c2 waits booting"],
        ],
    ),
    "a launch that was decided before the refusal was known is no trial": (
        a_case(an_outage("quota", 1), c(3), tick(0), c(2, at=2), *ticks(2, 8, 64, 65), cloud={"launch": 5, "boot": 99}),
        [
            ["launch linux-1 t1 demand", "c3 waits booting"],
            ["launch linux-2 t1 demand", "c3 waits booting", "c2 waits booting"],
            *[["c3 waits booting", "c2 waits at_quota"]] * 2,
            ["launch linux-1 t1 demand", "c3 waits booting", "c2 waits booting"],
        ],
    ),
    "it is no trial either when it succeeds after the back-off: the next launch goes alone": (
        a_case(
            an_outage("quota", 1),
            c(5),
            tick(0),
            c(4, at=2),
            tick(2),
            c(3, at=8),
            tick(8),
            pool={"quota_hold": 1},
            cloud={"launch": 5, "boot": 99},
        ),
        [
            ["launch linux-1 t1 demand", "c5 waits booting"],
            ["launch linux-2 t1 demand", "c5 waits booting", "c4 waits booting"],
            ["launch linux-1 t1 demand", "c5 waits booting", "c4 waits booting", "c3 waits at_quota"],
        ],
    ),
    "a back-off that ended because fewer are active stays ended when another market launches": (
        a_case(
            an_outage("quota", 5, offering="small"),
            c(3, 1),
            tick(0),
            act(9, "cancel", "c3"),
            act(10, "lose", "linux-3"),
            c(2, 8, at=10),
            tick(10),
            c(1, 1, at=11),
            tick(11),
            pool={"offerings": TWO_MARKETS},
            slots=[a_slot("linux-3", "ready", "h1"), a_slot("linux-4", "ready", "h2")],
            reservations=[a_holder("h1"), a_holder("h2")],
            cloud={"boot": 99},
        ),
        [
            ["launch linux-1 small demand", "c3 waits booting"],
            ["fail h1 slot_gone", "launch linux-1 large demand", "c2 waits booting"],
            ["launch linux-2 small demand", "c2 waits booting", "c1 waits booting"],
        ],
    ),
    "it also stays ended when a machine is adopted": (
        a_case(
            an_outage("quota", 5),
            c(3),
            tick(0),
            act(10, "lose", "linux-3"),
            act(11, "found", {"pool": "linux", "slot": "linux-2", "offering": "t1"}),
            c(2, at=12),
            tick(12),
            slots=[t("linux-3", 16, "ready", "h1"), t("linux-4", 16, "ready", "h2")],
            reservations=[a_holder("h1"), a_holder("h2")],
            cloud={"boot": 99},
        ),
        [
            ["launch linux-1 t1 demand", "c3 waits booting"],
            ["fail h1 slot_gone", "launch linux-1 t1 demand", "c3 waits booting", "c2 waits booting"],
        ],
    ),
    "a gang tries the quota with one launch and then continues": (
        a_case(
            an_outage("quota", 5),
            submit(0, "g", components=[{"name": "w", "count": 2}]),
            *ticks(0, 62, 63, 64, 67),
            cloud={"launch": 3, "boot": 99},
        ),
        [
            ["launch linux-1 t1 demand", "launch linux-2 t1 demand", "g waits booting"],
            ["g waits at_quota"],
            ["launch linux-1 t1 demand", "g waits at_quota"],
            ["g waits at_quota"],
            ["launch linux-2 t1 demand", "g waits booting"],
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_launches_pause_and_slots_drain_after_a_refusal(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_draining_at_quota_is_not_repeated_and_ends() -> None:
    """With kicks and wakes: the small idle slots make headroom for the large ones, each once."""
    played = play_out(
        a_case(
            c(9, 16),
            c(8, 16),
            pool={"max_slots": 2, "min_slots": 2, "target_warm_slots": 1},
            slots=[t("linux-1", 1), t("linux-2", 1)],
            cloud={"boot": 5, "terminate": 5},
            kicks=True,
            wakes=True,
            until=600,
        )
    )
    assert played.decisions == [
        *("0 drain linux-1 at_quota", "0 drain linux-2 at_quota"),
        *("0 terminate linux-1 drained", "0 terminate linux-2 drained"),
        *("5 launch linux-1 t16 demand", "5 launch linux-2 t16 demand"),
        *("10 assign c9 linux-1", "10 assign c8 linux-2"),
    ]


def test_during_the_trial_of_a_quota_each_gang_keeps_the_idle_slot_that_it_would_use() -> None:
    """EC2 permits the three machines that run. Each gang would use one of them, and a larger one."""
    gang = [{"name": "w", "resources": {"cpus": 2}}, {"name": "x", "resources": {"cpus": 4}}]
    played = play_out(
        a_case(
            submit(0, "g1", "g2", "g3", components=gang),
            pool={"max_slots": 6, "idle_scale_down": 5, "offerings": types(2, 4), "price_factor": 1},
            slots=[t(f"linux-{number}", 2) for number in (1, 2, 3)],
            cloud={"launch": 3, "boot": 1, "quota": 3},
            kicks=True,
            wakes=True,
            until=100,
        )
    )
    assert played.decisions == [
        *(f"0 launch linux-{number} t4 demand" for number in (4, 5, 6)),
        "63 launch linux-4 t4 demand",
    ]
