"""Words about quota accounts: create or change one, set its balance to 0, forget it. Source: qscheduler."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from scheduler.model.accounts import NOTHING, Account, Levels
from scheduler.model.command_schemas import AccountDocument, AccountNameDocument
from scheduler.model.events import Event
from scheduler.model.rules import Rules
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.unit_of_work import UnitOfWork


def set_account(work: UnitOfWork, _rules: Rules, word: AccountDocument) -> Account:
    """Create it, or change what is named of it; the balance stays unless one is given."""
    said = word.model_dump(include=word.model_fields_set - {"account", "balance"})
    return put_account(work, word.account, said, word.balance)


def put_account(work: UnitOfWork, name: str, said: Mapping[str, Any], balance: Levels | None) -> Account:
    """An account with these settings; one that is new, or was forgotten, starts now, with a balance of 0 unless one is
    given. What was submitted before it was forgotten stays without an account.
    """
    known = work.accounts.get(name)
    if known is None or known.forgotten:
        version, upto = (known.version, known.forgotten_upto) if known else (0, 0)
        fresh = Account(version=version, id=name, charged_at=work.now, forgotten_upto=upto)
    else:
        fresh = known
    changed = msgspec.structs.replace(fresh, **said, balance=fresh.balance if balance is None else balance)
    if changed != known:
        work.put(changed)
        _tell(work, "account_set", name)
    return changed


def reset_account(work: UnitOfWork, _rules: Rules, word: AccountNameDocument) -> Account:
    """Its balance becomes 0 at every level."""
    known = _find(work, word)
    changed = msgspec.structs.replace(known, balance=NOTHING)
    if changed != known:
        work.put(changed)
        _tell(work, "account_reset", known.id)
    return changed


def forget_account(work: UnitOfWork, _rules: Rules, word: AccountNameDocument) -> Account:
    """Balance and rules are dropped: its leases run on at their levels, unpaid, and its pending reservations are
    accountless from then on.
    """
    return drop_account(work, _find(work, word))


def drop_account(work: UnitOfWork, known: Account) -> Account:
    """See `forget_account`; the row stays, to know which reservations were submitted before."""
    changed = Account(
        version=known.version,
        id=known.id,
        charged_at=work.now,
        forgotten=True,
        forgotten_upto=work.submitted,
    )
    work.put(changed)
    _tell(work, "account_forgotten", known.id)
    return changed


def _find(work: UnitOfWork, word: AccountNameDocument) -> Account:
    known = work.accounts.get(word.account)
    if known is None or known.forgotten:
        raise CommandRefused("account", "a known account", word.account)
    return known


def _tell(work: UnitOfWork, name: str, account: str) -> None:
    work.tell(Event(at=work.now, name=name, cause=work.cause, detail={"account": account}))


ACCOUNT_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Account]] = {
    "account": set_account,
    "reset_account": reset_account,
    "forget_account": forget_account,
}
"""What is done for each verb about an account."""
