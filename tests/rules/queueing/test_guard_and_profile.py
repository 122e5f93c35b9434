"""The starvation guard, the profile, and the limit of unconfirmed assignments."""

from typing import Any

import pytest

from scheduler.simulation.runner import play as play_lines
from scheduler.simulation.scenario import read_scenario
from tests.rules.playing import SYSTEM, Cases, a_holder, a_pool, a_scenario, a_slot, play_out, submit, tick

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
OLD = a_holder("old", resources={"cpus": 1})

BESIDE_OTHER_RULES: Cases = {
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


TWO = {"name": "w", "count": 2, "resources": {"cpus": 1}}


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
