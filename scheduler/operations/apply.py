"""Apply rules: store a document as the rules in force, and make the slots of its pools and its accounts."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from scheduler.model.accounts import NOTHING, Account
from scheduler.model.events import Event
from scheduler.model.rules import Rules, read_rules, slot_ids
from scheduler.model.slots import Slot
from scheduler.model.transitions import Cause
from scheduler.operations.commands.accounts import drop_account, put_account
from scheduler.operations.membership import check_membership
from scheduler.operations.ports import Ports, announce
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork

RULES_CHANGED = "rules_changed"
"""The event of new rules: their `version`, and the `source` that applied them if it is known."""


class RulesChangedError(Exception):
    """The rules in force are not the ones that the change was decided on. Nothing was written."""


@repeated_if_overtaken
def apply_rules(
    ports: Ports,
    document: Mapping[str, Any],
    *,
    prefix: str = "",
    cause: Cause = "operator",
    source: str | None = None,
    expected: int | None = None,
) -> tuple[int, bool]:
    """Check the document, store it, and make the slots of its pools and its accounts.

    Returns (version, whether anything changed). Applying the same document again changes nothing.

    `source`: what applies the rules, for the history. `expected`: the version of the rules that this change was
    decided on. Raises InvalidInputError, RulesChangedError and ForeignClusterError; then nothing was written.
    """
    rules = read_rules(dict(document), prefix)
    check_membership(ports)
    with ports.store.transaction() as transaction:
        stored = transaction.load_rules()
        if expected is not None and stored.version != expected:
            raise RulesChangedError(
                f"the rules changed meanwhile: version {stored.version} is in force, not {expected}"
            )
        if stored.version and stored.document == document:
            return stored.version, False
        work = UnitOfWork(transaction, cause)
        work.count_submitted()
        version = transaction.save_rules(document, stored.version)
        fit_slots(work, transaction.load_all_slots(), rules)
        fit_accounts(work, transaction.load_all_accounts(), stored.rules, rules)
        detail: dict[str, Any] = {"version": version} | ({"source": source} if source else {})
        work.tell(Event(at=work.now, name=RULES_CHANGED, cause=cause, detail=detail))
        change_set = work.flush()
    announce(ports, change_set, kick=True)
    return version, True


def fit_slots(work: UnitOfWork, slots: Iterable[Slot], rules: Rules) -> None:
    """Give each ec2 pool the slots `POOL-1` … `POOL-max_slots`.

    Delete empty slots beyond that, and those of pools that are no longer listed. Other such slots stay until they
    are empty.
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
    """Change the accounts to what the tables of the rules give.

    An account whose table is new or changed gets its settings, and its balance if the table's balance is new or
    changed. An account whose table was removed is forgotten. A setting that an operator changed by a command stays
    while its table is unchanged. When quota scheduling is switched on, charging begins now.
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
