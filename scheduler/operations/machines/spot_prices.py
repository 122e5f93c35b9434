"""Follows spot prices: the cost ledger bills a running spot machine at the price of each hour."""

from typing import Final

from scheduler.model.costs import begin_of_hour
from scheduler.model.transitions import WITH_MACHINE
from scheduler.operations.ports import Ports, announce, cloud_work

MOST_SLOTS: Final = 500
"""The most slots that one transaction gives another spot price."""


def follow_spot_prices(ports: Ports) -> int:
    """Let the cost ledger bill running spot machines at the spot price that held when this hour began. Return the
    number of machines whose price changed.

    Machines that were launched in this hour keep the price of their launch, and so do machines whose price the history
    of prices lacks. The prices of slots stay, because budgets count them.
    """
    hour = begin_of_hour(ports.store.now())
    spots = [
        slot
        for slot in ports.store.find_slots(states=sorted(WITH_MACHINE))
        if slot.market == "spot" and slot.meter is not None and slot.meter.price
        if slot.launched_at is not None and slot.launched_at < hour
    ]
    history = ports.store.read_price_changes(sorted({slot.instance_type for slot in spots if slot.instance_type}))
    prices: dict[tuple[str | None, str | None], float] = {}
    for change in sorted(history, key=lambda each: each.hour):
        if change.market == "spot" and change.hour < hour:
            prices[change.type, change.zone] = change.price
    changed = {
        slot.id: price
        for slot in spots
        if slot.meter is not None and (price := prices.get((slot.instance_type, slot.zone))) is not None
        if price != (slot.meter.price if slot.meter.spot is None else slot.meter.spot)
    }
    names = sorted(changed)
    for first in range(0, len(names), MOST_SLOTS):
        with cloud_work(ports) as work:
            work.slots = work.transaction.load_slots(names[first : first + MOST_SLOTS])
            for slot in list(work.slots.values()):
                if slot.meter is not None and slot.market == "spot" and slot.state in WITH_MACHINE:
                    work.note_prices(slot, spot=changed[slot.id])
            change_set = work.flush()
        announce(ports, change_set, kick=False)
    return len(changed)
