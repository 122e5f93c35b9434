"""The clockwork: which instant comes next, what falls due in it, and the ticks that are asked for. Whatever is played
on the stage, a scenario or a trace, is played by it.
"""

from collections.abc import Callable
from math import inf

from scheduler.model.validation import fault
from scheduler.operations.tick.tick import Ticked, carry_out, decide, take_leader_term
from scheduler.simulation.cluster import SimulatedCluster

MOST_TICKS = 1000
"""Ticks of one instant, each asked for by the one before; more than that never end."""


def _nothing() -> None:
    pass


class EventLoop:
    """Runs what is due and ticks, on one stage.

    `tell` hands on the events that are new, and says whether there were any; `told` is called with each tick, between
    its events and those that it causes.
    """

    def __init__(
        self,
        stage: SimulatedCluster,
        tell: Callable[[], bool],
        told: Callable[[Ticked], None],
        *,
        kicks: bool,
        wakes: bool,
    ) -> None:
        self._stage, self._tell, self._told = stage, tell, told
        self._kicks, self._wakes = kicks, wakes
        self.ticks = 0
        """How many were played."""
        self.before_tick: Callable[[], None] = _nothing
        """What befalls the schedulers before each tick: nothing, unless a test wants them to die."""

    def next_instant(self) -> float:
        """When something falls due; infinity when nothing does."""
        wake = self._stage.dispatcher.due if self._wakes else None
        return min(self._stage.agenda.next_at, inf if wake is None else wake)

    def run_due(self) -> None:
        """State changes of this instant, and what the holders do about them, until nothing is due."""
        self._stage.agenda.run_due()
        while self._tell():
            self._stage.agenda.run_due()

    def tick_until_quiet(self, *, is_due: bool = False) -> None:
        """The tick of this instant, if one is due or asked for, and more of them until it is quiet."""
        wanted, before = is_due or self._is_rung(), self.ticks
        while wanted:
            if self.ticks - before >= MOST_TICKS:
                at = f"{MOST_TICKS} ticks at {self._stage.agenda.now:g} s"
                raise fault("config", "rules that come to rest (a hold or timeout of 0 may never do)", at)
            self.tick()
            wanted = self._is_rung()

    def _is_rung(self) -> bool:
        kicked = self._kicks and self._stage.notifier.is_rung
        due = self._stage.dispatcher.due
        return kicked or (self._wakes and due is not None and due <= self._stage.agenda.now)

    def tick(self, between: Callable[[], None] = _nothing) -> None:
        """One scheduling pass, in the two halves of `operations.tick`, with something in between."""
        self.before_tick()
        ports, leader = self._stage.ports, self._stage.leader
        self._stage.notifier.hear()
        self._stage.dispatcher.due = None
        leader_term = take_leader_term(ports, leader)
        ticked = decide(ports, leader, leader_term)
        between()
        self._tell()
        carry_out(ports, leader, leader_term, ticked)
        self.ticks += 1
        self._told(ticked)
        self._tell()
        self.run_due()
