"""Step 4, order: the queue of those who wait, under the setting `queue`."""

from collections.abc import Callable

from scheduler.model.reservations import Reservation
from scheduler.policy.draft import Draft

Rank = Callable[[Reservation], tuple[float, ...]]


def _fifo(reservation: Reservation) -> tuple[float, ...]:
    return (reservation.created_at, reservation.sequence)


def _priority(reservation: Reservation) -> tuple[float, ...]:
    return (-reservation.priority, reservation.created_at, reservation.sequence)


def _size(reservation: Reservation) -> tuple[float, ...]:
    return (reservation.request.size, reservation.created_at, reservation.sequence)


RANKS: dict[str, Rank] = {"fifo": _fifo, "priority": _priority, "size": _size}
"""What sorts the queue; ties go to the older one, then to the order of submission."""


def order(draft: Draft) -> list[Reservation]:
    """The pending reservations, first one first; those who return to the queue keep their old place."""
    return sorted(draft.pending.values(), key=RANKS[draft.rules.scheduler.queue])
