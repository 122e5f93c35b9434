"""Limits on the size of one reservation, and on the pending reservations of a principal or an account."""

from typing import Any

import pytest

from scheduler.model.principals import Principal
from scheduler.operations.admission import FULL_SECONDS, Admission
from scheduler.operations.commands.intake import accept
from scheduler.operations.rules.apply import apply_rules
from scheduler.ports import Pending
from tests.builders import SYSTEM, a_reservation
from tests.operations.harness import CONFIG, Harness

CI = Principal(name="ci", role="producer", accounts=("lab", "another"))
OTHER = Principal(name="other", role="producer", accounts=("lab",))


def with_limits(**limits: int) -> Harness:
    return Harness({**CONFIG, "limits": limits})


def ask(harness: Harness, name: str, principal: Principal | None = CI, **fields: Any) -> dict[str, Any]:
    document = {"request": f"q-{name}-{len(harness.events)}", "id": name, "system": SYSTEM, **fields}
    return accept(harness.ports, "submit", document, principal=principal)


def fault_of(answer: dict[str, Any]) -> tuple[str, str, str]:
    (error,) = answer["errors"]
    return error["path"], error["expected"], error["got"]


@pytest.mark.parametrize(
    ("limits", "fields", "fault"),
    [
        (
            {"instances_per_reservation": 4},
            {"components": [{"name": "a", "count": 3}, {"name": "b", "count": 2, "kind": "elastic"}]},
            ("components", "at most 4 instances (limits.instances_per_reservation)", "5"),
        ),
        (
            {"components_per_reservation": 1},
            {"components": [{"name": "a"}, {"name": "b"}]},
            ("components", "at most 1 components (limits.components_per_reservation)", "2"),
        ),
        (
            {"labels_per_reservation": 2},
            {"labels": {"a": "1"}, "prefers": {"b": "1"}, "tags": {"c": "1"}},
            ("labels", "at most 2 labels and tags in all (limits.labels_per_reservation)", "3"),
        ),
    ],
)
def test_a_reservation_above_a_limit_is_refused_with_the_name_of_the_limit(
    limits: dict[str, int], fields: dict[str, Any], fault: tuple[str, str, str]
) -> None:
    harness = with_limits(**limits)
    assert fault_of(ask(harness, "r1", **fields)) == fault
    assert harness.store.find_reservations() == []
    assert ask(with_limits(**{name: most + 1 for name, most in limits.items()}), "r1", **fields)["ok"]
    assert ask(with_limits(**dict.fromkeys(limits, 0)), "r1", **fields)["ok"]


def test_a_gang_of_ten_thousand_is_allowed_by_default() -> None:
    assert ask(with_limits(), "r1", components=[{"name": "rank", "count": 10_000}])["ok"]


def test_a_principal_may_have_pending_reservations_up_to_its_limit() -> None:
    harness = with_limits(pending_per_principal=2)
    assert ask(harness, "r1")["ok"]
    assert ask(harness, "r2")["ok"]
    assert fault_of(ask(harness, "r3")) == (
        "principal",
        "at most 2 pending reservations of principal ci (limits.pending_per_principal)",
        "2 pending and 1 more",
    )
    assert ask(harness, "r4", OTHER)["ok"]
    assert [row.principal for row in harness.store.find_reservations()] == ["ci", "ci", "other"]


def test_unsigned_reservations_count_as_those_of_one_principal() -> None:
    harness = with_limits(pending_per_principal=1)
    assert ask(harness, "r1", None)["ok"]
    assert fault_of(ask(harness, "r2", None))[1].startswith("at most 1 pending reservations of all unsigned requests")
    assert ask(harness, "r3")["ok"]


def test_a_host_whose_unsigned_requests_are_at_the_limit_does_not_keep_out_another_one() -> None:
    harness = with_limits(pending_per_principal=1)

    def send(name: str, host: str | None) -> dict[str, Any]:
        document = {"request": f"q-{name}", "id": name, "system": SYSTEM}
        return accept(harness.ports, "submit", document, host=host)

    assert send("r1", "web-1")["ok"]
    assert fault_of(send("r2", "web-1"))[1] == (
        "at most 1 pending reservations of all unsigned requests of the host web-1 (limits.pending_per_principal)"
    )
    assert send("r3", "web-2")["ok"]
    assert send("r4", None)["ok"]
    assert not send("r5", None)["ok"]


def test_the_number_of_pending_instances_is_limited_too() -> None:
    harness = with_limits(instances_per_principal=10)
    assert ask(harness, "r1", components=[{"name": "rank", "count": 8}])["ok"]
    path, expected, got = fault_of(ask(harness, "r2", components=[{"name": "rank", "count": 3}]))
    assert (path, got) == ("principal", "8 pending and 3 more")
    assert expected == "at most 10 instances of pending reservations of principal ci (limits.instances_per_principal)"
    assert ask(harness, "r3", components=[{"name": "rank", "count": 2}])["ok"]


def test_an_account_may_have_pending_reservations_up_to_its_limit_from_any_producer() -> None:
    harness = with_limits(pending_per_account=2)
    assert ask(harness, "r1", account="lab")["ok"]
    assert ask(harness, "r2", OTHER, account="lab")["ok"]
    assert fault_of(ask(harness, "r3", None, account="lab")) == (
        "account",
        "at most 2 pending reservations of account lab (limits.pending_per_account)",
        "2 pending and 1 more",
    )
    assert ask(harness, "r4", account="another")["ok"]
    assert ask(harness, "r5")["ok"]


def test_items_of_a_list_are_accepted_up_to_the_limit() -> None:
    harness = with_limits(pending_per_principal=3)
    assert ask(harness, "r0")["ok"]
    items = [{"id": f"r{number}", "system": SYSTEM} for number in (0, 1, 2, 3, 1, 4)]
    answer = accept(harness.ports, "submit", {"request": "q", "items": items}, principal=CI)
    assert [each["ok"] for each in answer["results"]] == [True, True, True, False, True, False]
    assert [row.id for row in harness.store.find_reservations()] == ["r0", "r1", "r2"]


def test_a_stored_reservation_is_answered_although_the_limit_is_reached() -> None:
    harness = with_limits(pending_per_principal=1)
    assert ask(harness, "r1")["ok"]
    assert not ask(harness, "r2")["ok"]
    assert ask(harness, "r1")["reservation"] == "r1"


def test_a_lower_limit_does_not_change_pending_reservations() -> None:
    harness = with_limits()
    for name in ("r1", "r2", "r3"):
        ask(harness, name)
    apply_rules(harness.ports, {**CONFIG, "limits": {"pending_per_principal": 1}})
    harness.tick()
    assert len(harness.store.find_reservations()) == 3
    assert fault_of(ask(harness, "r4"))[2] == "3 pending and 1 more"


def test_an_ended_reservation_stops_counting_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count at the limit is kept for a second, so that a producer at its limit causes no count with each request."""
    now = [100.0]
    monkeypatch.setattr("scheduler.operations.admission.monotonic", lambda: now[0])
    harness = with_limits(pending_per_principal=1)
    assert ask(harness, "r1")["ok"]
    assert not ask(harness, "r2")["ok"]
    harness.ask("cancel", reservation="r1")
    assert not ask(harness, "r3")["ok"]
    now[0] += FULL_SECONDS
    assert ask(harness, "r4")["ok"]


class _CountingTransaction:
    """Counts how often pending reservations are counted, and how many inserted ones are read."""

    def __init__(self, sequence: int = 500_000) -> None:
        self.counts, self.read, self.sequence = 0, 0, sequence

    def last_sequence(self) -> int:
        return self.sequence

    def count_pending_of_principal(self, _: str | None, __: str | None) -> Pending:
        self.counts += 1
        return Pending(self.sequence, self.sequence)

    def count_inserted(self, after: int, upto: int) -> dict[tuple[str | None, str | None, str | None], Pending]:
        inserted = upto - after
        self.read += inserted
        return {(None, None, None): Pending(inserted, inserted)}


def test_far_below_a_limit_pending_reservations_are_counted_once() -> None:
    transaction, admission, limits = _CountingTransaction(), Admission(), Harness().ports.rules().limits
    for number in range(1, 1001):
        row = a_reservation(f"r{number}", sequence=500_000 + number)
        assert admission.admit(transaction, limits, [row]) == {}  # type: ignore[arg-type]
        transaction.sequence += 1
        admission.note([row])
    assert transaction.counts == 1


def test_processes_that_insert_lists_by_turns_count_what_the_others_inserted() -> None:
    """All pending reservations are counted only a few times, whatever their number, and each inserted one is read at
    most once by each process.
    """
    transaction, limits = _CountingTransaction(0), Harness().ports.rules().limits
    processes, lists = [Admission(), Admission()], 200
    for number in range(lists):
        rows = [a_reservation(f"r{number}-{index}", sequence=1000 * number + index + 1) for index in range(1000)]
        assert processes[number % 2].admit(transaction, limits, rows) == {}  # type: ignore[arg-type]
        transaction.sequence += 1000
        processes[number % 2].note(rows)
    assert transaction.counts <= 6
    assert transaction.read <= 2 * transaction.sequence
