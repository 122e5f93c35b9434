"""Preview of rules: what the next tick would do under a document that is not in force yet, and which leases, machines
and balances would be lost.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from math import isinf
from statistics import median
from time import monotonic
from typing import Any, Final, NamedTuple, cast

import msgspec

from scheduler.foresight.forecaster import Forecaster
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
from scheduler.model.reservations import Lease
from scheduler.model.rules import Rules, find_rules_in_force, read_rules, with_images
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.model.waiting_codes import UNSERVABLE
from scheduler.operations.costs import add_spending
from scheduler.operations.market import check_requirements, load_resolved
from scheduler.operations.paused_gc import PausedGC
from scheduler.operations.rules.apply import fit_accounts, fit_slots
from scheduler.operations.rules.history import RuleChange, list_changes
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.plan import plan
from scheduler.ports import Store, StoredRules, Transaction

PLAYS: Final = 8
PLAY_SECONDS: Final = 0.2
"""After this time no further play is begun for the rules. A preview plays under both rules."""
MOST_WAITING: Final = 2000
"""With more waiting reservations nothing is played, because one play alone would take too long for a preview."""
NOTED_SHARE: Final = 0.1
NOTED_SECONDS: Final = 10.0
"""A wait that moves by less than this, or by less than that share, is not reported: plays are random."""


class AccountWait(msgspec.Struct, frozen=True, kw_only=True):
    """How long the work of an account that waits now would still wait, as the median of its reservations in seconds.
    None: it would not start within the time over which plays look ahead.
    """

    account: str
    """"": the work without an account."""
    waiting: int
    """How many of its reservations wait."""
    before: float | None
    after: float | None


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that would lose its machine because of new rules. `action`: the name of the decision of the next tick,
    `drain` (the leases on the slot continue until they end) or `terminate`.
    """

    slot: str
    action: str
    reason: str
    reservations: tuple[str, ...] = ()
    """Ids of the reservations that have a lease on the slot."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation that would lose leases because of new rules. `action`: the name of the decision with which the next
    tick would end them.
    """

    reservation: str
    action: str
    reason: str


class AccountLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A quota account that would lose balance because of new rules. `before`: its balance now; `after`: its balance
    under the new rules; None: the account would be forgotten (deleted).
    """

    account: str
    before: Levels
    after: Levels | None


class Unservable(msgspec.Struct, frozen=True, kw_only=True):
    """A pending reservation that no slot or offering could hold under the new rules, even an empty one. `code` and
    `detail`: its waiting code, and the sentence for it.
    """

    reservation: str
    code: str
    detail: str


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What new rules would change, and what the next tick would do because of them. `changes`: the changed keys of the
    rules. `departures`: slots that would lose their machines. `endings`: reservations that would lose leases.
    `accounts`: accounts that would lose balance. `unservable`: pending reservations that could not be served any more.
    """

    version: int
    """The version of the rules that are in force."""
    changed: bool
    """Whether the new document differs from the rules in force. Setting a key to its default value counts as a
    difference.
    """
    changes: tuple[RuleChange, ...] = ()
    departures: tuple[Departure, ...] = ()
    endings: tuple[Ending, ...] = ()
    accounts: tuple[AccountLoss, ...] = ()
    unservable: tuple[Unservable, ...] = ()
    launches: dict[str, int] = {}
    """Pool -> number of machines that the next tick would launch in addition, because of the new rules."""
    waits: tuple[AccountWait, ...] = ()
    """The accounts whose waiting reservations would start earlier or later, by plays of the present state."""

    @property
    def takes_away(self) -> bool:
        """Return whether the new rules would end machines or leases, or take balance from accounts."""
        return bool(self.departures or self.endings or self.accounts)


class Rehearsal(NamedTuple):
    """A preview of rules, and the two plans that it compares: the next tick under the present rules and under the
    given ones.
    """

    preview: Preview
    present: Plan
    proposed: Plan


def preview_rules(
    store: Store, document: Mapping[str, Any], *, prefix: str = "", images: Mapping[str, str] | None = None
) -> Preview:
    """Return what would happen if this document became the rules in force. `images`: the ids of images by their source,
    where they are to differ from the stored ids (None: nowhere). `prefix`: the path of the document, for the messages
    about faults. Nothing is locked or written. Raises InvalidInputError for an invalid document.
    """
    rules, stored = _read_resolved(store, document, prefix), _load_stored(store)
    rules = with_images(rules, found := stored.images | dict(images or {}))
    if stored.version and (stored.document, stored.images) == (document, found):
        return Preview(version=stored.version, changed=False)
    return _rehearse(store, stored, document, rules).preview


def rehearse_rules(store: Store, document: Mapping[str, Any], *, prefix: str = "") -> Rehearsal:
    """Return the preview of this document, as `preview_rules` does, together with the two plans that it compares. If
    the document is in force already, both are the same plan. `prefix`: the path of the document, for the messages about
    faults.
    """
    rules, stored = _read_resolved(store, document, prefix), _load_stored(store)
    if stored.version and stored.document == document:
        with PausedGC():
            now = store.now()
            present = add_spending(store, find_rules_in_force(stored.rules, now), now)
            planned = plan(View(store.read_rows()), present, now)
        return Rehearsal(Preview(version=stored.version, changed=False), planned, planned)
    return _rehearse(store, stored, document, rules)


def _load_stored(store: Store) -> StoredRules:
    stored = store.load_rules()
    return msgspec.structs.replace(stored, rules=load_resolved(store, stored.rules))


def _read_resolved(store: Store, document: Mapping[str, Any], prefix: str) -> Rules:
    rules = read_rules(dict(document), prefix)
    check_requirements(store, rules, prefix)
    return load_resolved(store, rules)


def _rehearse(store: Store, stored: StoredRules, document: Mapping[str, Any], rules: Rules) -> Rehearsal:
    rows, now = list(store.read_rows()), store.now()
    present, proposed = add_spending(store, stored.rules, now), add_spending(store, rules, now)
    before, after = View(rows), View(_fit(rows, stored.rules, rules, now))
    with PausedGC():
        rules_now, rules_then = find_rules_in_force(present, now), find_rules_in_force(proposed, now)
        now_planned, then_planned = plan(before, rules_now, now), plan(after, rules_then, now)
        waits = compare_waits(before, rules_now, after, rules_then, now)
    preview = Preview(
        version=stored.version,
        changed=True,
        changes=tuple(list_changes(stored.document, document)),
        departures=_list_departures(before, now_planned, then_planned),
        endings=_list_endings(now_planned, then_planned),
        accounts=_list_losses(before.accounts, after.accounts),
        unservable=_list_unservable(now_planned, then_planned),
        launches=_count_launches(after, now_planned, then_planned),
        waits=waits,
    )
    return Rehearsal(preview, now_planned, then_planned)


class _NoTransaction:
    """A stand-in for the transaction of a unit of work that only collects changes: no rows can be loaded or written."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def load_leases(self, _slots: Iterable[str], _without: Container[str]) -> dict[str, list[tuple[str, Lease]]]:
        return {}


def _fit(rows: Iterable[Row], before: Rules, rules: Rules, now: float) -> list[Row]:
    """Return the rows as `apply_rules` would leave them if it replaced the rules `before` by `rules`. Nothing is
    written.
    """
    known = {(type(row), row.id): row for row in rows}
    work = UnitOfWork(cast("Transaction", _NoTransaction(now)), "operator")
    # Reservations that were submitted before an account was forgotten have no account: here, all of them.
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
    """Return, by reservation id, the first decision of a plan that ends the reservation or one of its leases.
    Reservations without such a decision are missing.
    """
    found: dict[str, Ending] = {}
    for decision in planned.decisions:
        match decision:
            case Preempt():
                losers = tuple(name for name in decision.victims if name not in decision.partial)
                reason = f"preempted by {decision.reservation}"
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
        if each.code in UNSERVABLE
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


def compare_waits(before: View, present: Rules, after: View, proposed: Rules, now: float) -> tuple[AccountWait, ...]:
    """Return the accounts whose waits would move, by name; none with more than MOST_WAITING waiting reservations.
    `before` and `after`: the state under the `present` and the `proposed` rules in force.
    """
    if not 0 < len(before.by_phase["pending"]) <= MOST_WAITING:
        return ()
    old, new = _find_waits(before, present, now), _find_waits(after, proposed, now)
    found = [
        AccountWait(account=name, waiting=count, before=old[name][1], after=new[name][1])
        for name, (count, _) in sorted(old.items())
        if name in new
    ]
    return tuple(each for each in found if _has_moved(each.before, each.after))


def _find_waits(view: View, rules: Rules, now: float) -> dict[str, tuple[int, float | None]]:
    forecaster, ends_at = Forecaster(), monotonic() + PLAY_SECONDS
    forecaster.see(view, rules, "", now, rules.spending)
    forecaster.play_while(lambda: monotonic() < ends_at, PLAYS)
    waits: dict[str, list[float]] = defaultdict(list)
    for row in view.by_phase["pending"].values():
        predicted = forecaster.predict(row)
        if predicted is not None:
            waits[row.request.account or ""].append(predicted.median)
    middles = {name: (len(each), median(each)) for name, each in waits.items()}
    return {name: (count, None if isinf(middle) else middle) for name, (count, middle) in middles.items()}


def _has_moved(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) > max(NOTED_SECONDS, NOTED_SHARE * before)
