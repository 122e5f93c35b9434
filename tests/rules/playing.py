"""Builders of scenarios, and the output of a play in words that fit on a line of a table."""

from dataclasses import dataclass
from typing import Any

from scheduler.simulation.runner import play
from scheduler.simulation.scenario import read_scenario

SYSTEM = "x86_64-linux"
Document = dict[str, Any]
Cases = dict[str, tuple[Document, list[list[str]]]]
"""Scenarios by name; with each the decisions of its ticks, then the waits with their codes."""
UNTOLD = frozenset({"cores"})
"""Decisions that come with every lease on a slot with spare cpus, and change nothing else: see `Played.cores`."""


def a_pool(**changes: Any) -> Document:
    """A pool of four slots of x86_64-linux that counts leases only, one a slot; leases never expire."""
    return {"system": SYSTEM, "max_slots": 4, "lease_ttl": 0, **changes}


def a_scenario(*timeline: Document, **parts: Any) -> Document:
    """A scenario with one pool `linux`; `pool` changes that, `pools` replaces it, `scheduler` sets its keys."""
    config: Document = {"pools": parts.pop("pools", None) or {"linux": a_pool(**parts.pop("pool", {}))}}
    config["scheduler"] = parts.pop("scheduler", {})
    return {"config": config, "timeline": list(timeline), **parts}


def tick(at: float, *between: Document) -> Document:
    """An explicit tick, with what is played between its plan and its commit."""
    return {"at": at, "tick": {"between": list(between)} if between else True}


def ticks(*times: float) -> list[Document]:
    return [tick(at) for at in times]


def a_wish(name: str, **fields: Any) -> Document:
    """A producer's request."""
    return {"id": name, "system": SYSTEM} | fields


def submit(at: float, *names: str, **fields: Any) -> Document:
    """Producers submit these reservations, all alike."""
    return {"at": at, "submit": [a_wish(name, **fields) for name in names]}


def act(at: float, action: str, value: Any) -> Document:
    """Any other item of a timeline."""
    return {"at": at, action: value}


def notice(at: float, slot: str = "linux-1", deadline: float = 120) -> Document:
    """The cloud announces that it takes this slot's machine back."""
    return act(at, "interrupt", {"slot": slot, "deadline": deadline})


def a_slot(name: str, state: str = "ready", *holders: str, **fields: Any) -> Document:
    """A slot record of the pool that its name begins with; it holds `main` of these reservations."""
    leases = [{"reservation": each} for each in holders]
    return {"id": name, "pool": name.rpartition("-")[0], "state": state, "leases": leases} | fields


def a_holder(name: str, **fields: Any) -> Document:
    """A reservation that is leased from the start; a slot record contains its lease."""
    return a_wish(name, phase="leased", **fields)


ON_ONE: Document = {"slots": [a_slot("linux-1", "ready", "r1")], "reservations": [a_holder("r1")]}
"""Slot linux-1, which r1 holds."""


@dataclass
class Played:
    """The lines of one play."""

    lines: list[Document]

    @property
    def ticks(self) -> list[list[str]]:
        """For each tick its decisions, then the waits with their codes."""
        return [_describe_tick(line) for line in self.lines if "tick" in line]

    @property
    def ticks_at(self) -> dict[float, list[str]]:
        """The same by time, several ticks of one instant in one list; ticks without decisions and waits are omitted."""
        found: dict[float, list[str]] = {}
        for line in self.lines:
            if "tick" in line and (reported := _describe_tick(line)):
                found.setdefault(line["at"], []).extend(reported)
        return found

    @property
    def tick_times(self) -> list[float]:
        return [line["at"] for line in self.lines if "tick" in line]

    @property
    def decisions(self) -> list[str]:
        """`TIME DECISION` of all ticks."""
        return [
            f"{line['at']:g} {_describe_decision(each)}"
            for line in self.lines
            for each in line.get("decisions", [])
            if each["do"] not in UNTOLD
        ]

    @property
    def cores(self) -> list[str]:
        """`TIME RESERVATION COMPONENT SLOT CPUS` of every limit that is decided."""
        return [
            f"{line['at']:g} {each['reservation']} {each['component']} {each['slot']} {each['cpus']:.10g}"
            for line in self.lines
            for each in line.get("decisions", [])
            if each["do"] == "cores" and "skipped" not in each
        ]

    @property
    def events(self) -> list[str]:
        """`TIME EVENT SUBJECT`."""
        return [
            f"{line['at']:g} {line['event']} {line.get('slot') or line.get('reservation')}"
            for line in self.lines
            if "event" in line
        ]

    @property
    def state(self) -> Document:
        found: Document = self.lines[-1]["state"]
        return found

    @property
    def slots(self) -> dict[str, str]:
        """The final state of every slot that is not empty, and its leases."""
        return {
            each["id"]: " ".join([each["state"], *(lease["reservation"] for lease in each["leases"])])
            for each in self.state["slots"]
            if each["state"] != "empty"
        }

    @property
    def phases(self) -> dict[str, str]:
        """The final phase of every reservation."""
        return {each["id"]: each["phase"] for each in self.state["reservations"]}

    def reservation(self, name: str) -> Document:
        """The final state of one reservation."""
        found: Document = next(each for each in self.state["reservations"] if each["id"] == name)
        return found


def play_out(document: Document) -> Played:
    return Played(list(play(read_scenario(document))))


def reported(*timeline: Document, **parts: Any) -> list[list[str]]:
    """For each tick of a scenario its decisions, then the waits with their codes."""
    return play_out(a_scenario(*timeline, **parts)).ticks


def _describe_tick(line: Document) -> list[str]:
    waiting = [f"{each['reservation']} waits {each['code']}" for each in line["waiting"]]
    return [_describe_decision(each) for each in line["decisions"] if each["do"] not in UNTOLD] + waiting


def _describe_decision(decision: Document) -> str:
    words = [decision["do"]]
    match decision["do"]:
        case "assign":
            words += [decision["reservation"], *(each["slot"] for each in decision["leases"])]
            words += [f"at {decision['level']}"] if "level" in decision else []
        case "preempt":
            words += [decision["reservation"], decision["slot"], "of", *decision["victims"], f"at {decision['level']}"]
        case "relevel":
            words += [decision["reservation"], f"{decision['from']} to {decision['to']}"]
        case "launch" | "start":
            words += [decision["slot"], decision["offering"] or "", decision["reason"]]
        case "grant" | "revoke":
            words += [decision["reservation"], decision["component"], decision["slot"], decision["reason"]]
        case "plan_start":
            words += [decision["reservation"], f"at {decision['at']:g}"]
        case "drain" | "terminate" | "reset" | "stop":
            words += [decision["slot"], decision["reason"]]
        case _:
            words += [decision["reservation"], decision["reason"]]
    text = " ".join(word for word in words if word)
    return f"{text} (skipped: {decision['skipped']})" if "skipped" in decision else text
