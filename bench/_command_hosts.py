"""A stack with a static pool for the benches of commands, and its hosts: real agents, each a process with the key of
its slot.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench._stack import SYSTEM, await_slots, open_stack_with
from leasehold.client.client import Client
from leasehold.stack import Stack
from leasehold.work import guard
from scheduler.model.transitions import ENDED, PHASES
from scheduler.operations.principals import add_principal
from scheduler.protocol.signing import format_key_line
from testbed.processes import Process, wait_for

POOL: Final[dict[str, Any]] = {"system": SYSTEM, "provider": "static", "lease_ttl": 60, "offline_timeout": 30}
LONGEST_SECONDS: Final = 600.0


class Host:
    """A host with an agent, which keeps its files in `folder`."""

    def __init__(self, agent: Process, slot: str, folder: Path) -> None:
        self.agent, self.slot = agent, slot
        self._guard = folder / "commands" / slot / "guard"

    def find_guard(self) -> tuple[int, int]:
        """Return the process ids of the guard and its keeper."""
        pid = int((self._guard / guard.LOCK).read_text(encoding="utf-8").split()[0])
        found = guard.find_process(pid)
        assert found is not None
        return pid, found.parent


@contextmanager
def open_hosts(count: int, at_once: int, **pool: Any) -> Iterator[tuple[Stack, Client, list[Host]]]:
    """A running stack with this many ready hosts, each of which has `at_once` commands at the same time. `pool`: fields
    of the pool other than those of POOL.
    """
    with TemporaryDirectory(prefix="bench-hosts-", ignore_cleanup_errors=True) as name, ExitStack() as ends:
        stack, client = ends.enter_context(open_stack_with({"lab": {**POOL, **pool, "max_leases_per_slot": at_once}}))
        hosts = [_start_host(stack, Path(name), f"host-{number}") for number in range(count)]
        for host in hosts:
            ends.callback(_end_host, host)
        await_slots(client, count)
        yield stack, client, hosts


def _start_host(stack: Stack, folder: Path, slot: str) -> Host:
    with closing(stack.open_store()) as store:
        added = add_principal(store, {"name": slot, "role": "host"})
        line = format_key_line(added.name, added.key, store.read_cluster().identity)
    key_file = folder / f"{slot}.key"
    key_file.touch(mode=0o600)
    key_file.write_text(line, encoding="utf-8")
    words = f"leasehold.cli host run {slot} --pool lab --machine m-{slot} --cpus 64 --json --state {folder}".split()
    environment = {**os.environ, **stack.configuration.environment, "LEASEHOLD_ACCESS__KEY_FILE": str(key_file)}
    return Host(Process(slot, words, environment, folder), slot, folder)


def _end_host(host: Host) -> None:
    """End an agent at once. Its guard kills the commands when it has no agent: their deadlines are short."""
    try:
        pid, keeper = host.find_guard()
    except (OSError, ValueError, AssertionError):
        pid = keeper = 0
    host.agent.kill()
    for each in (pid, keeper):
        if each and (found := guard.find_process(each)):
            guard.kill(found)


def submit_many(client: Client, prefix: str, count: int, run: Mapping[str, Any]) -> list[str]:
    """Submit this many reservations with the same command, in one request. Return their ids."""
    names = [f"{prefix}-{number}" for number in range(count)]
    items: Any = [{"id": name, "system": SYSTEM, "resources": {"cpus": 0.1}, "run": run} for name in names]
    assert all(each.ok for each in client.reserve_many(items, timeout=60))
    return names


def await_all_ended(stack: Stack) -> None:
    """Return when no reservation waits or has a lease."""
    with closing(stack.open_store()) as store:
        open_phases = sorted({*PHASES} - ENDED)
        wait_for(lambda: not store.find_reservations(phases=open_phases, limit=1), "the ends", LONGEST_SECONDS)
