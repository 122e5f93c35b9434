"""A refusal settles a request whose earlier attempt was unclear only after its machines were searched by their tag."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler.model.launch_backoff import Hold
from scheduler.model.slots import Machine
from scheduler.operations.machines.check import recover
from scheduler.operations.machines.launch import MOST_ATTEMPTS
from scheduler.operations.machines.terminate import terminate_all
from scheduler.ports import CloudError, LaunchAnswer, Refusal
from scheduler.ports.fleet import Category
from tests.operations.harness import CountingFleet, Harness

POOL = {"system": "x86_64-linux", "max_slots": 5, "lease_ttl": 0, "launch_timeout": 300}
LOST = CloudError("transient", "ReadTimeoutError", "no answer")
DEFINITE: list[Category] = ["capacity", "quota", "misconfigured", "token", "gone", "state", "not_found"]
REPEATED: list[Category] = ["throttled", "auth"]


class SearchedFleet(CountingFleet):
    """A cloud that records the searches for machines by their tag, and that refuses some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.searches: list[str] = []
        self.sent = 0
        self.search_errors: list[CloudError] = []

    def launch(self, request: Any) -> LaunchAnswer:
        self.sent += 1
        return super().launch(request)

    def find_launched(self, request: Any) -> list[Machine]:
        self._search(request["order"]["batch"] or request["order"]["launch_id"])
        return super().find_launched(request)

    def _search(self, name: str) -> None:
        self.searches.append(name)
        if self.search_errors:
            raise self.search_errors.pop(0)


class Launches:
    """A pool with launches that are under way: of one slot, or of a batch of three."""

    def __init__(self, count: int) -> None:
        self.fleet = SearchedFleet()
        self.harness = Harness({"pools": {"linux": POOL}}, fleet=self.fleet)
        self.names = [f"linux-{number}" for number in range(1, count + 1)]
        for number in range(count):
            self.harness.submit(f"r{number}")
        self.harness.tick()

    def lose_the_answer(self) -> None:
        def lose() -> None:
            self.fleet.during_launch = lambda: None
            raise LOST

        self.fleet.during_launch = lose
        self.harness.play_tasks()

    def fail_without_effect(self) -> None:
        """Send the request, which the cloud does not carry out, and get no clear answer."""
        self.fleet.errors = [LOST]
        self.harness.play_tasks()

    def send_again(self, *errors: CloudError) -> None:
        self.fleet.errors = list(errors)
        self.harness.now += 11
        recover(self.harness.ports)
        kind, arguments = self.harness.mailbox.tasks.pop(0)
        assert kind in {"launch", "launch_batch"}
        self.harness.mailbox.tasks = [(kind, arguments)]
        self.harness.play_tasks_of(kind)

    @property
    def states(self) -> list[str]:
        return [self.harness.slot(name).state for name in self.names]

    @property
    def machines(self) -> list[str | None]:
        return [self.harness.slot(name).instance_id for name in self.names]

    def holds(self) -> dict[str, Hold]:
        return {row.id: row for row in self.harness.store.read_rows() if isinstance(row, Hold)}


@pytest.fixture(params=[1, 3], ids=["single", "batch"])
def launches(request: pytest.FixtureRequest) -> Launches:
    return Launches(request.param)


@pytest.mark.parametrize("category", DEFINITE)
def test_a_refusal_after_a_lost_answer_is_settled_with_the_machines_that_were_launched(
    launches: Launches, category: Category
) -> None:
    launches.lose_the_answer()
    launches.send_again(CloudError(category, "Code", "no"))
    assert launches.machines == launches.fleet.running
    assert set(launches.states) == {"booting"}
    assert launches.holds() == {}
    launches.harness.settle(20)
    assert [launches.harness.phase(f"r{number}") for number in range(len(launches.names))] == ["leased"] * len(
        launches.names
    )
    assert len(launches.fleet.machines) == len(launches.names)


@pytest.mark.parametrize("category", DEFINITE)
def test_a_refusal_after_an_unclear_attempt_counts_when_no_machine_was_found(
    launches: Launches, category: Category
) -> None:
    launches.fail_without_effect()
    assert launches.fleet.searches == []
    launches.send_again(CloudError(category, "Code", "no"))
    assert len(launches.fleet.searches) == 1
    is_empty = category in {"capacity", "quota", "gone"}
    assert set(launches.states) == {"empty" if is_empty else "error"}
    assert {launches.harness.slot(name).refusal for name in launches.names} == {"Code: no"}
    (hold,) = launches.holds().values()
    assert (hold.code, hold.message, hold.streak) == ("Code", "no", 1)
    assert hold.until > launches.harness.now


@pytest.mark.parametrize("category", REPEATED)
def test_a_refusal_before_ec2_looks_at_the_request_settles_nothing_after_a_lost_answer(
    launches: Launches, category: Category
) -> None:
    launches.lose_the_answer()
    launches.send_again(CloudError(category, "Code", "no"))
    assert launches.fleet.searches == []
    assert set(launches.states) == {"launching"}
    launches.send_again()
    assert launches.machines == launches.fleet.running
    assert len(launches.fleet.machines) == len(launches.names)


@pytest.mark.parametrize("category", REPEATED)
def test_the_last_attempt_is_followed_by_a_search(launches: Launches, category: Category) -> None:
    launches.lose_the_answer()
    for _ in range(MOST_ATTEMPTS - 1):
        assert set(launches.states) == {"launching"}
        launches.send_again(CloudError(category, "Code", "no"))
    assert launches.machines == launches.fleet.running
    assert len(launches.fleet.searches) == 1


@pytest.mark.parametrize("category", DEFINITE)
def test_a_failed_search_leaves_the_launch_unclear(launches: Launches, category: Category) -> None:
    launches.lose_the_answer()
    launches.fleet.search_errors = [CloudError("throttled", "RequestLimitExceeded", "slow down")]
    launches.send_again(CloudError(category, "Code", "no"))
    assert set(launches.states) == {"launching"}
    launches.send_again(CloudError(category, "Code", "no"))
    assert launches.machines == launches.fleet.running
    assert len(launches.fleet.machines) == len(launches.names)


@pytest.mark.parametrize("category", DEFINITE)
def test_a_refusal_after_an_unclear_attempt_of_the_same_call_is_settled_by_a_search(
    launches: Launches, category: Category
) -> None:
    """The machines may be there after the first attempt here, because botocore repeats a call itself."""

    def refuse() -> None:
        launches.fleet.during_launch = lambda: None
        raise CloudError(category, "Code", "no", is_after_unclear=True)

    launches.fleet.during_launch = refuse
    launches.harness.play_tasks_of(launches.harness.mailbox.tasks[0][0])
    assert launches.machines == launches.fleet.running
    assert len(launches.fleet.searches) == 1


@pytest.mark.parametrize("category", ["capacity", "quota", "misconfigured"])
def test_a_clear_refusal_needs_no_search(launches: Launches, category: Category) -> None:
    launches.fleet.errors = [CloudError(category, "Code", "no")]
    launches.harness.play_tasks()
    assert launches.fleet.searches == []
    assert set(launches.states) <= {"empty", "error"}


def test_a_known_client_token_is_searched_before_another_one_is_used(launches: Launches) -> None:
    launches.fleet.errors = [CloudError("token", "IdempotentParameterMismatch", "used already", "machine")]
    launches.harness.play_tasks()
    assert len(launches.fleet.searches) == 1
    assert set(launches.states) == {"error"}
    tokens = set(launches.fleet.by_token)
    launches.harness.settle(200)
    assert len(launches.fleet.running) == len(launches.names)
    assert not tokens & set(launches.fleet.by_token)


def test_a_launch_whose_machine_has_ended_frees_its_slot_and_does_not_loop(launches: Launches) -> None:
    ended = CloudError("gone", "IdempotentInstanceTerminated", "it has ended", "machine")
    launches.fleet.errors = [ended] * 1000
    launches.harness.play_tasks()
    assert set(launches.states) == {"empty"}
    launches.harness.settle(600)
    assert launches.fleet.sent <= 8


def test_the_machines_of_a_lost_partial_answer_are_kept_and_the_rest_is_refused() -> None:
    launches = Launches(3)
    launches.fleet.most = 2
    launches.lose_the_answer()
    launches.send_again(CloudError("capacity", "InsufficientInstanceCapacity", "none left"))
    assert launches.machines == ["i-1", "i-2", None]
    assert launches.states == ["booting", "booting", "empty"]
    assert launches.harness.slot("linux-3").refusal == "InsufficientInstanceCapacity: none left"
    assert [hold.kind for hold in launches.holds().values()] == ["capacity"]


@pytest.mark.parametrize("by_botocore", [True, False])
def test_a_repeated_request_whose_answer_has_no_machines_is_settled_by_the_tag(by_botocore: bool) -> None:
    launches = Launches(3)
    launches.lose_the_answer()
    if by_botocore:
        launches.harness.put(msgspec.structs.replace(launches.harness.slot(), attempts=0))
    short = Refusal(offering=None, category="capacity", code="UnfulfillableCapacity")
    (token,) = launches.fleet.answers
    launches.fleet.answers[token] = LaunchAnswer(machines=(), refusals=(short,), is_after_unclear=by_botocore)
    launches.send_again()
    assert launches.machines == launches.fleet.running == ["i-1", "i-2", "i-3"]
    assert launches.holds() == {}


def test_the_first_answer_without_machines_is_a_lack_of_capacity() -> None:
    launches = Launches(3)
    launches.fleet.most = 0
    launches.harness.play_tasks()
    assert launches.fleet.searches == []
    assert [hold.kind for hold in launches.holds().values()] == ["capacity"]


def test_an_offering_whose_launches_stay_unclear_gets_fewer_requests_each_time() -> None:
    launches = Launches(1)
    launches.fleet.errors = [LOST] * 1000
    sent: list[int] = []
    for _ in range(3):
        before = launches.fleet.sent
        launches.harness.settle(50, 1)
        sent.append(launches.fleet.sent - before)
        held = max(hold.until for hold in launches.holds().values())
        launches.harness.now = max(launches.harness.now, held - 1)
    assert sent == [MOST_ATTEMPTS, 2, 2]


@pytest.mark.parametrize("category", [*DEFINITE, *REPEATED, "transient", "unknown"])
@pytest.mark.parametrize("is_launched", [True, False])
def test_a_launch_that_is_given_up_leaves_no_machine_behind_and_sends_few_requests(
    launches: Launches, category: Category, is_launched: bool
) -> None:
    act: Callable[[], None] = launches.lose_the_answer if is_launched else launches.fail_without_effect
    act()
    for number in range(len(launches.names)):
        launches.harness.ask("cancel", reservation=f"r{number}")
    launches.harness.now += 301
    launches.harness.tick()
    assert set(launches.states) == {"terminating"}
    launches.fleet.errors = [CloudError(category, "Code", "no")] * 1000
    launches.fleet.sent = 0
    pairs = [(name, launches.harness.slot(name).epoch) for name in launches.names]
    for _ in range(20):
        launches.harness.now += 61
        terminate_all(launches.harness.ports, pairs)
        launches.harness.play_tasks_of("check")
    assert launches.fleet.running == []
    assert set(launches.states) == {"empty"}
    assert launches.fleet.sent <= MOST_ATTEMPTS + 1


def test_an_attempt_without_an_answer_that_outlasts_its_launch_pauses_the_offering() -> None:
    """Else the tick would launch the offering again at once, and each attempt would take as long."""
    launches = Launches(1)

    def outlast() -> None:
        launches.fleet.during_launch = lambda: None
        launches.harness.now += 301
        launches.harness.tick()
        raise LOST

    launches.fleet.during_launch = outlast
    launches.harness.play_tasks_of("launch")
    assert launches.states == ["terminating"]
    (hold,) = launches.holds().values()
    assert (hold.kind, hold.code, hold.until - launches.harness.now) == ("misconfigured", "ReadTimeoutError", 60.0)
