"""The smallest change that would end a wait: applied, it does; and no smaller one of its kind."""

from typing import Any

import pytest

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from scheduler.policy.suggest import Suggestion, apply_change, suggest_change
from tests.builders import NOW, SYSTEM, a_component, a_lease, a_reservation, a_slot, some_rules

OFFERINGS = [
    {"name": "small", "price": 1, "resources": {"cpus": 2}},
    {"name": "big", "price": 9, "resources": {"cpus": 32}},
]


def wish(name: str = "r1", **fields: Any) -> Reservation:
    return a_reservation(name, sequence=1, **fields)


def holder(slot: str, cpus: float) -> Reservation:
    return a_reservation(f"on-{slot}", phase="leased", leases=(a_lease(slot, resources={"cpus": cpus}),))


CASES: dict[str, tuple[dict[str, Any], list[Row], str | None]] = {
    # the rules of the pool, the rows, the words
    "on hold": ({}, [wish(priority=0), a_slot("linux-1")], "a priority above 0 would do"),
    "suspended": ({}, [wish(suspended=True), a_slot("linux-1")], "it would be placed if it were resumed"),
    "cordoned": (
        {"provider": "static"},
        [wish(), a_slot("linux-1", state="draining"), a_slot("linux-3", cordoned=True)],
        "slot linux-3 would do and is cordoned",
    ),
    "max_slots": (
        {"max_slots": 1},
        [wish(), a_slot("linux-1"), a_reservation("h", phase="leased", leases=(a_lease(),))],
        "pool linux is at its max_slots of 1: 2 would do",
    ),
    "max_slots of a gang": (
        {"max_slots": 0, "resources": {"cpus": 1}},
        [wish(components=(a_component(count=3, resources={"cpus": 1}),))],
        "pool linux is at its max_slots of 0: 3 would do",
    ),
    "resources": (
        {"provider": "static", "resources": {"cpus": 4}},
        [wish(resources={"cpus": 4}), a_slot("linux-1", resources={"cpus": 4}), holder("linux-1", 2)],
        "needs 2 more cpus on one slot (linux-1)",
    ),
    "an offering of another pool": (
        {"offerings": OFFERINGS[:1]},
        [wish(resources={"cpus": 8}), Slot(id="linux-1", pool="linux")],
        "offering big would fit and is not in the pool linux",
    ),
    "served": ({}, [wish(), a_slot("linux-1")], None),
    "on its way": ({}, [wish(), Slot(id="linux-1", pool="linux")], None),
    "no change of these": ({"provider": "static"}, [wish(labels={"a": "b"})], None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_change_is_told(name: str) -> None:
    pool, rows, text = CASES[name]
    spare = {"system": "other", "max_slots": 1, "offerings": OFFERINGS}
    rules = some_rules({"pools": {"linux": pool, "spare": spare}})
    view = View(rows)
    found = suggest_change(view, rules, view.reservations["r1"], NOW)
    assert (found.text if found else None) == text
    if found:
        assert is_served(*apply_change(view, rules, found))


def is_served(view: View, rules: Any) -> bool:
    waiting = {each.reservation: each.code for each in plan(view, rules, NOW).waiting}
    return waiting.get("r1", "booting") == "booting"


def smaller(change: Suggestion) -> Suggestion | None:
    """The same kind of change with one less of it: a slot less, or a little less of the resource."""
    if change.kind == "max_slots":
        ((name, keys),) = change.pools.items()
        return Suggestion(
            kind="max_slots", text="", rows=change.rows[:-1], pools={name: {"max_slots": keys["max_slots"] - 1}}
        )
    if change.kind == "resources":
        (slot,) = (row for row in change.rows if isinstance(row, Slot))
        less = {name: amount - 0.5 for name, amount in (slot.resources or {}).items()}
        return Suggestion(kind="resources", text="", rows=(a_slot(slot.id, resources=less),))
    return None


@pytest.mark.parametrize("seed", range(200))
def test_applied_it_ends_the_wait_and_less_of_it_does_not(seed: int) -> None:
    """Fleets of every size and fill, static and elastic, with one who waits."""
    most, asked, used = 1 + seed % 3, 1 + seed % 7, seed % 5
    static = bool(seed & 8)
    slots = [
        a_slot(f"linux-{number}", resources={"cpus": 4}, cordoned=number < most and not seed % 6)
        for number in range(1, most + 1)
    ]
    holders = [holder(slot.id, min(4, used + index % 2)) for index, slot in enumerate(slots)]
    rules = some_rules(
        {
            "pools": {
                "linux": {
                    "max_slots": most,
                    "resources": {"cpus": 4},
                    "provider": "static" if static else "ec2",
                    "system": SYSTEM,
                }
            }
        }
    )
    view = View([*slots, *holders, wish(resources={"cpus": asked})])
    if is_served(view, rules):
        assert suggest_change(view, rules, view.reservations["r1"], NOW) is None
        return
    found = suggest_change(view, rules, view.reservations["r1"], NOW)
    assert found is not None
    assert is_served(*apply_change(view, rules, found))
    if (less := smaller(found)) is not None:
        assert not is_served(*apply_change(view, rules, less))
