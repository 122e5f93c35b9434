"""Running work as quota accounts see it: what each reservation's leases cost, at which level, and where. Leases that
are given in this tick count at once. Source: qscheduler.

A reservation with several leases is one piece of work: it has one level, and costs what its leases cost together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from scheduler.model.accounts import NOTHING, Account, Levels, add
from scheduler.model.reservations import Lease, Reservation
from scheduler.policy.charging import settle
from scheduler.policy.draft import Draft

RunState = Literal["held", "leaving", "claimed"]


@dataclass(slots=True, eq=False)
class Run:
    """One reservation with leases. `leaving`: somebody took its place or its slot, and its grace runs."""

    reservation: Reservation
    account: Account | None
    level: int
    leases: tuple[Lease, ...]
    order: int
    """The place of its first slot in the order of all slots."""
    state: RunState
    now: float
    weight: float
    """What a second of it costs."""
    _cost: Levels | None = None

    @property
    def cost(self) -> Levels:
        """What it has used up to now, with what it inherited."""
        if self._cost is None:
            self._cost = NOTHING
            for lease in self.leases:
                self._cost = add(self._cost, settle(lease, self.now).cost)
        return self._cost

    @property
    def rank(self) -> tuple[Levels, int, int]:
        """Cheapest first, then by slot."""
        return (self.cost, self.order, self.reservation.sequence)

    @property
    def rank_down(self) -> tuple[tuple[float, ...], int, int]:
        """Most expensive first, then by slot."""
        return (tuple(-amount for amount in self.cost), self.order, self.reservation.sequence)


class Running:
    """All that runs under the queue `quota`, as this tick has left it so far."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._last = len(draft.places)
        self.runs: dict[str, Run] = {}
        self.of_account: dict[str, list[Run]] = {}
        """By id of an account that exists."""
        for reservation in _list_holders(draft):
            self.add(reservation, reservation.leases)

    def add(self, reservation: Reservation, leases: tuple[Lease, ...]) -> Run:
        """One more, or the same one with other leases."""
        if reservation.id in self.runs:
            self.end(reservation.id)
        draft = self._draft
        account = draft.balances.account_of(reservation)
        run = Run(
            reservation=reservation,
            account=account,
            level=leases[0].level,
            leases=leases,
            order=self._order_of(leases[0]) if len(leases) == 1 else min(map(self._order_of, leases)),
            state=_state_of(draft, reservation, leases),
            now=draft.now,
            weight=leases[0].weight if len(leases) == 1 else sum(lease.weight for lease in leases),
        )
        self.runs[reservation.id] = run
        if account is not None:
            self.of_account.setdefault(account.id, []).append(run)
        return run

    def end(self, name: str) -> None:
        """It runs no more."""
        run = self.runs.pop(name)
        if run.account is not None:
            self.of_account[run.account.id].remove(run)

    def list_metered(self, account: str) -> Iterator[Run]:
        """What counts for the levels of an account: not what was preempted, which uses nothing while its grace runs."""
        return (run for run in self.of_account.get(account, ()) if run.state != "leaving" or _is_metered(run))

    def has_worse(self, account: str, level: int) -> bool:
        """Whether the account has any lease at a level worse than this."""
        return any(run.level > level for run in self.list_metered(account))

    def _order_of(self, lease: Lease) -> int:
        place = self._draft.places.get(lease.slot)
        return self._last if place is None else place.order


def _list_holders(draft: Draft) -> Iterator[Reservation]:
    """Those with leases of queues that are `quota`, in order of submission; claims too."""
    found = [*draft.list_in_phase("leased"), *draft.list_in_phase("revoking"), *draft.list_claimants()]
    found.sort(key=lambda each: each.sequence)
    return (each for each in found if each.leases and draft.settings_of(each).queue == "quota")


def _state_of(draft: Draft, reservation: Reservation, leases: tuple[Lease, ...]) -> RunState:
    if leases[0].state == "claimed":
        return "claimed"
    is_leaving = reservation.phase == "revoking" or reservation.id in draft.returning
    return "leaving" if is_leaving else "held"


def _is_metered(run: Run) -> bool:
    return any(lease.charged_at is not None for lease in run.leases)
