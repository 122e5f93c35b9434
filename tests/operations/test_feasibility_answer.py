"""A reservation that no slot could fit is accepted with the reason in the answer, since it may fit later."""

from collections.abc import Iterable
from time import monotonic
from typing import Any

import pytest

from scheduler.model.reservations import Reservation
from scheduler.operations import admission
from scheduler.operations.rules.apply import apply_rules
from scheduler.policy.queueing.feasibility import find_misfits
from tests.operations.harness import Harness

SIZED: dict[str, Any] = {
    "linux": {
        "system": "x86_64-linux",
        "max_slots": 3,
        "offerings": [{"name": "small", "price": 1, "resources": {"cpus": 4}, "labels": {"disk": "nvme"}}],
    },
    "lab": {"system": "x86_64-linux", "provider": "static", "resources": {"cpus": 1}},
}
HOST: dict[str, Any] = {"slot": "lab-1", "pool": "lab", "machine": "m1"}


def waiting_code(answer: dict[str, Any]) -> str | None:
    assert answer["ok"]
    assert answer["phase"] == "pending"
    return answer["waiting"]["code"] if "waiting" in answer else None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, None),
        ({"resources": {"cpus": 4}}, None),
        # more than any offering has, an unknown resource, a label of no offering
        ({"resources": {"cpus": 5}}, "never_fits"),
        ({"resources": {"gpus": 1}}, "never_fits"),
        ({"labels": {"disk": "ssd"}}, "never_fits"),
        ({"labels": {"disk": "nvme"}}, None),
        # one component that never fits is enough
        ({"components": [{"name": "a"}, {"name": "b", "resources": {"cpus": 9}}]}, "never_fits"),
        # on hold, and it would never fit afterwards
        ({"priority": 0, "resources": {"cpus": 5}}, "never_fits"),
    ],
)
def test_a_reservation_that_never_fits_is_accepted_with_the_reason_in_the_answer(
    fields: dict[str, Any], code: str | None
) -> None:
    harness = Harness({"pools": SIZED})
    assert waiting_code(harness.submit("r1", **fields)) == code
    assert harness.phase() == "pending"


def test_the_answer_has_the_same_reason_as_the_tick() -> None:
    harness = Harness({"pools": SIZED})
    answer = harness.submit("r1", resources={"cpus": 5})
    (waiting,) = harness.tick().plan.waiting
    assert answer["waiting"] == {"code": waiting.code, "detail": waiting.detail}


def test_a_registered_host_may_fit_a_request_that_no_offering_fits() -> None:
    harness = Harness({"pools": SIZED})
    big: dict[str, Any] = {"resources": {"cpus": 16}}
    assert waiting_code(harness.submit("before", **big)) == "never_fits"
    harness.ask("register", **HOST, **big)
    assert waiting_code(harness.submit("with", **big)) is None
    assert waiting_code(harness.submit("with-more", resources={"cpus": 17})) == "never_fits"
    harness.ask("remove", slot="lab-1")
    assert waiting_code(harness.submit("with-too-much-again", resources={"cpus": 17})) == "never_fits"
    assert waiting_code(harness.submit("after", **big)) == "never_fits"


def test_what_fitted_on_a_host_is_tested_again_when_the_slots_were_read_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness({"pools": SIZED})
    big: dict[str, Any] = {"resources": {"cpus": 16}}
    harness.ask("register", **HOST, **big)
    assert waiting_code(harness.submit("with", **big)) is None
    harness.ask("remove", slot="lab-1")
    later = monotonic() + admission.KNOWN_SECONDS
    monkeypatch.setattr("scheduler.operations.admission.monotonic", lambda: later)
    assert waiting_code(harness.submit("after", **big)) == "never_fits"


def test_new_rules_may_make_a_request_fit() -> None:
    harness = Harness({"pools": SIZED})
    assert waiting_code(harness.submit("r1", resources={"cpus": 5})) == "never_fits"
    larger = {"name": "larger", "price": 2, "resources": {"cpus": 8}}
    apply_rules(harness.ports, {"pools": {**SIZED, "linux": {**SIZED["linux"], "offerings": [larger]}}})
    assert waiting_code(harness.submit("r2", resources={"cpus": 5})) is None
    harness.tick()
    harness.play_tasks()
    harness.tick()
    assert harness.phase() == "leased"


def test_what_fitted_is_not_tested_again_under_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[str] = []

    def test_and_note(asked: Iterable[Reservation], *known: Any) -> Any:
        rows = list(asked)
        tested.extend(row.id for row in rows)
        return find_misfits(rows, *known)

    monkeypatch.setattr(admission, "find_misfits", test_and_note)
    harness = Harness({"pools": SIZED})
    assert [waiting_code(harness.submit(name, resources={"cpus": 4})) for name in ("r1", "r2")] == [None, None]
    assert tested == ["r1"]
    smaller = [{**SIZED["linux"]["offerings"][0], "resources": {"cpus": 2}}]
    apply_rules(harness.ports, {"pools": {**SIZED, "linux": {**SIZED["linux"], "offerings": smaller}}}, source="test")
    assert waiting_code(harness.submit("r3", resources={"cpus": 4})) == "never_fits"


def test_each_item_of_a_list_gets_its_own_reason_and_a_repetition_gets_the_same() -> None:
    harness = Harness({"pools": SIZED})
    items = [
        {"id": f"r{number}", "system": "x86_64-linux", "resources": {"cpus": cpus}}
        for number, cpus in enumerate([4, 5, 1])
    ]
    answer = harness.ask("submit", request="q1", items=items)
    assert [waiting_code(each) for each in answer["results"]] == [None, "never_fits", None]
    assert harness.ask("submit", request="q1", items=items) == answer


def test_a_known_id_gets_the_reason_of_the_first_request() -> None:
    harness = Harness({"pools": SIZED})
    assert waiting_code(harness.submit("r1", resources={"cpus": 1})) is None
    assert waiting_code(harness.submit("r1", resources={"cpus": 5})) is None
    harness.ask("cancel", reservation="r1")
    assert "waiting" not in harness.submit("r1", resources={"cpus": 5})


def test_equal_items_of_a_list_get_equal_answers() -> None:
    """Items are equal if their resources, labels, pool and components are."""
    harness = Harness({"pools": SIZED})
    kinds: list[dict[str, Any]] = [
        {"system": "x86_64-linux", "resources": {"cpus": 5}},
        {"system": "x86_64-linux", "resources": {"cpus": 4}},
        {"system": "x86_64-linux", "labels": {"disk": "ssd"}},
        {"system": "x86_64-linux", "labels": {"disk": "nvme"}},
        {"pool": "linux", "resources": {"cpus": 1}},
        {"pool": "lab", "resources": {"cpus": 1}},
        {"pool": "linux", "components": [{"name": "a", "resources": {"cpus": 5}}]},
        {"pool": "linux", "components": [{"name": "a", "resources": {"cpus": 3}}]},
    ]
    items = [{"id": f"r{number}", **kinds[number % len(kinds)]} for number in range(3 * len(kinds))]
    codes = [waiting_code(each) for each in harness.ask("submit", items=items)["results"]]
    assert codes == ["never_fits", None, "never_fits", None, None, "never_fits", "never_fits", None] * 3
