"""A cycle that goes on after changes plans as a new one: thousands of generated changes, and a plan after each few."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.model.accounts import Account
from scheduler.model.decisions import Assign, Cores, Decision, Drain, Expire, Launch, Plan, Terminate
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import ROW_TYPES, Gone, Row, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.replan.kept_cycle import KeptCycle
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot, some_rules
from tests.generated import TIMES
from tests.rules.fleets import QUICKLY

# Tracing triples their time, and the lines that they run are those of the scenarios.
pytestmark = pytest.mark.no_cover

SYSTEMS = {"linux": "x86_64-linux", "arm": "aarch64-linux", "hosts": "x86_64-linux"}
QUEUES: list[dict[str, Any]] = [
    {"queue": "fifo"},
    {"queue": "fifo", "profile": "spread"},
    {"queue": "priority"},
    {"queue": "size"},
    {"queue": "dynsize", "dynsize_decay": 0},
    {"queue": "priority", "system": {"aarch64-linux": {"queue": "size"}}},
    {"queue": "fifo", "confirm_timeout": 30},
    {"queue": "dynsize", "dynsize_decay": 0.5},
    {"queue": "quota"},
    {"queue": "fifo", "backfill": False},
    {"queue": "fifo", "starvation_guard": 40},
    {"queue": "fifo", "elastic": "flexible"},
]
ORDINARY = 7
"""The number of queues, from the first one on, that a kept cycle follows."""
ODD = 0.02
"""How often a change is of a kind that only a full cycle follows."""


class Play:
    """A view that changes at random, the plans on it, and how many of them went on from the last one."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.is_calm = self.draw.random() < 0.7
        self.odd = ODD / 10 if self.is_calm else ODD
        self.price = 1.0 if self.draw.random() < 0.25 else None
        self.rules = self._make_rules()
        self.view, self.cache, self.now = View(), PlanCache(least_kept=0), NOW
        self.submitted = self.version = 0
        for name in self.rules.pools:
            for number in range(1, self.draw.randint(2, 6)):
                self.view.apply(self._make_slot(name, number))
        for _ in range(self.draw.choice([0, 5, 20, 40, 300])):
            self.arrive()
        for name in ("A", "B"):
            self.view.apply(Account(id=name, enforce_max_runtime=self.draw.random() < 0.5))

    def _make_rules(self) -> Rules:
        draw = self.draw
        counted = {"max_leases_per_slot": draw.randint(1, 3)}
        sized: dict[str, Any] = {"resources": {"cpus": 4}, "max_uses": draw.choice([0, 0, 3])}
        limits: dict[str, Any] = {"max_slots": draw.randint(2, 5), "lease_ttl": draw.choice([0, 30, 200])}
        if draw.random() < 0.3:
            limits |= {"min_slots": draw.randint(0, 2), "target_warm_slots": draw.randint(0, 2)}
        if draw.random() < 0.3:
            limits["idle_scale_down"] = 5
        if draw.random() < 0.3:
            limits["replacement"] = draw.choice(
                [{"max_age": 30}, {"max_age": 60, "drift": "replace"}, {"drift": "replace"}]
            )
        pools: dict[str, Any] = {"linux": {**limits, **draw.choice([counted, sized])}}
        if draw.random() < 0.7:
            pools["arm"] = {"system": SYSTEMS["arm"], **limits, **draw.choice([counted, sized])}
        if draw.random() < 0.5:
            pools["hosts"] = {"system": SYSTEMS["hosts"], "provider": "static", "max_leases_per_slot": 2}
        budgets: dict[str, Any] = {}
        if self.price is not None:
            pools["linux"] = {**limits, "offerings": [{"name": "m", "price": 1, "resources": {"cpus": 4}}]}
            pools["linux"].pop("min_slots", None)
            budgets = {"all": {"per_hour": draw.choice([0, 1, 2, 3]), "pools": draw.choice([[], ["linux"]])}}
        return some_rules(
            {
                "budgets": budgets,
                "scheduler": draw.choice(QUEUES[:ORDINARY] if self.is_calm else QUEUES),
                "pools": pools,
            }
        )

    def _make_slot(self, pool: str, number: int, **values: Any) -> Slot:
        states: list[Any] = [*["ready"] * 30, *["empty"] * 4, "draining", "terminating", "booting"]
        state = self.draw.choice(states)
        labels = self.draw.choice([{}, {"zone": "a"}, {"zone": "b"}])
        age = self.draw.choice([0, 0, 10, 25])
        prices = {"price": self.price, "offering": "m"} if self.price and pool == "linux" and state != "empty" else {}
        values = {"launched_at": self.now - age, **prices, **values}
        return a_slot(f"{pool}-{number}", pool=pool, state=state, labels=labels, **values)

    def arrive(self) -> None:
        """Submit a reservation."""
        self.submitted += 1
        draw, number = self.draw, self.submitted
        odd: dict[str, Any] = {}
        if draw.random() < self.odd:
            elastic = (a_component(), a_component("x", kind="elastic", count=2))
            kinds: list[dict[str, Any]] = [{"declined": ("linux-1",)}, {"interruptions": 1}, {"components": elastic}]
            kinds += [{"components": (a_component(count=2),)}, {"priority": 0}, {"suspended": True}]
            odd = draw.choice(kinds)
        fields: dict[str, Any] = {
            "sequence": number,
            "created_at": self.now - draw.choice([0, 0, 0, 1, 5]),
            "system": draw.choice([*SYSTEMS.values(), SYSTEMS["linux"], "other"]),
            "priority": draw.choice([1, 1, 2, 3]),
            "size": draw.choice([0, 1, 2]),
            "expires_at": draw.choice([None, None, None, self.now + 60]),
            "resources": draw.choice([{}, {"cpus": 1}, {"cpus": 3}, {"cpus": 9}]),
            "labels": draw.choice([{}, {}, {"zone": "a"}, {"zone": "c"}]),
            "prefers": draw.choice([{}, {"zone": "b"}]),
            "ttl": draw.choice([None, None, 50.0]),
            "account": draw.choice([None, "A", "B"]),
            "max_runtime": draw.choice([None, None, None, 3.0, 20.0]),
            **odd,
        }
        self.view.apply(a_reservation(f"r{number}", **fields))

    def _pick(self, phase: str) -> Reservation | None:
        rows = list(self.view.by_phase[phase].values())
        return self.draw.choice(rows) if rows else None

    def leave(self) -> None:
        if row := self._pick(self.draw.choice(["pending", "leased", "leased"])):
            self.view.apply(Gone("reservations", row.id, row.version + 1))

    def renew(self) -> None:
        if row := self._pick(self.draw.choice(["pending", "leased"])):
            change: dict[str, Any] = self.draw.choice(
                [{"expires_at": self.now + 70}, {"suspended": not row.suspended}, {"priority": 2}]
            )
            self.view.apply(replace(row, version=row.version + 1, **change))

    def change_slot(self) -> None:
        slot = self.draw.choice(list(self.view.slots.values()))
        mild: list[dict[str, Any]] = [
            {"last_seen": self.now},
            {"uses": slot.uses + (slot.state == "ready")},
            {"idle_since": self.now},
        ]
        harsh: list[dict[str, Any]] = [
            {"cordoned": not slot.cordoned},
            {
                "state": self.draw.choice(["ready", "empty", "booting", "draining", "terminating", "error"]),
                "since": self.now,
                "uses": 0,
            },
            {"labels": {"zone": "a"}},
            {"epoch": slot.epoch + 1},
            {"launch_digest": "image:other"},
            {"failed_probes": 3},
            {"resources": {"cpus": 2.0}},
        ]
        change = self.draw.choice(mild if self.is_calm or self.draw.random() < 0.7 else harsh)
        self.view.apply(replace(slot, version=slot.version + 1, **change))

    def change_account(self) -> None:
        row = self.draw.choice(list(self.view.accounts.values()))
        self.view.apply(replace(row, version=row.version + 1, enforce_max_runtime=not row.enforce_max_runtime))

    def change_fleet(self) -> None:
        if self.is_calm:
            return
        pool = self.draw.choice(list(self.rules.pools))
        match self.draw.randrange(3):
            case 0:
                name = hold_id(pool, "capacity")
                self.version += 1
                until = self.now + 20
                self.view.apply(
                    Hold(id=name, version=self.version, pool=pool, kind="capacity", refused_at=self.now, until=until)
                )
            case 1:
                name = f"{pool}-{self.draw.randint(1, 8)}"
                if name not in self.view.slots:
                    self.view.apply(self._make_slot(pool, int(name.split("-")[1]), version=100))
            case _:
                for hold in list(self.view.holds.values()):
                    self.view.apply(Gone("holds", hold.id, hold.version + 1))

    def carry_out(self, outcome: Plan) -> None:
        """Apply the decisions; one in ten is lost, as if the commit had refused it."""
        for decision in outcome.decisions:
            if self.draw.random() < 0.9:
                for row in self._find_results(decision):
                    self.view.apply(row)

    def _find_results(self, decision: Decision) -> Iterator[Row | Gone]:
        rows = self.view.reservations
        match decision:
            case Assign() if (row := rows.get(decision.reservation)) is not None:
                leases = tuple(
                    a_lease(
                        each.slot,
                        component=each.component,
                        epoch=each.epoch,
                        resources=each.resources,
                        assigned_at=self.now,
                    )
                    for each in decision.leases
                )
                phase: dict[str, Any] = {"phase": "leased", "leased_at": self.now, "leases": leases}
                confirmed = self.draw.choice([None, self.now])
                yield replace(row, version=row.version + 1, confirmed_at=confirmed, **phase)
            case Cores() if (row := rows.get(decision.reservation)) is not None:
                leases = tuple(
                    replace(each, cores=decision.cpus) if each.component == decision.component else each
                    for each in row.leases
                )
                yield replace(row, version=row.version + 1, leases=leases)
            case Expire(revoke_by=float() as by) if (row := rows.get(decision.reservation)) is not None:
                end: dict[str, Any] = {"phase": "revoking", "revoke_by": by, "revoke_reason": decision.reason}
                leases = tuple(replace(each, state="revoking", revoke_by=by) for each in row.leases)
                yield replace(row, version=row.version + 1, leases=leases, **end)
            case Expire() if (row := rows.get(decision.reservation)) is not None:
                yield Gone("reservations", row.id, row.version + 1)
            case Launch() if (slot := self.view.slots.get(decision.slot)) is not None:
                yield replace(slot, version=slot.version + 1, state="ready", uses=0, epoch=slot.epoch + 1)
            case Drain() | Terminate() if (slot := self.view.slots.get(decision.slot)) is not None:
                yield replace(slot, version=slot.version + 1, state="empty", uses=0, since=self.now)
            case _:
                pass

    def change(self) -> None:
        for _ in range(self.draw.choice([0, 1, 1, 2, 8, 8, 60 if self.submitted > 300 else 3])):
            kinds = [self.arrive, self.arrive, self.leave, self.leave, self.renew, self.change_slot]
            self.draw.choice([*kinds, *kinds, self.change_fleet, self.change_account])()
        self.now += self.draw.choice([0.0, 0.1, 0.1, 1.0, 3.0])

    def compare(self) -> Plan:
        if self.draw.random() < self.odd:
            self.rules = self._make_rules()
        rows = [row for kind in ROW_TYPES for row in self.view.rows(kind).values()]
        fresh, found = plan(View(rows), self.rules, self.now), plan(self.view, self.rules, self.now, self.cache)
        assert found.decisions == fresh.decisions
        assert list(found.waiting) == list(fresh.waiting)
        assert found.wake_at == fresh.wake_at
        assert found.charged == fresh.charged
        if self.draw.random() < 0.95:
            self.cache.prepare()
        return found


@pytest.fixture(scope="module")
def gone_on() -> Iterator[list[bool]]:
    """Of each cycle that a later tick tried to go on with: whether it did."""
    found: list[bool] = []
    go_on = KeptCycle.go_on

    def counted(self: KeptCycle, now: float) -> Plan | None:
        outcome = go_on(self, now)
        found.append(outcome is not None)
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptCycle, "go_on", counted)
        patch.setattr("scheduler.policy.replan.kept_cycle.MOST_CHANGES", -30)
        yield found


@settings(QUICKLY, max_examples=40 * TIMES)
@given(st.integers(0, 2**32))
def test_a_cycle_that_goes_on_plans_as_a_new_one(gone_on: list[bool], seed: int) -> None:
    play = Play(seed)
    for _ in range(25):
        outcome = play.compare()
        play.carry_out(outcome)
        play.change()


def test_most_cycles_went_on(gone_on: list[bool]) -> None:
    assert sum(gone_on) > 100
