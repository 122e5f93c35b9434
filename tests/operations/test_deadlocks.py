"""Operations of all kinds at once, each with its own real connections, never wait for each other in a circle."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import repeat
from random import Random
from typing import Any, NoReturn

import psycopg
import pytest

from scheduler.operations.machines.check import recover, sweep
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.run_times import learn_run_times
from scheduler.operations.tick.tick import tick
from scheduler.ports import CloudError, DeposedError
from scheduler.store.opening import open_store
from scheduler.store.postgresql_pipeline import PostgresConnection
from scheduler.view.memory import InMemoryRedis
from tests.operations.harness import CountingFleet, Harness
from tests.operations.test_races import CONFIG, ask, make_ready

THREADS = 6
PIECES = 40
ROUNDS = 10
"""The most rounds until enough leases have begun. How many begin in a round depends on the order of the threads."""
SLOTS = ("linux-1", "linux-2", "linux-3")
ACTS = (
    *["submit", "tick", "prune", "learn"] * 3,
    *("release", "cancel", "suspend", "resume", "cordon", *["uncordon"] * 3, "slow"),
    *("account", "account", "forget_account", "confirm", "idle", "absent", "apply"),
)
ACCOUNTS = ("a", "b", "c")


def act_at_random(number: int, harness: Harness, round_number: int) -> list[str]:
    """Run random operations on few rows; return those that ended without an error."""
    random, done = Random(number + THREADS * round_number), []
    for piece in range(PIECES):
        act = random.choice(ACTS)
        if act == "tick":
            with suppress(DeposedError):
                tick(harness.ports, harness.leader)
        elif act == "slow":
            harness.fleet.errors.append(CloudError(random.choice(["capacity", "quota", "throttled"]), "Code", "no"))
            recover(harness.ports, resend_seconds=0.0)
            sweep(harness.ports, all_machines=True)
            harness.play_tasks()
        elif act == "apply":
            apply_rules(harness.ports, make_rules(random.choice(["quota", "fifo"])))
        elif act == "learn":
            learn_run_times(harness.ports)
        elif act == "prune":
            harness.store.prune(events_before=0.0, requests_before=0.0, ended_before=harness.store.now())
        else:
            ask(harness.ports, act, request=f"{round_number}/{number}/{piece}", items=make_items(act, random))
        done.append(act)
    return done


def make_rules(queue: str) -> dict[str, Any]:
    """Return rules of three slots for four leases each, with this queue."""
    return {
        "scheduler": {"queue": queue, "preemption_grace": 0},
        "pools": {"linux": {**CONFIG["pools"]["linux"], "max_slots": 3, "max_leases_per_slot": 4}},
        "accounts": {name: {"balance": [50 * number]} for number, name in enumerate(ACCOUNTS)},
    }


def make_items(verb: str, random: Random) -> list[dict[str, object]]:
    """Return the items of a command about some of the rows."""
    some = random.sample([f"r{index}" for index in range(16)], 4)
    match verb:
        case "submit":
            return [{"id": name, "system": "x86_64-linux", "account": random.choice(ACCOUNTS)} for name in some]
        case "account":
            return [{"account": name, "balance": [random.choice([0, 50])]} for name in random.sample(ACCOUNTS, 2)]
        case "forget_account":
            return [{"account": random.choice(ACCOUNTS)}]
        case "cordon" | "uncordon" | "idle":
            return [{"slot": slot} for slot in random.sample(SLOTS, 2)]
        case "confirm":
            return [{"reservation": name, "slot": random.choice(SLOTS), "token": 1} for name in some]
        case "absent":
            return [{"reservation": name} for name in some]
        case _:
            return [{"reservation": name, "token": 1} for name in some]


def test_there_are_no_deadlocks(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With operations of all kinds at once, PostgreSQL reports no deadlock and no timeout of a statement."""
    states: list[str | None] = []
    fail = PostgresConnection._fail

    def note(connection: PostgresConnection, error: psycopg.Error) -> NoReturn:
        states.append(error.sqlstate)
        fail(connection, error)

    monkeypatch.setattr(PostgresConnection, "_fail", note)
    with ExitStack() as opened:
        stores = [opened.enter_context(closing(open_store(postgresql_url))) for _ in range(THREADS)]
        fleet, redis = CountingFleet(), InMemoryRedis(stores[0].now)
        harnesses = [Harness(make_rules("quota"), store=store, fleet=fleet, redis=redis) for store in stores]
        for name in SLOTS:
            make_ready(harnesses[0], name)
        for round_number in range(ROUNDS):
            with ThreadPoolExecutor(THREADS) as threads:
                acts = threads.map(act_at_random, range(THREADS), harnesses, repeat(round_number))
                assert sum(map(len, acts)) == THREADS * PIECES
            if sum(each.name == "reservation_leased" for each in harnesses[0].events) > THREADS:
                break
        else:
            pytest.fail("too few leases began")
    assert set(states) <= {
        "23505"
    }  # unique_violation: a request or back-off exists already, and the operation is repeated
