"""Plays follow the rules of the plan, and a start that follows other rules is unknown."""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.foresight.census import Census
from scheduler.foresight.forecaster import Forecaster
from scheduler.foresight.margins import LEAST, Outcome, Waits
from scheduler.foresight.play import Draws, Expectations, Play
from scheduler.model.accounts import Account, Levels
from scheduler.model.budgets import Spent
from scheduler.model.reservations import Component, Reservation
from scheduler.model.rules import Rules
from scheduler.model.run_times import ALL, Estimates, RunTimes
from scheduler.model.view import Row, View
from tests.builders import NOW, SYSTEM, a_component, a_lease, a_reservation, a_slot, some_rules

RUN = 600.0
CPUS = {"cpus": 4.0}


def rules(*, slots: int = 9, budgets: dict[str, Any] | None = None, **scheduler: Any) -> Rules:
    pool = {"system": SYSTEM, "provider": "static", "resources": {"cpus": 4}, "max_slots": slots}
    return some_rules({"pools": {"linux": pool}, "scheduler": scheduler, "budgets": budgets or {}})


def elastic_rules(pools: Sequence[str] = ("linux",), prices: Sequence[float] = (1.0,), **others: Any) -> Rules:
    """Pools of 4 machines at these prices, which come after 40 s."""
    offerings = [
        {"name": f"o{number}", "type": "m7i.large", "resources": {"cpus": 4}, "price": each}
        for number, each in enumerate(prices)
    ]
    ec2 = {"launch_template": "lt-1", "launch_template_version": 1}
    pool = {"system": SYSTEM, "max_slots": 4, "offerings": offerings, "ec2": ec2}
    return some_rules({"pools": dict.fromkeys(pools, pool), **others})


def slots(count: int, **changes: Any) -> list[Row]:
    return [a_slot(f"linux-{number}", resources=CPUS, **changes) for number in range(1, count + 1)]


def seen() -> Row:
    """A machine that took 40 s to come, and takes no work."""
    return a_slot("linux-99", offering="o0", launched_at=NOW - 140, since=NOW - 100, cordoned=True)


def wants(name: str, cpus: float = 4.0, after: float = 0.0, **changes: Any) -> Reservation:
    components = changes.pop("components", (a_component(resources={"cpus": cpus}),))
    return a_reservation(name, components=components, created_at=NOW + after, **changes)


def leased(name: str, slot: int, *elastic: int, cpus: float = 4.0, since: float = NOW, **changes: Any) -> Reservation:
    leases = [a_lease(f"linux-{slot}", resources={"cpus": cpus})]
    leases += [
        a_lease(f"linux-{each}", component=f"more.{number}", kind="elastic", resources={"cpus": cpus}, **changes)
        for number, each in enumerate(elastic)
    ]
    components: tuple[Component, ...] = (a_component(resources={"cpus": cpus}),)
    if elastic:
        components += (a_component("more", kind="elastic", count=len(elastic), resources={"cpus": cpus}),)
    return a_reservation(name, components=components, phase="leased", leased_at=since, leases=tuple(leases))


def times(seconds: float = RUN) -> RunTimes:
    """Run times of all work: always these seconds."""
    return RunTimes(id=ALL, seconds=(seconds,) * 30)


def play(given: Rules, *rows: Row, spending: dict[str, Spent] | None = None) -> dict[str, float]:
    """Return after how many seconds each waiting reservation starts; infinity: not in the play."""
    view = View([*rows, times()])
    present = Census(given).count(view, NOW, spending or {})
    one = Play(present, Draws(view.run_times, Random(1)), Expectations(Estimates(view.run_times)), iter(()), 1e5)
    one.run(range(len(present.waiting)))
    return {each.name: start - NOW for each, start in zip(present.waiting, one.starts, strict=True)}


def ask(given: Rules, *rows: Row, spending: dict[str, Spent] | None = None) -> dict[str, str]:
    """Return why the start of each waiting reservation is unknown; "": it is known."""
    view, forecaster = View([*rows, times()]), Forecaster()
    forecaster.see(view, given, "", NOW, spending or {})
    for _ in range(LEAST):
        forecaster.margins.note(Outcome(Waits(1, 2, 3, 4), 2.0), None)
    forecaster.play(2)
    return {each.id: forecaster.answer(each).unknown for each in view.by_phase["pending"].values()}


def an_account(name: str = "a", rate: float = 0.0, balance: float = 0.0, **changes: Any) -> Account:
    levels: tuple[Levels, Levels] = ((rate, 0, 0, 0, 0), (balance, 0, 0, 0, 0))
    return Account(id=name, charge_rate=levels[0], balance=levels[1], **changes)


@pytest.mark.parametrize(
    ("account", "unknown"),
    [
        (an_account(rate=1.0), "not_played"),  # its work will preempt that of the free level
        (an_account(balance=700.0), "not_played"),
        (an_account(disable_free_tasks=True), "not_played"),  # its budget is exhausted, so its work waits
        (an_account(per_label_task_limits={"rack": 1}), "not_played"),
        (an_account(rate=1.0, forgotten=True), ""),
        (an_account(), ""),  # all work is at the free level
    ],
)
def test_the_start_is_unknown_if_accounts_decide(account: Account, unknown: str) -> None:
    rows: list[Row] = [
        *slots(1),
        leased("r", 1),
        wants("w", account="a"),
        wants("other", after=1, account="b"),
        account,
    ]
    assert ask(rules(queue="quota"), *rows) == {"w": unknown, "other": unknown}
    # Other queues do not read accounts.
    assert ask(rules(), *rows) == {"w": "", "other": ""}


def test_only_the_queue_with_accounts_is_unknown() -> None:
    other = {"system": "arm", "provider": "static", "resources": {"cpus": 4}, "max_slots": 2}
    pool = {"system": SYSTEM, "provider": "static", "resources": {"cpus": 4}, "max_slots": 2}
    given = some_rules({"pools": {"linux": pool, "arm": other}, "scheduler": {"system": {"arm": {"queue": "quota"}}}})
    rows = [*slots(1), a_slot("arm-1", resources=CPUS), leased("r", 1), an_account(rate=1.0)]
    assert ask(given, *rows, wants("w"), wants("x", system="arm")) == {"w": "", "x": "not_played"}


def test_at_the_free_level_more_labels_come_first() -> None:
    labels = {"disk": "ssd"}
    rows = [*slots(1, labels=labels), leased("r", 1), wants("w1"), wants("w2", after=1, labels=labels)]
    assert play(rules(queue="quota"), *rows) == {"w2": RUN, "w1": 2 * RUN}


def test_a_gang_starts_when_each_of_its_pools_has_room() -> None:
    pool = {"system": SYSTEM, "provider": "static", "max_slots": 2}
    given = some_rules(
        {"pools": {"linux": {**pool, "resources": {"cpus": 4}}, "gpu": {**pool, "resources": {"gpus": 1}}}}
    )
    gang = (a_component(resources={"cpus": 4.0}), a_component("gpu", resources={"gpus": 1.0}))
    runs = a_reservation(
        "g",
        components=(a_component(resources={"gpus": 1.0}),),
        phase="leased",
        leased_at=NOW - 100,
        leases=(a_lease("gpu-1", resources={"gpus": 1.0}),),
    )
    # Two slots for cpus are free, and the only one with a gpu is not.
    rows = [*slots(2), a_slot("gpu-1", resources={"gpus": 1.0}), runs, wants("w", components=gang)]
    assert play(given, *rows) == {"w": RUN - 100}


def test_the_parts_of_a_gang_share_slots() -> None:
    def gang(small: int) -> tuple[Component, ...]:
        return (a_component("small", count=small, resources={"cpus": 1.0}), a_component(resources={"cpus": 3.0}))

    # A slot of 4 cpus and one with 2 of them free hold 3 + 1 and 1 + 1, but no four small ones beside the large one.
    rows = [*slots(2), leased("r", 1, cpus=2.0)]
    assert play(rules(), *rows, wants("w", components=gang(3))) == {"w": 0.0}
    assert play(rules(), *rows, wants("w", components=gang(4))) == {"w": RUN}


def test_a_protected_gang_of_two_parts_keeps_room_for_both() -> None:
    gang = (a_component("small", resources={"cpus": 2.0}), a_component(resources={"cpus": 4.0}))
    old = a_reservation("w", components=gang, created_at=NOW - 7200)
    # Slot 2 is free, and either part of the gang would fit on it.
    rows = [*slots(2), leased("r", 1, since=NOW - 100), old]
    assert play(rules(), *rows, wants("later")) == {"w": RUN - 100, "later": 2 * RUN - 100}
    # Room beside both parts may be used, and all of it without the guard.
    assert play(rules(), *rows, wants("later", cpus=2.0)) == {"w": RUN - 100, "later": 0.0}
    assert play(rules(starvation_guard=0), *rows, wants("later"))["later"] == 0.0


def test_protected_work_starts_when_a_machine_on_the_way_has_come() -> None:
    gang = (a_component(count=2, resources=CPUS),)
    old = a_reservation("w", components=gang, created_at=NOW - 7200)
    # One slot is free, one machine comes after 30 s, and no more may be launched.
    booting = a_slot("linux-2", resources=CPUS, state="booting", launched_at=NOW - 10, since=NOW - 5)
    rows = [seen(), *slots(1), booting, a_slot("linux-3", resources=CPUS, cordoned=True), old]
    assert play(elastic_rules(), *rows, wants("later")) == {"w": 30.0, "later": 30.0 + RUN}
    # What is expected to end before may use the free slot.
    assert play(elastic_rules(), *rows, wants("later", expected_runtime=20.0))["later"] == 0.0


def test_elastic_instances_are_taken_back_for_waiting_work() -> None:
    rows = [*slots(2), leased("r", 1, 2), wants("w")]
    assert play(rules(), *rows) == {"w": 0.0}
    assert ask(rules(), *rows) == {"w": ""}
    # One that is being revoked holds its slot until then.
    rows = [*slots(2), leased("r", 1, 2, state="revoking", revoke_by=NOW + 30), wants("w")]
    assert play(rules(), *rows) == {"w": 30.0}


@pytest.mark.parametrize(
    ("settings", "unknown"),
    [
        ({"elastic": "yielding"}, ""),
        ({"elastic": "rigid"}, ""),
        ({"elastic": "flexible"}, "not_played"),
        ({"elastic": "malleable"}, "not_played"),
        ({"elastic": "rigid", "queue": "quota"}, "not_played"),
    ],
)
def test_the_start_is_unknown_if_elastic_instances_compete_with_new_work(
    settings: dict[str, Any], unknown: str
) -> None:
    assert ask(rules(**settings), *slots(3), leased("r", 1, 2), wants("w")) == {"w": unknown}
    # Nothing is elastic there.
    assert ask(rules(**settings), *slots(3), leased("r", 1), wants("w")) == {"w": ""}


def test_a_rigid_reservation_starts_with_its_elastic_instances() -> None:
    both = (a_component(resources=CPUS), a_component("more", kind="elastic", count=2, resources=CPUS))
    rows = [*slots(3), leased("r", 1), wants("w", components=both)]
    assert play(rules(elastic="rigid"), *rows) == {"w": RUN}
    assert play(rules(), *rows) == {"w": 0.0}


@pytest.mark.parametrize("change", [{"state": "draining"}, {"cordoned": True}])
def test_what_a_slot_has_that_takes_no_new_work_does_not_come_back(change: dict[str, Any]) -> None:
    assert play(rules(), *slots(1, **change), leased("r", 1), wants("w")) == {"w": inf}
    other = a_slot("linux-2", resources=CPUS)
    assert play(rules(), *slots(1, **change), other, leased("r", 1), leased("s", 2), wants("w"), wants("v")) == {
        "w": RUN,
        "v": 2 * RUN,
    }


def test_without_backfill_nothing_overtakes() -> None:
    wide = wants("w", components=(a_component(count=2, resources=CPUS),))
    rows = [*slots(2), leased("r", 1), wide, wants("later", after=1)]
    assert play(rules(backfill=False), *rows) == {"w": RUN, "later": 2 * RUN}
    assert play(rules(starvation_guard=0), *rows)["later"] == 0.0


def test_the_smallest_present_size_comes_first_under_dynsize() -> None:
    # Sizes: 4 and 1 (cpus, without memory). Both fall to 0.
    rows = [*slots(1), leased("r", 1), wants("large", 4.0), wants("small", 1.0, after=1)]
    assert play(rules(queue="dynsize", dynsize_decay=0), *rows) == {"large": 2 * RUN, "small": RUN}
    # At 600 s the sizes are 4 - 3 and 1 - 0.75, at 8 times this speed 0 and 0.
    slow = play(rules(queue="dynsize", dynsize_decay=1 / 800), *rows)
    assert slow == {"large": 2 * RUN, "small": RUN}
    assert play(rules(queue="dynsize", dynsize_decay=1 / 100), *rows)["large"] == RUN


def test_machines_are_launched_within_a_budget() -> None:
    waiting = [wants(f"w{number}", after=number) for number in range(4)]
    budgets = {"all": {"per_hour": 2.5}}
    # Three slots would be allowed by `max_slots`, and two machines by the budget.
    assert list(play(elastic_rules(budgets=budgets), seen(), *waiting).values()) == [40, 40, 40 + RUN, 40 + RUN]
    assert list(play(elastic_rules(), seen(), *waiting).values()) == [40, 40, 40, 40 + RUN]
    # A machine that runs counts, and one that is not paid does not.
    running = [a_slot("linux-1", resources=CPUS, price=1.0, cordoned=True), a_slot("linux-2", state="empty", price=9.0)]
    assert list(play(elastic_rules(budgets=budgets), seen(), *running, *waiting[:2]).values()) == [40, 40 + RUN]
    assert set(ask(elastic_rules(budgets=budgets), seen(), *waiting).values()) == {""}


@pytest.mark.parametrize(
    "keys",
    [
        {"resources": CPUS, "labels": {"zone": "a"}},
        {"resources": CPUS, "labels": {"zone": "a"}, "offerings": [{"name": "o0", "price": 1}]},
        {"labels": {"zone": "a"}, "offerings": [{"name": "o0", "price": 1, "resources": CPUS}]},
        # the cheapest offering is launched
        {
            "offerings": [
                {"name": "o1", "price": 2, "resources": {"cpus": 64}, "labels": {"zone": "b"}},
                {"name": "o0", "price": 1, "resources": CPUS, "labels": {"zone": "a"}},
            ]
        },
    ],
)
def test_a_machine_that_is_launched_has_the_resources_and_labels_of_its_offering_and_pool(keys: dict[str, Any]) -> None:
    waiting = [wants(f"w{number}", after=number, labels={"zone": "a"}) for number in range(2)]
    given = some_rules({"pools": {"linux": {"system": SYSTEM, "max_slots": 2, **keys}}})
    assert list(play(given, seen(), *waiting).values()) == [40, 40 + RUN]


@pytest.mark.parametrize("cpus", [(4, 2), (2, 4), (3, 2, 2), (2, 2)])
@pytest.mark.parametrize("running", [0, 1])
def test_machines_are_launched_for_every_component_of_a_gang(cpus: Sequence[float], running: int) -> None:
    gang = tuple(a_component(f"c{at}", resources={"cpus": float(each)}) for at, each in enumerate(cpus))
    rows = [seen(), *slots(running), wants("w", components=gang)]
    assert play(elastic_rules(), *rows) == {"w": 0 if running and sum(cpus) <= 4 else 40}


def test_a_limit_that_an_account_begins_to_enforce_counts_for_work_that_runs() -> None:
    running = leased("r", 1)
    request = replace(running.request, account="a", max_runtime=100.0)
    account = an_account()
    view = View([*slots(1), replace(running, request=request, sequence=1), wants("w"), times(), account])
    census, starts = Census(rules()), []
    for enforces in (False, True):
        view.apply(replace(account, version=account.version + 1 + enforces, enforce_max_runtime=enforces))
        present = census.count(view, NOW)
        one = Play(present, Draws(view.run_times, Random(1)), Expectations(Estimates(view.run_times)), iter(()), 1e5)
        one.run([0])
        starts.append(one.starts[0] - NOW)
    assert starts == [RUN, 100]


def test_the_start_is_unknown_if_only_a_dearer_offering_could_hold_the_work() -> None:
    offerings = [{"name": f"o{cpus}", "price": cpus, "resources": {"cpus": cpus}} for cpus in (4, 8)]
    given = some_rules({"pools": {"linux": {"system": SYSTEM, "max_slots": 4, "offerings": offerings}}})
    fits, is_wide = a_component(resources=CPUS), a_component("wide", resources={"cpus": 8.0})
    rows = [
        wants("cheap"),
        wants("dear", components=(fits, is_wide)),
        wants("never", components=(is_wide, a_component("huge", resources={"cpus": 9.0}))),
    ]
    assert ask(given, *rows) == {"cheap": "", "dear": "not_played", "never": "not_placed"}
    # A machine of this offering runs, and one of the other.
    running = [a_slot(f"linux-{at}", offering=f"o{at}", resources={"cpus": float(at)}) for at in (4, 8)]
    assert ask(given, *running, *rows) == {"cheap": "", "dear": "", "never": "not_placed"}
    # Accounts decide about what can be placed.
    by_account = given.model_copy(update={"scheduler": given.scheduler.model_copy(update={"queue": "quota"})})
    found = ask(by_account, *running, an_account(rate=1.0), *rows)
    assert found == {"cheap": "not_played", "dear": "not_played", "never": "not_placed"}


def test_two_pools_launch_within_one_budget_and_one_number_of_slots() -> None:
    waiting = [wants(f"w{number}", after=number) for number in range(3)]
    waiting += [wants(f"v{number}", after=number, pool="other") for number in range(2)]
    names = ("linux", "other")
    for given in (
        elastic_rules(names, budgets={"all": {"per_hour": 3.0}}),
        elastic_rules(names, scheduler={"max_slots": 3}),
    ):
        # For the pool `other` no boot time is known: 120 s.
        starts = play(given, *waiting)
        assert sorted(starts.values()) == [120, 120, 120, 120 + RUN, 120 + RUN] or inf in starts.values()
        assert sum(each == 120 for each in starts.values()) == 3
    assert set(play(elastic_rules(names), *waiting).values()) == {120}


@pytest.mark.parametrize(
    ("budget", "spent", "unknown"),
    [
        ({"per_day": 100.0}, 0.0, ""),
        ({"per_day": 100.0}, 98.0, "not_played"),  # what is left changes with the time
        ({"per_month": 100.0}, 98.0, "not_played"),
        ({"per_day": 100.0, "action": "warn"}, 98.0, ""),
        ({"per_hour": 2.0, "accounts": ["a"]}, 0.0, "not_played"),
        ({"per_hour": 6.0, "accounts": ["a"]}, 0.0, ""),
        ({"per_hour": 2.0, "pools": ["other"]}, 0.0, ""),
        ({"per_hour": 2.0}, 0.0, ""),
    ],
)
def test_the_start_is_unknown_if_a_changing_budget_may_refuse_launches(
    budget: dict[str, Any], spent: float, unknown: str
) -> None:
    given = elastic_rules(("linux", "other"), budgets={"b": budget}, accounts={"a": {}})
    rows = [
        seen(),
        a_slot("linux-98", state="ready", resources=CPUS, price=0.0, cordoned=True),
        wants("w", pool="linux"),
    ]
    assert ask(given, *rows, spending={"b": Spent(spent, spent)}) == {"w": unknown}


def test_the_start_is_unknown_if_a_budget_may_refuse_some_offerings() -> None:
    assert ask(elastic_rules(prices=(1.0, 2.0), budgets={"b": {"per_hour": 2.0}}), wants("w")) == {"w": "not_played"}
    assert ask(elastic_rules(prices=(1.0, 2.0), budgets={"b": {"per_hour": 8.0}}), wants("w")) == {"w": ""}
    # Machines without a known price are launched whatever is left.
    assert play(elastic_rules(prices=(0.0,), budgets={"b": {"per_hour": 2.0}}), wants("w")) == {"w": 120.0}
    # So are those of a pool without offerings.
    assert play(elastic_rules(prices=(), budgets={"b": {"per_hour": 2.0}}), wants("w")) == {"w": 120.0}
