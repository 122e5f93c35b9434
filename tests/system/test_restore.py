"""A backup is restored while the stack runs: no token or term is used twice, and every holder gets an answer."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold import Client
from scheduler.protocol.names import task_name
from scheduler.store.backup import BackupError, put_back, read_backup
from testbed.postgresql_server import PostgresServer, find_binaries
from testbed.processes import PATIENCE, Process, wait_for
from testbed.stack import Stack, a_pool

pytestmark = pytest.mark.timeout(300)

REMEDY = "leasehold restore --in-place"
RULES = {"pools": {"linux": a_pool(max_leases_per_slot=1, max_slots=4, lease_ttl=60)}}


@pytest.fixture(params=["sqlite", "postgresql"])
def stack(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A stack on each kind of database; the programs of PostgreSQL are on the PATH of its processes."""
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


def command(stack: Stack, *arguments: str, status: int = 0) -> str:
    """Run a command, check its status and return its output."""
    process = Process("command", ("leasehold.cli", *arguments), stack.environment, stack.folder)
    wait_for(lambda: not process.is_alive, f"leasehold {arguments[0]} to end", 3 * PATIENCE)
    assert process.await_end() == status, process.read_log()
    return process.read_log(100_000)


def restore(stack: Stack, *arguments: str) -> dict[str, Any]:
    """Run a restore and return its result."""
    found: dict[str, Any] = json.loads(command(stack, "restore", *arguments, "--yes", "--json").splitlines()[-1])
    return found


def lease(stack: Stack, name: str) -> int:
    """Submit a reservation and return the token of its lease."""
    stack.submit(name)
    (row,) = stack.await_phase([name], "leased")
    return row.token


def renew(stack: Stack, name: str, token: int) -> dict[str, Any]:
    return stack.ask("renew", {"reservation": name, "token": token})


def test_leases_from_after_the_backup_are_cancelled_and_no_number_is_used_twice(stack: Stack) -> None:
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
    assert renew(stack, "kept", kept_token)["ok"], "a lease from before the backup is kept"
    assert not renew(stack, "held", highest)["ok"]
    assert first["term"] > leader_term.term
    new_token = lease(stack, "next")
    assert new_token > first["token"] > highest
    assert stack.find("kept").token == kept_token
    # Each machine belongs to a slot again or is terminated.
    known = {slot.instance_id for slot in stack.slots()}
    wait_for(
        lambda: {each["id"] for each in stack.instances("running")} <= known | machines_of(stack),
        "the end of machines without a slot",
    )
    assert machines >= 2
    # Restore the same backup again; it does not contain the first restore.
    second = restore(stack, "the.backup")
    assert second["token"] > new_token
    assert second["term"] > first["term"]
    assert [each["id"] for each in second["lost"] if each["id"] == "next"] == ["next"]
    assert lease(stack, "last") > second["token"]
    for name in ("kept", "last"):
        stack.ask("release", {"reservation": name, "token": stack.find(name).token})
    stack.await_empty()
    wait_for(lambda: not stack.instances("pending", "running"), "the end of every machine")


def machines_of(stack: Stack) -> set[str | None]:
    return {slot.instance_id for slot in stack.slots()}


def is_refused(stack: Stack, queue: str, task: str) -> bool:
    """Send a message and return whether the worker has logged the command for a restore.

    beat has stopped, so the test sends the message. A worker keeps a check of its membership for a second.
    """
    stack.app.send_task(task_name(queue, task))
    return REMEDY in stack.processes[queue].read_log()


def _is_put_back(stack: Stack) -> bool:
    """Load the older database while all processes run. A transaction of theirs may have locked tables in another order;
    then PostgreSQL ends the load, which changes nothing.
    """
    try:
        put_back(read_backup(stack.folder / "the.backup"), stack.settings.database_url)
    except BackupError as error:
        if "deadlock detected" not in str(error):
            raise
        return False
    return True


def test_an_older_database_restored_by_other_means_is_refused_until_restore_in_place(stack: Stack) -> None:
    """After a copied SQLite file or a PostgreSQL dump, running and starting processes name the command to use."""
    command(stack, "backup", "the.backup")
    token = lease(stack, "after")
    record = stack.services.ports.record
    assert record is not None
    wait_for(lambda: record.read().token >= token, "Redis to remember")
    wait_for(lambda: _is_put_back(stack), "the older database")
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
