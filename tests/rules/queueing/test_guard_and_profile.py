"""The starvation guard, the profile, and the limit of unconfirmed assignments."""

from typing import Any

import pytest

from scheduler.simulation.runner import play as play_lines
from scheduler.simulation.scenario import read_scenario
from tests.rules.playing import SYSTEM, Cases, a_holder, a_pool, a_scenario, a_slot, act, play_out, submit, tick

Line = dict[str, Any]


class Played:
    """Decisions of one play, the waits of its last tick, and the phase of each reservation."""

    def __init__(self, scenario: Line) -> None:
        self._lines = list(play_lines(read_scenario(scenario)))
        ticks = [line for line in self._lines if "tick" in line]
        self.codes = {each["reservation"]: each["code"] for each in ticks[-1]["waiting"]}
        self.reservations = {each["id"]: each for each in self._lines[-1]["state"]["reservations"]}

    def decisions(self, *names: str) -> list[Line]:
        return [each for line in self._lines for each in line.get("decisions", []) if each["do"] in names]


def play(scenario: Line) -> Played:
    return Played(scenario)


HOST: dict[str, Any] = {
    "system": "x",
    "provider": "static",
    "offline_timeout": 1e9,
    "max_leases_per_slot": 100,
    "lease_ttl": 0,
    "resources": {"cpus": 4},
}


def a_fleet(scheduler: dict[str, Any], timeline: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """One host of 4 cpus with a lease of 1 cpu that never ends."""
    return {
        "config": {"scheduler": scheduler, "pools": {"lab": HOST}},
        "slots": [{"id": "lab-1", "pool": "lab", "leases": [{"reservation": "old"}]}],
        "reservations": [{"id": "old", "system": "x", "resources": {"cpus": 1}, "phase": "leased"}],
        "timeline": timeline,
        **more,
    }


def asking(at: float, name: str, cpus: float, **more: Any) -> dict[str, Any]:
    return {"at": at, "submit": {"id": name, "system": "x", "resources": {"cpus": cpus}, **more}}


@pytest.mark.parametrize(
    ("guard", "small_at", "assigned", "code"),
    [
        (3600, 3600, True, None),  # pending for exactly as long: not yet
        (3600, 3600.5, False, "behind_queue"),  # longer: no reservation overtakes it on that slot
        (0, 9999, True, None),  # off
        ("1h", 3601, False, "behind_queue"),
    ],
)
def test_a_reservation_that_has_waited_too_long_is_not_overtaken(
    guard: object, small_at: float, assigned: bool, code: str | None
) -> None:
    timeline = [asking(0, "big", 4), asking(small_at, "small", 1), {"at": small_at, "tick": True}]
    played = play(a_fleet({"starvation_guard": guard}, timeline))
    assert ("small" in [each["reservation"] for each in played.decisions("assign")]) == assigned
    assert played.codes.get("small") == code
    assert played.codes["big"] == "no_capacity"


@pytest.mark.parametrize(("seconds", "code"), [(10, "gang_incomplete"), (11, "no_capacity")])
def test_a_new_protection_counts_although_nothing_else_has_changed(seconds: int, code: str) -> None:
    """Two gangs find capacity for all instances except one. The other gang cannot use the capacity of the protected
    one.
    """
    gang = {"components": [{"name": "rank", "count": 4, "resources": {"cpus": 1}}]}
    timeline = [
        {"at": at, "submit": {"id": name, "system": "x", **gang}} for at, name in enumerate(["first", "second"])
    ]
    ticks = [{"at": at, "tick": True} for at in (2, 3, seconds)]
    played = play(a_fleet({"starvation_guard": 10}, [*timeline, *ticks]))
    assert played.codes == {"first": "gang_incomplete", "second": code}


def test_a_reservation_that_has_waited_too_long_is_protected_behind_a_younger_equal_one() -> None:
    """Of two equal requests, the younger one comes first and needs no protection; the older one needs it."""
    timeline = [asking(0, "older", 4), asking(9999, "younger", 4, priority=2), asking(9999, "small", 1)]
    played = play(a_fleet({"queue": "priority"}, [*timeline, {"at": 9999, "tick": True}]))
    assert played.codes == {"younger": "no_capacity", "older": "no_capacity", "small": "behind_queue"}
    assert played.decisions("assign") == []


def test_the_guard_keeps_only_slots_that_could_serve_the_reservation() -> None:
    """A plain host could not serve the reservation that requires a label; it serves later ones."""
    scenario = a_fleet({}, [asking(0, "big", 4, labels={"gpu": "yes"}), asking(9999, "small", 1)])
    scenario["slots"].append(
        {"id": "lab-2", "pool": "lab", "labels": {"gpu": "yes"}, "leases": [{"reservation": "o2"}]}
    )
    scenario["reservations"].append({"id": "o2", "system": "x", "resources": {"cpus": 1}, "phase": "leased"})
    scenario["timeline"].append({"at": 9999, "tick": True})
    played = play(scenario)
    assert [(each["reservation"], each["leases"][0]["slot"]) for each in played.decisions("assign")] == [
        ("small", "lab-1")
    ]


@pytest.mark.parametrize(
    "big",
    [
        {"cpus": 5},  # never_fits
        {"cpus": 4, "priority": 0},  # on_hold
    ],
)
def test_a_reservation_that_does_not_wait_for_a_slot_is_not_protected(big: dict[str, Any]) -> None:
    first = asking(0, "big", big["cpus"], **({"priority": 0} if "priority" in big else {}))
    played = play(a_fleet({}, [first, asking(9999, "small", 1), {"at": 9999, "tick": True}]))
    assert [each["reservation"] for each in played.decisions("assign")] == ["small"]


GUARD: dict[str, Any] = {"starvation_guard": 50}
BIG = {"max_leases_per_slot": 9, "resources": {"cpus": 4}}
HALF_FULL = a_slot("linux-1", "ready", "old")
OLD = a_holder("old", resources={"cpus": 1})

BESIDE_OTHER_RULES: Cases = {
    # there is no overtaking anyway, and capacity for later ones is kept for them: nothing is launched
    "backfill is off": (
        a_scenario(
            submit(0, "head", system="other"),
            submit(1, "r1", "r2"),
            tick(99),
            scheduler={"backfill": False, **GUARD},
            pools={
                "linux": a_pool(max_leases_per_slot=2),
                "lab": {"system": "other", "provider": "static", "offline_timeout": 50},
            },
            slots=[a_slot("linux-1"), a_slot("lab-1")],
        ),
        [["head waits no_capacity", "r1 waits behind_queue", "r2 waits behind_queue"]],
    ),
    "a slot that its holder declined cannot serve it": (
        a_scenario(
            submit(0, "big"),
            tick(1),
            act(1, "decline", "big"),
            submit(99, "small"),
            tick(99),
            scheduler=GUARD,
            pool={"max_slots": 1},
            slots=[a_slot("linux-1")],
        ),
        [["assign big linux-1"], ["assign small linux-1", "big waits at_max_slots"]],
    ),
    # it waits with `cordoned`, though a machine could be launched for one of its instances
    "half of a gang could only go where a slot is cordoned": (
        a_scenario(
            submit(0, "gang", components=[{"name": "any"}, {"name": "wide", "resources": {"memory_mib": 50}}]),
            submit(99, "small", pool="linux", system=None),
            tick(99),
            scheduler=GUARD,
            pools={
                "linux": a_pool(max_slots=2, offerings=[{"name": "large", "resources": {}}]),
                "lab": {"system": SYSTEM, "provider": "static"},
            },
            slots=[a_slot("lab-1", cordoned=True)],
        ),
        [["launch linux-1 large demand", "gang waits cordoned", "small waits booting"]],
    ),
    # it waits with `booting`, not with `cordoned`
    "a launch serves it, and a cordoned slot would have had capacity": (
        a_scenario(
            submit(0, "big", resources={"cpus": 4}),
            submit(99, "small", resources={"cpus": 1}),
            tick(99),
            scheduler=GUARD,
            pool=BIG,
            slots=[HALF_FULL, a_slot("linux-2", cordoned=True)],
            reservations=[OLD],
            cloud={"boot": 60},
        ),
        [["launch linux-3 demand", "launch linux-4 demand", "big waits booting", "small waits behind_queue"]],
    ),
    # it waits with `booting`, not with `capacity`
    "launches pause, but a launch for it is in flight": (
        a_scenario(
            submit(0, "big", resources={"cpus": 4}),
            submit(99, "small", resources={"cpus": 1}),
            tick(99),
            scheduler=GUARD,
            pool=BIG,
            slots=[HALF_FULL, a_slot("linux-2", "booting")],
            reservations=[OLD],
            holds=[{"pool": "linux", "kind": "capacity", "until": 999}],
            cloud={"boot": 500},
        ),
        [["big waits booting", "small waits behind_queue"]],
    ),
    # it lacks one launch, not two: the kept slot is capacity for it
    "a gang is served on what is kept for it": (
        a_scenario(
            submit(0, "gang", components=[{"name": "w", "count": 2}]),
            submit(99, "small"),
            tick(99),
            tick(100),
            scheduler=GUARD,
            pool={"max_slots": 2},
            slots=[a_slot("linux-1")],
            cloud={"boot": 1},
        ),
        [
            ["launch linux-2 demand", "gang waits booting", "small waits behind_queue"],
            ["assign gang linux-1 linux-2", "small waits at_max_slots"],
        ],
    ),
    # the kept slot is capacity for some of its instances
    "a gang that cannot be completed": (
        a_scenario(
            submit(0, "gang", components=[{"name": "w", "count": 2}]),
            submit(99, "small"),
            tick(99),
            scheduler=GUARD,
            pools={"linux": {"system": SYSTEM, "provider": "static"}},
            slots=[a_slot("linux-1")],
        ),
        [["gang waits gang_incomplete", "small waits behind_queue"]],
    ),
    # what is launched for the earlier reservation has capacity for some of its instances
    "a gang beside a launch": (
        a_scenario(
            submit(0, "small"),
            submit(1, "gang", components=[{"name": "any"}, {"name": "here", "labels": {"zone": "1"}}]),
            tick(1),
            pools={
                "linux": a_pool(max_slots=2, max_leases_per_slot=2),
                "hosts": {"system": SYSTEM, "provider": "static", "labels": {"zone": "1"}},
            },
            slots=[a_slot("hosts-1", "ready", "old")],
            reservations=[a_holder("old")],
        ),
        [["launch linux-1 demand", "small waits booting", "gang waits gang_incomplete"]],
    ),
    # it waits with `gang_incomplete`, not with `cordoned`
    "a gang with capacity for some instances, beside a cordoned slot": (
        a_scenario(
            submit(0, "gang", components=[{"name": "w", "count": 2}]),
            submit(99, "small"),
            tick(99),
            scheduler=GUARD,
            pools={"linux": {"system": SYSTEM, "provider": "static"}},
            slots=[a_slot("linux-1"), a_slot("linux-2", cordoned=True)],
        ),
        [["gang waits gang_incomplete", "small waits behind_queue"]],
    ),
}


@pytest.mark.parametrize("name", BESIDE_OTHER_RULES)
def test_the_guard_together_with_other_rules(name: str) -> None:
    document, expected = BESIDE_OTHER_RULES[name]
    assert play_out(document).ticks == expected


@pytest.mark.parametrize(
    ("profile", "slots"), [("pack", ["lab-1", "lab-1", "lab-1"]), ("spread", ["lab-2", "lab-1", "lab-2"])]
)
def test_the_profile_compares_the_number_of_leases(profile: str, slots: list[str]) -> None:
    """lab-1 has one lease already; leases are counted again after each instance, and ties go to the first slot."""
    three = [asking(0, f"r{number}", 1) for number in range(3)]
    scenario = a_fleet({"profile": profile}, [*three, {"at": 0, "tick": True}])
    scenario["slots"].append({"id": "lab-2", "pool": "lab"})
    assert [each["leases"][0]["slot"] for each in play(scenario).decisions("assign")] == slots


def test_a_changed_profile_applies_from_the_next_tick_on() -> None:
    scenario = a_fleet({"profile": "pack"}, [asking(0, "r0", 1), {"at": 0, "tick": True}])
    scenario["slots"].append({"id": "lab-2", "pool": "lab"})
    scenario["timeline"] += [
        {"at": 1, "rules": {"scheduler": {"profile": "spread"}}},
        asking(1, "r1", 1),
        {"at": 1, "tick": True},
    ]
    assert [each["leases"][0]["slot"] for each in play(scenario).decisions("assign")] == ["lab-1", "lab-2"]


def test_a_reservation_fails_after_max_unconfirmed_assignments() -> None:
    scheduler = {"confirm_timeout": 10, "max_unconfirmed": 1}
    played = play(a_fleet(scheduler, [asking(0, "silent", 1)], tick_every=10, until=40))
    reported = [(each["do"], each["reason"]) for each in played.decisions("requeue", "fail")]
    assert reported == [("requeue", "unconfirmed"), ("fail", "unconfirmed")]
    assert played.reservations["silent"]["phase"] == "failed"


def test_a_slot_that_takes_a_lease_is_not_idle_although_a_later_gang_could_not_use_it() -> None:
    """`gang` would have filled linux-1 and the slot that is kept for `big`; the trial leaves linux-1 as it was."""
    pool = {"system": "x", "max_slots": 2, "lease_ttl": 0, "max_leases_per_slot": 9, "idle_scale_down": 10}
    linux = {"id": "linux-1", "pool": "linux", "resources": {"cpus": 2}}
    kept = {"id": "linux-2", "pool": "linux", "resources": {"cpus": 4}, "leases": [{"reservation": "old"}]}
    played = play(
        {
            "config": {"scheduler": {"starvation_guard": 50}, "pools": {"linux": pool}},
            "slots": [linux, kept],
            "reservations": [{"id": "old", "system": "x", "resources": {"cpus": 1}, "phase": "leased"}],
            "timeline": [
                asking(0, "big", 4),
                asking(99, "small", 1),
                {"at": 99, "submit": {"id": "gang", "system": "x", "components": [TWO]}},
                {"at": 99, "tick": True},
            ],
        }
    )
    assert [each["reservation"] for each in played.decisions("assign")] == ["small"]
    assert played.decisions("drain") == []


TWO = {"name": "w", "count": 2, "resources": {"cpus": 1}}


def test_without_backfill_reservations_behind_a_gang_take_none_of_the_capacity_that_it_waits_for() -> None:
    """Otherwise they would keep the ready slots, and the gang would wait for four new slots beside an empty one."""
    slots = [a_slot(f"linux-{number}") for number in (1, 2, 3)]
    gang = act(0, "submit", {"id": "gang", "system": SYSTEM, "components": [{"name": "node", "count": 4}]})
    behind = submit(0, "r1", "r2", "r3")
    played = play(a_scenario(gang, behind, slots=slots, scheduler={"backfill": False}, kicks=True, wakes=True, until=1))
    assert [each["slot"] for each in played.decisions("launch")] == ["linux-4"]
    assert played.reservations["gang"]["phase"] == "leased"
    assert played.codes == {"r1": "at_max_slots", "r2": "behind_queue", "r3": "behind_queue"}


def test_a_slot_that_one_reservation_declined_is_kept_for_the_next_one() -> None:
    """lab-2 is kept for `first`, and lab-1 for `second`, which asks for the same."""
    fleet = a_fleet(GUARD, [asking(99, "small", 1), {"at": 99, "tick": True}])
    fleet["slots"].append({"id": "lab-2", "pool": "lab", "leases": [{"reservation": "o2"}]})
    whole = {"system": "x", "resources": {"cpus": 4}}
    fleet["reservations"] += [
        {"id": "o2", "system": "x", "resources": {"cpus": 1}, "phase": "leased"},
        {"id": "first", **whole, "declined": ["lab-1"]},
        {"id": "second", **whole},
    ]
    assert play(fleet).codes == {"first": "no_capacity", "second": "no_capacity", "small": "behind_queue"}


def test_a_gang_is_kept_out_by_all_slots_together_that_are_kept_for_single_instances() -> None:
    """`x` packs onto lab-2, which has more leases, and leaves lab-1 to `y`. If lab-1 came first, `y` would lack it."""
    gang = [{"name": name, "resources": {"cpus": cpus}} for name, cpus in (("x", 1), ("y", 3))]
    first, second = ({"labels": {"rack": rack}} for rack in "ab")
    timeline = [asking(0, "one", 4, **first), asking(0, "two", 4, **second)]
    timeline.append({"at": 99, "submit": {"id": "gang", "system": "x", "components": gang}})
    fleet = a_fleet(GUARD, [*timeline, {"at": 99, "tick": True}])
    fleet["slots"] = [
        {"id": "lab-1", "pool": "lab", "leases": [{"reservation": "old"}], **first},
        {"id": "lab-2", "pool": "lab", "leases": [{"reservation": "o2"}, {"reservation": "o3"}], **second},
    ]
    fleet["reservations"] += [
        {"id": name, "system": "x", "resources": {"cpus": cpus}, "phase": "leased"}
        for name, cpus in (("o2", 1), ("o3", 2))
    ]
    assert play(fleet).codes == {"one": "no_capacity", "two": "no_capacity", "gang": "behind_queue"}
