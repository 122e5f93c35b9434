"""Handlers of commands about quota accounts: create or change an account, set its balance to 0, or forget it.

Source: qscheduler.
"""

from collections.abc import Callable
from typing import Any

from scheduler.model.accounts import NOTHING, Account
from scheduler.model.command_schemas import AccountDocument, AccountNameDocument
from scheduler.model.rules import Rules
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.quota import drop_account, put_account


def set_account(work: UnitOfWork, _rules: Rules, document: AccountDocument) -> Account:
    """Create a quota account, or change the settings that the command names. The balance of an existing account stays
    unless the command has a balance.
    """
    settings = document.model_dump(include=document.model_fields_set - {"account", "balance"})
    return put_account(work, document.account, settings, document.balance)


def reset_account(work: UnitOfWork, _rules: Rules, document: AccountNameDocument) -> Account:
    """Set the balance of a quota account to 0 at every level."""
    known = _find(work, document)
    changed = work.change(known, balance=NOTHING)
    if changed != known:
        work.note("account_reset", {"account": known.id})
    return changed


def forget_account(work: UnitOfWork, _rules: Rules, document: AccountNameDocument) -> Account:
    """Mark a quota account as forgotten: delete its balance and its settings. Return its new row.

    Leases that the account paid for continue at their levels without payment. Pending reservations of the account have
    no account from now on.
    """
    return drop_account(work, _find(work, document))


def _find(work: UnitOfWork, document: AccountNameDocument) -> Account:
    known = work.accounts.get(document.account)
    if known is None or known.forgotten:
        raise CommandRefused("account", "a known account", document.account, "unknown")
    return known


ACCOUNT_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Account]] = {
    "account": set_account,
    "reset_account": reset_account,
    "forget_account": forget_account,
}
"""The verb of each command about quota accounts -> the function that carries it out."""
