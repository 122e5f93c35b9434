"""Generated sequences of changes of a view under `queue: quota`: rows, time, charges, commits, accounts and rules.

`python -m tests.reference_model.quota.sequences FIRST COUNT` plays many of them and prints the first one
in which a plan that uses what earlier plans left behind differs from a plan of a new view.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from scheduler.model.accounts import NOTHING, Account, Levels, add, subtract
from scheduler.model.decisions import (
    Assign,
    Claim,
    Drain,
    Fail,
    Grant,
    Placement,
    Plan,
    Preempt,
    Relevel,
    Requeue,
    Reset,
    Revoke,
    Terminate,
)
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.resources import Labels
from scheduler.model.slots import Slot
from scheduler.model.view import KINDS, ROW_TYPES, Gone, Row, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.quota.accounting import charge, settle, sum_running
from tests.builders import NOW, SYSTEM, a_component, a_lease, a_reservation, a_slot
from tests.rules.quotas import quota_rules

_ARM = {"arm": {"system": "aarch64-linux", "provider": "static", "lease_ttl": 0}}
_CLOUD = {"cloud": {"system": SYSTEM, "max_slots": 3, "min_slots": 1}}
_SIZED = {"max_leases_per_slot": 2, "resources": {"cpus": 4}}
_ALONE: Final[Any] = {"share_cores": False}
RULES: Final = (
    quota_rules(),
    quota_rules(_SIZED, **_ALONE),
    quota_rules(_SIZED, preemption_grace=30, min_run_time=20, **_ALONE),
    quota_rules(_SIZED, elastic="yielding", **_ALONE),
    quota_rules(_SIZED, elastic="flexible", preemption_grace=5, **_ALONE),
    quota_rules(_SIZED, elastic="malleable", **_ALONE),
    quota_rules(_SIZED, elastic="malleable", preemption_grace=5, **_ALONE),
    quota_rules({"max_uses": 3}, _CLOUD, preemption=False),
    quota_rules({"recycle_unclean": True, "max_leases_per_slot": 3}, _CLOUD, charge_by="dominant_share"),
    quota_rules(None, _ARM, queue="fifo", system={SYSTEM: {"queue": "quota"}}),
    quota_rules(_SIZED, {**_ARM, **_CLOUD}, system={"aarch64-linux": {"queue": "dynsize", "dynsize_decay": 0.01}}),
)
ACCOUNTS: Final = ("A", "B", "C")
LABELS: Final[tuple[Labels, ...]] = ({}, {"zone": "a"}, {"zone": "b"}, {"zone": "b", "disk": "ssd"})
STEPS: Final = (0.0, 0.0, 0.5, 1.0, 1.0, 5.0, 5.0, 30.0, 400.0)
"""Seconds between two ticks."""


class Sequence:
    """One generated sequence: a view that changes row by row, and the ticks that plan it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now, self.rules = NOW, self.random.choice(RULES)
        self.view, self.cache = View(), PlanCache(least_kept=0)
        self.reservations, self.hosts = self.random.randint(1, 30), self.random.randint(1, 8)
        self.plain = self.random.random() < 0.5
        """Whether only plain rows come: single instances, ready slots, accounts that block nothing."""
        self.calm = self.random.choice((0.2, 0.5, 0.8))
        """The share of the ticks before which nothing changes except by the commit of the last plan."""
        self._versions = Counter[str]()
        for name in ACCOUNTS:
            self.apply(self.make_account(name))
        for number in range(1, self.hosts + 1):
            self.apply(self.make_slot(number))
        for _ in range(self.reservations + self.hosts):
            self.change()

    def play(self, ticks: int) -> Iterator[tuple[Plan, Plan]]:
        for _ in range(ticks):
            rows = [row for kind in ROW_TYPES for row in self.view.rows(kind).values()]
            warm = plan(self.view, self.rules, self.now, self.cache)
            yield warm, plan(View(rows), self.rules, self.now)
            if self.random.random() < 0.9:
                self.cache.prepare()
            if self.random.random() < 0.9:
                self.commit(warm)
            self.now += self.random.choice(STEPS)
            if self.random.random() < 0.02:
                self.now -= 3.0
                self.rules = self.random.choice(RULES)
            if self.random.random() > self.calm:
                for _ in range(self.random.choice((1, 1, 2, 6))):
                    self.change()

    def is_odd(self, share: float) -> bool:
        """Return whether something special happens, in this share of the cases; never if only plain rows come."""
        return self.random.random() < share and not self.plain

    def apply(self, row: Row) -> None:
        """Let the view take over a row, in the next version."""
        self._versions[row.id] += 1
        self.view.apply(replace(row, version=self._versions[row.id]))

    def change(self) -> None:
        random = self.random
        shares = (16, 0.2, 1, 0, 6, 0.1, 1) if self.plain else (12, 4, 2, 1, 6, 1, 2)
        kind = random.choices(("reservation", "slot", "account", "hold", "end", "gone", "same"), shares)[0]
        name = f"r{random.randint(1, self.reservations)}"
        known = self.view.reservations.get(name)
        match kind:
            case "reservation" if known is None:
                self.apply(self.make_reservation(name))
            case "slot":
                self.apply(self.make_slot(random.randint(1, self.hosts)))
            case "account":
                self.apply(self.change_account(random.choice(ACCOUNTS)))
            case "hold":
                self.apply(self.make_hold())
            case "end" if known is not None:
                self.apply(replace(known, phase="released", leases=()))
            case "same" if known is not None:
                self.apply(replace(known, marked_at=self.now, priority=0 if self.is_odd(0.2) else 1))
            case "gone":
                row = random.choice([row for kind in ROW_TYPES for row in self.view.rows(kind).values()])
                self._versions[row.id] += 1
                self.view.apply(Gone(KINDS[type(row)], row.id, self._versions[row.id]))
            case _:
                pass

    def make_account(self, name: str) -> Account:
        """Return an account whose balances are close to the numbers at which a rule applies."""
        random = self.random
        terms: dict[str, Any] = {
            "charge_rate": self.draw_levels((0.0, 0.0, 0.5, 1.0, 3.0)),
            "max_charge_seconds": random.choice((0.0, 10.0, 1000.0)),
            "max_fanout": random.choice((0, 0, 0, 2)),
            "per_label_task_limits": {"zone": 1} if self.is_odd(0.3) else {},
            "disable_free_tasks": self.is_odd(0.3),
        }
        balance = self.draw_levels((0.0, 0.0, 2.0, -2.0, 50.0, 601.0, 598.5, -601.0, -598.5))
        return Account(id=name, balance=balance, charged_at=self.now - random.choice((0, 0, 3)), **terms)

    def draw_levels(self, amounts: tuple[float, ...]) -> Levels:
        return tuple(self.random.choice(amounts) for _ in range(5))  # type: ignore[return-value]

    def change_account(self, name: str) -> Account:
        """Return an account with other terms, a payment, or forgotten."""
        known = self.view.accounts.get(name)
        match self.random.randrange(5):
            case 0 if known is not None:
                return replace(known, balance=add(known.balance, self.draw_levels((0.0, 3.0, -3.0))))
            case 1 if known is not None:
                return replace(known, due=self.draw_levels((0.0, 1.0, 0.25)))
            case 2 if known is not None:
                upto = self.random.choice((known.forgotten_upto, 10, 20))
                return replace(known, forgotten=self.random.random() < 0.3, forgotten_upto=upto)
            case 3 if known is not None:
                return replace(known, charged_at=known.charged_at - 4)
            case _:
                return self.make_account(name)

    def make_slot(self, number: int) -> Slot:
        """Return a host, or a slot of the cloud or of another system."""
        random = self.random
        pool = random.choice(("cloud", "arm")) if self.is_odd(0.2) else "hosts"
        changes: dict[str, Any] = {"launch_id": None} if pool != "cloud" else {}
        changes["state"] = random.choice(("empty", "draining")) if self.is_odd(0.06) else "ready"
        return a_slot(
            f"{pool}-{number}",
            labels=random.choice(LABELS),
            cordoned=self.is_odd(0.1),
            uses=random.choice((0, 0, 1, 2)),
            last_seen=None,
            since=self.now,
            **changes,
        )

    def make_hold(self) -> Hold:
        """Return a launch back-off of the cloud."""
        until = self.now + self.random.choice((-1.0, 20.0))
        return Hold(id=hold_id("cloud", "throttled"), pool="cloud", kind="throttled", refused_at=self.now, until=until)

    def make_reservation(self, name: str) -> Reservation:
        """Return a reservation that waits, or runs on a host that there is."""
        random = self.random
        number = int(name.removeprefix("r"))
        components = [a_component(count=1 + self.is_odd(0.25), resources=random.choice(({}, {"cpus": 1}, {"cpus": 2})))]
        if self.is_odd(0.3):
            components.append(a_component("more", kind="elastic", count=2, resources={"cpus": 1}))
        wishes: dict[str, Any] = {
            "account": random.choice((None, *ACCOUNTS, *ACCOUNTS)),
            "components": tuple(components),
            "labels": random.choice(LABELS),
            "prefers": random.choice(({}, {}, {"disk": "ssd"}, {"zone": "a"})),
            "preemptible": random.random() < 0.9,
            "system": "aarch64-linux" if self.is_odd(0.1) else SYSTEM,
        }
        created_at = NOW - random.choice((0, 1, 2, 900))
        declined = ("hosts-1",) if self.is_odd(0.2) else ()
        row = a_reservation(name, sequence=number, created_at=created_at, declined=declined, **wishes)
        hosts = [slot for slot in self.view.slots.values() if slot.state == "ready"]
        if random.random() < 0.5 or not hosts:
            return row
        leases = tuple(self._make_lease(random.choice(hosts), name) for name in _list_instances(components[0]))
        return replace(row, phase="leased", leased_at=self.now, confirmed_at=self.now, leases=_of_one_level(leases))

    def _make_lease(self, slot: Slot, component: str) -> Lease:
        random = self.random
        return a_lease(
            slot.id,
            component=component,
            epoch=slot.epoch,
            level=random.choice((0, 1, 2, 4, 5, 5, 5)),
            cost=random.choice((NOTHING, (0.0, 3.0, 1.0, 0.0, 0.0), (40.0, 0.0, 0.0, 0.0, 0.0))),
            charged_at=random.choice((self.now, self.now, self.now - 7, self.now + 1, None)),
            weight=random.choice((1.0, 1.0, 0.5, 0.1, 1 / 3)),
            assigned_at=self.now - random.choice((0, 15, 100)),
        )

    def commit(self, outcome: Plan) -> None:
        """Carry a plan out on the view, charges first. Some decisions are lost, as if a request had come between."""
        for name in outcome.charged:
            if self.random.random() < 0.95:
                self.apply(self._charge(self.view.accounts[name]))
        for decision in outcome.decisions:
            if isinstance(decision, Revoke) and decision.reason == "preempted":
                self._end_part(decision)  # of a preemption that was lost, too: its reservation gave it up meanwhile
            elif self.random.random() < 0.9:
                self._carry_out(decision)

    def _end_part(self, decision: Revoke) -> None:
        row = self.view.reservations.get(decision.reservation)
        if row is None or decision.component not in {each.component for each in row.leases}:
            return
        if decision.revoke_by is None:
            leases = [each for each in row.leases if each.component != decision.component]
        else:
            leaving = {"state": "revoking", "charged_at": None, "revoke_by": decision.revoke_by}
            leases = [replace(each, **leaving) if each.component == decision.component else each for each in row.leases]
        self.apply(replace(row, leases=tuple(leases)))

    def _charge(self, account: Account) -> Account:
        rows = (row for row in self.view.reservations.values() if self.view.account_of(row) is account)
        return charge(
            account, sum_running(account, (lease for row in rows for lease in row.leases), self.now), self.now
        )

    def _carry_out(self, decision: object) -> None:
        rows = self.view.reservations
        match decision:
            case Assign() if decision.reservation in rows:
                row = rows[decision.reservation]
                leases = self._place(decision.leases, decision.level, "held")
                self.apply(replace(row, phase="leased", leased_at=self.now, confirmed_at=self.now, leases=leases))
            case Claim() if decision.reservation in rows:
                leases = self._place(decision.leases, decision.level, "claimed")
                self.apply(replace(rows[decision.reservation], leases=leases))
            case Preempt() if rows.keys() >= {decision.reservation, *decision.victims}:
                self._preempt(decision)
            case Relevel() if decision.reservation in rows:
                row = rows[decision.reservation]
                settled = (
                    replace(settle(each, self.now), level=decision.to, charged_at=self.now) for each in row.leases
                )
                self.apply(replace(row, leases=tuple(settled)))
            case Grant() if decision.reservation in rows and rows[decision.reservation].phase == "leased":
                [lease] = self._place((decision,), None, "held")
                row = rows[decision.reservation]
                self.apply(replace(row, leases=(*row.leases, replace(lease, kind="elastic", charged_at=None))))
            case Fail() if decision.reservation in rows:
                self.apply(replace(rows[decision.reservation], phase="failed", leases=()))
            case Drain() | Reset() | Terminate() if decision.slot in self.view.slots:
                state = "draining" if isinstance(decision, Drain) else "empty"
                self.apply(replace(self.view.slots[decision.slot], state=state))
            case Requeue(revoke_by=None) if decision.reservation in rows:
                self.apply(replace(rows[decision.reservation], phase="pending", leases=()))
            case _:
                pass

    def _place(self, placements: tuple[Placement | Grant, ...], level: int | None, state: Any) -> tuple[Lease, ...]:
        return tuple(
            a_lease(
                each.slot,
                component=each.component,
                epoch=each.epoch,
                resources=each.resources,
                level=5 if level is None else level,
                charged_at=self.now,
                weight=self.random.choice((1.0, 0.1)),
                assigned_at=self.now,
                state=state,
            )
            for each in placements
        )

    def _preempt(self, decision: Preempt) -> None:
        newcomer = self.view.reservations[decision.reservation]
        victims = [name for name in decision.victims if name not in decision.partial]
        cost = NOTHING
        for row in [self.view.reservations[name] for name in victims]:
            own = NOTHING
            for lease in row.leases:
                own = add(own, settle(lease, self.now).cost)
            cost = add(cost, own)
            self._pay(row, subtract(NOTHING, own))
            if decision.revoke_by is None:
                self.apply(replace(row, phase="pending", leases=()))
                continue
            leaving = tuple(replace(each, state="revoking", charged_at=None) for each in row.leases)
            self.apply(replace(row, phase="revoking", leases=leaving, revoke_by=decision.revoke_by))
        self._pay(newcomer, cost)
        first, *others = self._place(decision.leases, decision.level, "claimed" if decision.revoke_by else "held")
        phase: dict[str, Any] = {} if decision.revoke_by else {"phase": "leased", "leased_at": self.now}
        self.apply(replace(newcomer, leases=(replace(first, cost=cost), *others), confirmed_at=self.now, **phase))

    def _pay(self, row: Reservation, cost: Levels) -> None:
        account = self.view.account_of(row)
        if account is not None:
            self.apply(replace(account, balance=subtract(account.balance, cost)))


def _list_instances(component: Any) -> list[str]:
    if component.count == 1:
        return [component.name]
    return [f"{component.name}.{number}" for number in range(component.count)]


def _of_one_level(leases: tuple[Lease, ...]) -> tuple[Lease, ...]:
    return tuple(replace(lease, level=leases[0].level) for lease in leases)


def find_difference(seed: int, ticks: int = 14) -> tuple[int | None, Counter[str]]:
    """Play a sequence. Return the first tick in which the two plans differ, or None, and what happened how often."""
    met, before = Counter[str](), None
    for number, (warm, fresh) in enumerate(Sequence(seed).play(ticks)):
        met.update(type(decision).__name__ for decision in warm.decisions)
        met["kept"] += before is not None and warm.waiting is before.waiting
        met["planned"] += 1
        if warm != fresh:
            return number, met
        before = warm
    return None, met


def main() -> None:
    """Play the sequences that the command line names."""
    first, count = map(int, sys.argv[1:3])
    met = Counter[str]()
    for seed in range(first, first + count):
        tick, found = find_difference(seed)
        met += found
        if tick is not None:
            raise SystemExit(f"seed {seed}: the plans of tick {tick} differ")
    sys.stdout.write(f"{dict(met)}\n")


if __name__ == "__main__":
    main()
