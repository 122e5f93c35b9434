"""What the quota accounts have left in a cycle."""

from collections.abc import Mapping

from scheduler.model.accounts import FREE, Account, Levels, add, find_account, level_of, subtract
from scheduler.model.reservations import Reservation


class Balances:
    """The quota accounts that exist in a cycle: the level of each after the charge, and its balance after charge and
    preemptions. Source: qscheduler.
    """

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        self.accounts = accounts
        self._levels = {name: level_of(account.balance) for name, account in accounts.items()}
        self.left = {name: account.balance for name, account in accounts.items()}
        """What each account has left now, by level; a level may be overdrawn."""

    def account_of(self, reservation: Reservation) -> Account | None:
        """Return the account that pays for a reservation; None if the reservation names no account that exists."""
        return find_account(self.accounts, reservation.request.account, reservation.sequence)

    def level_of(self, reservation: Reservation) -> int:
        """Return the best level at which a reservation's account had a balance after the charge, else the free level.

        Preemptions in this cycle move balances and do not change the level.
        """
        account = self.account_of(reservation)
        return FREE if account is None else self._levels[account.id]

    @property
    def are_by_name(self) -> bool:
        """Whether the name of an account determines which account pays.

        It does not after an account was deleted: a new account of that name pays for later reservations only.
        """
        return not any(account.forgotten_upto for account in self.accounts.values())

    def move(self, cost: Levels, payer: Account, payee: Account | None) -> None:
        """Let one account take over what the account `payee` paid so far. Without a payee nothing is refunded."""
        self.left[payer.id] = subtract(self.left[payer.id], cost)
        if payee is not None:
            self.left[payee.id] = add(self.left[payee.id], cost)
