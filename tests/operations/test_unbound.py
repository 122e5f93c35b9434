"""Machines that have no slot are in the cost ledger from their launch to their end, each second once."""

from functools import partial
from typing import Any

import msgspec
import pytest

from scheduler.model.costs import Cost
from scheduler.model.market import Price
from scheduler.operations.machines.launch import launch
from scheduler.operations.machines.reconcile import ORPHAN_SECONDS, reconcile
from scheduler.operations.machines.terminate import terminate
from scheduler.ports import CloudError, StaleWriteError, Store
from tests.operations.harness import CONFIG, NOW, CountingFleet, Harness
from tests.operations.saboteur import Killed, Saboteur
from tests.operations.test_races import Rivals, open_one, race, rivals
from tests.store.conftest import Clock, clock, make_opener, store

__all__ = ["clock", "make_opener", "open_one", "rivals", "store"]

OFFERINGS = [{"name": "small", "type": "c5.large", "price": 2}, {"name": "new", "type": "c7.large"}]
POOL = {**CONFIG["pools"]["linux"], "max_leases_per_slot": 1, "launch_timeout": 30}
POOLS = {"pools": {"linux": {**POOL, "offerings": OFFERINGS[:1]}}}


class Recorded(CountingFleet):
    """A cloud that records when each machine ends."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.ended = clock, dict[str, float]()

    def terminate(self, machines: Any) -> dict[str, CloudError]:
        for name in machines:
            self.ended.setdefault(name, self.clock.now)
        return super().terminate(machines)


def a_harness(offerings: int = 1) -> Harness:
    return Harness({"pools": {"linux": {**POOL, "offerings": OFFERINGS[:offerings]}}})


def sums(harness: Harness) -> list[tuple[Any, ...]]:
    """Return the costs as (pool, offering, account, kind, seconds, dollars), without hours."""
    found: dict[tuple[str, str, str, str], list[Cost]] = {}
    for each in harness.store.read_costs():
        found.setdefault((each.pool, each.offering, each.account, each.kind), []).append(each)
    return [
        (*key, sum(each.seconds for each in costs), round(sum(each.dollars for each in costs), 9))
        for key, costs in sorted(found.items())
    ]


def test_a_machine_without_a_slot_is_booked_from_its_launch_until_it_is_ended() -> None:
    harness = a_harness()
    harness.fleet.appear("i-lost", "linux-9", offering="small", launched_at=NOW - 60)
    reconcile(harness.ports)
    assert sums(harness) == [("linux", "small", "", "unbound", 60.0, pytest.approx(60 / 1800))]
    harness.now += ORPHAN_SECONDS
    reconcile(harness.ports)
    assert harness.fleet.terminations == ["i-lost"]
    harness.now += 1000
    reconcile(harness.ports)
    assert sums(harness) == [("linux", "small", "", "unbound", 360.0, pytest.approx(360 / 1800))]


def test_a_machine_that_shuts_down_is_booked_until_the_cloud_lists_it_no_more() -> None:
    harness = a_harness()
    harness.fleet.appear("i-lost", "linux-9", state="stopping", launched_at=NOW - 400)
    reconcile(harness.ports)
    harness.fleet.appear("i-lost", "linux-9", state="stopping", launched_at=NOW - 400)
    harness.now += 20
    reconcile(harness.ports)
    assert [each[4] for each in sums(harness)] == [420.0]


PRICES: dict[str, tuple[dict[str, Any], tuple[str, str, float]]] = {
    # tags of the machine -> pool, offering and price of its booking
    "the type, market and zone of an offering": ({"type": "c5.large", "market": "spot"}, ("linux", "small", 2.0)),
    "an offering without a price": (
        {"offering": "new", "type": "c7.large", "market": "spot", "zone": "us-east-1a"},
        ("linux", "new", 0.5),
    ),
    "a pool that is gone": (
        {"pool": "old", "type": "c7.large", "market": "spot", "zone": "us-east-1b"},
        ("old", "c7.large", 0.7),
    ),
    "a type without a price": ({"type": "x9.large", "market": "spot"}, ("linux", "x9.large", 0.0)),
    "a stopped machine": ({"offering": "small", "state": "stopped"}, ("linux", "small", 0.0)),
}


@pytest.mark.parametrize("name", PRICES)
def test_the_price_is_that_of_the_offering_or_of_the_table_of_prices(name: str) -> None:
    tags, (pool, offering, price) = PRICES[name]
    harness = a_harness(offerings=2)
    amounts = {"us-east-1a": 0.5, "us-east-1b": 0.7}
    with harness.store.transaction() as transaction:
        transaction.save_prices(
            [
                Price(type="c7.large", zone=zone, market="spot", price=each, seen_at=NOW, source="file")
                for zone, each in amounts.items()
            ]
        )
    harness.fleet.appear("i-lost", "linux-9", launched_at=NOW - 3600, **tags)
    reconcile(harness.ports)
    assert sums(harness) == [(pool, offering, "", "unbound", 3600.0, price)]
    assert sum(each.unpriced for each in harness.store.read_costs()) == (0.0 if price else 3600.0)


def test_the_table_of_prices_is_read_once_for_all_machines_and_before_the_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, calls = a_harness(), list[str]()

    def record(name: str) -> Any:
        method = getattr(harness.store, name)

        def recorded() -> Any:
            calls.append(name)
            return method()

        return recorded

    for name in ("load_market", "transaction"):
        monkeypatch.setattr(harness.store, name, record(name))
    for number in range(3):
        harness.fleet.appear(f"i-{number}", "linux-9", type="x9.large", market="spot", launched_at=NOW - 3600)
    reconcile(harness.ports)
    # One transaction books the machines, and another one books them when they end.
    assert calls == ["load_market", "transaction"] * 2


def test_the_table_of_prices_is_not_read_for_machines_whose_offering_has_a_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = a_harness()
    monkeypatch.delattr(type(harness.store), "load_market")
    harness.fleet.appear("i-lost", "linux-9", offering="small", launched_at=NOW - 3600)
    reconcile(harness.ports)
    assert [each[4] for each in sums(harness)] == [3600.0]


def test_the_time_before_an_adoption_is_booked_and_the_slot_goes_on_from_there() -> None:
    harness = a_harness()
    harness.fleet.appear("i-lost", "linux-2", offering="small", launched_at=NOW - 100)
    reconcile(harness.ports)
    assert harness.slot("linux-2").instance_id == "i-lost"
    harness.now += 50
    reconcile(harness.ports)
    kinds = {each[3]: each[4] for each in sums(harness) if each[4]}
    assert kinds == {"unbound": 100.0, "booting": 50.0}


def test_a_machine_of_a_slot_that_the_cloud_still_shows_after_its_end_is_not_booked_again() -> None:
    harness = a_harness().leased()
    (machine,) = harness.fleet.running
    harness.now += 100
    harness.fleet.terminate([machine])
    harness.settle(4)
    before = sum(each[4] for each in sums(harness))
    harness.fleet.appear(machine, "linux-9", launched_at=NOW - 1000)
    reconcile(harness.ports)
    assert sum(each[4] for each in sums(harness)) == before + (harness.now - harness.slot().since)


def test_machines_of_a_batch_that_no_slot_wants_are_booked_for_the_account_of_the_batch() -> None:
    harness = a_harness()
    for number in (1, 2):
        harness.submit(f"r{number}", account="ci")
    harness.tick()
    batch = harness.slot().batch or ""

    def meanwhile() -> None:
        harness.fleet.during_launch = lambda: None
        for number in (1, 2):
            harness.ask("cancel", reservation=f"r{number}")
        harness.now += 31
        harness.tick()
        give_birth(harness, harness.now - 10)

    harness.fleet.during_launch = meanwhile
    assert launch(harness.ports, batch) == "aborted"
    assert harness.fleet.running == []
    assert sums(harness) == [("linux", "small", "ci", "unbound", 20.0, pytest.approx(20 / 1800))]


def give_birth(harness: Harness, at: float) -> None:
    """Set the time of the launch of all machines."""
    for name, machine in harness.fleet.machines.items():
        harness.fleet.machines[name] = msgspec.structs.replace(machine, launched_at=at)
    for token, answer in harness.fleet.answers.items():
        machines = tuple(harness.fleet.machines[each.id] for each in answer.machines)
        harness.fleet.answers[token] = type(answer)(machines=machines, refusals=answer.refusals)


def test_a_machine_whose_launch_was_given_up_is_booked_when_it_is_ended() -> None:
    harness = a_harness()
    harness.submit("r1")
    harness.tick()
    slot = harness.slot()

    def meanwhile() -> None:
        harness.fleet.during_launch = lambda: None
        harness.now += 31
        harness.ask("cancel", reservation="r1")
        harness.tick()
        harness.fleet.hidden = set(harness.fleet.machines)
        terminate(harness.ports, slot.id, slot.epoch)
        harness.fleet.hidden = set()
        give_birth(harness, harness.now - 10)

    harness.fleet.during_launch = meanwhile
    launch(harness.ports, slot.launch_id or "", slot.id)
    harness.settle(8)
    assert harness.fleet.running == []
    assert {each[3] for each in sums(harness)} <= {"unbound", "draining", "adjusted"}
    assert sum(each[4] for each in sums(harness)) > 0


@pytest.mark.parametrize("afterwards", [False, True])
def test_a_sweep_that_is_killed_anywhere_and_repeated_books_each_second_once(
    store: Store, clock: Clock, *, afterwards: bool
) -> None:
    fleet = Recorded(clock)
    harness = Harness(POOLS, store=store, fleet=fleet)
    lived = 0.0
    for at in range(1, 40):
        saboteur, name = Saboteur(at, afterwards=afterwards), f"i-{at}"
        fleet.appear(name, "linux-9", offering="small", launched_at=clock.now - 400)
        born, ports = clock.now - 400, harness.ports
        ports.store, ports.fleet = saboteur.wrap(ports.store, "store"), saboteur.wrap(ports.fleet, "fleet")
        try:
            reconcile(ports)
        except Killed:
            pass
        else:
            break
        harness.restart()
        for _ in range(3):
            clock.now = harness.now = clock.now + 60
            reconcile(harness.ports)
        lived += fleet.ended[name] - born
        assert sum(each[4] for each in sums(harness)) == pytest.approx(lived), saboteur.places[-1]
    assert at > 8
    assert {each[3] for each in sums(harness)} == {"unbound"}


def test_two_sweeps_at_once_book_each_second_once(rivals: Rivals) -> None:
    now = rivals.store.now()
    names = [f"i-lost-{number}" for number in range(8)]
    for name in names:
        rivals.fleet.appear(name, "linux-9", launched_at=now - 4000)
    results = race(*(partial(reconcile, each.ports) for each in (rivals.first, rivals.second)))
    # A sweep that loses the race for a row is rolled back as a whole, and its task is repeated.
    if any(isinstance(each, StaleWriteError) for each in results):
        reconcile(rivals.first.ports)
    assert rivals.fleet.running == []
    passed = rivals.store.now() - now
    booked = sum(each.seconds for each in rivals.store.read_costs())
    assert 8 * 4000.0 <= booked <= 8 * (4000.0 + passed)
