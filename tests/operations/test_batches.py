"""Launch in bulk: one request asks for the machines of all slots that a tick launches with one offering."""

from typing import Any

import msgspec
import pytest

from scheduler.model.launch_backoff import Hold
from scheduler.operations.machines.check import recover
from scheduler.operations.machines.launch import MOST_ATTEMPTS, launch
from scheduler.operations.machines.reconcile import reconcile
from scheduler.operations.machines.terminate import terminate, terminate_all
from scheduler.operations.rules.apply import apply_rules
from scheduler.ports import CloudError, LaunchAnswer, Refusal
from tests.operations.harness import Harness

NAMES = ["linux-1", "linux-2", "linux-3"]
POOL = {"system": "x86_64-linux", "max_slots": 5, "lease_ttl": 0, "launch_timeout": 30}


def a_harness(**changes: Any) -> Harness:
    """Return a harness with a planned batch of three launches, whose task has not run yet."""
    harness = Harness({"pools": {"linux": {**POOL, **changes}}})
    for number in range(1, 4):
        harness.submit(f"r{number}")
    harness.tick()
    return harness


@pytest.fixture
def harness() -> Harness:
    """A harness with a planned batch of three launches."""
    return a_harness()


def batch_of(harness: Harness) -> str:
    """Return the batch of the first slot."""
    return harness.slot().batch or ""


def states(harness: Harness) -> list[str]:
    """Return the states of the three slots."""
    return [harness.slot(name).state for name in NAMES]


def holds(harness: Harness) -> list[tuple[str, str]]:
    """Return kind and subject of each launch back-off."""
    return [(row.kind, row.subject) for row in harness.store.read_rows() if isinstance(row, Hold)]


def test_launches_of_one_tick_are_one_message_and_one_request(harness: Harness) -> None:
    assert harness.mailbox.tasks == [("launch_batch", (batch_of(harness),))]
    assert launch(harness.ports, batch_of(harness)) == "success"
    assert len(harness.fleet.answers) == 1
    assert [harness.slot(name).instance_id for name in NAMES] == ["i-1", "i-2", "i-3"]
    assert states(harness) == ["booting"] * 3
    harness.settle()
    assert [harness.phase(f"r{number}") for number in range(1, 4)] == ["leased"] * 3
    assert len(harness.fleet.machines) == 3


def test_a_launch_without_another_one_beside_it_is_no_batch() -> None:
    harness = Harness({"pools": {"linux": POOL}})
    harness.submit("r1")
    harness.tick()
    assert harness.slot().batch is None
    assert [kind for kind, _ in harness.mailbox.tasks] == ["launch"]


@pytest.mark.parametrize("variable", ["slot", "launch_id"])
def test_machines_whose_user_data_names_the_slot_are_launched_one_by_one(variable: str) -> None:
    harness = a_harness(ec2={"image": "ami-1", "user_data": f"echo ${{{variable}}}"})
    assert [kind for kind, _ in harness.mailbox.tasks] == ["launch"] * 3


def test_a_batch_that_runs_twice_is_launched_once(harness: Harness) -> None:
    batch = batch_of(harness)
    assert [launch(harness.ports, batch) for _ in range(2)] == ["success", "not_wanted"]
    assert len(harness.fleet.running) == 3


def test_copies_of_a_batch_that_run_at_once_are_launched_once(harness: Harness) -> None:
    batch, results = batch_of(harness), []

    def meanwhile() -> None:
        harness.fleet.during_launch = lambda: None
        results.append(launch(harness.ports, batch))

    harness.fleet.during_launch = meanwhile
    results.append(launch(harness.ports, batch))
    assert results == ["success", "repeated"]
    assert (len(harness.fleet.running), harness.fleet.terminations) == (3, [])


def test_a_partial_answer_is_kept_and_the_rest_is_planned_again_at_once(harness: Harness) -> None:
    harness.fleet.most = 2
    batch = batch_of(harness)
    kicks = harness.notifier.kicks
    assert launch(harness.ports, batch) == "success"
    assert states(harness) == ["booting", "booting", "empty"]
    assert holds(harness) == [("capacity", "")]
    assert harness.notifier.kicks > kicks
    harness.fleet.most = None
    harness.settle(120)
    assert [harness.phase(f"r{number}") for number in range(1, 4)] == ["leased"] * 3
    assert len(harness.fleet.machines) == 3


def test_a_slot_that_was_given_up_during_the_launch_gets_no_machine(harness: Harness) -> None:
    def meanwhile() -> None:
        harness.fleet.during_launch = lambda: None
        for number in (2, 3):
            harness.ask("cancel", reservation=f"r{number}")
        harness.now += 31
        harness.tick()

    harness.fleet.during_launch = meanwhile
    assert launch(harness.ports, batch_of(harness)) == "aborted"
    assert harness.fleet.running == []
    assert states(harness) == ["empty"] * 3


def test_an_unclear_outcome_is_repeated_with_the_same_request(harness: Harness) -> None:
    batch = batch_of(harness)
    harness.fleet.errors = [CloudError("transient", "InternalError", "")]
    assert launch(harness.ports, batch) == "transient"
    stored = harness.slot().launch_request
    assert stored is not None
    assert launch(harness.ports, batch) == "not_wanted"
    harness.now += 1
    assert launch(harness.ports, batch) == "success"
    assert harness.fleet.answers.keys() == {stored["token"]}
    assert harness.slot().launch_request is None


def test_an_outcome_that_stays_unclear_is_misconfigured(harness: Harness) -> None:
    batch = batch_of(harness)
    harness.fleet.errors = [CloudError("unknown", "Odd", "")] * MOST_ATTEMPTS
    results = []
    for _ in range(MOST_ATTEMPTS):
        results.append(launch(harness.ports, batch))
        harness.now += 10
    assert results == ["transient"] * (MOST_ATTEMPTS - 1) + ["misconfigured"]
    assert states(harness) == ["error"] * 3
    assert launch(harness.ports, batch) == "not_wanted"


@pytest.mark.parametrize("category", ["capacity", "quota", "throttled", "auth"])
def test_a_refused_batch_pauses_launches_once(harness: Harness, category: Any) -> None:
    harness.fleet.errors = [CloudError(category, "Refused", "")]
    assert launch(harness.ports, batch_of(harness)) == category
    assert states(harness) == ["empty"] * 3
    assert [kind for kind, _ in holds(harness)] == [category]
    (hold,) = (row for row in harness.store.read_rows() if isinstance(row, Hold))
    assert (hold.streak, hold.active) == (1, 0)


def test_a_machine_without_a_known_id_is_found_by_the_batch(harness: Harness) -> None:
    """The worker died after EC2 had launched the machines; then one slot was given up."""
    batch = batch_of(harness)
    harness.ports.fleet = LostAnswers(harness)  # type: ignore[assignment]
    with pytest.raises(LostError):
        launch(harness.ports, batch)
    harness.ports.fleet = harness.fleet
    harness.ask("cancel", reservation="r2")
    harness.ask("cancel", reservation="r3")
    harness.now += 31
    harness.tick()
    assert states(harness) == ["terminating"] * 3
    assert terminate(harness.ports, "linux-2", 1) == "empty"
    assert states(harness) == ["empty"] * 3
    assert harness.fleet.running == []


def test_a_slot_that_was_given_up_before_the_request_is_not_in_it(harness: Harness) -> None:
    batch = batch_of(harness)
    harness.now += 31
    harness.tick()
    assert terminate_all(harness.ports, [(name, 1) for name in NAMES]) == dict.fromkeys(NAMES, "empty")
    assert launch(harness.ports, batch) == "not_wanted"
    assert harness.fleet.machines == {}


def test_a_lost_answer_is_repeated_and_the_sweep_leaves_its_machines_alone(harness: Harness) -> None:
    harness.ports.fleet = LostAnswers(harness)  # type: ignore[assignment]
    with pytest.raises(LostError):
        launch(harness.ports, batch_of(harness))
    harness.ports.fleet = harness.fleet
    harness.now += 5
    assert reconcile(harness.ports, 0.0).strangers == 0
    harness.settle(20)
    assert (states(harness), len(harness.fleet.machines)) == (["ready"] * 3, 3)


def test_no_other_slot_adopts_a_machine_of_a_batch_whose_request_a_backup_does_not_have_yet(harness: Harness) -> None:
    planned = [harness.slot(name) for name in NAMES]
    launch(harness.ports, batch_of(harness))
    with harness.store.transaction() as transaction:
        transaction.save([msgspec.structs.replace(slot, version=harness.slot(slot.id).version) for slot in planned])
    assert reconcile(harness.ports, 0.0).strangers == 0
    launch(harness.ports, batch_of(harness))
    assert [slot.instance_id for slot in harness.store.find_slots() if slot.instance_id] == ["i-1", "i-2", "i-3"]


def test_an_empty_slot_adopts_a_machine_of_an_unknown_batch() -> None:
    harness = Harness({"pools": {"linux": POOL}})
    harness.fleet.appear("i-9", slot=None, launch_id=None, batch="gone", launched_at=harness.now)  # type: ignore[arg-type]
    assert reconcile(harness.ports).adopted == 1
    assert harness.slot().instance_id == "i-9"
    assert reconcile(harness.ports).adopted == 0


OFFERINGS = [
    {"name": "small", "price": 1.0, "resources": {"cpus": 2}},
    {"name": "tiny", "price": 1.0, "resources": {"cpus": 1}},
    {"name": "large", "price": 1.4, "resources": {"cpus": 4}},
    {"name": "huge", "price": 9.0, "resources": {"cpus": 64}},
    {"name": "large", "market": "on-demand", "price": 1.4, "resources": {"cpus": 4}},
]


def test_ec2_may_choose_among_all_offerings_that_serve_the_slot() -> None:
    """An alternative has at least the resources, and costs at most `price_factor` times as much."""
    pool = {**POOL, "offerings": OFFERINGS, "default_resources": {"cpus": 2}, "max_leases_per_slot": 1}
    harness = Harness({"pools": {"linux": pool}})
    for number in range(1, 4):
        harness.submit(f"r{number}")
    harness.tick()
    assert harness.slot().offering == "small"
    launch(harness.ports, batch_of(harness))
    (answer,) = harness.fleet.answers.values()
    assert {machine.offering for machine in answer.machines} == {"large/spot"}
    bound = harness.slot()
    assert (bound.offering, bound.price, bound.resources) == ("large/spot", 1.4, {"cpus": 4})


@pytest.mark.parametrize("rises_after", ["the plan", "the request"])
def test_a_price_that_rises_before_the_answer_exceeds_no_budget(rises_after: str) -> None:
    """The plan counted one dollar an hour for each slot. Another offering may not cost more, whatever it costs now."""
    rules: dict[str, Any] = {
        "budgets": {"all": {"per_hour": 3.0}},
        "pools": {"linux": {**POOL, "default_resources": {"cpus": 2}, "price_factor": 9.0, "max_leases_per_slot": 1}},
    }

    def apply(harness: Harness, **prices: float) -> None:
        named = [{"name": name, "price": price, "resources": {"cpus": 2}} for name, price in prices.items()]
        pool = {**rules["pools"]["linux"], "offerings": named}
        apply_rules(harness.ports, {**rules, "pools": {"linux": pool}})

    harness = Harness(rules)
    apply(harness, a=1.0, b=1.0)
    for number in range(1, 4):
        harness.submit(f"r{number}")
    harness.tick()
    assert [harness.slot(name).price for name in NAMES] == [1.0] * 3
    if rises_after == "the plan":
        apply(harness, a=4.0, b=3.0)
    else:
        # The answer is lost, and the same request is sent again when the prices have risen.
        def lose() -> None:
            harness.fleet.during_launch = lambda: None
            apply(harness, a=4.0, b=4.0)
            raise CloudError("transient", "timeout", "")

        harness.fleet.during_launch = lose
    harness.play_tasks()
    harness.now += 20
    recover(harness.ports)
    harness.play_tasks()
    bound = [harness.slot(name) for name in NAMES]
    assert [slot.state for slot in bound] == ["ready"] * 3
    assert sum(slot.price or 0.0 for slot in bound) == 3.0


def test_machines_of_many_slots_are_ended_by_one_call(harness: Harness) -> None:
    harness.settle(10)
    for number in range(1, 4):
        harness.ask("release", reservation=f"r{number}", token=harness.token(f"r{number}"))
    harness.now += 400
    harness.tick()
    harness.tick()
    assert states(harness) == ["terminating"] * 3
    calls: list[list[str]] = []
    end = harness.fleet.terminate
    harness.fleet.terminate = lambda machines: (calls.append(list(machines)), end(machines))[1]  # type: ignore[method-assign, func-returns-value]
    outcomes = terminate_all(harness.ports, [*((name, 1) for name in NAMES), ("linux-4", 1)])
    assert outcomes == {**dict.fromkeys(NAMES, "asked"), "linux-4": "not_wanted"}
    assert calls == [["i-1", "i-2", "i-3"]]


class LostError(Exception):
    """The worker died before it recorded the answer."""


class LostAnswers:
    """A cloud that launches, and whose answers are lost."""

    def __init__(self, harness: Harness) -> None:
        self._fleet = harness.fleet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def launch(self, request: Any) -> None:
        """Launch the machines of a batch, and raise LostError."""
        self._fleet.launch(request)
        raise LostError


def test_a_batch_that_cannot_be_settled_costs_one_call_however_many_slots_were_given_up(harness: Harness) -> None:
    harness.ports.fleet = LostAnswers(harness)  # type: ignore[assignment]
    with pytest.raises(LostError):
        launch(harness.ports, batch_of(harness))
    harness.ports.fleet = harness.fleet
    harness.now += 31
    harness.tick()
    harness.fleet.errors = [CloudError("throttled", "RequestLimitExceeded", "")] * 3
    found = terminate_all(harness.ports, [(name, 1) for name in NAMES])
    assert found == dict.fromkeys(NAMES, "throttled")
    assert len(harness.fleet.errors) == 2
    assert states(harness) == ["terminating"] * 3


def test_beside_machines_a_refusal_of_the_caller_concerns_the_offering_only(harness: Harness) -> None:
    harness.fleet.most = 2
    send = harness.fleet.launch
    refusal = Refusal(offering=None, category="auth", code="AuthFailure", message="who?", scope="caller")

    def refuse(request: Any) -> LaunchAnswer:
        return msgspec.structs.replace(send(request), refusals=(refusal,))

    harness.fleet.launch = refuse  # type: ignore[method-assign]
    assert launch(harness.ports, batch_of(harness)) == "success"
    assert [row.id for row in harness.store.read_rows() if isinstance(row, Hold)] == ["linux/auth/"]


def test_a_refused_request_refuses_all_offerings_that_it_names() -> None:
    pool = {**POOL, "offerings": OFFERINGS, "default_resources": {"cpus": 2}, "max_leases_per_slot": 1}
    harness = Harness({"pools": {"linux": pool}})
    for number in range(1, 4):
        harness.submit(f"r{number}")
    harness.tick()
    harness.fleet.errors = [CloudError("misconfigured", "InvalidKeyPair.NotFound", "no such key")]
    assert launch(harness.ports, batch_of(harness)) == "misconfigured"
    found = {row.id: (row.code, row.streak) for row in harness.store.read_rows() if isinstance(row, Hold)}
    expected = ("InvalidKeyPair.NotFound", 1)
    assert found == {f"linux/misconfigured/{key}": expected for key in ("small", "large/spot")}
    assert {harness.slot(name).refusal for name in NAMES} == {"InvalidKeyPair.NotFound: no such key"}
