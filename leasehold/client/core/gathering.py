"""Requests that are made at the same time travel together. While requests are under way, further ones are gathered, and
the answers let them leave together: one message for each verb. A request that comes alone waits for no other: it leaves
after the present round of the event loop.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from leasehold.client.describing import describe_silence
from leasehold.client.ports import Answered, Wire
from leasehold.errors import NotAnswered
from scheduler.protocol.verbs import GATHERED

MOST_ITEMS: Final = 200
QUIET_ROUNDS: Final = 16
"""Rounds of the event loop without a new request, after which callers with answers have made their next requests."""
HELD_SECONDS: Final = 1.0
"""Seconds after which messages without an answer no longer hold back the requests that were made after them."""


class _Waiting(NamedTuple):
    document: Mapping[str, Any]
    timeout: float
    has_row: bool
    answer: asyncio.Future[Answered]


class Gathering:
    """Sends the requests of one client over its wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._under_way = self._asked = 0
        self._waiting: dict[str, list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, verb: str, document: Mapping[str, Any], seconds: float, *, has_row: bool = False) -> Answered:
        """Send one request, alone or in a list, and return its answer. The row comes only with the answer to a request
        that travelled alone.
        """
        if verb not in GATHERED or "request" in document or "items" in document:
            return await self._wire.ask(verb, document, seconds)
        self._asked += 1
        loop = asyncio.get_running_loop()
        waiting = _Waiting(document, seconds, has_row, loop.create_future())
        gathered = self._waiting.setdefault(verb, [])
        if self._under_way:
            gathered.append(waiting)
        else:
            go_on = self._hold()
            try:
                # Callers that go on in the same round of the loop, for example after one hint, ask together.
                await asyncio.sleep(0)
                if not any(self._waiting.values()):
                    return await self._wire.ask(verb, document, seconds, has_row=has_row)
                gathered.insert(0, waiting)
            finally:
                go_on()
        timer = loop.call_later(seconds, _give_up, verb, waiting)
        try:
            return await waiting.answer
        finally:
            timer.cancel()

    def _hold(self) -> Callable[[], None]:
        """Gather what is requested until the returned function is called, or for HELD_SECONDS."""
        self._under_way += 1
        is_held = True

        def go_on() -> None:
            nonlocal is_held
            timer.cancel()
            if is_held:
                is_held = False
                self._under_way -= 1
                self._send_waiting()

        timer = asyncio.get_running_loop().call_later(HELD_SECONDS, go_on)
        return go_on

    def _send_waiting(self) -> None:
        chunks: dict[str, list[_Waiting]] = {}
        for verb, waiting in self._waiting.items():
            asked = [each for each in waiting if not each.answer.done()]
            chunks[verb], waiting[:] = asked[:MOST_ITEMS], asked[MOST_ITEMS:]
        if any(chunks.values()):
            task = asyncio.get_running_loop().create_task(self._send_chunks(chunks, self._hold()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_chunks(self, chunks: Mapping[str, list[_Waiting]], go_on: Callable[[], None]) -> None:
        try:
            await asyncio.gather(*(self._send_chunk(verb, chunk) for verb, chunk in chunks.items() if chunk))
            await self._settle()
        finally:
            go_on()

    async def _settle(self) -> None:
        # A caller with an answer often has a next request: a lease is confirmed and then released. If the first of them
        # left alone, all others would wait for its answer.
        quiet = 0
        while quiet < QUIET_ROUNDS:
            asked = self._asked
            await asyncio.sleep(0)
            quiet = quiet + 1 if asked == self._asked else 0

    async def _send_chunk(self, verb: str, chunk: list[_Waiting]) -> None:
        timeout = max(each.timeout for each in chunk)
        document = chunk[0].document if len(chunk) == 1 else {"items": [each.document for each in chunk]}
        try:
            has_row = len(chunk) == 1 and chunk[0].has_row
            found = await self._wire.ask(verb, document, timeout, has_row=has_row)
            if len(chunk) == 1:
                answers = [found]
            elif "results" in found.answer:
                answers = [Answered(_as_single(each)) for each in found.answer["results"]]
            else:
                # The list was refused as a whole and changed nothing: perhaps for one of its items, or for its size.
                asked = (self._wire.ask(verb, each.document, each.timeout) for each in chunk)
                answers = list(await asyncio.gather(*asked))
        except Exception as error:  # noqa: BLE001 - each caller gets it
            for each in chunk:
                if not each.answer.done():
                    each.answer.set_exception(_describe(error, verb, each))
                    # If the caller has gone, asyncio would warn that the error was never retrieved.
                    each.answer.exception()
            return
        for each, answered in zip(chunk, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(answered)


def _as_single(result: dict[str, Any]) -> dict[str, Any]:
    faults = result.get("errors")
    return {**result, "errors": [{**each, "index": 0} for each in faults]} if faults else result


def _give_up(verb: str, waiting: _Waiting) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(NotAnswered(describe_silence(verb, waiting.document, waiting.timeout, "")))


def _describe(error: Exception, verb: str, waiting: _Waiting) -> Exception:
    if not isinstance(error, NotAnswered):
        return error
    text = describe_silence(verb, waiting.document, waiting.timeout, error.reason)
    return type(error)(text, error.reason)
