"""Properties of quota for all input: sums of balances, levels, hard limits, order of input, no lost reservation."""

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

import pytest

from scheduler.model.decisions import Assign, Claim, Preempt
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from tests.builders import NOW, a_component, a_lease
from tests.generated import draw_some
from tests.reference_model.quota.generator import make_scenario
from tests.reference_model.quota.playing import RestartedPlayer, compare, play_engine
from tests.rules.quotas import a_host, an_account, levels, quota_rules, runs, waits

Document = dict[str, Any]
SEEDS = sorted({1003, 1004, 1021, 1028, *draw_some(range(1000, 1030), 8)})
"""The four that are always played have many preemptions."""
CROWDS = 80
CHANGES = ("account", "forget_account", "reset_account", "rules", "confirm", "priority")
ENDED = {"released", "cancelled", "expired", "failed"}
MUCH = 1_000_000


_written = cache(make_scenario)
"""Played once for each number: a play takes long."""


def _scenario(number: int) -> Document:
    return deepcopy(_written(number))


def _without(document: Document, *actions: str) -> Document:
    kept = [item for item in document["timeline"] if not set(item) & set(actions)]
    return document | {"timeline": kept}


def _with_ticks(document: Document) -> Document:
    """The scenario with a tick at the end of every instant."""
    times = sorted({item["at"] for item in document["timeline"]})
    items = [*document["timeline"], *({"at": at, "tick": True} for at in times)]
    return document | {"timeline": sorted(items, key=lambda item: item["at"])}


def _closed(number: int) -> Document:
    """A scenario in which every reservation has an account that exists, and no account reaches its limit of earning."""
    document = _with_ticks(_without(_scenario(number), *CHANGES))
    accounts = document["config"]["accounts"]
    for index in range(5):
        accounts.setdefault(f"a{index}", {})["max_charge_seconds"] = MUCH
    jobs = [*document["reservations"], *(job for item in document["timeline"] for job in item.get("submit", []))]
    for index, job in enumerate(jobs):
        if job.get("account") not in accounts:
            job["account"] = f"a{index % 5}"
    return document


def _sum_of_balances(state: Document) -> Fraction:
    return sum((Fraction(each) for balance in state["balances"].values() for each in balance), Fraction(0))


def _count_paid(state: Document) -> int:
    """A claim is paid for as a lease is."""
    return sum(
        len(each["slots"]) for each in (*state["leases"].values(), *state["claims"].values()) if each["level"] < 5
    )


@pytest.mark.parametrize("grace", [0, 4])
def test_between_accounts_the_sum_of_balances_changes_only_by_recharge_and_charge(grace: int) -> None:
    preempted = 0
    for number in SEEDS:
        document = _closed(number)
        document["config"]["scheduler"]["preemption_grace"] = grace
        rate = sum(
            Fraction(each)
            for account in document["config"]["accounts"].values()
            for each in account.get("charge_rate", [])
        )
        before, paid, at = None, 0, Fraction(0)
        for instant in play_engine(document):
            lines = [line for each in instant["ticks"] for line in each["decisions"]]
            elapsed = Fraction(instant["at"]) - at
            total = _sum_of_balances(instant["state"])
            if before is not None:
                assert total == before + elapsed * (rate - paid), f"scenario {number} at {instant['at']}"
            before, paid, at = total, _count_paid(instant["state"]), Fraction(instant["at"])
            preempted += sum(line["do"] == "preempt" for line in lines)
    assert preempted > len(SEEDS) / 2


def _list_preemptions(document: Document) -> Iterator[tuple[int, list[int]]]:
    """Of each preemption, return the level of the new lease and those of its victims, followed from line to line."""
    levels = {each["reservation"]: each["level"] for slot in document["slots"] for each in slot["leases"]}
    for instant in play_engine(document):
        for line in (line for each in instant["ticks"] for line in each["decisions"]):
            match line["do"]:
                case "assign":
                    levels[line["reservation"]] = line["level"]
                case "relevel":
                    assert levels[line["reservation"]] == line["from"]
                    levels[line["reservation"]] = line["to"]
                case "preempt":
                    yield line["level"], [levels[name] for name in line["victims"]]


def test_no_lease_is_preempted_by_an_equal_or_worse_level() -> None:
    found = [each for number in SEEDS for each in _list_preemptions(_without(_scenario(number), "confirm"))]
    assert all(victim > level for level, victims in found for victim in victims)
    assert len(found) > len(SEEDS) / 2


def _make_crowd(random: Random) -> tuple[dict[str, Slot], list[Row]]:
    """Full hosts, on which free gangs run, and reservations of accounts that can pay. Return hosts and other rows."""
    hosts: dict[str, Slot] = {
        f"hosts-{n}": a_host(n, {"x": "1"} if random.random() < 0.5 else {}) for n in range(1, 10)
    }
    rows: list[Row] = [an_account("A", 9), an_account("B", 0, 9), an_account("C", 9)]
    free = random.sample(sorted(hosts), len(hosts))
    while free:
        count = min(random.choice((1, 1, 2, 3, 4)), len(free))
        parts = [a_component(f"c{n}") for n in range(count)]
        cost = levels(0, 0, random.choice((0, 0, 1)))
        leases = tuple(a_lease(free.pop(), component=part.name, level=5, cost=cost, charged_at=NOW) for part in parts)
        account = "C" if random.random() < 0.05 else None
        rows.append(runs(f"r{50 + len(rows)}", leases[0], account=account, components=tuple(parts), leases=leases))
    for n in range(random.randint(1, 8)):
        labels = {"x": "1"} if random.random() < 0.4 else {}
        rows.append(waits(f"r{n}", random.choice("AABCC"), labels=labels))
    return hosts, rows


@pytest.mark.parametrize("grace", [0, 30])
def test_nothing_is_preempted_for_a_reservation_that_could_be_on_a_slot_which_the_same_step_freed(grace: float) -> None:
    passed_on, crowds = 0, draw_some(range(300), CROWDS)
    for number in crowds:
        hosts, rows = _make_crowd(Random(number))
        view = View([*hosts.values(), *rows])
        freed, level = list[str](), 0
        for decision in plan(view, quota_rules(preemption_grace=grace), NOW).decisions:
            assert isinstance(decision, Assign | Claim | Preempt)
            if decision.level != level:
                freed, level = [], decision.level or 0
            required = view.reservations[decision.reservation].request.labels
            if isinstance(decision, Preempt):
                assert not any(required.items() <= view.slots[slot].labels.items() for slot in freed)
                ended = [lease.slot for name in decision.victims for lease in view.reservations[name].leases]
                freed += [slot for slot in ended if slot != decision.slot]
            else:
                passed_on += any(lease.slot in freed for lease in decision.leases)
                freed = [slot for slot in freed if slot not in {lease.slot for lease in decision.leases}]
    assert passed_on > len(crowds) / 4


def test_no_slot_has_more_leases_than_its_limit() -> None:
    for number in SEEDS:
        document = _without(_scenario(number), "confirm")
        pools = document["config"]["pools"]
        room = {slot["id"]: pools[slot["pool"]]["max_leases_per_slot"] for slot in document["slots"]}
        for instant in play_engine(document):
            held = Counter(slot for lease in instant["state"]["leases"].values() for slot in lease["slots"])
            assert all(count <= room[name] for name, count in held.items()), f"scenario {number} at {instant['at']}"


def test_per_label_limits_are_never_exceeded() -> None:
    """By the assignments of a tick: leases that run from the start, and limits that were lowered, may be above them."""
    reached = 0
    for number in SEEDS:
        document = _without(_closed(number), "idle")
        for account in document["config"]["accounts"].values():
            account["per_label_task_limits"] = {"base": 1, "disk": 2}
        accounts = {job["id"]: job["account"] for job in document["reservations"]}
        accounts |= {job["id"]: job["account"] for item in document["timeline"] for job in item.get("submit", [])}
        labels = {slot["id"]: slot["labels"] for slot in document["slots"]}
        for instant in play_engine(document):
            counts = Counter(
                (accounts[name], label)
                for name, lease in instant["state"]["leases"].items()
                for slot in lease["slots"]
                for label in labels[slot].items()
            )
            for line in (line for each in instant["ticks"] for line in each["decisions"] if line["do"] == "assign"):
                for label in (label for lease in line["leases"] for label in labels[lease["slot"]].items()):
                    limit = {"base": 1, "disk": 2}[label[0]]
                    assert counts[accounts[line["reservation"]], label] <= limit, (
                        f"scenario {number} at {instant['at']}"
                    )
                    reached += counts[accounts[line["reservation"]], label] == limit
    assert reached > len(SEEDS) / 2


def test_the_plan_is_the_same_whatever_the_order_of_its_rows() -> None:
    planned = 0
    for number in SEEDS:
        document, random = _scenario(number), Random(number)
        cut = random.randint(1, len(document["timeline"]))
        player = Runner(read_scenario(document | {"timeline": document["timeline"][:cut]}))
        list(player.play())
        ports, now = player.cluster.ports, player.cluster.event_queue.now + random.choice((0, 1, 64))
        rows = list(ports.store.read_rows())
        outcome = plan(View(rows), ports.rules(), now)
        planned += len(outcome.decisions)
        for _ in range(3):
            random.shuffle(rows)
            assert plan(View(rows), ports.rules(), now) == outcome, f"scenario {number}"
    assert planned > len(SEEDS)


def test_every_reservation_is_pending_with_a_reason_or_leased_or_has_ended() -> None:
    for number in SEEDS:
        document = _with_ticks(_scenario(number))
        asked = {job["id"] for job in document["reservations"]}
        for instant in play_engine(document):
            at = instant["at"]
            asked |= {job["id"] for item in document["timeline"] if item["at"] == at for job in item.get("submit", [])}
            phases = instant["state"]["phases"]
            assert set(phases) == asked, f"scenario {number} at {at}"
            pending = {name for name, phase in phases.items() if phase == "pending"}
            assert set(instant["ticks"][-1]["waiting"]) == pending, f"scenario {number} at {at}"
            leased = {name for name, phase in phases.items() if phase == "leased"}
            assert set(instant["state"]["leases"]) == leased, f"scenario {number} at {at}"
            assert set(phases.values()) <= {"pending", "leased", "revoking", *ENDED}


def test_balances_are_exact_when_schedulers_die() -> None:
    deaths = 0
    for number in SEEDS[::2]:
        document = _scenario(number)
        player = RestartedPlayer(document, Random(number))
        assert compare(document, player) is None, f"scenario {number}"
        deaths += player.deaths
    assert deaths > len(SEEDS)
