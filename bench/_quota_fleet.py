"""The fleets that `bench.quota` plans: the workload of qscheduler's own figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from scheduler.model.accounts import PAID, Account, Levels, at_level
from scheduler.model.reservations import Component, Lease, Request, Reservation
from scheduler.model.rules import Rules, read_rules
from scheduler.model.slots import Slot
from scheduler.model.view import Row

NOW = 1_800_000_000.0
TICK = 5.0
"""Seconds from one tick to the next."""
ACCOUNTS, MODELS, IMAGES = 10, 20, 50
SAVINGS = 1e9
"""Worker-seconds. More than a fleet uses during a measurement, so that every account keeps its level."""
SYSTEM, POOL = "x86_64-linux", "linux"


@dataclass(frozen=True)
class Fleet:
    """Rows of one size, and the rules that they are planned by."""

    slots: Sequence[Slot]
    reservations: Sequence[Reservation]
    accounts: Sequence[Account]
    rules: Rules

    @property
    def rows(self) -> list[Row]:
        """What a view is made of."""
        return [*self.slots, *self.accounts, *self.reservations]


def make_fleet(slots: int, pending: int, *, is_busy: bool) -> Fleet:
    """Slots with three labels; requests of ten accounts, two at each level, that require two of them and prefer the
    third. They find all slots idle, or (busy) all of them held by work of the free level, which they preempt.
    """
    random = Random(slots)
    keys = {"system": SYSTEM, "provider": "static", "max_leases_per_slot": 1, "offline_timeout": 1e9}
    rules = read_rules({"scheduler": {"queue": "quota", "preemption_grace": 0}, "pools": {POOL: keys}})
    found = [_make_slot(random, number) for number in range(1, slots + 1)]
    wishes = [_make_request(account, model, image) for account, model, image in _list_shapes()]
    holders = [_make_holder(number, slot) for number, slot in enumerate(found, start=1)] if is_busy else []
    waiting = [
        _make_waiting(len(holders) + index + 1, random.choice(wishes), index / pending) for index in range(pending)
    ]
    return Fleet(found, [*holders, *waiting], [_make_account(number) for number in range(ACCOUNTS)], rules)


def _list_shapes() -> Iterator[tuple[int, int, int]]:
    return (
        (account, model, image) for account in range(ACCOUNTS) for model in range(MODELS) for image in range(IMAGES)
    )


def _make_account(number: int) -> Account:
    balance: Levels = at_level(number % len(PAID), SAVINGS)
    return Account(
        id=f"account-{number}", charge_rate=(1.0,) * 5, max_charge_seconds=3600, balance=balance, charged_at=NOW
    )


def _make_request(account: int, model: int, image: int) -> Request:
    return Request(
        system=SYSTEM,
        account=f"account-{account}",
        components=(Component(name="main"),),
        labels={"role": "worker", "model": f"m{model}"},
        prefers={"image": f"i{image}"},
    )


def _make_slot(random: Random, number: int) -> Slot:
    labels = {"role": "worker", "model": f"m{random.randrange(MODELS)}", "image": f"i{random.randrange(IMAGES)}"}
    return Slot(id=f"{POOL}-{number}", pool=POOL, state="ready", epoch=1, since=NOW, last_seen=NOW, labels=labels)


def _make_waiting(sequence: int, request: Request, share: float) -> Reservation:
    created_at = NOW - 600 * (1 - share)
    return Reservation(id=f"r{sequence}", sequence=sequence, request=request, created_at=created_at)


def _make_holder(sequence: int, slot: Slot) -> Reservation:
    """Return a leased reservation of the free level without an account."""
    request = Request(system=SYSTEM, components=(Component(name="main"),))
    lease = Lease(component="main", slot=slot.id, epoch=slot.epoch, token=1, assigned_at=NOW - 900, charged_at=NOW)
    row = _make_waiting(sequence, request, 0)
    return replace(row, phase="leased", token=1, leased_at=NOW - 900, leases=(lease,))
