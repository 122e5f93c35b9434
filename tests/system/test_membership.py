"""Two clusters with different databases are configured to use the same Redis: the second one does not start."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from leasehold.stack.configuration import find_free_port
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from testbed.processes import Process, wait_for
from testbed.stack import Stack

ANOTHER = "a" * 32
PROGRAMS = {
    "foreign-reservations": ("tasks.worker", "reservations"),
    "foreign-launch": ("tasks.worker", "launch"),
    "foreign-beat": ("tasks.clock",),
    "foreign-metrics": ("workers.exporter",),
    "foreign-apply": ("leasehold.cli", "apply", "leasehold.toml", "--yes"),
}


def scrape(port: int) -> str:
    """Return the page of metrics, or "" if no process serves it."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            return str(page.read().decode())
    except OSError:
        return ""


@pytest.fixture
def foreign_database(tmp_path: Path) -> str:
    """The database of another cluster."""
    url = f"sqlite:///{tmp_path}/foreign.db"
    migrate(url)
    return url


@pytest.fixture
def foreign_processes(stack: Stack, foreign_database: str, tmp_path: Path) -> Iterator[dict[str, Process]]:
    """Every program that uses a database, with the Redis of the stack and the database of another cluster."""
    config = tmp_path / "leasehold.toml"
    config.write_text('[pools.linux]\nsystem = "x86_64-linux"\nmax_slots = 1\n')
    changes = {
        "LEASEHOLD_DATABASE__URL": foreign_database,
        "LEASEHOLD_CONFIG": str(config),
        "LEASEHOLD_METRICS__PORT": str(find_free_port()),
    }
    started = {
        name: Process(name, arguments, stack.environment | changes, tmp_path) for name, arguments in PROGRAMS.items()
    }
    yield started
    for process in started.values():
        process.stop()


def test_no_process_of_another_cluster_starts_and_no_reservation_is_lost(
    stack: Stack, foreign_database: str, foreign_processes: dict[str, Process]
) -> None:
    """Without the check a worker of another cluster would take requests from the queue, and they would be lost."""
    identities = {stack.services.ports.store.read_cluster().identity}
    with closing(open_store(foreign_database)) as store:
        identities.add(store.read_cluster().identity)
    names = [f"own-{number}" for number in range(20)]
    for name in names:
        stack.send("submit", {"id": name, "pool": "warm"})
    for name, process in foreign_processes.items():
        assert process.await_end() != 0, name
        lines = process.read_log().strip().splitlines()
        assert len(lines) == 1, (name, lines)
        assert all(identity in lines[0] for identity in identities), lines
    rows = stack.await_phase(names, "leased")
    tokens = [row.token for row in rows]
    assert len(set(tokens)) == len(tokens)
    for row in rows:
        stack.ask("release", {"reservation": row.id, "token": row.token})
    with closing(open_store(foreign_database)) as store:
        assert not store.find_reservations()


def test_every_process_ends_when_its_redis_belongs_to_another_cluster_and_no_message_is_lost(
    stack: Stack, tmp_path: Path
) -> None:
    """The message goes back to its queue. A supervisor may restart the worker, which then refuses to start."""
    key, worker, beat = "leasehold:cluster", stack.processes["reservations"], stack.processes["beat"]
    port = find_free_port()
    metrics = Process(
        "own-metrics", ("workers.exporter",), stack.environment | {"LEASEHOLD_METRICS__PORT": str(port)}, tmp_path
    )
    wait_for(lambda: "leasehold_term" in scrape(port), "the metrics")
    identity = stack.redis.get(key)
    assert isinstance(identity, bytes)
    stack.redis.set(key, ANOTHER)
    try:

        def send_and_look() -> bool:
            # The worker may accept a request until its next check; the same id again changes nothing.
            stack.send("submit", {"id": "in-between", "pool": "warm"})
            return not worker.is_alive

        wait_for(send_and_look, "the worker to end")
        assert ANOTHER in worker.read_log()
        wait_for(lambda: not beat.is_alive, "beat to end")
        wait_for(lambda: "leasehold_term" not in scrape(port), "the metrics process to refuse")
        for each, process in (("beat", beat), ("metrics", metrics)):
            assert process.await_end() != 0, each
            assert (
                f"leasehold: Redis belongs to cluster {ANOTHER}, the database to cluster {identity.decode()}"
                in process.read_log()
            )
    finally:
        stack.redis.set(key, identity)
        ended = {name: each for name, each in stack.processes.items() if "it ends." in each.read_log(100_000)}
        ended |= {"beat": beat} if not beat.is_alive else {}
        for process in ended.values():
            process.await_end()
            process.start()
        metrics.stop()
        for name in ended.keys() - {"beat"}:
            stack.await_canary(name)
    (row,) = wait_for(lambda: stack.services.ports.store.find_reservations(ids=["in-between"]), "the reservation")
    stack.ask("cancel", {"reservation": row.id})
