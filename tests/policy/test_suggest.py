"""The smallest change that would end a wait: applied as it is printed, it does; and no smaller one of its kind."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from scheduler.model.holds import Hold, hold_id
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.policy.changes import KINDS_OF_CHANGE
from scheduler.policy.changes_of_slots import enlarge_slot
from scheduler.policy.suggest import MOST_PLANS, Search, Suggestion, describe_change, suggest_change
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot, some_rules
from tests.policy.waits import a_fleet, is_served_after, list_waiting, look_at
from tests.scenarios.playing import Document

OFFERINGS = [
    {"name": "small", "price": 1, "resources": {"cpus": 2}},
    {"name": "big", "price": 9, "resources": {"cpus": 32}},
]
STATIC = {"provider": "static", "resources": {"cpus": 4}}


def wish(name: str = "r1", **fields: Any) -> Reservation:
    return a_reservation(name, sequence=1, **fields)


def holder(slot: str, cpus: float) -> Reservation:
    return a_reservation(f"on-{slot}", phase="leased", leases=(a_lease(slot, resources={"cpus": cpus}),))


def a_hold(subject: str) -> Hold:
    fields: dict[str, Any] = {"id": hold_id("linux", "capacity", subject), "pool": "linux", "kind": "capacity"}
    return Hold(subject=subject, refused_at=NOW, until=NOW + 40, **fields)


CASES: dict[str, tuple[dict[str, Any], list[Row], str | None]] = {
    # the rules of the pool, the rows, the words
    "on hold": ({}, [wish(priority=0), a_slot("linux-1")], "a priority above 0 would do"),
    "suspended": ({}, [wish(suspended=True), a_slot("linux-1")], "it would be placed if it were resumed"),
    "cordoned": (
        {"provider": "static"},
        [wish(), a_slot("linux-1", state="draining"), a_slot("linux-3", cordoned=True)],
        "slot linux-3 would do and is cordoned",
    ),
    "a hold": (
        {"offerings": OFFERINGS, "price_factor": 1},
        [wish(resources={"cpus": 1}), Slot(id="linux-1", pool="linux"), a_hold("small")],
        "the hold on small of pool linux (capacity) ends in 40 s",
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
        STATIC,
        [wish(resources={"cpus": 4}), a_slot("linux-1", resources={"cpus": 4}), holder("linux-1", 2)],
        "needs 2 more cpus on one slot (linux-1)",
    ),
    "resources, and one before it that would take them": (
        STATIC,
        [wish("r0", resources={"cpus": 3}), wish(resources={"cpus": 4}), a_slot("linux-1", resources={"cpus": 2})],
        "needs 5 more cpus on one slot (linux-1)",
    ),
    "labels": (
        {"provider": "static"},
        [wish(labels={"disk": "ssd"}), a_slot("linux-1")],
        "needs disk=ssd on one slot (linux-1)",
    ),
    "an offering of another pool": (
        {"offerings": OFFERINGS[:1]},
        [wish(resources={"cpus": 8}), Slot(id="linux-1", pool="linux")],
        "offering huge would fit and is not in the pool linux",
    ),
    "an offering that nobody has": (
        {"offerings": OFFERINGS[:1]},
        [wish(resources={"cpus": 99}), Slot(id="linux-1", pool="linux")],
        "needs an offering with 99 cpus in pool linux",
    ),
    "an offering that another pool has under a name that is taken here": (
        {"offerings": [{"name": "huge", "price": 1, "resources": {"cpus": 1}}]},
        [wish(resources={"cpus": 16}), Slot(id="linux-1", pool="linux")],
        "needs an offering with 16 cpus in pool linux",
    ),
    "an offering that nobody has, where ours has a name of its own": (
        {"offerings": [{"name": "larger-1", "price": 1, "resources": {"cpus": 2}}]},
        [wish(resources={"cpus": 99}), Slot(id="linux-1", pool="linux")],
        "needs an offering with 99 cpus in pool linux",
    ),
    "larger machines": (
        {"resources": {"cpus": 4}},
        [wish(resources={"cpus": 64}), Slot(id="linux-1", pool="linux")],
        "needs machines with 64 cpus in pool linux",
    ),
    "hosts": (
        {"provider": "static"},
        [
            wish(components=(a_component(count=3),)),
            a_slot("linux-1"),
            a_slot("linux-2"),
            a_reservation("h", phase="leased", leases=(a_lease(),)),
        ],
        "2 more hosts like linux-1 would do",
    ),
    "served": ({}, [wish(), a_slot("linux-1")], None),
    "on its way": ({}, [wish(), Slot(id="linux-1", pool="linux")], None),
    "no change of these": ({"provider": "static"}, [wish(labels={"a": "b"})], None),
}


def make_search(pool: dict[str, Any], rows: list[Row], **options: Any) -> Search:
    spare = {"system": "other", "max_slots": 1, "offerings": [{"name": "huge", "price": 9, "resources": {"cpus": 32}}]}
    view = View(rows)
    rules = some_rules({"pools": {"linux": pool, "spare": spare}})
    return Search(view, rules, view.reservations["r1"], NOW, **options)


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_change_is_told(name: str) -> None:
    pool, rows, text = CASES[name]
    search = make_search(pool, rows)
    found = suggest_change(search, KINDS_OF_CHANGE)
    assert (found.text if found else None) == text
    if found:
        assert search.serves(found)


@pytest.mark.parametrize("name", CASES)
def test_the_view_is_as_it_was_after_a_search(name: str) -> None:
    pool, rows, _ = CASES[name]
    search, before = make_search(pool, rows), View(rows)
    suggest_change(search, KINDS_OF_CHANGE)
    for kind in ("slots", "reservations", "holds", "leases_on"):
        assert getattr(search.view, kind) == getattr(before, kind)


def test_a_search_ends_when_its_time_is_over() -> None:
    pool, rows, _ = CASES["resources"]
    asked: list[None] = []

    def has_time() -> bool:
        asked.append(None)
        return len(asked) < 2

    search = make_search(pool, rows, has_time=has_time)
    assert suggest_change(search, KINDS_OF_CHANGE) is None
    assert search.is_cut_short
    assert len(asked) == 2


def test_a_search_looks_at_no_more_slots_when_its_time_is_over() -> None:
    """It is begun for a queue that others wait in: the time for candidates counts as that for plans does."""
    sizes = [a_slot(f"linux-{number}", resources={"cpus": number}) for number in range(1, 9)]
    answers = iter([True, True])
    search = make_search(STATIC, [wish(resources={"cpus": 99}), *sizes], has_time=lambda: next(answers, False))
    assert enlarge_slot(search) is None
    assert search.is_cut_short


def test_slots_and_wishes_that_are_alike_are_looked_at_once() -> None:
    alike = [a_slot(f"linux-{number}", resources={"cpus": 4}) for number in range(1, 100)]
    others = [wish(f"r{number}", resources={"cpus": 8}) for number in range(2, 100)]
    asked: list[None] = []

    def has_time() -> bool:
        asked.append(None)
        return True

    search = make_search(STATIC, [wish(resources={"cpus": 6}), *others, *alike], has_time=has_time)
    found = enlarge_slot(search)
    assert found is not None
    assert found.text == "needs 2 more cpus on one slot (linux-1)"
    assert len(asked) == 2, "a slot that stands for all, and a plan"


def test_a_search_makes_so_many_plans_and_no_more() -> None:
    search = make_search(*CASES["resources"][:2])
    nothing = Suggestion(kind="nothing", text="")
    cut_short = []
    for _ in range(MOST_PLANS + 1):
        search.serves(nothing)
        cut_short.append(search.is_cut_short)
    assert cut_short == [False] * MOST_PLANS + [True]


def test_what_is_printed_ends_the_wait_and_less_of_it_does_not() -> None:
    """Two hundred who wait in generated fleets. The change is applied as `leasehold explain --json` prints it."""
    kinds: dict[str, int] = {}
    for seed in range(10_000):
        fleet = a_fleet(Random(seed))
        for row in list_waiting(fleet):
            view, rules, now = look_at(fleet)
            found = suggest_change(Search(view, rules, view.reservations[row.id], now), KINDS_OF_CHANGE)
            if found is None:
                continue
            change = json.loads(json.dumps(describe_change(view, found)))
            where = f"seed {seed}, {row.id}: {change}"
            assert is_served_after(fleet, change, row.id), where
            for less in list_smaller(fleet, change):
                assert not is_served_after(fleet, less, row.id), f"{where}; and so does {less}"
            kinds[found.kind] = kinds.get(found.kind, 0) + 1
        if sum(kinds.values()) >= 200:
            break
    assert sum(kinds.values()) >= 200
    assert len(kinds) >= 8, kinds


def list_smaller(fleet: Document, change: Document) -> Iterator[Document]:
    """The same kind of change with a little less of it."""
    match change["kind"]:
        case "max_slots" | "price_factor":
            yield from _with_less_config(fleet, change)
        case "resources":
            (action,) = change["actions"]
            for name, amount in action["slot"]["resources"].items():
                less = {**action["slot"]["resources"], name: amount - 0.25}
                if _is_larger(fleet, action["slot"]["id"], name, amount):
                    yield {**change, "actions": [{"slot": {**action["slot"], "resources": less}}]}
        case "labels":
            (action,) = change["actions"]
            for name in action["slot"]["labels"]:
                less = {key: value for key, value in action["slot"]["labels"].items() if key != name}
                yield {**change, "actions": [{"slot": {**action["slot"], "labels": less}}]}
        case "hosts":
            yield {**change, "actions": change["actions"][:-1]}
        case "wait":
            yield {**change, "wait_seconds": change["wait_seconds"] / 2}
        case _:
            yield {**change, "actions": []}


def _is_larger(fleet: Document, slot: str, name: str, amount: float) -> bool:
    view, rules, _ = look_at(fleet)
    known = view.slots[slot]
    held = known.resources or rules.pools[known.pool].resources or {}
    return amount > held.get(name, 0)


def _with_less_config(fleet: Document, change: Document) -> Iterator[Document]:
    less = json.loads(json.dumps(change))
    for action in less["actions"]:
        tables = [action["rules"].get("scheduler", {}), *action["rules"].get("pools", {}).values()]
        for table in tables:
            for key, step in (("max_slots", 1), ("price_factor", 0.0002)):
                if key in table:
                    table[key] -= step
    yield less
