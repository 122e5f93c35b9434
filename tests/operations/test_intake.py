"""Requests: accepted when committed, answered the same however often they are sent, refused one by one."""

from typing import Any

import msgspec
import pytest

from scheduler.model.command_schemas import WISHES, HolderDocument
from scheduler.model.principals import Principal
from scheduler.operations.commands.intake import accept
from tests.operations.harness import CONFIG, Harness


def test_a_repeat_of_a_request_changes_nothing_whatever_came_in_between() -> None:
    rig = Harness()
    first = rig.submit("r1", request="q1")
    rig.ask("cancel", reservation="r1")
    events = list(rig.events)
    assert rig.submit("r1", request="q1") == first
    assert rig.events == events
    assert rig.phase() == "cancelled"


def test_a_repeat_is_published_and_kicked_for_again() -> None:
    """Whoever answered first may have died right after its commit."""
    rig = Harness()
    rig.tick()
    rig.shelf.flush()
    rig.submit("r1", request="q1")
    rig.ports.view_cache.rebuild([])
    kicks = rig.notifier.kicks
    rig.submit("r1", request="q1")
    assert rig.notifier.kicks == kicks + 1
    assert list(rig.ports.view_cache.read_reservations(["r1"])) == ["r1"]


def test_the_same_id_in_another_request_is_the_same_reservation() -> None:
    rig = Harness()
    first = rig.submit("r1")
    again = rig.submit("r1", priority=9)
    assert [note["path"] for note in again.pop("notes")] == ["priority"]
    assert again == first
    assert len([event for event in rig.events if event.name == "reservation_submitted"]) == 1


def test_of_a_list_the_good_ones_are_accepted_and_the_bad_ones_refused() -> None:
    rig = Harness()
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
        ({"request": "q\0"}, "request"),
        ({"request": "\ud800"}, "request"),
        ({"request": "q", "items": [{}] * 10_001}, "items"),
        ({"request": "q", "items": [{}], "id": "r1"}, "id"),
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
    rig = Harness()
    answer = accept(rig.ports, "submit", document)
    assert (answer["ok"], answer["errors"][0]["path"]) == (False, path)
    assert rig.store.find_reservations() == []


@pytest.mark.parametrize("verb", ["release", "renew", "confirm", "fail"])
def test_a_holders_word_needs_the_current_token(verb: str) -> None:
    rig = Harness().leased()
    assert rig.ask(verb, reservation="r1")["errors"][0]["path"] == "token"
    assert rig.ask(verb, reservation="r1", token=rig.token() + 1)["errors"][0]["path"] == "token"
    assert rig.phase() == "leased"
    assert rig.ask(verb, reservation="r1", token=rig.token())["ok"]


def test_the_token_of_an_earlier_lease_is_stale() -> None:
    """It was requeued and leased again: its first holder may not speak any more."""
    rig = Harness(
        {"scheduler": {"confirm_timeout": 10}, "pools": {"linux": {"system": "x86_64-linux", "max_slots": 1}}}
    )
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
    rig = Harness()
    rig.submit("r1")
    assert rig.ask(verb, reservation="r1")["ok"]


def test_a_producer_cancels_without_a_token_and_twice() -> None:
    rig = Harness().leased()
    assert [rig.ask("cancel", reservation="r1")["phase"] for _ in range(2)] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("verb", sorted(name for name, word in WISHES.items() if issubclass(word, HolderDocument)))
def test_a_word_about_nobody_is_refused(verb: str) -> None:
    more = {"priority": 1} if verb == "priority" else {}
    answer = Harness().ask(verb, reservation="nobody", **more)
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
    rig = Harness().leased()
    before = rig.notifier.kicks
    token = {"token": rig.token()} if "reservation" in fields and verb != "priority" else {}
    rig.ask(verb, **fields, **token)
    assert rig.notifier.kicks - before == kicks


def test_the_end_of_a_lease_frees_its_slot_from_now_on() -> None:
    rig = Harness().leased()
    assert rig.slot().idle_since is None
    rig.now += 50
    rig.ask("release", reservation="r1", token=rig.token())
    assert rig.slot().idle_since == rig.now


def test_an_unknown_verb_is_answered() -> None:
    answer = Harness().ask("relaese", reservation="r1")
    assert answer["errors"][0]["expected"] == 'a known verb (did you mean "release"?)'


WAITING_FOR_RESTART = {"restart_policy": "on_failure"}


def test_one_that_waits_for_its_restart_may_be_cancelled() -> None:
    rig = Harness()
    rig.submit("r1", **WAITING_FOR_RESTART)
    rig.ask("fail", reservation="r1")
    assert rig.phase() == "failed"
    assert [rig.ask("cancel", reservation="r1")["phase"] for _ in range(2)] == ["cancelled", "cancelled"]
    rig.tick()
    assert rig.phase() == "cancelled"


def test_one_that_has_failed_for_good_cannot_be_cancelled() -> None:
    rig = Harness({**CONFIG, "scheduler": {"max_restarts": 1}})
    rig.submit("r1")
    rig.submit("r2", **WAITING_FOR_RESTART)
    for _ in range(2):
        for name in ("r1", "r2"):
            rig.ask("fail", reservation=name)
        rig.tick()
    for name in ("r1", "r2"):
        assert rig.ask("cancel", reservation=name)["errors"][0]["got"] == f'"{name} is failed"'


def test_an_earlier_holder_is_refused_while_nobody_holds_it() -> None:
    rig = Harness().leased()
    first = rig.token()
    for _ in range(2):
        rig.ask("suspend", reservation="r1", token=rig.token())
        rig.ask("resume", reservation="r1")
        rig.tick()
    last = rig.token()
    rig.ask("suspend", reservation="r1", token=last)
    assert rig.phase() == "pending"
    assert rig.ask("release", reservation="r1", token=first)["errors"][0]["path"] == "token"
    assert rig.ask("renew", reservation="r1", token=last + 1)["errors"][0]["path"] == "token"
    assert rig.ask("release", reservation="r1", token=last)["ok"]


@pytest.mark.parametrize("verb", ["renew", "confirm"])
@pytest.mark.parametrize(("ttl", "said"), [(90, 90), (0, None)])
def test_a_renewal_says_how_long_it_holds(verb: str, ttl: float, said: float | None) -> None:
    rig = Harness()
    rig.submit("r1", ttl=ttl)
    rig.leased()
    answer = rig.ask(verb, reservation="r1", token=rig.token())
    assert answer["ttl"] == said
    rig.now += 30
    assert rig.ask("confirm", reservation="r1", token=rig.token())["ttl"] == (said and said - 30)
    assert rig.ask("renew", reservation="r1", token=rig.token())["ttl"] == said


def test_a_renewal_of_what_is_being_revoked_says_until_when() -> None:
    rig = Harness({**CONFIG, "scheduler": {"interruption_grace": 60}}).leased()
    slot = rig.slot()
    rig.put(msgspec.structs.replace(slot, interrupted_at=rig.now, interrupted_by=rig.now + 120))
    rig.tick()
    answer = rig.ask("renew", reservation="r1", token=rig.token())
    assert (answer["phase"], answer["deadline"]) == ("revoking", rig.now + 60)
    assert rig.ask("surrender", reservation="r1", token=rig.token())["phase"] == "pending"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({}, "reservation"),
        ({"component": "main"}, "reservation"),
        ({"component": "other"}, "component"),
    ],
)
def test_an_essential_lease_is_not_surrendered_while_nobody_takes_it_back(document: dict[str, Any], path: str) -> None:
    rig = Harness().leased()
    answer = rig.ask("surrender", reservation="r1", token=rig.token(), **document)
    assert answer["errors"][0]["path"] == path
    assert rig.phase() == "leased"


def test_a_word_in_a_list_is_heeded_or_refused_by_its_index() -> None:
    rig = Harness().leased()
    good = {"reservation": "r1", "token": rig.token()}
    answer = rig.ask("release", items=[{"reservation": "r2"}, good, good, {"reservation": "r1", "token": "x"}])
    assert [each["ok"] for each in answer["results"]] == [False, True, True, False]
    assert [each["errors"][0]["index"] for each in answer["results"] if not each["ok"]] == [0, 3]


def test_a_word_that_is_sent_again_after_its_answer_was_forgotten_is_heeded_anew() -> None:
    rig = Harness().leased()
    word = {"request": "q", "reservation": "r1", "token": rig.token()}
    first = rig.ask("release", **word)
    rig.store.prune(events_before=0, requests_before=rig.now + 1, ended_before=0)
    assert rig.ask("release", **word) == first


def test_what_no_rule_could_make_good_is_refused_without_a_row() -> None:
    rig = Harness()
    rig.ask("submit", request="q", id="r 1")
    with rig.store.transaction() as transaction:
        assert transaction.find_answers(["q"]) == {}


def test_a_repeat_of_a_word_about_a_slot_is_published_again() -> None:
    rig = Harness()
    rig.tick()
    rig.ask("cordon", request="q", slot="linux-1")
    rig.ports.view_cache.rebuild([])
    rig.ask("cordon", request="q", slot="linux-1")
    assert [slot.cordoned for slot in rig.ports.view_cache.load().slots.values()] == [True]  # type: ignore[union-attr]


def test_the_answer_to_a_long_list_of_faults_is_no_flood() -> None:
    wrong = {f"wrong-{number}": number for number in range(50)}
    answer = Harness().ask("submit", items=[wrong] * 1000)
    assert [len(result["errors"]) for result in answer["results"]] == [1] * 1000


@pytest.mark.parametrize(
    "queue", ["reservations", "ticks", "launch", "health", "terminate", "unacked", "leasehold:leader", "_kombu"]
)
def test_a_callback_goes_to_no_list_of_ours(queue: str) -> None:
    answer = Harness().submit("r1", on_end={"task": "shop.ended", "queue": queue})
    assert answer["errors"][0]["path"] == "on_end.queue"


ALICE = Principal(name="alice", role="producer")


@pytest.mark.parametrize("other", [Principal(name="bob", role="producer"), None])
def test_a_copy_of_a_request_gets_the_stored_answer_for_the_same_principal_only(other: Principal | None) -> None:
    rig = Harness()
    document = {"request": "q1", "id": "r1", "system": "x86_64-linux"}
    first = accept(rig.ports, "submit", document, principal=ALICE)
    assert first["ok"]
    assert accept(rig.ports, "submit", document, principal=ALICE) == first
    refused = accept(rig.ports, "submit", document, principal=other)
    assert (refused["ok"], [error["path"] for error in refused["errors"]]) == (False, ["request"])


def test_a_signed_copy_of_an_unsigned_request_is_refused() -> None:
    rig = Harness()
    document = {"request": "q1", "id": "r1", "system": "x86_64-linux"}
    assert accept(rig.ports, "submit", document)["ok"]
    assert not accept(rig.ports, "submit", document, principal=ALICE)["ok"]
