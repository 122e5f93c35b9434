"""Requests about the rules: reading them, previewing and applying other ones, and what each role may do."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from scheduler.model.principals import Principal
from scheduler.model.validation import InvalidInputError
from scheduler.operations.commands.rule_requests import MOST_SHOWN, apply_request, describe_rules, preview_request
from scheduler.ports import EventFilter, Store
from scheduler.store.memory import MemoryStore
from scheduler.store.opening import open_store
from tests.operations.harness import CONFIG, NOW, Harness

OPERATOR: Final = Principal(name="ops", role="operator")
OTHER: Final = Principal(name="ops-2", role="operator")
LINUX: Final[dict[str, Any]] = CONFIG["pools"]["linux"]
Answer = dict[str, Any]


def with_slots(count: object) -> dict[str, Any]:
    return {"pools": {"linux": {**LINUX, "max_slots": count}}}


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore(lambda: NOW)
        return
    opened = open_store(request.getfixturevalue(f"{request.param}_url"))
    yield opened
    opened.close()


def ask(harness: Harness, principal: Principal | None = OPERATOR, **document: Any) -> Answer:
    return apply_request(harness.ports, document, principal)


def test_an_operator_applies_rules_by_a_request(store: Store) -> None:
    harness = Harness(store=store)
    answer = ask(harness, request="q1", rules=with_slots(5), expected=1, source="more builders")
    assert answer == {"ok": True, "version": 2, "changed": True}
    assert len(store.find_slots()) == 5
    (event,) = store.read_events(EventFilter(name="rules_changed", newest=True, limit=1))
    assert (event.principal, event.cause) == ("ops", "operator")
    assert event.detail == {"version": 2, "source": "more builders"}


def test_a_repeated_request_changes_nothing_and_gets_the_first_answer(store: Store) -> None:
    harness = Harness(store=store)
    document: Answer = {"request": "q1", "rules": with_slots(5), "expected": 1}
    first = ask(harness, **document)
    assert ask(harness, request="q2", rules=with_slots(2), expected=2)["version"] == 3
    assert ask(harness, **document) == first
    assert store.rules_version() == 3
    # A refusal is stored as well: a copy of the request is not carried out when its version returns.
    stale: Answer = {"request": "q3", "rules": with_slots(9), "expected": 4}
    refused = ask(harness, **stale)
    assert not refused["ok"]
    assert ask(harness, request="q4", rules=with_slots(6), expected=3)["version"] == 4
    assert ask(harness, **stale) == refused
    assert store.rules_version() == 4


def test_a_request_id_of_another_principal_shows_nothing(store: Store) -> None:
    harness = Harness(store=store)
    assert ask(harness, request="q1", rules=with_slots(5), expected=1)["ok"]
    answer = ask(harness, OTHER, request="q1", rules=with_slots(6), expected=2)
    assert [each["path"] for each in answer["errors"]] == ["request"]
    assert store.rules_version() == 2


def test_of_two_changes_of_one_version_the_second_is_refused_with_one_fault(store: Store) -> None:
    harness = Harness(store=store)
    assert ask(harness, request="q1", rules=with_slots(5), expected=1)["ok"]
    assert ask(harness, OTHER, request="q2", rules=with_slots(6), expected=1)["errors"] == [
        {
            "index": 0,
            "path": "expected",
            "expected": "the version of the rules in force, which is 2 now",
            "got": "1",
            "code": "conflict",
        }
    ]
    assert store.load_rules().document == with_slots(5)


def test_the_rules_in_force_are_no_change(store: Store) -> None:
    harness = Harness(store=store)
    assert ask(harness, request="q1", rules=CONFIG, expected=1) == {"ok": True, "version": 1, "changed": False}
    assert len(store.read_rules_history()) == 1


BAD: Final[list[tuple[dict[str, Any], list[str]]]] = [
    ({"rules": with_slots(-1)}, ["rules.pools.linux.max_slots"]),
    # one fault for each wrong key
    ({"rules": {"pools": {"linux": {**LINUX, "max_slots": "x", "mx": 1}}}}, ["max_slots", "mx"]),
    ({"rules": [1]}, ["rules"]),
    ({"rules": None}, ["rules"]),
    ({"expected": -1}, ["expected"]),
    ({"expected": True}, ["expected"]),
    ({"source": "x" * 300}, ["source"]),
    ({"source": "a\0b"}, ["source"]),
    ({"items": []}, ["items"]),
    ({"request": ""}, ["request"]),
    ({"request": "x" * 201}, ["request"]),
    # a worker must not read a file that a message names
    (
        {"rules": {"pools": {"linux": {**LINUX, "ec2": {"user_data_file": "/etc/passwd"}}}}},
        ["rules.pools.linux.ec2.user_data_file"],
    ),
]


@pytest.mark.parametrize(("wrong", "paths"), BAD)
def test_a_bad_request_gets_one_fault_for_each_wrong_value_and_changes_nothing(
    wrong: dict[str, Any], paths: list[str]
) -> None:
    harness = Harness()
    events = len(harness.events)
    answer = ask(harness, **{"request": "q1", "rules": with_slots(5), "expected": 1, **wrong})
    assert not answer["ok"]
    assert [each["path"].removeprefix("rules.pools.linux.") for each in answer["errors"]] == [
        path.removeprefix("rules.pools.linux.") for path in paths
    ]
    assert (harness.store.load_rules().document, len(harness.events)) == (CONFIG, events)


@pytest.mark.parametrize("role", ["producer", "reader", "host"])
def test_only_operators_apply_rules(role: Any) -> None:
    harness = Harness()
    answer = ask(harness, Principal(name="shop", role=role), request="q1", rules=with_slots(5), expected=1)
    assert [each["path"] for each in answer["errors"]] == ["principal"]
    assert harness.store.rules_version() == 1


def test_the_rules_are_read_with_their_history(store: Store) -> None:
    harness = Harness(store=store)
    ask(harness, request="q1", rules=with_slots(5), expected=1)
    ask(harness, request="q2", rules=with_slots(6), expected=2, source="by hand")
    found = describe_rules(harness.ports, OPERATOR, history=2)
    assert (found["version"], found["document"], found["hidden"]) == (3, with_slots(6), [])
    assert [(each["version"], each["source"], each["changes"]) for each in found["history"]] == [
        (2, "a request of ops", ["pools.linux.max_slots: 3 -> 5"]),
        (3, "by hand", ["pools.linux.max_slots: 5 -> 6"]),
    ]
    assert describe_rules(harness.ports, OPERATOR, history=0)["history"] == []


@pytest.mark.parametrize(("role", "is_hidden"), [("operator", False), ("producer", True), ("reader", True)])
def test_user_data_is_answered_to_operators_only(role: Any, is_hidden: bool) -> None:
    rules = {"pools": {"linux": {**LINUX, "ec2": {"user_data": "password=1", "tags": {"team": "a"}}}}}
    harness = Harness(rules)
    found = describe_rules(harness.ports, Principal(name="x", role=role), history=1)
    assert ("password=1" in str(found)) is not is_hidden
    assert found["hidden"] == (["pools.linux.ec2.user_data"] if is_hidden else [])
    assert found["document"]["pools"]["linux"]["ec2"]["tags"] == {"team": "a"}


def test_a_preview_compares_the_next_tick_under_both_rules() -> None:
    harness = Harness()
    for number in range(5):
        harness.submit(f"r{number}")
    before = (list(harness.store.read_rows()), len(harness.events), harness.store.load_rules())
    found = preview_request(harness.ports, with_slots(4))
    assert (list(harness.store.read_rows()), len(harness.events), harness.store.load_rules()) == before
    launches = [
        {"do": "launch", "slot": f"linux-{number}", "pool": "linux", "offering": None, "reason": "demand"}
        for number in range(1, 5)
    ]
    assert found["next_tick"] == {
        "present": launches[:3],
        "proposed": launches,
        "totals": {"present": {"launch": 3}, "proposed": {"launch": 4}},
        "waiting": {"present": {"booting": 3, "at_max_slots": 2}, "proposed": {"booting": 4, "at_max_slots": 1}},
    }
    assert (found["version"], found["changed"], found["launches"], found["takes_away"]) == (
        1,
        True,
        {"linux": 1},
        False,
    )
    assert [each["path"] for each in found["changes"]] == ["pools.linux.max_slots"]


def test_a_preview_of_the_rules_in_force_has_the_same_decisions_twice() -> None:
    harness = Harness()
    harness.submit("r1")
    found = preview_request(harness.ports, CONFIG)
    assert not found["changed"]
    assert found["next_tick"]["present"] == found["next_tick"]["proposed"] != []


def test_a_preview_of_wrong_rules_has_every_fault() -> None:
    with pytest.raises(InvalidInputError) as caught:
        preview_request(Harness().ports, {"pools": {"linux": {**LINUX, "max_slots": "x", "mx": 1}}, "polls": {}})
    assert [each.path for each in caught.value.faults] == [
        "rules.pools.linux.max_slots",
        "rules.pools.linux.mx",
        "rules.polls",
    ]


def test_lists_of_a_preview_are_cut_and_their_lengths_are_given() -> None:
    count = MOST_SHOWN + 50
    harness = Harness(with_slots(count))
    for number in range(count):
        harness.submit(f"r{number}")
    found = preview_request(harness.ports, {"pools": {"linux": {**LINUX, "system": "other", "max_slots": count}}})
    assert (len(found["unservable"]), found["lengths"]) == (MOST_SHOWN, {"unservable": count})
    assert len(found["next_tick"]["present"]) == MOST_SHOWN
    assert found["next_tick"]["totals"]["present"] == {"launch": count}


def test_the_leases_of_a_large_decision_are_cut() -> None:
    harness = Harness({"pools": {"linux": {**LINUX, "max_leases_per_slot": 150, "max_slots": 1}}})
    harness.submit("gang", components=[{"name": "main", "count": 150}])
    harness.tick()
    harness.play_tasks()
    (decision,) = preview_request(harness.ports, CONFIG)["next_tick"]["present"]
    assert (decision["do"], len(decision["leases"]), decision["lengths"]) == ("assign", 100, {"leases": 150})
