"""One play of the present state: what starts when, if run times are certain."""

from collections.abc import Iterable, Sequence
from math import inf
from random import Random
from typing import Any

import msgspec
import pytest

from scheduler.foresight.census import Census
from scheduler.foresight.play import Arrival, Draws, Expectations, Play
from scheduler.foresight.present import Present
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.run_times import ALL, Estimates, RunTimes, list_classes
from scheduler.model.runs import WAITING
from scheduler.model.view import Row, View
from tests.builders import NOW, SYSTEM, a_component, a_lease, a_reservation, a_slot, some_rules

HOUR = 3600.0


def rules(**scheduler: Any) -> Rules:
    pool = {"system": SYSTEM, "provider": "static", "resources": {"cpus": 1}, "max_slots": 9}
    return some_rules({"pools": {"linux": pool}, "scheduler": scheduler})


def wide(name: str, width: int, **changes: Any) -> Reservation:
    return a_reservation(
        name,
        components=(a_component(count=width, resources={"cpus": 1.0}),),
        account=changes.pop("account", name),
        **changes,
    )


def leased(name: str, slots: Iterable[int], **changes: Any) -> Reservation:
    leases = tuple(
        a_lease(f"linux-{number}", component=f"main.{number}", resources={"cpus": 1.0}, epoch=1) for number in slots
    )
    return wide(name, len(leases), phase="leased", leased_at=NOW, leases=leases, **changes)


def run_times(row: Reservation, seconds: float) -> RunTimes:
    return RunTimes(id=list_classes(row.request, row.principal)[0], seconds=(seconds,) * 30, ratios=())


def play(
    rows: Sequence[Row], given: Rules, arrivals: Iterable[Arrival] = (), horizon: float = 100 * HOUR
) -> dict[str, float]:
    """Play 20 times, and return after how many seconds each reservation started, in the median."""
    view = View([*(a_slot(f"linux-{number}", resources={"cpus": 1.0}) for number in range(1, 5)), *rows])
    present = Census(given).count(view, NOW)
    found: dict[str, list[float]] = {each.name: [] for each in present.waiting}
    for seed in range(20):
        for name, start in zip(found, play_once(present, view, seed, arrivals, horizon), strict=True):
            found[name].append(start - NOW)
    return {name: sorted(starts)[10] for name, starts in found.items()}


def play_once(
    present: Present, view: View, seed: int, arrivals: Iterable[Arrival] = (), horizon: float = 100 * HOUR
) -> list[float]:
    draws = Draws(view.run_times, Random(seed))
    one = Play(present, draws, Expectations(Estimates(view.run_times)), iter(arrivals), horizon)
    one.run(range(len(present.waiting)))
    return one.starts


def test_work_starts_when_what_runs_has_ended() -> None:
    runs, waits = leased("r1", (1, 2, 3, 4)), wide("w1", 2)
    assert play([runs, waits, run_times(runs, 600.0)], rules()) == {"w1": 600.0}


def test_work_starts_at_once_where_slots_are_free() -> None:
    assert play([leased("r1", (1, 2)), wide("w1", 2)], rules()) == {"w1": 0.0}


def test_work_starts_in_queue_order() -> None:
    runs, first, second = leased("r1", (1, 2, 3, 4)), wide("w1", 4), wide("w2", 4, created_at=NOW + 1)
    rows: list[Row] = [runs, first, second, run_times(runs, 600.0), run_times(first, 1000.0)]
    assert play(rows, rules()) == {"w1": 600.0, "w2": 1600.0}
    # A better priority comes first.
    second = wide("w2", 4, created_at=NOW + 1, priority=2)
    rows = [runs, first, second, run_times(runs, 600.0), run_times(second, 1000.0)]
    assert play(rows, rules(queue="priority")) == {"w2": 600.0, "w1": 1600.0}


def test_later_work_runs_beside_wide_work_until_it_is_protected() -> None:
    runs, wide_work, small = leased("r1", (1, 2, 3)), wide("w1", 4), wide("w2", 1, created_at=NOW + 1)
    rows: list[Row] = [runs, wide_work, small, run_times(runs, 600.0), run_times(small, 1000.0)]
    assert play(rows, rules()) == {"w1": 1000.0, "w2": 0.0}


def test_protected_work_keeps_its_planned_slots_from_work_that_is_too_long() -> None:
    old = NOW - 2 * HOUR
    runs, wide_work = leased("r1", (1, 2, 3)), wide("w1", 4, created_at=old)
    long, short = wide("w2", 1, created_at=NOW), wide("w3", 1, created_at=NOW)
    times = [run_times(runs, 600.0), run_times(long, 1000.0), run_times(short, 500.0)]
    assert play([runs, wide_work, long, *times], rules())["w1"] == 600.0
    # Work that is expected to end before uses the slot.
    assert play([runs, wide_work, short, *times], rules()) == {"w1": 600.0, "w3": 0.0}
    # With `strict` it does not, and without the guard all do.
    found = play([runs, wide_work, short, *times], rules(guard="strict"))
    assert found["w1"] == 600.0
    assert found["w3"] > 0
    assert play([runs, wide_work, long, *times], rules(starvation_guard=0)) == {"w1": 1000.0, "w2": 0.0}


def test_a_lease_at_its_end_of_grace_ends_then() -> None:
    runs = leased("r1", (1, 2, 3, 4), revoke_by=NOW + 30)
    assert play([runs, wide("w1", 4), run_times(runs, 6000.0)], rules()) == {"w1": 30.0}


def test_what_never_fits_does_not_start_and_ends_the_play() -> None:
    assert play([wide("w1", 5), wide("w2", 1)], rules(), horizon=HOUR) == {"w1": inf, "w2": 0.0}


def test_run_times_of_zero_do_not_stop_the_clock() -> None:
    runs, waits = leased("r1", (1, 2, 3, 4)), wide("w1", 4)
    assert play([runs, waits, run_times(runs, 0.0)], rules())["w1"] > 0


def test_work_that_has_outlived_all_run_times_goes_on() -> None:
    runs, waits = leased("r1", (1, 2, 3, 4)), wide("w1", 4)
    late = leased("r1", (1, 2, 3, 4))
    assert play([runs, waits, run_times(late, 10.0)], rules())["w1"] == 10.0
    old = msgspec.structs.replace(runs, leased_at=NOW - 50 * HOUR)
    assert play([old, waits, run_times(old, 10.0)], rules(), horizon=1e9)["w1"] > HOUR


def test_the_same_seed_gives_the_same_play() -> None:
    runs, waits = leased("r1", (1, 2, 3, 4)), wide("w1", 4)
    times = RunTimes(id=ALL, seconds=tuple(float(each) for each in range(1, 300)))
    view = View([*(a_slot(f"linux-{n}", resources={"cpus": 1.0}) for n in range(1, 5)), runs, waits, times])
    present = Census(rules()).count(view, NOW)
    assert play_once(present, view, 7) == play_once(present, view, 7)
    assert play_once(present, view, 7) != play_once(present, view, 8)


def test_commands_start_only_in_pools_with_agents() -> None:
    pool = {"system": SYSTEM, "max_slots": 1, "resources": {"cpus": 1}}
    given = some_rules({"pools": {"linux": pool, "agents": {**pool, "agent": True}}})
    slots = [a_slot("linux-1"), a_slot("agents-1", pool="agents")]
    plain = a_reservation("plain", components=(a_component(resources={"cpus": 1.0}),))
    rows = [
        msgspec.structs.replace(plain, id=f"r{number}", sequence=number, created_at=NOW - 9 + number, run=WAITING)
        for number in range(2)
    ]
    view = View([*slots, *rows, msgspec.structs.replace(plain, sequence=5, created_at=NOW), run_times(plain, 100.0)])
    present = Census(given).count(view, NOW)
    found = dict(zip([each.name for each in present.waiting], play_once(present, view, 1), strict=True))
    assert (found["r0"], found["plain"]) == (NOW, NOW)
    assert found["r1"] > NOW
    later = Census(given)
    again = [later.translate(each.kind) for each in present.waiting]
    assert [each.needs_agent for each in again] == [True, True, False]
    assert again == [later.find_kind_of_past(view, view.reservations[name]) for name in ("r0", "r1", "plain")]


def test_several_resources_are_counted_on_each_slot() -> None:
    pool = {"system": SYSTEM, "provider": "static", "resources": {"cpus": 4, "gpus": 1}, "max_slots": 9}
    given = some_rules({"pools": {"linux": pool}})
    slots = [a_slot(f"linux-{number}", resources={"cpus": 4.0, "gpus": 1.0}) for number in (1, 2)]
    rows = [
        a_reservation(
            f"w{number}", components=(a_component(resources={"cpus": 1.0, "gpus": 1.0}),), created_at=NOW + number
        )
        for number in range(3)
    ]
    small = a_reservation("small", components=(a_component(resources={"cpus": 3.0}),), created_at=NOW + 9)
    times = run_times(rows[0], 100.0)
    view = View([*slots, *rows, small, times])
    present = Census(given).count(view, NOW)
    found = dict(zip([each.name for each in present.waiting], play_once(present, view, 1), strict=True))
    # Two slots have one gpu each; cpus are left beside for other work.
    assert (found["w0"], found["w1"], found["small"]) == (NOW, NOW, NOW)
    assert found["w2"] > NOW


def test_machines_are_launched_for_what_waits() -> None:
    pool = {
        "system": SYSTEM,
        "max_slots": 4,
        "offerings": [{"name": "small", "type": "m7i.large", "resources": {"cpus": 2}}],
        "ec2": {"launch_template": "lt-1", "launch_template_version": 1},
    }
    given = some_rules({"pools": {"linux": pool}})
    waiting = [a_reservation(f"w{number}", resources={"cpus": 1.0}, created_at=NOW + number) for number in range(7)]
    # A machine that is ready took 40 s to come. It takes no leases.
    seen = a_slot("linux-9", offering="small", launched_at=NOW - 140, since=NOW - 100, cordoned=True)
    view = View([seen, *waiting])
    present = Census(given).count(view, NOW)
    starts = play_once(present, view, 1)
    # Three machines hold two each.
    assert starts[:6] == [NOW + 40.0] * 6
    assert starts[6] > NOW + 40.0


@pytest.mark.parametrize(("launched", "comes"), [(NOW - 30, NOW + 10), (NOW - 300, NOW)])
def test_a_machine_on_the_way_comes_after_the_usual_time(launched: float, comes: float) -> None:
    pool = {
        "system": SYSTEM,
        "max_slots": 2,
        "offerings": [{"name": "small", "type": "m7i.large", "resources": {"cpus": 2}}],
        "ec2": {"launch_template": "lt-1", "launch_template_version": 1},
    }
    seen = a_slot("linux-9", offering="small", launched_at=NOW - 140, since=NOW - 100, cordoned=True)
    booting = a_slot("linux-1", state="booting", offering="small", launched_at=launched, since=launched + 5)
    view = View([seen, booting, a_reservation("w", resources={"cpus": 1.0}, created_at=NOW)])
    assert play_once(Census(some_rules({"pools": {"linux": pool}})).count(view, NOW), view, 1)[0] == comes
