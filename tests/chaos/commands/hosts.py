"""The stack of a chaos run of commands: static hosts with agents, and machines of the emulator with agents."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leasehold.stack.configuration import EMULATED_ROLE
from leasehold.work import guard
from leasehold.work.guard import Process as RunningProcess
from leasehold.work.guard import read_boot_clock
from scheduler.operations.principals import add_principal, change_right
from scheduler.protocol.signing import format_key_line, make_key
from testbed.processes import Process, wait_for
from testbed.proxy import EVERY, Proxy
from testbed.stack import IMAGE, ROOT
from tests.chaos.commands.agent import NOTES, OFF
from tests.chaos.database import Database
from tests.chaos.evidence import HOLDERS
from tests.chaos.hosts import POOL, SPOT, Hosts

_PASSES: Final = 20
STATIC: Final[Mapping[str, Any]] = {"provider": "static", "max_leases_per_slot": 4, "unhealthy_after": 0}
"""Hosts whose agents are silent for long stay in service."""
POOLS: Final[Mapping[str, Mapping[str, Any]]] = {
    # The contact to the hosts is lost before leases expire, and commands end at their deadlines.
    "lab": {**STATIC, "offline_timeout": 6, "lease_ttl": 60},
    # Leases expire before the contact is lost.
    "brief": {**STATIC, "offline_timeout": 20, "lease_ttl": 6},
    # A new agent takes running commands back.
    "calm": {**STATIC, "offline_timeout": 20, "lease_ttl": 120},
    # Machines that the emulator plays; EC2 takes them back.
    "machines": {**POOL, "agent": True, "max_slots": 3, "offline_timeout": 8, "lease_ttl": 30, "offerings": SPOT},
}
STATIC_HOSTS: Final[Mapping[str, str]] = {
    "lab-1": "lab",
    "lab-2": "lab",
    "lab-3": "lab",
    "brief-1": "brief",
    "brief-2": "brief",
    "calm-1": "calm",
    "calm-2": "calm",
}
"""Host, which is also its slot → pool."""
PROCESSES: Final[Mapping[str, tuple[str, ...]]] = {
    "reservations-a": ("tests.chaos.worker", "reservations"),
    "reservations-b": ("tests.chaos.worker", "reservations"),
    "ticks-a": ("tests.chaos.worker", "ticks"),
    "ticks-b": ("tests.chaos.worker", "ticks"),
    "launch-a": ("tests.chaos.worker", "launch"),
    "health-a": ("tests.chaos.worker", "health"),
    "terminate-b": ("tests.chaos.worker", "terminate"),
    "beat-a": ("tasks.clock",),
    "beat-b": ("tasks.clock",),
    "console-a": ("leasehold.console", "--local"),
}
STRANGER: Final = "stranger"
"""The host that has a key of another cluster, and the name of another host's slot."""
AGENT: Final = "agent-"
USER_DATA: Final = f"""#!/bin/sh
export HOME="$$PWD" PYTHONPATH="{ROOT}"
export {NOTES}="{{notes}}/$$EMULATED_INSTANCE_ID.jsonl" {OFF}="{{off}}"
exec python -m tests.chaos.commands.agent host join "${{{{join_url}}}}" --cluster "${{{{cluster_id}}}}" \\
    --region "${{{{region}}}}" --json
"""


@dataclass
class Strike:
    """A kill or stop of a part of a host. Times are those of the boot clock. `until`: the end of a stop; None: it has
    not ended, or it was a kill. `pid`: that of the process, if one was hit.
    """

    host: str
    part: str
    how: str
    at: float
    until: float | None = None
    pid: int = 0


class CommandHosts(Hosts):
    """The stack of a run of commands. Each static host has a connection of its own to Redis, which can be cut."""

    emulator_options = (*Hosts.emulator_options, "--run-user-data")
    programs = PROCESSES

    def __init__(self, folder: Path, database: Database, off: str | None = None) -> None:
        self.lines, self.notes = folder / "lines", folder / "notes"
        self._homes = folder / "hosts"
        for each in (self.lines, self.notes, self._homes):
            each.mkdir(parents=True, exist_ok=True)
        self._off_agent = off or ""
        super().__init__(folder, database, off, ACCESS__JOIN_ROLES=EMULATED_ROLE)
        self._settings["ACCESS__JOIN_URL"] = f"http://127.0.0.1:{self.console_port}"
        self.strikes: list[Strike] = []
        self.links: dict[str, Proxy] = {}
        self._open_links = ExitStack()
        self._stopped_pids: dict[int, int | None] = {}
        """Process that was stopped → its start time."""
        self._strikes_lock = threading.Lock()

    def make_rules(self) -> dict[str, Any]:
        pools = {name: {"system": name, **pool} for name, pool in POOLS.items()}
        script = USER_DATA.format(notes=self.notes, off=self._off_agent)
        pools["machines"]["ec2"] = {"image": IMAGE, "user_data": script}
        return {"scheduler": {"restart_delay": 0.5, "confirm_timeout": 12, "preemption_grace": 3}, "pools": pools}

    def _start_workers(self) -> None:
        super()._start_workers()
        change_right(self.services.ports.store, HOLDERS, "run", has_it=True)
        self._cluster = self.services.ports.store.read_cluster().identity
        for host in STATIC_HOSTS:
            key = add_principal(self.services.ports.store, {"name": host, "role": "host"}).key
            self._write_key(host, format_key_line(host, key, self._cluster))
            self.links[host] = self._open_links.enter_context(Proxy(self.redis_pair.port))
            self.start(AGENT + host, *self._list_words(host), environment=self._make_agent_environment(host))

    def _await_workers(self) -> None:
        super()._await_workers()
        wait_for(self._are_ready, "the hosts", 120)

    def _are_ready(self) -> bool:
        slots = {slot.id for slot in self.services.ports.store.find_slots() if slot.state == "ready"}
        return slots >= STATIC_HOSTS.keys()

    def _write_key(self, host: str, line: str) -> None:
        home = self._homes / host
        home.mkdir(exist_ok=True)
        path = home / "key"
        path.touch(mode=0o600)
        path.write_text(line)

    def _list_words(self, host: str, slot: str | None = None) -> list[str]:
        slot = slot or host
        words = f"tests.chaos.commands.agent host run {slot} --pool {STATIC_HOSTS[slot]} --machine m-{slot} --cpus 4"
        return [*words.split(), "--json", "--state", str(self._homes / host / "state")]

    def _make_agent_environment(self, host: str) -> dict[str, str]:
        kept = {name: value for name, value in self.environment.items() if not name.startswith("LEASEHOLD_ACCESS__")}
        port = self.links[host].port if host in self.links else self.redis_pair.port
        return kept | {
            "HOME": str(self._homes / host),
            NOTES: str(self.notes / f"{host}.jsonl"),
            OFF: self._off_agent,
            "LEASEHOLD_ACCESS__KEY_FILE": str(self._homes / host / "key"),
            "LEASEHOLD_BROKER__URL": f"redis://127.0.0.1:{port}/0",
        }

    def start_stranger(self, slot: str) -> Process:
        """Start an agent that has the name, machine and slot of a host, and a key of another cluster."""
        self._write_key(STRANGER, format_key_line(slot, make_key(), "0123456789abcdef"))
        words = self._list_words(STRANGER, slot)
        return Process(STRANGER, words, self._make_agent_environment(STRANGER), self.folder)

    # The parts of a host

    def find_agent(self, host: str) -> RunningProcess | None:
        return guard.find_process(self.processes[AGENT + host].pid)

    def find_guard(self, host: str) -> RunningProcess | None:
        """Return the guard of a host; None: none runs."""
        with suppress(OSError, ValueError):
            path = self._homes / host / "state" / "commands" / host / "guard" / guard.LOCK
            pid, started = map(int, path.read_text().split())
            found = guard.find_process(pid)
            return found if found is not None and found.started == started else None
        return None

    def find_keeper(self, host: str) -> RunningProcess | None:
        """Return the keeper of a host; None: none runs."""
        found = self.find_guard(host)
        parent = None if found is None else guard.find_process(found.parent)
        if found is None or parent is None:
            return None
        # The guard of a dead keeper has another parent, which runs another program.
        return parent if _read_words(parent) == _read_words(found) else None

    def list_commands(self, host: str) -> list[RunningProcess]:
        found = self.find_guard(host)
        if found is None:
            return []
        return [each for each in _list_below(found.pid) if str(self.lines) in _read_words(each)]

    def list_left(self) -> list[RunningProcess]:
        return [each for each in guard.list_processes().values() if str(self.lines) in _read_words(each)]

    def list_host(self, host: str) -> list[RunningProcess]:
        parts = [self.find_agent(host), self.find_keeper(host), self.find_guard(host)]
        found = {each.pid: each for each in parts if each is not None}
        for root in list(found):
            found |= {each.pid: each for each in _list_below(root)}
        return list(found.values())

    # Faults

    def kill_part(self, host: str, part: str, process: RunningProcess) -> None:
        self._note(Strike(host, part, "kill", read_boot_clock(), pid=process.pid))
        guard.kill(process)

    def stop_part(self, host: str, part: str, process: RunningProcess) -> Strike:
        """Stop one process of a host, until `continue_part`."""
        strike = self._note(Strike(host, part, "stop", read_boot_clock(), pid=process.pid))
        self._stop(process)
        return strike

    def stop_host(self, host: str) -> Strike:
        """Stop all processes of a host, also those that they start meanwhile."""
        strike = self._note(Strike(host, "host", "stop", read_boot_clock()))
        stopped = set[int]()
        for _ in range(_PASSES):
            found = [each for each in self.list_host(host) if each.pid not in stopped]
            for each in found:
                self._stop(each)
                stopped.add(each.pid)
            if not found:
                break
        return strike

    def kill_host(self, host: str, *, is_wiped: bool) -> None:
        """Kill all processes of a host, as the loss of its power does. `is_wiped`: with its disk."""
        with self._guard:
            # The agent is started again only after that.
            self.stop_host(host).how = "kill"
            for each in self.list_host(host):
                guard.kill(each)
            if is_wiped:
                shutil.rmtree(self._homes / host / "state", ignore_errors=True)

    def continue_part(self, strike: Strike) -> None:
        found = self.list_host(strike.host) if strike.part == "host" else [guard.find_process(strike.pid)]
        for each in found:
            if each is not None and self._stopped_pids.get(each.pid) == each.started:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGCONT)
        strike.until = read_boot_clock()

    def cut(self, host: str) -> None:
        self.links[host].lost = EVERY
        self.links[host].cut()

    def mend(self, host: str) -> None:
        """Let the connections of a host work again."""
        self.links[host].lost = ()
        self.links[host].go_on()

    def go_on(self) -> None:
        super().go_on()
        for strike in self.strikes:
            if strike.how == "stop" and strike.until is None:
                self.continue_part(strike)

    def stop(self) -> None:
        """See Hosts. Agents would wait for their commands to end; what is left of hosts is killed."""
        with self._guard:
            self._wanted -= {AGENT + host for host in STATIC_HOSTS}
        for host in STATIC_HOSTS:
            if (agent := self.processes.get(AGENT + host)) is not None and agent.is_alive:
                agent.kill()
        super().stop()
        for host in STATIC_HOSTS:
            for each in (self.find_keeper(host), self.find_guard(host)):
                if each is not None:
                    guard.kill(each)
        for each in self.list_left():
            guard.kill(each)
        self._open_links.close()

    def _note(self, strike: Strike) -> Strike:
        with self._strikes_lock:
            self.strikes.append(strike)
        return strike

    def _stop(self, process: RunningProcess) -> None:
        self._stopped_pids[process.pid] = process.started
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGSTOP)


def _list_below(root: int) -> Iterator[RunningProcess]:
    children: dict[int, list[RunningProcess]] = {}
    for each in guard.list_processes().values():
        children.setdefault(each.parent, []).append(each)
    left = [root]
    while left:
        found = children.get(left.pop(), [])
        yield from found
        left += [each.pid for each in found]


def _read_words(process: RunningProcess) -> tuple[str, ...]:
    with suppress(OSError):
        text = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        return tuple(text.decode(errors="replace").split("\0"))
    return ()
