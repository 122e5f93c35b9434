"""Requests that are made at the same time travel together. While a message with a verb is under way, further requests
with this verb are gathered, and its answer lets them leave as one list. A request that comes alone waits for no other.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from leasehold.client.describing import describe_silence
from leasehold.client.ports import Answered, Wire
from leasehold.errors import NotAnswered
from scheduler.protocol.verbs import GATHERED

MOST_ITEMS: Final = 200
HELD_SECONDS: Final = 1.0
"""Seconds after which a message without an answer no longer holds back the requests that were made after it."""


class _Waiting(NamedTuple):
    document: Mapping[str, Any]
    timeout: float
    has_row: bool
    answer: asyncio.Future[Answered]


class Gathering:
    """Sends the requests of one client over its wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._under_way: dict[str, int] = {}
        self._waiting: dict[str, list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, verb: str, document: Mapping[str, Any], seconds: float, *, has_row: bool = False) -> Answered:
        """Send one request, alone or in a list, and return its answer. The row comes only with the answer to a request
        that travelled alone.
        """
        if verb not in GATHERED or "request" in document or "items" in document:
            return await self._wire.ask(verb, document, seconds)
        if not self._under_way.get(verb):
            return await self._send(verb, document, seconds, has_row=has_row)
        waiting = _Waiting(document, seconds, has_row, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(verb, []).append(waiting)
        try:
            async with asyncio.timeout(seconds):
                return await waiting.answer
        except TimeoutError as error:
            if isinstance(error, NotAnswered):
                raise
            raise NotAnswered(describe_silence(verb, document, seconds, "")) from None

    async def _send(self, verb: str, document: Mapping[str, Any], seconds: float, *, has_row: bool) -> Answered:
        self._under_way[verb] = self._under_way.get(verb, 0) + 1
        is_held = True

        def go_on() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._under_way[verb] -= 1
                self._send_waiting(verb)

        timer = asyncio.get_running_loop().call_later(HELD_SECONDS, go_on)
        try:
            return await self._wire.ask(verb, document, seconds, has_row=has_row)
        finally:
            timer.cancel()
            go_on()

    def _send_waiting(self, verb: str) -> None:
        waiting = [each for each in self._waiting.pop(verb, ()) if not each.answer.done()]
        chunk, rest = waiting[:MOST_ITEMS], waiting[MOST_ITEMS:]
        if rest:
            self._waiting[verb] = rest
        if chunk:
            task = asyncio.get_running_loop().create_task(self._send_chunk(verb, chunk))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_chunk(self, verb: str, chunk: list[_Waiting]) -> None:
        timeout = max(each.timeout for each in chunk)
        document = chunk[0].document if len(chunk) == 1 else {"items": [each.document for each in chunk]}
        try:
            found = await self._send(verb, document, timeout, has_row=len(chunk) == 1 and chunk[0].has_row)
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


def _describe(error: Exception, verb: str, waiting: _Waiting) -> Exception:
    if not isinstance(error, NotAnswered):
        return error
    text = describe_silence(verb, waiting.document, waiting.timeout, error.reason)
    return type(error)(text, error.reason)
