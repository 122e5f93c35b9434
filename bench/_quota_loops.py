"""A simple planner of quota scheduling with floats, lists and nested loops.

For each level it tries every slot with every waiting reservation until one fits. It takes the sums of a charge from
the product's own functions.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from bench._carrying import charge_account
from scheduler.model.accounts import FREE, PAID, Levels, add, level_of, subtract
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.quota.accounting import settle


@dataclass(frozen=True)
class _Victim:
    """Work that runs, and what it has cost so far."""

    cost: Levels
    slot: Slot
    level: int
    row: Reservation


def place_by_loops(view: View, now: float) -> dict[str, tuple[str, int]]:
    """Reservation -> (slot, level), for slots of one lease, accounts without limits, work that stays at its level."""
    balances = {name: charge_account(view, account, now).balance for name, account in view.accounts.items()}
    waiting = _list_waiting(view, balances)
    held = {slot_id for slot_id, leases in view.leases_on.items() if leases}
    idle = [slot for slot in _in_order(view.slots.values()) if slot.id not in held]
    victims = _list_victims(view, now)
    found: dict[str, tuple[str, int]] = {}
    for level in (*PAID, FREE):
        for is_preferred in (True, False):
            idle = [slot for slot in idle if not _give(slot, waiting[level], level, found, is_preferred=is_preferred)]
        if level != FREE:
            victims = _preempt(waiting[level], victims, level, found, balances)
    return found


def _list_waiting(view: View, balances: dict[str, Levels]) -> dict[int, list[Reservation]]:
    """Return the waiting reservations by level: those with most labels first, then the oldest."""
    waiting: dict[int, list[Reservation]] = {level: [] for level in (*PAID, FREE)}
    pending = view.by_phase["pending"].values()
    for row in sorted(pending, key=lambda row: (-len(row.request.labels), row.created_at, row.sequence)):
        account = row.request.account
        waiting[level_of(balances[account]) if account else FREE].append(row)
    return waiting


def _in_order(slots: Iterable[Slot]) -> list[Slot]:
    return sorted(slots, key=_number)


def _number(slot: Slot) -> int:
    return int(slot.id.split("-")[-1])


def _give(
    slot: Slot, waiting: list[Reservation], level: int, found: dict[str, tuple[str, int]], *, is_preferred: bool
) -> bool:
    """Give the slot to the first reservation that may have it. Return whether there was one.

    `is_preferred`: only a reservation whose preferred labels the slot has may have it.
    """
    for index, row in enumerate(waiting):
        if _has(slot, row.request.labels) and (not is_preferred or _has(slot, row.request.prefers)):
            found[row.id] = (slot.id, level)
            del waiting[index]
            return True
    return False


def _has(slot: Slot, labels: dict[str, str]) -> bool:
    for name, value in labels.items():  # noqa: SIM110 a generator takes twice as long, and this is most of the work
        if slot.labels.get(name) != value:
            return False
    return True


def _list_victims(view: View, now: float) -> list[_Victim]:
    """Cheapest first, then slot order."""
    running = [(lease, row) for row in view.by_phase["leased"].values() for lease in row.leases]
    found = [_Victim(settle(lease, now).cost, view.slots[lease.slot], lease.level, row) for lease, row in running]
    return sorted(found, key=lambda each: (each.cost, _number(each.slot)))


def _preempt(
    waiting: list[Reservation],
    victims: list[_Victim],
    level: int,
    found: dict[str, tuple[str, int]],
    balances: dict[str, Levels],
) -> list[_Victim]:
    """Let each victim of a worse level be preempted by the first reservation whose account may and can pay for it.

    Return the remaining victims.
    """
    barred = {each.row.request.account for each in victims if each.level > level}
    left = []
    for victim in victims:
        index = None
        if victim.level > level and victim.row.request.preemptible:
            index = _find_payer(waiting, victim, barred, balances)
        if index is None:
            left.append(victim)
            continue
        row, loser = waiting.pop(index), victim.row.request.account
        found[row.id] = (victim.slot.id, level)
        payer = row.request.account or ""
        balances[payer] = subtract(balances[payer], victim.cost)
        if loser:
            balances[loser] = add(balances[loser], victim.cost)
    return left


def _find_payer(
    waiting: list[Reservation], victim: _Victim, barred: set[str | None], balances: dict[str, Levels]
) -> int | None:
    for index, row in enumerate(waiting):
        account = row.request.account
        may = account not in barred and _has(victim.slot, row.request.labels)
        if may and account and victim.cost < balances[account]:
            return index
    return None
