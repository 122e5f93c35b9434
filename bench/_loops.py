"""Two simple planners as nested loops, which place by the same rules as the plan."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench._fleets import Fleet
from scheduler.model.pools import Pool
from scheduler.model.reservations import Request, Reservation
from scheduler.model.slots import Slot


@dataclass
class _Worker:
    """A slot with what is left of it."""

    slot: Slot
    pool: Pool
    order: int
    leases: int
    free: dict[str, float] | None


def place_by_first_fit(fleet: Fleet) -> dict[str, str]:
    """The autoscaler's page: for each reservation the first slot in the list that has room."""
    workers = _open_workers(fleet)
    found = {}
    for reservation in _queue(fleet):
        for worker in workers:
            if _has_room(worker, reservation):
                found[reservation.id] = _give(worker, reservation)
                break
    return found


def place_by_sorting(fleet: Fleet) -> dict[str, str]:
    """Orchard's page: for each reservation all workers are sorted, and the first with room is taken."""
    workers = _open_workers(fleet)
    found = {}
    for reservation in _queue(fleet):
        for worker in sorted(workers, key=partial(_rank, reservation.request)):
            if _has_room(worker, reservation):
                found[reservation.id] = _give(worker, reservation)
                break
    return found


def _rank(request: Request, worker: _Worker) -> tuple[int, int, int, int]:
    """Most preferred labels, fewest beyond those required, most leases, slot order."""
    labels = worker.slot.labels
    preferred = sum(labels.get(name) == value for name, value in request.prefers.items())
    surplus = sum(name not in request.labels for name in labels)
    return (-preferred, surplus, -worker.leases, worker.order)


LOOPS: dict[str, Callable[[Fleet], dict[str, str]]] = {"first_fit": place_by_first_fit, "sorting": place_by_sorting}


def _open_workers(fleet: Fleet) -> list[_Worker]:
    """Pools as configured, slots by number, as the plan has them."""
    ordered = sorted(
        fleet.slots, key=lambda slot: (list(fleet.rules.pools).index(slot.pool), int(slot.id.split("-")[-1]))
    )
    return [
        _Worker(slot, fleet.rules.pools[slot.pool], index, 0, dict(slot.resources) if slot.resources else None)
        for index, slot in enumerate(ordered)
        if slot.state == "ready"
    ]


def _queue(fleet: Fleet) -> list[Reservation]:
    return sorted(fleet.reservations, key=lambda each: (each.created_at, each.sequence))


def _has_room(worker: _Worker, reservation: Reservation) -> bool:
    request = reservation.request
    if worker.pool.system != request.system or worker.leases >= worker.pool.lease_limit:
        return False
    if any(worker.slot.labels.get(name) != value for name, value in request.labels.items()):
        return False
    free = worker.free
    return free is None or all(amount <= free.get(name, 0) for name, amount in _asked(worker, reservation).items())


def _give(worker: _Worker, reservation: Reservation) -> str:
    worker.leases += 1
    if worker.free is not None:
        for name, amount in _asked(worker, reservation).items():
            worker.free[name] -= amount
    return worker.slot.id


def _asked(worker: _Worker, reservation: Reservation) -> dict[str, float]:
    return {**worker.pool.default_resources, **reservation.request.components[0].resources}
