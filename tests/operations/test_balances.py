"""Balances are exact in spite of restarts of the scheduler, skipped ticks and leases that end meanwhile."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pytest

from scheduler.model.accounts import FREE, NOTHING, PAID
from scheduler.model.decisions import Assign, Placement, Preempt
from scheduler.operations.tick.leader import take_leader_term
from scheduler.operations.tick.tick import decide, tick
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from scheduler.view.memory import InMemoryRedis
from tests.operations.harness import NOW, CountingFleet
from tests.operations.quota import QuotaHarness
from tests.operations.test_preemption import write
from tests.operations.test_races import ROUNDS, Open, ask, open_one, race

__all__ = ["open_one"]
STEPS = 100
ACTS = (
    "tick",
    "tick",
    "tick",
    "tick",
    "tick",
    "restart",
    "crash",
    *["submit"] * 3,
    "end",
    "rate",
    "reset",
    "refill",
    "refill",
)
RATES = [0.25, 0.5, 1, 2]
START = {
    "A": {"balance": [700, -650, 40], "charge_rate": [0.5, 1, 2], "max_charge_seconds": 300},
    "B": {"balance": [3, 20], "charge_rate": [0.25, 0.25], "max_charge_seconds": 40},
    "C": {"balance": [-610, 5], "charge_rate": [1], "max_charge_seconds": 8},
    "D": {"balance": [0, 0, 9], "charge_rate": [0, 2], "max_charge_seconds": 100},
    "E": {"balance": [12], "charge_rate": [0.25, 0, 1], "max_charge_seconds": 1000},
}


class Oracle:
    """The balances as exact fractions, computed from the leases and their levels after each step."""

    def __init__(self, harness: QuotaHarness) -> None:
        self.harness, self.at, self.seen = harness, harness.now, len(harness.events)
        self.balance = {
            account.id: [Fraction(each) for each in account.balance] for account in harness.store.find_accounts()
        }
        self.used = {name: [Fraction(0)] * len(PAID) for name in self.balance}
        self.charged_at = dict.fromkeys(self.balance, harness.now)
        self.cost: dict[str, list[Fraction]] = {}
        self.running: dict[str, tuple[str, int]] = {}
        self.preemptions = self.moves = 0

    def pass_time(self) -> None:
        """Add the time since the last step to the use of all running leases."""
        for name, (account, level) in self.running.items():
            if level < FREE:
                seconds = Fraction(self.harness.now) - Fraction(self.at)
                self.used[account][level] += seconds
                self.cost[name][level] += seconds
        self.at = self.harness.now

    def update(self) -> None:
        """Read the new state: charges first, then preemptions, then the levels of leases."""
        for account in self.harness.store.find_accounts():
            if account.charged_at != self.charged_at[account.id]:
                self._charge(account.id)
        events = self.harness.events
        for event in events[self.seen :]:
            if event.name == "reservation_leased":
                self.cost[event.reservation or ""] = [Fraction(0)] * len(PAID)
            for victim in event.detail.get("preempted") or ():  # type: ignore[union-attr]
                self._move_cost(str(victim), event.reservation or "")
            self.moves += event.name == "reservation_relevelled"
        self.seen = len(events)
        rows = self.harness.store.find_reservations(limit=10_000)
        self.running = {
            row.id: (str(row.request.account), lease.level)
            for row in rows
            for lease in row.leases
            if row.phase == "leased"
        }

    def _charge(self, name: str) -> None:
        rules = next(each for each in self.harness.store.find_accounts() if each.id == name)
        elapsed = Fraction(self.at) - Fraction(self.charged_at[name])
        for level in PAID:
            rate = Fraction(rules.charge_rate[level])
            left, cap = self.balance[name][level] - self.used[name][level], rate * Fraction(rules.max_charge_seconds)
            self.balance[name][level] = min(cap, left + elapsed * rate) if left < cap else left
        self.used[name], self.charged_at[name] = [Fraction(0)] * len(PAID), self.at

    def _move_cost(self, victim: str, preempting: str) -> None:
        rows = {row.id: str(row.request.account) for row in self.harness.store.find_reservations(limit=10_000)}
        for level in PAID:
            self.balance[rows[victim]][level] += self.cost[victim][level]
            self.balance[rows[preempting]][level] -= self.cost[victim][level]
            self.cost[preempting][level] += self.cost[victim][level]
        self.preemptions += 1


class GeneratedRun:
    """A generated run on one fleet, with restarts of the scheduler."""

    def __init__(self, harness: QuotaHarness, random: Random) -> None:
        self.harness, self.random, self.names = harness, random, 0
        self.oracle = Oracle(harness)

    def run(self) -> None:
        for name, account in (("b1", "B"), ("c1", "C"), ("b2", "B")):
            self.harness.submit(name, account=account)
        for _ in range(STEPS):
            self.harness.now += self.random.choice([0, 0.25, 0.5, 3, 20])
            self.oracle.pass_time()
            self._act()
            self.oracle.update()
            self._compare()

    def _act(self) -> None:
        random, harness = self.random, self.harness
        match random.choice(ACTS):
            case "tick":
                tick(harness.ports, harness.leader)
            case "restart":
                harness.restart()
                harness.lock_holder.__init__()  # type: ignore[misc]
            case "crash":
                decide(harness.ports, harness.leader, take_leader_term(harness.ports, harness.leader))
                harness.restart()
            case "submit":
                self.names += 1
                harness.submit(f"r{self.names}", account=random.choice(sorted(START)))
            case "end":
                self._end()
            case "rate":
                harness.ask(
                    "account", account=random.choice(sorted(START)), charge_rate=[random.choice(RATES) for _ in PAID]
                )
            case "reset":
                self._set_balance("reset_account", "B", [0.0] * len(PAID))
            case "refill":
                balance = [random.choice([-650.0, 0.0, 2.25, 700.0]) for _ in PAID]
                self._set_balance("account", random.choice(sorted(START)), balance)

    def _set_balance(self, verb: str, name: str, balance: list[float]) -> None:
        self.harness.ask(verb, account=name, **({"balance": balance} if verb == "account" else {}))
        self.oracle.balance[name] = list(map(Fraction, balance))

    def _end(self) -> None:
        if self.oracle.running:
            name = self.random.choice(sorted(self.oracle.running))
            verb = self.random.choice(["release", "cancel", "suspend", "decline", "absent"])
            token = {} if verb in {"cancel", "absent"} else {"token": self.harness.token(name)}
            self.harness.ask(verb, reservation=name, **token)

    def _compare(self) -> None:
        for account in self.harness.store.find_accounts():
            assert [Fraction(each) for each in account.balance] == self.oracle.balance[account.id], account.id


class SqliteHarness(QuotaHarness):
    """A harness on SQLite with the clock of the harness."""

    def __init__(self, url: str) -> None:
        self.now = NOW
        super().__init__(3, store=open_store(url, self.clock), accounts=START)


@contextmanager
def a_harness(kind: str, folder: Path) -> Iterator[QuotaHarness]:
    url = "memory:" if kind == "memory" else f"sqlite:///{folder / 'leasehold.db'}"
    if kind == "memory":
        yield QuotaHarness(3, accounts=START)
        return
    migrate(url)
    harness = SqliteHarness(url)
    yield harness
    harness.store.close()


@pytest.mark.parametrize(("kind", "seeds"), [("memory", range(8)), ("sqlite", [2])])
def test_balances_are_equal_to_exact_fractions(kind: str, seeds: Sequence[int], tmp_path: Path) -> None:
    preemptions = moves = 0
    for seed in seeds:
        with a_harness(kind, tmp_path) as harness:
            run = GeneratedRun(harness, Random(seed))
            run.run()
            preemptions += run.oracle.preemptions
            moves += run.oracle.moves
    assert min(preemptions, moves) >= len(seeds) / 5


def test_balances_do_not_depend_on_the_number_of_ticks() -> None:
    """Below the maximum balance, earned and paid amounts do not depend on the number of ticks."""
    found = []
    for steps in ([8.0], [2.5, 0.5, 5.0]):
        harness = QuotaHarness(accounts={"A": {"balance": [5], "charge_rate": [0.5], "max_charge_seconds": 100}})
        harness.with_leased("r1", account="A")
        for step in steps:
            harness.now += step
            tick(harness.ports, harness.leader)
        found.append((harness.balance("A"), harness.account("A").charged_at))
    assert found[0] == found[1] == ((1, 0, 0, 0, 0), NOW + 8)


class Rivals:
    """Two processes on one database.

    `prepare` makes a running reservation of B with 1,000 s that are not charged yet, and a pending one of A.
    """

    SECONDS = 1000.0

    def __init__(self, open_one: Open) -> None:
        store, fleet = open_one(), CountingFleet()
        redis = InMemoryRedis(store.now)
        accounts = {"A": {"balance": [9000]}, "B": {"balance": [0, 5000]}}
        self.first = QuotaHarness(store=store, redis=redis, fleet=fleet, accounts=accounts)
        self.second = QuotaHarness(0, store=open_one(), redis=redis, fleet=fleet, accounts=accounts)

    def prepare(self, number: int) -> None:
        harness = self.first
        self.old, self.new = f"old-{number}", f"new-{number}"
        harness.with_leased(self.old, account="B")
        self.began = harness.store.now() - self.SECONDS
        row = harness.row(self.old)
        lease = msgspec.structs.replace(row.leases[0], level=1, charged_at=self.began)
        self.place = (Placement(component="main", slot="lab-1", epoch=lease.epoch, resources={}),)
        harness.put(
            msgspec.structs.replace(row, leases=(lease,)),
            *(
                msgspec.structs.replace(harness.account(name), charged_at=self.began, balance=balance, due=NOTHING)
                for name, balance in (("A", (9000.0, 0.0, 0.0, 0.0, 0.0)), ("B", (0.0, 5000.0, 0.0, 0.0, 0.0)))
            ),
        )
        harness.submit(self.new, account="A")
        self.token = harness.token(self.old)

    def release(self) -> object:
        request = f"release-{self.old}"
        return ask(self.second.ports, "release", request=request, reservation=self.old, token=self.token)

    def preempt(self) -> list[str]:
        return write(
            self.first,
            Preempt(reservation=self.new, slot="lab-1", victims=(self.old,), level=0, leases=self.place),
            Assign(reservation=self.new, leases=self.place, level=0),
            charged=("A", "B"),
        )

    def settle(self) -> None:
        assert write(self.first, charged=("A", "B")) == []
        ask(self.first.ports, "cancel", request=f"cancel-{self.new}", reservation=self.new)


@pytest.fixture
def rivals(open_one: Open) -> Rivals:
    return Rivals(open_one)


def test_a_lease_released_while_accounts_are_charged_is_paid_once(rivals: Rivals) -> None:
    for number in range(ROUNDS):
        rivals.prepare(number)
        results = race(partial(write, rivals.first, charged=("A", "B")), rivals.release)
        assert not [each for each in results if isinstance(each, Exception)]
        rivals.settle()
        ended = rivals.first.row(rivals.old).finished_at
        assert ended is not None
        assert rivals.first.balance("B")[1] == pytest.approx(5000 - (ended - rivals.began), abs=0.001)


def test_a_lease_released_while_it_is_preempted_is_charged_to_exactly_one_account(rivals: Rivals) -> None:
    for number in range(ROUNDS):
        rivals.prepare(number)
        lost, _ = race(rivals.preempt, rivals.release)
        holders = rivals.first.holders()
        rivals.settle()
        kept, paid = rivals.first.balance("B")[1], -rivals.first.balance("A")[1]
        if lost == []:
            assert holders == {"lab-1": [rivals.new]}
            assert kept == pytest.approx(5000, abs=0.001)
            assert paid == pytest.approx(rivals.SECONDS, abs=60)
        else:
            assert (lost, holders, paid) == ([f"{rivals.old} has no lease on lab-1"] * 2, {}, 0)
            assert 5000 - kept == pytest.approx(rivals.SECONDS, abs=60)
