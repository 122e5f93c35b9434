"""Generated scenarios with gangs of different parts that fill their slots almost or exactly, so that few arrangements
fit. The same seed, the same scenario.
"""

from random import Random

from tests.reference_model.fleets import some
from tests.rules.playing import Document

PARTS = 5
"""The most instances into which a slot is divided."""
LASTS = 6
"""Rounds of actions."""


def make_packing(seed: int) -> Document:
    random = Random(f"packing {seed}")
    pools: Document = {"h": {"system": "linux", "provider": "static", "offline_timeout": 100_000, "lease_ttl": 0}}
    pools["h"] |= some(random, 0.2, max_leases_per_slot=[1, 2, 3])
    if random.random() < 0.5:
        pools["p"] = {"system": "linux", "max_slots": random.randint(1, 4), "lease_ttl": 0}
        pools["p"] |= some(random, 0.6, resources=[_capacity(random)])
        if "resources" not in pools["p"]:
            sizes = [_capacity(random) for _ in range(random.randint(1, 3))]
            pools["p"]["offerings"] = [
                {"name": f"t{number}", "price": number, "resources": size} for number, size in enumerate(sizes, 1)
            ]
        pools["p"] |= some(random, 0.3, price_factor=[1, 3], idle_scale_down=[5, 300])
    scheduler = some(random, 0.4, profile="spread", backfill=False, starvation_guard=[0, 2])
    slots = [
        {"id": f"h-{number}", "pool": "h", "state": "ready", "resources": _capacity(random)}
        | some(random, 0.3, labels=[{"zone": "1"}, {"zone": "2"}])
        for number in range(1, random.randint(3, 7))
    ]
    timeline: list[Document] = []
    names: list[str] = []
    at = 0
    for _ in range(LASTS):
        names.append(f"g{len(names)}")
        timeline.append({"at": at, "submit": {"id": names[-1], "system": "linux", "components": _parts(random, slots)}})
        if random.random() < 0.4:
            names.append(f"s{len(names)}")
            single = {"id": names[-1], "system": "linux", "resources": {"cpus": random.randint(1, 3)}}
            timeline.append({"at": at, "submit": single})
        timeline.append({"at": at, "tick": True})
        words = random.sample(("release", "decline", "cancel"), random.randint(0, 2))
        timeline += [{"at": at, word: random.choice(names)} for word in words]
        if random.random() < 0.2:
            timeline.append({"at": at, random.choice(("cordon", "uncordon")): random.choice(slots)["id"]})
        at += random.choice((0, 1, 3, 5))
    cloud = some(random, 0.5, boot=[1, 3, 9])
    return {
        "name": f"packing {seed}",
        "config": {"scheduler": scheduler, "pools": pools},
        "cloud": cloud,
        "slots": slots,
        "timeline": [*timeline, {"at": at, "tick": True}],
    }


def _capacity(random: Random) -> Document:
    return {"cpus": random.randint(3, 12), "memory_mib": 10 * random.randint(3, 12)}


def _parts(random: Random, slots: list[Document]) -> list[Document]:
    """Divide what some slots have into parts, and write them in any order."""
    wishes: list[tuple[int, int]] = []
    for slot in random.sample(slots, random.randint(1, min(3, len(slots)))):
        cpus, memory = (int(slot["resources"][name]) for name in ("cpus", "memory_mib"))
        for left in range(random.randint(1, PARTS), 0, -1):
            most = cpus if left == 1 else max(0, cpus - left)
            wishes.append((random.randint(min(1, most), max(1, most)) if left > 1 else cpus, memory // left // 10 * 10))
            cpus, memory = max(0, cpus - wishes[-1][0]), max(0, memory - wishes[-1][1])
    random.shuffle(wishes)
    if random.random() < 0.3:
        wishes[0] = (wishes[0][0] + 1, wishes[0][1])
    found = []
    for number, (cpus, memory) in enumerate(wishes):
        part: Document = {"name": f"c{number}", "resources": {"cpus": cpus, "memory_mib": memory}}
        found.append(part | some(random, 0.1, labels={"zone": "1"}, count=2))
    return found
