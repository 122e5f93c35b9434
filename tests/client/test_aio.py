"""Features of the asyncio client only: cancelled tasks, coroutines as callbacks, and many waits at the same time."""

import asyncio
import inspect
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from leasehold import AsyncClient, Client, NotAnswered, Unavailable
from leasehold.client.core.hosts import AsyncHosts
from leasehold.client.hosts import Hosts
from testbed.processes import wait_for
from tests.builders import a_slot
from tests.client.intake import FakeIntake, a_row
from tests.client.test_lease import FakeReservation
from tests.client.test_reading import a_leased_row

WAITS = 200
PATIENCE = 20.0


@asynccontextmanager
async def opened(intake: FakeIntake) -> AsyncIterator[AsyncClient]:
    async with asyncio.timeout(60), AsyncClient(intake.url, timeout=5) as client:
        yield client


async def until(is_so: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_for, is_so, "the condition of the test")


def test_the_asyncio_client_has_the_methods_and_arguments_of_the_client() -> None:
    only_blocking = {"probe", "hints"}
    not_awaited = {"lease", "watch", "now"}
    for kind, counterpart in ((Client, AsyncClient), (Hosts, AsyncHosts)):
        blocking = {name: each for name, each in inspect.getmembers(kind) if not name.startswith("_")}
        for name in blocking.keys() - only_blocking:
            method = getattr(counterpart, name)
            if isinstance(blocking[name], property):
                assert isinstance(method, property), name
                continue
            parameters = inspect.signature(blocking[name]).parameters
            assert list(inspect.signature(method).parameters) == list(parameters), name
            assert inspect.iscoroutinefunction(method) is (name not in not_awaited), name


def test_a_lease_that_was_left_is_freed_without_a_garbage_collection(
    intake: FakeIntake, no_garbage_collection: None
) -> None:
    FakeReservation(intake)

    async def play() -> None:
        async with opened(intake) as client:
            async with client.lease(id="r1", system="s", wait=PATIENCE) as lease:
                left = weakref.ref(lease)
            del lease
            await until(lambda: left() is None)

    asyncio.run(play())


def list_threads(known: Collection[threading.Thread]) -> list[threading.Thread]:
    """Return the threads of the client: those that are not in `known`, which other tests of this process started."""
    return [each for each in threading.enumerate() if each.name.startswith("leasehold-") and each not in known]


def test_many_waits_at_the_same_time_need_no_thread(intake: FakeIntake) -> None:
    known = threading.enumerate()
    names = [f"r{number}" for number in range(WAITS)]
    intake.publish(a_slot("linux-1", version=1), *(a_row(name) for name in names))

    async def play() -> None:
        async with opened(intake) as client:
            waits = [asyncio.create_task(client.wait(name, timeout=60)) for name in names]
            await until(lambda: all(intake.count_listeners(name) for name in (names[0], names[-1])))
            assert not list_threads(known)
            await asyncio.to_thread(intake.publish, *(a_leased_row(name) for name in names))
            rows = await asyncio.gather(*waits)
            assert [(row.id, row.leases[0].address) for row in rows] == [(name, "10.0.0.1") for name in names]

    asyncio.run(play())


def test_cancelling_a_wait_does_not_cancel_the_reservation(intake: FakeIntake) -> None:
    intake.publish(a_row("r1"))

    async def play() -> None:
        async with opened(intake) as client:
            wait = asyncio.create_task(client.wait("r1"))
            await until(lambda: intake.count_listeners("r1"))
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
            await until(lambda: not intake.count_listeners("r1"))

    asyncio.run(play())
    assert intake.verbs() == []


@pytest.mark.parametrize("moment", ["before the answer", "after the answer"])
def test_a_lease_cancelled_before_it_is_held_is_released(moment: str, intake: FakeIntake) -> None:
    intake.publish(a_row("r1"))
    may_answer = threading.Event()
    accept = intake.handler
    intake.handler = lambda verb, document: accept(verb, document) if may_answer.wait(PATIENCE) else None

    async def play() -> None:
        async with opened(intake) as client:

            async def hold() -> None:
                async with client.lease(id="r1", system="s"):
                    pass

            holder = asyncio.create_task(hold())
            await until(intake.verbs)
            if moment == "after the answer":
                may_answer.set()
                await until(lambda: intake.count_listeners("r1"))
            holder.cancel()
            await asyncio.sleep(0)
            may_answer.set()
            with pytest.raises(asyncio.CancelledError):
                await holder

    asyncio.run(play())
    assert (intake.verbs()[0], intake.verbs()[-1]) == ("submit", "release")


def test_a_callback_may_be_a_coroutine(intake: FakeIntake) -> None:
    holder = FakeReservation(intake)

    async def play() -> None:
        reason: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        async def note_reason(lease: object) -> None:
            reason.set_result(getattr(lease, "reason", None))

        async with opened(intake) as client, client.lease(id="r1", system="s", on_revoke=note_reason) as lease:
            await asyncio.to_thread(holder.publish, "r1", phase="revoking", revoke_by=9e9, revoke_reason="preempted")
            async with asyncio.timeout(PATIENCE):
                assert await reason == "preempted"
                assert lease.revoking.is_set()

    asyncio.run(play())


def test_closing_the_client_ends_its_waits(intake: FakeIntake) -> None:
    intake.publish(a_row("r1"))

    async def play() -> None:
        async with opened(intake) as client:
            wait = asyncio.create_task(client.wait("r1"))
            await until(lambda: intake.count_listeners("r1"))
            await client.close()
            with pytest.raises(Unavailable, match="closed"):
                await wait
            with pytest.raises(Unavailable, match="closed"):
                await client.get("r1")

    asyncio.run(play())


def test_a_wait_renews_while_it_waits(intake: FakeIntake) -> None:
    intake.publish(a_row("r1", marked_at=5.0, expires_at=5.6))

    async def play() -> None:
        async with opened(intake) as client:
            with pytest.raises(NotAnswered, match="still pending"):
                await client.wait("r1", timeout=1, renew=True)

    asyncio.run(play())
    assert set(intake.verbs()) == {"renew"}


def test_a_task_that_is_cancelled_while_it_leaves_releases_its_lease(intake: FakeIntake) -> None:
    FakeReservation(intake)

    async def hold(client: AsyncClient) -> None:
        async with client.lease(id="r1", system="s") as lease:
            # A renewal is under way when the task leaves.
            lease._renew_soon()
            await asyncio.sleep(0)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    async def play() -> None:
        async with opened(intake) as client:
            with pytest.raises(asyncio.CancelledError):
                await hold(client)
            await client.wait("r1", "ended", timeout=20)

    asyncio.run(play())
    assert intake.verbs()[-1] == "release"


def test_a_read_of_what_can_be_no_id_disturbs_no_read_that_travels_with_it(intake: FakeIntake) -> None:
    async def play() -> None:
        intake.publish(a_row("r1"))
        async with opened(intake) as client:
            odd: Any = [None, "a\ud800"]
            found, *others = await asyncio.gather(*map(client.get, ["r1", *odd]))
            assert found is not None
            assert (found.id, others) == ("r1", [None, None])

    asyncio.run(play())
