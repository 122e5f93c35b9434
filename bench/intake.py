"""`reserve_many`, `renew_many` and `release_many`: reservations that are stored, renewed and released in a second, and
for comparison the rate of raw Celery tasks.

The released reservations wait. `bench.targets` releases leases that are held, which takes longer: each changes its
slot, too.

Must reach for 10,000 in one call: 20,000 accepted a second on SQLite, 12,000 on PostgreSQL; 10,000 released a second.
`python -m bench.intake --postgresql` measures on its own PostgreSQL server, `--postgresql URL` on an existing database
without reservations (URL as in the configuration: `postgresql://USER:PASSWORD@HOST/NAME`).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from bench._stack import SYSTEM, open_stack
from leasehold.client.client import Client
from leasehold.client.models import Answer
from leasehold.client.redis.transport import RequestTransport
from leasehold.client.reservation_fields import ReservationFields
from testbed.postgresql_server import open_postgresql

RESERVATIONS = 10_000
TASKS = 2_000
ROUNDS = 3


def rate_of_intake(client: Client, number: int, count: int = RESERVATIONS) -> float:
    """Reservations accepted a second: from the call of `reserve_many` to its return."""
    items: list[ReservationFields] = [
        {"id": f"bench-{number}-{index}", "system": SYSTEM, "tags": {"round": str(number)}} for index in range(count)
    ]
    began = perf_counter()
    answers = client.reserve_many(items, timeout=120)
    took = perf_counter() - began
    assert all(answer.ok for answer in answers)
    return count / took


def rate_of(command: Callable[..., Sequence[Answer]], number: int) -> float:
    """Reservations renewed or released a second: from the call of `command` to its return."""
    tokens = {f"bench-{number}-{index}": None for index in range(RESERVATIONS)}
    began = perf_counter()
    answers = command(tokens, timeout=120)
    took = perf_counter() - began
    # The pool has one slot. The reservation that is leased on it is refused, since its token is needed.
    assert sum(not answer.ok for answer in answers) <= 1
    return RESERVATIONS / took


def rate_of_tasks(wire: RequestTransport) -> float:
    """Celery tasks that do nothing but answer, a second: from the first one sent to the last one answered."""
    address = f"{wire.prefix}reply:bench-rate"
    began = perf_counter()
    for _ in range(TASKS):
        wire.send_canary("reservations", address)
    for _ in range(TASKS):
        assert wire.redis.blpop([address], timeout=60)
    return TASKS / (perf_counter() - began)


@contextmanager
def open_database(words: Sequence[str]) -> Iterator[str | None]:
    """The URL of the database that the command line asks for; None for the stack's own SQLite."""
    match list(words):
        case []:
            yield None
        case ["--postgresql"]:
            with open_postgresql() as url:
                yield url
        case ["--postgresql", url]:
            yield url
        case _:
            sys.exit("usage: python -m bench.intake [--postgresql [URL]]")


def main() -> None:
    """Measure both in one run, and hold the count against SQL."""
    with (
        open_database(sys.argv[1:]) as database_url,
        open_stack(slots=1, leases_per_slot=1, database_url=database_url) as (stack, client),
    ):
        wire = RequestTransport(
            stack.url, stack.configuration.settings.view.prefix, stack.configuration.settings.view_url
        )
        tasks = rate_of_tasks(wire)
        rates = [rate_of_intake(client, number) for number in range(ROUNDS)]
        renewed = [rate_of(client.renew_many, number) for number in range(ROUNDS)]
        released = [rate_of(client.release_many, number) for number in range(ROUNDS)]
        wire.close()
        stored = sum(stack.open_store().count_phases().values())
    assert stored == RESERVATIONS * ROUNDS, f"{stored} rows for {RESERVATIONS * ROUNDS} accepted reservations"
    print(f"on {'PostgreSQL' if database_url else 'SQLite'}:")
    for number, rate in enumerate(rates):
        waiting = number * RESERVATIONS
        print(f"reserve_many of {RESERVATIONS:,} with {waiting:>6,} waiting: {rate:8,.0f} accepted/s")
    for name, found in (("renew_many", renewed), ("release_many", released)):
        print(f"{name} of {RESERVATIONS:,}: " + ", ".join(f"{rate:,.0f}/s" for rate in found))
    print(f"raw Celery tasks: {tasks:8,.0f} /s; ratio {rates[0] / tasks:.1f}")


if __name__ == "__main__":
    main()
