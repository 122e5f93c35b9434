"""What never fits is told at the door: with the answer to `submit`, by the same rule as in the tick.

Such a reservation is accepted all the same: changed rules or a larger host may make room for it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from scheduler.model.decisions import Reason
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE
from scheduler.policy.queueing.feasibility import find_misfits
from scheduler.ports import Store

KNOWN_SECONDS: Final = 10.0
"""So old may be what is known of the slots where it says that something fits. That nothing does is never old."""


@dataclass
class KnownSlots:
    """One slot of each kind that there is, as this process read them last: enough to say what could hold a request."""

    slots: Sequence[Slot] = ()
    read_at: float | None = None

    def read(self, store: Store) -> None:
        """Read them anew."""
        self.read_at = monotonic()
        self.slots = list({_kind_of(slot): slot for slot in store.find_slots()}.values())

    def is_young(self) -> bool:
        """Whether they were read a moment ago."""
        return self.read_at is not None and monotonic() - self.read_at < KNOWN_SECONDS


def _kind_of(slot: Slot) -> tuple[object, ...]:
    held = None if slot.resources is None else tuple(slot.resources.items())
    return slot.pool, slot.state in INACTIVE, slot.offering, held, tuple(slot.labels.items())


def foresee_misfits(store: Store, known: KnownSlots, rules: Rules, rows: Iterable[Reservation]) -> dict[str, Reason]:
    """By id: the new reservations that no slot or offering could ever hold as things are, and what is told of them.

    What an offering could hold is asked without looking at any slot; slots are read for the others alone.
    """
    asked = list(rows)
    found = find_misfits(asked, known.slots if known.is_young() else (), rules)
    if not found:
        return found
    known.read(store)
    return find_misfits([row for row in asked if row.id in found], known.slots, rules)
