"""The budget of EC2 calls on a real Redis, checked against the emulator's own buckets."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import redis

from scheduler.ports import CloudError
from testbed.servers import OpenRedis
from tests.ec2.conftest import REGION, Emulator
from workers.ec2.budget import LEAST_SHARE, PATIENCE, REGAINED, SAME_REFUSAL_MS, CallBudget
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


def read_share(client: redis.Redis, bucket: str) -> float | None:
    """The share of its gain that a bucket had after the last refusal; None: it was not lowered."""
    found = client.hget(f"leasehold:ec2:{REGION}", f"{bucket}:factor")
    return None if found is None else float(found)


def set_refusal_back(client: redis.Redis, bucket: str, seconds: float) -> None:
    """Let the last refusal be that much longer ago."""
    key = f"leasehold:ec2:{REGION}"
    at = float(client.hget(key, f"{bucket}:cut") or 0)
    client.hset(key, f"{bucket}:cut", at - 1000 * seconds)


KINDS = {"DescribeInstances": "calls", "RunInstances": "launches", "TerminateInstances": "terminations"}


@pytest.mark.parametrize("action", KINDS)
def test_a_refusal_halves_the_gain_of_its_kind_of_call_and_empties_the_bucket(
    action: str, redis_client: redis.Redis
) -> None:
    waiter = Waiter(redis_client)
    waiter.budget.lower(action, REGION)
    assert {bucket: read_share(redis_client, bucket) for bucket in KINDS.values()} == {
        bucket: 0.5 if bucket == KINDS[action] else None for bucket in KINDS.values()
    }
    waiter.budget.await_tokens(action, REGION)
    assert waiter.waited > 0
    waiter.budget.await_tokens(action, "eu-west-1")
    other = Waiter(redis_client)
    other.budget.await_tokens(action, "eu-west-1")
    assert other.waited == 0


def test_refusals_of_calls_that_were_under_way_together_count_once_and_later_ones_again(
    redis_client: redis.Redis,
) -> None:
    budget = Waiter(redis_client).budget
    for _ in range(20):
        budget.lower("RunInstances", REGION)
    assert read_share(redis_client, "launches") == 0.5
    set_refusal_back(redis_client, "launches", SAME_REFUSAL_MS / 1000)
    budget.lower("RunInstances", REGION)
    assert read_share(redis_client, "launches") == pytest.approx((0.5 + REGAINED) / 2, abs=REGAINED)


def test_a_share_is_never_below_the_smallest_one(redis_client: redis.Redis) -> None:
    budget = Waiter(redis_client).budget
    for _ in range(12):
        budget.lower("RunInstances", REGION)
        set_refusal_back(redis_client, "launches", SAME_REFUSAL_MS / 1000)
    assert LEAST_SHARE <= (read_share(redis_client, "launches") or 0) <= LEAST_SHARE + 2 * REGAINED


class Recorded:
    """Records how long a launch would have to wait in an empty bucket, at five calls a second."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def ask(self) -> float:
        now = time.time() * 1000
        self._client.hset(f"leasehold:ec2:{REGION}", mapping={"launches": 0, "launches:at": now})
        waits: list[float] = []

        def pause(seconds: float) -> None:
            waits.append(seconds)
            self._client.hset(f"leasehold:ec2:{REGION}", mapping={"launches": 1, "launches:at": time.time() * 1000})

        budget = CallBudget(self._client, "leasehold:", 5.0, pause=pause, clock=lambda: 0.0)
        budget.await_tokens("RunInstances", REGION)
        return waits[0]


def test_the_gain_grows_by_a_fixed_share_a_second_until_it_is_whole_again(redis_client: redis.Redis) -> None:
    """At five calls a second launches gain half a token a second: an empty bucket needs two seconds, four at half the
    gain.
    """
    Waiter(redis_client).budget.lower("RunInstances", REGION)
    first = Recorded(redis_client)
    assert first.ask() == pytest.approx(1 / (0.5 * 0.5), rel=0.05)
    set_refusal_back(redis_client, "launches", 10)
    assert first.ask() == pytest.approx(1 / (0.7 * 0.5), rel=0.05)
    set_refusal_back(redis_client, "launches", 60)
    assert first.ask() == pytest.approx(1 / 0.5, rel=0.05)


def test_a_refusal_before_the_clock_was_set_back_does_not_count(redis_client: redis.Redis) -> None:
    Waiter(redis_client).budget.lower("RunInstances", REGION)
    set_refusal_back(redis_client, "launches", -3600)
    assert Recorded(redis_client).ask() == pytest.approx(1 / 0.5, rel=0.05)


@pytest.mark.parametrize(("code", "is_lowered"), [("RequestLimitExceeded", True), ("InternalError", False)])
def test_a_refusal_by_ec2_because_of_the_rate_lowers_the_budget_of_all_processes(
    code: str, is_lowered: bool, emulator: Emulator, access: Ec2Access, redis_url: str, open_redis: OpenRedis
) -> None:
    client = open_redis(redis_url)
    budget = CallBudget(client, "leasehold:", PER_SECOND, pause=lambda _: None, clock=count(0, 2 * PATIENCE).__next__)
    emulator.set_fault(action="DescribeInstances", code=code)
    with pytest.raises(CloudError):
        list(make_fleet("blue", access, budget).sweep())
    share = read_share(client, "calls")
    assert (share is not None and LEAST_SHARE <= share <= 0.5) == is_lowered
    assert read_share(client, "launches") is None


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
