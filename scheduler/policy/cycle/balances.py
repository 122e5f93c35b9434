"""What the accounts have in this tick: after the charge, and as preemptions move it. Source: qscheduler."""

from collections.abc import Mapping

from scheduler.model.accounts import FREE, Account, Levels, add, find_account, level_of, subtract
from scheduler.model.reservations import Reservation


class Balances:
    """The accounts that exist, each with its balance and with the level that it had before anything was placed."""

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        self.accounts = accounts
        self._levels = {name: level_of(account.balance) for name, account in accounts.items()}
        self.left = {name: account.balance for name, account in accounts.items()}
        """What each has left now; it may be overdrawn."""

    def account_of(self, reservation: Reservation) -> Account | None:
        """The account that pays for a reservation, if it has one that exists."""
        return find_account(self.accounts, reservation.request.account, reservation.sequence)

    def level_of(self, reservation: Reservation) -> int:
        """The best level at which its account has something left, else the free one. Taken after the charge and not
        again, whatever preemption does to balances.
        """
        account = self.account_of(reservation)
        return FREE if account is None else self._levels[account.id]

    @property
    def are_by_name(self) -> bool:
        """Whether the name of an account says who pays; not where one was forgotten and pays for later ones only."""
        return not any(account.forgotten_upto for account in self.accounts.values())

    def move(self, cost: Levels, payer: Account, payee: Account | None) -> None:
        """The payer takes over what the payee paid so far; an account that does not exist gets nothing."""
        self.left[payer.id] = subtract(self.left[payer.id], cost)
        if payee is not None:
            self.left[payee.id] = add(self.left[payee.id], cost)
