"""Handlers of commands about quota accounts: create or change an account, set its balance to 0, or forget it.

Source: qscheduler.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from scheduler.model.accounts import NOTHING, Account, Levels
from scheduler.model.command_schemas import AccountDocument, AccountNameDocument
from scheduler.model.events import Event
from scheduler.model.rules import Rules
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.unit_of_work import UnitOfWork


def set_account(work: UnitOfWork, _rules: Rules, document: AccountDocument) -> Account:
    """Create a quota account, or change the settings that the command names. The balance stays unless the command has a
    balance.
    """
    settings = document.model_dump(include=document.model_fields_set - {"account", "balance"})
    return put_account(work, document.account, settings, document.balance)


def put_account(work: UnitOfWork, name: str, settings: Mapping[str, Any], balance: Levels | None) -> Account:
    """Store a quota account with these settings and return it. `balance` None: the present balance stays.

    A new or forgotten account starts at the present time with a balance of 0, unless one is given. Reservations that
    were submitted before the account was forgotten still have no account.
    """
    known = work.accounts.get(name)
    if known is None or known.forgotten:
        version, upto = (known.version, known.forgotten_upto) if known else (0, 0)
        fresh = Account(version=version, id=name, charged_at=work.now, forgotten_upto=upto)
    else:
        fresh = known
    changed = msgspec.structs.replace(fresh, **settings, balance=fresh.balance if balance is None else balance)
    if changed != known:
        work.put(changed)
        _add_event(work, "account_set", name)
    return changed


def reset_account(work: UnitOfWork, _rules: Rules, document: AccountNameDocument) -> Account:
    """Set the balance of a quota account to 0 at every level."""
    known = _find(work, document)
    changed = msgspec.structs.replace(known, balance=NOTHING)
    if changed != known:
        work.put(changed)
        _add_event(work, "account_reset", known.id)
    return changed


def forget_account(work: UnitOfWork, _rules: Rules, document: AccountNameDocument) -> Account:
    """Delete the balance and the settings of a quota account.

    Leases that the account paid for continue at their levels without payment. Pending reservations of the account have
    no account from now on.
    """
    return drop_account(work, _find(work, document))


def drop_account(work: UnitOfWork, known: Account) -> Account:
    """Mark a quota account as forgotten, and delete its balance and settings.

    The row stays, because it records which reservations were submitted before the account was forgotten.
    """
    changed = Account(
        version=known.version,
        id=known.id,
        charged_at=work.now,
        forgotten=True,
        forgotten_upto=work.submitted,
    )
    work.put(changed)
    _add_event(work, "account_forgotten", known.id)
    return changed


def _find(work: UnitOfWork, document: AccountNameDocument) -> Account:
    known = work.accounts.get(document.account)
    if known is None or known.forgotten:
        raise CommandRefused("account", "a known account", document.account, "unknown")
    return known


def _add_event(work: UnitOfWork, name: str, account: str) -> None:
    work.add_event(Event(at=work.now, name=name, cause=work.cause, detail={"account": account}))


ACCOUNT_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Account]] = {
    "account": set_account,
    "reset_account": reset_account,
    "forget_account": forget_account,
}
"""By verb: the function that carries out a command about quota accounts."""
