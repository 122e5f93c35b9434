"""The largest reservations that the limits allow, on a whole stack: `python -m bench.monsters_stack`.

One producer submits them. Another one submits a small reservation that fits every 0.2 s, waits for its lease and
releases it. At the end the first producer cancels ten of its reservations, those with most leases first. Must reach:
the small reservations' median wait stays under 1 s, and no tick takes over 2 s.
"""

import json
import re
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic, perf_counter
from typing import Any, Final, cast

from bench._stack import SYSTEM, await_slots, open_stack_with
from bench.monsters import CPUS, MOST_INSTANCES, POOL
from leasehold.client.client import Client
from leasehold.client.models import Answer
from leasehold.client.redis.transport import RequestTransport
from leasehold.client.reservation_fields import ReservationFields
from leasehold.errors import LeaseholdError, NotAnswered
from leasehold.stack import Stack
from scheduler.operations.principals import add_principal
from scheduler.protocol.signing import format_key_line

# The loads that `bench.monsters_stack` submits, and the pools that they meet.

SLOTS: Final = 1_000
"""Slots of the pool, each of 16 cpus."""
GANGS: Final = 199
"""Just below `limits.instances_per_principal`, which the small reservations of unsigned producers share."""
ELASTIC: Final = 2_000
SMALL: Final = {"cpus": 0.01}
"""What a small reservation of the other producer asks for."""
FULL: Final = CPUS * SLOTS / MOST_INSTANCES
"""Cpus of one instance, if a gang of 10,000 fills all slots."""


@dataclass(frozen=True)
class Load:
    """What one producer submits, and on which pool."""

    about: str
    monsters: tuple[dict[str, Any], ...]
    pool: dict[str, Any] = field(default_factory=lambda: STATIC)
    others: str | None = None
    """The system of a pool with one slot for the small reservations alone; None: they share the pool."""


STATIC: Final[dict[str, Any]] = {
    "system": SYSTEM,
    "provider": "static",
    "max_leases_per_slot": 10_000,
    "offline_timeout": 36_000.0,
    "max_slots": SLOTS,
}
"""All slots are ready: hosts register, and no agent runs for them."""
LAUNCHED: Final[dict[str, Any]] = {
    "system": SYSTEM,
    "min_slots": 1,
    "max_slots": SLOTS,
    "max_leases_per_slot": 10_000,
    "resources": {"cpus": CPUS},
    "ec2": {"image": "ami-0123456789abcdef0"},
}
"""One slot is ready; all others are empty."""


def _gangs(sizes: Iterable[float]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"system": SYSTEM, "components": [{"name": "rank", "count": MOST_INSTANCES, "resources": {"cpus": cpus}}]}
        for cpus in sizes
    )


def _elastic(count: int) -> tuple[dict[str, Any], ...]:
    parts = [
        {"name": "main", "resources": {"cpus": 0.1}},
        {"name": "more", "kind": "elastic", "count": MOST_INSTANCES - 1, "resources": {"cpus": 0.1}},
    ]
    return tuple({"system": SYSTEM, "components": parts} for _ in range(count))


_DIFFERENT = tuple(FULL * 1.2 * (1 - at / 10_000) for at in range(GANGS))

LOADS: Final[dict[str, Load]] = {
    "too-large": Load("gangs of 10,000, each of another size, none fits", _gangs(_DIFFERENT)),
    "partly": Load("gangs of 10,000, of which five fit at once", _gangs([FULL / 5.2] * GANGS)),
    "whole": Load("gangs of 10,000, of which one fits at a time", _gangs([FULL * 0.95] * GANGS)),
    "elastic": Load("1 essential and 9,999 elastic instances", _elastic(ELASTIC)),
    "empty-too-large": Load("the gangs that do not fit, before empty slots", _gangs(_DIFFERENT), LAUNCHED),
    "empty-elastic": Load(
        "the elastic ones before empty slots, of which ten may be launched",
        _elastic(ELASTIC),
        LAUNCHED | {"launch_for_elastic": True, "max_slots": 10},
        others="small",
    ),
}

PAUSE_SECONDS = 0.2
TIMEOUT_SECONDS = 60.0
MONSTERS_A_MESSAGE = 50
MODES = ("accounts", "principals")
HOSTS_A_REQUEST = 500
CANCELLED = 10
"""Monsters that are cancelled in the end, those with most leases first."""
OTHERS_AT_ONCE = 32


@dataclass
class Ticks:
    """The duration of ticks, from the report of each tick."""

    wire: RequestTransport
    seconds: dict[float, float] = field(default_factory=dict)
    _is_over: Event = field(default_factory=Event)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Read the report all the time."""
        thread = Thread(target=self._read, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _read(self) -> None:
        while not self._is_over.wait(0.02):
            head = cast("bytes", self.wire.redis.getrange(f"{self.wire.prefix}view:report", 0, 400))
            found = re.search(rb'"at":([\d.]+),"seconds":([\d.e-]+)', head)
            if found:
                self.seconds[float(found[1])] = float(found[2])


@dataclass
class Others:
    """The producer of small reservations. Every 0.2 s one is due, however long the others before it wait."""

    client: Client
    account: str | None
    system: str
    waits: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    _is_over: Event = field(default_factory=Event)

    @contextmanager
    def submit(self) -> Iterator[None]:
        """Submit all the time."""
        with ThreadPoolExecutor(OTHERS_AT_ONCE) as pool:
            thread = Thread(target=self._submit_in_time, args=[pool], daemon=True)
            thread.start()
            try:
                yield
            finally:
                self._is_over.set()
                thread.join()
                pool.shutdown(cancel_futures=True)

    def _submit_in_time(self, pool: ThreadPoolExecutor) -> None:
        began, number = monotonic(), 0
        while not self._is_over.wait(max(0.0, began + number * PAUSE_SECONDS - monotonic())):
            pool.submit(self._submit_one, perf_counter())
            number += 1

    def _submit_one(self, due: float) -> None:
        fields: dict[str, Any] = {"system": self.system, "resources": SMALL} | name_account(self.account)
        try:
            leased = self.client.wait(self.client.submit(fields).id, timeout=TIMEOUT_SECONDS)
            self.waits.append(perf_counter() - due)
            self.client.release(leased.id, leased.token)
        except LeaseholdError as error:
            self.lost.append(str(error))


def pool_of_others(load: Load) -> dict[str, dict[str, Any]]:
    """A pool with one slot for the small reservations, if they have one of their own."""
    return {} if load.others is None else {load.others: LAUNCHED | {"system": load.others, "max_slots": 1}}


def name_account(account: str | None) -> dict[str, str]:
    """The field of a reservation that names its account, if it has one."""
    return {} if account is None else {"account": account}


@contextmanager
def open_clients(stack: Stack, mode: str) -> Iterator[tuple[Client, Client]]:
    """The clients of both producers: unsigned, or each signed as a principal."""
    with ExitStack() as opened:
        keys = Path(opened.enter_context(TemporaryDirectory(prefix="leasehold-bench-")))
        clients = []
        for name in ("greedy", "other"):
            signature = {"key": add_producer(stack, name)} if mode == "principals" else {}
            options = {"keys": keys / name, "timeout": TIMEOUT_SECONDS}
            clients.append(opened.enter_context(stack.client(**options, **signature)))
        yield clients[0], clients[1]


def add_producer(stack: Stack, name: str) -> str:
    """The content of the key file of a new producer."""
    with closing(stack.open_store()) as store:
        added = add_principal(store, {"name": name, "role": "producer"})
        return format_key_line(added.name, added.key, store.read_cluster().identity)


def register_hosts(client: Client, slots: int) -> None:
    """Register the hosts of the static pool."""
    for first in range(1, slots + 1, HOSTS_A_REQUEST):
        items = [
            {"slot": f"{POOL}-{number}", "pool": POOL, "machine": f"m{number}", "resources": {"cpus": CPUS}}
            for number in range(first, min(first + HOSTS_A_REQUEST, slots + 1))
        ]
        assert client.ask("register", {"items": items}, timeout=60)["ok"]


def submit_monsters(client: Client, load: Load, account: str | None) -> dict[str, Any]:
    """Submit all of them, and say what became of that."""
    documents = [cast("ReservationFields", {**each, **name_account(account)}) for each in load.monsters]
    times, accepted, refused = [], [], []
    for first in range(0, len(documents), MONSTERS_A_MESSAGE):
        began = perf_counter()
        answers = client.reserve_many(documents[first : first + MONSTERS_A_MESSAGE])
        times.append(perf_counter() - began)
        accepted += [answer.reservation for answer in answers if answer.ok]
        refused += [answer for answer in answers if not answer.ok]
    return {"ids": accepted, "refused": len(refused), "why": _show(refused), "longest_message": max(times)}


def _show(refused: Sequence[Answer]) -> str:
    return str(refused[0].errors[0].expected) if refused else ""


def end_monsters(client: Client, names: Sequence[str]) -> dict[str, Any]:
    """Cancel these, and say how long that took."""
    times, unanswered, began = [], 0, perf_counter()
    for name in names:
        start = perf_counter()
        try:
            client.cancel(name)
        except NotAnswered:
            unanswered += 1
        times.append(perf_counter() - start)
    return {"all": perf_counter() - began, "longest": max(times), "unanswered": unanswered}


def count_leases(client: Client, names: Sequence[str]) -> dict[str, int]:
    """How many leases each of them has, those with most of them first."""
    found = {row.id: len(row.leases) for row in map(client.get, names) if row is not None}
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def measure(name: str, mode: str, seconds: float) -> dict[str, Any]:
    """Run one load on its own stack."""
    load = LOADS[name]
    accounts = ("greedy", "other") if mode == "accounts" else (None, None)
    with ExitStack() as opened:
        stack, first = opened.enter_context(open_stack_with({POOL: load.pool, **pool_of_others(load)}))
        view = stack.configuration.settings.view
        wire = opened.enter_context(
            closing(RequestTransport(stack.url, view.prefix, stack.configuration.settings.view_url))
        )
        if load.pool.get("provider") == "static":
            register_hosts(first, SLOTS)
        await_slots(first, SLOTS if load.pool.get("provider") == "static" else 1 + bool(load.others))
        greedy, other = opened.enter_context(open_clients(stack, mode))
        ticks, others = Ticks(wire), Others(other, accounts[1], load.others or SYSTEM)
        with ticks.watch(), others.submit():
            Event().wait(seconds / 4)
            calm = list(others.waits)
            taken = submit_monsters(greedy, load, accounts[0])
            Event().wait(seconds)
            names = taken.pop("ids")
            leases = count_leases(greedy, names)
            ended = end_monsters(greedy, list(leases)[:CANCELLED])
            Event().wait(seconds / 4)
    cuts = quantiles(others.waits[len(calm) :], n=100, method="inclusive")
    return {
        "load": name,
        "mode": mode,
        "accepted": len(names),
        **taken,
        "leased": sum(count > 0 for count in leases.values()),
        "leases": sum(leases.values()),
        "ended": ended,
        "others": {
            "calm_median": sorted(calm)[len(calm) // 2],
            "count": len(others.waits) - len(calm),
            "p50": cuts[49],
            "p99": cuts[98],
            "longest": max(others.waits),
            "lost": len(others.lost),
            "first_fault": others.lost[0] if others.lost else "",
        },
        "ticks": len(ticks.seconds),
        "longest_ticks": sorted(ticks.seconds.values())[-5:],
    }


def print_result(row: dict[str, Any]) -> None:
    """Print a few lines."""
    others, ended = row["others"], row["ended"]
    print(
        f"{row['load']}, {row['mode']}: {LOADS[row['load']].about}\n"
        f"  others ({others['count']}): median {others['p50']:.2f} s (calm {others['calm_median']:.2f} s),"
        f" p99 {others['p99']:.2f} s, longest {others['longest']:.2f} s; {others['lost']} failed\n"
        f"  ticks ({row['ticks']}): the longest {', '.join(f'{each:.2f}' for each in row['longest_ticks'])} s\n"
        f"  monsters: {row['accepted']} accepted, {row['refused']} refused {row['why']};"
        f" {row['leased']} leased with {row['leases']:,} leases;"
        f" longest submit {row['longest_message']:.2f} s,"
        f" longest cancel {ended['longest']:.2f} s of {ended['all']:.1f} s",
        flush=True,
    )


def main() -> None:
    """Measure what the command line asks for."""
    parser = ArgumentParser(
        prog="python -m bench.monsters_stack", description="Time a whole stack before the largest reservations."
    )
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="which ones (default: all)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="how producers differ")
    parser.add_argument("--seconds", type=float, default=20.0, help="time that the monsters stay (default: 20)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for name in given.loads:
        for mode in given.modes:
            row = measure(name, mode, given.seconds)
            print(json.dumps(row), flush=True) if given.json else print_result(row)


if __name__ == "__main__":
    main()
