"""The work budget: how much work of one cycle the gangs and elastic components of one payer (principal or account) may
take.

Work is counted in steps of a search, not in seconds, so that a plan does not depend on the speed of a host. A payer
whose budget is spent waits for a later cycle and delays no other payer. That cycle goes on with the reservations that
were not tried. Single instances are not counted: their cost does not grow with their number
(`policy/capacity/slot_index.py`).
"""

from typing import Final

from scheduler.model.reservations import Reservation
from scheduler.policy.plan_cache import Payer, Turns

LEASE_STEPS: Final = 5
"""The steps that each assigned lease of a gang costs, because the commit writes each lease."""
GRANT_STEPS: Final = 25
"""The steps that each granted elastic lease costs: after a grant the commit writes all leases of the reservation."""
CORES_STEPS: Final = 2
"""The steps that each lease of a reservation costs if a limit of its cores changes: the commit publishes each lease."""
PAUSE_SECONDS: Final = 1.0
"""Seconds until the next cycle if this cycle made no decision and the work budget made reservations wait."""
NEXT_TURN: Final = (
    "the work that its principal may take in one tick is spent (limits.work_per_tick); it is tried in a later tick"
)


def find_payer(reservation: Reservation) -> Payer:
    """Return the principal whose work budget pays for a reservation; the account if the request is unsigned."""
    return reservation.principal if reservation.principal is not None else ("account", reservation.request.account)


class WorkBudget:
    """The work budgets of one cycle, by payer. `memory` is kept between cycles and contains the reservations that were
    tried.
    """

    def __init__(self, memory: Turns, most: int) -> None:
        """Start the work budgets of one cycle. `most`: steps that one principal or account may take in the cycle; 0:
        no limit.
        """
        self._memory, self._most = memory, most
        self._spent: dict[Payer, int] = {}
        self._began = 0
        self._present: Payer | None = None
        """The principal or account whose work budget pays for the present steps of search; None: no budget pays."""
        self._asking: Payer | None = None
        """The principal or account that pays for leases of the reservation that was tried last."""
        self._tried: Turns = {}
        self._first: dict[Payer, str] = {}
        """Payer (principal or account) -> its first reservation in queue order.

        That reservation is tried in each cycle and pays for its leases alone.
        """
        self.short: set[Payer] = set()
        """Principals and accounts with work that waits for a later cycle."""
        self._is_over: set[Payer] = set()
        """Principals and accounts with a reservation that was not tried yet and is not tried in this cycle."""

    def may_try(self, reservation: Reservation, steps: int) -> bool:
        """Return whether the work budget lets a reservation be tried in this cycle.

        Call it in queue order. `steps`: the steps of this cycle so far. The steps until the next call are charged to
        this reservation.
        """
        if not self._most:
            return True
        payer = find_payer(reservation)
        self._close(steps)
        self._asking = payer
        if self._first.setdefault(payer, reservation.id) == reservation.id:
            return True
        if not self._take_turn(payer, reservation.id):
            return False
        self._present = payer
        return True

    def _take_turn(self, payer: Payer, name: str) -> bool:
        """Return whether a reservation may be tried in this cycle, and record it as tried if so.

        It may not if its payer has no work budget left, or if it was tried in an earlier cycle and other reservations
        of the payer have not been tried since.
        """
        if name in self._memory.get(payer, ()):
            self.short.add(payer)
            return False
        if self.is_spent(payer):
            self._is_over.add(payer)
            return False
        self._tried.setdefault(payer, set()).add(name)
        return True

    def _close(self, steps: int) -> None:
        """Charge the steps of search since the last reservation was tried to that reservation's payer. The first
        reservation of each payer is not charged.
        """
        if self._present is not None:
            self.spend(self._present, steps - self._began)
        self._began, self._present = steps, None

    def charge_leases(self, count: int) -> None:
        """Charge the payer for `count` leases that were assigned to the reservation that is tried now.

        The first reservation of a payer is charged too, because the commit writes its leases. A single lease is free.
        """
        if self._most and count > 1 and self._asking is not None:
            self.spend(self._asking, LEASE_STEPS * count)

    def must_wait(self, reservation: Reservation, steps: int) -> bool:
        """Return whether a reservation must wait for a later cycle, because no work budget is left for its launches."""
        if not self._most:
            return False
        payer = find_payer(reservation)
        self._close(steps)
        if self._first.get(payer) == reservation.id:
            return False
        if not self.is_spent(payer):
            self._present = payer
            return False
        self._tried.get(payer, set()).discard(reservation.id)
        self._is_over.add(payer)
        return True

    def begin_launches(self, steps: int) -> None:
        """Give each principal and account a new work budget, for the launches of this cycle."""
        self._spent.clear()
        self._began, self._present = steps, None

    def may_share(self, reservation: Reservation) -> bool:
        """Return whether the limits of cores of a reservation with several leases may change in this cycle.

        If not, a later cycle finds the same changes again. Changes of cores have budgets of their own.
        """
        if not self._most or len(reservation.leases) <= 1:
            return True
        payer = ("cores", find_payer(reservation))
        if not self._take_turn(payer, reservation.id):
            return False
        self.spend(payer, CORES_STEPS * len(reservation.leases))
        return True

    def spend(self, payer: Payer, steps: int) -> None:
        """Take counted steps of work from the budget of `payer`, a principal or an account, for this cycle."""
        self._spent[payer] = self._spent.get(payer, 0) + steps

    def is_spent(self, payer: Payer) -> bool:
        """Return whether a payer has used up its work budget of this cycle. If so, record that its other reservations
        need another cycle.
        """
        if not self._most or self._spent.get(payer, 0) < self._most:
            return False
        self.short.add(payer)
        return True

    def finish(self, now: float, *, decided: bool) -> float | None:
        """Store which reservations were tried. Return when the next cycle is needed; None: no reservation waits for a
        budget.
        """
        for payer in self._memory.keys() - self._is_over:
            del self._memory[payer]  # all reservations of the payer were tried
        for payer in self._is_over:
            self._memory.setdefault(payer, set()).update(self._tried.get(payer, ()))
        if not self.short:
            return None
        return now if decided else now + PAUSE_SECONDS
