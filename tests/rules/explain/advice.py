"""Carry out the change that `explain` offers, in `simulate`: `python -m tests.rules.explain.advice --fleets 2000`.

For each waiting reservation of a generated fleet, the offered change is appended to the scenario of the fleet, and the
scenario is played on, while holders renew and hosts report. The reservation must get a lease, and the change must name
only types, amounts and machines that exist. A broken rule is printed with the scenario. Status 1 if there is any.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from scheduler.model.market import InstanceType, Price, StoredMarket
from scheduler.model.slots import Market
from scheduler.model.validation import InvalidInputError
from scheduler.operations.explain import explain
from scheduler.operations.market import save_market
from scheduler.policy.lifecycle.timers import is_silent
from scheduler.simulation.runner import Runner, play
from scheduler.simulation.scenario import read_scenario
from tests.reference_model.stories import make_scenario
from tests.rules.playing import Document, tick
from tests.rules.waits import a_fleet

QUICK: Final = {"launch": 1, "boot": 3, "bind": 0, "terminate": 2}
LATER: Final = (0, 1, 2, 3, 5, 8, 12, 20, 30, 45, 61, 70, 90, 125, 140, 200, 260, 400, 700, 1300, 2600)
"""Seconds after the change at which ticks follow. Launch back-offs and cool-downs of the fleets end within them."""
LASTS: Final = {"runtime", "restart_policy", "size", "confirm_timeout", "max_unconfirmed"}
"""Keys that end a reservation by themselves, perhaps before its lease: they are left out."""
CATALOGUE: Final = ((1, 2), (2, 2), (4, 4), (8, 2), (16, 8), (32, 2), (64, 4))
"""Cpus of each type of the catalogue, and its GiB of memory for each cpu."""
PATIENCE: Final = 60.0


def make_fleet(seed: int) -> Document:
    """The fleet of this seed: every second one is from the generator of waits, the others are from the stories of the
    reference model. After its scenario the cloud launches whatever it is asked for, and no holder has to confirm.
    """
    fleet = (a_fleet(Random(seed)) if seed % 2 else make_scenario(seed)) | {"cloud": dict(QUICK)}
    end = fleet["timeline"][-1]["at"]
    scheduler = fleet["config"]["scheduler"]
    wishes = [wish for item in fleet["timeline"] for wish in item.get("submit", ())]
    rules = (scheduler, *scheduler.get("system", {}).values(), *fleet["config"]["pools"].values())
    for table in (*wishes, *fleet.get("reservations", ()), *rules):
        for key in LASTS & table.keys():
            del table[key]
    between = [
        each for item in fleet["timeline"] if isinstance(item.get("tick"), dict) for each in item["tick"]["between"]
    ]
    for item in (*fleet["timeline"], *between):
        if "outage" in item:
            item["outage"]["until"] = min(item["outage"]["until"], end)
    return fleet


def make_market(random: Random, config: Document) -> StoredMarket:
    """The catalogue and the prices of a fleet; sometimes there are none. Its offerings are types of the catalogue."""
    if random.random() < 0.3:
        return StoredMarket()
    offered = {each["name"]: each for pool in config["pools"].values() for each in pool.get("offerings", ())}
    own = [
        InstanceType(name=name, cpus=2, memory_mib=2048, architectures=("x86_64",), zones=("us-east-1a",), seen_at=0)
        for name in offered
    ]
    others = (
        InstanceType(
            name=f"c{cpus}.m{ratio}",
            cpus=cpus,
            memory_mib=1024.0 * cpus * ratio,
            architectures=(random.choice(["x86_64", "x86_64", "arm64"]),),
            gpus=random.choice([0, 0, 0, 4]),
            seen_at=0,
        )
        for cpus, ratio in CATALOGUE
    )
    types = (*own, *others)
    markets: tuple[Market, ...] = ("spot", "on-demand")
    prices = tuple(
        Price(type=each.name, zone="us-east-1", market=market, price=0.3 * each.cpus, seen_at=0, source="file")
        for each in types
        for market in markets
        if random.random() < 0.8
    )
    return StoredMarket(version=1, types=types, prices=prices)


class Advised:
    """A fleet at the end of its scenario: what `explain` answers for each reservation that waits then."""

    def __init__(self, seed: int) -> None:
        self.fleet = make_fleet(seed)
        self.market = make_market(Random(f"market {seed}"), self.fleet["config"])
        player = Runner(read_scenario(self.fleet))
        save_market(player.cluster.store, types=self.market.types, prices=self.market.prices)
        list(player.play())
        self.store, self.ports = player.cluster.store, player.cluster.ports
        self.rules = self.store.load_rules().rules
        pending = [each.id for each in self.store.find_reservations(phases=["pending"], limit=100)]
        now = self.store.now()
        alive = self.store.find_reservations(phases=["pending", "leased"], limit=1000)
        self.renewed = [each.id for each in alive]
        pools = self.rules.pools
        self.heard = [
            each.id
            for each in self.store.find_slots()
            if each.pool in pools and not pools[each.pool].is_elastic and not is_silent(each, pools[each.pool], now)
        ]
        self.answers = {name: explain(self.ports, name, PATIENCE) for name in pending}

    def list_faults(self, name: str) -> Iterator[str]:
        """Yield what is wrong with the change that is offered for a reservation."""
        change = self.answers[name]["change"]
        if change is None:
            return
        for action in change["actions"]:
            yield from self._list_invented(action)
        if not self.leases_after(change, name):
            yield "no lease"

    def leases_after(self, change: Document, name: str) -> bool:
        at = self.fleet["timeline"][-1]["at"]
        actions = [{"at": at, **action} for action in change["actions"]]
        wait = change["wait_seconds"]
        waits = [at + each for each in (*(early for early in LATER if early < wait), *(wait + late for late in LATER))]
        ticks = [step for each in waits for step in (*self._keep_up(each), tick(each))]
        timeline = [*self.fleet["timeline"], *actions, *ticks]
        lines = (line for line in play(read_scenario({**self.fleet, "timeline": timeline})) if line["at"] >= at)
        return any(line.get("event") == "reservation_leased" and line["reservation"] == name for line in lines)

    def _keep_up(self, at: float) -> list[Document]:
        """Holders renew what waits and what is leased, and hosts report."""
        return [
            *({"at": at, "renew": name} for name in self.renewed),
            *({"at": at, "seen": name} for name in self.heard),
        ]

    def _list_invented(self, action: Document) -> Iterator[str]:
        """Yield the types, amounts and machines of an action that do not exist."""
        if "slot" in action:
            yield f"a machine that does not exist: {action['slot']}"
        if "uncordon" in action and not any(each.id == action["uncordon"] for each in self.store.find_slots()):
            yield f"a slot that does not exist: {action['uncordon']}"
        for name, pool in action.get("rules", {}).get("pools", {}).items():
            if name not in self.rules.pools:
                yield f"a pool that does not exist: {name}"
            for key in ("resources", "labels", "ec2", "system"):
                if key in pool:
                    yield f"{key} of the machines of a pool"
            for offering in pool.get("offerings", ()):
                if not self._is_real(offering):
                    yield f"an offering that does not exist: {offering}"

    def _is_real(self, offering: Document) -> bool:
        # An offering without resources of its own has those of its pool.
        for pool in self.rules.pools.values():
            for each in pool.offerings:
                own = each.model_dump()
                held = own["resources"] if own["resources"] is not None else pool.resources
                if _facts(offering, held) == _facts(own | {"resources": held}, held):
                    return True
        kind = self.market.type_by_name.get(offering.get("type") or offering["name"])
        if kind is None or offering["resources"] != kind.resources:
            return False
        found = self.market.find_price(kind.name, offering.get("market", "spot"))
        return found is not None and offering.get("price", found.price) == found.price


def _facts(offering: Document, resources: Any) -> tuple[Any, ...]:
    return offering["name"], offering.get("price", 0), offering.get("resources", resources), offering.get("type")


class Count:
    """What a run has seen: reservations, offered changes by kind, and fleets that the scenario reader refuses."""

    def __init__(self) -> None:
        self.fleets = self.refused = self.waiting = 0
        self.kinds, self.codes, self.unadvised = Counter[str](), Counter[str](), Counter[str]()

    def find_faults(self, seed: int) -> list[str]:
        """Return the faults of the changes that are offered in the fleet of this seed."""
        try:
            advised = Advised(seed)
        except InvalidInputError:
            self.refused += 1
            return []
        self.fleets += 1
        faults = []
        for name, answer in advised.answers.items():
            code = (answer["waiting"] or {"code": "served"})["code"]
            self.waiting += 1
            self.codes[code] += 1
            if answer["change"] is None:
                self.unadvised[code] += 1
                continue
            self.kinds[answer["change"]["kind"]] += 1
            faults += [
                f"seed {seed}, {name} ({code}): {each}: {answer['change']['kind']}: {answer['change']['text']}"
                for each in advised.list_faults(name)
            ]
        return faults


def main(words: Sequence[str] | None = None) -> int:
    """Parse the arguments, play, print; return the status."""
    parser = argparse.ArgumentParser(prog="python -m tests.rules.explain.advice", description=__doc__)
    parser.add_argument("--fleets", type=int, default=2000, help="fleets to play")
    parser.add_argument("--first", type=int, default=1, help="seed of the first one; the others follow")
    parser.add_argument("--most", type=int, default=20, help="faults after which to stop")
    arguments = parser.parse_args(words)
    count, faults = Count(), list[str]()
    for seed in range(arguments.first, arguments.first + arguments.fleets):
        for each in count.find_faults(seed):
            faults.append(each)
            _print(each)
        if len(faults) >= arguments.most:
            break
    _print(
        f"{count.fleets} fleets, {count.refused} refused, {count.waiting} waiting reservations, {len(faults)} faults"
    )
    _print(f"waits: {json.dumps(dict(count.codes.most_common()))}")
    _print(f"changes: {json.dumps(dict(count.kinds.most_common()))}")
    _print(f"without a change: {json.dumps(dict(count.unadvised.most_common()))}")
    return 1 if faults else 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
