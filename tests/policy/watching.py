"""A player that looks at every tick: at what was planned, at what came of it, and at what the next would do."""

from collections.abc import Callable
from typing import Any

from scheduler.model.decisions import Plan
from scheduler.model.rules import Rules
from scheduler.model.view import Row, View
from scheduler.operations.tick import Ticked
from scheduler.policy.plan import plan
from scheduler.simulation.play import Player
from scheduler.simulation.scenario import Step, read_scenario
from tests.scenarios.playing import Document

Look = Callable[["Seen"], None]


class Seen:
    """One tick: the rows before and after its commit, its rules, its time, its plan and what was skipped."""

    def __init__(self, before: list[Row], rules: Rules) -> None:
        self.before, self.rules = before, rules
        self.after: list[Row] = []
        self.now = 0.0
        self.plan: Plan = Plan((), (), None)
        self.skipped: list[str] = []

    @property
    def view_after(self) -> View:
        """The truth right after the commit, as a view."""
        return View(self.after)

    def replan(self, rows: list[Row], now: float) -> Plan:
        """What a tick on these rows would decide."""
        return plan(View(rows), self.rules, now)


class WatchedPlayer(Player):
    """Plays a scenario and shows each of its ticks to `look`, before the cloud answers."""

    def __init__(self, document: Document, look: Look) -> None:
        self._look = look
        super().__init__(read_scenario(document))

    def _tick(self, between: tuple[Step, ...]) -> None:
        self._present = Seen(list(self.stage.store.read_rows()), self.stage.engine.rules())
        super()._tick(between)

    def _describe_tick(self, ticked: Ticked) -> dict[str, Any]:
        seen = self._present
        seen.now, seen.plan = ticked.now, ticked.plan
        seen.skipped = [each.reason for each in ticked.skipped]
        seen.after = list(self.stage.store.read_rows())
        self._look(seen)
        return super()._describe_tick(ticked)


def watch(document: Document, *looks: Look) -> Player:
    """Play a scenario to its end, every tick looked at."""

    def look(seen: Seen) -> None:
        for each in looks:
            each(seen)

    player = WatchedPlayer(document, look)
    for _ in player.play():
        pass
    return player
