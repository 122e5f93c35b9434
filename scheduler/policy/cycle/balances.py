"""The balances of the quota accounts within one cycle."""

from collections.abc import Mapping
from typing import Final

from scheduler.model.accounts import FREE, Account, Levels, add, find_account, level_of, subtract
from scheduler.model.reservations import Reservation


class Balances:
    """The quota accounts of one cycle, with two facts about each: its level after the charge, and its balance after the
    charge and the preemptions so far. Source: qscheduler.
    """

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        self.accounts = accounts
        self._levels = {name: level_of(account.balance) for name, account in accounts.items()}
        self.left = {name: account.balance for name, account in accounts.items()}
        """Account id -> what the account has left now at each paid level. The balance of a level may be negative."""

    def account_of(self, reservation: Reservation) -> Account | None:
        """Return the account that pays for a reservation; None if the reservation names no account, or one that does
        not exist.
        """
        return find_account(self.accounts, reservation.request.account, reservation.sequence)

    def level_of(self, reservation: Reservation) -> int:
        """Return the best level at which a reservation's account had a balance after the charge. Return the free level
        if there is no such level or no account.

        Preemptions in this cycle change balances and do not change this level.
        """
        account = self.account_of(reservation)
        return FREE if account is None else self._levels[account.id]

    @property
    def are_by_name(self) -> bool:
        """Whether reservations that name the same account are always paid by the same account.

        This is false after an account was deleted: a new account with the same name pays only for reservations that
        were submitted later.
        """
        return not any(account.forgotten_upto for account in self.accounts.values())

    def move(self, cost: Levels, payer: Account, payee: Account | None) -> None:
        """Charge `cost` to the account `payer`. Refund it to `payee`, the account that paid it before (None: no
        refund).
        """
        self.left[payer.id] = subtract(self.left[payer.id], cost)
        if payee is not None:
            self.left[payee.id] = add(self.left[payee.id], cost)


NO_BALANCES: Final = Balances({})
"""The balances of a cycle without quota accounts. Nothing is charged there, so all such cycles share this object."""
