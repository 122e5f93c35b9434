"""The contract of the port `LeaderLock`, in memory and on Redis, and the renewal that runs during a tick."""

import threading
from itertools import pairwise

import pytest
import redis

from scheduler.ports import LeaderLock, ViewUnavailableError
from scheduler.view.memory import LockHolder, MemoryLeaderLock
from scheduler.view.redis_ports import RedisLeaderLock, Renewal
from testbed.servers import OpenRedis
from tests.view.conftest import MakeLock, MakeLockAndNotifier


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_process_that_takes_a_free_lock_holds_it(make_lock: MakeLock) -> None:
    lock = make_lock()
    assert lock.seconds_left() == 0
    assert lock.take()
    assert 14 < lock.seconds_left() <= 15


def test_a_held_lock_is_refused_and_its_holder_is_asked_for_one_more_tick(make_lock: MakeLock) -> None:
    holder, other = make_lock(), make_lock()
    holder.take()
    assert not other.take()
    assert other.seconds_left() == 0
    assert holder.release()


def test_without_a_refused_take_the_holder_is_not_asked_for_another_tick(make_lock: MakeLock) -> None:
    holder = make_lock()
    holder.take()
    assert not holder.release()
    assert holder.seconds_left() == 0


def test_a_second_take_by_the_holder_is_refused_and_asks_for_one_more_tick(make_lock: MakeLock) -> None:
    lock = make_lock()
    lock.take()
    assert not lock.take()
    assert lock.seconds_left() > 0
    assert lock.release()


def test_a_new_take_clears_the_mark_for_one_more_tick(make_lock: MakeLock) -> None:
    lock, other = make_lock(), make_lock()
    lock.take()
    other.take()
    assert lock.release()
    assert lock.take()
    assert not lock.release()


def test_a_take_that_succeeds_lets_the_next_kick_send_a_message(make_lock_and_notifier: MakeLockAndNotifier) -> None:
    sent: list[str] = []
    lock, notifier = make_lock_and_notifier(lambda: sent.append("tick"))
    notifier.kick()
    assert lock.take()
    notifier.kick()
    assert not lock.take()
    notifier.kick()
    assert len(sent) == 2


def test_every_process_can_read_when_a_held_lock_ends(make_lock: MakeLock) -> None:
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


def test_a_release_without_the_lock_keeps_the_mark_for_the_holder(make_lock: MakeLock) -> None:
    holder, other = make_lock(), make_lock()
    holder.take()
    other.take()
    assert not other.release()
    assert holder.renew()
    assert holder.release()


class Contest:
    """Ticks in several threads; it records the largest number of ticks that ran at once."""

    def __init__(self) -> None:
        self.running = 0
        self.most_running = 0
        self.requested: list[int] = []
        self.begun: list[int] = []
        self.steps = iter(range(10**9))
        self.guard = threading.Lock()

    def run(self, lock: LeaderLock, rounds: int) -> None:
        for _ in range(rounds):
            with self.guard:
                self.requested.append(next(self.steps))
            while lock.take():
                self.tick()
                if not lock.release():
                    break

    def tick(self) -> None:
        with self.guard:
            self.begun.append(next(self.steps))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        with self.guard:
            self.running -= 1


def test_the_lock_has_at_most_one_holder_and_a_tick_follows_each_request(redis_url: str, open_redis: OpenRedis) -> None:
    contest = Contest()
    threads = [
        threading.Thread(target=contest.run, args=(RedisLeaderLock(open_redis(redis_url)), 100)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contest.most_running == 1
    assert max(contest.begun) > max(contest.requested), "no tick followed the last request"
    assert all(earlier < later for earlier, later in pairwise(contest.begun))


def test_an_expired_lock_can_be_taken_and_its_old_holder_cannot_change_it(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis
) -> None:
    old, new = RedisLeaderLock(open_redis(redis_url)), RedisLeaderLock(open_redis(redis_url))
    old.take()
    redis_client.delete("leasehold:leader")  # as its expiry or a flush does
    assert new.take()
    assert not new.take()
    assert not old.renew()
    assert old.seconds_left() == 0
    assert not old.release(), "the mark belongs to the new holder"
    assert new.renew()
    assert new.release()


def test_the_old_holder_of_an_expired_free_lock_receives_its_mark(
    redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis
) -> None:
    old, other = RedisLeaderLock(open_redis(redis_url)), RedisLeaderLock(open_redis(redis_url))
    old.take()
    other.take()
    redis_client.delete("leasehold:leader")
    assert old.release()
    assert old.release(), "a second release returns the same, because the first answer may have been lost"
    assert old.take()
    assert not old.release()


def test_a_lock_expires_in_redis(redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis) -> None:
    dead = RedisLeaderLock(open_redis(redis_url), lock_seconds=0.05)
    dead.take()
    other = RedisLeaderLock(open_redis(redis_url))
    while not other.take():
        pass
    assert other.seconds_left() > 0


def test_a_renewal_sets_the_full_time_again(redis_client: redis.Redis, redis_url: str, open_redis: OpenRedis) -> None:
    lock = RedisLeaderLock(open_redis(redis_url), lock_seconds=15)
    lock.take()
    redis_client.pexpire("leasehold:leader", 3000)
    assert lock.renew()
    left = redis_client.pttl("leasehold:leader")
    assert isinstance(left, int)
    assert 14_000 < left <= 15_000


def test_the_remaining_time_counts_from_the_start_of_the_take(redis_client: redis.Redis) -> None:
    ticking = iter(range(100))
    lock = RedisLeaderLock(redis_client, lock_seconds=15, clock=lambda: float(next(ticking)))
    lock.take()  # began at 0
    assert lock.seconds_left() == 14  # read at 1
    lock.renew()  # began at 2
    assert lock.seconds_left() == 14  # read at 3


def test_the_local_clock_only_shortens_leadership(redis_client: redis.Redis, open_redis: OpenRedis) -> None:
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


def test_a_take_whose_answer_was_lost_succeeds_when_it_is_repeated(redis_client: redis.Redis) -> None:
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
    """A lock that counts its renewals; the renewals in `failing` do not reach Redis."""

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


def test_the_lock_is_renewed_in_the_background_while_the_tick_runs() -> None:
    lock = FlakyLock(failing={2})
    lock.take()
    renewal = Renewal(lock, 0.03)
    with renewal:
        assert lock.wait_for(4)
    count = lock.renewals
    with renewal:
        assert lock.wait_for(count + 2), "the renewal starts again when it is entered again"
    count = lock.renewals
    assert not lock.release()
    assert lock.renewals == count
    thread = renewal._thread
    assert thread is not None, "the thread is kept for the next tick"
    thread.join(10)
    assert not thread.is_alive(), "without a tick the thread ends"
    lock.take()
    with renewal:
        assert lock.wait_for(count + 1), "a new thread is started for a later tick"


def test_renewal_ends_when_the_lock_is_not_held() -> None:
    lock = FlakyLock(failing=set())
    with Renewal(lock, 0.03) as renewal:  # never taken
        assert lock.wait_for(1)
        thread = renewal._thread
        assert thread is not None
        thread.join(10)
        assert not thread.is_alive()
    assert lock.renewals == 1


def test_renewal_ends_when_the_lock_expired_without_redis() -> None:
    lock = FlakyLock(failing=set(range(1000)), lock_seconds=0.05)
    lock.take()
    with Renewal(lock, 0.03) as renewal:
        thread = renewal._thread
        assert thread is not None
        thread.join(10)
        assert not thread.is_alive()
    assert lock.seconds_left() == 0
