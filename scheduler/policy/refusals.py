"""Whom its own account keeps from a lease, and why: it launches nothing. Source: qscheduler."""

from scheduler.model.accounts import FREE, Account
from scheduler.model.reservations import Reservation
from scheduler.policy.asks import Ask
from scheduler.policy.draft import Draft
from scheduler.policy.lots import Lot
from scheduler.policy.places import Place
from scheduler.policy.rounds import Round

Told = tuple[str, str]
"""A waiting code, and the sentence."""


def lacks_quota(draft: Draft, reservation: Reservation) -> bool:
    """Whether nothing is left to pay with, and its account has no work that is free. Only under the queue `quota`."""
    if draft.settings_of(reservation).queue != "quota":
        return False
    account = draft.balances.account_of(reservation)
    return account is not None and account.disable_free_tasks and draft.balances.level_of(reservation) == FREE


def tell_without_quota(draft: Draft, reservation: Reservation) -> bool:
    """Tell one that lacks quota; whether it does."""
    lacks = lacks_quota(draft, reservation)
    if lacks:
        draft.wait(reservation.id, *_say_no_quota(draft.balances.account_of(reservation)))
    return lacks


def _say_no_quota(account: Account | None) -> Told:
    name = account.id if account else ""
    return "no_quota", f"account {name} has nothing left at any level, and runs nothing for free"


class Refusals:
    """What accounts refuse to those who are left without a place."""

    def __init__(self, tick: Round) -> None:
        self._tick = tick
        self._idle_by_ask: dict[Ask, list[Place]] = {}
        self._known: dict[tuple[str, Ask], str | None] = {}
        for place in tick.idle if any(_limits_labels(lot) for lots in tick.lots for lot in lots) else ():
            for ask in tick.asks.list_met(place, place.free):
                self._idle_by_ask.setdefault(ask, []).append(place)

    def find(self, lot: Lot) -> Told | None:
        """Code and sentence for those of this lot without a place; None where they lack nothing but room."""
        account = lot.account
        if account is None:
            return None
        if account.disable_free_tasks and lot.level == FREE:
            return _say_no_quota(account)
        if account.disable_free_tasks and self._tick.limits.is_fanned_out(lot):
            told = f"account {account.id} pays for {account.max_fanout} leases of its like, and runs nothing for free"
            return "account_limit", told
        slot = self._find_refused(account, lot) if account.per_label_task_limits else None
        if slot is None:
            return None
        return "account_limit", f"account {account.id} has as many leases as it may on slots with a label of {slot}"

    def _find_refused(self, account: Account, lot: Lot) -> str | None:
        """An idle slot with its labels, where a limit of the account refuses all of them; else None."""
        key = (account.id, lot.required)
        if key not in self._known:
            idle = self._idle_by_ask.get(lot.required, [])
            refused = bool(idle) and all(self._tick.limits.refuses(account, [place]) for place in idle)
            self._known[key] = idle[0].slot.id if refused else None
        return self._known[key]


def _limits_labels(lot: Lot) -> bool:
    return bool(lot.account and lot.account.per_label_task_limits and not lot.is_served)
