"""The answer to `submit` reports a reservation that could never fit, by the rule that the tick uses.

Such a reservation is accepted nevertheless: changed rules or a larger host may make it fit.
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
"""Age up to which known slots may show that a request fits. That nothing fits is always decided on slots read now."""


@dataclass
class KnownSlots:
    """One slot of each kind, as this process read them last. Enough to decide what could fit a request."""

    slots: Sequence[Slot] = ()
    read_at: float | None = None

    def read(self, store: Store) -> None:
        """Read the slots again."""
        self.read_at = monotonic()
        self.slots = list({_kind_of(slot): slot for slot in store.find_slots()}.values())

    def is_young(self) -> bool:
        """Return whether the slots were read less than KNOWN_SECONDS ago."""
        return self.read_at is not None and monotonic() - self.read_at < KNOWN_SECONDS


def _kind_of(slot: Slot) -> tuple[object, ...]:
    held = None if slot.resources is None else tuple(slot.resources.items())
    return slot.pool, slot.state in INACTIVE, slot.offering, held, tuple(slot.labels.items())


def foresee_misfits(store: Store, known: KnownSlots, rules: Rules, rows: Iterable[Reservation]) -> dict[str, Reason]:
    """Return the new reservations that no slot or offering could ever fit, by id, with the waiting code and sentence.

    Offerings are tried first, without any slot. Slots are read only for the reservations that fit no offering.
    """
    asked = list(rows)
    found = find_misfits(asked, known.slots if known.is_young() else (), rules)
    if not found:
        return found
    known.read(store)
    return find_misfits([row for row in asked if row.id in found], known.slots, rules)
