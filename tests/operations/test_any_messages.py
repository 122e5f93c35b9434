"""Generated sequences of requests: repeated, late, out of order or with the token of another lease.

Requests of producers, holders and earlier holders alternate with ticks and events of the cloud. After every step the
rules below are checked on the rows of the database.
"""

import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.reservations import Reservation
from scheduler.model.transitions import ENDED
from scheduler.operations.commands.intake import accept
from scheduler.operations.commands.slot_commands import interrupt
from scheduler.operations.commands.submit import Answer
from scheduler.operations.unit_of_work import UnitOfWork
from tests.operations.harness import Harness

# As in tests/rules/test_plans.py.
pytestmark = pytest.mark.no_cover
HELD = {"leased", "revoking"}
NAMES = ("r1", "r2", "r3")
ABOUT_A_LEASE = ("release", "renew", "confirm", "fail", "decline", "surrender")
"""Requests of a holder; each carries a token."""
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
Token = Literal["current", "earlier", "of another lease", "of a future lease", "none"]
TOKENS: tuple[Token, ...] = ("current", "current", "earlier", "of another lease", "of a future lease", "none")


class NewRequest(NamedTuple):
    """A new request; `restarts` is the restart policy of a submitted reservation."""

    verb: str
    name: str
    token: Token = "none"
    restarts: bool = False


class Repeat(NamedTuple):
    """The same request again: the `back`th from the end of those sent so far."""

    back: int


class Event(NamedTuple):
    """A step that is not a request."""

    kind: Literal["served", "tick", "work", "interrupt", "flush", "wait", "restart"]


STEPS = st.one_of(
    st.builds(NewRequest, st.just("submit"), st.sampled_from(NAMES), restarts=st.booleans()),
    st.builds(NewRequest, st.sampled_from((*ABOUT_A_LEASE, *OTHERS)), st.sampled_from(NAMES), st.sampled_from(TOKENS)),
    st.builds(Repeat, st.integers(1, 6)),
    st.builds(Event, st.sampled_from(("served", "served", "tick", "work", "interrupt", "flush", "wait", "restart"))),
)


class Sequencer:
    """A harness with the requests sent and their answers; it checks the rules after each step."""

    def __init__(self) -> None:
        self.harness = Harness(CONFIG)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Answer] = {}
        self.accepted: set[str] = set()
        self.tokens: dict[str, list[int]] = {name: [] for name in NAMES}
        """Reservation -> its tokens so far, in order."""

    def play(self, steps: Sequence[NewRequest | Repeat | Event]) -> None:
        """Run the steps in order and check the rules after each."""
        for step in steps:
            match step:
                case NewRequest():
                    self._request(step)
                case Repeat(back) if back <= len(self.sent):
                    self._send(*self.sent[-back])
                case Event(kind):
                    self._apply(kind)
            self._check()

    def _request(self, step: NewRequest) -> None:
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

    def _find_token(self, step: NewRequest) -> int | None:
        row, tokens = self._rows().get(step.name), self.tokens[step.name]
        match step.token:
            case "current" if row is not None and row.token:
                return row.token
            case "earlier" if len(tokens) > 1:
                return tokens[-2]
            case "of another lease":
                return next((each.token for each in self._rows().values() if each.id != step.name and each.token), None)
            case "of a future lease":
                return max((token for known in self.tokens.values() for token in known), default=0) + 1
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
            assert document.get("token") == was.token, "a request of a holder needs the current token"
        if verb in ABOUT_A_LEASE and was.phase in ENDED:
            assert (verb, was.phase) == ("release", "released")
            assert not changed, "no request changes a lease that has ended"
        if verb == "release":
            assert after[name].phase == "released", "release ends a reservation in any phase that is not final"
        if verb in MARKS:
            assert (was.version, was.phase, was.leases) == (after[name].version, after[name].phase, after[name].leases)

    def _apply(self, kind: str) -> None:
        harness = self.harness
        match kind:
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

    def _check(self) -> None:
        """Check the rules that hold at any time."""
        rows = self._rows()
        assert self.accepted <= rows.keys(), "an accepted reservation is stored"
        # One tick may assign several leases; their tokens are not in the order of the rows.
        highest = max((token for known in self.tokens.values() for token in known), default=0)
        for row in rows.values():
            assert bool(row.leases) == (row.phase in HELD)
            assert {lease.token for lease in row.leases} <= {row.token}
            known = self.tokens[row.id]
            if row.token and row.token not in known:
                assert row.token > highest
                known.append(row.token)
            assert not known or row.token == known[-1], "a token is never used again"
        for slot in self.harness.store.find_slots():
            leases = [
                each for row in rows.values() for each in row.leases if (each.slot, each.epoch) == (slot.id, slot.epoch)
            ]
            assert len(leases) <= 2, "a slot has at most max_leases_per_slot leases"

    def end(self) -> None:
        """Check the end: ticks alone make the view equal to the database, and no machine runs without a reservation."""
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


@settings(max_examples=30, derandomize=bool(os.environ.get("CI")))
@given(st.lists(STEPS, max_size=40))
def test_every_request_is_executed_once_or_refused_and_no_reservation_is_lost(steps: list[Any]) -> None:
    sequencer = Sequencer()
    sequencer.play(steps)
    sequencer.end()
