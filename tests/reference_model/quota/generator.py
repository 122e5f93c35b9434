"""Random scenarios of quota: the same number generates the same file.

Times, rates and balances are multiples of a quarter, so that floats hold them exactly and both sides must agree to the
last digit. Where elastic instances have shares of a cost, costs are multiples of `SHARED`, too. Small balances let
accounts run out and be able to pay again; balances near ±600 let running work change its level.
"""

from random import Random
from typing import Any

from tests.reference_model.quota.nouns import World
from tests.reference_model.quota.playing import Document, act, build_world

SYSTEMS = ("x86_64-linux", "aarch64-linux")
STEPS = (0, 0, 0.25, 0.5, 1, 1, 2, 4, 8, 64, 256, 1024)
LABELS = ("base", "disk")
NEW = 3
"""Most reservations that are submitted at once."""
CROWD = 10
"""With more pending reservations than these, none is submitted."""

SHARED = 3 * 3 * 5 * 7 * 11 * 13 / 2**15
"""Floats hold the shares of this cost exactly, among up to 16 leases."""


def make_scenario(number: int, *, has_helpers: bool = False) -> Document:
    """Return a whole scenario; its actions depend on the state of the plain scheduler at that time. `has_helpers`:
    whether reservations have elastic leases from the start.
    """
    return _Author(Random(number), has_helpers=has_helpers).write(number)


class _Author:
    """Writes one scenario, playing it on the plain scheduler meanwhile."""

    def __init__(self, random: Random, *, has_helpers: bool) -> None:
        self._random = random
        self._submitted = 0
        self._accounts = [f"a{index}" for index in range(random.randint(3, 5))]
        self._systems = SYSTEMS[: random.choice((1, 1, 1, 2))]
        sides = [*random.choices(((1, -1), (0, 0)), (9, 1))[0], 0, 0, 0]
        self._extremes = {name: (random.randrange(5), sides[index]) for index, name in enumerate(self._accounts)}
        """Of each account a level, and whether its balance there is beyond +600, beyond -600, or small."""
        self._gangs = random.choice((0, 0, 0.3, 0.6))
        """The share of reservations with several instances."""
        self._gang: tuple[Document, Document] | None = None
        """The component and the first lease of the gang of which further instances may run on the next places."""
        self._helpers = random.choice((0.4, 0.6)) if has_helpers else 0
        """The share of leases from the start that are elastic instances. No slot has their labels: none is granted."""
        self._helped: tuple[Document, Document] | None = None
        """The last reservation with elastic instances, and its first lease."""

    def write(self, number: int) -> Document:
        document: Document = {"name": f"quota {number}", "config": self._make_config()}
        document["slots"], document["reservations"] = self._make_fleet(document["config"]["pools"])
        document["timeline"] = []
        world, at = build_world(document), 0.0
        if self._chance(0.8):
            document["timeline"].append({"at": at, "submit": [self._make_wish() | {"account": "a2"} for _ in range(2)]})
            act(world, document["timeline"][0])
        for _ in range(self._random.randint(7, 12)):
            for item in self._make_items(world, at):
                act(world, item)
                document["timeline"].append(item)
            at += self._random.choice(STEPS)
        document["timeline"].append({"at": at, "tick": True})
        return document

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _quarters(self, least: float, most: float) -> float:
        return self._random.randint(int(least * 4), int(most * 4)) / 4

    def _make_config(self) -> Document:
        random = self._random
        scheduler = {
            "queue": "quota",
            "preemption": self._chance(0.95),
            "preemption_grace": random.choice((0, 0, 0, 1, 4, 30)),
            "min_run_time": random.choice((0, 0, 0, 0, 2, 2, 64)),
            "confirm_timeout": random.choice((0, 0, 0, 8)),
        }
        if self._helpers:
            scheduler["elastic"] = "malleable"
        room = random.choice((1, 1, 1, 2, 3))
        steady = {"provider": "static", "lease_ttl": 0, "offline_timeout": 1_000_000, "unhealthy_after": 0}
        pools = {
            f"pool{index}": {"system": system, "max_leases_per_slot": room, **steady}
            for index, system in enumerate(self._systems)
        }
        return {
            "scheduler": scheduler,
            "pools": pools,
            "accounts": {name: self._make_account(name) for name in self._accounts if self._chance(0.95)},
        }

    def _make_account(self, name: str) -> Document:
        random = self._random
        level, side = self._extremes[name]
        rates = [random.choice((0, 0.25, 0.5, 1, 1.5, 3)) for _ in range(random.randint(level + 1, 5))]
        if side > 0:
            rates[level] = random.choice((1, 1.5, 3))
        account: Document = {
            "charge_rate": rates,
            "max_charge_seconds": random.choice((0, 1, 4, 64, 2048)),
            "balance": self._make_balance(level, side),
        }
        if self._chance(0.25):
            account["max_fanout"] = random.choice((1, 1, 2))
        if self._chance(0.2):
            account["per_label_task_limits"] = {random.choice(LABELS): random.choice((1, 1, 2))}
        if self._chance(0.3):
            account["disable_free_tasks"] = True
        return account

    def _make_balance(self, level: int, side: int) -> list[float]:
        balance = [self._random.choice((0, self._quarters(-4, 8), self._quarters(-4, 8))) for _ in range(5)]
        if not side:
            balance[level] = self._quarters(0, 8)
        else:
            balance[level] = side * (600 + self._random.choice((0, 0.25, 1, 100, 1000, 4000)))
        return balance

    def _make_fleet(self, pools: Document) -> tuple[list[Document], list[Document]]:
        """Slots, some with a lease from the start."""
        slots: list[Document] = []
        holders: list[Document] = []
        for name, pool in pools.items():
            self._gang = self._helped = None
            for number in range(1, self._random.randint(3, 5 + 3 * bool(self._gangs)) + 1):
                leases = [
                    self._make_lease(pool["system"], holders)
                    for _ in range(pool["max_leases_per_slot"])
                    if self._chance(0.7)
                ]
                labels = self._make_labels(0.8)
                slots.append({"id": f"{name}-{number}", "pool": name, "labels": labels, "leases": leases})
        return slots, holders

    def _make_lease(self, system: str, holders: list[Document]) -> Document:
        """A lease of the last holder if that is a gang, and often another instance of it; else one of a new holder."""
        if self._helped is not None and self._chance(self._helpers):
            return self._make_helper(*self._helped)
        if self._gang is not None and self._chance(0.7):
            component, first = self._gang
            first["component"] = "main.0"
            component["count"] += 1
            return first | {"component": f"main.{component['count'] - 1}"}
        holder = self._make_holder(system)
        holder.pop("components", None)
        holders.append(holder)
        lease = {"reservation": holder["id"], "component": "main", **self._make_running(holder.get("account"))}
        self._gang = None
        if self._chance(self._gangs):
            holder["components"] = [{"name": "main", "count": 1}]
            self._gang = holder["components"][0], lease
        if self._helpers and self._chance(0.6):
            self._helped = holder, lease
        return lease

    def _make_helper(self, holder: Document, first: Document) -> Document:
        """One more elastic instance of a reservation."""
        components = holder.setdefault("components", [{"name": "main", "count": 1}])
        if len(components) == 1:
            components.append({"name": "help", "count": 1, "kind": "elastic", "labels": {"none": "1"}})
        components[1]["count"] += 1
        running = {"level": first["level"], "cost": self._make_running(holder.get("account"))["cost"]}
        return {"reservation": holder["id"], "component": f"help.{components[1]['count'] - 1}", **running}

    def _make_holder(self, system: str) -> Document:
        """A reservation that runs from the start: mostly of an account whose work is about to change its level, or of
        none.
        """
        holder = self._make_wish(system) | {"phase": "leased"}
        if self._chance(0.7):
            holder["account"] = ("a0", "a1", "nobody")[self._submitted % 3]
        return holder

    def _make_running(self, account: str | None) -> Document:
        """Its level and cost: most work is cheap, and at a level where its account can move it."""
        unit = SHARED if self._helpers else 1
        cost = [self._quarters(0, 2) * unit if self._chance(0.3) else 0 for _ in range(5)]
        level, side = self._extremes.get(account or "", (5, 0))
        near = self._random.randint(min(level + 1, 5), 5) if side >= 0 else level
        return {"level": near if self._chance(0.8) else self._random.choice((0, 1, 2, 3, 4, 5, 5, 5)), "cost": cost}

    def _make_labels(self, share: float) -> dict[str, str]:
        return {name: self._random.choice("12") for name in LABELS if self._chance(share)}

    def _make_wish(self, system: str | None = None) -> Document:
        self._submitted += 1
        wish: Document = {"id": f"r{self._submitted}", "system": system or self._random.choice(self._systems)}
        wish["labels"], wish["prefers"] = self._make_labels(0.2), self._make_labels(0.3)
        if self._chance(0.8):
            wish["account"] = self._random.choice(self._accounts)
        if self._chance(0.1):
            wish["preemptible"] = False
        if self._chance(self._gangs):
            wish["components"] = [{"name": "main", "count": self._random.randint(2, 3)}]
        return wish

    def _make_items(self, world: World, at: float) -> list[Document]:
        """What happens at one time: a few actions, mostly one tick, sometimes two."""
        items = [self._make_item(world, at) for _ in range(self._random.randint(0, 3))]
        items += [{"at": at, "tick": True}] * self._random.choice((0, 1, 1, 1, 2))
        return [item for item in items if item]

    def _make_item(self, world: World, at: float) -> Document | None:
        random = self._random
        kind = random.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()))[0]
        value: Any = getattr(self, f"_choose_{kind}")(world)
        return None if value is None else {"at": at, kind: value}

    def _pick(self, world: World, *phases: str) -> str | None:
        names = [job.name for job in world.jobs.values() if job.phase in phases]
        return self._random.choice(names) if names else None

    def _pick_place(self, world: World) -> str:
        return self._random.choice(world.places).name

    def _choose_submit(self, world: World) -> list[Document] | None:
        if sum(job.phase == "pending" for job in world.jobs.values()) > CROWD:
            return None
        return [self._make_wish() for _ in range(self._random.randint(1, NEW))]

    def _choose_release(self, world: World) -> str | None:
        return self._pick(world, "leased", "leased", "revoking")

    def _choose_cancel(self, world: World) -> str | None:
        return self._pick(world, "pending", "leased")

    def _choose_surrender(self, world: World) -> Document | None:
        name = self._pick(world, "revoking")
        return {"reservation": name} if name else None

    def _choose_absent(self, world: World) -> str | None:
        return self._pick(world, "pending", "leased")

    def _choose_confirm(self, world: World) -> Document | None:
        """On slots of one lease, without a preemption in progress: qscheduler's rules cover no other case."""
        name, place = self._pick(world, "pending", "leased"), self._random.choice(world.places)
        job = world.jobs[name] if name else None
        if job is None or job.count > 1 or place.room > 1 or world.grace or self._helpers:
            return None
        if job.lease and self._chance(0.6):
            [place] = job.lease.places
        return {"reservation": job.name if self._chance(0.9) else "unknown", "slot": place.name}

    def _choose_idle(self, world: World) -> Document | None:
        place = self._random.choice(world.places)
        if place.room > 1 or self._helpers or world.on(place, "revoking", "claimed"):
            return None
        return {"slot": place.name, "labels": self._make_labels(0.7)} if self._chance(0.5) else {"slot": place.name}

    def _choose_account(self, _: World) -> Document:
        name = self._random.choice(self._accounts)
        account = self._make_account(name)
        if self._chance(0.5):
            del account["balance"]
        return {"id": name, **account}

    def _choose_forget_account(self, world: World) -> str | None:
        return self._random.choice(list(world.accounts)) if world.accounts else None

    def _choose_reset_account(self, world: World) -> str | None:
        return self._random.choice(list(world.accounts)) if world.accounts else None

    def _choose_rules(self, world: World) -> Document | None:
        if self._chance(0.5):
            return {"scheduler": {"preemption": not world.preemption}}
        if not world.accounts:
            return None
        rate = [self._quarters(0, 3) for _ in range(5)]
        return {"accounts": {self._random.choice(list(world.accounts)): {"charge_rate": rate}}}

    def _choose_priority(self, world: World) -> Document | None:
        name = self._pick(world, "pending")
        return {"reservation": name, "priority": self._random.choice((0, 1, 9))} if name else None


_WEIGHTS = {
    "submit": 40,
    "release": 12,
    "cancel": 3,
    "surrender": 6,
    "absent": 2,
    "confirm": 5,
    "idle": 3,
    "account": 4,
    "forget_account": 1,
    "reset_account": 1,
    "rules": 2,
    "priority": 2,
}
"""The frequency of each action."""
