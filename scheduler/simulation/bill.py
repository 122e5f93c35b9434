"""What the machines of a simulation cost, by pool, offering and market."""

from typing import Final

import msgspec

from scheduler.model.slots import Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.market import find_type
from scheduler.simulation.price_walk import HOUR

_DIGITS: Final = 6
"""Decimals of the hours and dollars of a bill."""


class BillLine(msgspec.Struct, frozen=True):
    """One line of a bill: the hours of all machines of one offering, and what they cost at the price of each moment in
    the simulated market. If the market has no price for the type of a machine, the price at its launch counts.
    """

    pool: str
    offering: str
    market: str
    hours: float
    dollars: float


class Bill:
    """Adds up the costs of the machines that a simulation launches. A machine counts from the cloud's answer to its
    launch until its slot terminates or stops, that is, until the request for the end of the machine.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._open: dict[str, tuple[Slot, float]] = {}
        """Slot -> (its row when its present machine was launched, the time of the launch)."""
        self._sums: dict[tuple[str, str, str], tuple[float, float]] = {}

    def note_slot(self, slot: Slot | None, name: str) -> None:
        """Update the bill after the slot with the id `name` changed; `slot` is None if the slot was deleted."""
        now = self._cluster.event_queue.now
        known = self._open.get(name)
        has_machine = slot is not None and slot.state in WITH_MACHINE and slot.instance_id is not None
        is_same = known is not None and has_machine and slot is not None and slot.instance_id == known[0].instance_id
        if known is not None and not is_same:
            self._add(self._sums, *self._open.pop(name), now)
        if slot is not None and has_machine and not is_same and self._is_launched(slot):
            self._open[name] = slot, now

    def _is_launched(self, slot: Slot) -> bool:
        pool = self._cluster.ports.rules().pools.get(slot.pool)
        return pool is not None and pool.is_elastic

    def _add(self, sums: dict[tuple[str, str, str], tuple[float, float]], slot: Slot, since: float, now: float) -> None:
        market, kind = self._cluster.cloud.market, find_type(slot, self._cluster.ports.rules())
        hours, bought = (now - since) / HOUR, slot.market or ""
        dollars = market.sum_price(kind, bought, since, now) if market is not None and kind is not None else None
        key = slot.pool, slot.offering or "", bought
        before = sums.get(key, (0.0, 0.0))
        sums[key] = before[0] + hours, before[1] + (hours * (slot.price or 0.0) if dollars is None else dollars)

    def list_lines(self) -> tuple[BillLine, ...]:
        """Return the lines of the bill up to now, sorted by pool, offering and market."""
        sums, now = dict(self._sums), self._cluster.event_queue.now
        for slot, since in self._open.values():
            self._add(sums, slot, since, now)
        return tuple(
            BillLine(*key, round(hours, _DIGITS), round(dollars, _DIGITS))
            for key, (hours, dollars) in sorted(sums.items())
        )
