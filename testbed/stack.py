"""A whole stack for tests: Redis, SQLite, the EC2 emulator and the workers of the Procfile, with short intervals."""

import json
import os
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self, cast
from uuid import uuid4

import msgspec
from celery import Celery
from redis import Redis

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED, PHASES
from scheduler.operations.rules.apply import apply_rules
from scheduler.protocol.clock import read_offsets
from scheduler.protocol.names import CANARY, QUEUE_NAMES, RESERVATIONS, task_name
from scheduler.store.migrating import migrate
from scheduler.view.connection import make_redis
from tasks.app import make_app
from tasks.dispatch import CeleryDispatcher
from tasks.signing import sign_with
from testbed.clocks.shift import Shifts
from testbed.processes import PATIENCE, Process, wait_for
from testbed.redis_pair import RedisPair
from testbed.servers import start_own_redis
from workers.embedded_redis import RedisServer
from workers.services import Services
from workers.settings import Settings, read_settings

RESEND_SECONDS: Final = 2.0
CLOCK_PATIENCE: Final = 100.0
"""Seconds; longer than Redis keeps the clock offset of a process that has ended."""
ROOT: Final = Path(__file__).parents[1]
IMAGE: Final = "ami-04681a1dbd79675a5"

Answer = dict[str, Any]


def a_pool(**changes: Any) -> dict[str, Any]:
    """Return a pool of small spot machines that are terminated soon after they are idle."""
    return {
        "system": "x86_64-linux",
        "max_slots": 3,
        "max_leases_per_slot": 4,
        "idle_scale_down": 0.5,
        "ec2": {"image": IMAGE},
        **changes,
    }


class Stack:
    """Everything between a producer and EC2. `with` starts and stops it; a test may kill and restart each part."""

    emulator_options: tuple[str, ...] = ()

    def __init__(
        self, folder: Path, rules: Mapping[str, Any], *, database_url: str | None = None, **settings: Any
    ) -> None:
        self.folder, self._rules = folder, rules
        self._database_url = database_url or f"sqlite:///{folder}/leasehold.db"
        self._settings = settings
        self.processes: dict[str, Process] = {}
        self.shifts = Shifts(folder / "clocks")
        """The offset of the wall clock of each process; the emulator has none."""

    def __enter__(self) -> Self:
        self.redis_server = self.start_redis()
        try:
            self._start()
        except BaseException as error:
            # This includes Ctrl-C and the time limit of pytest, so that no process stays behind.
            if not isinstance(error, KeyboardInterrupt):
                self._show_logs()
            self.stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start_redis(self) -> RedisServer | RedisPair:
        """Start the Redis of this stack."""
        return start_own_redis(self.folder / "redis")

    def redis_url(self, role: str) -> str:
        """Return the URL of Redis for a process of this role (`leasehold`, `monitor`, `metrics`)."""
        return self.redis_server.url

    def _start(self) -> None:
        self.emulator_url = self._start_emulator()
        # The tests may take longer than EC2 shows a terminated machine.
        self.control("settings", {"forget_seconds": 100_000}, method="PUT")
        self.environment = self._make_environment()
        self.settings = self._read_settings()
        migrate(self.settings.database_url)
        self.app = make_app(self.settings)
        self.services = Services(self.settings, lambda: make_dispatcher(self.app, self.settings))
        sign_with(self.app, lambda: self.services.access)
        self.redis: Redis = make_redis(self.redis_url("leasehold"))
        self.apply(self._rules)
        self._start_workers()
        self._await_workers()

    def _start_workers(self) -> None:
        for queue in QUEUE_NAMES:
            self.start(queue, "tasks.worker", queue)
        self.start("beat", "tasks.clock")

    def _await_workers(self) -> None:
        for queue in QUEUE_NAMES:
            self.await_canary(queue)

    def stop(self) -> None:
        """End all processes, Redis last."""
        for process in self.processes.values():
            process.ask_to_end()
        for process in self.processes.values():
            process.stop()
        self.redis_server.stop()

    def start(self, name: str, *arguments: str) -> Process:
        """Start one more process: `python -m ARGUMENTS`."""
        process = Process(name, arguments, self.shifts.environment(name, self.environment), self.folder)
        self.processes[name] = process
        return process

    def _start_emulator(self) -> str:
        log = f"--call-log={self.folder / 'calls.jsonl'}"
        arguments = ["leasehold_emulator", "--port=0", "--boot-seconds=0.2", "--terminate-seconds=0.2", log]
        arguments.append("--interruption-queue=notices")
        arguments += self.emulator_options
        emulator = Process("emulator", arguments, os.environ, self.folder)
        self.processes["emulator"] = emulator
        log_text = wait_for(lambda: emulator.read_log() if "http://" in emulator.read_log() else None, "the emulator")
        return log_text.split()[-1]

    def _make_environment(self) -> dict[str, str]:
        settings = {
            "BROKER__URL": self.redis_url("leasehold"),
            "DATABASE__URL": self._database_url,
            "AWS__ENDPOINT_URL": self.emulator_url,
            "AWS__REGION": "us-east-1",
            "AWS__INTERRUPTION_QUEUE": self.control("health")["interruption_queue"],
            "AWS__INTERRUPTION_INTERVAL": "2",
            "AWS__ACCESS_KEY_ID": "testing",
            "AWS__SECRET_ACCESS_KEY": "testing",
            "TICKS__INTERVAL": "1",
            "TICKS__LOCK_SECONDS": "4",
            "RECOVER_INTERVAL": "1",
            "SWEEP_INTERVAL": "0.3",
            "ORPHAN_AGE": "10",
            "CELERY__SOFT_SHUTDOWN": "1",
            **{name: str(value) for name, value in self._settings.items()},
        }
        (self.folder / "leasehold.toml").touch()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
        return {
            **kept,
            "PYTHONPATH": str(ROOT),
            "AWS_EC2_METADATA_DISABLED": "true",
            **{f"LEASEHOLD_{name}": value for name, value in settings.items()},
            "LEASEHOLD_CONFIG": str(self.folder / "leasehold.toml"),
        }

    def _read_settings(self) -> Settings:
        document: dict[str, Any] = {}
        for name, value in self.environment.items():
            if name.startswith("LEASEHOLD_") and name != "LEASEHOLD_CONFIG":
                *tables, key = name.removeprefix("LEASEHOLD_").lower().split("__")
                table = document
                for part in tables:
                    table = table.setdefault(part, {})
                table[key] = float(value) if value.replace(".", "").isdigit() else value
        return read_settings(document)

    def apply(self, rules: Mapping[str, Any]) -> None:
        """Apply these rules."""
        apply_rules(self.services.ports, rules)

    def send(self, verb: str, document: object, **options: Any) -> None:
        """Send one message without waiting for an answer."""
        self.app.send_task(task_name(RESERVATIONS, verb), args=[document], **options)

    def ask(self, verb: str, document: Mapping[str, Any], patience: float = PATIENCE) -> Answer:
        """Send a request repeatedly until it is answered, as a client does, and return the answer."""
        request = document.get("request", uuid4().hex)
        address = f"leasehold:reply:{uuid4().hex}"
        full = {"request": request, "reply_to": address, **document}

        def send_and_look() -> Any:
            self.send(verb, full)
            return self.redis.blpop([address], timeout=RESEND_SECONDS)

        _, body = wait_for(send_and_look, f"an answer to {verb} {document}"[:300], patience)
        answer: Answer = msgspec.json.decode(body)
        return answer

    def submit(self, name: str, **changes: Any) -> Answer:
        """Submit a reservation for one lease in the pool `linux`."""
        return self.ask("submit", {"id": name, "pool": "linux", **changes})

    def await_canary(self, queue: str, patience: float = PATIENCE) -> None:
        """Wait until the worker of this queue answers a canary."""
        address = f"leasehold:reply:{uuid4().hex}"

        def send_and_look() -> Any:
            for name, process in self.processes.items():
                assert process.is_alive, f"{name} has ended"
            self.app.send_task(task_name(queue, CANARY), args=[address])
            return self.redis.blpop([address], timeout=RESEND_SECONDS)

        wait_for(send_and_look, f"the canary of {queue}", patience)

    def await_right_clocks(self) -> None:
        """Wait until every process has recorded that its wall clock is right."""

        def are_right() -> bool:
            stored = cast("dict[bytes, bytes]", self.redis.hgetall("leasehold:clocks"))
            return all(abs(each.seconds) < 1 for each in read_offsets(stored))

        wait_for(are_right, "the clocks to be right", CLOCK_PATIENCE)

    def find(self, name: str) -> Reservation:
        """Return a reservation from the database."""
        return self.services.ports.store.find_reservations(ids=[name])[0]

    def slots(self, pool: str = "linux") -> list[Slot]:
        """Return the slots of a pool from the database."""
        return [slot for slot in self.services.ports.store.find_slots() if slot.pool == pool]

    def await_phase(self, names: Iterable[str], phase: str) -> list[Reservation]:
        """Wait until all these reservations are in this phase and return them."""
        wanted = list(names)

        def look() -> list[Reservation] | None:
            rows = self.services.ports.store.find_reservations(ids=wanted, limit=len(wanted))
            return rows if [row.phase for row in rows] == [phase] * len(wanted) else None

        return wait_for(look, f"{len(wanted)} reservations ({wanted[0]} …) to be {phase}")

    def await_empty(self, pool: str = "linux") -> None:
        """Wait until all slots of the pool are empty."""
        wait_for(lambda: all(slot.state == "empty" for slot in self.slots(pool)), f"empty slots in {pool}")

    def let_go(self) -> None:
        """Cancel each reservation that has not ended, so that a failed test does not keep the slots of the next one."""
        active = [phase for phase in PHASES if phase not in ENDED]
        for row in self.services.ports.store.find_reservations(phases=active):
            self.ask("cancel", {"reservation": row.id})
        self.await_empty()

    def instances(self, *states: str) -> list[dict[str, Any]]:
        """Return the emulator's instances in these states (default: in any state)."""
        found = self.control("state")["instances"]
        return [each for each in found if not states or each["state"] in states]

    def launched(self) -> int:
        """Return the number of machines that EC2 launched, from its call log; repeated requests do not count."""
        calls = self.control("calls")["calls"]
        launches = (each for each in calls if each["action"] in {"RunInstances", "CreateFleet"})
        return sum(len(each["instances"]) for each in launches if each["status"] == 200 and not each["replayed"])

    def calls(self, action: str) -> list[dict[str, Any]]:
        """Return the calls of this action from the call log of the emulator."""
        return [each for each in self.control("calls")["calls"] if each["action"] == action]

    def let_happen(self, what: str, *machines: str, **more: Any) -> list[dict[str, Any]]:
        """Let EC2 `interrupt`, `lose` or `rebalance` these machines; return the events that it records."""
        events: list[dict[str, Any]] = self.control(what, {"instances": machines, **more})["events"]
        return events

    def histories(self, pool: str) -> list[dict[str, Any]]:
        """Return the history of each machine of a pool that EC2 still describes."""
        ids = {each["id"] for each in self.instances() if each["tags"].get("leasehold:pool") == pool}
        return [each for each in self.control("history")["instances"] if each["id"] in ids]

    def control(self, path: str, order: object = None, method: str | None = None) -> dict[str, Any]:
        url = f"{self.emulator_url}/_leasehold/{path}"
        content = None if order is None else json.dumps(order).encode()
        request = urllib.request.Request(url, content, method=method)  # noqa: S310 (loopback)
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 (loopback, as above)
            found: dict[str, Any] = json.load(answer)
            return found

    def read_logs(self) -> str:
        """Return the end of the log of every process."""
        return "\n".join(f"--- {name}\n{process.read_log()}" for name, process in self.processes.items())

    def _show_logs(self) -> None:
        os.write(2, self.read_logs().encode())


def make_dispatcher(app: Celery, settings: Settings) -> CeleryDispatcher:
    """Return a dispatcher for the process of the test, like that of a worker."""
    return CeleryDispatcher(app, tick_seconds=settings.ticks.interval)
