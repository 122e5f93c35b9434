"""The cost of signatures for the intake: signed and unsigned requests in turns, on one whole stack on SQLite.

Must reach: signed requests are accepted at 95 % of the rate of unsigned ones, or more. The stack is in `access.mode`
open: it accepts unsigned requests and verifies signed ones, so both kinds use the same machine, database and load.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

from bench._stack import SYSTEM, open_stack
from leasehold.client.client import Client
from leasehold.stack import Stack
from scheduler.operations.principals import add_principal
from scheduler.protocol.signing import format_key_line

IN_BULK = 10_000
"""Reservations of one round, a thousand a message."""
SINGLE = 500
"""Requests of one round, each with one reservation."""
ROUNDS = 7


def rate_in_bulk(client: Client) -> float:
    """Return the reservations that `reserve_many` submits in a second."""
    prefix = uuid4().hex
    began = perf_counter()
    answers = client.reserve_many(({"id": f"{prefix}-{n}", "system": SYSTEM} for n in range(IN_BULK)), timeout=120)
    took = perf_counter() - began
    assert all(answer.ok for answer in answers)
    return IN_BULK / took


async def collect(answers: AsyncIterator[Any]) -> list[Any]:
    """Return all answers."""
    return [each async for each in answers]


def rate_of_single_requests(client: Client) -> float:
    """Requests accepted a second, eight on their way at once: each is a message with a signature of its own."""
    prefix = uuid4().hex
    documents = [{"id": f"{prefix}-{n}", "system": SYSTEM} for n in range(SINGLE)]
    began = perf_counter()
    sent: Any = client._core._wire.ask_each("submit", documents, 120)  # noqa: SLF001 - the client has lists
    answers = client._run(collect(sent))  # noqa: SLF001 - as above
    took = perf_counter() - began
    assert all(answer["ok"] for answer in answers)
    return SINGLE / took


def add_producer(stack: Stack) -> str:
    """The content of the key file of a new producer."""
    store = stack.open_store()
    try:
        added = add_principal(store, {"name": "bench", "role": "producer"})
        return format_key_line(added.name, added.key, store.read_cluster().identity)
    finally:
        store.close()


def show(what: str, unsigned: Iterable[float], signed: Iterable[float]) -> None:
    """One line: the median rates, and the median of the ratios of neighbouring rounds."""
    pairs = list(zip(unsigned, signed, strict=True))
    ratio = median(after / before for before, after in pairs)
    rates = [median(each) for each in zip(*pairs, strict=True)]
    print(f"{what}: {rates[0]:8,.0f}/s unsigned, {rates[1]:8,.0f}/s signed; ratio {ratio:.3f}")


def main() -> None:
    """Measure both kinds in turns; the first pair warms up and does not count."""
    with open_stack(slots=1, leases_per_slot=1) as (stack, unsigned), ExitStack() as opened:
        key = add_producer(stack)
        signed = opened.enter_context(stack.client(key=key))
        rounds = [(rate_in_bulk(unsigned), rate_in_bulk(signed)) for _ in range(ROUNDS + 1)][1:]
        show("reserve_many", *zip(*rounds, strict=True))
        rounds = [(rate_of_single_requests(unsigned), rate_of_single_requests(signed)) for _ in range(ROUNDS + 1)][1:]
        show("single requests", *zip(*rounds, strict=True))


if __name__ == "__main__":
    main()
