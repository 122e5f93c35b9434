"""Gathered requests: the same answers and rows as one by one, in few transactions; a broken one harms only itself."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.command_schemas import SCHEMAS
from scheduler.model.principals import Principal
from scheduler.operations.commands.gathered import Message, Outcome, accept_gathered
from scheduler.operations.commands.intake import accept
from scheduler.ports import ConflictError, StaleWriteError, StoreUnavailableError, Transaction, ViewUnavailableError
from tests.generated import TIMES
from tests.operations.harness import CONFIG, Harness

# As in tests/rules/test_plans.py.
pytestmark = pytest.mark.no_cover
RULES: dict[str, Any] = {
    "scheduler": {"confirm_timeout": 30},
    "pools": {"linux": {"system": "x86_64-linux", "max_slots": 3, "max_leases_per_slot": 2, "lease_ttl": 120}},
}
QUOTA: dict[str, Any] = {
    "scheduler": {"queue": "quota", "preemption_grace": 3},
    "pools": {"linux": {"system": "x86_64-linux", "max_slots": 2, "max_leases_per_slot": 1, "lease_ttl": 120}},
    "accounts": {"a": {"balance": [50, 5]}},
}
CALLBACKS = {"on_lease": {"task": "app.on", "queue": "app"}, "on_end": {"task": "app.off", "queue": "app"}}
NAMES = ("r1", "r2", "r3", "r4", "r5", "r6", "r7")
SLOTS = ("linux-1", "linux-2", "none")
PRINCIPALS = (
    None,
    Principal(name="ann", role="producer", accounts=("a",)),
    Principal(name="ben", role="producer", accounts=("a",)),
    Principal(name="olga", role="operator"),
)


class Step(NamedTuple):
    """A generated request. `number`: of its id, so equal numbers are copies or other requests with the same id."""

    verb: str
    name: str
    number: int
    token: Literal["current", "stale", "none"] = "current"
    sender: int = 0
    slot: str | None = None
    defect: Literal["", "field", "items"] = ""


STEPS = st.builds(
    Step,
    st.sampled_from(("submit", "submit", "release", "renew", "confirm", "cancel", "fail", "uncordon")),
    st.sampled_from(NAMES),
    st.integers(0, 40),
    st.sampled_from(("current", "current", "current", "stale", "none")),
    st.sampled_from((0, 0, 0, 1, 2, 3)),
    st.sampled_from((None, None, *SLOTS)),
    st.sampled_from(("", "", "", "", "field", "items")),
)
BATCHES = st.lists(st.lists(STEPS, min_size=1, max_size=12), min_size=1, max_size=3)


def make_message(harness: Harness, step: Step) -> Message:
    """The message of a step, with the token that the reservation has at present."""
    document: dict[str, Any]
    if step.verb == "submit":
        document = {"id": step.name, "system": "x86_64-linux", "account": "a", **CALLBACKS}
    elif step.verb == "uncordon":
        document = {"slot": step.slot or "linux-1"}
    else:
        document = {"reservation": step.name}
        rows = harness.store.find_reservations(ids=[step.name])
        if step.token != "none" and rows and rows[0].token:
            document["token"] = rows[0].token - (step.token == "stale")
        if step.verb == "confirm" and step.slot is not None:
            document["slot"] = step.slot
    if step.defect == "field":
        document["priorty"] = 1
    if step.defect == "items":
        document = {"items": [document, document]}
    return Message(step.verb, {**document, "request": f"q{step.number}"}, PRINCIPALS[step.sender])


def prepared(rules: dict[str, Any]) -> Harness:
    """A harness in which some reservations have leases, some wait, and one has ended."""
    harness, numbers = Harness(rules), count(1)
    harness.ports.new_id = lambda: f"launch-{next(numbers)}"
    for name in NAMES[:3]:
        harness.submit(name, account="a", **CALLBACKS)
    harness.tick()
    harness.play_tasks()
    harness.tick()
    accept(harness.ports, "submit", {"request": "first", "id": "r4", "system": "x86_64-linux"}, principal=PRINCIPALS[1])
    harness.ask("cancel", reservation="r3")
    return harness


def ask_one_by_one(harness: Harness, messages: Sequence[Message]) -> list[Outcome]:
    """Carry out each message in transactions of its own."""
    return [accept(harness.ports, each.verb, each.document, principal=each.principal) for each in messages]


def facts(harness: Harness) -> dict[str, Any]:
    """All stored facts, without the numbers that count transactions and writes.

    One transaction may give a slot back and take it again. Then its interval of the ledger goes on, where two
    transactions begin a new one. The costs are equal: they contain the intervals that have not ended, until now.
    """
    left_out = {"version", "marked_at", "launch_request", "meter"}

    def plain(row: Any) -> dict[str, Any]:
        return {key: value for key, value in msgspec.to_builtins(row).items() if key not in left_out}

    events: dict[tuple[str | None, str | None], list[tuple[Any, ...]]] = {}
    for event in harness.events:
        found = events.setdefault((event.reservation, event.slot), [])
        found.append((event.name, event.cause, event.principal, event.detail))
    with harness.store.transaction() as transaction:
        answers = transaction.find_answers([f"q{number}" for number in range(41)])
    return {
        "reservations": sorted((plain(row) for row in harness.store.find_reservations()), key=lambda row: row["id"]),
        "slots": sorted((plain(row) for row in harness.store.find_slots()), key=lambda row: row["id"]),
        "costs": harness.store.read_costs(),
        "events": events,
        "answers": {name: (each.answer, each.principal) for name, each in answers.items()},
        "accounts": [plain(row) for row in harness.store.find_accounts()],
        "callbacks": sorted(each.id for each in harness.mailbox.callbacks),
        "requests": {key: value for key, value in harness.meter.counts.items() if key[0] == "leasehold_requests_total"},
    }


@settings(max_examples=60 * TIMES)
@pytest.mark.parametrize("rules", [RULES, QUOTA], ids=["fifo", "quota"])
@given(batches=BATCHES)
def test_gathered_requests_have_the_answers_and_effects_of_single_ones(
    rules: dict[str, Any], batches: list[list[Step]]
) -> None:
    joint, single = prepared(rules), prepared(rules)
    for batch in batches:
        messages = [make_message(single, step) for step in batch]
        assert accept_gathered(joint.ports, messages) == ask_one_by_one(single, messages)
        assert facts(joint) == facts(single)
        for harness in (joint, single):
            harness.now += 7
            harness.tick()
    shown = [{*harness.ports.view_cache.read_kept()} for harness in (joint, single)]
    assert shown[0] == shown[1]


class FaultyStore:
    """A harness whose transactions are counted and fail as a function of the requests that they store answers to."""

    def __init__(self, fail: Callable[[list[str]], Exception | None]) -> None:
        self.harness, self._fail = Harness(CONFIG), fail
        self.stored: list[list[str]] = []
        """The ids of the requests whose answers each transaction stored, committed or not."""
        self._begin = self.harness.store.transaction
        self.harness.store.transaction = self._transaction  # type: ignore[method-assign]

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        with self._begin() as transaction:
            stored = transaction.save_answers

            def save_answers(answers: Sequence[Any]) -> None:
                self.stored.append([each.id for each in answers])
                error = self._fail(self.stored[-1])
                if error is not None:
                    raise error
                stored(answers)

            transaction.save_answers = save_answers  # type: ignore[method-assign]
            yield transaction

    def submit(self, *names: str) -> list[Outcome]:
        """Submit one reservation in each of several gathered requests."""
        return accept_gathered(self.harness.ports, [submission(name) for name in names])

    @property
    def present(self) -> list[str]:
        """The ids of the stored reservations."""
        return [row.id for row in self.harness.store.find_reservations()]


def submission(name: str, **fields: Any) -> Message:
    """A request that submits a reservation."""
    return Message("submit", {"request": f"q-{name}", "id": name, "system": "x86_64-linux", **fields})


def test_all_submissions_are_one_transaction_and_all_commands_another() -> None:
    store = FaultyStore(lambda _: None)
    store.submit("r1", "r2")
    store.stored.clear()
    commands = [Message("cancel", {"request": f"c{n}", "reservation": f"r{n}"}) for n in (1, 2)]
    kicks = store.harness.notifier.kicks
    outcomes = accept_gathered(store.harness.ports, [submission("r3"), commands[0], submission("r4"), commands[1]])
    assert [dict(each)["ok"] for each in outcomes if isinstance(each, dict)] == [True] * 4
    assert store.stored == [["q-r3", "q-r4"], ["c1", "c2"]]
    assert store.harness.notifier.kicks == kicks + 2


def test_a_request_with_a_defect_is_refused_and_the_others_are_accepted() -> None:
    store = FaultyStore(lambda _: None)
    good, bad, more = accept_gathered(
        store.harness.ports, [submission("r1"), submission("r2", resources={"cpus": -1}), submission("r3")]
    )
    assert isinstance(bad, dict)
    assert bad["errors"][0]["path"] == "resources.cpus"
    assert store.present == ["r1", "r3"]
    assert [isinstance(each, dict) and each["reservation"] for each in (good, more)] == ["r1", "r3"]


def test_a_request_that_breaks_the_transaction_harms_only_itself() -> None:
    broken = ValueError("a row cannot be decoded")
    store = FaultyStore(lambda ids: broken if "q-r2" in ids else None)
    outcomes = store.submit("r1", "r2", "r3")
    assert outcomes[1] is broken
    assert [isinstance(each, dict) and each["ok"] for each in (outcomes[0], outcomes[2])] == [True, True]
    assert store.present == ["r1", "r3"]


@pytest.mark.parametrize("race", [StaleWriteError, ConflictError])
def test_a_lost_race_is_repeated_for_each_request(race: type[Exception]) -> None:
    losses = [race("lost"), race("lost")]
    store = FaultyStore(lambda ids: losses.pop() if losses and "q-r1" in ids else None)
    assert all(isinstance(each, dict) and each["ok"] for each in store.submit("r1", "r2"))
    assert store.stored == [["q-r1", "q-r2"], ["q-r1"], ["q-r1"], ["q-r2"]]


def test_a_single_request_that_loses_every_race_has_the_error_as_its_outcome() -> None:
    store = FaultyStore(lambda _: StaleWriteError("lost"))
    (outcome,) = store.submit("r1")
    assert isinstance(outcome, StaleWriteError)
    assert store.present == []


def test_a_database_that_does_not_answer_is_not_asked_once_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count(0, 3.0)
    monkeypatch.setattr("scheduler.operations.commands.gathered.monotonic", lambda: next(times))
    failure = StoreUnavailableError("it does not answer")
    store = FaultyStore(lambda _: failure)
    assert store.submit(*(f"r{number}" for number in range(50))) == [failure] * 50
    assert len(store.stored) == 2


def test_requests_that_cannot_be_published_are_stored_and_get_no_answer() -> None:
    """Their senders repeat them, and the stored answers are published then."""
    store = FaultyStore(lambda _: None)
    store.harness.tick()
    ports = store.harness.ports
    publish, failure = ports.view_cache.publish, ViewUnavailableError("Redis pauses")

    def fail(_: object) -> None:
        raise failure

    ports.view_cache.publish = fail  # type: ignore[method-assign, assignment]
    assert store.submit("r1", "r2") == [failure, failure]
    assert store.present == ["r1", "r2"]
    ports.view_cache.publish = publish  # type: ignore[method-assign]
    assert all(isinstance(each, dict) and each["ok"] for each in store.submit("r1", "r2"))
    assert {"r1", "r2"} <= ports.view_cache.read_kept().keys()


def test_limits_on_pending_reservations_count_each_gathered_submission() -> None:
    harness = Harness({**CONFIG, "limits": {"pending_per_principal": 2}})
    outcomes = accept_gathered(harness.ports, [submission(name) for name in ("r1", "r2", "r3")])
    assert [isinstance(each, dict) and each["ok"] for each in outcomes] == [True, True, False]


FIELDS: dict[str, Any] = {
    "reservation": "r1",
    "id": "new",
    "token": 1,
    "priority": 5,
    "slot": "linux-1",
    "pool": "linux",
    "machine": "m1",
    "run": "b-1",
    "component": "main",
    "nonce": "n" * 43,
    "why": "exited",
    "account": "a",
}
"""A value of each field that a command needs."""


@pytest.mark.parametrize("verb", SCHEMAS)
def test_each_command_gets_the_same_answer_gathered_or_not(verb: str) -> None:
    needed = [name for name, field in SCHEMAS[verb].model_fields.items() if field.is_required()]
    document = (
        {"request": "q1"}
        | {name: FIELDS[name] for name in needed}
        | ({"system": "x86_64-linux"} if verb == "submit" else {})
    )
    alone, gathered = prepared(RULES), prepared(RULES)
    answer = accept(alone.ports, verb, document, principal=PRINCIPALS[3])
    assert accept_gathered(gathered.ports, [Message(verb, document, PRINCIPALS[3])]) == [answer]
