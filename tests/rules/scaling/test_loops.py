"""Decisions end: with nothing new from outside, no rule goes on for ever, apart from those that recur by the clock."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.generated import draw_some
from tests.rules.playing import Document, a_pool, a_scenario, a_slot, act, play_out, submit, tick

SMALL: Document = {"name": "small", "market": "on-demand", "price": 1, "resources": {"cpus": 2}}
LARGE: Document = {"name": "large", "market": "on-demand", "price": 2, "resources": {"cpus": 8}}
QUIET_AFTER = 1500
"""Seconds after which nothing is decided any more: longer than each timeout, ttl and idle time of the scenarios."""
WATCHED, QUOTA_HOLD = 600, 60


def a_budget(document: Document, per_hour: float, **changes: Any) -> Document:
    """The same scenario with a budget of all machines."""
    document["config"]["budgets"] = {"all": {"per_hour": per_hour, **changes}}
    return document


def a_full_pool(*timeline: Document, per_hour: float, **parts: Any) -> Document:
    """A pool of two offerings at `max_slots`."""
    pool = a_pool(offerings=[SMALL, LARGE], price_factor=5, max_leases_per_slot=1, **parts.pop("pool", {}))
    return a_budget(a_scenario(*timeline, pools={"linux": pool}, **parts), per_hour)


def idle(*numbers: int, offering: str = "small") -> list[Document]:
    return [a_slot(f"linux-{number}", offering=offering) for number in numbers]


CASES: dict[str, tuple[Document, list[list[str]]]] = {
    "idle slots stay if the budget allows only a part of a gang": (
        a_full_pool(
            submit(0, "g", components=[{"name": "w", "count": 2, "resources": {"cpus": 8}}]),
            tick(0),
            per_hour=4,
            pool={"max_slots": 3},
            slots=[*idle(1, 2), a_slot("linux-3", "ready", "r0", offering="small")],
            reservations=[{"id": "r0", "system": "x86_64-linux", "phase": "leased"}],
        ),
        [["g waits at_max_slots"]],
    ),
    "the price of a slot that ends is free for the launch": (
        a_full_pool(
            submit(0, "g", components=[{"name": "w", "count": 2, "resources": {"cpus": 8}}]),
            tick(0),
            per_hour=4,
            pool={"max_slots": 2},
            slots=idle(1, 2),
        ),
        [["drain linux-1 at_quota", "drain linux-2 at_quota", "g waits at_max_slots"]],
    ),
    "only as many slots end as launches are within the budget": (
        a_full_pool(
            submit(0, "r1", "r2", "r3", resources={"cpus": 8}),
            tick(0),
            per_hour=5,
            pool={"max_slots": 3},
            slots=idle(1, 2, 3),
        ),
        [
            [
                *("drain linux-1 at_quota", "drain linux-2 at_quota"),
                *("r1 waits at_max_slots", "r2 waits at_max_slots", "r3 waits at_max_slots"),
            ]
        ],
    ),
    "a launch that only a budget withholds ends no idle slot, and its pool fills no reserve": (
        a_full_pool(
            submit(0, "r1", resources={"cpus": 8}),
            tick(0),
            per_hour=2.5,
            pool={"max_slots": 3, "target_warm_slots": 2},
            slots=idle(1),
        ),
        [["r1 waits over_budget"]],
    ),
    "a pool whose launch a budget withholds fills no stopped tier": (
        a_full_pool(
            submit(0, "r1", resources={"cpus": 8}), tick(0), per_hour=1.5, pool={"max_slots": 3, "stopped_slots": 1}
        ),
        [["r1 waits over_budget"]],
    ),
    "the minimum is launched": (
        a_full_pool(
            submit(0, "r1", resources={"cpus": 8}), tick(0), per_hour=1.5, pool={"max_slots": 3, "min_slots": 1}
        ),
        [["launch linux-1 small minimum", "r1 waits over_budget"]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_no_machine_ends_or_is_launched_in_vain(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_a_gang_at_the_maximum_a_budget_and_a_stopped_tier_make_no_loop() -> None:
    """The budget allows one of the two machines that the gang needs. Before, machines were launched for the tier,
    stopped, and ended for the gang about once a second.
    """
    pool = a_pool(max_slots=2, stopped_slots=1, offerings=[SMALL], max_leases_per_slot=1)
    gang = submit(0, "g", components=[{"name": "w", "count": 2, "resources": {"cpus": 2}}])
    cloud = {"launch": 0, "boot": 1, "terminate": 0}
    document = a_scenario(gang, pools={"linux": pool}, cloud=cloud, kicks=True, wakes=True, until=60)
    assert play_out(a_budget(document, 1)).decisions == []


def test_an_idle_slot_ends_during_a_back_off_once_no_gang_needs_it() -> None:
    """The quota allows one of the two machines that the gang needs."""
    document = a_scenario(
        submit(0, "g", components=[{"name": "w", "count": 2, "resources": {"cpus": 2}}]),
        act(80, "cancel", "g"),
        pool={"max_slots": 2, "offerings": [SMALL], "max_leases_per_slot": 1, "idle_scale_down": 5},
        cloud={"launch": 0, "boot": 1, "terminate": 0, "quota": 1},
        kicks=True,
        wakes=True,
        until=110,
    )
    assert play_out(document).decisions[2:] == [
        *("60 launch linux-1 small demand", "61 launch linux-2 small demand"),
        *("80 drain linux-1 idle", "80 terminate linux-1 drained"),
    ]


def a_lasting_scenario(seed: int) -> Document:
    """A generated fleet with machines that start at once, budgets, tiers and gangs, which is left alone."""
    random = Random(f"loops {seed}")
    pools = {name: a_small_pool(random) for name in ("p", "q")[: random.choice([1, 1, 2])]}
    wishes = [
        {"id": f"r{number}", "system": "x86_64-linux"}
        | {"components": [a_part(random, name) for name in ("a", "b")[: random.choice([1, 1, 2])]]}
        | ({"account": random.choice(["x", "y"])} if random.random() < 0.4 else {})
        for number in range(random.randint(1, 5))
    ]
    timeline: list[Document] = [{"at": random.choice([0, 0, 1, 7, 40]), "submit": each} for each in wishes]
    timeline += [{"at": random.choice([50, 90]), "release": each["id"]} for each in wishes if random.random() < 0.3]
    cloud = {name: random.choice([0, 0, 1, 3]) for name in ("launch", "boot", "bind", "terminate", "stop", "start")}
    document: Document = {
        "config": {"scheduler": random.choice([{}, {}, {"starvation_guard": 20}, {"backfill": False}]), "pools": pools},
        "timeline": sorted(timeline, key=lambda each: float(each["at"])),
        "cloud": cloud,
        "kicks": True,
        "wakes": True,
    }
    if random.random() < 0.8:
        limit = {"per_hour": random.choice([1, 1.5, 2, 3, 4])} | ({"pools": ["p"]} if random.random() < 0.2 else {})
        limit |= {"accounts": ["x"]} if random.random() < 0.2 else {}
        document["config"]["budgets"] = {"all": {"action": random.choice(["stop", "stop", "drain"]), **limit}}
        for pool in pools.values():
            pool.pop("min_slots", None)
    return document


def a_small_pool(random: Random) -> Document:
    most = random.choice([1, 2, 2, 3])
    offers = [
        {"name": "small", "market": random.choice(["spot", "on-demand"]), "price": 1, "resources": {"cpus": 2}},
        {"name": "large", "market": "on-demand", "price": random.choice([1, 2]), "resources": {"cpus": 4}},
    ]
    pool: Document = {
        "system": "x86_64-linux",
        "lease_ttl": 0,
        "max_slots": most,
        "offerings": offers[: random.choice([1, 2, 2])],
        "idle_scale_down": random.choice([0, 5, 30]),
    }
    if "on-demand" in {each["market"] for each in pool["offerings"]} and random.random() < 0.5:
        pool["stopped_slots"] = random.randint(1, most)
    if random.random() < 0.4:
        pool["target_warm_slots"] = random.randint(1, most)
    if random.random() < 0.3:
        pool["min_slots"] = random.randint(1, most)
    if len({each["market"] for each in pool["offerings"]}) > 1 and random.random() < 0.4:
        pool["market"] = {"on_demand_base": 1}
    if random.random() < 0.3:
        pool["replacement"] = {"min_saving": 0.1, "disruption_budget": 1}
    if random.random() < 0.5:
        pool["max_leases_per_slot"] = 1
    return pool


def a_part(random: Random, name: str) -> Document:
    kind = "elastic" if name == "b" and random.random() < 0.3 else "essential"
    return {
        "name": name,
        "count": random.choice([1, 1, 2, 3]),
        "kind": kind,
        "resources": {"cpus": random.choice([1, 2, 3])},
    }


def list_late(document: Document) -> list[str]:
    """The decisions after QUIET_AFTER, when nothing has come from outside for a long time."""
    end = document["timeline"][-1]["at"]
    played = play_out(document | {"until": end + QUIET_AFTER + WATCHED})
    return [each for each in played.decisions if float(each.partition(" ")[0]) > end + QUIET_AFTER]


def a_scenario_at_a_quota(seed: int) -> Document:
    """The same, with few machines of EC2's quota, and slots that are idle for a short time only."""
    random, document = Random(f"quotas {seed}"), a_lasting_scenario(seed)
    document["cloud"]["quota"] = random.choice([0, 1, 1, 2, 3])
    for pool in document["config"]["pools"].values():
        pool["idle_scale_down"] = random.choice([0, 5, 5])
    return document


def list_too_often(document: Document) -> dict[str, int]:
    """The decisions that come more often than twice for each back-off of the quota, after QUIET_AFTER: a gang may have
    the machine of the trial and the same one with all others.
    """
    counts = Counter(each.partition(" ")[2] for each in list_late(document))
    return {each: number for each, number in counts.items() if number > 2 * WATCHED / QUOTA_HOLD + 1}


def test_decisions_end_when_nothing_new_comes() -> None:
    """For more of them: `python -m tests.rules.scaling.test_loops FIRST RUNS`."""
    seeds = draw_some(range(1, 101), 40)
    assert {seed: late for seed in seeds if (late := list_late(a_lasting_scenario(seed)))} == {}


def test_at_a_quota_decisions_come_as_often_as_its_back_offs() -> None:
    seeds = draw_some(range(1, 101), 40)
    assert {seed: often for seed in seeds if (often := list_too_often(a_scenario_at_a_quota(seed)))} == {}


if __name__ == "__main__":
    import sys

    for number in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        if late := list_late(a_lasting_scenario(number)):
            sys.stdout.write(f"{number}: {len(late)} {late[:12]}\n")
        if often := list_too_often(a_scenario_at_a_quota(number)):
            sys.stdout.write(f"{number} at a quota: {often}\n")
