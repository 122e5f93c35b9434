"""The balances of quota accounts within one cycle, after the charge and after preemptions. Source: qscheduler."""

from collections.abc import Mapping

from scheduler.model.accounts import FREE, Account, Levels, add, find_account, level_of, subtract
from scheduler.model.reservations import Reservation


class Balances:
    """The existing accounts, each with its balance and with the level that it had after the charge."""

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        self.accounts = accounts
        self._levels = {name: level_of(account.balance) for name, account in accounts.items()}
        self.left = {name: account.balance for name, account in accounts.items()}
        """What each account has left now; a level may be overdrawn."""

    def account_of(self, reservation: Reservation) -> Account | None:
        """Return the account that pays for a reservation; None if it names none that exists."""
        return find_account(self.accounts, reservation.request.account, reservation.sequence)

    def level_of(self, reservation: Reservation) -> int:
        """Return the best level at which its account had something left after the charge, else the free level.
        Preemptions in this cycle move balances and do not change the level.
        """
        account = self.account_of(reservation)
        return FREE if account is None else self._levels[account.id]

    @property
    def are_by_name(self) -> bool:
        """Whether the name of an account determines which account pays. It does not once an account was forgotten: a
        new account of that name pays for later reservations only.
        """
        return not any(account.forgotten_upto for account in self.accounts.values())

    def move(self, cost: Levels, payer: Account, payee: Account | None) -> None:
        """Let the payer take over what the payee paid so far. Without a payee nothing is refunded."""
        self.left[payer.id] = subtract(self.left[payer.id], cost)
        if payee is not None:
            self.left[payee.id] = add(self.left[payee.id], cost)
