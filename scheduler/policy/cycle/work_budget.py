"""Turns: how much counted work of a tick the gangs and elastic components of one principal may take.

Work is counted in steps, never in seconds, so that a plan does not depend on the speed of a host. A principal whose
budget is spent waits for the next tick, and no other principal waits for it. Reservations for one instance are not
counted: what they cost does not grow with their number (`policy/capacity/slot_index.py`).
"""

from typing import Final

from scheduler.model.reservations import Reservation
from scheduler.policy.plan_cache import Payer, Turns

LEASE_STEPS: Final = 5
"""A lease of a gang that is given counts as much: the commit writes it."""
GRANT_STEPS: Final = 25
"""An elastic lease that is granted counts as much: each chunk of grants writes all leases of its reservation."""
CORES_STEPS: Final = 2
"""A change of the cores that a reservation may use counts as much for each of its leases: all of them are read, and the
view gets them again.
"""
PAUSE_SECONDS: Final = 1.0
"""After a tick that decided nothing, the next turns come after this time."""
NEXT_TURN: Final = (
    "the work that its principal may take in one tick is spent (limits.work_per_tick); its turn comes in a later tick"
)


def find_payer(reservation: Reservation) -> Payer:
    """Whose budget pays for it: its principal's; of an unsigned one its account's."""
    return reservation.principal if reservation.principal is not None else ("account", reservation.request.account)


class WorkBudget:
    """The budgets of one tick. `memory` outlives the tick; without it every reservation has its turn again."""

    def __init__(self, memory: Turns, most: int) -> None:
        """`most`: steps of one payer in one tick; 0 = no bound."""
        self._memory, self._most = memory, most
        self._spent: dict[Payer, int] = {}
        self._began = 0
        self._present: Payer | None = None
        """Whose budget pays for the work at present."""
        self._asking: Payer | None = None
        """Who pays for the leases of the reservation that was asked for last."""
        self._tried: Turns = {}
        self._first: dict[Payer, str] = {}
        """Its first reservation in the order of the queue: it has a turn in every tick and pays for its leases only."""
        self.short: set[Payer] = set()
        """Payers with work that waits for a later tick."""
        self._is_over: set[Payer] = set()
        """Payers with a reservation that had no turn in this round yet, and gets none in this tick."""

    def may_try(self, reservation: Reservation, steps: int) -> bool:
        """Whether it has a turn in this tick; to be asked in the order of the queue. `steps`: all that were taken so
        far. Steps from now on until the next question are charged to it.
        """
        if not self._most:
            return True
        payer = find_payer(reservation)
        self._close(steps)
        self._asking = payer
        if self._first.setdefault(payer, reservation.id) == reservation.id:
            return True
        if reservation.id in self._memory.get(payer, ()):
            self.short.add(payer)
            return False
        if self.is_spent(payer):
            self._is_over.add(payer)
            return False
        self._tried.setdefault(payer, set()).add(reservation.id)
        self._present = payer
        return True

    def _close(self, steps: int) -> None:
        """Charge what was taken since the last question."""
        self.charge(steps - self._began)
        self._began, self._present = steps, None

    def charge_leases(self, count: int) -> None:
        """The reservation that has its turn gets so many leases. The first one of a payer pays for these, too: the
        commit writes them. A single lease is not counted.
        """
        if self._most and count > 1 and self._asking is not None:
            self.spend(self._asking, LEASE_STEPS * count)

    def charge(self, steps: int) -> None:
        """The reservation that has its turn takes so much. The first one of a payer pays nothing for its search."""
        if self._present is not None:
            self.spend(self._present, steps)

    def must_wait(self, reservation: Reservation, steps: int) -> bool:
        """Whether one that had its turn needs another one: nothing is left of the budget for its launches."""
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
        """From now on launches are charged, from a budget of their own."""
        self._spent.clear()
        self._began, self._present = steps, None

    def may_share(self, reservation: Reservation) -> bool:
        """Whether the cores of a reservation with several leases may change in this tick; if not, a later tick finds
        the same change again. These changes have a budget and turns of their own.
        """
        if not self._most or len(reservation.leases) <= 1:
            return True
        payer = ("cores", find_payer(reservation))
        if reservation.id in self._memory.get(payer, ()):
            self.short.add(payer)
            return False
        if self.is_spent(payer):
            self._is_over.add(payer)
            return False
        self._tried.setdefault(payer, set()).add(reservation.id)
        self.spend(payer, CORES_STEPS * len(reservation.leases))
        return True

    def spend(self, payer: Payer, steps: int) -> None:
        """This much of the payer's budget is spent."""
        self._spent[payer] = self._spent.get(payer, 0) + steps

    def is_spent(self, payer: Payer) -> bool:
        """Whether nothing is left of the payer's budget; if so, there will be another tick."""
        if not self._most or self._spent.get(payer, 0) < self._most:
            return False
        self.short.add(payer)
        return True

    def finish(self, now: float, *, decided: bool) -> float | None:
        """Keep in mind which reservations had their turn. When the next tick is wanted; None = no work waits for it."""
        for payer in self._memory.keys() - self._is_over:
            del self._memory[payer]  # all of them had their turn
        for payer in self._is_over:
            self._memory.setdefault(payer, set()).update(self._tried.get(payer, ()))
        if not self.short:
            return None
        return now if decided else now + PAUSE_SECONDS
