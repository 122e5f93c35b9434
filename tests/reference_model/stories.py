"""Generated scenarios: what happens to a generated fleet. The same seed, the same scenario."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.reference_model.fleets import (
    ACCOUNTS,
    QUEUES,
    SYSTEMS,
    a_config,
    a_slot_record,
    add_commands,
    add_limits,
    add_lives,
    add_markets,
    add_run_times,
    add_tiers,
    list_slots,
    offering_key,
    some,
    some_budgets,
    some_holders,
    some_slots,
    some_waiting,
)
from tests.rules.playing import Document

STEPS = (0, 0, 1, 1, 2, 3, 5, 5, 10, 10)
"""Seconds between two items of a timeline."""
BUDGETED = 5
"""One scenario in this number of scenarios has budgets."""


def make_scenario(seed: int) -> Document:
    random = Random(seed)
    config = a_config(random)
    if seed % BUDGETED == 0:
        config["budgets"] = some_budgets(Random(-seed), config)
    slots = some_slots(random, config)
    known = [*some_holders(random, config, slots), *some_waiting(random, config)]
    lives = Random(f"lives {seed}")
    add_lives(lives, config, slots)
    add_markets(Random(f"markets {seed}"), config)
    delays = add_tiers(Random(f"stopped {seed}"), config, slots)
    story = Story(random, deepcopy(config), [each["id"] for each in known], lives)
    story.hosts = [each["id"] for each in slots if each["pool"] == "h"]
    timeline = [each for _ in range(random.randint(10, 45)) for each in story.go_on()]
    cloud: Document = {
        "launch": random.choice([0, 5, 8] if story.is_at_quota else [0, 0, 2]),
        "boot": random.choice([0, 3, 9]),
    }
    cloud |= some(random, 0.3, bind=[1, 4], terminate=[4, 20], quota=[0, 1, 2, 3])
    cloud |= delays
    if "budgets" in config:
        spend(Random(-seed), slots, timeline)
    add_limits(Random(f"limits {seed}"), config, known, timeline)
    add_commands(Random(f"commands {seed}"), config, timeline)
    run_times = add_run_times(Random(f"run times {seed}"), config, known, timeline)
    return {
        "name": f"seed {seed}",
        "config": config,
        "cloud": cloud,
        "reservations": known,
        "slots": slots,
        "run_times": run_times,
        "timeline": [*timeline, {"at": story.at + 1, "tick": True}],
    } | some(random, 0.15, kicks=True, wakes=True)


def spend(random: Random, slots: list[Document], timeline: list[Document]) -> None:
    """Give the slots and requests of a scenario with budgets the accounts that they are for."""
    for each in slots:
        each.update(some(random, 0.5, launched_for=list(ACCOUNTS)))
    for item in timeline:
        for wish in item.get("submit", ()):
            wish.update(some(random, 0.6, account=list(ACCOUNTS)))


@dataclass
class Story:
    """The scenario so far."""

    random: Random
    config: Document
    names: list[str]
    """Reservations that actions may name."""
    lives: Random
    """For what concerns the lives of machines; the rest of the scenario does not depend on it."""
    hosts: list[str] = field(default_factory=list)
    """Hosts that may be removed."""
    at: float = 0

    @property
    def is_at_quota(self) -> bool:
        """Whether it is a story of quotas: EC2 refuses launches of one market or both, often and for a short time."""
        return (
            self.config["pools"]["p"].get("offerings", [{}])[0].get("name") == "small"
            and "quota_hold" in self.config["pools"]["p"]
        )

    def go_on(self) -> list[Document]:
        """The next item: a tick, new requests, or another action."""
        self.at += self.random.choice((0, 1, 1, 2, 3) if self.is_at_quota else STEPS)
        what = self.random.random()
        if what < 0.4:
            return [{"at": self.at, "tick": self._tick()}]
        if what < 0.62 or not self.names:
            return [{"at": self.at, "submit": [self._wish() for _ in range(self.random.randint(1, 3))]}]
        return [{"at": self.at} | self._choose_action()]

    def _tick(self) -> Any:
        """Sometimes an action happens between the plan and its commit."""
        if self.names and self.random.random() < 0.05:
            return {"between": [self._choose_action()]}
        return True

    def _choose_action(self) -> Document:
        while True:
            is_refused = self.is_at_quota and self.random.random() < 0.4
            name = "outage" if is_refused else self.random.choice(WORDS)
            value = ACTIONS[name](self)
            if value is not None:
                return {name: value}

    def _wish(self) -> Document:
        random = self.random
        wish: Document = {"id": f"r{len(self.names) + 1}"} | self._target()
        self.names.append(wish["id"])
        if random.random() < 0.3:
            wish["components"] = [_component(random, index) for index in range(random.randint(1, 3))]
        elif random.random() < 0.7:
            wish["resources"] = _amounts(random)
        wish |= some(random, 0.1, labels=[{"zone": "1"}, {"disk": "ssd"}])
        wish |= some(random, 0.2, prefers=[{"zone": "1"}, {"disk": "ssd"}, {"zone": "2", "disk": "ssd"}])
        wish |= some(random, 0.5, priority=[1, 2, 3, 3, 3, 0], size=[1, 2, 3], restart_policy="on_failure")
        wish |= some(random, 0.3, on_interruption="fail", runtime=[2, 5, 20])
        return wish | some(random, 0.1, ttl=[0, 5, 20])

    def _target(self) -> Document:
        pools = self.config["pools"]
        if self.random.random() < 0.15:
            return {"pool": self.random.choice(list(pools))}
        served = [pool["system"] for pool in pools.values()]
        return {"system": self.random.choice([*served * 5, *SYSTEMS])}

    def choose_reservation(self) -> str:
        """A reservation, often one of the last few."""
        few = self.names[-4:] if self.random.random() < 0.6 else self.names
        return self.random.choice(few)

    def anywhere(self) -> str | None:
        """A slot that is known from the start."""
        slots = [name for name in list_slots(self.config) if not name.startswith("h")]
        return self.random.choice(slots) if slots else None

    def priority(self) -> Document:
        """Changed while pending or leased."""
        return {"reservation": self.choose_reservation(), "priority": self.random.choice([0, 1, 5])}

    def interrupt(self) -> Document | None:
        """A notice."""
        slot = self.anywhere()
        return {"slot": slot, "deadline": self.random.choice([0, 5, 5, 120])} if slot else None

    def confirm(self) -> Document | None:
        slot = self.anywhere()
        return {"reservation": self.choose_reservation(), "slot": slot} if slot else None

    def about_reservation(self) -> Document:
        """All slots of one reservation are reported."""
        return {"reservation": self.choose_reservation()}

    def outage(self) -> Document:
        """EC2 refuses launches for a while."""
        name = self.random.choice([each for each in self.config["pools"] if each != "h"])
        kinds = ["capacity", "capacity", "quota", "throttled", "throttled", "misconfigured"]
        lasts = self.random.choice([1, 10, 50])
        if self.is_at_quota:
            name, kinds, lasts = "p", ["quota"], self.random.choice([1, 2])
        found = {"pool": name, "error": self.random.choice(kinds), "until": self.at + lasts}
        offerings = self.config["pools"][name].get("offerings", [])
        if offerings and self.random.random() < 0.6:
            found["offering"] = offering_key(self.random.choice(offerings), offerings)
        return found

    def register(self) -> Document | None:
        """A host registers, registers again, or registers with other resources or another machine."""
        if "h" not in self.config["pools"]:
            return None
        name = self.random.choice(["h-1", "h-2", "h-3", "h-4"])
        host = {"id": name, "pool": "h", "machine": f"m-{name}"} | some(self.random, 0.1, machine="m-other")
        return host | some(
            self.random,
            0.4,
            labels=[{"zone": "1"}, {"zone": "2", "disk": "ssd"}],
            resources=[{"cpus": 1}, {"cpus": 4, "memory_mib": 100}],
        )

    def remove(self) -> str | None:
        """A host does not come back."""
        return self.random.choice(self.hosts) if self.hosts else None

    def slot(self) -> Document | None:
        """A record is replaced: the host is another one, or has other resources or labels."""
        if "h" not in self.config["pools"]:
            return None
        return a_slot_record(self.random, self.random.choice(["h-1", "h-2", "h-3"]), self.config["pools"]["h"])

    def found(self) -> Document | None:
        """A machine with the project's tags that belongs to no slot."""
        slot = self.anywhere()
        if slot is None:
            return None
        offerings = self.config["pools"][slot[0]].get("offerings", [])
        named = {"offering": offering_key(self.random.choice(offerings), offerings)} if offerings else {}
        return {"pool": slot[0], "slot": slot} | named

    def seen(self) -> str | None:
        """A heartbeat."""
        return self.random.choice(["h-1", "h-2", "h-3"]) if "h" in self.config["pools"] else None

    def rules(self) -> Document:
        """Other rules from now on."""
        random = self.random
        scheduler = some(random, 0.3, queue=list(QUEUES), profile=["pack", "spread"], backfill=[True, False])
        scheduler |= some(random, 0.2, starvation_guard=[0, 5], max_slots=[0, 2])
        pool = some(random, 0.3, max_slots=[2, 6], idle_scale_down=[5, 300], max_leases_per_slot=[1, 3])
        pool |= some(random, 0.2, max_uses=[0, 2], price_factor=[1, 3], labels=[{}, {"zone": "1"}])
        if "offerings" in self.config["pools"]["p"] and random.random() < 0.3:
            self.config["pools"]["p"]["offerings"] = pool["offerings"] = [
                {"name": "t1", "price": 1, "resources": {"cpus": 4, "memory_mib": 200}}
            ]
            if "market" in self.config["pools"]["p"]:
                pool["market"] = {"on_demand_base": 0, "on_demand_share": None}
            if "stopped_slots" in self.config["pools"]["p"]:
                pool["offerings"][0]["market"] = "spot"
                pool["offerings"].append(pool["offerings"][0] | {"market": "on-demand", "price": 1.2})
        pool |= some(self.lives, 0.3, ec2=[{"image": "ami-1"}, {"image": "ami-2"}])
        if pool:
            pool["min_slots"] = 0
        return {"scheduler": scheduler, "pools": {"p": pool}}


def _component(random: Random, index: int) -> Document:
    found = {"name": f"c{index}"} | some(random, 0.7, count=[1, 1, 2, 3], resources=[_amounts(random)])
    return found | some(random, 0.1, labels=[{"zone": "1"}])


def _amounts(random: Random) -> Document:
    return some(random, 0.6, cpus=[0, 1, 1, 2, 4], memory_mib=[50, 50, 100]) | some(random, 0.03, gpus=1, cpus=9)


ACTIONS: dict[str, Callable[[Story], Any]] = {
    "release": Story.choose_reservation,
    "cancel": Story.choose_reservation,
    "renew": Story.choose_reservation,
    "decline": Story.choose_reservation,
    "suspend": Story.choose_reservation,
    "resume": Story.choose_reservation,
    "fail": Story.about_reservation,
    "surrender": Story.about_reservation,
    "priority": Story.priority,
    "confirm": Story.confirm,
    "cordon": Story.anywhere,
    "uncordon": Story.anywhere,
    "drain": Story.anywhere,
    "lose": Story.anywhere,
    "rebalance": Story.anywhere,
    "interrupt": Story.interrupt,
    "outage": Story.outage,
    "register": Story.register,
    "seen": Story.seen,
    "remove": Story.remove,
    "slot": Story.slot,
    "found": Story.found,
    "rules": Story.rules,
}
WORDS = (
    *(*ACTIONS, *["release"] * 3, *["outage"] * 3, *["fail"] * 3, *["interrupt"] * 4, *["rebalance"] * 3),
    *("rules", "rules", "seen", "seen", "lose", "cordon", "cordon", "found", "found"),
)
"""The actions, with a weight each."""
