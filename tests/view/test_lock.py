"""The Lock's contract, in memory and on Redis; and the renewal that runs beside a tick."""

import threading
from itertools import pairwise

import pytest
import redis

from scheduler.ports import LeaderLock, ViewUnavailableError
from scheduler.view.memory import LockHolder, MemoryLeaderLock
from scheduler.view.redis_leader_lock import RedisLeaderLock
from scheduler.view.renewal import Renewal
from tests.servers import OpenRedis
from tests.view.conftest import MakeLock


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_who_takes_a_free_lock_holds_it(make_lock: MakeLock) -> None:
    lock = make_lock()
    assert lock.seconds_left() == 0
    assert lock.take()
    assert 14 < lock.seconds_left() <= 15


def test_a_held_lock_is_refused_and_the_holder_told_to_tick_once_more(make_lock: MakeLock) -> None:
    holder, other = make_lock(), make_lock()
    holder.take()
    assert not other.take()
    assert other.seconds_left() == 0
    assert holder.release()


def test_without_a_mark_the_holder_is_not_asked_for_more(make_lock: MakeLock) -> None:
    holder = make_lock()
    holder.take()
    assert not holder.release()
    assert holder.seconds_left() == 0


def test_a_second_tick_of_the_same_process_is_refused_and_marked_too(make_lock: MakeLock) -> None:
    lock = make_lock()
    lock.take()
    assert not lock.take()
    assert lock.seconds_left() > 0
    assert lock.release()


def test_the_tick_that_begins_is_the_one_that_was_asked_for(make_lock: MakeLock) -> None:
    lock, other = make_lock(), make_lock()
    lock.take()
    other.take()
    assert lock.release()
    assert lock.take()
    assert not lock.release()


def test_everybody_sees_when_a_held_lock_ends(make_lock: MakeLock) -> None:
    holder, other = make_lock(), make_lock()
    assert other.seconds_until_free() == 0
    holder.take()
    assert 14 < other.seconds_until_free() <= 15
    assert 14 < holder.seconds_until_free() <= 15
    holder.release()
    assert other.seconds_until_free() == 0


def test_a_released_lock_is_free_for_others(make_lock: MakeLock) -> None:
    lock, other = make_lock(), make_lock()
    lock.take()
    lock.release()
    assert other.take()
    assert not lock.renew()


def test_a_lock_that_is_not_held_is_not_renewed(make_lock: MakeLock) -> None:
    assert not make_lock().renew()


def test_the_mark_stays_for_the_holder_when_one_who_holds_nothing_lets_go(make_lock: MakeLock) -> None:
    holder, other = make_lock(), make_lock()
    holder.take()
    other.take()
    assert not other.release()
    assert holder.renew()
    assert holder.release()


class Contest:
    """Many ticks in several threads, each of which looks whether it is alone."""

    def __init__(self) -> None:
        self.inside = 0
        self.most_inside = 0
        self.asked: list[int] = []
        self.begun: list[int] = []
        self.steps = iter(range(10**9))
        self.guard = threading.Lock()

    def run(self, lock: LeaderLock, rounds: int) -> None:
        for _ in range(rounds):
            with self.guard:
                self.asked.append(next(self.steps))
            while lock.take():
                self.tick()
                if not lock.release():
                    break

    def tick(self) -> None:
        with self.guard:
            self.begun.append(next(self.steps))
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        with self.guard:
            self.inside -= 1


def test_there_are_never_two_holders_and_no_ask_is_lost(redis_url: str, open_redis: OpenRedis) -> None:
    contest = Contest()
    threads = [
        threading.Thread(target=contest.run, args=(RedisLeaderLock(open_redis(redis_url)), 100)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contest.most_inside == 1
    assert max(contest.begun) > max(contest.asked), "the last ask was followed by a tick"
    assert all(earlier < later for earlier, later in pairwise(contest.begun))


def test_a_lock_that_ran_out_is_another_s_and_its_old_holder_cannot_touch_it(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis
) -> None:
    old, new = RedisLeaderLock(open_redis(redis_url)), RedisLeaderLock(open_redis(redis_url))
    old.take()
    redis_client.delete("leasehold:leader")  # as its time, or a flush, does
    assert new.take()
    assert not new.take()
    assert not old.renew()
    assert old.seconds_left() == 0
    assert not old.release(), "the mark is for the new holder"
    assert new.renew()
    assert new.release()


def test_when_nobody_holds_a_lock_that_ran_out_its_mark_is_told_to_the_old_holder(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis
) -> None:
    old, other = RedisLeaderLock(open_redis(redis_url)), RedisLeaderLock(open_redis(redis_url))
    old.take()
    other.take()
    redis_client.delete("leasehold:leader")
    assert old.release()
    assert old.release(), "asked twice, told twice: the answer may have been lost"
    assert old.take()
    assert not old.release()


def test_a_lock_ends_by_itself_in_redis(redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis) -> None:
    dead = RedisLeaderLock(open_redis(redis_url), lock_seconds=0.05)
    dead.take()
    other = RedisLeaderLock(open_redis(redis_url))
    while not other.take():
        pass
    assert other.seconds_left() > 0


def test_renewing_gives_another_whole_time(redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis) -> None:
    lock = RedisLeaderLock(open_redis(redis_url), lock_seconds=15)
    lock.take()
    redis_client.pexpire("leasehold:leader", 3000)
    assert lock.renew()
    left = redis_client.pttl("leasehold:leader")
    assert isinstance(left, int)
    assert 14_000 < left <= 15_000


def test_the_time_that_is_left_counts_from_the_beginning_of_the_take(redis_client: redis.Redis) -> None:
    ticking = iter(range(100))
    lock = RedisLeaderLock(redis_client, lock_seconds=15, clock=lambda: float(next(ticking)))
    lock.take()  # began at 0
    assert lock.seconds_left() == 14  # asked at 1
    lock.renew()  # began at 2
    assert lock.seconds_left() == 14  # asked at 3


def test_by_our_clock_leadership_only_ever_gets_shorter(redis_client: redis.Redis, open_redis: OpenRedis) -> None:
    clock = Clock()
    lock = RedisLeaderLock(redis_client, lock_seconds=15, clock=clock)
    lock.take()
    clock.now += 5
    broken = RedisLeaderLock(open_redis("redis://127.0.0.1:1/0"), clock=clock)
    with pytest.raises(ViewUnavailableError):
        broken.take()
    assert broken.seconds_left() == 0
    assert lock.seconds_left() == 10
    clock.now += 11
    assert lock.seconds_left() == 0


def test_a_take_whose_answer_was_lost_is_made_good_by_the_next(redis_client: redis.Redis) -> None:
    lock = RedisLeaderLock(redis_client)
    send, lost = lock._take, [True]

    def lose_the_first_answer(keys: list[str], args: list[str]) -> object:
        answer = send(keys, args)
        if lost:
            lost.clear()
            raise redis.ConnectionError("cut off")
        return answer

    lock._take = lose_the_first_answer  # type: ignore[assignment]
    with pytest.raises(ViewUnavailableError):
        lock.take()
    assert lock.seconds_left() == 0
    assert lock.take()
    assert lock.renew()


class FlakyLock(MemoryLeaderLock):
    """A lock that notes its renewals; some of them find no Redis."""

    def __init__(self, *, failing: set[int], lock_seconds: float = 15.0) -> None:
        super().__init__(LockHolder(), lock_seconds)
        self.renewals, self.failing = 0, failing
        self.renewed = threading.Condition()

    def renew(self) -> bool:
        with self.renewed:
            self.renewals += 1
            self.renewed.notify_all()
            if self.renewals in self.failing:
                raise ViewUnavailableError("Redis: away")
        return super().renew()

    def wait_for(self, renewals: int) -> bool:
        with self.renewed:
            return self.renewed.wait_for(lambda: self.renewals >= renewals, 10)


def test_the_lock_is_renewed_in_the_background_as_long_as_the_tick_runs() -> None:
    lock = FlakyLock(failing={2})
    lock.take()
    renewal = Renewal(lock, 0.03)
    with renewal:
        assert lock.wait_for(4)
    count = lock.renewals
    with renewal:
        assert lock.wait_for(count + 2), "entered again for the round after"
    count = lock.renewals
    assert not lock.release()
    assert lock.renewals == count
    assert "lock-renewal" not in {thread.name for thread in threading.enumerate()}


def test_renewal_ends_when_the_lock_is_another_s() -> None:
    lock = FlakyLock(failing=set())
    with Renewal(lock, 0.03) as renewal:  # never taken
        assert lock.wait_for(1)
        assert renewal._thread is not None
        renewal._thread.join(10)
        assert not renewal._thread.is_alive()
    assert lock.renewals == 1


def test_renewal_ends_when_the_time_ran_out_without_redis() -> None:
    lock = FlakyLock(failing=set(range(1000)), lock_seconds=0.05)
    lock.take()
    with Renewal(lock, 0.03) as renewal:
        assert renewal._thread is not None
        renewal._thread.join(10)
        assert not renewal._thread.is_alive()
    assert lock.seconds_left() == 0
