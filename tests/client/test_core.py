"""The portal of the blocking clients, and requests that travel together."""

import asyncio
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any, cast

import pytest

from leasehold.client.core.gathering import Gathering
from leasehold.client.core.portal import PORTAL, Portal
from leasehold.client.ports import Answered, Wire
from leasehold.errors import NotAnswered


async def give(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_any_number_of_threads_share_one_loop() -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda n=n: found.append(PORTAL.run(give(n)))) for n in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found) == list(range(20))
    assert [each.name for each in threading.enumerate()].count("leasehold-loop") == 1


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    assert PORTAL.run(give(1)) == 1
    child = os.fork()
    if child == 0:
        os._exit(0 if PORTAL.run(give(7)) == 7 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert PORTAL.run(give(2)) == 2


def test_an_interrupted_call_ends_after_its_coroutine_has_given_back_what_it_holds() -> None:
    events: list[str] = []

    async def hold() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            events.append("given back")

    # A run of the tests in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            PORTAL.run(hold())
    finally:
        signal.signal(signal.SIGINT, before)
    assert events == ["given back"]


def test_a_call_on_the_loop_itself_is_carried_out_and_does_not_wait() -> None:
    """The garbage collector may end a generator that holds a lease in the thread of the loop."""
    is_done = threading.Event()

    async def act() -> None:
        is_done.set()

    async def call() -> None:
        with pytest.raises(RuntimeError, match="cannot wait"):
            PORTAL.run(act())

    PORTAL.run(call())
    assert is_done.wait(20)


def test_a_signal_handler_that_interrupts_a_thread_before_it_wakes_the_loop_may_call() -> None:
    portal = Portal()
    portal._waker = threading.get_ident()
    assert portal.run(give(3)) == 3


class Stack:
    """Answers messages when a test lets it. `refuses_lists`: as a server that refuses a list as a whole."""

    def __init__(self, *, refuses_lists: bool = False) -> None:
        self.messages: list[tuple[str, Mapping[str, Any]]] = []
        self.may_answer = asyncio.Event()
        self._refuses_lists = refuses_lists

    async def ask(self, verb: str, document: Mapping[str, Any], _timeout: float, **_options: Any) -> Answered:
        self.messages.append((verb, document))
        await self.may_answer.wait()
        return Answered(self._answer(document))

    def _answer(self, document: Mapping[str, Any]) -> dict[str, Any]:
        if "items" not in document:
            return {"ok": True, "reservation": document["id"]}
        if self._refuses_lists:
            return {"ok": False, "errors": []}
        faults = [{"index": number, "path": "token"} for number in range(len(document["items"]))]
        return {
            "ok": True,
            "results": [
                {"ok": False, "reservation": each["id"], "errors": faults[number : number + 1]}
                for number, each in enumerate(document["items"])
            ],
        }


def gather(stack: Stack) -> Gathering:
    return Gathering(cast("Wire", stack))


async def _settle() -> None:
    """Let all tasks run until they wait for an answer."""
    for _ in range(3):
        await asyncio.sleep(0)


async def ask_all(stack: Stack, verbs: list[str]) -> list[Any]:
    """Make a request with the first of these verbs, and while it is under way one with each of the others. The stack
    answers when all have been made.
    """
    gathering = gather(stack)
    asked = []
    for number, verb in enumerate(verbs):
        asked.append(asyncio.create_task(gathering.ask(verb, {"id": str(number)}, 30)))
        await _settle()
    stack.may_answer.set()
    answers = [answer for answer, _ in await asyncio.gather(*asked)]
    # Each caller has sent one document, whatever travelled with it.
    assert {fault["index"] for answer in answers for fault in answer.get("errors", ())} <= {0}
    return [answer["reservation"] for answer in answers]


def test_requests_that_are_made_while_a_message_is_under_way_leave_in_one_list() -> None:
    async def play() -> None:
        stack = Stack()
        assert await ask_all(stack, ["renew"] * 5) == ["0", "1", "2", "3", "4"]
        assert [len(each.get("items", [0])) for _, each in stack.messages] == [1, 4]

    asyncio.run(play())


def test_requests_that_are_made_in_one_round_of_the_loop_leave_in_one_list() -> None:
    async def play() -> None:
        stack = Stack()
        stack.may_answer.set()
        gathering = gather(stack)
        answers = await asyncio.gather(*(gathering.ask("renew", {"id": str(number)}, 30) for number in range(5)))
        assert [answer["reservation"] for answer, _ in answers] == ["0", "1", "2", "3", "4"]
        assert [[each["id"] for each in document["items"]] for _, document in stack.messages] == [list("01234")]

    asyncio.run(play())


def test_verbs_leave_together_and_those_that_are_not_gathered_wait_for_none() -> None:
    async def play() -> None:
        stack = Stack()
        gathering = gather(stack)
        asked = []
        for verb in ("renew", "release", "fail", "submit", "release"):
            asked.append(asyncio.create_task(gathering.ask(verb, {"id": verb}, 30)))
            await _settle()
        assert [verb for verb, _ in stack.messages] == ["renew", "fail"]
        stack.may_answer.set()
        await asyncio.gather(*asked)
        assert [(verb, len(each.get("items", [0]))) for verb, each in stack.messages[2:]] == [
            ("release", 2),
            ("submit", 1),
        ]

    asyncio.run(play())


def test_callers_that_got_their_answers_together_send_their_next_requests_together() -> None:
    async def play() -> None:
        stack = Stack()
        gathering = gather(stack)

        async def hold(number: int) -> None:
            for verb in ("renew", "release"):
                await gathering.ask(verb, {"id": str(number)}, 30)

        holding = [asyncio.create_task(hold(0))]
        await _settle()
        holding += [asyncio.create_task(hold(number)) for number in range(1, 5)]
        await _settle()
        stack.may_answer.set()
        await asyncio.gather(*holding)
        # The first one came alone, and its release waits for the renewals of the others.
        counts = [(verb, len(each.get("items", [0]))) for verb, each in stack.messages]
        assert counts == [("renew", 1), ("renew", 4), ("release", 5)]

    asyncio.run(play())


def test_a_list_that_is_refused_as_a_whole_is_sent_again_as_single_requests() -> None:
    async def play() -> None:
        stack = Stack(refuses_lists=True)
        assert await ask_all(stack, ["renew"] * 3) == ["0", "1", "2"]
        assert ["items" in each for _, each in stack.messages] == [False, True, False, False]

    asyncio.run(play())


def test_a_gathered_request_ends_with_its_own_timeout() -> None:
    async def play() -> None:
        stack = Stack()
        gathering = gather(stack)
        first = asyncio.create_task(gathering.ask("renew", {"id": "0"}, 30))
        await asyncio.sleep(0)
        with pytest.raises(NotAnswered, match=r"no answer to renew of 1 for 0\.01 s"):
            await gathering.ask("renew", {"id": "1"}, 0.01)
        stack.may_answer.set()
        await first

    asyncio.run(play())
