"""Generated fleets: pools, the scheduler's settings, slots that exist from the start. The same seed, the same fleet."""

from random import Random
from typing import Any

from tests.rules.playing import Document

SYSTEMS = ("linux", "mac")
ACCOUNTS = ("a", "b")
QUEUES = ("fifo", "priority", "size", "dynsize")
STATES = ("ready", "ready", "ready", "booting", "draining", "launching", "binding", "terminating", "error")


def some(random: Random, chance: float, **fields: Any) -> Document:
    """Draw these fields, each with its probability; a list contains its values to choose from."""
    return {
        name: random.choice(value) if isinstance(value, list) else value
        for name, value in fields.items()
        if random.random() < chance
    }


def a_config(random: Random) -> Document:
    """One to three pools, two that launch and one of static hosts."""
    kinds = (a_pool_that_is_full_of_small_ones, a_pool_of_two_markets, a_pool_of_two_classes, an_elastic_pool)
    [make] = random.choices(kinds, (4, 3, 3, 12))
    pools = {"p": make(random, SYSTEMS[0])}
    if random.random() < 0.5:
        pools["q"] = an_elastic_pool(random, random.choice(SYSTEMS))
    if random.random() < 0.5:
        pools["h"] = a_pool_of_hosts(random)
    return {"scheduler": a_scheduler(random), "pools": pools}


def some_budgets(random: Random, config: Document) -> Document:
    """One or two budgets of all machines, or of some pools or accounts, that do not contradict `min_slots`. The short
    stories spend little of a day, so that amounts of a day are small.
    """
    budgets: Document = {}
    for pool in config["pools"].values():
        pool.pop("min_slots", None)
    kinds: list[Document] = [{"per_hour": [0, 1, 2, 3.5, 5]}, {"per_day": [1.001, 2.002, 3, 4]}, {"per_month": [2, 3]}]
    for name in ("b1", "b2")[: random.randint(1, 2)]:
        limits = random.choice(kinds)
        budgets[name] = {key: random.choice(amounts) for key, amounts in limits.items()}
        budgets[name] |= some(random, 0.3, pools=[["p"]], accounts=[["a"], ["b"], ["a", "b"]])
        budgets[name]["action"] = random.choice(["warn", "stop", "stop", "drain", "drain"])
    return budgets


def a_pool(random: Random) -> Document:
    """Keys of pools of both providers."""
    pool: Document = {"lease_ttl": random.choice([0, 0, 40])}
    pool |= some(random, 0.2, default_resources=[{"cpus": 1}, {"memory_mib": 50}, {"cpus": 1, "memory_mib": 50}])
    pool |= some(random, 0.15, reservation_ttl=[15, 100], drain_timeout=10, labels=[{"zone": "1"}])
    return pool | some(random, 0.2, max_uses=[1, 2, 3], recycle_unclean=True, unhealthy_after=[0, 1, 2])


def an_elastic_pool(random: Random, system: str) -> Document:
    """A pool whose slots are launched and terminated; it counts leases, or resources, or lists offerings."""
    pool = a_pool(random) | {"system": system, "max_slots": random.choice([1, 2, 2, 3, 3, 4, 5])}
    kind = random.choice(["leases", "resources", "offerings", "offerings"])
    if kind == "offerings":
        pool["offerings"] = some_offerings(random)
        pool |= some(random, 0.2, on_demand_after=[1, 2], price_factor=[1, 1.2, 3])
    if kind == "resources" or (kind == "offerings" and random.random() < 0.3):
        pool["resources"] = some_resources(random)
    pool |= some(random, 0.4, max_leases_per_slot=[1, 2, 3])
    pool |= some(random, 0.25, min_slots=[0, 1, 2], target_warm_slots=[1, 2])
    pool["min_slots"] = min(pool.get("min_slots", 0), pool["max_slots"])
    pool |= some(
        random, 0.3, idle_scale_down=[5, 30], error_cooldown=[5, 10], quota_hold=[5, 20], capacity_hold=[5, 20]
    )
    if random.random() < 0.15:
        pool |= {"boot_timeout": 5, "unhealthy_after": random.choice([1, 2]), "error_cooldown": 5}
    if random.random() < 0.1:
        pool |= {"agent": True, "offline_timeout": random.choice([5, 20])}
    return pool | some(random, 0.1, boot_timeout=[5], launch_timeout=[8], binding_timeout=[3], terminating_timeout=[9])


def add_lives(random: Random, config: Document, slots: list[Document]) -> None:
    """Add rules of replacement and schedules to some elastic pools, and machines that have drifted.

    `random` is not that of the rest of the scenario, which stays as it is.
    """
    for pool in config["pools"].values():
        if pool.get("provider") != "static":
            pool.update(some(random, 0.3, replacement=[some_replacement(random)]))
            pool.update(some(random, 0.1, schedules=[[a_schedule(random, pool)]]))
    for slot in slots:
        if config["pools"][slot["pool"]].get("provider") != "static":
            slot.update(some(random, 0.3, drifted=True, price=9))


def add_markets(random: Random, config: Document) -> None:
    """Add a base or a share of on-demand slots to most elastic pools with offerings of both markets, and the time after
    which spot is tried again to pools that fall back to on-demand.

    `random` is not that of the rest of the scenario, which stays as it is.
    """
    for pool in config["pools"].values():
        markets = {each.get("market", "spot") for each in pool.get("offerings", ())}
        rules: Document = {}
        if len(markets) > 1:
            rules |= some(random, 0.5, on_demand_base=[1, 2], on_demand_share=[0, 0.3, 0.5, 1])
            pool.update(some(random, 0.3, on_demand_after=[1, 2]))
        if "on_demand_after" in pool:
            rules |= some(random, 0.5, spot_again_after=[5, 30])
        if rules:
            rules["on_demand_base"] = min(rules.get("on_demand_base", 0), pool["max_slots"])
            pool["market"] = rules


def add_tiers(random: Random, config: Document, slots: list[Document]) -> Document:
    """Give some pools with on-demand offerings a stopped tier, and let some of their slots be stopped. Return the
    delays of the cloud.

    `random` is not that of the rest of the scenario, which stays as it is.
    """
    for pool in config["pools"].values():
        markets = {each["market"] for each in pool.get("offerings", ()) if "market" in each}
        if "on-demand" in markets and random.random() < 0.45:
            pool["stopped_slots"] = min(random.choice([1, 1, 2]), pool["max_slots"])
            pool.update(some(random, 0.5, resize_stopped=True))
    for slot in slots:
        pool = config["pools"][slot["pool"]]
        is_stoppable = "stopped_slots" in pool and not slot.get("leases")
        offerings = pool.get("offerings", [])
        keys = [offering_key(each, offerings) for each in offerings if each.get("market") == "on-demand"]
        if is_stoppable and keys and random.random() < 0.5:
            slot |= {"state": "stopped", "offering": random.choice(keys)}
            slot.pop("idle_since", None)
    return some(random, 0.6, stop=[1, 3], start=[1, 2])


def add_limits(random: Random, config: Document, reservations: list[Document], timeline: list[Document]) -> None:
    """Let accounts of some scenarios enforce the longest run times of reservations, for a time or always.

    `random` is not that of the rest of the scenario, which stays as it is.
    """
    if random.random() < 0.6:
        return
    config["accounts"] = {name: some(random, 0.7, enforce_max_runtime=True) for name in ACCOUNTS}
    config["scheduler"]["preemption_grace"] = random.choice([0, 3, 6, 12])
    wishes = [wish for item in timeline for wish in item.get("submit", ())]
    for each in (*reservations, *wishes):
        each.update(some(random, 0.7, max_runtime=[1, 4, 10, 25]))
        if "account" not in each:
            each.update(some(random, 0.8, account=list(ACCOUNTS)))
    for at in sorted({item["at"] for item in timeline}):
        if random.random() < 0.1:
            changed = {"id": random.choice(ACCOUNTS), "enforce_max_runtime": random.random() < 0.6}
            timeline.append({"at": at, "account": changed})
    timeline.sort(key=lambda item: item["at"])


def a_schedule(random: Random, pool: Document) -> Document:
    """A schedule whose windows are a part of each minute."""
    values = some(random, 0.5, target_warm_slots=[0, 1, 2], disruption_budget=[0, 3])
    values |= some(random, 0.3, max_slots=[max(1, pool.get("min_slots", 0)), 6]) or {"min_slots": 1}
    return {"cron": "* * * * *", "duration": random.choice([10, 30])} | values


def some_replacement(random: Random) -> Document:
    """When machines of a pool are replaced."""
    budgets = [0, 1, 1, 2, "10%", "50%", "100%"]
    found = some(random, 0.5, max_age=[10, 30], max_age_jitter=[0, 0.5])
    found |= some(random, 0.8, drift="replace", min_saving=[0.1, 0.3])
    return found | some(random, 0.7, disruption_budget=budgets)


def a_pool_that_is_full_of_small_ones(random: Random, system: str) -> Document:
    """A pool whose minimum and reserve are machines too small for most requests: they have to make headroom."""
    most = random.choice([1, 2, 3, 4])
    small = {"name": "small", "price": 1, "resources": {"cpus": 1, "memory_mib": 50}}
    large = {"name": "large", "price": 2, "resources": {"cpus": 8, "memory_mib": 200}}
    kept = random.choice([{"min_slots": most}, {"target_warm_slots": most}, {"min_slots": 1, "target_warm_slots": 1}])
    return {"system": system, "max_slots": most, "lease_ttl": 40, "offerings": [small, large], **kept}


def a_pool_of_two_markets(random: Random, system: str) -> Document:
    """One offering in each market: launches of one tick are in both, and each market has its quota."""
    small = {"name": "small", "price": 1, "market": "spot", "resources": {"cpus": 1, "memory_mib": 100}}
    large = {"name": "large", "price": 2, "market": "on-demand", "resources": {"cpus": 8, "memory_mib": 200}}
    limits = {"max_slots": 5, "max_leases_per_slot": 1, "lease_ttl": 40, "quota_hold": random.choice([5, 20, 60])}
    return {"system": system, "offerings": [small, large], **limits}


def a_pool_of_two_classes(random: Random, system: str) -> Document:
    """Types of two quota classes in one market, and sometimes the smaller one in both markets."""
    small = {"name": "small", "type": "m5.large", "price": 1, "resources": {"cpus": 1, "memory_mib": 100}}
    large = {"name": "large", "type": "g5.xlarge", "price": 2, "resources": {"cpus": 8, "memory_mib": 200}}
    offerings = [small, large]
    limits = {"max_slots": 5, "max_leases_per_slot": 1, "lease_ttl": 40, "quota_hold": random.choice([5, 20, 60])}
    if random.random() < 0.5:
        offerings.append(small | {"name": "dear", "type": "c5.large", "market": "on-demand", "price": 3})
        limits |= some(random, 0.7, on_demand_after=[1, 2])
    return {"system": system, "offerings": offerings, **limits, **some(random, 0.3, min_slots=1, target_warm_slots=1)}


def some_resources(random: Random) -> Document:
    held = {"cpus": random.choice([2, 4, 4, 8]), "memory_mib": random.choice([100, 200])}
    return held | some(random, 0.2, gpus=[1, 2])


def some_offerings(random: Random) -> list[Document]:
    """One to four, of few prices, some under one name in both markets."""
    offerings = []
    for name in random.sample(["t1", "t2", "t3"], random.randint(1, 3)):
        each = {"name": name, "price": random.choice([1, 1.2, 1.5, 2, 3])}
        each |= some(random, 0.9, resources=[some_resources(random)]) | some(random, 0.2, labels=[{"disk": "ssd"}])
        markets = random.choice([["spot"], ["spot"], ["on-demand"], ["spot", "on-demand"]])
        offerings += [each | {"market": market} for market in markets]
    return offerings


def a_pool_of_hosts(random: Random) -> Document:
    """Static hosts, which register and are sometimes silent."""
    pool = a_pool(random) | {"system": random.choice(SYSTEMS), "provider": "static"}
    if random.random() < 0.6:
        pool["resources"] = some_resources(random)
    return pool | some(random, 0.4, max_leases_per_slot=[1, 2, 9], offline_timeout=[10, 20])


def a_scheduler(random: Random) -> Document:
    """The common settings, and sometimes some of one system's own."""
    found = some_settings(random, 0.3) | some(random, 0.3, starvation_guard=[2, 5, 10])
    if random.random() < 0.25:
        found["system"] = {random.choice(SYSTEMS): some_settings(random, 0.4)}
    return found


def some_settings(random: Random, chance: float) -> Document:
    """Settings that a system may have of its own."""
    found = some(random, chance, queue=list(QUEUES), profile="spread", starvation_guard=[0, 5, 10, 20])
    found |= some(random, chance, interruption_grace=[0, 7], restart_delay=[0, 3], confirm_timeout=[4, 12])
    found |= some(random, chance, dynsize_decay=[1, 10])
    return found | some(random, chance / 2, backfill=False, max_slots=[1, 2, 3], max_restarts=1, max_unconfirmed=[1, 2])


def list_slots(config: Document) -> list[str]:
    """The slots that the elastic pools have, and the names of three hosts."""
    pools = config["pools"]
    names = [f"{name}-{number + 1}" for name, pool in pools.items() for number in range(pool.get("max_slots", 0))]
    return names + [f"h-{number}" for number in (1, 2, 3) if "h" in pools]


def some_slots(random: Random, config: Document) -> list[Document]:
    chosen = (name for name in list_slots(config) if random.random() < (0.8 if name.startswith("h") else 0.4))
    return [a_slot_record(random, name, config["pools"][name[0]]) for name in chosen]


def a_slot_record(random: Random, name: str, pool: Document) -> Document:
    """A slot in some state; its resources and labels may differ from its pool's."""
    is_host = pool.get("provider") == "static"
    record: Document = {"id": name, "pool": name[0], "state": "ready" if is_host else random.choice(STATES)}
    if "offerings" in pool and random.random() < 0.9:
        record["offering"] = offering_key(random.choice(pool["offerings"]), pool["offerings"])
    if is_host:
        record["machine"] = f"m-{name}"
        record |= some(random, 0.3, labels=[{"zone": "1"}, {"zone": "2", "disk": "ssd"}, {}])
        record |= some(random, 0.3, resources=[{"cpus": 1}, {"cpus": 8, "memory_mib": 500}])
    if pool.get("agent") and record["state"] in {"ready", "draining"}:
        record |= some(random, 0.8, machine=f"m-{name}") | some(random, 0.5, last_seen=[-4, -15])
    if record["state"] == "ready":
        record |= some(random, 0.4, idle_since=[-3, -20, -40])
    return record | some(random, 0.1, cordoned=True, since=[-1, -4])


def offering_key(offering: Document, offerings: list[Document]) -> str:
    """`NAME`, or `NAME/MARKET` where a name stands twice."""
    is_alone = sum(each["name"] == offering["name"] for each in offerings) == 1
    return str(offering["name"]) if is_alone else f"{offering['name']}/{offering['market']}"


def some_holders(random: Random, config: Document, slots: list[Document]) -> list[Document]:
    """Reservations with leases on these slots from the start; the slot records list the leases."""
    holders: list[Document] = []
    for slot in slots:
        if slot["state"] in ("ready", "draining") and random.random() < 0.2:
            name = f"o{len(holders) + 1}"
            slot["leases"] = [{"reservation": name} | some(random, 0.3, resources=[{"cpus": 1}, {"cpus": 8}])]
            holder = {"id": name, "system": config["pools"][slot["pool"]]["system"], "phase": "leased"}
            holders.append(holder | some(random, 0.5, resources={"cpus": 1}, restart_policy="on_failure", runtime=20))
    return holders


def some_waiting(random: Random, config: Document) -> list[Document]:
    """Reservations that are pending from the start, or wait for their restart, the older one not always first."""
    systems = [pool["system"] for pool in config["pools"].values()]
    return [
        {"id": f"w{number}", "system": random.choice(systems), "created_at": random.choice([-1, -5, -30])}
        | some(random, 0.2, phase="failed", restart_policy="on_failure")
        for number in range(random.choice([0, 0, 2, 3]))
    ]


def add_commands(random: Random, config: Document, timeline: list[Document]) -> None:
    """Give some requests of some scenarios a command, and some pools agents."""
    if random.random() < 0.7:
        return
    for pool in config["pools"].values():
        if pool.get("provider") != "static":
            pool.update(some(random, 0.5, agent=True))
    for wish in (wish for item in timeline for wish in item.get("submit", ())):
        wish.update(some(random, 0.4, run={"argv": ["true"]}))


def add_run_times(random: Random, config: Document, known: list[Document], timeline: list[Document]) -> list[Document]:
    """Return what is known of run times at the start of a scenario, often nothing; then give some requests a job, an
    `expected_runtime`, and the guard its keys.
    """
    if random.random() < 0.5:
        return []
    config["scheduler"] |= some(random, 0.1, guard="strict") | some(random, 0.2, guard_depth=2)
    for each in (*known, *(wish for item in timeline for wish in item.get("submit", ()))):
        each.update(some(random, 0.5, tags=[{"job": "a"}, {"job": "b"}, {"name": "a"}]))
        each.update(some(random, 0.2, expected_runtime=[3, 20, 60]))
    first, last = SYSTEMS[0], SYSTEMS[-1]
    jobs: list[Document] = [
        {},
        {"job": "a", "system": first},
        {"job": "b", "system": first, "cpus": 1},
        {"job": "a", "system": last},
    ]
    return [each | some_run_times(random) for each in jobs[random.randint(0, 1) :]]


def some_run_times(random: Random) -> Document:
    """The run times of a class, and sometimes their ratios."""
    seconds = [random.choice([1, 5, 10, 20, 40, 60, 90]) for _ in range(random.choice([3, 5, 6, 12]))]
    return {"seconds": seconds} | some(random, 0.3, ratios=[[0.5, 1, 1.5, 1, 0.1]])
