"""Plays a scenario through the engine and computes, at each tick, what the naive tick would decide."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.model.decisions import (
    Assign,
    Cores,
    Decision,
    Drain,
    Expire,
    Launch,
    Plan,
    PlanStart,
    Requeue,
    Reset,
    Restart,
    Start,
    Stop,
    Terminate,
)
from tests.reference_model.expiring import list_wrong_expiries
from tests.reference_model.holding import History
from tests.reference_model.recording import Recorder
from tests.reference_model.tick import Reported, tick
from tests.rules.playing import Document
from tests.rules.watching import Seen, watch


class DifferenceError(Exception):
    """The two ticks do not agree: when, and the decisions of each."""

    def __init__(self, at: float, ports: Reported, naive: Reported, wrong: list[str]) -> None:
        self.at, self.ports, self.naive, self.wrong = at, ports, naive, wrong
        super().__init__(f"at {at:g}\n  engine: {_show(ports)}\n  naive:  {_show(naive)}\n  committed: {wrong}")


@dataclass
class Comparison:
    """Counts of what was compared, to show what the scenarios reach."""

    may_skip: bool = False
    """Whether an action happens between plans and their commits."""
    history: History = ()
    """The answers of the cloud so far."""
    ticks: int = 0
    reached: Counter[str] = field(default_factory=Counter)

    def look(self, seen: Seen) -> None:
        """Compare one tick. If no action happens between a plan and its commit, nothing may be skipped."""
        ports, naive = describe(seen.plan), tick(seen.before, seen.rules, seen.now, self.history[: seen.mark])
        self.ticks += 1
        self.reached.update(map(_kind, seen.plan.decisions))
        self.reached.update(f"waits {each.code}" for each in seen.plan.waiting)
        wrong = [] if self.may_skip else [*seen.skipped, *_list_wrong_expiries(seen)]
        if ports != naive or wrong:
            raise DifferenceError(seen.now, ports, naive, wrong)


def compare(document: Document, comparison: Comparison | None = None) -> None:
    """Play it to its end; raises DifferenceError for the first tick that they would not decide alike."""
    comparison = comparison or Comparison()
    comparison.may_skip = any(isinstance(each.get("tick"), dict) for each in document.get("timeline", []))
    recorder = Recorder()
    comparison.history = recorder.history
    watch(document, comparison.look, recorder.note_tick, prepare=recorder.attach)


def _list_wrong_expiries(seen: Seen) -> list[str]:
    """Reservations that were leased or are pending again; of several decisions about one the last one counts."""
    moved = {}
    for each in seen.plan.decisions:
        if isinstance(each, Assign | Restart) or (isinstance(each, Requeue) and each.revoke_by is None):
            moved[each.reservation] = isinstance(each, Assign)
    return list_wrong_expiries(seen.after, seen.rules, moved, seen.now)


def describe(plan: Plan) -> Reported:
    """Return the engine's plan in the words of the naive tick."""
    return Reported(list(map(_describe, plan.decisions)), [f"{each.reservation} {each.code}" for each in plan.waiting])


def _describe(decision: Decision) -> str:
    match decision:
        case Assign():
            given = (f"{each.component}={each.slot}{_sorted(each.resources)}" for each in decision.leases)
            words = ["assign", decision.reservation, *given]
        case Launch() | Start():
            words = [type(decision).__name__.lower(), decision.slot, decision.offering or "-", decision.reason]
        case Drain() | Terminate() | Reset() | Stop():
            words = [type(decision).__name__.lower(), decision.slot, decision.reason]
        case Cores():
            words = ["cores", decision.reservation, decision.component, decision.slot, f"{decision.cpus:.9g}"]
        case PlanStart():
            words = ["plan_start", decision.reservation, f"{decision.at:.9g}"]
        case Requeue() | Expire() if decision.revoke_by is not None:
            name = type(decision).__name__.lower()
            words = [name, decision.reservation, decision.reason, f"by {decision.revoke_by:g}"]
        case _:
            words = [type(decision).__name__.lower(), decision.reservation, getattr(decision, "reason", "")]
    return " ".join(words)


def _sorted(amounts: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(amounts.items()))


def _kind(decision: Decision) -> str:
    return f"{type(decision).__name__.lower()} {getattr(decision, 'reason', '')}".strip()


def _show(reported: Reported) -> str:
    return "; ".join([*reported.decisions, *(f"{each} (waits)" for each in reported.waiting)]) or "nothing"
