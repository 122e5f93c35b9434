"""Requests that no slot could ever hold: they are found together, and a request that repeats costs nothing."""

from collections.abc import ItemsView, Iterable

import pytest

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.plan import plan
from scheduler.policy.queueing.feasibility import find_misfits
from tests.builders import NOW, a_component, a_reservation, a_slot, some_rules

RULES = some_rules(
    {
        "pools": {
            "linux": {"resources": {"cpus": 4}},
            "hosts": {"system": "bare", "provider": "static"},
            "plain": {"system": "plain", "max_slots": 1},
        }
    }
)


def wishes() -> dict[str, Reservation]:
    """By the reason why it never fits."""
    gang = (a_component("small"), a_component("large", count=2, resources={"cpus": 5}))
    return {
        "no such pool": a_reservation("no such pool", system=None, pool="gone"),
        "no such system": a_reservation("no such system", system="gone"),
        "too large": a_reservation("too large", resources={"cpus": 5}),
        "one of its components": a_reservation("one of its components", components=gang),
        "no such label": a_reservation("no such label", labels={"disk": "ssd"}),
        "on hold too": a_reservation("on hold too", resources={"cpus": 5}, priority=0),
        "no host is there": a_reservation("no host is there", system="bare"),
        "fits": a_reservation("fits", resources={"cpus": 4}),
        "leases are counted there": a_reservation("leases are counted there", system="plain", resources={"cpus": 99}),
    }


@pytest.mark.parametrize(
    ("slots", "found"),
    [
        ((), {"too large", "one of its components", "no such label", "on hold too", "no host is there"}),
        # a pool of hosts has only its hosts; they may be full
        ((a_slot("hosts-1"),), {"too large", "one of its components", "no such label", "on hold too"}),
        # a machine that is larger than what the pool launches now, in flight or ending
        ((a_slot(resources={"cpus": 8}, state="draining"),), {"no such label", "no host is there"}),
        ((a_slot(labels={"disk": "ssd"}), a_slot("hosts-1")), {"too large", "one of its components", "on hold too"}),
        # an empty slot has no capacity of its own
        ((a_slot(resources={"cpus": 8}, state="empty"),), None),
        # except a host that is away: it may come back
        ((a_slot("hosts-1", state="empty"),), {"too large", "one of its components", "no such label", "on hold too"}),
    ],
)
def test_requests_that_no_slot_or_offering_could_hold_are_found(
    slots: tuple[Slot, ...], found: set[str] | None
) -> None:
    reported = find_misfits(wishes().values(), slots, RULES)
    misfits = {name for name, (code, _) in reported.items() if code == "never_fits"}
    nowhere = {"no such pool", "no such system"}
    everything = {"too large", "one of its components", "no such label", "on hold too", "no host is there"}
    assert misfits == (everything if found is None else found)
    assert {name for name, (code, _) in reported.items() if code == "no_pool"} == nowhere


def test_the_check_agrees_with_the_tick() -> None:
    rows = [row for row in wishes().values() if row.priority]
    stated = {each.reservation: (each.code, each.detail) for each in plan(View(rows), RULES, NOW).waiting}
    reported = find_misfits(rows, (), RULES)
    assert reported == {name: each for name, each in stated.items() if each[0] in {"never_fits", "no_pool"}}


class Watched(dict[str, str]):
    """Labels that count how often they are read."""

    looks = 0

    def items(self) -> ItemsView[str, str]:  # type: ignore[override] # dict's own type has no name
        self.looks += 1
        return super().items()


@pytest.mark.parametrize("resources", [{"cpus": 5.0}, {"gpus": 1.0}])
def test_ten_thousand_equal_misfits_read_no_more_labels_than_one(resources: dict[str, float]) -> None:
    def count_looks(rows: Iterable[Reservation]) -> int:
        labels = Watched({"disk": "ssd"})
        outcome = plan(View([a_slot(resources={"cpus": 2}, labels=labels), *rows]), RULES, NOW)
        assert {each.code for each in outcome.waiting} == {"never_fits"}
        assert not outcome.decisions
        return labels.looks

    many = [a_reservation(f"r{number}", resources=resources, sequence=number) for number in range(10_000)]
    assert count_looks(many) == count_looks(many[:1])


@pytest.mark.parametrize(
    ("target", "named"),
    [({"system": None, "pool": "gone"}, "gone"), ({"system": "bare"}, "bare"), ({"system": None}, "nothing")],
)
def test_the_sentence_names_the_pool_or_the_system_of_the_request(target: dict[str, str | None], named: str) -> None:
    [(_, sentence)] = find_misfits([a_reservation("r1", **target)], (), RULES).values()
    assert named in sentence.split()
