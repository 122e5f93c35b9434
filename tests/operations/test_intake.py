"""Requests: accepted with the commit, repeats get the same answer, items of a list are refused one by one."""

from typing import Any

import msgspec
import pytest

from scheduler.model.command_schemas import SCHEMAS, HolderDocument
from scheduler.model.principals import Principal
from scheduler.operations.commands.intake import accept
from tests.operations.harness import CONFIG, Harness


def test_a_repeated_request_changes_nothing_also_after_other_requests() -> None:
    harness = Harness()
    first = harness.submit("r1", request="q1")
    harness.ask("cancel", reservation="r1")
    events = list(harness.events)
    assert harness.submit("r1", request="q1") == first
    assert harness.events == events
    assert harness.phase() == "cancelled"


def test_a_repeated_request_is_published_and_kicks_again() -> None:
    """The process that took the first copy may have been killed right after its commit."""
    harness = Harness()
    harness.tick()
    harness.redis.flush()
    harness.submit("r1", request="q1")
    harness.ports.view_cache.rebuild([])
    kicks = harness.notifier.kicks
    harness.submit("r1", request="q1")
    assert harness.notifier.kicks == kicks + 1
    assert list(harness.ports.view_cache.read_kept()) == ["r1"]


def test_the_same_id_in_another_request_is_the_same_reservation() -> None:
    harness = Harness()
    first = harness.submit("r1")
    again = harness.submit("r1", priority=9)
    assert [note["path"] for note in again.pop("notes")] == ["priority"]
    assert again == first
    assert len([event for event in harness.events if event.name == "reservation_submitted"]) == 1


def test_valid_items_of_a_list_are_accepted_and_invalid_ones_refused() -> None:
    harness = Harness()
    items: list[Any] = [
        {"id": "r1", "system": "x86_64-linux"},
        {"id": "r2", "system": "x86_64-linus"},
        "no table",
        {"id": "r1", "system": "x86_64-linux"},
        {"id": "r3", "system": "x86_64-linux", "resources": {"cpus": -1}},
    ]
    answer = harness.ask("submit", items=items)
    assert [each["ok"] for each in answer["results"]] == [True, False, False, True, False]
    assert [(each["index"], each["path"]) for result in answer["results"] for each in result.get("errors", [])] == [
        (1, "system"),
        (2, "."),
        (4, "resources.cpus"),
    ]
    assert not answer["ok"]
    assert [row.id for row in harness.store.find_reservations()] == ["r1"]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        # no valid envelope
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
        # no valid reservation
        ({"request": "q", "id": "r1"}, "system"),
        ({"request": "q", "id": "r 1", "system": "x86_64-linux"}, "id"),
        ({"request": "q", "id": "r1", "system": "x86_64-linux", "ttl": -1}, "ttl"),
        ({"request": "q", "id": "r1", "system": "x86_64-linux", "priority": float("nan")}, "priority"),
        ({"request": "q", "id": "r1", "system": "x86_64-linux", "labels": {"a": "x" * 10_000}}, "labels.a"),
        ({"request": "q", "id": "r1", "system": "x86_64-linux", "colour": "red"}, "colour"),
    ],
)
def test_bad_input_is_answered_with_its_path_and_nothing_is_stored(document: Any, path: str) -> None:
    harness = Harness()
    answer = accept(harness.ports, "submit", document)
    assert (answer["ok"], answer["errors"][0]["path"]) == (False, path)
    assert harness.store.find_reservations() == []


@pytest.mark.parametrize("verb", ["release", "renew", "confirm", "fail"])
def test_a_request_of_a_holder_needs_the_current_token(verb: str) -> None:
    harness = Harness().leased()
    assert harness.ask(verb, reservation="r1")["errors"][0]["path"] == "token"
    assert harness.ask(verb, reservation="r1", token=harness.token() + 1)["errors"][0]["path"] == "token"
    assert harness.phase() == "leased"
    assert harness.ask(verb, reservation="r1", token=harness.token())["ok"]


def test_the_token_of_an_earlier_lease_is_stale() -> None:
    """After a requeue and a new lease, requests of the first holder are refused."""
    harness = Harness(
        {"scheduler": {"confirm_timeout": 10}, "pools": {"linux": {"system": "x86_64-linux", "max_slots": 1}}}
    )
    harness.leased()
    old = harness.token()
    harness.now += 10
    harness.tick()
    assert harness.phase() == "leased"
    assert harness.token() > old
    assert not harness.ask("release", reservation="r1", token=old)["ok"]
    assert harness.phase() == "leased"


@pytest.mark.parametrize("verb", ["release", "renew"])
def test_a_pending_reservation_needs_no_token(verb: str) -> None:
    harness = Harness()
    harness.submit("r1")
    assert harness.ask(verb, reservation="r1")["ok"]


def test_a_producer_cancels_without_a_token_and_twice() -> None:
    harness = Harness().leased()
    assert [harness.ask("cancel", reservation="r1")["phase"] for _ in range(2)] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("verb", sorted(name for name, schema in SCHEMAS.items() if issubclass(schema, HolderDocument)))
def test_a_command_about_an_unknown_reservation_is_refused(verb: str) -> None:
    more = {"priority": 1} if verb == "priority" else {}
    answer = Harness().ask(verb, reservation="unknown", **more)
    assert (answer["ok"], answer["errors"][0]["path"]) == (False, "reservation")


@pytest.mark.parametrize(
    ("verb", "fields", "kicks"),
    [
        # a change of more than timestamps
        ("release", {"reservation": "r1"}, 1),
        ("cancel", {"reservation": "r1"}, 1),
        ("fail", {"reservation": "r1"}, 1),
        ("priority", {"reservation": "r1", "priority": 7}, 1),
        ("cordon", {"slot": "linux-1"}, 1),
        ("drain", {"slot": "linux-1"}, 1),
        # a change of timestamps only, and no change
        ("renew", {"reservation": "r1"}, 0),
        ("confirm", {"reservation": "r1"}, 0),
        ("priority", {"reservation": "r1", "priority": 1}, 0),
        ("uncordon", {"slot": "linux-1"}, 0),
        ("release", {"reservation": "unknown"}, 0),
    ],
)
def test_a_change_kicks_and_a_new_timestamp_does_not(verb: str, fields: dict[str, Any], kicks: int) -> None:
    harness = Harness().leased()
    before = harness.notifier.kicks
    token = {"token": harness.token()} if "reservation" in fields and verb != "priority" else {}
    harness.ask(verb, **fields, **token)
    assert harness.notifier.kicks - before == kicks


def test_the_end_of_a_lease_frees_its_slot_from_now_on() -> None:
    harness = Harness().leased()
    assert harness.slot().idle_since is None
    harness.now += 50
    harness.ask("release", reservation="r1", token=harness.token())
    assert harness.slot().idle_since == harness.now


def test_an_unknown_verb_is_answered() -> None:
    answer = Harness().ask("relaese", reservation="r1")
    assert answer["errors"][0]["expected"] == 'a known verb (did you mean "release"?)'


WAITING_FOR_RESTART = {"restart_policy": "on_failure"}


def test_a_failed_reservation_that_will_restart_may_be_cancelled() -> None:
    harness = Harness()
    harness.submit("r1", **WAITING_FOR_RESTART)
    harness.ask("fail", reservation="r1")
    assert harness.phase() == "failed"
    assert [harness.ask("cancel", reservation="r1")["phase"] for _ in range(2)] == ["cancelled", "cancelled"]
    harness.tick()
    assert harness.phase() == "cancelled"


def test_a_reservation_that_failed_and_will_not_restart_cannot_be_cancelled() -> None:
    harness = Harness({**CONFIG, "scheduler": {"max_restarts": 1}})
    harness.submit("r1")
    harness.submit("r2", **WAITING_FOR_RESTART)
    for _ in range(2):
        for name in ("r1", "r2"):
            harness.ask("fail", reservation=name)
        harness.tick()
    for name in ("r1", "r2"):
        assert harness.ask("cancel", reservation=name)["errors"][0]["got"] == f'"{name} is failed"'


def test_an_earlier_holder_is_refused_while_the_reservation_has_no_lease() -> None:
    harness = Harness().leased()
    first = harness.token()
    for _ in range(2):
        harness.ask("suspend", reservation="r1", token=harness.token())
        harness.ask("resume", reservation="r1")
        harness.tick()
    last = harness.token()
    harness.ask("suspend", reservation="r1", token=last)
    assert harness.phase() == "pending"
    assert harness.ask("release", reservation="r1", token=first)["errors"][0]["path"] == "token"
    assert harness.ask("renew", reservation="r1", token=last + 1)["errors"][0]["path"] == "token"
    assert harness.ask("release", reservation="r1", token=last)["ok"]


@pytest.mark.parametrize("verb", ["renew", "confirm"])
@pytest.mark.parametrize(("ttl", "answered"), [(90, 90), (0, None)])
def test_the_answer_to_a_renewal_has_its_duration(verb: str, ttl: float, answered: float | None) -> None:
    harness = Harness()
    harness.submit("r1", ttl=ttl)
    harness.leased()
    answer = harness.ask(verb, reservation="r1", token=harness.token())
    assert answer["ttl"] == answered
    harness.now += 30
    assert harness.ask("confirm", reservation="r1", token=harness.token())["ttl"] == (answered and answered - 30)
    assert harness.ask("renew", reservation="r1", token=harness.token())["ttl"] == answered


def test_the_answer_to_the_renewal_of_a_revoked_lease_has_the_deadline() -> None:
    harness = Harness({**CONFIG, "scheduler": {"interruption_grace": 60}}).leased()
    slot = harness.slot()
    harness.put(msgspec.structs.replace(slot, interrupted_at=harness.now, interrupted_by=harness.now + 120))
    harness.tick()
    answer = harness.ask("renew", reservation="r1", token=harness.token())
    assert (answer["phase"], answer["deadline"]) == ("revoking", harness.now + 60)
    assert harness.ask("surrender", reservation="r1", token=harness.token())["phase"] == "pending"


@pytest.mark.parametrize(
    ("document", "path"),
    [({}, "reservation"), ({"component": "main"}, "reservation"), ({"component": "other"}, "component")],
)
def test_an_essential_lease_that_is_not_revoked_cannot_be_surrendered(document: dict[str, Any], path: str) -> None:
    harness = Harness().leased()
    answer = harness.ask("surrender", reservation="r1", token=harness.token(), **document)
    assert answer["errors"][0]["path"] == path
    assert harness.phase() == "leased"


def test_a_command_in_a_list_is_applied_or_refused_by_its_index() -> None:
    harness = Harness().leased()
    good = {"reservation": "r1", "token": harness.token()}
    answer = harness.ask("release", items=[{"reservation": "r2"}, good, good, {"reservation": "r1", "token": "x"}])
    assert [each["ok"] for each in answer["results"]] == [False, True, True, False]
    assert [each["errors"][0]["index"] for each in answer["results"] if not each["ok"]] == [0, 3]


def test_a_command_that_is_sent_again_after_its_answer_was_deleted_is_applied_again() -> None:
    harness = Harness().leased()
    command = {"request": "q", "reservation": "r1", "token": harness.token()}
    first = harness.ask("release", **command)
    harness.store.prune(events_before=0, requests_before=harness.now + 1, ended_before=0)
    assert harness.ask("release", **command) == first


def test_an_invalid_request_is_refused_without_a_stored_answer() -> None:
    harness = Harness()
    harness.ask("submit", request="q", id="r 1")
    with harness.store.transaction() as transaction:
        assert transaction.find_answers(["q"]) == {}


def test_a_repeated_command_about_a_slot_is_published_again() -> None:
    harness = Harness()
    harness.tick()
    harness.ask("cordon", request="q", slot="linux-1")
    harness.ports.view_cache.rebuild([])
    harness.ask("cordon", request="q", slot="linux-1")
    assert [slot.cordoned for slot in harness.ports.view_cache.load().slots.values()] == [True]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("cordon", {"slot": "linux-1"}),
        ("suspend", {"reservation": "r1"}),
        ("priority", {"reservation": "r1", "priority": 5}),
    ],
)
def test_a_command_whose_effect_is_there_already_writes_no_row(verb: str, fields: dict[str, Any]) -> None:
    harness = Harness()
    harness.submit("r1")

    def versions() -> list[int]:
        slots, reservations = harness.store.find_slots(), harness.store.find_reservations()
        return [*(row.version for row in slots), *(row.version for row in reservations)]

    first = versions()
    assert harness.ask(verb, **fields)["ok"]
    second = versions()
    assert harness.ask(verb, **fields)["ok"]
    assert first != second == versions()


def test_the_answer_to_a_long_list_contains_one_fault_for_each_item() -> None:
    wrong = {f"wrong-{number}": number for number in range(50)}
    answer = Harness().ask("submit", items=[wrong] * 1000)
    assert [len(result["errors"]) for result in answer["results"]] == [1] * 1000


@pytest.mark.parametrize(
    "queue", ["reservations", "ticks", "launch", "health", "terminate", "unacked", "leasehold:leader", "_kombu"]
)
def test_a_callback_cannot_name_a_queue_or_key_of_leasehold(queue: str) -> None:
    answer = Harness().submit("r1", on_end={"task": "shop.ended", "queue": queue})
    assert answer["errors"][0]["path"] == "on_end.queue"


ALICE = Principal(name="alice", role="producer")


@pytest.mark.parametrize("other", [Principal(name="bob", role="producer"), None])
def test_a_copy_of_a_request_gets_the_stored_answer_for_the_same_principal_only(other: Principal | None) -> None:
    harness = Harness()
    document = {"request": "q1", "id": "r1", "system": "x86_64-linux"}
    first = accept(harness.ports, "submit", document, principal=ALICE)
    assert first["ok"]
    assert accept(harness.ports, "submit", document, principal=ALICE) == first
    refused = accept(harness.ports, "submit", document, principal=other)
    assert (refused["ok"], [error["path"] for error in refused["errors"]]) == (False, ["request"])


def test_a_signed_copy_of_an_unsigned_request_is_refused() -> None:
    harness = Harness()
    document = {"request": "q1", "id": "r1", "system": "x86_64-linux"}
    assert accept(harness.ports, "submit", document)["ok"]
    assert not accept(harness.ports, "submit", document, principal=ALICE)["ok"]
