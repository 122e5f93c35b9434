"""Generated fleets, as scenarios, with reservations that wait for various reasons."""

from random import Random

from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.model.waits import Waiting
from scheduler.policy.plan import plan
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from tests.rules.playing import Document, a_pool, a_scenario, a_wish, play_out, tick

SLOW = {"launch": 0, "boot": 10_000, "bind": 0, "terminate": 10_000}
"""No machine becomes ready while the test looks."""
Look = tuple[View, Rules, float]
"""The state of a fleet, and its time."""


def a_fleet(random: Random) -> Document:
    """A small fleet after its first ticks: an elastic pool, hosts, another pool; some reservations are leased, some
    wait.
    """
    linux, slots = _elastic(random), [*_hosts(random)]
    pools = {"linux": linux, "hosts": a_pool(provider="static", max_slots=None, **_sizes(random))}
    larger = [_offering("huge", 20, 64), _offering("vast", 30, 128)] if random.random() < 0.6 else []
    pools["spare"] = a_pool(system="other", offerings=larger)
    del pools["hosts"]["max_slots"]
    if random.random() < 0.6:
        linux["system"] = "elastic"
    if random.random() < 0.2:
        pools["hosts"]["max_leases_per_slot"] = 1
    wishes = [_wish(random, number) for number in range(random.randint(2, 6))]
    later = [_wish(random, number) for number in range(6, 6 + random.randint(0, 3))]
    words = [{"at": 1, "suspend": random.choice(wishes)["id"]}] if random.random() < 0.1 else []
    timeline = [
        *_outage(random, linux),
        {"at": 0, "submit": wishes},
        tick(0),
        tick(1),
        *words,
        {"at": 2, "submit": later},
        tick(2),
        tick(3),
    ]
    fleet = a_scenario(*timeline, pools=pools, scheduler=_scheduler(random), slots=slots, cloud=SLOW)
    if "offerings" in linux and random.random() < 0.3:
        fleet["config"]["budgets"] = {"all": {"per_hour": random.choice([0.5, 1, 2, 3.5])}}
    if larger and "offerings" in linux and random.random() < 0.5:
        # The larger offerings are those of another pool of the same system.
        pools["spare"]["system"] = linux["system"]
        for wish in (*wishes, *later):
            if wish["system"] == linux["system"]:
                del wish["system"]
                wish["pool"] = "linux"
    return fleet


def _outage(random: Random, pool: Document) -> list[Document]:
    """EC2 refuses launches in some fleets, for a moment or for longer than the test looks."""
    if random.random() < 0.5:
        return []
    outage = {"pool": "linux", "until": random.choice([1, 5, 5])}
    outage["error"] = random.choice(["capacity", "capacity", "quota", "throttled", "throttled", "misconfigured"])
    if "offerings" in pool and random.random() < 0.4:
        outage["offering"] = pool["offerings"][0]["name"]
    return [{"at": 0, "outage": outage}]


def _scheduler(random: Random) -> Document:
    return random.choice(
        [
            {},
            {},
            {"backfill": False},
            {"queue": "priority"},
            {"max_slots": 1},
            {"starvation_guard": 1},
            {"system": {"elastic": {"max_slots": 1, "profile": "spread"}}},
        ]
    )


def _sizes(random: Random) -> Document:
    return {"resources": {"cpus": random.choice([2, 4]), "memory_mib": 8192}} if random.random() < 0.8 else {}


def _offering(name: str, price: float, cpus: float) -> Document:
    return {"name": name, "price": price, "resources": {"cpus": cpus, "memory_mib": 1024 * cpus}}


def _elastic(random: Random) -> Document:
    pool = a_pool(max_slots=random.choice([0, 1, 2, 3, 3]))
    if random.random() < 0.6:
        offerings = [_offering("small", 1, 1), _offering("medium", 2, 2), _offering("large", 5, 8)]
        pool["offerings"] = offerings[: random.randint(1, 3)]
    else:
        pool |= _sizes(random)
    if random.random() < 0.3:
        pool["max_leases_per_slot"] = 1
    if random.random() < 0.2:
        pool["labels"] = {"disk": "ssd"}
    return pool


def _hosts(random: Random) -> list[Document]:
    return [
        {
            "id": f"hosts-{number}",
            "pool": "hosts",
            "cordoned": random.random() < 0.2,
            "labels": {"disk": "ssd"} if random.random() < 0.4 else {},
        }
        for number in range(1, random.randint(1, 5))
    ]


def _wish(random: Random, number: int) -> Document:
    wish = a_wish(f"r{number}", priority=random.choice([0, 1, 1, 1, 1, 2]))
    if random.random() < 0.35:
        wish["system"] = "elastic"
    resources = {"cpus": random.choice([1, 1, 2, 3, 4, 6])}
    if random.random() < 0.2:
        resources["memory_mib"] = random.choice([1024, 10_000])
    if random.random() < 0.3:
        wish["components"] = [{"name": "node", "count": random.randint(1, 3), "resources": resources}]
        if wish["components"][0]["count"] == 1:
            head = {"name": "head", "resources": {"cpus": random.choice([1, 4, 6])}}
            wish["components"].append(head | random.choice([{}, {}, {"labels": {"disk": "ssd"}}]))
    else:
        wish["resources"] = resources
    if random.random() < 0.2:
        wish["labels"] = random.choice([{"disk": "ssd"}, {"disk": "ssd", "zone": "b"}])
    return wish


def look_at(fleet: Document) -> Look:
    """The rows and rules at the end of a play."""
    player = Runner(read_scenario(fleet))
    list(player.play())
    store = player.cluster.store
    return View(store.read_rows()), store.load_rules().rules, player.cluster.event_queue.now


def list_waiting(look: Look) -> list[Waiting]:
    """Reservations that wait then, except for capacity in flight."""
    return [each for each in plan(*look).waiting if each.code != "booting"]


def is_served_after(fleet: Document, change: Document, name: str) -> bool:
    """Whether it is served by the next tick when the printed change is played after all the rest."""
    at = fleet["timeline"][-1]["at"]
    actions = [{"at": at, **action} for action in change["actions"]]
    waited = tick(at + change["wait_seconds"])
    played = play_out({**fleet, "timeline": [*fleet["timeline"], *actions, waited]})
    reported = [line for line in played.lines if "tick" in line][-1]
    codes = {each["reservation"]: each["code"] for each in reported["waiting"]}
    return played.phases[name] == "leased" or codes.get(name) == "booting"
