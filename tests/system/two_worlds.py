"""A generator of scripts of actions, with the simulator's result after each step, for comparison with a real stack.

Each step is one action followed by a pause. The generator drops a step after which two machines would boot at once,
because the order in which two real machines become ready is not determined.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario

GAP_SECONDS = 20
BEAT_SECONDS = 4
"""Seconds between two heartbeats of the simulated host; GAP_SECONDS is a multiple of it."""
DEADLINE_SECONDS = 5
"""Seconds from an interruption notice to the end of the machine; enough for a replacement, also on a busy host."""
POOL, LAB, HOST = "worlds", "worlds-lab", "worlds-host"
SMALL, LARGE = "m5.large", "m5.xlarge"
HOST_LABELS, LARGE_LABELS = {"disk": "ssd"}, {"disk": "nvme"}
HOST_CPUS = 3
OFFLINE_SECONDS = 6.0
CONFIG: dict[str, Any] = {
    "scheduler": {"queue": "fifo", "restart_delay": 1},
    "pools": {
        POOL: {
            "system": POOL,
            "max_slots": 3,
            "max_leases_per_slot": 2,
            "idle_scale_down": 100_000,
            "lease_ttl": 100_000,
            "capacity_hold": 1,
            "offerings": [
                {"name": SMALL, "price": 1, "resources": {"cpus": 2}},
                {"name": LARGE, "price": 1.5, "resources": {"cpus": 4}, "labels": LARGE_LABELS},
            ],
            "ec2": {"image": "ami-0123456789abcdef0"},
        },
        LAB: {"system": POOL, "provider": "static", "offline_timeout": OFFLINE_SECONDS, "lease_ttl": 100_000},
    },
}
REQUESTS: tuple[dict[str, Any], ...] = (
    {"resources": {"cpus": 1}},
    {"resources": {"cpus": 1}, "restart_policy": "on_failure"},
    {"resources": {"cpus": 4}},
    {"resources": {"cpus": 1}, "prefers": LARGE_LABELS},
    {"resources": {"cpus": 1}, "labels": HOST_LABELS},
    {"resources": {"cpus": 2}, "labels": LARGE_LABELS},
    {"resources": {"cpus": 2}, "restart_policy": "on_failure"},
)
"""Requests by size, by label or by both; two of them are restarted after a failure."""


@dataclass(frozen=True)
class Snapshot:
    """The state after a step that is compared: phase and slots of each reservation, and the slots in use."""

    reservations: dict[str, tuple[str, tuple[str, ...]]]
    slots: dict[str, str | None]
    """Slot -> its offering, None for the static host. Empty slots are missing."""


@dataclass
class Script:
    """The actions, and the simulator's state after each of them."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)
    """Slots in the order in which their machines were launched."""
    placed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Reservation -> the slots of its last leases."""
    offered: dict[str, str] = field(default_factory=dict)
    """Slot -> the offering of its last launch."""
    ends: list[tuple[str, str]] = field(default_factory=list)
    """(reservation, final phase), in order."""
    revoked: list[str] = field(default_factory=list)
    """Reservations whose leases an interruption revoked, in order."""

    def count(self, kind: str) -> int:
        """Return the number of steps of this kind."""
        return sum(kind in step for step in self.steps)

    @property
    def last(self) -> Snapshot:
        """The state after the last step."""
        return self.snapshots[-1] if self.snapshots else Snapshot({}, {})

    @property
    def host_steps(self) -> list[str]:
        """The kinds of steps that the static host may take next."""
        past = [kind for step in self.steps for kind in step if kind in {"register", "silence", "return", "leave"}]
        match past[-1] if past else "leave":
            case "leave":
                return [] if HOST in self.last.slots else ["register"]
            case "silence":
                return ["return"]
            case _:
                serves = any(HOST in slots for _, slots in self.last.reservations.values())
                return ["silence", "silence"] if serves else ["leave"] * self.count("return")


def generate(seed: int, length: int) -> Script:
    """Return a script of `length` steps drawn with this seed, with the results of the simulator."""
    dice = random.Random(seed)
    script = Script()
    names: list[str] = []
    while len(script.steps) < length:
        step = _draw(dice, names, script)
        played = play([*script.steps, step])
        if played is None:
            continue
        script = played
        names += [each["id"] for each in step.get("submit", [])]
    return script


def _draw(dice: random.Random, names: list[str], script: Script) -> dict[str, Any]:
    in_outage = script.count("outage") > script.count("calm")
    alive = [name for name, (phase, _) in script.last.reservations.items() if phase in {"pending", "leased"}]
    machines = sorted(name for name in script.last.slots if name != HOST) or [f"{POOL}-1"]
    kinds = ["cancel", "renew", "drain", "lose", "cordon", "uncordon", "interrupt", "calm" if in_outage else "outage"]
    kinds += script.host_steps
    kinds += [kind for kind in kinds if not script.count(kind)] * 2
    kinds += ["submit"] * 8 + ["release"] * 6
    kind = dice.choice(kinds) if names else "submit"
    match kind:
        case "submit":
            fresh = range(len(names), len(names) + dice.choice([1, 1, 2]))
            value: Any = [{"id": f"world-{number}", "system": POOL, **dice.choice(REQUESTS)} for number in fresh]
        case "outage":
            value = dice.choice([SMALL, LARGE])
        case "interrupt":
            value = {"slot": dice.choice(machines), "deadline": DEADLINE_SECONDS}
        case "drain" | "lose":
            value = dice.choice(machines)
        case "cordon" | "uncordon":
            value = dice.choice(sorted(script.last.slots) or machines)
        case "calm" | "register" | "silence" | "return" | "leave":
            value = True
        case _:
            value = dice.choice(alive or names)
    return {kind: value}


def play(steps: list[dict[str, Any]]) -> Script | None:
    """Simulate these steps; return None if two machines would boot at once."""
    timeline: list[dict[str, Any]] = []
    beats = False
    for index, step in enumerate(steps):
        at = (index + 1) * GAP_SECONDS
        timeline += [{"at": at, **action} for action in _list_actions(steps, index)]
        beats = (beats or "register" in step or "return" in step) and "silence" not in step
        if beats:
            timeline += [{"at": at + later, "seen": HOST} for later in range(0, GAP_SECONDS, BEAT_SECONDS)]
    scenario = read_scenario(
        {
            "config": CONFIG,
            "cloud": {"launch": 0.1, "boot": 1, "bind": 0.1, "terminate": 1},
            "timeline": timeline,
            "kicks": True,
            "tick_every": 5,
            "until": (len(steps) + 1) * GAP_SECONDS - 1,
        }
    )
    return _watch(Runner(scenario), steps)


def _list_actions(steps: list[dict[str, Any]], index: int) -> Iterator[dict[str, Any]]:
    """Return one step as actions of a scenario. A host without heartbeats and the end of an outage need no action."""
    (kind, value), *_ = steps[index].items()
    match kind:
        case "outage":
            ends = [later for later in range(index + 1, len(steps)) if "calm" in steps[later]]
            until = (ends[0] + 1) * GAP_SECONDS if ends else 10**9
            yield {"outage": {"pool": POOL, "offering": value, "error": "capacity", "until": until}}
        case "register":
            host = {"id": HOST, "pool": LAB, "machine": "m1", "resources": {"cpus": HOST_CPUS}, "labels": HOST_LABELS}
            yield {"register": host}
        case "leave":
            yield {"drain": HOST}
        case "calm" | "silence" | "return":
            return
        case _:
            yield {kind: value}


def _watch(player: Runner, steps: list[dict[str, Any]]) -> Script | None:
    script = Script(steps=list(steps))
    launching: set[str] = set()
    now = Snapshot({}, {})
    index = 0
    for line in player.play():
        while index < len(steps) and line["at"] >= (index + 2) * GAP_SECONDS:
            script.snapshots.append(Snapshot(dict(now.reservations), dict(now.slots)))
            index += 1
        _note(line, script, launching, now)
        if len(launching) > 1:
            return None
    while index < len(steps):
        script.snapshots.append(Snapshot(dict(now.reservations), dict(now.slots)))
        index += 1
    return script


def _note(line: dict[str, Any], script: Script, launching: set[str], now: Snapshot) -> None:
    for decision in line.get("decisions", []):
        if decision["do"] == "assign":
            script.placed[decision["reservation"]] = tuple(lease["slot"] for lease in decision["leases"])
        elif decision["do"] == "launch":
            script.offered[decision["slot"]] = decision["offering"]
    slot, name, event = line.get("slot") or "", line.get("reservation") or "", line.get("event", "")
    if name:
        _note_phase(name, event.removeprefix("reservation_"), script, now.reservations)
    match event:
        case "slot_launching":
            launching.add(slot)
        case "slot_booting":
            script.launches.append(slot)
        case "slot_ready":
            launching.discard(slot)
            now.slots[slot] = script.offered.get(slot)
        case "slot_empty":
            launching.discard(slot)
            now.slots.pop(slot, None)
        case _:
            pass


def _note_phase(name: str, what: str, script: Script, phases: dict[str, tuple[str, tuple[str, ...]]]) -> None:
    match what:
        case "submitted" | "pending":
            phases[name] = ("pending", ())
        case "leased" | "revoking":
            phases[name] = (what, script.placed[name])
            script.revoked += [name] if what == "revoking" else []
        case _:
            phases[name] = (what, ())
            script.ends.append((name, what))
