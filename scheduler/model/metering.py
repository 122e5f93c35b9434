"""Which interval of the cost ledger a slot's machine is in, and how a change of the slot ends it."""

from collections.abc import Iterable
from typing import Final

import msgspec

from scheduler.model.costs import Cost, CostKind, Meter, measure
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING, INACTIVE, WITH_MACHINE

METERED: Final = WITH_MACHINE | {"terminating", "stopped"}
"""States in which a slot's machine costs money: from the cloud's answer to the launch until the cloud reported the end
of the machine. A stopped machine costs its storage.
"""


def find_kind(slot: Slot) -> CostKind | None:
    """Return what the machine of a slot does at present; None: the slot has no machine that is known.

    A slot that terminates before the cloud answered its launch has no machine, as long as none is found.
    """
    if slot.state not in METERED or (slot.instance_id is None and slot.machine is None):
        return None
    if slot.interrupted_at is not None:
        return "interrupted"
    if slot.state in HOLDING and slot.idle_since is None:
        return "used"
    match slot.state:
        case "ready":
            return "idle"
        case "draining" | "terminating":
            return "draining"
        case "stopped":
            return "stopped" if slot.power is None else "draining"
        case _:
            return "booting"


def find_present_price(slot: Slot) -> float:
    """Return the price per hour of a slot's machine in its present state, in dollars: that of its storage if it is
    stopped. 0: it is unknown, or the slot has no machine.
    """
    if slot.state in INACTIVE:
        return 0.0
    return (slot.storage_price if slot.state == "stopped" else slot.price) or 0.0


def meter_slots(changed: Iterable[Slot], deleted: Iterable[Slot], now: float) -> tuple[list[Slot], list[Cost]]:
    """Close the intervals of the ledger that changes of slots end, and open the next ones.

    Return those of the `changed` slots that get another meter, with that meter, and the costs of the closed intervals.
    """
    metered, closed = [], []
    for slot in changed:
        following, costs = meter_slot(slot, now)
        if following is not slot:
            metered.append(following)
        closed += costs
    for slot in deleted:
        closed += meter_slot(msgspec.structs.replace(slot, state="empty"), now)[1]
    return metered, closed


def meter_slot(slot: Slot, now: float) -> tuple[Slot, list[Cost]]:
    """Return the slot with the meter that fits its present fields, and the costs of the interval that this closed.

    Nothing is closed if kind, offering, account and price stay. An interval never ends before its begin, even if the
    transaction of its end began earlier than that of its begin: the next one begins where it ends.
    """
    kind, known = find_kind(slot), slot.meter
    at = now if known is None else max(now, known.since)
    meter = None
    if kind is not None:
        price = slot.storage_price if kind == "stopped" else slot.price
        meter = Meter(at, kind, slot.offering or "", slot.launched_for or "", price)
        if known is not None and msgspec.structs.replace(meter, since=known.since) == known:
            return slot, []
    elif known is None:
        return slot, []
    closed = [] if known is None else list(measure(slot.pool, known, at))
    return msgspec.structs.replace(slot, meter=meter), closed
