"""Promises of planned starts, over generated fleets that play to their end."""

from random import Random
from typing import Any

from scheduler.simulation.runner import play
from scheduler.simulation.scenario import read_scenario
from tests.generated import draw_some

Line = dict[str, Any]
FLEETS = draw_some(range(40), 16)


def make_fleet(random: Random) -> Line:
    """Hosts of one or several sizes, and jobs of one kind each, whose run times are known and never wrong."""
    are_alike = random.random() < 0.4
    pool: Line = {"system": "x", "provider": "static", "offline_timeout": 1e9, "lease_ttl": 0}
    pool["max_leases_per_slot"] = 1 if are_alike else random.choice([1, 4, 100])
    hosts: list[Line] = [
        {"id": f"lab-{number}", "pool": "lab", "resources": {"cpus": 1 if are_alike else random.choice([2, 4, 8])}}
        for number in range(1, random.randint(2, 7))
    ]
    timeline: list[Line] = []
    run_times: list[Line] = []
    at = 0
    for number in range(random.randint(3, 30)):
        at += random.choice([0, 0, 1, 3, 7, 20])
        seconds, cpus = random.choice([5, 10, 15, 20, 40, 60, 90, 200]), 1 if are_alike else random.randint(1, 4)
        # More instances than this never fit on the hosts together.
        room = sum(min(pool["max_leases_per_slot"], each["resources"]["cpus"] // cpus) for each in hosts)
        count = min(random.choice([1, 1, 1, 2, 3, len(hosts)]), room)
        if not count:
            continue
        components = [{"name": "main", "count": count, "resources": {"cpus": cpus}}]
        components += [{"name": "more", "resources": {"cpus": 1}}] if count < room and random.random() < 0.3 else []
        job = {"id": f"r{number}", "system": "x", "components": components, "tags": {"job": f"j{number}"}}
        timeline.append({"at": at, "submit": {**job, "runtime": seconds}})
        run_times.append({"job": f"j{number}", "system": "x", "seconds": [seconds] * 5})
    timeline += [{"at": time, "tick": True} for time in range(0, at + 8000, 40)]
    return {
        "config": {"scheduler": {"starvation_guard": random.choice([1, 5, 20])}, "pools": {"lab": pool}},
        "slots": hosts,
        "run_times": run_times,
        "timeline": sorted(timeline, key=lambda item: item["at"]),
        "kicks": True,
        "wakes": True,
    }


class Played:
    """When the starts of reservations were planned, and when they were leased."""

    def __init__(self, document: Line) -> None:
        self.planned: dict[str, float] = {}
        self.leased: dict[str, float] = {}
        self.waiting: dict[str, str] = {}
        self.lines: list[Line] = list(play(read_scenario(document)))
        for line in self.lines:
            for decision in line.get("decisions", ()):
                if decision["do"] == "plan_start":
                    assert decision["reservation"] not in self.planned
                    self.planned[decision["reservation"]] = decision["at"]
            if line.get("event") == "reservation_leased":
                self.leased[line["reservation"]] = line["at"]
            if "waiting" in line:
                self.waiting = {each["reservation"]: each["code"] for each in line["waiting"]}


def without_fields(lines: list[Line]) -> list[Line]:
    """The lines of a play without what names the run times that were learned."""
    return [{key: value for key, value in line.items() if key != "state"} for line in lines]


def test_with_exact_run_times_no_reservation_starts_later_than_its_first_planned_start() -> None:
    count = 0
    for seed in FLEETS:
        played = Played(make_fleet(Random(seed)))
        late = [name for name, at in played.planned.items() if played.leased[name] > at + 1e-6]
        assert (seed, late) == (seed, [])
        count += len(played.planned)
    assert count > len(FLEETS)


def test_without_run_times_every_decision_is_that_of_strict() -> None:
    """Three of twelve jobs end. They are learned, but a class with fewer than five run times does not answer."""
    kept_out = 0
    for seed in range(12):
        fleet = make_fleet(Random(f"unknown {seed}")) | {"run_times": []}
        jobs = [item for item in fleet["timeline"] if "submit" in item][:12]
        for number, job in enumerate(jobs):
            job["submit"]["runtime"] = job["submit"]["runtime"] if number % 4 == 0 else 1e6
        fleet["timeline"] = [item for item in fleet["timeline"] if "submit" not in item or item in jobs]
        scheduler = {**fleet["config"]["scheduler"], "guard": "strict"}
        played = Played(fleet)
        strict = Played({**fleet, "config": {**fleet["config"], "scheduler": scheduler}})
        assert (seed, without_fields(played.lines)) == (seed, without_fields(strict.lines))
        waits = (each["code"] for line in played.lines for each in line.get("waiting", ()))
        kept_out += any(code == "behind_queue" for code in waits)
    assert kept_out > 4


def test_no_reservation_that_could_be_placed_waits_for_ever_whatever_the_run_times_are_worth() -> None:
    """What is known is wrong: too short, too long, or from other work; and shorter jobs come all the time."""
    for seed in draw_some(range(10), 4):
        random = Random(f"wrong {seed}")
        fleet = make_fleet(random)
        for each in fleet["run_times"]:
            each["seconds"] = [random.choice([1, 5, 50, 500]) for _ in range(6)]
        half = 5 * len(fleet["slots"])  # a small job comes every 11 s, and they need about half of the fleet
        small = {"system": "x", "resources": {"cpus": 1}, "runtime": half, "tags": {"job": "small"}}
        fleet["run_times"].append({"job": "small", "system": "x", "seconds": [1] * 5})
        stream = [{"at": at, "submit": {**small, "id": f"s{at}"}} for at in range(1, 4000, 11)]
        fleet["timeline"] = sorted([*fleet["timeline"], *stream], key=lambda item: item["at"])
        played = Played(fleet)
        late = {name for name, code in played.waiting.items() if code != "never_fits"}
        assert (seed, late) == (seed, set())
