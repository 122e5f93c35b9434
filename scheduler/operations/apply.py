"""Apply rules: store a document as the rules in force, and change the slots and accounts in the database to fit it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from scheduler.model.accounts import NOTHING, Account, Levels
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
from scheduler.model.events import Event
from scheduler.model.images import list_sources, with_images
from scheduler.model.pools import slot_ids
from scheduler.model.principals import Principal
from scheduler.model.rule_changes import RuleChange, list_changes
from scheduler.model.rules import Rules, read_rules
from scheduler.model.rules_in_force import find_rules_in_force
from scheduler.model.slots import Slot
from scheduler.model.transitions import Cause
from scheduler.model.view import Row, View
from scheduler.operations.commands.accounts import drop_account, put_account
from scheduler.operations.market.resolve import check_requirements, load_resolved
from scheduler.operations.membership import check_membership
from scheduler.operations.paused_gc import PausedGC
from scheduler.operations.ports import Ports, announce
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.spending import add_spending
from scheduler.operations.unit_of_work import ChangeSet, UnitOfWork
from scheduler.policy.plan import plan
from scheduler.ports import Store, StoredRules, Transaction

RULES_CHANGED = "rules_changed"
"""Name of the event that the rules changed. It has their `version`, and the `source` that applied them
if it is known.
"""


class RulesChangedError(Exception):
    """Raised when other rules have been put in force since a change of the rules was decided. Nothing was written.

    `version`: the version that is in force.
    """

    def __init__(self, version: int, expected: int) -> None:
        self.version = version
        super().__init__(f"the rules changed meanwhile: version {version} is in force, not {expected}")


@repeated_if_overtaken
def apply_rules(
    ports: Ports,
    document: Mapping[str, Any],
    *,
    prefix: str = "",
    cause: Cause = "operator",
    source: str | None = None,
    expected: int | None = None,
    images: Mapping[str, str] | None = None,
) -> tuple[int, bool]:
    """Check a document of rules, store it as the rules in force, and create, change or delete the slots and accounts
    that it concerns. Return (version, whether anything changed).

    Applying the same document again changes nothing. `source`: what applies the rules, for the history. `expected`: the
    version of the rules in force when the change was decided. `images`: see `write_rules`. Raises InvalidInputError,
    RulesChangedError or ForeignClusterError; then nothing was written.
    """
    rules = read_rules(dict(document), prefix)
    check_requirements(ports.store, rules, prefix)
    check_membership(ports)
    with ports.store.transaction() as transaction:
        applied = write_rules(
            transaction, document, rules, cause=cause, source=source, expected=expected, images=images
        )
    applied.announce(ports)
    return applied.version, applied.changed


class Applied(NamedTuple):
    """The result of `write_rules`: the version in force, and the changes to announce; None if nothing changed."""

    version: int
    change_set: ChangeSet | None

    @property
    def changed(self) -> bool:
        """Return whether the rules changed."""
        return self.change_set is not None

    def announce(self, ports: Ports) -> None:
        """Announce the changes and request a tick. Call it after the commit."""
        if self.change_set is not None:
            announce(ports, self.change_set, kick=True)


def write_rules(
    transaction: Transaction,
    document: Mapping[str, Any],
    rules: Rules,
    *,
    cause: Cause,
    source: str | None,
    expected: int | None,
    principal: Principal | None = None,
    images: Mapping[str, str] | None = None,
) -> Applied:
    """Do the part of `apply_rules` that belongs into its transaction. `rules`: the rules in `document`, which were
    checked. `principal`: the sender of the request, whose name the event gets. `images`: ids of images by their source
    in the rules; a source that is missing keeps its id. Raises RulesChangedError.
    """
    stored = transaction.load_rules()
    if expected is not None and stored.version != expected:
        raise RulesChangedError(stored.version, expected)
    kept = {source: stored.images[source] for source in list_sources(rules) if source in stored.images}
    found = kept | dict(images or {})
    if stored.version and (stored.document, stored.images) == (document, found):
        return Applied(stored.version, None)
    work = UnitOfWork(transaction, cause, principal=principal)
    work.count_submitted()
    version = transaction.save_rules(document, stored.version, found)
    fit_slots(work, transaction.load_all_slots(), rules)
    fit_accounts(work, transaction.load_all_accounts(), stored.rules, rules)
    detail: dict[str, Any] = {"version": version} | ({"source": source} if source else {})
    work.add_event(Event(at=work.now, name=RULES_CHANGED, cause=cause, detail=detail))
    return Applied(version, work.flush())


def fit_slots(work: UnitOfWork, slots: Iterable[Slot], rules: Rules) -> None:
    """Give each EC2 pool the slots `POOL-1` to `POOL-max_slots` of the new rules.

    Slots with a higher number, and slots of pools that the rules no longer list, are deleted if they are empty and kept
    otherwise. Slots of static pools are created by their hosts, and are not changed here.
    """
    wanted = {slot: name for name, pool in rules.pools.items() for slot in slot_ids(name, pool)}
    present = {slot.id: slot for slot in slots}
    for slot_id, pool in wanted.items():
        if slot_id not in present:
            work.put(Slot(id=slot_id, pool=pool, since=work.now))
    for slot in present.values():
        listed = rules.pools.get(slot.pool)
        if slot.state == "empty" and slot.id not in wanted and (listed is None or listed.is_elastic):
            work.delete(slot)


def fit_accounts(work: UnitOfWork, accounts: Iterable[Account], before: Rules, rules: Rules) -> None:
    """Change the quota accounts to what their tables in the new rules contain.

    An account whose table is new or changed gets its settings, and its balance if the balance in the table is new or
    changed. An account whose table was removed is forgotten. If an operator changed a setting by a command, it stays
    until the table changes. When quota scheduling is switched on, charging begins now.
    """
    work.accounts.update((account.id, account) for account in accounts)
    if rules.has_quota and not before.has_quota:
        for account in list(work.accounts.values()):
            work.put(msgspec.structs.replace(account, charged_at=work.now, due=NOTHING))
    for name, table in rules.accounts.items():
        known = before.accounts.get(name)
        if table != known:
            is_same_balance = known is not None and table.balance == known.balance
            balance = None if is_same_balance else table.balance
            put_account(work, name, table.model_dump(exclude={"balance"}), balance)
    for name in before.accounts.keys() - rules.accounts.keys():
        present = work.accounts.get(name)
        if present is not None and not present.forgotten:
            drop_account(work, present)


_HOPELESS: Final = frozenset({"never_fits", "no_pool"})


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that would lose its machine because of new rules. `action`: the slot would drain (its leases continue
    until they end), or its machine would be terminated.
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
    """A quota account that would lose balance because of new rules. `after`: its balance then; None: it would be
    forgotten.
    """

    account: str
    before: Levels
    after: Levels | None


class Unservable(msgspec.Struct, frozen=True, kw_only=True):
    """A pending reservation that no slot or offering could hold under the new rules, even an empty one."""

    reservation: str
    code: str
    detail: str


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What new rules would change, and what the next tick would do because of them. Nothing was written."""

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
    """Return what would happen if this document became the rules in force, with these ids of images. Nothing is locked
    or written. Raises InvalidInputError for an invalid document.
    """
    rules, stored = _read_resolved(store, document, prefix), _load_stored(store)
    rules = with_images(rules, found := stored.images | dict(images or {}))
    if stored.version and (stored.document, stored.images) == (document, found):
        return Preview(version=stored.version, changed=False)
    return _rehearse(store, stored, document, rules).preview


def rehearse_rules(store: Store, document: Mapping[str, Any], *, prefix: str = "") -> Rehearsal:
    """Return the same as `preview_rules`, with both plans. If the document is in force already, both are one plan."""
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
    fitted = _fit(rows, stored.rules, rules, now)
    before, after = View(rows), View(fitted)
    with PausedGC():
        now_planned = plan(before, find_rules_in_force(present, now), now)
        then_planned = plan(after, find_rules_in_force(proposed, now), now)
    preview = Preview(
        version=stored.version,
        changed=True,
        changes=tuple(list_changes(stored.document, document)),
        departures=_list_departures(before, now_planned, then_planned),
        endings=_list_endings(now_planned, then_planned),
        accounts=_list_losses(before.accounts, after.accounts),
        unservable=_list_unservable(now_planned, then_planned),
        launches=_count_launches(after, now_planned, then_planned),
    )
    return Rehearsal(preview, now_planned, then_planned)


class _NoTransaction:
    """A stand-in for the transaction of a unit of work. With it, changes are only collected: no rows are loaded or
    written.
    """

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now


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
    """Return, by reservation id, the first decision of a plan that ends the reservation or one of its leases."""
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
