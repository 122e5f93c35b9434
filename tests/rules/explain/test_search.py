"""The smallest change that would end a wait: applied as printed, it does, and no smaller one of its kind does."""

import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from scheduler.explain.changes import KINDS_OF_CHANGE, end_lease, raise_price_factor
from scheduler.explain.search import MOST_PLANS, Kind, Search, Suggestion, describe_change, suggest_change
from scheduler.model.budgets import Spent
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.model.waiting_codes import WAITING_CODES
from scheduler.operations.explain import explain_wait
from tests.builders import NOW, SYSTEM, a_component, a_lease, a_reservation, a_slot, some_rules
from tests.generated import TIMES
from tests.rules.playing import Document
from tests.rules.smaller import list_smaller
from tests.rules.waits import Look, a_fleet, is_served_after, list_waiting, look_at

OFFERINGS = [
    {"name": "small", "price": 1, "resources": {"cpus": 2}},
    {"name": "big", "price": 9, "resources": {"cpus": 32}},
]
HUGE = "offering huge would fit and is not in the pool linux"
STATIC = {"provider": "static", "resources": {"cpus": 4}}
ONE_LEASE = {"resources": {"cpus": 4, "memory_mib": 100}, "max_leases_per_slot": 1}
THREE = [a_slot(f"linux-{number}", resources={"cpus": 4}) for number in range(1, 4)]


def wish(name: str = "r1", **fields: Any) -> Reservation:
    return a_reservation(name, sequence=1, **fields)


def holder(slot: str, cpus: float) -> Reservation:
    return a_reservation(f"on-{slot}", phase="leased", leases=(a_lease(slot, resources={"cpus": cpus}),))


def a_hold(subject: str) -> Hold:
    fields: dict[str, Any] = {"id": hold_id("linux", "capacity", subject), "pool": "linux", "kind": "capacity"}
    return Hold(subject=subject, refused_at=NOW, until=NOW + 40, **fields)


NEEDED: dict[str, tuple[dict[str, Any], dict[str, Any], list[Row], list[str]]] = {
    # the rules of the pool, what is requested, the slots, what would have to be true
    "a host that is too small": (
        STATIC,
        {"resources": {"cpus": 8}},
        [a_slot("linux-1", resources={"cpus": 4})],
        ["a host with at least 8 cpus in pool linux"],
    ),
    "a host without a label": (
        {"provider": "static"},
        {"labels": {"disk": "ssd"}},
        [a_slot("linux-1")],
        ["a host with the label disk=ssd in pool linux"],
    ),
    "a host, where there is none": (
        STATIC,
        {"components": (a_component(count=2, resources={"cpus": 6}),), "labels": {"disk": "ssd", "zone": "b"}},
        [],
        ["a host with at least 6 cpus and the labels disk=ssd, zone=b in pool linux"],
    ),
    "hosts for parts of a gang that differ": (
        STATIC,
        {"components": (a_component("a", resources={"cpus": 6}), a_component("b", resources={"cpus": 2}))},
        [a_slot("linux-1", resources={"cpus": 4})],
        ["a host with at least 6 cpus in pool linux"],
    ),
    "room on hosts that have too little": (
        STATIC,
        {"components": (a_component("node", count=3, resources={"cpus": 4}),)},
        [a_slot("linux-1", resources={"cpus": 4})],
        ["3 free places with 4 cpus for node in pool linux: leases there end, or more machines come"],
    ),
    "an offering that does not exist": (
        {"offerings": OFFERINGS},
        {"resources": {"cpus": 4096}},
        [Slot(id="linux-1", pool="linux")],
        ["a pool for x86_64-linux whose machines have at least 4096 cpus"],
    ),
    "an offering of a pool of another system, whose image has another architecture": (
        {"offerings": [{"name": "small", "price": 1, "resources": {"cpus": 2}}]},
        {"resources": {"cpus": 8}},
        [Slot(id="linux-1", pool="linux")],
        ["a pool for x86_64-linux whose machines have at least 8 cpus"],
    ),
    "machines of a pool without offerings": (
        {"resources": {"cpus": 4}},
        {"resources": {"cpus": 64}, "labels": {"disk": "ssd"}},
        [Slot(id="linux-1", pool="linux")],
        ["a pool for x86_64-linux whose machines have at least 64 cpus and the label disk=ssd"],
    ),
    "a pool that is named and has small machines": (
        {"resources": {"cpus": 4}},
        {"system": None, "pool": "linux", "resources": {"cpus": 64}},
        [Slot(id="linux-1", pool="linux")],
        ["the pool linux whose machines have at least 64 cpus"],
    ),
    "no pool for its system": ({}, {"system": "aarch64-linux"}, [], ["a pool for aarch64-linux"]),
    "no pool of that name": (
        {},
        {"system": None, "pool": "gone", "resources": {"cpus": 2}},
        [],
        ["a pool with the name gone, whose machines have at least 2 cpus"],
    ),
    "labels that exclude each other": (
        {"provider": "static"},
        {"components": (a_component(labels={"a": "c"}),), "labels": {"a": "b"}},
        [],
        ["main requires only one of the labels a=b and a=c"],
    ),
}
CASES: dict[str, tuple[dict[str, Any], list[Row], str | None]] = {
    # the rules of the pool, the rows, the text
    "on hold": ({}, [wish(priority=0), a_slot("linux-1")], "a priority above 0 would do"),
    "suspended": ({}, [wish(suspended=True), a_slot("linux-1")], "it would be placed if it were resumed"),
    "suspended, with the priority 0": (
        {},
        [wish(suspended=True, priority=0), a_slot("linux-1")],
        "it would be placed if it were resumed with a priority above 0",
    ),
    "cordoned": (
        {"provider": "static"},
        [wish(), a_slot("linux-1", state="draining"), a_slot("linux-3", cordoned=True)],
        "slot linux-3 would do and is cordoned",
    ),
    "a hold": (
        {"offerings": OFFERINGS, "price_factor": 1},
        [wish(resources={"cpus": 1}), Slot(id="linux-1", pool="linux"), a_hold("small")],
        "the launch back-off of small of pool linux (capacity) ends in 40 s",
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
    "an offering of another pool": (
        {"offerings": OFFERINGS[:1]},
        [wish(resources={"cpus": 8}, system=None, pool="linux"), Slot(id="linux-1", pool="linux")],
        HUGE,
    ),
    "a machine of EC2 that is full, where the pool is too": (
        {"resources": {"cpus": 4}, "max_slots": 1},
        [wish(resources={"cpus": 4}), a_slot("linux-1", resources={"cpus": 4}), holder("linux-1", 2)],
        "pool linux is at its max_slots of 1: 2 would do",
    ),
    "an offering and a slot": (
        {"offerings": OFFERINGS[:1], "max_slots": 1},
        [
            wish(resources={"cpus": 8}, system=None, pool="linux"),
            a_slot("linux-1", offering="small", state="terminating"),
        ],
        f"two changes: {HUGE}; pool linux is at its max_slots of 1: 2 would do",
    ),
    "on hold, and no capacity": (
        {"max_slots": 1},
        [wish(priority=0), a_slot("linux-1"), a_reservation("h", phase="leased", leases=(a_lease(),))],
        "two changes: a priority above 0 would do; pool linux is at its max_slots of 1: 2 would do",
    ),
    **{
        # A machine that does not exist is never offered: what would have to be true is stated instead.
        f"no change: {title}": (pool, [wish(**wanted), *rows], None)
        for title, (pool, wanted, rows, _) in NEEDED.items()
    },
    "served": ({}, [wish(), a_slot("linux-1")], None),
    "in flight": ({}, [wish(), Slot(id="linux-1", pool="linux")], None),
}


def make_search(pool: dict[str, Any], rows: list[Row], **options: Any) -> Search:
    huge = {"max_slots": 1, "offerings": [{"name": "huge", "price": 9, "resources": {"cpus": 32}}]}
    view = View(rows)
    has_spare = any(isinstance(each, Reservation) and each.request.pool == "linux" for each in rows)
    spare = {**huge, "system": "x86_64-linux" if has_spare else "other"}
    rules = some_rules({"pools": {"linux": pool, "spare": spare}})
    return Search(view, rules, view.reservations["r1"], NOW, **options)


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_change_is_reported(name: str) -> None:
    pool, rows, text = CASES[name]
    search = make_search(pool, rows)
    found = suggest_change(search, KINDS_OF_CHANGE)
    assert (found.text if found else None) == text
    if found:
        assert search.serves(found)


@pytest.mark.parametrize("name", CASES)
def test_a_search_leaves_the_view_as_it_was(name: str) -> None:
    pool, rows, _ = CASES[name]
    search, before = make_search(pool, rows), View(rows)
    suggest_change(search, KINDS_OF_CHANGE)
    for kind in ("slots", "reservations", "holds", "leases_on", "special"):
        assert getattr(search.view, kind) == getattr(before, kind)


@pytest.mark.parametrize("name", NEEDED)
def test_without_a_change_it_is_stated_what_would_have_to_be_true(name: str) -> None:
    search = make_search(*CASES[f"no change: {name}"][:2])
    found = explain_wait(search.view, search.rules, search.reservation, NOW)
    assert (found["change"], found["needs"]) == (None, NEEDED[name][3])


def test_a_slot_whose_machine_ends_has_all_uses_of_its_next_machine() -> None:
    rows: list[Row] = [
        wish(system=None, pool="linux"),
        a_reservation("earlier", sequence=0, system=None, pool="spare"),
        a_slot("spare-1", state="terminating", uses=1),
    ]
    spare = {"system": "other", "max_slots": 1, "max_uses": 1}
    rules = some_rules({"pools": {"linux": {"max_slots": 0}, "spare": spare}})
    view = View(rows)
    found = suggest_change(Search(view, rules, view.reservations["r1"], NOW), KINDS_OF_CHANGE)
    assert found is not None
    assert found.text == "pool linux is at its max_slots of 0: 1 would do"


def test_a_change_leaves_room_for_a_reservation_that_overtakes_while_machines_boot() -> None:
    """The size of the first one falls to 0 in less time than a machine needs, and it is older than the second one."""
    large, small = {"cpus": 4, "memory_mib": 100}, {"cpus": 1, "memory_mib": 100}
    rows: list[Row] = [wish("large", resources=large, created_at=NOW - 10), wish("r1", resources=small, created_at=NOW)]
    rules = some_rules(
        {"scheduler": {"queue": "dynsize", "dynsize_decay": 10}, "pools": {"linux": {"max_slots": 0, **ONE_LEASE}}}
    )
    view = View(rows)
    found = suggest_change(Search(view, rules, view.reservations["r1"], NOW), KINDS_OF_CHANGE)
    assert found is not None
    assert found.text == "pool linux is at its max_slots of 0: 2 would do"


def test_a_change_leaves_room_for_a_reservation_that_overtakes_only_until_another_pool_launches_again() -> None:
    """At NOW + 30 the size of the large one falls to 0. At NOW + 40 the pool `linux` launches a machine, which it may
    have then.
    """
    large, small = {"cpus": 4, "memory_mib": 100}, {"cpus": 1, "memory_mib": 100}
    refused: dict[str, Any] = {"id": hold_id("linux", "throttled"), "kind": "throttled", "subject": ""}
    rows: list[Row] = [
        wish("large", resources=large, created_at=NOW - 10),
        wish("r1", pool="late", system=None, resources=small, created_at=NOW),
        wish("r2", pool="linux", system=None, resources=large, created_at=NOW + 1),
        Hold(pool="linux", refused_at=NOW, until=NOW + 40, **refused),
        Slot(id="linux-1", pool="linux"),
    ]
    pools = {"linux": {"max_slots": 1, **ONE_LEASE}, "late": {"system": SYSTEM, "max_slots": 0, **ONE_LEASE}}
    rules = some_rules({"scheduler": {"queue": "dynsize", "dynsize_decay": 10}, "pools": pools})
    view = View(rows)
    found = suggest_change(Search(view, rules, view.reservations["r1"], NOW), KINDS_OF_CHANGE)
    assert found is not None
    assert found.text == "pool late is at its max_slots of 0: 2 would do"


def test_a_change_leaves_room_for_earlier_gangs_that_spread_over_machines_while_they_boot() -> None:
    """With six slots the present plan launches a machine for `r1`. While it boots, the gangs, which shared machines to
    launch, spread over all of them, and the sixth machine is theirs.
    """
    gang = (a_component(count=3, resources={"cpus": 1}),)
    rows: list[Row] = [
        wish("gang-1", components=gang, created_at=NOW - 2),
        wish("gang-2", components=gang, created_at=NOW - 1),
        wish("r1", resources={"cpus": 2}, created_at=NOW),
    ]
    pool = {"max_slots": 0, "resources": {"cpus": 2}, "max_leases_per_slot": 2}
    rules = some_rules({"scheduler": {"profile": "spread"}, "pools": {"linux": pool}})
    view = View(rows)
    found = suggest_change(Search(view, rules, view.reservations["r1"], NOW), KINDS_OF_CHANGE)
    assert found is not None
    assert found.text == "pool linux is at its max_slots of 0: 7 would do"


def test_a_wait_does_not_count_on_holders_and_hosts_that_fall_silent() -> None:
    """The ttl of a lease and the timeout of a host would end before the back-off, but holder and host renew them."""
    lease = a_lease(resources={"cpus": 2})
    rows: list[Row] = [
        wish(resources={"cpus": 1}),
        a_slot("linux-1", offering="small"),
        a_reservation("h", phase="leased", expires_at=NOW + 10, leases=(lease,)),
        a_hold("small"),
    ]
    found = suggest_change(make_search({"offerings": OFFERINGS, "max_slots": 1}, rows), KINDS_OF_CHANGE)
    assert found is not None
    assert found.text == "the end of h, which holds linux-1, would do"
    host = a_slot("linux-1", resources={"cpus": 4}, last_seen=NOW)
    search = make_search(STATIC | {"offline_timeout": 30}, [wish(), host])
    assert search.serves(Suggestion(kind="wait", text="", wait_seconds=40))


def test_after_a_wait_a_machine_that_ends_now_may_be_gone_and_an_earlier_gang_may_have_its_slot() -> None:
    rows: list[Row] = [
        wish("gang", components=(a_component(count=2, resources={"cpus": 2}),), created_at=NOW - 5),
        wish("r1", resources={"cpus": 2}, created_at=NOW),
        a_slot("linux-1", state="draining", offering="small"),
        Slot(id="linux-2", pool="linux"),
        a_hold("small"),
    ]
    search = make_search({"offerings": OFFERINGS[:1], "max_slots": 2, "max_leases_per_slot": 1}, rows)
    wait = Suggestion(kind="wait", text="", wait_seconds=60)
    assert search.serves(wait)
    assert not search.lasts(wait)


def test_work_of_a_machine_that_drains_may_take_one_that_boots_before_its_slot_can_be_launched_again() -> None:
    rows: list[Row] = [
        wish("r1", components=(a_component(count=2, resources={"cpus": 2}),), created_at=NOW),
        a_slot("linux-1", state="draining", offering="small"),
        holder("linux-1", 2),
        *(Slot(id=f"linux-{number}", pool="linux") for number in range(2, 6)),
    ]
    search = make_search({"offerings": OFFERINGS[:1], "max_slots": 1, "max_leases_per_slot": 1}, rows)
    raised = {
        slots: Suggestion(kind="max_slots", text="", config={"pools": {"linux": {"max_slots": slots}}})
        for slots in (3, 4, 5)
    }
    assert search.serves(raised[3])
    assert [slots for slots, change in raised.items() if search.lasts(change)] == [4, 5]


def test_a_launch_that_succeeds_ends_the_back_off_of_its_quota_and_an_earlier_gang_takes_the_machine() -> None:
    trial = Hold(
        id=hold_id("linux", "quota", ""), pool="linux", kind="quota", subject="", refused_at=NOW - 20, until=NOW - 5
    )
    rows: list[Row] = [
        wish("gang", components=(a_component(count=2, resources={"cpus": 2}),), created_at=NOW - 5),
        wish("r1", resources={"cpus": 2}, created_at=NOW),
        wish("r2", resources={"cpus": 2}, created_at=NOW + 1),
        a_slot("linux-1", state="launching", resources={"cpus": 2}),
        Slot(id="linux-2", pool="linux"),
        trial,
    ]
    pool = {"resources": {"cpus": 2}, "max_slots": 2, "max_leases_per_slot": 1}
    rules = some_rules({"scheduler": {"backfill": False}, "pools": {"linux": pool}})
    view = View(rows)
    search = Search(view, rules, view.reservations["r1"], NOW)
    overtaking = Suggestion(kind="overtaking", text="", config={"scheduler": {"backfill": True}})
    assert search.serves(overtaking)
    assert not search.lasts(overtaking)


def test_a_slot_whose_machine_ends_cannot_be_launched_for_the_gang_before_others_take_the_machines_that_boot() -> None:
    rows: list[Row] = [
        wish("r1", components=(a_component(count=2, resources={"cpus": 2}),), created_at=NOW),
        a_slot("linux-1", state="terminating", offering="small"),
        *(Slot(id=f"linux-{number}", pool="linux") for number in range(2, 5)),
    ]
    search = make_search({"offerings": OFFERINGS[:1], "max_slots": 1, "max_leases_per_slot": 1}, rows)
    raised = {
        slots: Suggestion(kind="max_slots", text="", config={"pools": {"linux": {"max_slots": slots}}})
        for slots in (2, 3)
    }
    assert [slots for slots, change in raised.items() if search.lasts(change)] == [3]


def test_a_change_leaves_room_for_each_earlier_reservation_that_takes_the_machine_while_it_boots() -> None:
    """EC2 has no small machines. So the large one is launched only for `r1`, and the earliest of the others takes it;
    then another is launched for `r1`, and so on.
    """
    rows: list[Row] = [
        *(wish(f"small-{number}", resources={"cpus": 2}, created_at=NOW - 9 + number) for number in range(5)),
        wish("r1", resources={"cpus": 16}, created_at=NOW),
        a_hold("small"),
    ]
    pool = {"offerings": OFFERINGS, "price_factor": 1, "max_slots": 0, "max_leases_per_slot": 1}
    found = suggest_change(make_search(pool, rows), KINDS_OF_CHANGE)
    assert found is not None
    assert found.text == "pool linux is at its max_slots of 0: 6 would do"


def test_a_change_of_the_rules_does_not_count_on_a_slot_beyond_max_slots() -> None:
    """The machine of `linux-3` ended after `max_slots` fell to 2. Any change of the rules drops this slot."""
    rows: list[Row] = [
        wish(),
        a_slot("spare-1"),
        a_reservation("h", phase="leased", leases=(a_lease("spare-1"),)),
        Slot(id="linux-1", pool="linux", cordoned=True),
        Slot(id="linux-3", pool="linux"),
    ]
    pools = {"linux": {"max_slots": 2}, "spare": {"system": "other", "max_slots": 1}}
    rules = some_rules({"scheduler": {"max_slots": 1}, "pools": pools})
    view = View(rows)
    search = Search(view, rules, view.reservations["r1"], NOW)
    more = Suggestion(kind="max_slots", text="", config={"scheduler": {"max_slots": 2}})
    assert not search.serves(more)
    assert view.slots.keys() == {"spare-1", "linux-1", "linux-3"}


def test_a_higher_limit_leaves_the_slots_as_they_are_that_kept_their_machine_beyond_the_present_one() -> None:
    rows: list[Row] = [wish(resources={"cpus": 4}), wish("r2", created_at=NOW)]
    for name in ("linux-1", "linux-2"):
        rows += [a_slot(name, cordoned=name == "linux-2", resources={"cpus": 4}), holder(name, 4)]
    search = make_search({"max_slots": 1, "resources": {"cpus": 4}}, rows)
    found = suggest_change(search, KINDS_OF_CHANGE)
    assert found is not None
    assert describe_change(search.view, found)["actions"] == [{"rules": {"pools": {"linux": {"max_slots": 3}}}}]


def test_where_a_budget_is_used_up_the_first_unmet_condition_and_the_change_are_about_the_budget() -> None:
    full = a_slot("linux-1", offering="small", price=1.0, resources={"cpus": 2})
    rows: list[Row] = [wish(resources={"cpus": 16}), full, Slot(id="linux-2", pool="linux")]
    rules = some_rules({"pools": {"linux": {"offerings": OFFERINGS}}, "budgets": {"b": {"per_day": 5}}})
    view = View(rows)
    found = explain_wait(view, rules.with_spending({"b": Spent(5, 5)}), view.reservations["r1"], NOW)
    unmet = [each["name"] for each in found["conditions"] if each["met"] is False]
    assert (found["waiting"]["code"], unmet[0], found["change"]["kind"]) == ("over_budget", "budget", "budget")
    # The machine that runs costs 1 dollar an hour, and the only offering that fits costs 9.
    assert found["change"]["text"] == "budget b allows 0.00 dollars an hour at present: 10.00 would do"


def test_a_search_ends_when_its_time_is_over() -> None:
    pool, rows, _ = CASES["max_slots"]
    asked: list[None] = []

    def has_time() -> bool:
        asked.append(None)
        return len(asked) < 2

    search = make_search(pool, rows, has_time=has_time)
    assert suggest_change(search, KINDS_OF_CHANGE) is None
    assert search.is_cut_short
    assert len(asked) == 2


def test_a_search_makes_at_most_the_allowed_number_of_plans() -> None:
    search = make_search(*CASES["max_slots"][:2])
    nothing = Suggestion(kind="nothing", text="")
    cut_short = []
    for _ in range(MOST_PLANS + 1):
        search.serves(nothing)
        cut_short.append(search.is_cut_short)
    assert cut_short == [False] * MOST_PLANS + [True]


WAITS = frozenset(WAITING_CODES) - {"booting", "no_quota", "account_limit", "no_pool"}
"""Codes of waits for which a change is found; nothing can be done about `booting` and `no_pool`, and these fleets have
no accounts.
"""
KINDS = {*("hold", "cordon", "wait", "max_slots", "offering", "max_leases_per_slot", "overtaking", "budget", "release")}
"""Kinds of change that are found, alone or as one of two. (A price factor comes after kinds that serve nearly always.)
"""
MOST_OF_A_CODE = 60 * TIMES
"""Searches for reservations that wait with one code, so that the other codes are found too."""
LEAST = 80 * TIMES


@pytest.mark.timeout(300)
def test_the_printed_change_ends_the_wait_and_less_of_it_does_not() -> None:
    """Eighty and more pending reservations of generated fleets, for every waiting code and every kind of change.
    The change is applied as `leasehold explain --json` prints it.
    """
    kinds, codes, asked = Counter[str](), Counter[str](), Counter[str]()
    parts: set[str] = set()
    for seed in range(10_000):
        fleet = a_fleet(Random(seed))
        look = look_at(fleet)
        for each in list_waiting(look):
            asked[each.code] += 1
            found = search_in(look, each.reservation) if asked[each.code] <= MOST_OF_A_CODE else None
            if found is not None:
                kinds[found["kind"]] += 1
                codes[each.code] += 1
                check_change(fleet, look, found, each.reservation)
        parts = {part for kind in kinds for part in kind.split(" and ")}
        if kinds.total() >= LEAST and codes.keys() == WAITS and parts >= KINDS:
            break
    assert kinds.total() >= LEAST
    assert codes.keys() == WAITS
    assert parts >= KINDS
    assert sum(" and " in kind for kind in kinds) >= 8, kinds


@pytest.mark.parametrize(
    ("kind", "least", "known"),
    [(raise_price_factor, 3, (146, 297, 307)), (end_lease, 12, (2, 9, 10, 11, 17, 21, 35, 37, 38, 47, 75))],
)
def test_kinds_of_change_that_are_rarely_found_end_waits_too(kind: Kind, least: int, known: tuple[int, ...]) -> None:
    """A price factor and the end of another lease are found only where nothing that is tried before them would do,
    which is rare: here they are searched alone. They are found in the `known` fleets.
    """
    count, least = 0, least * TIMES
    for seed in (*known, *range(known[-1] + 1, 10_000)):
        fleet = a_fleet(Random(seed))
        look = look_at(fleet)
        for each in list_waiting(look):
            found = search_in(look, each.reservation, [kind])
            if found is not None:
                count += 1
                check_change(fleet, look, found, each.reservation)
        if count >= least:
            break
    assert count >= least


def check_change(fleet: Document, look: Look, change: Document, name: str) -> None:
    """The change serves that reservation when it is applied, and less of it does not."""
    assert is_served_after(fleet, change, name), f"{fleet}, {name}: {change}"
    assert not any("slot" in each for each in change["actions"]), "a change makes no machine"
    for less in list_smaller(look, change):
        is_enough = is_served_after(fleet, less, name) and lasts(look, change, less, name)
        assert not is_enough, f"{fleet}, {name}: {change}; and so does {less}"


def lasts(look: Look, change: Document, less: Document, name: str) -> bool:
    """Whether a smaller change still serves the reservation when the machines of its tick are ready."""
    view, rules, now = look
    rest, [config, *others] = (
        [each for each in change["actions"] if "rules" not in each],
        [each["rules"] for each in less["actions"] if "rules" in each] or [{}],
    )
    is_of_rules = not others and rest == [each for each in less["actions"] if "rules" not in each]
    search = Search(view, rules, view.reservations[name], now)
    whole = suggest_change(search, KINDS_OF_CHANGE)
    if not is_of_rules or whole is None or describe_change(view, whole)["text"] != change["text"]:
        return True
    return search.lasts(msgspec.structs.replace(whole, config=config))


def search_in(look: Look, name: str, kinds: Sequence[Kind] = KINDS_OF_CHANGE) -> Document | None:
    view, rules, now = look
    found = suggest_change(Search(view, rules, view.reservations[name], now), kinds)
    return json.loads(json.dumps(describe_change(view, found))) if found is not None else None
