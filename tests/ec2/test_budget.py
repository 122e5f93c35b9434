"""The budget of EC2 calls on a real Redis, checked against the emulator's own buckets."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from scheduler.ports import CloudError
from tests.ec2.conftest import REGION, Emulator
from tests.servers import OpenRedis
from workers.ec2.budget import PATIENCE, CallBudget
from workers.ec2.clients import ATTEMPTS, Ec2Access
from workers.ec2.fleet import make_fleet

PER_SECOND = 20.0


class Waiter:
    """A caller that counts its waits. Its time passes only while it waits."""

    def __init__(self, client: redis.Redis, per_second: float = PER_SECOND) -> None:
        self.now, self.waited = 0.0, 0
        self.budget = CallBudget(client, "leasehold:", per_second, pause=self.pause, clock=lambda: self.now)

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.waited += 1

    def count_at_once(self, action: str, most: int = 200) -> tuple[int, float]:
        """Return how many such calls go before one has to wait, and the seconds that they took."""
        began = time.monotonic()
        for gone in range(most):
            self.budget.await_tokens(action, REGION)
            if self.waited:
                return gone, time.monotonic() - began
        return most, time.monotonic() - began


@pytest.mark.parametrize(
    ("action", "size", "gain"),
    [
        # Calls that go at once with full buckets, and further calls for each second.
        ("DescribeInstances", 60, 20),
        ("RunInstances", 5, 2),
        ("CreateFleet", 5, 2),
        ("TerminateInstances", 100, 20),
    ],
)
def test_calls_go_at_once_as_long_as_there_are_tokens(
    action: str, size: int, gain: int, redis_client: redis.Redis
) -> None:
    gone, seconds = Waiter(redis_client).count_at_once(action)
    assert size <= gone <= size + gain * seconds + 1


def test_reading_calls_leave_tokens_for_launches_and_both_leave_tokens_for_terminations(
    redis_client: redis.Redis,
) -> None:
    looking = Waiter(redis_client)
    looking.count_at_once("DescribeInstances")
    launching = Waiter(redis_client)
    assert launching.count_at_once("RunInstances")[0] >= 5
    ending = Waiter(redis_client)
    assert ending.count_at_once("TerminateInstances")[0] >= 20


def test_a_call_that_has_waited_its_limit_is_sent(redis_client: redis.Redis) -> None:
    waiter = Waiter(redis_client, per_second=0.001)
    waiter.budget.await_tokens("DescribeInstances", REGION)
    assert waiter.now == 0
    waiter.budget.await_tokens("DescribeInstances", REGION)
    assert waiter.now == pytest.approx(PATIENCE)


def test_regions_have_budgets_of_their_own(redis_client: redis.Redis) -> None:
    waiter = Waiter(redis_client, per_second=0.001)
    for region in ("us-east-1", "eu-west-1"):
        waiter.budget.await_tokens("DescribeInstances", region)
    assert waiter.waited == 0


def test_a_clock_that_was_set_back_delays_no_call(redis_client: redis.Redis) -> None:
    in_an_hour = (time.time() + 3600) * 1000
    redis_client.hset(f"leasehold:ec2:{REGION}", mapping={"calls": 0, "calls:at": in_an_hour})
    waiter = Waiter(redis_client)
    waiter.budget.await_tokens("DescribeInstances", REGION)
    assert waiter.waited == 0


def test_without_redis_no_call_waits(open_redis: OpenRedis) -> None:
    waiter = Waiter(open_redis("redis://127.0.0.1:1/0"))
    waiter.budget.await_tokens("DescribeInstances", REGION)
    assert waiter.waited == 0


def test_many_processes_together_are_not_throttled(
    emulator: Emulator, access: Ec2Access, redis_url: str, open_redis: OpenRedis
) -> None:
    """Each process alone stays within the limit; EC2 counts all of them."""
    emulator.steer(throttling={"describe": {"size": 70, "refill": PER_SECOND}})
    fleets = [make_fleet("blue", access, CallBudget(open_redis(redis_url), "leasehold:", PER_SECOND)) for _ in range(4)]

    def look(sweep: Callable[[], object]) -> None:
        for _ in range(25):
            assert list(sweep()) == []  # type: ignore[call-overload]

    with ThreadPoolExecutor(len(fleets)) as threads:
        list(threads.map(look, [fleet.sweep for fleet in fleets]))
    assert len(emulator.calls("DescribeInstances")) == 100
    assert [call for call in emulator.calls() if call["faults"]] == []


class Recording(CallBudget):
    """A budget that records the calls that took tokens."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client, "leasehold:")
        self.taken: list[tuple[str, str]] = []

    def await_tokens(self, action: str, region: str) -> None:
        self.taken.append((action, region))
        super().await_tokens(action, region)


def test_every_attempt_of_a_call_takes_its_tokens(
    emulator: Emulator, access: Ec2Access, redis_client: redis.Redis
) -> None:
    emulator.set_fault(action="DescribeInstances", code="InternalError")
    budget = Recording(redis_client)
    with pytest.raises(CloudError):
        list(make_fleet("blue", access, budget).sweep())
    assert budget.taken == [("DescribeInstances", REGION)] * len(emulator.calls("DescribeInstances"))
    assert len(budget.taken) == ATTEMPTS
