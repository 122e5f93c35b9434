"""What is asyncio's own: cancelled tasks, callbacks that are coroutines, and many waits at the same time."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from leasehold import AsyncClient, Client, NotAnswered, Unavailable
from leasehold.client.async_client import READS_AT_ONCE
from tests.builders import a_slot
from tests.client.intake import FakeIntake, a_row
from tests.client.test_lease import FakeReservation
from tests.client.test_reading import a_leased_row
from tests.system.processes import wait_for

WAITS = 200
PATIENCE = 20.0


@asynccontextmanager
async def opened(intake: FakeIntake) -> AsyncIterator[AsyncClient]:
    async with asyncio.timeout(60), AsyncClient(intake.url, timeout=5) as client:
        yield client


async def until(is_so: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_for, is_so, "what the test waits for")


def test_it_has_the_methods_of_the_client_with_their_arguments() -> None:
    left_out = {"hosts", "probe"}
    theirs = {name: each for name, each in inspect.getmembers(Client) if not name.startswith("_")}
    for name in theirs.keys() - left_out:
        ours = getattr(AsyncClient, name)
        parameters = inspect.signature(theirs[name]).parameters
        assert list(inspect.signature(ours).parameters) == list(parameters), name
        assert inspect.iscoroutinefunction(ours) is (name not in {"lease", "watch", "now"}), name


def list_threads() -> list[threading.Thread]:
    """The client's; `leasehold-clock` is a thread of workers' services, which other tests make in this process."""
    found = [each for each in threading.enumerate() if each.name.startswith("leasehold-")]
    return [each for each in found if each.name != "leasehold-clock"]


def test_many_waits_at_the_same_time_take_no_thread_each(intake: FakeIntake) -> None:
    names = [f"r{number}" for number in range(WAITS)]
    intake.publish(a_slot("linux-1", version=1), *(a_row(name) for name in names))

    async def play() -> None:
        async with opened(intake) as client:
            waits = [asyncio.create_task(client.wait(name, timeout=60)) for name in names]
            await until(lambda: all(intake.count_listeners(name) for name in (names[0], names[-1])))
            # A reader each, the thread that hears notices, and those that the loop itself may begin.
            assert len(list_threads()) <= READS_AT_ONCE + 1
            await asyncio.to_thread(intake.publish, *(a_leased_row(name) for name in names))
            rows = await asyncio.gather(*waits)
            assert [(row.id, row.leases[0].address) for row in rows] == [(name, "10.0.0.1") for name in names]
        assert not list_threads()

    asyncio.run(play())


def test_cancelling_a_wait_leaves_the_reservation(intake: FakeIntake) -> None:
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


@pytest.mark.parametrize("moment", ["while it is asked for", "while it is waited for"])
def test_a_lease_that_is_cancelled_before_it_is_held_is_given_up(moment: str, intake: FakeIntake) -> None:
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
            if moment == "while it is waited for":
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
        told: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        async def tell(lease: object) -> None:
            told.set_result(getattr(lease, "reason", None))

        async with opened(intake) as client, client.lease(id="r1", system="s", on_revoke=tell) as lease:
            await asyncio.to_thread(holder.publish, "r1", phase="revoking", revoke_by=9e9, revoke_reason="preempted")
            async with asyncio.timeout(PATIENCE):
                assert await told == "preempted"
                assert lease.revoking.is_set()

    asyncio.run(play())


def test_closing_ends_what_is_waited_for(intake: FakeIntake) -> None:
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
