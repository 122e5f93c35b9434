"""Gathering in the main process of a worker: requests that wait for a process go to it together, each keeps its end."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.exceptions import TaskRevokedError

from tasks.gathered import run_gathered
from tasks.gatherer import MOST_GATHERED, Gatherer
from tasks.queues import MOST_BYTES, is_gatherable

SUBMIT = "leasehold.reservations.submit"


class FakeRequest:
    """A request of Celery's: it records what happens to it."""

    task = type("Limits", (), {"soft_time_limit": 100.0, "time_limit": 120.0})

    def __init__(self, name: str, *, revoked: bool = False) -> None:
        self.id, self.name, self._revoked = name, SUBMIT, revoked
        self.request_dict: dict[str, Any] = {"id": name}
        self.body = "[]"
        self.seen: list[tuple[Any, ...]] = []
        self.on_left: Callable[[], object] = lambda: None

    def leave(self) -> None:
        self.on_left()

    def revoked(self) -> bool:
        return self._revoked

    def execute_using_pool(self, pool: "FakePool") -> None:
        """Celery's way of a single request."""
        pool.singles.append(self.id)

    def on_accepted(self, *values: Any) -> None:
        """Record the callback."""
        self.seen.append(("accepted", *values))

    def on_success(self, *values: Any) -> None:
        """Record the callback."""
        self.seen.append(("success", *values))

    def on_failure(self, *values: Any) -> None:
        """Record the callback."""
        self.seen.append(("failure", *values))

    def on_timeout(self, *values: Any) -> None:
        """Record the callback."""
        self.seen.append(("timeout", *values))


class FakePool:
    """A pool with processes that a test frees, and a loop whose rounds a test runs."""

    def __init__(self, free: int = 1) -> None:
        self.free = free
        self.singles: list[str] = []
        self.jobs: list[dict[str, Any]] = []
        self._waiting: deque[Any] = deque()
        self._ready: list[Callable[[], object]] = []
        self.gatherer = Gatherer(self._hand_over, lambda act, *args: self._ready.append(lambda: act(*args)))

    def _hand_over(self, job: Any) -> None:
        self._waiting.append(job)
        self._start()

    def _start(self) -> None:
        while self.free and self._waiting:
            self.free -= 1
            try:
                self._waiting.popleft().execute_using_pool(self)
            except TaskRevokedError:
                self.free += 1

    def apply_async(self, run: Any, args: Any, **options: Any) -> None:
        """Take a job."""
        assert run is run_gathered
        self.jobs.append({"ids": [entry.id for entry in args[0]], **options})

    def arrive(self, *requests: FakeRequest) -> None:
        """Take messages in one round of the loop."""
        for each in requests:
            self.gatherer.add(each)
        self.turn()

    def turn(self) -> None:
        """Run one round of the loop."""
        ready, self._ready = self._ready, []
        for act in ready:
            act()

    def release(self) -> None:
        """Free one process."""
        self.free += 1
        self._start()
        self.turn()


def requests(*names: str) -> list[FakeRequest]:
    return [FakeRequest(name) for name in names]


def test_a_request_that_finds_a_free_process_runs_alone_as_any_task() -> None:
    pool = FakePool()
    pool.arrive(*requests("r1"))
    assert (pool.singles, pool.jobs) == (["r1"], [])


def test_requests_that_arrive_together_are_one_job() -> None:
    pool = FakePool()
    pool.arrive(*requests("r1", "r2", "r3"))
    assert [job["ids"] for job in pool.jobs] == [["r1", "r2", "r3"]]


def test_requests_that_arrive_while_all_processes_work_are_one_job() -> None:
    pool = FakePool()
    for name in ("r1", "r2", "r3"):
        pool.arrive(*requests(name))
    assert pool.singles == ["r1"]
    pool.release()
    assert [job["ids"] for job in pool.jobs] == [["r2", "r3"]]


def test_a_job_has_a_limited_number_of_requests_and_the_rest_follows() -> None:
    pool = FakePool(free=2)
    pool.arrive(*requests(*(f"r{number}" for number in range(MOST_GATHERED + 2))))
    pool.turn()
    assert [len(job["ids"]) for job in pool.jobs] == [MOST_GATHERED, 2]


def test_searches_leave_a_process_to_other_requests() -> None:
    pool = FakePool(free=2)
    searches = requests("s1", "s2", "s3")
    for each in searches:
        pool.gatherer.add_search(each, processes=2)
    pool.turn()
    assert pool.singles == ["s1"]
    pool.arrive(*requests("r1"))
    assert pool.singles == ["s1", "r1"]
    searches[0].leave()
    pool.release()
    assert pool.singles == ["s1", "r1", "s2"]


def test_a_pool_of_one_process_carries_out_one_search_at_a_time() -> None:
    pool = FakePool(free=1)
    searches = requests("s1", "s2")
    for each in searches:
        pool.gatherer.add_search(each, processes=1)
    pool.turn()
    pool.arrive(*requests("r1"))
    searches[0].leave()
    pool.release()
    assert pool.singles == ["s1", "r1"]
    pool.release()
    assert pool.singles == ["s1", "r1", "s2"]


def test_the_time_limits_of_the_tasks_hold_for_a_job() -> None:
    pool = FakePool()
    pool.arrive(*requests("r1", "r2"))
    assert (pool.jobs[0]["soft_timeout"], pool.jobs[0]["timeout"]) == (100.0, 120.0)


def test_revoked_requests_are_left_out_and_their_process_stays_free() -> None:
    pool = FakePool()
    pool.arrive(FakeRequest("r1", revoked=True), FakeRequest("r2", revoked=True))
    assert (pool.free, pool.singles, pool.jobs) == (1, [], [])
    pool.arrive(FakeRequest("r3", revoked=True), FakeRequest("r4"))
    assert pool.singles == ["r4"]


def test_each_request_gets_its_own_result() -> None:
    pool, (first, second) = FakePool(), requests("r1", "r2")
    pool.arrive(first, second)
    pool.jobs[0]["accept_callback"](7, 1.5)
    pool.jobs[0]["callback"]([(0, "accepted", 0.1), (0, "refused: 1 of 1", 0.1)])
    assert first.seen == [("accepted", 7, 1.5), ("success", (0, "accepted", 0.1))]
    assert second.seen == [("accepted", 7, 1.5), ("success", (0, "refused: 1 of 1", 0.1))]


def test_a_job_that_exceeds_its_time_ends_for_each_request() -> None:
    pool, (first, second) = FakePool(), requests("r1", "r2")
    pool.arrive(first, second)
    pool.jobs[0]["timeout_callback"](False, 120.0)
    assert first.seen == second.seen == [("timeout", False, 120.0)]


def test_after_the_death_of_a_process_its_requests_run_one_by_one() -> None:
    pool, both = FakePool(free=1), requests("r1", "r2")
    pool.arrive(*both)
    pool.free = 2
    pool.jobs[0]["error_callback"](make_error(WorkerLostError("killed")))
    pool.turn()
    assert pool.singles == ["r1", "r2"]
    assert [each.seen for each in both] == [[], []]


def test_any_other_failure_of_a_job_is_one_of_each_request() -> None:
    pool, both = FakePool(), requests("r1", "r2")
    pool.arrive(*both)
    error = make_error(ValueError("no JSON"))
    pool.jobs[0]["error_callback"](error)
    assert [each.seen for each in both] == [[("failure", error)]] * 2


def test_a_job_takes_no_further_request_after_many_bytes() -> None:
    pool = FakePool()
    long = requests("r1", "r2", "r3")
    for each in long:
        each.body = "x" * (MOST_BYTES // 2)
    pool.arrive(*long)
    assert [job["ids"] for job in pool.jobs] == [["r1", "r2"]]
    pool.release()
    assert pool.singles == ["r3"]


def make_error(error: Exception) -> ExceptionInfo:
    """The description of an error as a pool reports it."""
    try:
        raise error  # noqa: TRY301 - the description contains where the error was raised
    except Exception:  # noqa: BLE001 - any error may be described
        return ExceptionInfo()


@pytest.mark.parametrize(
    ("task", "body", "gathered"),
    [
        (SUBMIT, '[[{"id": "r1"}], {}, {}]', True),
        (SUBMIT, b'[[{"id": "r1"}], {}, {}]', True),
        # a short list of documents
        (SUBMIT, '[[{"items": []}], {}, {}]', True),
        # a long document, or a long list
        (SUBMIT, "x" * (MOST_BYTES + 1), False),
        # another verb, another queue, no body
        ("leasehold.reservations.explain", "[]", False),
        ("leasehold.ticks.tick", "[]", False),
        (SUBMIT, None, False),
        (None, "[]", False),
    ],
)
def test_short_requests_of_frequent_verbs_are_gathered(task: object, body: object, gathered: bool) -> None:
    assert is_gatherable(task, body) is gathered
