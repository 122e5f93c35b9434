"""Lanes: the histories of single slots in a simulation, as their states and loads over the virtual clock. The memory
for all lanes is limited by the constants below.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from scheduler.model.slots import slot_order
from scheduler.model.transitions import SLOT_STATES

MOST_LANES: Final = 96
"""The most slots whose histories are recorded. The slots that are used first are chosen."""
MOST_STEPS: Final = 4000
"""The most steps (see Step) that the lanes of all slots together may have. If there are more, the lanes have no steps;
then they have only cells (see MOST_CELLS).
"""
MOST_CELLS: Final = 512
"""The most cells of one slot. A cell is a period of the virtual clock; all periods of all slots have the same
length.
"""
MOST_HOLDERS: Final = 8
"""The most ids of reservations in `Step.holders`."""
FULL: Final = 9
"""The digit that a cell has if the whole slot was used."""
ABSENT: Final = "empty"
"""The state of a slot before it is created and after it is deleted."""


class Step(msgspec.Struct, frozen=True):
    """A period in which nothing changed on a slot. `begin` and `end`: seconds. `load`: the used share of the slot, from
    0 to 1. `holders`: ids of reservations with leases on the slot, at most MOST_HOLDERS.
    """

    begin: float
    end: float
    state: str
    load: float
    holders: tuple[str, ...] = ()


class Lane(msgspec.Struct, frozen=True):
    """The history of one slot. `steps` has a step for each period without a change; it is empty if there were more than
    MOST_STEPS changes.

    `states` and `loads` describe the whole history in cells (periods of equal length) by one digit each. A digit of
    `states` is the index in SLOT_STATES of the state that lasted longest in the cell. A digit of `loads` is the mean
    load in this state, from 0 (nothing is used) to 9 (all).
    """

    slot: str
    pool: str
    steps: tuple[Step, ...]
    states: str
    loads: str


class Lanes(msgspec.Struct, frozen=True):
    """The histories of slots. `width`: how many seconds a cell of `Lane.states` and `Lane.loads` covers. `used`: the
    number of slots that were ever used; if it is more than the number of lanes, the slots that were used later were not
    recorded. `is_exact`: whether `Lane.steps` has each step of the slots; False: there were too many, and it is empty.
    """

    lanes: tuple[Lane, ...]
    width: float
    used: int
    is_exact: bool


class _Life:
    """The history of one slot so far. The slot's present state began at the time `since`. The seconds since then are
    not yet counted in the cells (periods of equal length), which are the entries of `seconds` and `loads`.
    """

    __slots__ = ("holders", "load", "loads", "pool", "seconds", "since", "state", "steps")

    def __init__(self, pool: str, now: float) -> None:
        self.pool, self.since = pool, now
        self.state, self.load = ABSENT, 0.0
        self.holders: tuple[str, ...] = ()
        self.steps: list[Step] = []
        self.seconds: dict[str, array[float]] = {state: array("d") for state in SLOT_STATES}
        """State -> for each cell, how many seconds the slot was in this state within the cell."""
        self.loads: dict[str, array[float]] = {state: array("d") for state in SLOT_STATES}
        """State -> for each cell, the integral of the load over the seconds in this state."""

    def fill(self, end: float, width: float) -> None:
        """Count the present state and load, from `since` until `end`, in the cells: add to each cell the seconds of
        this period that are within the cell. `width`: seconds of a cell.
        """
        first, last = int(self.since / width), int(end / width)
        seconds, loads = self.seconds[self.state], self.loads[self.state]
        if last >= len(seconds):
            missing = [0.0] * (last + 1 - len(seconds))
            seconds.extend(missing)
            loads.extend(missing)
        for index in range(first, last + 1):
            inside = min(end, (index + 1) * width) - max(self.since, index * width)
            seconds[index] += inside
            loads[index] += inside * self.load

    def merge(self) -> None:
        """Merge the cells in pairs, so that a cell covers twice the time."""
        for table in (self.seconds, self.loads):
            for state, values in table.items():
                if len(values) % 2:
                    values.append(0.0)
                pairs = range(0, len(values), 2)
                table[state] = array("d", (values[index] + values[index + 1] for index in pairs))

    def write_cells(self) -> tuple[str, str]:
        """Return the states and the loads of the cells up to now, each as a text of digits, as in Lane."""
        count = max(map(len, self.seconds.values()))
        cells = [self._choose(index) for index in range(count)]
        return "".join(str(state) for state, _ in cells), "".join(str(load) for _, load in cells)

    def _choose(self, index: int) -> tuple[int, int]:
        spent = {state: values[index] for state, values in self.seconds.items() if index < len(values)}
        state = max(spent, key=lambda name: spent[name])
        load = self.loads[state][index] / spent[state] if spent[state] > 0 else 0.0
        return SLOT_STATES.index(state), max(1, round(load * FULL)) if load > 0 else 0


class LaneRecorder:
    """Records the histories of the slots that are used first. Times are seconds on the virtual clock and never
    decrease.
    """

    def __init__(self, most_lanes: int = MOST_LANES, most_steps: int = MOST_STEPS, width: float = 0.25) -> None:
        self._most_lanes, self._left, self._width = most_lanes, most_steps, width
        self._lives: dict[str, _Life] = {}
        self._used: set[str] = set()

    def note(self, slot: str, pool: str, state: str, load: float, holders: Iterable[str], now: float) -> None:
        """Record that the slot is in this state with this load from now on. `load`: the used share of the slot, from 0
        to 1. `holders`: ids of the reservations with leases on the slot.
        """
        if state != ABSENT:
            self._used.add(slot)
        life = self._lives.get(slot)
        if life is None:
            if state == ABSENT or len(self._lives) >= self._most_lanes:
                return
            life = self._lives[slot] = _Life(pool, now)
        named = tuple(holders)[:MOST_HOLDERS]
        if (life.state, life.load, life.holders) != (state, load, named):
            self._close(life, now)
            life.state, life.load, life.holders, life.since = state, load, named, now

    def _close(self, life: _Life, now: float) -> None:
        if now <= life.since:
            return
        while now >= self._width * MOST_CELLS:
            self._width *= 2
            for each in self._lives.values():
                each.merge()
        life.fill(now, self._width)
        if self._left > 0 and life.state != ABSENT:
            self._left -= 1
            life.steps.append(Step(life.since, now, life.state, life.load, life.holders))

    def finish(self, now: float, pools: Sequence[str] = ()) -> Lanes:
        """Return the recorded histories up to now, sorted by pool (in the order of `pools`) and number of the slot."""
        for life in self._lives.values():
            self._close(life, now)
            life.since = now
        is_exact = self._left > 0
        order = {pool: number for number, pool in enumerate(pools)}
        names = sorted(
            self._lives,
            key=lambda name: (order.get(self._lives[name].pool, len(order)), self._lives[name].pool, slot_order(name)),
        )
        lanes = (
            Lane(name, life.pool, tuple(life.steps) if is_exact else (), *life.write_cells())
            for name in names
            for life in (self._lives[name],)
        )
        return Lanes(tuple(lanes), self._width, len(self._used), is_exact)
