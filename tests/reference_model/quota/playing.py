"""Plays one scenario document on the plain scheduler and on the engine, and reports where they differ."""

import json
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import groupby
from math import inf
from random import Random
from typing import Any

from scheduler.operations.tick.leader import Leader, take_leader_term
from scheduler.operations.tick.tick import decide
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from tests.reference_model.quota.nouns import World
from tests.reference_model.quota.paragraphs import tick
from tests.reference_model.quota.words import WORDS, add_job, change_rules, put_place

Document = dict[str, Any]
DEATHS = 0.4
"""The probability that a scheduler dies before the tick that it has planned is written."""
LOST_VIEWS = 0.5
"""The probability that its view is lost with it."""


def build_world(document: Document) -> World:
    """The initial state, in slot order: pools as configured, slots by their number."""
    world, config = World(), document["config"]
    change_rules(world, config)
    for given in document.get("reservations", []):
        add_job(world, given, Fraction(given.get("created_at", 0)))
    pools = list(config["pools"])
    slots = sorted(document["slots"], key=lambda each: (pools.index(each["pool"]), int(each["id"].split("-")[1])))
    for given in slots:
        put_place(world, given, config["pools"][given["pool"]])
    return world


def act(world: World, item: Document) -> Document | None:
    """Play one item of a timeline; return the decisions of a tick, and the waits with their codes."""
    world.now = Fraction(item["at"])
    name = next(each for each in item if each != "at")
    if name != "tick":
        WORDS[name](world, item[name])
        return None
    lines, waiting = tick(world)
    return {"decisions": lines, "waiting": waiting}


def play_plain(document: Document) -> Iterator[Document]:
    """For each instant with ticks, return these and the state after it."""
    world = build_world(document)
    for at, items in groupby(document["timeline"], key=lambda item: item["at"]):
        ticks = [reported for item in items if (reported := act(world, item))]
        if ticks:
            yield {"at": at, "ticks": ticks, "state": describe(world)}


def describe(world: World) -> Document:
    """Phases, leases that are held (slots, level, cost up to now), claims (slots, level), balances."""
    leases, claims = {}, {}
    for job in world.jobs.values():
        if job.lease and job.lease.state == "claimed":
            claims[job.name] = {"slots": sorted(each.name for each in job.lease.places), "level": job.lease.level}
        if job.lease and job.lease.state == "held":
            cost, level = [float(each) for each in job.lease.cost], job.lease.level
            if level in range(5):
                cost[level] += float(world.now - job.lease.counted_to) * len(job.lease.places)
            leases[job.name] = {"slots": sorted(each.name for each in job.lease.places), "level": level, "cost": cost}
    return {
        "phases": {job.name: job.phase for job in world.jobs.values()},
        "leases": leases,
        "claims": claims,
        "balances": {name: [float(each) for each in account.balance] for name, account in world.accounts.items()},
    }


class RestartedPlayer(Runner):
    """Plays with schedulers that die after planning; sometimes the view is lost, too."""

    def __init__(self, document: Document, random: Random) -> None:
        super().__init__(read_scenario(document))
        self._loop.before_tick = self._die
        self._random, self.deaths = random, 0

    def _die(self) -> None:
        ports = self.cluster.ports
        while self._random.random() < DEATHS:
            self.deaths += 1
            self.cluster.leader = Leader(holder=f"process {self.deaths}", interval=inf, lock_seconds=inf)
            if self._random.random() < LOST_VIEWS:
                ports.view_cache.rebuild(ports.store.read_rows())
            decide(ports, self.cluster.leader, take_leader_term(ports, self.cluster.leader))


def play_engine(document: Document, player: Runner | None = None) -> Iterator[Document]:
    player = player or Runner(read_scenario(document))
    for at, lines in groupby(player.play(), key=lambda line: line["at"]):
        ticks: list[Document] = []
        state: Document = {}
        for line in map(_as_printed, lines):
            if "tick" in line:
                # The lines of an instant are passed on when all of it has been played.
                state = state or describe_state(player._describe_state()["state"])
                waiting = {each["reservation"]: each["code"] for each in line["waiting"]}
                ticks.append({"decisions": line["decisions"], "waiting": waiting})
        if ticks:
            yield {"at": at, "ticks": ticks, "state": state}


def _as_printed(line: Document) -> Document:
    printed: Document = json.loads(json.dumps(line))
    return printed


def describe_state(state: Document) -> Document:
    """The state of the contract in the words of `describe`."""
    phases = {each["id"]: each["phase"] for each in state["reservations"]}
    held: dict[str, Document] = {}
    claims: dict[str, Document] = {}
    for slot in state["slots"]:
        for claim in slot.get("claims", ()):
            known = claims.setdefault(claim["reservation"], {"slots": [], "level": claim["level"]})
            known["slots"] = sorted([*known["slots"], slot["id"]])
        for lease in slot["leases"]:
            if phases[lease["reservation"]] == "leased" and lease.get("state") != "revoking":
                known = held.setdefault(lease["reservation"], {"slots": [], "level": lease["level"], "cost": [0] * 5})
                known["slots"] = sorted([*known["slots"], slot["id"]])
                known["cost"] = [a + b for a, b in zip(known["cost"], lease["cost"], strict=True)]
    return {
        "phases": phases,
        "leases": held,
        "claims": claims,
        "balances": {each["id"]: list(each["balance"]) for each in state["accounts"]},
    }


class Leniency:
    """Makes equal what qscheduler's rules leave open.

    They give accounts no order (relevel lines that follow each other are compared as a set), and give no order of
    claims that are assigned in one tick. They give no reason for the wait of a job in the tick that preempted it, nor
    for the waits of `gangs`: they have only jobs of one instance.
    """

    def __init__(self, gangs: set[str]) -> None:
        self._claimants: set[str] = set()
        self._gangs = gangs

    def forgive(self, reported: Document) -> Document:
        """One tick's output, with all that is open made equal."""
        lines = reported["decisions"]
        ordered: list[Document] = []
        for _, group in groupby(lines, key=self._find_rank):
            chosen = list(group)
            is_open = self._find_rank(chosen[0]) > 0
            ordered += sorted(chosen, key=lambda line: (line["reservation"], line.get("to"))) if is_open else chosen
        assigned = {line["reservation"] for line in lines if line["do"] == "assign"}
        preemptions = [line for line in lines if line["do"] == "preempt"]
        self._claimants = (self._claimants | {line["reservation"] for line in preemptions}) - assigned
        victims = {name for line in preemptions for name in line["victims"]}
        unnamed = victims | self._gangs
        waiting = {name: "waits" if name in unnamed else code for name, code in reported["waiting"].items()}
        return {"decisions": ordered, "waiting": waiting}

    def _find_rank(self, line: Document) -> int:
        """Above 0: lines that may follow each other in any order."""
        if line["do"] == "assign" and line["reservation"] in self._claimants:
            return 2
        return int(line["do"] == "relevel")


def compare(
    document: Document, player: Runner | None = None, plain_play: Iterable[Document] | None = None
) -> str | None:
    """Describe the first difference, or return None. `plain_play`: the play of the plain scheduler, if it is known."""
    submitted = [each for item in document["timeline"] for each in item.get("submit", [])]
    gangs = {each["id"] for each in (*document["reservations"], *submitted) if "components" in each}
    lenient = {"plain": Leniency(gangs), "engine": Leniency(gangs)}
    plain_play = play_plain(document) if plain_play is None else plain_play
    for reported, engine in zip(plain_play, play_engine(document, player), strict=True):
        plain = reported | {"ticks": [lenient["plain"].forgive(each) for each in reported["ticks"]]}
        engine["ticks"] = [lenient["engine"].forgive(each) for each in engine["ticks"]]
        if plain != engine:
            return f"at {plain['at']}:\n  plain:  {json.dumps(plain)}\n  engine: {json.dumps(engine)}"
    return None


def find_kinds(instants: Iterable[Document]) -> set[str]:
    """What a play contained: the kinds of its decisions, promotions and demotions apart."""
    lines = [line for each in instants for reported in each["ticks"] for line in reported["decisions"]]
    return {_kind(line) for line in lines}


def _kind(line: Document) -> str:
    if line["do"] != "relevel":
        return str(line["do"])
    return "promotion" if line["to"] < line["from"] else "demotion"
