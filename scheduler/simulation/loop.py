"""The loop of a simulation: it advances the virtual clock, and runs the callbacks and ticks that are due. Callbacks are
what machines and holders do at a time.
"""

from collections.abc import Callable
from math import inf

from scheduler.model.validation import fault
from scheduler.operations.tick.leader import take_leader_term
from scheduler.operations.tick.tick import Ticked, carry_out, decide
from scheduler.simulation.cluster import SimulatedCluster

MOST_TICKS = 1000
"""The most ticks at one virtual time. If more are requested, each by the tick before, the loop is endless, and an error
is raised.
"""


class EventLoop:
    """Runs the callbacks and ticks that are due on one simulated cluster.

    `process_events`: a function that handles the new events of the history and returns whether there were any.
    `on_tick`: a function that is called with the result of each tick, before the events that the tick's writes caused
    are handled. `kicks`: whether requested ticks run; `wakes`: whether ticks run that are scheduled for a time.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        process_events: Callable[[], bool],
        on_tick: Callable[[Ticked], None],
        *,
        kicks: bool,
        wakes: bool,
    ) -> None:
        self._cluster, self._process_events, self._on_tick = cluster, process_events, on_tick
        self._kicks, self._wakes = kicks, wakes
        self.ticks = 0
        """Number of ticks that this simulation has run so far."""
        self.before_tick: Callable[[], None] = lambda: None
        """A function that is called before each tick of the simulation. Tests set it, for example to end a
        scheduler.
        """

    def next_instant(self) -> float:
        """Return the virtual time of the next callback or scheduled tick; infinity when there is none."""
        wake = self._cluster.dispatcher.due if self._wakes else None
        return min(self._cluster.event_queue.next_at, inf if wake is None else wake)

    def run_due(self) -> None:
        """Run the callbacks of machines and holders that are due now, and handle the events that they cause, until no
        callback is due.
        """
        self._cluster.event_queue.run_due()
        while self._process_events():
            self._cluster.event_queue.run_due()

    def tick_until_quiet(self, *, is_due: bool = False) -> None:
        """Run a tick if `is_due` or if one is requested or scheduled for now, and further ticks until none is
        requested.

        Raises InvalidInputError if that takes more than MOST_TICKS ticks at one virtual time.
        """
        wanted, before = is_due or self._is_rung(), self.ticks
        while wanted:
            if self.ticks - before >= MOST_TICKS:
                at = f"{MOST_TICKS} ticks at {self._cluster.event_queue.now:g} s"
                raise fault(
                    "config", "rules without an endless sequence of ticks (a hold or timeout of 0 may cause one)", at
                )
            self.tick()
            wanted = self._is_rung()

    def _is_rung(self) -> bool:
        kicked = self._kicks and self._cluster.notifier.is_rung
        due = self._cluster.dispatcher.due
        return kicked or (self._wakes and due is not None and due <= self._cluster.event_queue.now)

    def tick(self, between: Callable[[], None] = lambda: None) -> None:
        """Run one tick: take the leader term, plan, call `between`, then commit the decisions."""
        self.before_tick()
        ports, leader = self._cluster.ports, self._cluster.leader
        self._cluster.notifier.hear()
        self._cluster.dispatcher.due = None
        leader_term = take_leader_term(ports, leader)
        ticked = decide(ports, leader, leader_term)
        between()
        self._process_events()
        carry_out(ports, leader, leader_term, ticked)
        self.ticks += 1
        self._on_tick(ticked)
        self._process_events()
        self.run_due()
