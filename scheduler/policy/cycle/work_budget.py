"""The work budget: how much work of one cycle the gangs and elastic components of one payer (principal or account) may
take.

Work is counted in steps of a search, not in seconds, so that a plan does not depend on the speed of a host. If a
payer's budget is spent, the payer's other reservations wait for a later cycle, and delay no other payer. The later
cycle goes on with the reservations that were not tried. Single instances are not counted: their cost does not grow with
their number (`policy/capacity/slot_index.py`).
"""

from typing import Final

from scheduler.model.reservations import Reservation
from scheduler.policy.plan_cache import Payer, Turns

LEASE_STEPS: Final = 5
"""Steps of work that each assigned lease of a gang costs: the commit writes each lease."""
GRANT_STEPS: Final = 25
"""Steps of work that each granted elastic lease costs: after a grant the commit writes all leases of the
reservation.
"""
CORES_STEPS: Final = 2
"""Steps of work that each lease of a reservation costs if this cycle changes how many cores one of its leases may use.
The commit then publishes all leases of the reservation.
"""
PAUSE_SECONDS: Final = 1.0
"""Seconds until the next cycle, if the work budget made reservations wait and this cycle made no decision."""
NEXT_TURN: Final = (
    "the work that its principal may take in one tick is spent (limits.work_per_tick); it is tried in a later tick"
)


def find_payer(reservation: Reservation) -> Payer:
    """Return the principal whose work budget pays for a reservation. If its request is unsigned, return the account."""
    return reservation.principal if reservation.principal is not None else ("account", reservation.request.account)


class WorkBudget:
    """The work budgets of one cycle, one for each payer (principal or account). `memory`: the reservations that earlier
    cycles tried, by payer; it is kept between cycles.
    """

    def __init__(self, memory: Turns, most: int) -> None:
        """Start the work budgets of one cycle. `most`: steps of work that each payer may take in the cycle; 0: no
        limit.
        """
        self._memory, self._most = memory, most
        self._spent: dict[Payer, int] = {}
        self._began = 0
        self._present: Payer | None = None
        """The payer whose work budget is charged for the present steps of search; None: they are not charged."""
        self._asking: Payer | None = None
        """The payer (principal or account) of the reservation that was tried last. Its work budget is charged with the
        leases of that reservation. None: no reservation was tried.
        """
        self._tried: Turns = {}
        self._first: dict[Payer, str] = {}
        """Payer (principal or account) -> its first reservation in queue order.

        That reservation is tried in each cycle. Its leases are charged, its steps of search are not.
        """
        self.short: set[Payer] = set()
        """Payers of which a reservation has to wait for a later cycle, because the work budget does not allow it
        now.
        """
        self._is_over: set[Payer] = set()
        """Payers with a reservation that has not been tried in the present round and cannot be tried in this cycle. (A
        round ends when all reservations of a payer were tried.)
        """

    def may_try(self, reservation: Reservation, steps: int) -> bool:
        """Return whether the work budget lets a reservation be tried in this cycle.

        Call it in queue order. `steps`: the steps of work that this cycle has taken so far. The steps from now until
        the next call are charged to the payer of this reservation.
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
        """Return whether the reservation `name` may be tried in this cycle. If so, record it as tried.

        It may not be tried in two cases: (1) its payer has no work budget left; (2) it was tried in an earlier cycle,
        and other reservations of the payer have not been tried since.
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
        """Charge the steps of search since the reservation that was tried last to its payer. Nothing is charged if it
        was the first reservation of its payer.
        """
        if self._present is not None:
            self.spend(self._present, steps - self._began)
        self._began, self._present = steps, None

    def charge_leases(self, count: int) -> None:
        """Charge the `count` leases that were assigned to the reservation that was tried last, `LEASE_STEPS` each, to
        the work budget of its payer. A single lease is not charged.

        The first reservation of a payer in queue order pays for its leases too, because the commit writes them. Only
        its steps of search are free.
        """
        if self._most and count > 1 and self._asking is not None:
            self.spend(self._asking, LEASE_STEPS * count)

    def must_wait(self, reservation: Reservation, steps: int) -> bool:
        """Return whether launches for a reservation must wait for a later cycle, because its payer's work budget is
        spent. The first reservation of a payer in queue order never has to wait.

        `steps`: the steps of work that this cycle has taken so far. If the reservation need not wait, the steps from
        now until the next call are charged to its payer.
        """
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
        """Give each payer a new work budget, for the launches of this cycle. `steps`: the steps of work that this cycle
        has taken so far.
        """
        self._spent.clear()
        self._began, self._present = steps, None

    def may_share(self, reservation: Reservation) -> bool:
        """Return whether this cycle may change how many cores of its slot each lease of a reservation may use
        (`placement/cpu_bursting.py`). True for a reservation with a single lease. If True, the changes are charged.

        If the result is False, a later cycle finds the same changes again. Each payer has a second work budget, which
        is charged only with changes of cores.
        """
        if not self._most or len(reservation.leases) <= 1:
            return True
        payer = ("cores", find_payer(reservation))
        if not self._take_turn(payer, reservation.id):
            return False
        self.spend(payer, CORES_STEPS * len(reservation.leases))
        return True

    def may_backtrack(self, reservation: Reservation) -> bool:
        """Return whether this cycle may search slots for a gang under `quota` by backtracking (`capacity/gang.py`).

        Other searches there are not counted. So each payer has a third work budget, which is charged only with these
        steps. The first gang of a payer for which the method is called may always be searched for.
        """
        if not self._most:
            return True
        payer = ("backtracking", find_payer(reservation))
        if self._first.setdefault(payer, reservation.id) == reservation.id:
            return True
        is_tried = reservation.id in self._tried.get(payer, ())
        return (is_tried and not self.is_spent(payer)) or (not is_tried and self._take_turn(payer, reservation.id))

    def charge_backtracking(self, reservation: Reservation, steps: int) -> None:
        """Charge the steps of a search that `may_backtrack` has permitted, unless it was for the first gang."""
        payer = ("backtracking", find_payer(reservation))
        if self._first.get(payer) != reservation.id:
            self.spend(payer, steps)

    def spend(self, payer: Payer, steps: int) -> None:
        """Charge these steps of work to the budget that `payer`, a principal or an account, has in this cycle."""
        self._spent[payer] = self._spent.get(payer, 0) + steps

    def is_spent(self, payer: Payer) -> bool:
        """Return whether a payer has used up its work budget of this cycle. If so, record that a later cycle is needed
        for the payer's other reservations.
        """
        if not self._most or self._spent.get(payer, 0) < self._most:
            return False
        self.short.add(payer)
        return True

    def finish(self, now: float, *, decided: bool) -> float | None:
        """Store which reservations were tried. Return when the next cycle is needed (seconds since the epoch); None: no
        reservation waits because a work budget is spent.

        `decided`: whether this cycle made a decision. If it did, the next cycle is due at once; if not, after
        PAUSE_SECONDS.
        """
        for payer in self._memory.keys() - self._is_over:
            del self._memory[payer]  # all reservations of the payer were tried
        for payer in self._is_over:
            self._memory.setdefault(payer, set()).update(self._tried.get(payer, ()))
        if not self.short:
            return None
        return now if decided else now + PAUSE_SECONDS
