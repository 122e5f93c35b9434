"""A player that shows every tick: the plan, its result, and the plan of the next tick."""

from collections.abc import Callable
from typing import Any

from scheduler.model.decisions import Plan
from scheduler.model.rules import Rules
from scheduler.model.view import Row, View
from scheduler.model.waits import Waits
from scheduler.operations.tick.tick import Ticked
from scheduler.policy.plan import plan
from scheduler.simulation.loop import EventLoop
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from tests.rules.playing import Document

Look = Callable[["Seen"], None]


class Seen:
    """One tick: the rows before and after its commit, its rules, its time, its plan and what was skipped."""

    def __init__(self, before: list[Row], rules: Rules) -> None:
        self.before, self.rules = before, rules
        self.after: list[Row] = []
        self.now = 0.0
        self.mark = 0
        """For whoever keeps a history: how long it was when the tick began."""
        self.plan: Plan = Plan((), Waits(), None)
        self.skipped: list[str] = []

    @property
    def view_after(self) -> View:
        """The rows right after the commit, as a view."""
        return View(self.after)

    def replan(self, rows: list[Row], now: float) -> Plan:
        """The decisions of a tick on these rows."""
        return plan(View(rows), self.rules, now)


class _WatchedLoop(EventLoop):
    """Reports when a tick begins."""

    begin: Callable[[], None]

    def tick(self, between: Callable[[], None] = lambda: None) -> None:
        self.begin()
        super().tick(between)


class WatchedPlayer(Runner):
    """Plays a scenario and shows each of its ticks to `look`, before the cloud answers."""

    def __init__(self, document: Document, look: Look) -> None:
        self._look = look
        scenario = read_scenario(document)
        super().__init__(scenario)
        self._loop = _WatchedLoop(
            self.cluster, self._process_events, self._on_tick, kicks=scenario.kicks, wakes=scenario.wakes
        )
        self._loop.begin = self._begin
        self.make_mark: Callable[[], int] = lambda: 0

    def _begin(self) -> None:
        self._present = Seen(
            list(self.cluster.store.read_rows()), self.cluster.ports.rules_at(self.cluster.event_queue.now).rules
        )
        self._present.mark = self.make_mark()

    def _describe_tick(self, ticked: Ticked) -> dict[str, Any]:
        seen = self._present
        seen.now, seen.plan, seen.rules = ticked.now, ticked.plan, ticked.rules  # with what was spent of budgets
        seen.skipped = [each.reason for each in ticked.skipped]
        seen.after = list(self.cluster.store.read_rows())
        self._look(seen)
        return super()._describe_tick(ticked)


def watch(document: Document, *looks: Look, prepare: Callable[[WatchedPlayer], None] = lambda _: None) -> Runner:
    """Play a scenario to its end, and show every tick; `prepare` gets the player before that."""

    def look(seen: Seen) -> None:
        for each in looks:
            each(seen)

    player = WatchedPlayer(document, look)
    prepare(player)
    for _ in player.play():
        pass
    return player
