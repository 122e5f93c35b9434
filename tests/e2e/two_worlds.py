"""One script, two worlds: what a generated sequence of actions comes to on the virtual clock, step by step.

Each step is one action and the quiet after it. A step that would have two machines on their way at once is left
out when the script is made: which of two real machines boots first is nobody's decision.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from scheduler.simulation.play import Player
from scheduler.simulation.scenario import read_scenario

GAP_SECONDS = 20
DEADLINE_SECONDS = 5
"""From a notice to the end of its machine: a replacement is ready before that, on a busy host too."""
POOL = "worlds"
OFFERING = "m5.xlarge"
CONFIG: dict[str, Any] = {
    "scheduler": {"queue": "fifo"},
    "pools": {
        POOL: {
            "system": POOL,
            "max_slots": 3,
            "max_leases_per_slot": 2,
            "idle_scale_down": 100_000,
            "lease_ttl": 100_000,
            "capacity_hold": 1,
            "offerings": [{"name": OFFERING, "price": 1, "resources": {"cpus": 4}}],
            "ec2": {"image": "ami-0123456789abcdef0"},
        }
    },
}


@dataclass(frozen=True)
class Snapshot:
    """What can be compared after a step: phase and slots of each reservation, and which slots serve."""

    reservations: dict[str, tuple[str, tuple[str, ...]]]
    ready: frozenset[str]


@dataclass
class Script:
    """The actions, and what the simulator says after each of them."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)
    """Slots in the order in which machines came for them."""
    placed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Where each reservation was put last."""
    ends: list[tuple[str, str]] = field(default_factory=list)
    """(reservation, how it ended), in order."""
    taken_back: list[str] = field(default_factory=list)
    """Reservations that an interruption took back, in order."""


def generate(seed: int, length: int) -> Script:
    """A script of so many steps that this seed makes, played on the virtual clock."""
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
    in_outage = sum("outage" in step for step in script.steps) > sum("calm" in step for step in script.steps)
    last = script.snapshots[-1].reservations if names else {}
    alive = [name for name, (phase, _) in last.items() if phase in {"pending", "leased"}] or names
    kinds = ["submit"] * 5 + ["release"] * 4 + ["interrupt"] * 2
    kinds += ["cancel", "renew", "drain", "lose", "calm" if in_outage else "outage"]
    kind = dice.choice(kinds) if names else "submit"
    if kind == "submit":
        fresh = range(len(names), len(names) + dice.choice([1, 1, 2]))
        return {"submit": [_reservation(f"world-{number}", dice.choice([1, 2, 4])) for number in fresh]}
    if kind in {"outage", "calm"}:
        return {kind: True}
    if kind in {"drain", "interrupt", "lose"}:
        slot = dice.choice(sorted(script.snapshots[-1].ready) or [f"{POOL}-1"])
        return {kind: {"slot": slot, "deadline": DEADLINE_SECONDS} if kind == "interrupt" else slot}
    return {kind: dice.choice(alive)}


def _reservation(name: str, cpus: int) -> dict[str, Any]:
    return {"id": name, "system": POOL, "resources": {"cpus": cpus}}


def play(steps: list[dict[str, Any]]) -> Script | None:
    """The script of these steps; None when two machines would be on their way at once."""
    timeline = []
    for index, step in enumerate(steps):
        at = (index + 1) * GAP_SECONDS
        if "outage" in step:
            ends = [later for later in range(index + 1, len(steps)) if "calm" in steps[later]]
            until = (ends[0] + 1) * GAP_SECONDS if ends else 10**9
            timeline.append({"at": at, "outage": {"pool": POOL, "error": "capacity", "until": until}})
        elif "calm" in step:
            timeline.append({"at": at, "seen": f"{POOL}-1"})
        else:
            timeline.append({"at": at, **step})
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
    return _watch(Player(scenario), steps)


def _watch(player: Player, steps: list[dict[str, Any]]) -> Script | None:
    script = Script(steps=list(steps))
    coming: set[str] = set()
    phases: dict[str, tuple[str, tuple[str, ...]]] = {}
    ready: set[str] = set()
    index = 0
    for line in player.play():
        while index < len(steps) and line["at"] >= (index + 2) * GAP_SECONDS:
            script.snapshots.append(Snapshot(dict(phases), frozenset(ready)))
            index += 1
        _note(line, script, coming, ready, phases)
        if len(coming) > 1:
            return None
    while index < len(steps):
        script.snapshots.append(Snapshot(dict(phases), frozenset(ready)))
        index += 1
    return script


def _note(
    line: dict[str, Any],
    script: Script,
    coming: set[str],
    ready: set[str],
    phases: dict[str, tuple[str, tuple[str, ...]]],
) -> None:
    for decision in line.get("decisions", []):
        if decision["do"] == "assign":
            script.placed[decision["reservation"]] = tuple(lease["slot"] for lease in decision["leases"])
    slot, name, event = line.get("slot"), line.get("reservation") or "", line.get("event", "")
    if name:
        _note_phase(name, event.removeprefix("reservation_"), script, phases)
    match event:
        case "slot_launching":
            coming.add(slot or "")
        case "slot_booting":
            script.launches.append(slot or "")
        case "slot_ready":
            coming.discard(slot or "")
            ready.add(slot or "")
        case "slot_empty":
            coming.discard(slot or "")
            ready.discard(slot or "")
        case _:
            pass


def _note_phase(name: str, what: str, script: Script, phases: dict[str, tuple[str, tuple[str, ...]]]) -> None:
    match what:
        case "submitted" | "pending":
            phases[name] = ("pending", ())
        case "leased" | "revoking":
            phases[name] = (what, script.placed[name])
            script.taken_back += [name] if what == "revoking" else []
        case _:
            phases[name] = (what, ())
            script.ends.append((name, what))
