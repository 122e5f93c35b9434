"""Two hosts of workers on one machine, with all other processes. A process that ends is started again."""

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from leasehold.stack.configuration import find_free_port
from scheduler.operations.principals import add_principal
from scheduler.protocol.names import QUEUE_NAMES
from tasks.app import app
from testbed.postgresql_server import find_binaries
from testbed.processes import Process
from testbed.redis_pair import RedisPair
from testbed.stack import IMAGE, Stack
from tests.chaos import holders, mallory, slow_clients, worker
from tests.chaos.database import Database
from tests.chaos.evidence import GANGS, HOLDERS
from tests.chaos.points import Point, find_takers, is_ready, withdraw_orders
from workers.services import Services

REVIVE_SECONDS: Final = 0.3
START_SECONDS: Final = 120.0
"""Longest start of all these processes on a busy machine."""
LEASE_SECONDS: Final = 6
SPOT: Final = [{"name": "c5.large"}, {"name": "m5.large"}]
ON_DEMAND: Final = [{"name": "c5.large", "market": "on-demand"}, {"name": "m5.large", "market": "on-demand"}]
EMULATOR: Final = {"forget_seconds": 100_000, "stop_seconds": 0.3, "start_seconds": 0.2}
RULES: Final[dict[str, Any]] = {
    "scheduler": {"restart_delay": 0.5, "confirm_timeout": 8},
    "pools": {
        # One lease a machine, so two holders with valid tokens on one machine are a violation.
        "single": {"max_slots": 10, "max_leases_per_slot": 1},
        # Several leases a machine, with four cpus together.
        "shared": {"max_slots": 3, "resources": {"cpus": 4}},
        # Each reservation launches a machine, which is terminated soon after it.
        "brief": {"max_slots": 4, "max_leases_per_slot": 1, "idle_scale_down": 0.1},
        # Waves of reservations, and of gangs. Each wave launches its machines by one CreateFleet that may choose among
        # two types; the pools above launch by RunInstances. The machines of a wave are terminated together soon after.
        "fleet": {"max_slots": 6, "max_leases_per_slot": 1, "idle_scale_down": 0.1, "offerings": SPOT},
        GANGS: {"max_slots": 6, "max_leases_per_slot": 1, "idle_scale_down": 0.1, "offerings": SPOT},
        # Machines are started for a wave, and stopped soon after it.
        "tier": {
            "max_slots": 5,
            "max_leases_per_slot": 1,
            "idle_scale_down": 0.1,
            "stopped_slots": 2,
            "resize_stopped": True,
            "offerings": ON_DEMAND,
        },
    },
}
POOL: Final[dict[str, Any]] = {
    "idle_scale_down": 2,
    "lease_ttl": LEASE_SECONDS,
    "capacity_hold": 1,
    "quota_hold": 1,
    "error_cooldown": 1,
    "ec2": {"image": IMAGE},
}
PROCESSES: Final[dict[str, tuple[str, ...]]] = {
    "reservations-a": ("tests.chaos.worker", "reservations"),
    "reservations-b": ("tests.chaos.worker", "reservations"),
    "ticks-a": ("tests.chaos.worker", "ticks"),
    "ticks-b": ("tests.chaos.worker", "ticks"),
    "launch-a": ("tests.chaos.worker", "launch"),
    "launch-b": ("tests.chaos.worker", "launch"),
    "health-a": ("tests.chaos.worker", "health"),
    "terminate-b": ("tests.chaos.worker", "terminate"),
    "beat-a": ("tasks.clock",),
    "beat-b": ("tasks.clock",),
    "console-a": ("leasehold.console", "--local"),
}
"""Name of the process, which ends with the letter of its host → module and arguments."""


def make_rules() -> dict[str, Any]:
    """Return the rules of the run: each pool with its own keys and the common ones."""
    pools = {name: {"system": name, **POOL, **pool} for name, pool in RULES["pools"].items()}
    return {**RULES, "pools": pools}


class Hosts(Stack):
    """The stack of the end-to-end tests with two schedulers, two beats, and the named points for faults.

    `off`: the guard that is switched off in all workers.
    """

    emulator_options: tuple[str, ...] = ("--describe-lag-seconds=0.3",)
    programs: Mapping[str, tuple[str, ...]] = PROCESSES

    def __init__(self, folder: Path, database: Database, off: str | None = None, **settings: Any) -> None:
        self.console_port = find_free_port()
        quick = {
            # Each of the two beats sends these messages. If they came more often, a busy machine would not process its
            # health queue: its messages would expire, so no order would be sent again and no lost machine found.
            "SWEEP_INTERVAL": 1,
            "RECOVER_INTERVAL": 2,
            "ORPHAN_AGE": 5,
            "AWS__INTERRUPTION_INTERVAL": 1,
            "CELERY__CONCURRENCY__RESERVATIONS": 1,
            "CELERY__CONCURRENCY__HEALTH": 4,
            "ACCESS__MODE": "signed",
            "CONSOLE__PORT": self.console_port,
            **settings,
        }
        super().__init__(folder, self.make_rules(), database_url=database.url, **quick)
        self.database = database
        self.points = folder / "points"
        self.points.mkdir()
        self._off = off
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._reviver = threading.Thread(target=self._revive, name="reviver", daemon=True)
        self._wanted: set[str] = set()
        self._services_of_this_process: Services | None = None

    def make_rules(self) -> dict[str, Any]:
        return make_rules()

    def start_redis(self) -> RedisPair:
        """Start two servers behind one address, which the fault `switch` exchanges."""
        self.redis_pair = RedisPair(self.folder / "redis")
        return self.redis_pair

    def _start_emulator(self) -> str:
        self.emulator_url = super()._start_emulator()
        self.control_emulator("PUT", "settings", EMULATOR)
        return self.emulator_url

    def apply(self, rules: Mapping[str, Any]) -> None:
        """Apply the rules, and sign later messages of this process like those of a worker."""
        self._services_of_this_process = self._services_of_this_process or app.services
        app.services = self.services
        super().apply(rules)

    def _start_workers(self) -> None:
        store = self.services.ports.store
        self.mallory = add_principal(store, {"name": mallory.NAME, "role": "producer"})
        self.reader = add_principal(store, {"name": slow_clients.NAME, "role": "reader"})
        owner = add_principal(store, {"name": HOLDERS, "role": "producer"})
        self.environment |= {"LEASEHOLD_ACCESS__PRINCIPAL": owner.name, "LEASEHOLD_ACCESS__KEY": owner.key}
        for name, words in self.programs.items():
            self.start(name, *words)
        self._reviver.start()

    def _await_workers(self) -> None:
        for queue in QUEUE_NAMES:
            self.await_canary(queue, START_SECONDS)

    def start(self, name: str, *words: str, environment: Mapping[str, str] | None = None) -> Process:
        """Start a process that is started again when it ends. `environment`: default: that of the stack."""
        chaos = {worker.FOLDER: str(self.points), worker.HOST: f"host-{name[-1]}", worker.OFF: self._off or ""}
        chaos[holders.WALL] = repr(time.time() - time.monotonic())
        with self._guard:
            base = self.environment if environment is None else environment
            full = self.shifts.environment(name, {**base, **chaos})
            process = Process(name, words, full, self.folder, like="tasks.worker")
            self.processes[name] = process
            self._wanted.add(name)
        return process

    def run_command(self, name: str, *words: str) -> Process:
        """Start the command `leasehold` with these arguments and with the named points of a restore."""
        chaos = {worker.FOLDER: str(self.points), worker.OFF: self._off or ""}
        chaos["LEASEHOLD_DATABASE__URL"] = self.database.direct_url
        if binaries := find_binaries():
            # `leasehold backup` and `leasehold restore` run PostgreSQL's programs.
            chaos["PATH"] = f"{binaries}{os.pathsep}{os.environ['PATH']}"
        environment = self.shifts.environment(name, {**self.environment, **chaos})
        return Process(name, ("tests.chaos.command", *words), environment, self.folder)

    def _revive(self) -> None:
        while not self._stopped.wait(REVIVE_SECONDS):
            with self._guard:
                for name in self._wanted:
                    if not self.processes[name].is_alive and not self.processes[name].has_succeeded:
                        self.processes[name].start()

    def stop(self) -> None:
        """End all processes, including stopped ones."""
        self._stopped.set()
        with suppress(RuntimeError):
            self._reviver.join()
        self.go_on()
        super().stop()
        if self._services_of_this_process is not None:
            app.services = self._services_of_this_process

    def go_on(self) -> None:
        """Continue all stopped processes, and withdraw the orders that no process took."""
        withdraw_orders(self.points)
        with self._guard:
            for name in self._wanted:
                self.signal(name, signal.SIGCONT)

    def go_on_at(self, point: Point) -> None:
        """Continue the processes that stopped at this point, and withdraw its order if no process took it."""
        (self.points / point).unlink(missing_ok=True)
        for pid in find_takers(self.points, point, "stop"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def has_worker(self, queue: str) -> bool:
        """Return whether a worker of this queue takes messages; after a kill its start takes some seconds."""
        workers = (process for name, process in self.processes.items() if name.rpartition("-")[0] == queue)
        return any(process.is_alive and is_ready(self.points, process.pid) for process in workers)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, number)

    def control_emulator(self, method: str, path: str, document: object = None) -> dict[str, Any]:
        """Send a request to the emulator's control API, and return its answer."""
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{self.emulator_url}/_leasehold/{path}",
            data=None if document is None else json.dumps(document).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
            found: dict[str, Any] = json.load(answer)
            return found

    def machines(self) -> list[Mapping[str, Any]]:
        """Return the emulator's machines, including terminated ones."""
        found: list[Mapping[str, Any]] = self.control_emulator("GET", "state")["instances"]
        return found

    def list_lives(self) -> list[Mapping[str, Any]]:
        """Return the lives of the emulator's machines."""
        found: list[Mapping[str, Any]] = self.control_emulator("GET", "history")["instances"]
        return found
