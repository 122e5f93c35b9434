"""Two processes act at once, each with its own real connections: one of them wins, and nothing is lost."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from scheduler.model.decisions import Assign, Placement, Terminate
from scheduler.model.slots import Slot
from scheduler.operations.commands.intake import accept
from scheduler.operations.commands.submit import Answer
from scheduler.operations.machines.check import check, recover, sweep
from scheduler.operations.machines.launch import launch
from scheduler.operations.ports import Ports
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.tick.commit import PlannedRules, commit
from scheduler.operations.tick.leader import take_leader_term
from scheduler.operations.tick.tick import carry_out, decide, tick
from scheduler.ports import CloudError, DeposedError, Store, StoredRules
from scheduler.store.opening import open_store
from scheduler.view.memory import InMemoryRedis
from tests.operations.harness import CountingFleet, Harness

ROUNDS = 5
CONFIG: dict[str, Any] = {
    "pools": {
        "linux": {
            "system": "x86_64-linux",
            "max_slots": 6,
            "lease_ttl": 0,
            "idle_scale_down": 300,
            "max_leases_per_slot": 1,
        }
    }
}
OTHER_RULES: dict[str, Any] = {**CONFIG, "accounts": {"A": {}}}
Open = Callable[[], Store]


@pytest.fixture(params=["sqlite", "postgresql"])
def open_one(request: pytest.FixtureRequest) -> Iterator[Open]:
    """A function that opens the database; each call returns the store of another process."""
    url = request.getfixturevalue(f"{request.param}_url")
    with ExitStack() as opened:

        def open_again() -> Store:
            store = open_store(url)
            opened.callback(store.close)
            return store

        yield open_again


class Rivals:
    """Two processes with the same database, view and cloud."""

    def __init__(self, open_one: Open) -> None:
        fleet = CountingFleet()
        first = open_one()
        redis = InMemoryRedis(first.now)
        self.first = Harness(CONFIG, store=first, fleet=fleet, redis=redis)
        self.second = Harness(CONFIG, store=open_one(), fleet=fleet, redis=redis)
        self.fleet, self.store = fleet, first

    def make_ready(self, name: str = "linux-1") -> Slot:
        return make_ready(self.first, name)


def make_ready(harness: Harness, name: str) -> Slot:
    slot = harness.slot(name)
    harness.put(
        Slot(
            id=slot.id,
            version=slot.version,
            pool="linux",
            state="ready",
            epoch=slot.epoch + 1,
            since=harness.store.now(),
            instance_id=f"i-{name}-{slot.epoch + 1}",
            last_seen=harness.store.now(),
        )
    )
    return harness.slot(name)


@pytest.fixture
def rivals(open_one: Open) -> Rivals:
    return Rivals(open_one)


def race(*acts: Callable[[], object]) -> list[object]:
    """Start the actions at the same time; return what each returned or raised."""
    meeting = Barrier(len(acts))

    def run(act: Callable[[], object]) -> object:
        meeting.wait()
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - the test checks which error it was
            return error

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(run, acts))


@repeated_if_overtaken
def ask(ports: Ports, verb: str, **document: object) -> Answer:
    """Execute a request as the task of the intake does."""
    return accept(ports, verb, document)


def assign(name: str, slot: Slot, level: int | None = None) -> Assign:
    placement = Placement(component="main", slot=slot.id, epoch=slot.epoch, resources={})
    return Assign(reservation=name, leases=(placement,), level=level)


def lead(harness: Harness) -> None:
    harness.leader.leader_term = take_leader_term(harness.ports, harness.leader)


def write(harness: Harness, *decisions: object, planned_under: StoredRules | None = None) -> list[str]:
    """Commit decisions under the term of this process; return the reasons of the skipped ones. `planned_under`: the
    rules of the plan; None: those in force.
    """
    ports, leader_term = harness.ports, harness.leader.leader_term
    assert leader_term is not None
    found = planned_under or ports.stored_rules()
    done = commit(
        ports.store,
        decisions,  # type: ignore[arg-type]
        PlannedRules(found.rules, found.version),
        leader_term,
        ports.new_id,
        ports.store.now(),
    )
    return [each.reason for skipped, *_ in done for each in skipped]


def leases_on(store: Store, slot: str) -> list[str]:
    rows = store.find_reservations(limit=10_000)
    return [row.id for row in rows for lease in row.leases if lease.slot == slot]


def test_a_leader_deposed_between_plan_and_commit_writes_nothing(rivals: Rivals) -> None:
    slow, quick = rivals.first, rivals.second
    rivals.make_ready()
    slow.submit("r1")
    leader_term = take_leader_term(slow.ports, slow.leader)
    ticked = decide(slow.ports, slow.leader, leader_term)
    assert [type(each) for each in ticked.plan.decisions] == [Assign]
    tick(quick.ports, quick.leader)
    before = quick.store.find_reservations(), quick.store.load_leader_term(), quick.events
    with pytest.raises(DeposedError):
        carry_out(slow.ports, slow.leader, leader_term, ticked)
    assert (quick.store.find_reservations(), quick.store.load_leader_term(), quick.events) == before
    assert quick.phase() == "leased"


def test_a_plan_that_was_made_under_other_rules_is_not_written(rivals: Rivals) -> None:
    planner = rivals.first
    rivals.make_ready()
    planner.submit("r1")
    leader_term = take_leader_term(planner.ports, planner.leader)
    ticked = decide(planner.ports, planner.leader, leader_term)
    assert [type(each) for each in ticked.plan.decisions] == [Assign]
    apply_rules(rivals.second.ports, OTHER_RULES)
    kicks = planner.notifier.kicks
    carry_out(planner.ports, planner.leader, leader_term, ticked)
    assert (ticked.outdated, ticked.cut, planner.phase("r1")) == (1, 0, "pending")
    assert planner.notifier.kicks == kicks + 1
    (done,) = tick(planner.ports, planner.leader)
    assert (done.outdated, planner.phase("r1")) == (0, "leased")


def test_a_lease_costs_something_exactly_under_the_queue_quota_if_the_rules_change_meanwhile(rivals: Rivals) -> None:
    """A tick commits leases while the rules change to or from `quota`."""
    slot = rivals.make_ready()
    lead(rivals.first)
    for number in range(2 * ROUNDS):
        name, is_quota = f"r{number}", number % 2 == 0
        queue, level = ("quota", None) if is_quota else ("fifo", 0)
        rivals.first.submit(name, account="A")
        # Before the race: under the rules that are in force after the change, the plan would be another one.
        planned_under = rivals.first.ports.stored_rules()
        race(
            partial(write, rivals.first, assign(name, slot, level), planned_under=planned_under),
            partial(apply_rules, rivals.second.ports, {**OTHER_RULES, "scheduler": {"queue": queue}}),
        )
        (row,) = rivals.store.find_reservations(ids=[name])
        assert [lease.charged_at is not None for lease in row.leases] in ([], [is_quota])
        ask(rivals.first.ports, "cancel", request=f"end-{number}", reservation=name)


def test_a_leader_writes_nothing_after_its_successor_took_the_term(rivals: Rivals) -> None:
    """The old leader writes before the change of the term or not at all."""
    slot = rivals.make_ready()
    for number in range(ROUNDS):
        name = f"r{number}"
        rivals.first.submit(name)
        lead(rivals.first)
        results = race(partial(write, rivals.first, assign(name, slot)), partial(lead, rivals.second))
        assert results[0] == [] or isinstance(results[0], DeposedError)
        assert rivals.first.phase(name) == ("leased" if results[0] == [] else "pending")
        last = rivals.store.load_leader_term()
        assert (last.holder, last.term) == (rivals.second.leader.holder, 2 * number + 2)
        ask(rivals.first.ports, "cancel", request=f"end-{number}", reservation=name)


def test_only_one_of_two_commits_that_assign_a_slot_succeeds(rivals: Rivals) -> None:
    lead(rivals.first)
    rivals.second.leader.leader_term = rivals.first.leader.leader_term  # both processes take themselves for the leader
    for number in range(ROUNDS):
        slot = rivals.make_ready(f"linux-{number + 1}")
        for side in "ab":
            rivals.first.submit(f"{side}{number}")
        results = race(
            partial(write, rivals.first, assign(f"a{number}", slot)),
            partial(write, rivals.second, assign(f"b{number}", slot)),
        )
        assert sorted(map(str, results)) == sorted(["[]", f"['{slot.id} has its maximum number of leases']"])
        assert len(leases_on(rivals.store, slot.id)) == 1


@pytest.mark.parametrize("verb", ["release", "cancel", "drain", "cordon"])
def test_a_commit_and_a_command_at_once_give_one_of_the_two_orders(rivals: Rivals, verb: str) -> None:
    """Either the lease is committed first and the command applies to it, or the decision is skipped."""
    lead(rivals.first)
    for number in range(ROUNDS):
        name, slot = f"r{number}", rivals.make_ready(f"linux-{number + 1}")
        rivals.first.submit(name)
        about = {"slot": slot.id} if verb in {"drain", "cordon"} else {"reservation": name}
        lost, answer = race(
            partial(write, rivals.first, assign(name, slot)),
            partial(ask, rivals.second.ports, verb, request=f"q{number}", **about),
        )
        phase, leases = rivals.first.phase(name), leases_on(rivals.store, slot.id)
        if verb == "release" and isinstance(answer, dict) and not answer["ok"]:
            # The lease was committed first, so the release needs a token.
            assert (lost, phase, leases, answer["errors"][0]["path"]) == ([], "leased", [name], "token")
        elif verb in {"release", "cancel"}:
            ended = {"release": "released", "cancel": "cancelled"}[verb]
            assert (phase, leases) == (ended, [])
            assert lost in ([], [f"the reservation is {ended}"])
        else:
            assert (phase, leases) == (("leased", [name]) if lost == [] else ("pending", []))


def test_a_request_received_twice_at_once_is_executed_once(rivals: Rivals) -> None:
    for number in range(ROUNDS):
        document = {"request": f"q{number}", "id": f"r{number}", "system": "x86_64-linux"}
        first, second = race(
            partial(ask, rivals.first.ports, "submit", **document),
            partial(ask, rivals.second.ports, "submit", **document),
        )
        assert first == second
        assert isinstance(first, dict)
        assert first["ok"]
    assert [event.name for event in rivals.first.events].count("reservation_submitted") == ROUNDS


def test_a_command_received_twice_at_once_gets_one_answer(rivals: Rivals) -> None:
    lead(rivals.first)
    for number in range(ROUNDS):
        name, slot = f"r{number}", rivals.make_ready(f"linux-{number + 1}")
        rivals.first.submit(name)
        assert write(rivals.first, assign(name, slot)) == []
        document = {"request": f"q{number}", "reservation": name, "token": rivals.first.token(name)}
        first, second = race(
            partial(ask, rivals.first.ports, "decline", **document),
            partial(ask, rivals.second.ports, "decline", **document),
        )
        assert first == second
        assert rivals.first.phase(name) == "pending"


def test_a_reservation_submitted_twice_at_once_is_stored_once(rivals: Rivals) -> None:
    for number in range(ROUNDS):
        names = [f"r{number}-{index}" for index in range(20)]
        documents = [{"id": name, "system": "x86_64-linux"} for name in names]
        answers = race(
            partial(ask, rivals.first.ports, "submit", request=f"a{number}", items=documents),
            partial(ask, rivals.second.ports, "submit", request=f"b{number}", items=documents[::-1]),
        )
        assert [isinstance(answer, dict) and answer["ok"] for answer in answers] == [True, True]
    rows = rivals.store.find_reservations(limit=10_000)
    assert [row.sequence for row in rows] == list(range(1, 20 * ROUNDS + 1))
    assert len({row.id for row in rows}) == 20 * ROUNDS


def test_a_launch_answered_during_its_termination_leaves_no_machine(rivals: Rivals) -> None:
    for number in range(ROUNDS):
        rivals.first.submit(f"r{number}")
        tick(rivals.first.ports, rivals.first.leader)
        (_, (name, launch_id)) = rivals.first.mailbox.tasks.pop(0)
        rivals.first.mailbox.tasks.clear()
        ask(rivals.first.ports, "cancel", request=f"q{number}", reservation=f"r{number}")
        race(
            partial(launch, rivals.second.ports, launch_id, name),
            partial(write, rivals.first, Terminate(slot=name, reason="requested")),
        )
        assert rivals.first.slot(name).state == "terminating"
        for harness in (rivals.first, rivals.second):
            recover(harness.ports, resend_seconds=0.0)
            harness.play_tasks()
            sweep(harness.ports)
            harness.play_tasks()
        assert rivals.first.slot(name).state == "empty"
        assert rivals.fleet.running == []


def test_a_check_and_a_tick_at_once_lose_no_update(rivals: Rivals) -> None:
    """A slot that becomes ready while a tick plans is leased in this tick or in the next one."""
    for number in range(ROUNDS):
        rivals.first.submit(f"r{number}")
        tick(rivals.first.ports, rivals.first.leader)
        tasks = [task for task in rivals.first.mailbox.tasks if task[0] == "launch"]
        rivals.first.mailbox.tasks.clear()
        (_, (name, launch_id)) = tasks[0]
        assert launch(rivals.second.ports, launch_id, name) == "success"
        results = race(
            partial(check, rivals.second.ports, [name]), partial(tick, rivals.first.ports, rivals.first.leader)
        )
        assert not [each for each in results if isinstance(each, Exception)]
        tick(rivals.first.ports, rivals.first.leader)
        assert (rivals.first.slot(name).state, rivals.first.phase(f"r{number}")) == ("ready", "leased")


def test_refusals_at_once_make_one_back_off_and_empty_every_slot(rivals: Rivals) -> None:
    for number in range(4):
        rivals.first.submit(f"r{number}")
        tick(rivals.first.ports, rivals.first.leader)
    launches = [arguments for name, arguments in rivals.first.mailbox.tasks if name == "launch"]
    rivals.fleet.errors = [CloudError("quota", "VcpuLimitExceeded", "no more") for _ in launches]
    both_ports = [rivals.first.ports, rivals.second.ports] * 2
    each = zip(both_ports, launches, strict=True)
    results = race(*(partial(launch, ports, launch_id, name) for ports, (name, launch_id) in each))
    assert results == ["quota"] * 4
    assert {slot.state for slot in rivals.store.find_slots()} == {"empty"}
