"""The nemesis of a run of commands: faults of hosts, beside those of the stack (tests/chaos/nemesis.py)."""

import json
import random
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import redis
from typing_extensions import override

from leasehold.work.guard import Process as RunningProcess
from scheduler.protocol.names import RESERVATIONS, task_name
from scheduler.view.connection import make_redis
from testbed.processes import Process
from tests.chaos.commands.hosts import STATIC_HOSTS, CommandHosts, Strike
from tests.chaos.faults import NEEDED
from tests.chaos.nemesis import Nemesis
from tests.chaos.points import Order, Point

STOP_SECONDS: Final = (2.0, 12.0)
FULL_STOP_SECONDS: Final = (10.0, 10.0)
BEYOND_DEADLINE_SECONDS: Final = (13.0, 15.0)
"""Stops of agents whose commands have no deadline: longer than the deadline and the time that the checker permits."""
REVIVE_SECONDS: Final = 8.0
"""Time after the kill of an agent in which its host gets no other fault: the next agent starts."""
WITH_COMMANDS: Final = 0.9
"""Share of the faults of hosts that hit a host on which commands run."""
CUT_SECONDS: Final = (0.2, 5.0)
NOTICE_SECONDS: Final = (1.0, 6.0)
FORGE_SECONDS: Final = 6.0
STRANGER_SECONDS: Final = 6.0
HOST_FAULTS: Final[Mapping[str, int]] = {
    "command": 5,
    "agent": 5,
    "guard": 4,
    "keeper": 2,
    "host": 4,
    "wipe": 2,
    "link": 6,
    "notice": 4,
    "forge": 2,
    "stranger": 1,
}
"""Fault of hosts → weight, see WEIGHTS."""
STACK_FAULTS: Final[Mapping[str, int]] = {
    "kill": 2,
    "stop": 2,
    "point": 3,
    "fence": 1,
    "redis": 2,
    "switch": 1,
    "clients": 1,
    "database": 1,
    "failover": 1,
    "clock": 4,
    "drop": 1,
    "repeat": 1,
}


class CommandNemesis(Nemesis):
    """Injects faults of hosts and of the stack. `stop_seconds`: how long the processes of hosts are stopped."""

    weights = {**HOST_FAULTS, **STACK_FAULTS}
    needed: Mapping[str, Sequence[tuple[Point, Order]]] = {**dict.fromkeys(HOST_FAULTS, ()), "fence": NEEDED["fence"]}
    pause_seconds = (0.3, 1.2)
    clock_shifts = (-90, -45, 0, 45, 90)

    def __init__(
        self,
        hosts: CommandHosts,
        seed: int,
        seconds: float,
        only: Sequence[str] = (),
        stop_seconds: tuple[float, float] = STOP_SECONDS,
    ) -> None:
        self._own, self._stop_seconds = hosts, stop_seconds
        self._busy_until: dict[str, float] = {}
        """Host → when its last fault is over, on the monotonic clock: what was stopped goes on, a killed agent runs."""
        self._forger = Forger(lambda: hosts.redis_server.url, random.Random(seed))
        self._strangers: list[Process] = []
        super().__init__(hosts, seed, seconds, only)

    @override
    def _list_faults(self) -> dict[str, Callable[[], str]]:
        return super()._list_faults() | {
            "command": self._hit_command,
            "agent": lambda: self._hit_part("agent", self._own.find_agent),
            "guard": lambda: self._hit_part("guard", self._own.find_guard),
            "keeper": lambda: self._hit_part("keeper", self._own.find_keeper, ("kill",)),
            "host": lambda: self._hit_host(is_wiped=False),
            "wipe": lambda: self._hit_host(is_wiped=True),
            "link": self._cut_link,
            "notice": self._give_notice,
            "forge": self._forge,
            "stranger": self._start_stranger,
        }

    @override
    def _choose_process(self) -> str:
        """See Nemesis. Agents have faults of their own, which are recorded."""
        return self._dice.choice(sorted(name for name in self._hosts.programs))

    @override
    def _shift_clock(self) -> str:
        """Shift the wall clock of one process, also of an agent."""
        names = sorted(set(self._hosts.processes) - {"emulator"})
        name, seconds = self._dice.choice(names), self._dice.choice(self.clock_shifts)
        self._hosts.shifts.set(name, seconds)
        self._shifted.add(name)
        return f"{name} by {seconds:+g} s"

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._forger.close()
        for host in STATIC_HOSTS:
            self._own.mend(host)
        for each in self._strangers:
            each.stop()

    def _choose_host(self, find: Callable[[str], object]) -> str | None:
        """Return a host that has what `find` looks for, and whose last fault is over; None: none."""
        free = [host for host in STATIC_HOSTS if self._busy_until.get(host, 0.0) <= time.monotonic()]
        return self._dice.choice(found) if (found := [host for host in free if find(host)]) else None

    def _hit_command(self) -> str:
        host = self._choose_host(self._own.list_commands)
        found = [] if host is None else self._own.list_commands(host)
        if host is None or not found:
            return "no command runs"
        return self._hit("command", host, self._dice.choice(found), ("kill", "stop"))

    def _hit_part(
        self, part: str, find: Callable[[str], RunningProcess | None], ways: Sequence[str] = ("kill", "stop")
    ) -> str:
        host = self._choose_host(self._own.list_commands if self._dice.random() < WITH_COMMANDS else find)
        process = None if host is None else find(host)
        return f"no {part} runs" if host is None or process is None else self._hit(part, host, process, ways)

    def _hit(self, part: str, host: str, process: RunningProcess, ways: Sequence[str]) -> str:
        self._done.add(part)
        # What a guard without a keeper leaves is not promised to end (docs/reference/commands.md).
        is_kept = part != "guard" or self._own.find_keeper(host) is not None
        if self._dice.choice(ways) == "kill" and is_kept:
            if part == "agent":
                self._busy_until[host] = time.monotonic() + REVIVE_SECONDS
            self._own.kill_part(host, part, process)
            return f"kill {part} {process.pid} of {host}"
        return self._continue_later(self._own.stop_part(host, part, process))

    def _continue_later(self, strike: Strike) -> str:
        seconds = self._dice.uniform(*self._stop_seconds)
        self._busy_until[strike.host] = time.monotonic() + seconds
        self._later(seconds, lambda: self._own.continue_part(strike))
        return f"stop {strike.part} {strike.pid} of {strike.host} for {seconds:.1f} s"

    def _hit_host(self, *, is_wiped: bool) -> str:
        find = self._own.list_commands if self._dice.random() < WITH_COMMANDS else self._own.find_agent
        host = self._choose_host(find)
        if host is None:
            return "no host is free"
        self._done.add("wipe" if is_wiped else "host")
        if is_wiped or self._dice.random() < 0.5:
            self._busy_until[host] = time.monotonic() + REVIVE_SECONDS
            self._own.kill_host(host, is_wiped=is_wiped)
            return f"{'kill and wipe' if is_wiped else 'kill'} {host}"
        return self._continue_later(self._own.stop_host(host))

    def _cut_link(self) -> str:
        """Cut the connections of a host, or silence them."""
        host, way, seconds = self._dice.choice(list(STATIC_HOSTS)), self._dice.choice(["cut", "silent"]), 0.0
        seconds = self._dice.uniform(*CUT_SECONDS)
        self._own.cut(host) if way == "cut" else self._own.links[host].fall_silent()
        self._later(seconds, lambda: self._own.mend(host))
        self._done.add("link")
        return f"{way} {host} for {seconds:.1f} s"

    def _give_notice(self) -> str:
        """Let EC2 take a spot machine back, with or without a notice."""
        running = [each["id"] for each in self._hosts.machines() if each["state"] == "running"]
        if not running:
            return "no machine"
        machine, how = self._dice.choice(running), self._dice.choice(["interrupt", "interrupt", "lose", "rebalance"])
        options = {"interrupt": {"deadline": self._dice.uniform(*NOTICE_SECONDS)}}.get(how, {})
        self._hosts.control_emulator("POST", how, {"instances": [machine], **options})
        if how == "interrupt":
            self._done.add("notice")
        return f"{how} {machine}"

    def _forge(self) -> str:
        """Let a hostile writer answer requests for commands, before the scheduler does."""
        self._forger.work_for(FORGE_SECONDS)
        if self._forger.answers:
            self._done.add("forge")
        return f"{self._forger.answers} forged answers so far"

    def _start_stranger(self) -> str:
        """Start an agent with a key of another cluster under the name of a host, for some seconds."""
        self._done.add("stranger")
        slot = self._dice.choice(list(STATIC_HOSTS))
        process = self._own.start_stranger(slot)
        self._strangers.append(process)
        self._later(STRANGER_SECONDS, process.stop)
        return f"as {slot}"


class Forger:
    """A hostile writer with access to Redis, but without a key. It reads all traffic, and answers requests for commands
    with earlier answers, or with changed ones, before the scheduler does. `find_url`: returns where Redis is now.
    """

    def __init__(self, find_url: Callable[[], str], dice: random.Random) -> None:
        self._find_url, self._dice = find_url, dice
        self._seen: list[dict[str, Any]] = []
        """Answers to requests for commands that were seen."""
        self.answers = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def work_for(self, seconds: float) -> None:
        """Forge answers for this time, in the background."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._over.clear()
        self._thread = threading.Thread(target=self._work, name="forger", daemon=True)
        self._thread.start()
        timer = threading.Timer(seconds, self._over.set)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while not self._over.is_set():
            with suppress(redis.RedisError, OSError, ValueError):
                self._follow()
            self._over.wait(0.2)

    def _follow(self) -> None:
        with make_redis(self._find_url()) as client, client.monitor() as monitor:
            while not self._over.is_set():
                # Other traffic ends the wait: heartbeats come each second.
                # Redis doubles backslashes; the client has undone the other escapes.
                self._take(client, str(monitor.next_command()["command"]).replace("\\\\", "\\"))

    def _take(self, client: redis.Redis, command: str) -> None:
        start = f"LPUSH {RESERVATIONS} "
        if command.startswith(start) and task_name(RESERVATIONS, "take") in command:
            message = json.loads(command.removeprefix(start))
            (request, *_), *_ = json.loads(b64decode(message["body"]))
            self._answer(client, request)
        elif '"signature"' in command and '"command"' in command:
            with suppress(ValueError):
                answer = json.loads(command[command.index("{") : command.rindex("}") + 1])
                self._seen += [each for each in answer.get("results", ()) if "signature" in each]

    def _answer(self, client: redis.Redis, request: Mapping[str, Any]) -> None:
        if not self._seen:
            return
        results = [dict(self._dice.choice(self._seen)) for _ in request["items"]]
        for lease, result in zip(request["items"], results, strict=True):
            if self._dice.random() < 0.5:
                result["command"] = self._change(result["command"], lease)
        answer = {"ok": True, "results": results, "request": request["request"]}
        client.rpush(request["reply_to"], json.dumps(answer))
        self.answers += 1

    @staticmethod
    def _change(text: str, lease: Mapping[str, Any]) -> str:
        """Return a command as one for this lease, with a mark in its environment."""
        named = {name: lease[name] for name in ("reservation", "component", "token", "slot")}
        command = json.loads(text)
        return json.dumps({**command, **named, "env": {**command["env"], "FORGED": "yes"}})
