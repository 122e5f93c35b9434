"""Running work under `queue: quota`: the level, cost and slots of the leases of each reservation.

Leases that are assigned in this cycle count at once. A reservation with several leases is one piece of work, with one
level and the cost of all its leases. The index is kept between cycles. A cycle computes two kinds of work again: work
whose rows changed since the last cycle, and work that the last cycle changed. Source: qscheduler.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import msgspec

from scheduler.model.accounts import FREE, NOTHING, Account, Levels, find_account, share_of, subtract
from scheduler.model.reservations import Lease, Reservation
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.plan_cache import list_touched
from scheduler.policy.quota.accounting import sum_costs

RunState = Literal["held", "leaving", "claimed"]
HOLDING = frozenset({"leased", "revoking", "pending"})
"""The phases of reservations that have leases or claims."""


@dataclass(slots=True, eq=False)
class RunningWork:
    """One piece of running work: the leases of one reservation, with their level and cost.

    `state` `leaving`: the work was preempted or interrupted, and its grace period is not over. `claimed`: its leases
    are claims. `held`: all other work.
    """

    index: "RunningIndex" = field(repr=False)
    reservation: Reservation
    payer: str | None
    """The id of the account that pays for the work; None: no account."""
    level: int
    leases: tuple[Lease, ...]
    state: RunState
    weight: float
    """The cost of the running work per second."""
    position: tuple[int, int]
    """The position in the order of submission. Work that was added in this cycle comes after all other work, in the
    order in which it was added.
    """
    is_metered: bool
    """Whether the account pays for the work now. It is False for preempted work in its grace period, which costs
    nothing.
    """
    _cost: Levels = NOTHING
    _cost_at: float | None = None
    _divided: tuple[float, Levels, int] | None = None
    """What `share_cost` divides: (time, cost of the leases that are not revoking, number of these leases)."""

    @property
    def account(self) -> Account | None:
        """The account that pays for the work, after the charge of this cycle; None: no account."""
        return None if self.payer is None else self.index.cycle.balances.accounts.get(self.payer)

    @property
    def cost(self) -> Levels:
        """The cost of the work up to now, as one amount for each paid level. It includes the cost of the work that it
        preempted.
        """
        if self._cost_at != self.index.cycle.now:
            self._cost_at = self.index.cycle.now
            self._cost = sum_costs(self.leases, self._cost_at)
        return self._cost

    def share_cost(self, count: int) -> Levels:
        """Return the part of the cost that a preemption pays for this number of elastic leases of the work."""
        now = self.index.cycle.now
        if self._divided is None or self._divided[0] != now:
            revoking = [lease for lease in self.leases if lease.state == "revoking"]
            self._divided = now, subtract(self.cost, sum_costs(revoking, now)), len(self.leases) - len(revoking)
        return share_of(self._divided[1], count, self._divided[2])

    @property
    def rank(self) -> tuple[Levels, int, int]:
        """The sort key of possible victims: cheapest first, then by slot, then in the order of submission."""
        slot_infos = self.index.cycle.slot_infos
        found = [slot_infos[lease.slot].order for lease in self.leases if lease.slot in slot_infos]
        return (self.cost, min(found, default=len(slot_infos)), self.reservation.sequence)

    @property
    def rest(self) -> int:
        """See `PreemptibleLease.rest`. Of equal victims, work that ends as a whole comes after elastic leases."""
        return 1

    @property
    def key(self) -> tuple[str, str | None]:
        """See `PreemptibleLease.key`."""
        return self.reservation.id, None


@dataclass(slots=True, eq=False)
class PreemptibleLease:
    """An elastic lease that a preemption may end alone, while its reservation stays leased."""

    work: RunningWork
    lease: Lease
    cost: Levels
    """Its share of the cost of the reservation."""
    rest: int
    """The position among victims of equal cost that end equally many leases: the last elastic instance of the
    reservation comes first. At most 0.
    """

    @property
    def key(self) -> tuple[str, str | None]:
        """(reservation id, component); the component is None for work that ends as a whole."""
        return self.work.reservation.id, self.lease.component

    @property
    def reservation(self) -> Reservation:
        """The reservation of the lease."""
        return self.work.reservation

    @property
    def leases(self) -> tuple[Lease]:
        """The leases that end."""
        return (self.lease,)

    @property
    def account(self) -> Account | None:
        """The account that pays for the lease."""
        return self.work.account

    @property
    def rank(self) -> tuple[Levels, int, int]:
        """See `RunningWork.rank`."""
        return (self.cost, self.work.index.cycle.slot_infos[self.lease.slot].order, self.reservation.sequence)


Victim: TypeAlias = RunningWork | PreemptibleLease
"""What a preemption may end: the work of a reservation as a whole, or one elastic lease."""


class RunningIndex:
    """The running work of all reservations of one view whose queue is `quota`, with the changes that the present cycle
    has made so far.

    An index may be used only while the rules are the same and no account was created or deleted: after such a change
    another account may pay for a reservation.
    """

    cycle: CycleState

    def __init__(self) -> None:
        self._runs: dict[str, RunningWork] = {}
        self._begun: list[tuple[str | None, Reservation, tuple[Lease, ...]]] = []
        """New work of this cycle that no step has read yet, as (account, reservation, leases). Speed: steps read almost
        none of it, so a `RunningWork` object is made only when a step reads the work.
        """
        self._worst_begun = 0
        """The worst level of the new work in `_begun` (0 is the best level); 0 if `_begun` is empty."""
        self._revision: int | None = None
        """The view's revision up to which the index contains its changes; None: the view has not been read yet."""
        self._of_slot: dict[str, tuple[str, ...]] = {}
        """Slot id -> ids of the reservations with leases on the slot, when the view was last read."""
        self._changed: set[str] = set()
        """Ids of the reservations whose work this cycle or the last one has changed. The next cycle computes their work
        again, even if their rows have not changed.
        """
        self._paid_by: dict[str, dict[str, RunningWork]] = {}
        self._at_level: list[dict[str, RunningWork]] = [{} for _ in range(FREE + 1)]
        self._added = 0
        """The number of pieces of work that cycles have added so far. It gives each new piece its `position`."""
        self._metered: Counter[tuple[str, int]] = Counter()
        """(account, level) -> the number of reservations for whose work the account pays at this level now."""

    def begin(self, cycle: CycleState) -> None:
        """Bring the index up to date: by the changes of the view, and by the leases that this cycle has ended or
        revoked so far.
        """
        self.cycle = cycle
        self._drop_begun()
        for name in self._read_all() if self._revision is None else self._read_changes():
            self._derive(name)
        self._revision, self._changed = cycle.view.revision, set()
        for name in cycle.over:
            if name in self.runs:
                self.end(name)
        for name in {name for name, _ in cycle.vacated}:
            if name in self.runs:
                self._drop_vacated(self.runs[name])
        for name, reservation in (cycle.returning | cycle.leaving).items():
            if name in self.runs and self.runs[name].state != "leaving":
                self.add(reservation, reservation.leases)

    def finish(self) -> None:
        """End the use of the index in this cycle. The next cycle computes the work again that this cycle changed."""
        self._drop_begun()
        del self.cycle

    def _read_all(self) -> list[str]:
        view = self.cycle.view
        self._of_slot = {slot: tuple({owner for owner, _ in leases}) for slot, leases in view.leases_on.items()}
        return [*view.by_phase["leased"], *view.by_phase["revoking"], *view.special]

    def _read_changes(self) -> set[str]:
        """Return the ids of the reservations whose work has to be computed again, because it may have changed since the
        last cycle began.
        """
        leases_on, names = self.cycle.view.leases_on, self._changed
        for slot in list_touched(self.cycle.view, self._revision or 0):
            names.update(self._of_slot.pop(slot, ()))
            if slot in leases_on:
                owners = self._of_slot[slot] = tuple({owner for owner, _ in leases_on[slot]})
                names.update(owners)
        return names

    def _derive(self, name: str) -> None:
        if name in self._runs:
            self._remove(name)
        row = self.cycle.view.reservations.get(name)
        if row is None or not row.leases or row.phase not in HOLDING:
            return
        if self.cycle.settings_of(row).queue == "quota":
            self._put(row, row.leases, "leaving" if row.phase == "revoking" else "held", (0, row.sequence))

    @property
    def runs(self) -> dict[str, RunningWork]:
        """Reservation id -> running work, for all running work."""
        self._look_at_begun()
        return self._runs

    def goes_on(self, victim: Victim) -> bool:
        """Return whether running work that was found earlier in this cycle, or the work of a lease, is still in the
        index, unchanged.
        """
        work = victim if isinstance(victim, RunningWork) else victim.work
        return self._runs.get(work.reservation.id) is work

    def take_parts(self, work: RunningWork, ending: Iterable[Lease], *, at_once: bool) -> None:
        """Record that these elastic leases of running work are preempted, and that their share was paid. `at_once`:
        they have ended; else they are revoking.
        """
        gone = {lease.component for lease in ending}
        cost = subtract(work.cost, work.share_cost(len(gone)))
        leases = [
            msgspec.structs.replace(lease, state="revoking", cost=NOTHING, charged_at=None)
            if lease.component in gone
            else lease
            for lease in work.leases
            if not (at_once and lease.component in gone)
        ]
        self._changed.add(work.reservation.id)
        self._remove(work.reservation.id)
        # `cost` has set `_cost_at` to the time of this cycle; the next one reads the work again.
        weight = work.weight - sum(lease.weight for lease in work.leases if lease.component in gone)
        self._enter(replace(work, leases=tuple(leases), weight=weight, _cost=cost, _divided=None))

    def _drop_vacated(self, run: RunningWork) -> None:
        """Leave out the elastic leases that this cycle has ended while the work goes on."""
        name, vacated = run.reservation.id, self.cycle.vacated
        self._changed.add(name)
        self._remove(name)
        if leases := tuple(each for each in run.leases if (name, each.component) not in vacated):
            self._put(run.reservation, leases, run.state, run.position)

    def _look_at_begun(self) -> None:
        for reservation, leases in self._drop_begun():
            self.add(reservation, leases)

    def _drop_begun(self) -> list[tuple[Reservation, tuple[Lease, ...]]]:
        begun, self._begun, self._worst_begun = self._begun, [], 0
        for payer, _, leases in begun:
            self._count(payer, leases[0].level, -1)
        return [(reservation, leases) for _, reservation, leases in begun]

    def begin_work(self, reservation: Reservation, leases: tuple[Lease, ...]) -> None:
        """Add the work of a reservation that had no leases, with the leases that this cycle assigns."""
        payer = self._find_payer(reservation)
        self._changed.add(reservation.id)
        self._begun.append((payer, reservation, leases))
        self._worst_begun = max(self._worst_begun, leases[0].level)
        self._count(payer, leases[0].level, 1)

    def _count(self, payer: str | None, level: int, change: int) -> None:
        if payer is not None:
            self._metered[payer, level] += change

    def _find_payer(self, reservation: Reservation) -> str | None:
        account = find_account(self.cycle.view.accounts, reservation.request.account, reservation.sequence)
        return None if account is None else account.id

    def add(self, reservation: Reservation, leases: tuple[Lease, ...]) -> RunningWork:
        """Add the work of a reservation with these leases. If the reservation has work already, the new work replaces
        it.
        """
        if reservation.id in self.runs:
            self._remove(reservation.id)
        self._changed.add(reservation.id)
        self._added += 1
        name, cycle = reservation.id, self.cycle
        is_leaving = reservation.phase == "revoking" or name in cycle.returning or name in cycle.leaving
        return self._put(reservation, leases, "leaving" if is_leaving else "held", (1, self._added))

    def _put(
        self, reservation: Reservation, leases: tuple[Lease, ...], state: RunState, position: tuple[int, int]
    ) -> RunningWork:
        if leases[0].state == "claimed":
            state = "claimed"
        # Elastic leases that are revoked alone cost nothing.
        weights = (lease.weight for lease in leases if state == "leaving" or lease.state != "revoking")
        run = RunningWork(
            index=self,
            reservation=reservation,
            payer=self._find_payer(reservation),
            level=leases[0].level,
            leases=leases,
            state=state,
            weight=leases[0].weight if len(leases) == 1 else sum(weights),
            position=position,
            is_metered=state != "leaving" or any(each.charged_at is not None for each in leases),
        )
        self._enter(run)
        return run

    def _enter(self, run: RunningWork) -> None:
        name = run.reservation.id
        self._runs[name] = self._at_level[run.level][name] = run
        if run.payer is not None:
            self._paid_by.setdefault(run.payer, {})[name] = run
            self._count(run.payer, run.level, run.is_metered)

    def _remove(self, name: str) -> None:
        run = self._runs.pop(name)
        del self._at_level[run.level][name]
        if run.payer is not None:
            del self._paid_by[run.payer][name]
            self._count(run.payer, run.level, -run.is_metered)

    def end(self, name: str) -> None:
        """Remove the work of a reservation, because its leases have ended."""
        self._changed.add(name)
        self._remove(name)

    def move(self, run: RunningWork, level: int) -> None:
        """Move running work to another level: its account pays at this level from now on."""
        name = run.reservation.id
        self._changed.add(name)
        self._remove(name)
        run.level = level
        self._runs[name] = self._at_level[level][name] = run
        if run.payer is not None:
            self._paid_by[run.payer][name] = run
            self._count(run.payer, level, run.is_metered)

    def list_paid_by(self, account: str) -> list[RunningWork]:
        """Return the work that an account pays for, in the order of submission."""
        self._look_at_begun()
        return sorted(self._paid_by.get(account, {}).values(), key=lambda run: run.position)

    def list_worse(self, level: int) -> Iterator[RunningWork]:
        """Yield the work of all accounts at levels worse than `level`, in no fixed order."""
        if self._worst_begun > level:
            self._look_at_begun()
        for runs in self._at_level[level + 1 :]:
            yield from runs.values()

    def has_work(self, account: str, level: int) -> bool:
        """Return whether the account pays for work at this level now."""
        return self._metered[account, level] > 0

    def has_worse(self, account: str, level: int) -> bool:
        """Return whether the account pays for work at a level worse than `level` now."""
        return any(self.has_work(account, other) for other in range(level + 1, FREE + 1))
