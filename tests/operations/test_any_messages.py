"""Whatever is sent in whatever order, twice, late or with somebody else's token: what a request may do holds of each.

Generated stories on the operations: producers, holders and earlier holders speak, ticks and the cloud come in between,
messages are repeated and swapped. After every message the rules below are looked at on the rows of SQL.
"""

import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.reservations import Reservation
from scheduler.model.transitions import ENDED
from scheduler.operations.commands.intake import Answer, accept
from scheduler.operations.commands.lease_commands import interrupt
from scheduler.operations.unit_of_work import UnitOfWork
from tests.operations.harness import Harness

# As in tests/rules/test_plans.py.
pytestmark = pytest.mark.no_cover
HELD = {"leased", "revoking"}
NAMES = ("r1", "r2", "r3")
ABOUT_A_LEASE = ("release", "renew", "confirm", "fail", "decline", "surrender")
"""A holder's words: each carries the token."""
OTHERS = ("cancel", "suspend", "resume", "priority")
MARKS = {"renew", "confirm"}
CONFIG: dict[str, Any] = {
    "scheduler": {"confirm_timeout": 30, "interruption_grace": 20, "restart_delay": 5},
    "pools": {
        "linux": {
            "system": "x86_64-linux",
            "max_slots": 2,
            "max_leases_per_slot": 2,
            "lease_ttl": 120,
            "idle_scale_down": 10,
        }
    },
}
Token = Literal["current", "earlier", "another's", "of a lease to come", "none"]
TOKENS: tuple[Token, ...] = ("current", "current", "earlier", "another's", "of a lease to come", "none")


class Ask(NamedTuple):
    """A new request; `restarts` is a submitted one's policy."""

    verb: str
    name: str
    token: Token = "none"
    restarts: bool = False


class Again(NamedTuple):
    """An earlier request, counted back from the last one, sent again unchanged."""

    back: int


class Happens(NamedTuple):
    """A step that is no request."""

    what: Literal["served", "tick", "work", "interrupt", "flush", "wait", "restart"]


STEPS = st.one_of(
    st.builds(Ask, st.just("submit"), st.sampled_from(NAMES), restarts=st.booleans()),
    st.builds(Ask, st.sampled_from((*ABOUT_A_LEASE, *OTHERS)), st.sampled_from(NAMES), st.sampled_from(TOKENS)),
    st.builds(Again, st.integers(1, 6)),
    st.builds(Happens, st.sampled_from(("served", "served", "tick", "work", "interrupt", "flush", "wait", "restart"))),
)


class Story:
    """One fleet, the requests that were sent and what was answered, and the rules that hold after each."""

    def __init__(self) -> None:
        self.harness = Harness(CONFIG)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Answer] = {}
        self.accepted: set[str] = set()
        self.tokens: dict[str, list[int]] = {name: [] for name in NAMES}
        """The tokens that each had, in order."""

    def play(self, steps: Sequence[Ask | Again | Happens]) -> None:
        """One after the other; what holds always is looked at after each."""
        for step in steps:
            match step:
                case Ask():
                    self._ask(step)
                case Again(back) if back <= len(self.sent):
                    self._send(*self.sent[-back])
                case Happens(what):
                    self._act_as_cloud(what)
            self._look()

    def _ask(self, step: Ask) -> None:
        document: dict[str, Any] = {"request": f"q{len(self.sent)}"}
        if step.verb == "submit":
            document |= {"id": step.name, "system": "x86_64-linux"}
            document |= {"restart_policy": "on_failure"} if step.restarts else {}
        else:
            document |= {"reservation": step.name, **({"priority": 2} if step.verb == "priority" else {})}
            token = self._find_token(step)
            document |= {} if token is None else {"token": token}
        self.sent.append((step.verb, document))
        self._send(step.verb, document)

    def _find_token(self, step: Ask) -> int | None:
        row, had = self._rows().get(step.name), self.tokens[step.name]
        match step.token:
            case "current" if row is not None and row.token:
                return row.token
            case "earlier" if len(had) > 1:
                return had[-2]
            case "another's":
                return next((each.token for each in self._rows().values() if each.id != step.name and each.token), None)
            case "of a lease to come":
                return max((token for tokens in self.tokens.values() for token in tokens), default=0) + 1
            case _:
                return None

    def _send(self, verb: str, document: dict[str, Any]) -> None:
        before, events = self._rows(), len(self.harness.events)
        answer = accept(self.harness.ports, verb, document)
        after = self._rows()
        request = document["request"]
        if (known := self.answers.get(request)) is not None:
            assert answer == known, "a repeat gets the first answer"
        if known is not None or not answer["ok"]:
            assert after == before, "a refused or repeated request changes nothing"
            assert len(self.harness.events) == events
        if not answer["ok"]:
            assert all(error["path"] and error["expected"] and error["got"] for error in answer["errors"])
        elif known is None:
            self._check_accepted(verb, document, before, after)
        self.answers[request] = answer

    def _check_accepted(
        self, verb: str, document: dict[str, Any], before: dict[str, Reservation], after: dict[str, Reservation]
    ) -> None:
        name = document.get("reservation") or document["id"]
        self.accepted.add(name)
        changed = {each for each in after if after[each] != before.get(each)}
        assert changed <= {name}, "a command changes no other reservation"
        was = before.get(name)
        if verb == "submit":
            assert was is None or not changed, "a known id changes nothing, in any phase"
            return
        assert was is not None
        if verb in ABOUT_A_LEASE and was.phase in HELD:
            assert document.get("token") == was.token, "a holder's word carries the current token"
        if verb in ABOUT_A_LEASE and was.phase in ENDED:
            assert (verb, was.phase) == ("release", "released")
            assert not changed, "a lease that is over is not spoken of"
        if verb == "release":
            assert after[name].phase == "released", "release ends it in any phase that is not ended"
        if verb in MARKS:
            assert (was.version, was.phase, was.leases) == (after[name].version, after[name].phase, after[name].leases)

    def _act_as_cloud(self, what: str) -> None:
        harness = self.harness
        match what:
            case "served":
                harness.tick()
                harness.play_tasks()
                harness.tick()
            case "tick":
                harness.tick()
            case "work":
                harness.play_tasks()
            case "interrupt":
                for slot in harness.store.find_slots(states=["ready"])[:1]:
                    with harness.store.transaction() as transaction:
                        work = UnitOfWork(transaction, "cloud")
                        work.load(slots=[slot.id])
                        interrupt(work, slot.id, harness.now + 60)
                        work.flush()
            case "flush":
                harness.redis.flush()
            case "wait":
                harness.now += 7
            case "restart":
                harness.restart()

    def _rows(self) -> dict[str, Reservation]:
        return {row.id: row for row in self.harness.store.find_reservations(ids=NAMES)}

    def _look(self) -> None:
        """What holds at any time."""
        rows = self._rows()
        assert self.accepted <= rows.keys(), "what was accepted is there"
        # Of several leases that one tick assigned, the order of their tokens is not that of the rows.
        highest = max((token for had in self.tokens.values() for token in had), default=0)
        for row in rows.values():
            assert bool(row.leases) == (row.phase in HELD)
            assert {lease.token for lease in row.leases} <= {row.token}
            known = self.tokens[row.id]
            if row.token and row.token not in known:
                assert row.token > highest
                known.append(row.token)
            assert not known or row.token == known[-1], "a token never comes back"
        for slot in self.harness.store.find_slots():
            there = [
                each for row in rows.values() for each in row.leases if (each.slot, each.epoch) == (slot.id, slot.epoch)
            ]
            assert len(there) <= 2, "no slot is leased beyond its limit"

    def end(self) -> None:
        """Periodic work alone brings the view to the truth; when no reservation is left, no machine runs."""
        self.harness.settle(30, step=5)
        view = self.harness.ports.view_cache.load()
        assert view is not None
        alive = {name: row for name, row in self._rows().items() if row.phase not in ENDED}
        assert {name: row for name, row in view.reservations.items() if row.phase not in ENDED} == alive
        for name in alive:
            assert self.harness.ask("cancel", reservation=name)["ok"]
        self.harness.settle(120, step=10)
        assert self.harness.fleet.running == []
        assert [slot.state for slot in self.harness.store.find_slots()] == ["empty", "empty"]


@settings(max_examples=30, deadline=None, derandomize=bool(os.environ.get("CI")))
@given(st.lists(STEPS, max_size=40))
def test_every_message_is_carried_out_once_or_refused_and_no_reservation_is_lost(steps: list[Any]) -> None:
    story = Story()
    story.play(steps)
    story.end()
