"""A refusal of the cloud is written to the log with its code and its words, once for each thing that it concerns."""

from typing import Any

import msgspec
import pytest

from leasehold.texts.values import describe_event
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.slots import Slot
from scheduler.operations.explain import describe_conditions, explain
from scheduler.operations.ports import announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import Category, CloudError
from tests.operations.harness import NOW, Harness

WORDS = "InsufficientInstanceCapacity: There is no Spot capacity available."


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def warnings(harness: Harness) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    harness.ports.warn = lambda sentence, **fields: found.append({"sentence": sentence, **fields})
    return found


def a_hold(**fields: Any) -> Hold:
    code, _, message = WORDS.partition(": ")
    known = {"code": code, "message": message, "refused_at": NOW, "until": NOW + 60, "subject": "big/spot", **fields}
    return Hold(id=hold_id("linux", "capacity", known["subject"]), pool="linux", kind="capacity", **known)


def commit(harness: Harness, *rows: Hold | Slot, **moves: dict[str, Any]) -> None:
    """Write these rows, and move slots: by name, with the state and the changes of each."""
    with harness.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        for row in rows:
            work.put(row)
        for name, changes in moves.items():
            slot = transaction.load_slots([name.replace("_", "-")])[name.replace("_", "-")]
            work.move_slot(slot, changes.pop("to"), **changes)
        change_set = work.flush()
    announce(harness.ports, change_set, kick=False)


def test_a_back_off_that_begins_is_one_warning_with_code_and_words(
    harness: Harness, warnings: list[dict[str, Any]]
) -> None:
    commit(harness, a_hold())
    assert warnings == [
        {
            "sentence": "EC2 refused launches.",
            "action": "launch.refused",
            "pool": "linux",
            "offering": "big/spot",
            "kind": "capacity",
            "code": "InsufficientInstanceCapacity",
            "reason": "There is no Spot capacity available.",
            "seconds": 60.0,
        }
    ]


@pytest.mark.parametrize(
    "hold",
    [
        a_hold(refused_at=NOW - 1),  # a later change of the row, like the end of a pause for a quota
        a_hold(code="", message=""),  # the row of an earlier version
    ],
)
def test_nothing_is_logged_without_a_new_refusal(hold: Hold, harness: Harness, warnings: list[dict[str, Any]]) -> None:
    commit(harness, hold)
    assert warnings == []


def test_an_event_has_the_words_and_the_slots_of_one_reason_share_a_warning(
    harness: Harness, warnings: list[dict[str, Any]]
) -> None:
    for number in (1, 2):
        harness.put(msgspec.structs.replace(harness.slot(f"linux-{number}"), state="ready", instance_id=f"i-{number}"))
    words = "Client.InternalError: Client error on launch"
    commit(
        harness,
        linux_1={"to": "empty", "reason": "gone", "refusal": words},
        linux_2={"to": "empty", "reason": "gone", "refusal": words},
    )
    assert [each.detail["refusal"] for each in harness.events if each.slot and "refusal" in each.detail] == [words] * 2
    assert harness.slot("linux-1").refusal == words
    (event, _) = (each for each in harness.events if each.slot and "refusal" in each.detail)
    assert describe_event(event) == f"EC2's answer: {words}  from=ready epoch=0 reason=gone"
    assert [(each["action"], each["slots"], each["code"], each["reason"]) for each in warnings] == [
        ("machine.refused", ["linux-1", "linux-2"], "Client.InternalError", "Client error on launch")
    ]


def test_a_refused_launch_is_not_logged_for_each_of_its_slots(harness: Harness, warnings: list[dict[str, Any]]) -> None:
    harness.put(msgspec.structs.replace(harness.slot("linux-1"), state="launching", launch_id="l"))
    commit(harness, a_hold(), linux_1={"to": "empty", "reason": "capacity: X", "refusal": WORDS})
    assert [each["action"] for each in warnings] == ["launch.refused"]


@pytest.mark.parametrize("category", ["capacity", "quota", "throttled", "misconfigured", "auth"])
def test_a_refused_launch_shows_code_and_words_wherever_it_is_shown(
    category: Category, harness: Harness, warnings: list[dict[str, Any]]
) -> None:
    words = "NobodyKnowsThisCode: A sentence from EC2"
    harness.fleet.errors = [CloudError(category, "NobodyKnowsThisCode", "A sentence from EC2")]
    harness.submit("r1")
    harness.tick()
    harness.play_tasks()
    assert harness.slot().refusal == words
    assert words in {each.detail.get("refusal") for each in harness.events}
    assert [(each["action"], each["code"], each["reason"]) for each in warnings] == [
        ("launch.refused", "NobodyKnowsThisCode", "A sentence from EC2")
    ]
    harness.tick()
    found = explain(harness.ports, "r1")
    assert found["waiting"]["detail"].endswith(words)
    assert any(words in text for text in found["pools"]["linux"])
    unmet = [each["evidence"] for each in found["conditions"] if words in each["evidence"]]
    assert [each.count(words) for each in unmet] == [1]
    conditions = describe_conditions(harness.ports)
    assert any(words in text for text in conditions["slots"]["linux-1"])
    assert any(words in text for text in conditions["pools"]["linux"])
