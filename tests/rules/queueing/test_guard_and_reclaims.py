"""The starvation guard beside elastic instances."""

import pytest

from scheduler.model.view import View
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.elastic.cascade import Cascade, link_pools
from tests.builders import NOW, a_component, a_reservation, a_slot, some_rules
from tests.rules.playing import Document, play_out, tick
from tests.rules.zoe import a_lab, an_application, component, on_slot, submitted


def test_a_slot_that_is_kept_after_a_reclaim_keeps_out_a_request_for_which_it_was_too_full_before() -> None:
    """`early` and `late` ask for the same. The reclaim for `gang` leaves 3 of 6 units on lab-2, which is kept for
    `wide`.
    """
    zone: Document = {"labels": {"zone": "a"}}
    lacking = {"system": "sim", "resources": {"units": 3}, **zone}
    gang = [component("x", 1, 2, **zone), component("y", 1, 9)]
    played = play_out(
        a_lab(
            submitted(
                0, {"id": "big", "system": "sim", "resources": {"units": 4}, "labels": {"gpu": "yes"}, "priority": 9}
            ),
            submitted(0, {"id": "wide", "system": "sim", "resources": {"units": 6}, "priority": 6, **zone}),
            submitted(99, {"id": "early", "priority": 8, **lacking}, {"id": "late", "priority": 5, **lacking}),
            submitted(99, {"id": "gang", "system": "sim", "components": gang, "priority": 7}),
            tick(99),
            kicks=False,
            elastic="flexible",
            scheduler={"starvation_guard": 50, "queue": "priority", "preemption": False},
            slots=[
                on_slot("lab-1", 4, ("old", "core"), labels={"gpu": "yes"}),
                on_slot("lab-2", 6, ("r1", "core"), ("r1", "more.0"), **zone),
                on_slot("lab-3", 9, ("r1", "more.1")),
            ],
            reservations=[
                an_application("old", 1, units=3, phase="leased"),
                {
                    **an_application("r1", 1, phase="leased"),
                    "components": [component("core", 1, 1), component("more", 2, 5, "elastic")],
                },
            ],
        )
    )
    [reported] = played.ticks
    assert reported[2:] == [
        "assign gang lab-2 lab-3",
        *(f"{name} waits no_capacity" for name in ("big", "early", "wide")),
        "late waits behind_queue",
    ]


ONE: Document = {"resources": {"units": 3}}
PAIR: Document = {"components": [component("w", 2, 3)]}
LARGE: Document = {"resources": {"units": 7}}


@pytest.mark.parametrize(
    ("late", "code"),
    [(ONE, "behind_queue"), (PAIR, "behind_queue"), (LARGE, "no_capacity")],
    ids=["one", "gang", "large"],
)
@pytest.mark.parametrize("elastic", ["yielding", "flexible"])
def test_a_request_that_only_a_reclaim_on_a_kept_slot_could_serve_waits_behind_the_queue(
    late: Document, code: str, elastic: str
) -> None:
    """Without its 5 elastic instances, the slot has 6 of 10 units, but `wide`, for which it is kept, needs 8."""
    elastic_leases = [("e", f"more.{number}") for number in range(5)]
    holder = {"id": "e", "components": [component("core", 1, 4), component("more", 5, 1, "elastic")]}

    def play(guard: float) -> list[str]:
        [reported] = play_out(
            a_lab(
                submitted(0, {"id": "wide", "system": "sim", "resources": {"units": 8}}),
                submitted(99, {"id": "late", "system": "sim", **late}),
                tick(99),
                kicks=False,
                elastic=elastic,
                scheduler={"starvation_guard": guard},
                slots=[on_slot("lab-1", 10, ("e", "core"), *elastic_leases)],
                reservations=[{"system": "sim", "phase": "leased", **holder}],
            )
        ).ticks
        return reported

    assert play(50) == ["wide waits no_capacity", f"late waits {code}"]
    assert (late == LARGE) != ("assign late" in " ".join(play(0)))


@pytest.mark.parametrize("before", [(), (an_application("wide", 5),)], ids=["alone", "behind a wider gang in vain"])
@pytest.mark.parametrize(
    "components",
    [[component("core", 3, 1)], [component("core", 2, 1), component("side", 1, 0.5)]],
    ids=["one kind", "two kinds, each of which would fit alone"],
)
def test_a_gang_for_which_elastic_instances_were_reclaimed_is_kept_out_by_the_guard(
    components: list[Document], before: tuple[Document, ...]
) -> None:
    """`small` leaves two of three units that `more` gives back. With the one that is kept for `big` they would suffice
    for the gang, although an earlier, larger gang found too little.
    """
    gpu: Document = {"labels": {"gpu": "yes"}}
    gang = {"id": "gang", "system": "sim", "components": components}
    played = play_out(
        a_lab(
            submitted(0, {"id": "big", "system": "sim", "resources": {"units": 4}, **gpu}),
            submitted(99, *before, an_application("small", 1), gang),
            tick(99),
            kicks=False,
            scheduler={"starvation_guard": 50},
            slots=[on_slot("lab-1", 4, ("old", "core"), **gpu), on_slot("lab-2", 6, ("r1", "core"), ("r1", "more"))],
            reservations=[
                an_application("old", 1, units=3, phase="leased"),
                an_application("r1", 1, 1, units=3, phase="leased"),
            ],
        )
    )
    [reported] = played.ticks
    assert reported[:3] == ["revoke r1 more lab-2 reclaimed", "assign small lab-2", "big waits no_capacity"]
    assert reported[-1] == "gang waits behind_queue"


def test_what_a_reservation_got_no_longer_counts_as_capacity_that_keeps_nothing_out() -> None:
    """linux-1 could hold both instances of `gang` until `one` gets a half of it. linux-2 is kept, and could hold the
    other instance.
    """
    gang = a_reservation("gang", components=(a_component(count=2, resources={"cpus": 2}),))
    one, large = (a_reservation(name, resources={"cpus": cpus}) for name, cpus in (("one", 2), ("large", 9)))
    slots = [a_slot("linux-1", resources={"cpus": 4}), a_slot("linux-2", resources={"cpus": 2})]
    pools = {"linux": {"resources": {"cpus": 4}, "max_slots": 2}}
    rules = some_rules({"scheduler": {"elastic": "yielding"}, "pools": pools})
    cycle = CycleState(View([*slots, gang, one, large]), rules, NOW)
    cycle.open_indexes()
    first, second = cycle.slot_infos["linux-1"], cycle.slot_infos["linux-2"]
    cycle.ready.remove(second)
    demands = [cycle.demand_of(each) for each in (gang, one, large)]
    cascade = Cascade(cycle, rules.scheduler, {"large": 0}, link_pools(demands))
    assert cascade.make_room(large, demands[2]) is None
    kept = [cycle.make_index([second])]
    assert not cascade.is_kept_out(demands[0], kept)
    cascade.spend(demands[1], [first])
    assert cascade.is_kept_out(demands[0], kept)
