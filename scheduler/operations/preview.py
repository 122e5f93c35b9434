"""Preview: what other rules would do at once, by the engine itself: planned on a copy of the rows, nothing is written.

The plan under the new rules is held against the plan under the rules in force, on the same rows at the same time: what
both decide is no consequence of the change.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from scheduler.model.accounts import Account, Levels
from scheduler.model.decisions import (
    Decision,
    Drain,
    Expire,
    Fail,
    Launch,
    Plan,
    Preempt,
    Requeue,
    Revoke,
    Terminate,
)
from scheduler.model.rule_changes import RuleChange, list_changes
from scheduler.model.rules import Rules, read_rules
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.operations.apply import fit_accounts, fit_slots
from scheduler.operations.paused_gc import PausedGC
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.plan import plan
from scheduler.ports import Store, Transaction

_HOPELESS: Final = frozenset({"never_fits", "no_pool"})


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A slot whose machine is let go: it drains (its leases run on until they end), or its machine is terminated."""

    slot: str
    action: str
    reason: str
    reservations: tuple[str, ...] = ()
    """The reservations that hold a lease on it."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation that loses leases; `action` is the name of the decision."""

    reservation: str
    action: str
    reason: str


class AccountLoss(msgspec.Struct, frozen=True, kw_only=True):
    """An account that has less; `after` None: the account is forgotten."""

    account: str
    before: Levels
    after: Levels | None


class Unservable(msgspec.Struct, frozen=True, kw_only=True):
    """A pending reservation that no slot or offering could hold any more, even empty."""

    reservation: str
    code: str
    detail: str


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What changes, and what the next tick does for it that it would not do under the rules in force."""

    version: int
    """Of the rules in force."""
    changed: bool
    """Whether the document differs from the rules in force, if only by defaults that are written out."""
    changes: tuple[RuleChange, ...] = ()
    departures: tuple[Departure, ...] = ()
    endings: tuple[Ending, ...] = ()
    accounts: tuple[AccountLoss, ...] = ()
    unservable: tuple[Unservable, ...] = ()
    launches: dict[str, int] = {}
    """Machines that are launched at once, by pool."""

    @property
    def takes_away(self) -> bool:
        """Whether machines go, leases end or accounts lose balance."""
        return bool(self.departures or self.endings or self.accounts)


def preview_rules(store: Store, document: Mapping[str, Any], *, prefix: str = "") -> Preview:
    """What this document would do as the rules. Locks and writes nothing. Raises InvalidInputError."""
    rules, stored = read_rules(dict(document), prefix), store.load_rules()
    if stored.version and stored.document == document:
        return Preview(version=stored.version, changed=False)
    rows, now = list(store.read_rows()), store.now()
    fitted = _fit(rows, stored.rules, rules, now)
    before, after = View(rows), View(fitted)
    with PausedGC():
        now_planned, then_planned = plan(before, stored.rules, now), plan(after, rules, now)
    return Preview(
        version=stored.version,
        changed=True,
        changes=tuple(list_changes(stored.document, document)),
        departures=_list_departures(before, now_planned, then_planned),
        endings=_list_endings(now_planned, then_planned),
        accounts=_list_losses(before.accounts, after.accounts),
        unservable=_list_unservable(now_planned, then_planned),
        launches=_count_launches(after, now_planned, then_planned),
    )


class _Rehearsal:
    """What a ledger needs of a transaction as long as nothing is loaded or flushed."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now


def _fit(rows: Iterable[Row], before: Rules, rules: Rules, now: float) -> list[Row]:
    """The rows as `apply_rules` would leave them."""
    known = {(type(row), row.id): row for row in rows}
    work = UnitOfWork(cast("Transaction", _Rehearsal(now)), "operator")
    # Every reservation was submitted before an account is forgotten.
    work.submitted = max((getattr(row, "sequence", 0) for row in known.values()), default=0)
    fit_slots(work, [row for row in known.values() if isinstance(row, Slot)], rules)
    fit_accounts(work, [row for row in known.values() if isinstance(row, Account)], before, rules)
    written, deleted = work.staged
    known |= {(type(row), row.id): row for row in written}
    gone = {(type(row), row.id) for row in deleted}
    return [row for key, row in known.items() if key not in gone]


def _departures_of(planned: Plan) -> dict[str, Drain | Terminate]:
    return {each.slot: each for each in planned.decisions if isinstance(each, Drain | Terminate)}


def _list_departures(view: View, before: Plan, after: Plan) -> tuple[Departure, ...]:
    known = _departures_of(before)
    return tuple(
        Departure(
            slot=slot,
            action=_name(decision),
            reason=decision.reason,
            reservations=tuple(sorted({owner for owner, _ in view.leases_of(slot)})),
        )
        for slot, decision in _departures_of(after).items()
        if slot not in known
    )


def _endings_of(planned: Plan) -> dict[str, Ending]:
    """By reservation the first decision that takes leases from it, or ends it."""
    found: dict[str, Ending] = {}
    for decision in planned.decisions:
        match decision:
            case Preempt():
                losers, reason = decision.victims, f"preempted by {decision.reservation}"
            case Expire() | Fail() | Requeue() | Revoke():
                losers, reason = (decision.reservation,), decision.reason
            case _:
                continue
        for loser in losers:
            found.setdefault(loser, Ending(reservation=loser, action=_name(decision), reason=reason))
    return found


def _list_endings(before: Plan, after: Plan) -> tuple[Ending, ...]:
    known = _endings_of(before)
    return tuple(each for name, each in _endings_of(after).items() if name not in known)


def _list_losses(before: Mapping[str, Account], after: Mapping[str, Account]) -> tuple[AccountLoss, ...]:
    found = []
    for name, known in sorted(before.items()):
        then = after[name]
        if known.forgotten:
            continue
        if then.forgotten:
            found.append(AccountLoss(account=name, before=known.balance, after=None))
        elif any(less < more for less, more in zip(then.balance, known.balance, strict=True)):
            found.append(AccountLoss(account=name, before=known.balance, after=then.balance))
    return tuple(found)


def _hopeless_of(planned: Plan) -> dict[str, Unservable]:
    return {
        each.reservation: Unservable(reservation=each.reservation, code=each.code, detail=each.detail)
        for each in planned.waiting
        if each.code in _HOPELESS
    }


def _list_unservable(before: Plan, after: Plan) -> tuple[Unservable, ...]:
    known = _hopeless_of(before)
    return tuple(each for name, each in _hopeless_of(after).items() if name not in known)


def _count_launches(view: View, before: Plan, after: Plan) -> dict[str, int]:
    known = {each.slot for each in before.decisions if isinstance(each, Launch)}
    found: dict[str, int] = {}
    for each in after.decisions:
        if isinstance(each, Launch) and each.slot not in known:
            pool = view.slots[each.slot].pool
            found[pool] = found.get(pool, 0) + 1
    return found


def _name(decision: Decision) -> str:
    return str(msgspec.to_builtins(decision)["do"])
