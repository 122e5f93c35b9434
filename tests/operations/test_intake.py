"""Requests: accepted when committed, answered the same however often they are sent, refused one by one."""

from typing import Any

import pytest

from scheduler.model.wishes import WISHES, HolderDocument
from tests.operations.rig import Rig


def test_a_repeat_of_a_request_changes_nothing_whatever_came_in_between() -> None:
    rig = Rig()
    first = rig.submit("r1", request="q1")
    rig.ask("cancel", reservation="r1")
    events = list(rig.store.events)
    assert rig.submit("r1", request="q1") == first
    assert rig.store.events == events
    assert rig.phase() == "cancelled"


def test_a_repeat_is_published_and_kicked_for_again() -> None:
    """Whoever answered first may have died right after its commit."""
    rig = Rig()
    rig.tick()
    rig.shelf.flush()
    rig.submit("r1", request="q1")
    rig.engine.board.rebuild([])
    kicks = rig.bell.kicks
    rig.submit("r1", request="q1")
    assert rig.bell.kicks == kicks + 1
    assert list(rig.engine.board.read_reservations(["r1"])) == ["r1"]


def test_the_same_id_in_another_request_is_the_same_reservation() -> None:
    rig = Rig()
    first = rig.submit("r1")
    assert rig.submit("r1", priority=9) == first
    assert len([event for event in rig.store.events if event.name == "reservation_submitted"]) == 1


def test_of_a_list_the_good_ones_are_accepted_and_the_bad_ones_refused() -> None:
    rig = Rig()
    items: list[Any] = [
        {"id": "r1", "system": "x86_64-linux"},
        {"id": "r2", "system": "x86_64-linus"},
        "no table",
        {"id": "r1", "system": "x86_64-linux"},
        {"id": "r3", "system": "x86_64-linux", "resources": {"cpus": -1}},
    ]
    answer = rig.ask("submit", items=items)
    assert [each["ok"] for each in answer["results"]] == [True, False, False, True, False]
    assert [(each["index"], each["path"]) for result in answer["results"] for each in result.get("errors", [])] == [
        (1, "system"),
        (2, "."),
        (4, "resources.cpus"),
    ]
    assert not answer["ok"]
    assert [row.id for row in rig.store.find_reservations()] == ["r1"]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        # not even an envelope
        ([], "."),
        ({}, "request"),
        ({"request": ""}, "request"),
        ({"request": 5}, "request"),
        ({"request": "q" * 300}, "request"),
        ({"request": "q", "items": []}, "items"),
        ({"request": "q", "items": {}}, "items"),
        # no such reservation could be
        ({"request": "q", "id": "r1"}, "system"),
        ({"request": "q", "id": "r 1", "system": "x86_64-linux"}, "id"),
        ({"request": "q", "id": "r1", "system": "x86_64-linux", "ttl": -1}, "ttl"),
        ({"request": "q", "id": "r1", "system": "x86_64-linux", "priority": float("nan")}, "priority"),
        ({"request": "q", "id": "r1", "system": "x86_64-linux", "labels": {"a": "x" * 10_000}}, "labels.a"),
        ({"request": "q", "id": "r1", "system": "x86_64-linux", "colour": "red"}, "colour"),
    ],
)
def test_bad_input_is_answered_with_its_path_and_nothing_is_stored(document: Any, path: str) -> None:
    from scheduler.operations.intake import accept

    rig = Rig()
    answer = accept(rig.engine, "submit", document)
    assert (answer["ok"], answer["errors"][0]["path"]) == (False, path)
    assert rig.store.find_reservations() == []


@pytest.mark.parametrize("verb", ["release", "renew", "confirm", "fail"])
def test_a_holders_word_needs_the_current_token(verb: str) -> None:
    rig = Rig().leased()
    assert rig.ask(verb, reservation="r1")["errors"][0]["path"] == "token"
    assert rig.ask(verb, reservation="r1", token=rig.token() + 1)["errors"][0]["path"] == "token"
    assert rig.phase() == "leased"
    assert rig.ask(verb, reservation="r1", token=rig.token())["ok"]


def test_the_token_of_an_earlier_lease_is_stale() -> None:
    """It was requeued and leased again: its first holder may not speak any more."""
    rig = Rig({"scheduler": {"confirm_timeout": 10}, "pools": {"linux": {"system": "x86_64-linux", "max_slots": 1}}})
    rig.leased()
    old = rig.token()
    rig.now += 10
    rig.tick()
    assert rig.phase() == "leased"
    assert rig.token() > old
    assert not rig.ask("release", reservation="r1", token=old)["ok"]
    assert rig.phase() == "leased"


@pytest.mark.parametrize("verb", ["release", "renew"])
def test_a_pending_one_needs_no_token(verb: str) -> None:
    rig = Rig()
    rig.submit("r1")
    assert rig.ask(verb, reservation="r1")["ok"]


def test_a_producer_cancels_without_a_token_and_twice() -> None:
    rig = Rig().leased()
    assert [rig.ask("cancel", reservation="r1")["phase"] for _ in range(2)] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("verb", sorted(name for name, word in WISHES.items() if issubclass(word, HolderDocument)))
def test_a_word_about_nobody_is_refused(verb: str) -> None:
    more = {"priority": 1} if verb == "priority" else {}
    answer = Rig().ask(verb, reservation="nobody", **more)
    assert (answer["ok"], answer["errors"][0]["path"]) == (False, "reservation")


@pytest.mark.parametrize(
    ("verb", "fields", "kicks"),
    [
        # what changes more than a mark of time
        ("release", {"reservation": "r1"}, 1),
        ("cancel", {"reservation": "r1"}, 1),
        ("fail", {"reservation": "r1"}, 1),
        ("priority", {"reservation": "r1", "priority": 7}, 1),
        ("cordon", {"slot": "linux-1"}, 1),
        ("drain", {"slot": "linux-1"}, 1),
        # marks of time, and what changes nothing
        ("renew", {"reservation": "r1"}, 0),
        ("confirm", {"reservation": "r1"}, 0),
        ("priority", {"reservation": "r1", "priority": 1}, 0),
        ("uncordon", {"slot": "linux-1"}, 0),
        ("release", {"reservation": "nobody"}, 0),
    ],
)
def test_a_change_kicks_and_a_mark_of_time_does_not(verb: str, fields: dict[str, Any], kicks: int) -> None:
    rig = Rig().leased()
    before = rig.bell.kicks
    token = {"token": rig.token()} if "reservation" in fields and verb != "priority" else {}
    rig.ask(verb, **fields, **token)
    assert rig.bell.kicks - before == kicks


def test_the_end_of_a_lease_frees_its_slot_from_now_on() -> None:
    rig = Rig().leased()
    assert rig.slot().idle_since is None
    rig.now += 50
    rig.ask("release", reservation="r1", token=rig.token())
    assert rig.slot().idle_since == rig.now


def test_an_unknown_verb_is_answered() -> None:
    answer = Rig().ask("relaese", reservation="r1")
    assert answer["errors"][0]["expected"] == 'a known verb (did you mean "release"?)'
