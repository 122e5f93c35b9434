"""The actors of the bad day: a producer that holds leases for a time, and what it sees of the fleet meanwhile."""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from leasehold import Client
from leasehold.texts.change_commands import format_toml
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE
from scheduler.ports import EventFilter
from testbed.processes import PATIENCE, Process, wait_for
from testbed.stack import ROOT, Stack, a_pool

SCRIPT: Final = ROOT / "examples" / "bad-day.toml"
SPEED: Final = 1440.0
"""Eight hours of the script in twenty seconds."""
PER_HOUR: Final = 0.35
"""Dollars per hour: eleven machines of the cheapest type."""
MAX_SLOTS: Final = 14
RULES: Final[dict[str, Any]] = {
    "scheduler": {"restart_delay": 0.5},
    "budgets": {"all": {"per_hour": PER_HOUR, "per_day": 100}},
    "pools": {
        "linux": a_pool(
            max_slots=MAX_SLOTS,
            max_leases_per_slot=1,
            idle_scale_down=1.5,
            capacity_hold=2,
            quota_hold=2,
            error_cooldown=2,
            price_factor=2.5,
            ec2={"image": "ssm:/images/linux"},
            offerings=[
                {
                    "name": "any",
                    "require": {"cpus": {"min": 2, "max": 2}, "memory_mib": {"min": 4096}, "generation": "any"},
                }
            ],
            replacement={"drift": "replace", "disruption_budget": 4},
        )
    },
}
LAUNCHES: Final = ("RunInstances", "CreateFleet")

Line = Mapping[str, Any]


def play_script(stack: Stack) -> None:
    """Let the emulator play the script of the example, from its begin on."""
    stack.control(f"script?speed={SPEED:g}", tomllib.loads(SCRIPT.read_text(encoding="utf-8")))
    wait_for(lambda: stack.control("script")["played"] > 0, "the first step of the script")


def command(stack: Stack, *arguments: str) -> str:
    """Run a command of `leasehold` and return its output."""
    process = Process("command", ("leasehold.cli", *arguments), stack.environment, stack.folder)
    wait_for(lambda: not process.is_alive, f"leasehold {arguments[0]} to end")
    assert process.has_succeeded, process.read_log()
    return process.read_log(1_000_000)


def apply(stack: Stack, rules: Mapping[str, Any]) -> None:
    """Apply rules by the command, which reads the catalogue, the prices and the image from EC2."""
    file = stack.folder / "rules.toml"
    file.write_text(format_toml(dict(rules)), encoding="utf-8")
    command(stack, "apply", str(file), "--yes")


@dataclass
class Holders:
    """A producer and the holders of its leases. `hold`: reservation -> the seconds for which it needs its lease."""

    stack: Stack
    hold: dict[str, float] = field(default_factory=dict)
    prices: dict[str, float] = field(default_factory=dict)
    """Machine -> the price with which its slot was seen."""
    machines: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Machine -> the slot that had it, and the slot's epoch."""
    most_running: float = 0.0
    """The highest sum of the prices of active slots that was seen."""

    def submit(self, wave: int, seconds: Iterable[float]) -> None:
        names = {f"wave-{wave}-{number}": each for number, each in enumerate(seconds)}
        # Reservations whose machine dies without notice start again.
        items = [{"id": name, "pool": "linux", "restart_policy": "on_failure"} for name in names]
        assert self.stack.ask("submit", {"items": items})["ok"]
        self.hold |= names

    def step(self) -> bool:
        """Release what was held for long enough, give back what is revoked, and look at the fleet. Return whether all
        reservations have ended.
        """
        self.look()
        store = self.stack.services.ports.store
        rows = store.find_reservations(phases=["pending", "leased", "revoking"], limit=1000)
        now = store.now()
        done = [row for row in rows if row.phase == "leased" and now - (row.leased_at or now) >= self.hold[row.id]]
        if done:
            self.stack.ask("release", {"items": [{"reservation": row.id, "token": row.token} for row in done]})
        for row in rows:
            if row.phase == "revoking":
                self.stack.ask("surrender", {"reservation": row.id, "token": row.token})
        return not rows

    def look(self) -> list[Slot]:
        slots = self.stack.slots()
        active = [slot for slot in slots if slot.state not in INACTIVE]
        self.most_running = max(self.most_running, sum(slot.price or 0.0 for slot in active))
        self.machines |= {slot.instance_id: (slot.id, slot.epoch) for slot in slots if slot.instance_id}
        self.prices |= {slot.instance_id: slot.price or 0.0 for slot in active if slot.instance_id}
        return slots

    def find_all(self) -> list[Reservation]:
        return self.stack.services.ports.store.find_reservations(ids=sorted(self.hold), limit=len(self.hold))


def read_waits(stack: Stack, names: Iterable[str]) -> dict[str, str | None]:
    """Return the waiting code of each of these reservations; None for one that no tick has planned."""
    with Client(stack.redis_server.url, timeout=PATIENCE) as client:
        return {name: client.explain(name).code for name in names}


def count_most(lives: Iterable[Line], weigh: Mapping[str, float] | None = None) -> float:
    """Return the greatest number of machines that lived at the same time; with `weigh` the greatest sum of these
    weights.
    """
    changes: list[tuple[float, float]] = []
    for life in lives:
        weight = 1.0 if weigh is None else weigh.get(life["id"], 0.0)
        changes.append((life["launched_at"], weight))
        if life["terminated_at"] is not None:
            changes.append((life["terminated_at"], -weight))
    most = running = 0.0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def read_log(folder: Path) -> list[Line]:
    """Return the calls in the emulator's log file that launched machines, without repeats of a client token."""
    lines = [json.loads(line) for line in (folder / "calls.jsonl").read_text(encoding="utf-8").splitlines()]
    calls = [line for line in lines if line.get("action") in LAUNCHES and line["instances"]]
    return [line for line in calls if not line["replayed"]]


def read_booked(stack: Stack) -> dict[tuple[str, int], tuple[float, float]]:
    """Return (slot, epoch) -> begin and end of the time that the ledger has booked for the slot's machine, from the
    events of its slot.
    """
    events = stack.services.ports.store.read_events(EventFilter(limit=100_000))
    begins: dict[str, tuple[int, float]] = {}
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for event in events:
        slot, epoch = event.slot or "", event.detail.get("epoch")
        if event.name in {"slot_booting", "slot_adopted"}:
            assert isinstance(epoch, int)
            begins[slot] = (epoch, event.at)
        elif event.name == "slot_empty" and slot in begins:
            begun, at = begins.pop(slot)
            found[slot, begun] = (at, event.at)
    assert not begins
    return found


def sum_seconds(lives: Iterable[Line]) -> dict[str, float]:
    """Return the machine-seconds of each offering of the pool, from the machines' lives in EC2."""
    found: Counter[str] = Counter()
    for life in lives:
        found[f"linux/{life['type']}/{life['market']}"] += life["terminated_at"] - life["launched_at"]
    return dict(found)
