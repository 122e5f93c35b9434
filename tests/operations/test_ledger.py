"""The cost ledger: each second of a machine is booked once, whatever happens to its slot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.model.costs import COST_KINDS, HOUR, Cost, CostKey, add_costs
from scheduler.model.market import ADDRESS, VOLUME, Price, PriceChange
from scheduler.model.slots import Meter, Slot
from scheduler.model.transitions import SLOT_MOVES, SlotState
from scheduler.model.view import Row
from scheduler.operations.machines.check import check
from scheduler.operations.machines.spot_prices import follow_spot_prices
from scheduler.operations.market import save_market
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import StaleWriteError, Transaction
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from scheduler.store.memory import MemoryStore
from scheduler.store.memory_transaction import Key, World
from tests.builders import NOW
from tests.operations.harness import CONFIG, Harness
from tests.reference_model.stories import make_scenario
from tests.store.test_market import a_price

PRICE = 0.5


@dataclass
class Lives:
    """A fleet of three slots whose changes a test makes, and the lifetimes of its machines as the cloud sees them."""

    def __post_init__(self) -> None:
        self.now = NOW
        self.store = MemoryStore(lambda: self.now)
        self.born: dict[str, float] = {}
        self.seconds = 0.0
        self.ran: dict[str, float] = {}
        """Slot -> the seconds that EC2 bills for its machine since its start; missing without one."""
        self.ending: set[str] = set()
        self.extras: dict[str, tuple[float, float]] = {}
        """Slot -> the prices of its machine's volume and public address."""
        self.bill = 0.0
        """The dollars that AWS has billed for starts that are over, for storage and for addresses."""
        with self.store.transaction() as transaction:
            transaction.save([Slot(id=f"linux-{number}", pool="linux") for number in (1, 2, 3)])

    def wait(self, seconds: float) -> None:
        """Let time pass, and bill it as EC2 does: for each start, the time between pending and shutting-down."""
        self.now += seconds
        for slot in self.store.find_slots():
            if slot.instance_id and slot.state == "stopped":
                self.bill += seconds / 3600 * PRICE
                continue
            volume, address = self.extras.get(slot.id, (0.0, 0.0))
            self.bill += seconds / 3600 * volume
            if slot.instance_id and slot.state != "booting" and slot.id not in self.ending:
                self.ran[slot.id] = self.ran.get(slot.id, 0.0) + seconds
                self.bill += seconds / 3600 * address

    def has_extras(self, name: str, volume: float, address: float) -> None:
        """Let a check of the slot's machine find a volume and a public address with these prices."""
        self.extras[name] = volume, address
        with self.store.transaction() as transaction:
            work = UnitOfWork(transaction, "cloud")
            work.note_prices(transaction.load_slots([name])[name], volume=volume, address=address)
            work.flush()

    def end_start(self, name: str, *, taken_back: bool) -> None:
        """Bill a start of a machine that is over."""
        ran = self.ran.pop(name, 0.0)
        self.extras.pop(name, None)
        self.ending.discard(name)
        if ran and not (taken_back and ran < 3600):
            self.bill += max(ran, 60.0) / 3600 * PRICE

    def shut_down(self, name: str) -> None:
        """Let EC2 show the slot's machine as shutting down."""
        self.ending.add(name)
        with self.store.transaction() as transaction:
            work = UnitOfWork(transaction, "cloud")
            work.note_ending(transaction.load_slots([name])[name])
            work.flush()

    def find(self, name: str) -> Slot:
        return self.store.find_slots(ids=[name])[0]

    def move(self, name: str, to: SlotState, *, taken_back: bool = False, **changes: Any) -> None:
        slot = self.find(name)
        if to in {"empty", "stopped"}:
            self.end_start(name, taken_back=taken_back)
        cause = next(iter(SLOT_MOVES[slot.state, to]))
        if to == "launching":
            changes |= {"price": PRICE, "offering": "small", "launch_id": "l", "launched_for": "ci"}
        elif to == "booting":
            changes = {"price": PRICE, "instance_id": f"i-{name}", **changes}
        elif to == "ready":
            changes |= {"idle_since": self.now}
        elif to == "stopped":
            changes |= {"storage_price": PRICE}
        with self.store.transaction() as transaction:
            work = UnitOfWork(transaction, cause)
            if taken_back:
                work.note_taken_back(slot)
            work.move_slot(slot, to, **changes)
            work.flush()
        self._note(name, slot)

    def drain(self, transaction: Transaction, seen: Slot) -> None:
        work = UnitOfWork(transaction, "operator")
        work.move_slot(seen, "draining")
        work.flush()

    def change(self, name: str, **changes: Any) -> None:
        slot = self.find(name)
        with self.store.transaction() as transaction:
            work = UnitOfWork(transaction, "tick")
            work.put(msgspec.structs.replace(slot, **changes))
            work.flush()

    def _note(self, name: str, before: Slot) -> None:
        """Follow the machine as EC2 does: from the answer to the launch until it is gone."""
        after = self.find(name)
        if before.instance_id is None and after.instance_id is not None:
            self.born[name] = self.now
        elif before.instance_id is not None and after.instance_id is None:
            self.seconds += self.now - self.born.pop(name)

    @property
    def lifetimes(self) -> float:
        return self.seconds + sum(self.now - born for born in self.born.values())

    def sums(self) -> dict[str, float]:
        found = dict.fromkeys(COST_KINDS, 0.0)
        for cost in self.store.read_costs():
            found[cost.kind] += cost.seconds
        return {kind: seconds for kind, seconds in found.items() if seconds}


STEPS = st.tuples(
    st.sampled_from(["linux-1", "linux-2", "linux-3"]),
    st.integers(0, 40_000).map(lambda each: each / 4),
    st.integers(0, 11),
)


@given(steps=st.lists(STEPS, max_size=30))
@example([("linux-1", 0.0, 0), ("linux-1", 0.0, 0), ("linux-1", 0.0, 3), ("linux-1", 0.0, 5), ("linux-1", 0.25, 2)])
def test_the_ledger_has_every_second_of_every_machine_once(steps: list[tuple[str, float, int]]) -> None:
    lives, before = Lives(), dict[CostKey, float]()
    for name, seconds, choice in steps:
        lives.wait(seconds)
        slot = lives.find(name)
        moves = [to for source, to in SLOT_MOVES if source == slot.state and (source, to) != ("empty", "ready")]
        if slot.meter is not None and slot.meter.kind != "stopped" and choice >= 10:
            lives.has_extras(name, 0.25, 0.125 * (choice - 10))
        elif slot.state in {"ready", "draining"} and choice >= 6:
            lives.change(name, idle_since=None if slot.idle_since else lives.now)
        elif slot.instance_id and choice == 5:
            lives.change(name, interrupted_at=lives.now)
        elif slot.state in {"draining", "terminating"} and choice == 4:
            lives.shut_down(name)
        else:
            to = moves[choice % len(moves)]
            lives.move(name, to, taken_back=to == "empty" and bool(choice % 2))  # type: ignore[arg-type]
        costs = lives.store.read_costs()
        assert sum(cost.seconds for cost in costs) == lives.lifetimes
        # Budgets count all time at the price of the machines; AWS' bill is that with the adjustments.
        spent = sum(cost.dollars for cost in lives.store.sum_costs(0.0))
        assert spent == pytest.approx(lives.lifetimes / 3600 * PRICE)
        bill = lives.bill + sum(lives.ran.values()) / 3600 * PRICE
        assert sum(cost.dollars for cost in costs) == pytest.approx(bill)
        # No row of a kind of use goes back.
        rows: dict[CostKey, float] = {
            (cost.hour, cost.pool, cost.offering, cost.account, cost.kind): cost.dollars
            for cost in costs
            if cost.kind != "adjusted"
        }
        assert all(rows[key] >= dollars - 1e-9 for key, dollars in before.items())
        before = rows


def life_of(lives: Lives, *seconds: float) -> None:
    """Launch a machine; `seconds`: how long it is pending, running, and shutting down."""
    lives.move("linux-1", "launching")
    lives.move("linux-1", "booting")
    lives.wait(seconds[0])
    lives.move("linux-1", "binding")
    lives.wait(seconds[1])
    lives.move("linux-1", "terminating")
    lives.shut_down("linux-1")
    lives.wait(seconds[2])


@pytest.mark.parametrize(
    ("seconds", "taken_back", "billed"),
    [
        ((100, 600, 50), False, 600),
        ((100, 10, 50), False, 60),  # each start is billed for a minute at least
        ((100, 0, 50), False, 0),  # the machine never ran
        ((100, 600, 50), True, 0),  # EC2 took it back in its first hour
        ((100, 10, 50), True, 0),
        ((100, 3599, 50), True, 0),
        ((100, 3600, 50), True, 3600),
        ((3600, 600, 3600), False, 600),
    ],
)
def test_a_machine_costs_what_ec2_bills(seconds: tuple[float, float, float], taken_back: bool, billed: float) -> None:
    """The refund is a row of its own: the kinds of use keep what they had, and budgets count it."""
    lives = Lives()
    life_of(lives, *seconds)
    kinds = {cost.kind: cost.dollars for cost in add_hours(lives)}
    lives.move("linux-1", "empty", taken_back=taken_back)
    costs = add_hours(lives)
    assert sum(cost.dollars for cost in costs) == pytest.approx(billed / 3600 * PRICE)
    assert {cost.kind: cost.dollars for cost in costs if cost.kind != "adjusted"} == pytest.approx(
        {kind: dollars for kind, dollars in kinds.items() if kind != "adjusted"}
    )
    [spent] = lives.store.sum_costs(0.0)
    assert spent.dollars == pytest.approx(sum(seconds) / 3600 * PRICE)
    assert [cost.seconds for cost in costs if cost.kind == "adjusted"] == [0.0]


@pytest.mark.parametrize("taken_back", [False, True])
def test_volume_and_address_are_billed_above_the_machine_and_never_given_back(taken_back: bool) -> None:
    """The volume is billed while it exists, the address while the machine runs. Budgets count neither."""
    lives = Lives()
    lives.move("linux-1", "launching")
    lives.move("linux-1", "booting")
    lives.has_extras("linux-1", 0.25, 0.125)
    lives.wait(100)
    lives.move("linux-1", "binding")
    lives.wait(600)
    lives.move("linux-1", "terminating")
    lives.shut_down("linux-1")
    lives.wait(50)
    lives.move("linux-1", "empty", taken_back=taken_back)
    machine = 0 if taken_back else 600 * PRICE
    total = sum(cost.dollars for cost in lives.store.read_costs())
    assert total == pytest.approx((machine + 750 * 0.25 + 600 * 0.125) / 3600)
    [spent] = lives.store.sum_costs(0.0)
    assert spent.dollars == pytest.approx(750 / 3600 * PRICE)
    assert sum(cost.seconds for cost in lives.store.read_costs()) == 750


def test_a_meter_of_an_earlier_version_has_no_volume_and_address() -> None:
    old = msgspec.json.decode(b'{"since": 5.0, "kind": "used", "price": 0.5}', type=Meter)
    assert (old.volume, old.address) == (0.0, 0.0)


def extra_rules(**ec2: Any) -> dict[str, Any]:
    linux = CONFIG["pools"]["linux"]
    return {"pools": {"linux": linux | {"ec2": linux.get("ec2", {}) | ec2}}}


EXTRA_PRICES = [a_price(VOLUME, zone="eu-1", price=0.001), a_price(ADDRESS, zone="eu-1", price=0.005)]


@pytest.mark.parametrize(
    ("prices", "gib", "zone", "is_public", "noted"),
    [
        (EXTRA_PRICES, 40, "eu-1b", True, (0.04, 0.005)),
        (EXTRA_PRICES, 40, "eu-1b", False, (0.04, 0.0)),
        (EXTRA_PRICES, None, "eu-1b", True, (0.0, 0.005)),  # the image determines the size
        (EXTRA_PRICES, 40, "us-2a", True, (0.0, 0.0)),  # the prices of another region
        ([], 40, "eu-1b", True, (0.0, 0.0)),
    ],
)
def test_a_check_finds_the_volume_and_the_address_that_the_price_list_has(
    prices: list[Price], gib: int | None, zone: str, is_public: bool, noted: tuple[float, float]
) -> None:
    harness = Harness(extra_rules(**({"volume_gib": gib} if gib else {})))
    save_market(harness.store, prices=[msgspec.structs.replace(each, market="on-demand") for each in prices])
    harness.leased()
    machine = harness.fleet.machines[harness.slot().instance_id or ""]
    addresses = {"private": "10.0.0.1"} | ({"public": "203.0.113.1"} if is_public else {})
    harness.fleet.machines[machine.id] = msgspec.structs.replace(machine, zone=zone, addresses=addresses)
    versions = []
    for _ in range(2):
        check(harness.ports, [harness.slot().id])
        versions.append(harness.slot().version)
    meter = harness.slot().meter
    assert meter is not None
    assert (meter.volume, meter.address) == pytest.approx(noted)
    assert versions[0] == versions[1], "what is known is not written again"


def test_a_machine_keeps_the_volume_of_its_launch() -> None:
    harness = Harness(extra_rules(volume_gib=40))
    save_market(harness.store, prices=[msgspec.structs.replace(EXTRA_PRICES[0], market="on-demand")])
    harness.leased()
    machine = harness.fleet.machines[harness.slot().instance_id or ""]
    harness.fleet.machines[machine.id] = msgspec.structs.replace(machine, zone="eu-1a")
    check(harness.ports, [harness.slot().id])
    apply_rules(harness.ports, extra_rules(volume_gib=80))
    check(harness.ports, [harness.slot().id])
    meter = harness.slot().meter
    assert meter is not None
    assert meter.volume == pytest.approx(0.04)


def add_hours(lives: Lives) -> list[Cost]:
    return add_costs(msgspec.structs.replace(cost, hour=0.0) for cost in lives.store.read_costs())


def test_a_spot_machine_costs_the_spot_price_of_each_hour() -> None:
    """The price is that at which an hour began; in its first hour, that of the launch. Budgets keep the latter."""
    harness = Harness(
        {
            "pools": {
                "linux": CONFIG["pools"]["linux"]
                | {"offerings": [{"name": "m5.large", "market": "spot", "price": 1.0}]}
            }
        }
    )
    harness.now = NOW // HOUR * HOUR
    harness.leased()
    start = harness.now
    slot = harness.slot()
    harness.put(msgspec.structs.replace(slot, instance_type="m5.large", zone="a"))
    with harness.store.transaction() as transaction:
        transaction.save_price_changes(
            [
                PriceChange(type="m5.large", zone=zone, market=market, hour=start + hours * HOUR, price=price)  # type: ignore[arg-type]
                for zone, market, hours, price in [
                    ("a", "spot", -1, 0.9),
                    ("a", "spot", 0, 2.0),
                    ("a", "spot", 2, 0.5),
                    ("b", "spot", 0, 7.0),
                    ("a", "on-demand", 0, 9.0),
                ]
            ]
        )
    changed = []
    for _ in range(16):
        changed.append(follow_spot_prices(harness.ports))
        harness.now += HOUR / 4
    costs = harness.store.read_costs()
    assert sum(changed) == 2
    by_hour = [sum(cost.dollars for cost in costs if cost.hour == start + hours * HOUR) for hours in range(4)]
    assert by_hour == pytest.approx([1.0, 2.0, 2.0, 0.5])
    assert [cost.dollars for cost in harness.store.sum_costs(0.0)] == pytest.approx([4.0])
    assert harness.slot().price == 1.0


def test_each_start_of_a_stopped_machine_is_billed_for_a_minute_at_least() -> None:
    lives = Lives()
    lives.move("linux-1", "launching")
    for _ in range(3):
        lives.move("linux-1", "booting")
        lives.wait(10)
        for to in ("binding", "ready"):
            lives.move("linux-1", to)
        lives.wait(10)
        lives.move("linux-1", "stopped")
    assert sum(cost.dollars for cost in lives.store.read_costs()) == pytest.approx(3 * 60 / 3600 * PRICE)


def test_each_kind_of_time_is_booked_as_what_it_was() -> None:
    lives = Lives()
    lives.move("linux-1", "launching")
    lives.now += 7  # no machine is there before the cloud answered
    steps: list[tuple[SlotState, int]] = [("booting", 10), ("binding", 20), ("ready", 40)]
    for to, seconds in steps:
        lives.move("linux-1", to)
        lives.now += seconds
    lives.change("linux-1", idle_since=None)
    lives.now += 80
    lives.move("linux-1", "draining")  # its lease goes on
    lives.now += 160
    lives.change("linux-1", idle_since=lives.now)
    lives.now += 320
    lives.move("linux-1", "terminating")
    lives.now += 640
    lives.move("linux-1", "empty")
    lives.now += 9999
    assert lives.sums() == {"booting": 30.0, "idle": 40.0, "used": 240.0, "draining": 960.0}
    assert {(cost.pool, cost.offering, cost.account) for cost in lives.store.read_costs()} == {("linux", "small", "ci")}


def test_the_time_after_an_interruption_notice_is_interrupted_with_and_without_a_lease() -> None:
    lives = Lives()
    for to in ("launching", "booting", "binding", "ready"):
        lives.move("linux-1", to)
    lives.change("linux-1", idle_since=None)
    lives.now += 60
    lives.change("linux-1", interrupted_at=lives.now)
    lives.now += 120
    lives.change("linux-1", idle_since=lives.now)
    lives.now += 5
    assert lives.sums() == {"used": 60.0, "interrupted": 125.0}


def test_a_change_that_loses_a_race_books_nothing() -> None:
    lives = Lives()
    for to in ("launching", "booting", "binding", "ready"):
        lives.move("linux-1", to)
    seen = lives.find("linux-1")
    lives.now += 60
    lives.change("linux-1", idle_since=None)
    lives.now += 60
    with pytest.raises(StaleWriteError), lives.store.transaction() as transaction:
        lives.drain(transaction, seen)
    assert lives.sums() == {"idle": 60.0, "used": 60.0}


def test_a_transaction_that_began_before_the_last_booking_books_no_second_twice() -> None:
    lives = Lives()
    for to in ("launching", "booting", "binding", "ready"):
        lives.move("linux-1", to)
    lives.now += 60
    lives.change("linux-1", idle_since=None)
    lives.now -= 20
    lives.move("linux-1", "draining", idle_since=lives.now)
    lives.now += 50
    assert lives.sums() == {"idle": 60.0, "draining": 30.0}


def test_an_interval_over_several_hours_is_booked_hour_by_hour() -> None:
    lives = Lives()
    lives.now = NOW // 3600 * 3600 + 3000
    lives.move("linux-1", "launching")
    lives.move("linux-1", "booting")
    lives.now += 5000
    lives.move("linux-1", "empty")
    costs = [cost for cost in lives.store.read_costs() if cost.kind != "adjusted"]
    booked = [(cost.hour - NOW // 3600 * 3600, cost.seconds) for cost in costs]
    assert booked == [(0.0, 600.0), (3600.0, 3600.0), (7200.0, 800.0)]


def test_a_machine_without_a_price_is_booked_with_its_seconds() -> None:
    lives = Lives()
    lives.move("linux-1", "launching", epoch=1)
    lives.move("linux-1", "booting", price=None)
    lives.now += 60
    [cost] = [cost for cost in lives.store.read_costs() if cost.kind != "adjusted"]
    assert cost == Cost(cost.hour, "linux", "small", "ci", "booting", 60.0, 0.0, unpriced=60.0)


class _Watched:
    """The lifetimes of machines as the committed rows of slots show them."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.born: dict[str, float] = {}
        self.seconds = 0.0
        self._apply, self._drop = world.apply, world.drop
        world.apply, world.drop = self.apply, self.drop  # type: ignore[method-assign]
        for row in world.slots.values():
            self.note(row)

    def apply(self, rows: Mapping[Key, Row | None]) -> None:
        for row in rows.values():
            if isinstance(row, Slot):
                self.note(row)
        self._apply(rows)

    def drop(self, key: Key) -> None:
        if key[1] in self.born:  # a host that is removed
            self.seconds += self.clock() - self.born.pop(key[1])
        self._drop(key)

    def note(self, row: Slot) -> None:
        is_known = row.instance_id is not None or row.machine is not None
        if is_known and row.state not in {"empty", "launching", "error"}:
            self.born.setdefault(row.id, row.marked_at)
        elif row.id in self.born:
            self.seconds += row.marked_at - self.born.pop(row.id)


@pytest.mark.parametrize("first", [1, 11])
def test_in_generated_scenarios_the_ledger_has_the_lifetimes_of_all_machines(first: int) -> None:
    for seed in range(first, first + 10):
        player = Runner(read_scenario(make_scenario(seed)))
        store = player.cluster.store
        watched = _Watched(store._world, store.now)  # the rows as they are committed
        list(player.play())
        now = player.cluster.event_queue.now
        lifetimes = watched.seconds + sum(now - born for born in watched.born.values())
        booked = [each.seconds for each in store.read_costs(-1e9) if each.kind != "unbound"]  # before an adoption
        assert sum(booked) == pytest.approx(lifetimes), seed
