"""A backup is restored while the stack runs: no number is used twice, and every holder gets an answer."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold import Client
from leasehold.common.names import task_name
from scheduler.store.backup import put_back, read_backup
from tests.postgresql_server import PostgresServer, find_binaries
from tests.system.processes import PATIENCE, Process, wait_for
from tests.system.stack import Stack, a_pool

pytestmark = pytest.mark.timeout(300)

REMEDY = "leasehold restore --in-place"
RULES = {"pools": {"linux": a_pool(max_leases_per_slot=1, max_slots=4, lease_ttl=60)}}


@pytest.fixture(params=["sqlite", "postgresql"])
def stack(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A stack of its own on each database, in whose processes the programs of PostgreSQL are found."""
    binaries = find_binaries()
    if binaries is not None:
        monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    if request.param == "sqlite":
        with Stack(tmp_path, RULES) as running:
            yield running
        return
    server: PostgresServer = request.getfixturevalue("postgresql_server")
    name = server.create_database()
    with Stack(tmp_path, RULES, database_url=server.url(name)) as running:
        yield running
    running.services.ports.store.close()
    server.drop_database(name)


def command(stack: Stack, *words: str, status: int = 0) -> str:
    """What a command printed."""
    process = Process("command", ("leasehold.cli", *words), stack.environment, stack.folder)
    wait_for(lambda: not process.is_alive, f"leasehold {words[0]} to end", 3 * PATIENCE)
    assert process.await_end() == status, process.read_log()
    return process.read_log(100_000)


def restore(stack: Stack, *words: str) -> dict[str, Any]:
    """What a restore came to."""
    found: dict[str, Any] = json.loads(command(stack, "restore", *words, "--yes", "--json").splitlines()[-1])
    return found


def lease(stack: Stack, name: str) -> int:
    """The token of a new lease."""
    stack.submit(name)
    (row,) = stack.await_phase([name], "leased")
    return row.token


def renew(stack: Stack, name: str, token: int) -> dict[str, Any]:
    return stack.ask("renew", {"reservation": name, "token": token})


def test_what_happened_after_the_backup_is_settled_and_no_number_comes_twice(stack: Stack) -> None:
    kept_token = lease(stack, "kept")
    command(stack, "backup", "the.backup")
    with Client(stack.redis_server.url) as client, client.lease(id="held", pool="linux", wait=PATIENCE) as held:
        stack.submit("waits", priority=0)
        machines = len(stack.instances("running"))
        leader_term, highest = stack.services.ports.store.load_leader_term(), held.token
        first = restore(stack, "the.backup")
        assert held.lost.wait(PATIENCE)
        assert "cancelled" in str(held.reason)
    assert {each["id"]: (each["phase"], each["outcome"]) for each in first["lost"]} == {
        "held": ("leased", "cancelled"),
        "waits": ("pending", "cancelled"),
    }
    assert renew(stack, "kept", kept_token)["ok"], "the database knows this lease, and its holder keeps it"
    assert not renew(stack, "held", highest)["ok"]
    assert first["term"] > leader_term.term
    new_token = lease(stack, "next")
    assert new_token > first["token"] > highest
    assert stack.find("kept").token == kept_token
    # Each machine is known to a slot again, or ended.
    known = {slot.instance_id for slot in stack.slots()}
    wait_for(
        lambda: {each["id"] for each in stack.instances("running")} <= known | machines_of(stack), "no stray machine"
    )
    assert machines >= 2
    # The same backup once more: the first restore is not in it.
    second = restore(stack, "the.backup")
    assert second["token"] > new_token
    assert second["term"] > first["term"]
    assert [each["id"] for each in second["lost"] if each["id"] == "next"] == ["next"]
    assert lease(stack, "last") > second["token"]
    for name in ("kept", "last"):
        stack.ask("release", {"reservation": name, "token": stack.find(name).token})
    stack.await_empty()
    wait_for(lambda: not stack.instances("pending", "running"), "every machine to go")


def machines_of(stack: Stack) -> set[str | None]:
    return {slot.instance_id for slot in stack.slots()}


def is_refused(stack: Stack, queue: str, task: str) -> bool:
    """Send one more message, since beat sends nothing now, and look whether the worker has named the command. A worker
    trusts a check of its membership for a second.
    """
    stack.app.send_task(task_name(queue, task))
    return REMEDY in stack.processes[queue].read_log()


def test_an_older_state_that_was_put_in_place_by_other_means_is_refused_until_it_is_settled(stack: Stack) -> None:
    """A file copy of SQLite, a dump of PostgreSQL: processes that run and processes that start name the command."""
    command(stack, "backup", "the.backup")
    token = lease(stack, "after")
    record = stack.services.ports.record
    assert record is not None
    wait_for(lambda: record.read().token >= token, "Redis to remember")
    put_back(read_backup(stack.folder / "the.backup"), stack.settings.database_url)
    wait_for(lambda: REMEDY in stack.processes["beat"].read_log(), "beat to stop")
    for name, task in (("ticks", "tick"), ("health", "sweep")):
        wait_for(lambda name=name, task=task: is_refused(stack, name, task), name)  # type: ignore[misc]
    late = Process("late", ("tasks.worker", "terminate"), stack.environment, stack.folder)
    wait_for(lambda: not late.is_alive, "the worker to end", 3 * PATIENCE)
    assert late.await_end() == 1
    assert REMEDY in late.read_log()
    assert "--yes" in command(stack, "restore", "--in-place", status=2)
    restored = restore(stack, "--in-place", "--resubmit")
    assert [(each["id"], each["outcome"]) for each in restored["lost"]] == [("after", "cancelled")]
    assert lease(stack, "next") > restored["token"] > token
