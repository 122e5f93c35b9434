"""Commands that name a component with several instances concern all of its instances."""

from itertools import islice
from random import Random

import pytest

from scheduler.policy.elastic.wanted import find_elastic, find_number
from tests.builders import a_component, a_reservation
from tests.rules.playing import Document, act, play_out, tick
from tests.rules.zoe import MODES, a_lab, an_application, component, holdings, on_slot

HELD = on_slot("lab-1", 4, ("r1", "core.0"), ("r1", "core.1"), ("r1", "more.0"), ("r1", "more.1"))
"""r1 holds both of its essential and both of its elastic instances."""
GRACE = {"preemption_grace": 30}


def held_by_r1(*timeline: Document, policy: str = "never", more: int = 2, room: float = 0, **parts: object) -> Document:
    """`more`: the number of elastic instances that r1 has asked for. `room`: free units on another slot."""
    row = an_application("r1", 2, more, phase="leased", restart_policy=policy)
    slots = [HELD, *([room] if room else [])]
    return a_lab(*timeline, slots=slots, reservations=[row], **parts)  # type: ignore[arg-type]


def surrendered(at: float, component: str | None = None, **fields: object) -> Document:
    named = {} if component is None else {"component": component}
    return act(at, "surrender", {"reservation": "r1", **named, **fields})


ON_LAB_2 = [f"5 grant r1 more.{number} lab-2 room" for number in range(6)]
GIVEN_BACK: dict[str, tuple[Document, list[str], list[str]]] = {
    "the instance that was named is not granted again, the others of its component are": (
        held_by_r1(surrendered(5, "more.0"), tick(6), more=4, room=9),
        ["5 grant r1 more.2 lab-1 room", "5 grant r1 more.3 lab-2 room"],
        ["more.1", "more.2", "more.3"],
    ),
    "the name of the component means all its instances, also those that were not granted yet": (
        held_by_r1(surrendered(5, "more"), tick(6), more=4, room=9),
        [],
        [],
    ),
    "a smaller number ends instances with the highest index first": (
        held_by_r1(surrendered(5, "more", want=1), tick(6), more=4, room=9),
        [],
        ["more.0"],
    ),
    "a larger number grants up to it": (
        held_by_r1(surrendered(5, "more", want=3), tick(6), more=4, room=9),
        ON_LAB_2[2:3],
        ["more.0", "more.1", "more.2"],
    ),
    "a number of all instances or more grants all": (
        held_by_r1(surrendered(5, "more", want=99), tick(6), more=4, room=9),
        ON_LAB_2[2:4],
        ["more.0", "more.1", "more.2", "more.3"],
    ),
    "a number for the component lifts that an instance or all of them were given back": (
        held_by_r1(
            surrendered(1, "more.0"),
            surrendered(2, "more"),
            surrendered(5, "more", want=2),
            tick(6),
            more=4,
            room=9,
            kicks=False,
        ),
        ["6 grant r1 more.0 lab-1 room", "6 grant r1 more.1 lab-1 room"],
        ["more.0", "more.1"],
    ),
    "a number beside the name of an instance: this instance stays given back": (
        held_by_r1(surrendered(5, "more.0", want=2), tick(6), more=4, room=9),
        ["5 grant r1 more.2 lab-1 room"],
        ["more.1", "more.2"],
    ),
    "without a name, the number concerns the only elastic component": (
        held_by_r1(surrendered(5, want=3), tick(6), more=4, room=9),
        ON_LAB_2[2:3],
        ["more.0", "more.1", "more.2"],
    ),
    "a number holds until the next assignment": (
        held_by_r1(surrendered(5, "more", want=1), act(6, "decline", "r1"), more=3, room=9),
        ["6 assign r1 lab-2 lab-2", *(each.replace("5 ", "6 ", 1) for each in ON_LAB_2[:3])],
        ["more.0", "more.1", "more.2"],
    ),
    "an instance that died is replaced only within the number": (
        held_by_r1(
            surrendered(5, "more", want=1),
            act(6, "fail", {"reservation": "r1", "component": "more.0"}),
            tick(7),
            more=4,
        ),
        ["6 grant r1 more.0 lab-1 room"],
        ["more.0"],
    ),
    "a smaller number that comes while a tick plans": (
        held_by_r1(
            tick(5, {"surrender": {"reservation": "r1", "component": "more", "want": 3}}), more=4, room=9, kicks=False
        ),
        [ON_LAB_2[2], f"{ON_LAB_2[3]} (skipped: the holder does not want the instance any more)"],
        ["more.0", "more.1", "more.2"],
    ),
    "a number for a component that the reservation does not have changes nothing": (
        held_by_r1(surrendered(5, "less", want=9), surrendered(5, "core", want=1), tick(6)),
        [],
        ["more.0", "more.1"],
    ),
}


@pytest.mark.parametrize("name", GIVEN_BACK)
@pytest.mark.parametrize("elastic", ["yielding", "malleable"])
def test_what_a_holder_gave_back_and_the_number_that_it_wants_bound_its_grants(name: str, elastic: str) -> None:
    scenario, decisions, held = GIVEN_BACK[name]
    scheduler = {**scenario["config"]["scheduler"], "elastic": elastic}
    played = play_out({**scenario, "config": {**scenario["config"], "scheduler": scheduler}})
    assert played.decisions == decisions
    leased = [lease["component"] for lease in played.reservation("r1")["leases"]]
    assert sorted(each for each in leased if each.startswith("more")) == held


@pytest.mark.parametrize("elastic", MODES)
def test_a_reservation_fails_when_its_essential_component_died(elastic: str) -> None:
    played = play_out(held_by_r1(act(5, "fail", {"reservation": "r1", "component": "core"}), elastic=elastic))
    assert (played.phases, holdings(played)) == ({"r1": "failed"}, {})


def test_each_instance_of_a_component_that_died_counts_a_restart() -> None:
    row = play_out(
        held_by_r1(act(5, "fail", {"reservation": "r1", "component": "core"}), policy="on_failure")
    ).reservation("r1")
    assert (row["restarts"], row["component_restarts"]) == (1, {"core.0": 1, "core.1": 1})


@pytest.mark.parametrize("elastic", MODES)
def test_each_instance_of_an_elastic_component_that_died_is_replaced(elastic: str) -> None:
    played = play_out(held_by_r1(act(5, "fail", {"reservation": "r1", "component": "more"}), elastic=elastic))
    assert played.decisions == ["5 grant r1 more.0 lab-1 room", "5 grant r1 more.1 lab-1 room"]
    assert (played.phases, played.reservation("r1")["restarts"]) == ({"r1": "leased"}, 0)


def test_all_instances_of_an_elastic_component_are_given_back_and_not_granted_again() -> None:
    played = play_out(held_by_r1(act(5, "surrender", {"reservation": "r1", "component": "more"}), tick(6)))
    assert (played.decisions, holdings(played)) == ([], {"r1": ["core.0@lab-1", "core.1@lab-1"]})


def test_instances_that_are_being_revoked_and_others_are_given_back_together() -> None:
    played = play_out(
        held_by_r1(
            {"at": 5, "submit": an_application("r2", 1)},
            act(9, "surrender", {"reservation": "r1", "component": "more"}),
            scheduler=GRACE,
        )
    )
    assert played.decisions == ["5 revoke r1 more.1 lab-1 reclaimed", "9 assign r2 lab-1"]
    assert holdings(played) == {"r1": ["core.0@lab-1", "core.1@lab-1"], "r2": ["core@lab-1"]}


def test_a_pending_reservation_fails_by_the_name_of_its_component() -> None:
    played = play_out(
        a_lab(
            {"at": 0, "submit": an_application("r1", 2, units=99)},
            act(5, "fail", {"reservation": "r1", "component": "core"}),
        )
    )
    assert played.phases == {"r1": "failed"}


@pytest.mark.parametrize("action", ["fail", "surrender"])
def test_a_component_that_the_reservation_does_not_have_changes_nothing(action: str) -> None:
    played = play_out(held_by_r1(act(5, action, {"reservation": "r1", "component": "less"})))
    assert (played.decisions, played.phases) == ([], {"r1": "leased"})
    assert holdings(played) == {"r1": ["core.0@lab-1", "core.1@lab-1", "more.0@lab-1", "more.1@lab-1"]}


@pytest.mark.parametrize(("want", "given_back"), [(2, []), (1, ["more.1"]), (0, ["more.1", "more.0"])])
def test_a_smaller_number_ends_what_is_being_revoked_before_what_is_held(want: int, given_back: list[str]) -> None:
    """At 5 s more.1 is revoked for r2, which starts when more.1 has ended."""
    played = play_out(
        held_by_r1({"at": 5, "submit": an_application("r2", 1)}, surrendered(9, "more", want=want), scheduler=GRACE)
    )
    assert played.decisions[1:] == (["9 assign r2 lab-1"] if given_back else [])
    left = [each for each in ("more.0", "more.1") if each not in given_back]
    assert holdings(played)["r1"] == ["core.0@lab-1", "core.1@lab-1", *(f"{each}@lab-1" for each in left)]


def test_a_row_keeps_its_instances_and_numbers_in_a_snapshot() -> None:
    row = an_application("r1", 2, 4, phase="leased", declined=["more.0", "more=2"])
    played = play_out(
        a_lab(tick(5), slots=[on_slot("lab-1", 9, ("r1", "core.0"), ("r1", "core.1"))], reservations=[row])
    )
    assert played.decisions == ["5 grant r1 more.1 lab-1 room", "5 grant r1 more.2 lab-1 room"]


@pytest.mark.parametrize("seed", range(20))
def test_with_room_for_all_the_holder_has_what_it_wants_and_did_not_give_back(seed: int) -> None:
    """A naive model of the field: a number, a set of names, and the names that are held."""
    random, most, returned, held = Random(seed), 6, set[str](), set[str]()
    names = [f"more.{number}" for number in range(6)]
    timeline: list[Document] = []
    for at in range(9):
        want = random.choice([None, 0, 1, 3, 5, 6, 9])
        name = random.choice(["more", *sorted(held)])
        if want is not None:
            timeline.append(surrendered(at, name, want=want))
            most, returned = want, {name} - {"more"}
            held = {*sorted(held - returned)[:want]}
        elif name != "more":
            timeline.append(surrendered(at, name))
            returned, held = {*returned, name}, held - {name}
        timeline.append(tick(at))
        free = (each for each in names if each not in {*returned, *held})
        held |= {*islice(free, max(most - len(held), 0))}
    row = an_application("r1", 1, 6, phase="leased")
    lab = a_lab(*timeline, slots=[on_slot("lab-1", 9, ("r1", "core"))], reservations=[row], kicks=False)
    leases = play_out(lab).reservation("r1")["leases"]
    assert {lease["component"] for lease in leases} == {"core", *held}


def test_a_name_concerns_the_component_with_that_name_only() -> None:
    components = tuple(a_component(name, kind="elastic") for name in ("more", "extra"))
    found = find_elastic(a_reservation(components=components), "extra")
    assert found is not None
    assert (found.name, find_number(components[0], "extra")) == ("extra", None)


def test_a_number_concerns_the_component_that_it_names_only() -> None:
    components = [component(name, 2, kind="elastic") for name in ("more", "extra")]
    row = {"id": "r1", "system": "sim", "phase": "leased", "components": [component("core", 1), *components]}
    held = [("r1", "core"), *(("r1", f"{name}.{number}") for name in ("more", "extra") for number in (0, 1))]
    played = play_out(
        a_lab(
            surrendered(5, "extra", want=1),
            act(6, "fail", {"reservation": "r1", "component": "more.1"}),
            slots=[on_slot("lab-1", 9, *held)],
            reservations=[row],
        )
    )
    parts = ["core@lab-1", "extra.0@lab-1", "more.0@lab-1", "more.1@lab-1"]
    assert (played.decisions, holdings(played)) == (["6 grant r1 more.1 lab-1 room"], {"r1": parts})
