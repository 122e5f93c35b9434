"""Words about quota accounts: create or change one, set its balance to 0, forget it. Source: qscheduler."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from scheduler.model.accounts import NOTHING, Account, Levels
from scheduler.model.events import Event
from scheduler.model.rules import Rules
from scheduler.model.wishes import AccountDocument, AccountNameDocument
from scheduler.operations.ledger import Ledger
from scheduler.operations.words import Refusal


def set_account(ledger: Ledger, _rules: Rules, word: AccountDocument) -> Account:
    """Create it, or change what is named of it; the balance stays unless one is given."""
    said = word.model_dump(include=word.model_fields_set - {"account", "balance"})
    return put_account(ledger, word.account, said, word.balance)


def put_account(ledger: Ledger, name: str, said: Mapping[str, Any], balance: Levels | None) -> Account:
    """An account with these settings; one that is new, or was forgotten, starts now, with a balance of 0 unless one is
    given. What was submitted before it was forgotten stays without an account.
    """
    known = ledger.accounts.get(name)
    if known is None or known.forgotten:
        version, upto = (known.version, known.forgotten_upto) if known else (0, 0)
        fresh = Account(version=version, id=name, charged_at=ledger.now, forgotten_upto=upto)
    else:
        fresh = known
    changed = msgspec.structs.replace(fresh, **said, balance=fresh.balance if balance is None else balance)
    if changed != known:
        ledger.put(changed)
        _tell(ledger, "account_set", name)
    return changed


def reset_account(ledger: Ledger, _rules: Rules, word: AccountNameDocument) -> Account:
    """Its balance becomes 0 at every level."""
    known = _find(ledger, word)
    changed = msgspec.structs.replace(known, balance=NOTHING)
    if changed != known:
        ledger.put(changed)
        _tell(ledger, "account_reset", known.id)
    return changed


def forget_account(ledger: Ledger, _rules: Rules, word: AccountNameDocument) -> Account:
    """Balance and rules are dropped: its leases run on at their levels, unpaid, and its pending reservations are
    accountless from then on.
    """
    return drop_account(ledger, _find(ledger, word))


def drop_account(ledger: Ledger, known: Account) -> Account:
    """See `forget_account`; the row stays, to know who was submitted before."""
    changed = Account(
        version=known.version,
        id=known.id,
        charged_at=ledger.now,
        forgotten=True,
        forgotten_upto=ledger.submitted,
    )
    ledger.put(changed)
    _tell(ledger, "account_forgotten", known.id)
    return changed


def _find(ledger: Ledger, word: AccountNameDocument) -> Account:
    known = ledger.accounts.get(word.account)
    if known is None or known.forgotten:
        raise Refusal("account", "a known account", word.account)
    return known


def _tell(ledger: Ledger, name: str, account: str) -> None:
    ledger.tell(Event(at=ledger.now, name=name, cause=ledger.cause, detail={"account": account}))


ACCOUNT_WORDS: dict[str, Callable[[Ledger, Rules, Any], Account]] = {
    "account": set_account,
    "reset_account": reset_account,
    "forget_account": forget_account,
}
"""What is done for each verb about an account."""
