"""Simulations learn run times from the leases that are released in them, and may begin with known ones."""

from pathlib import Path

from scheduler.model.run_times import ALL
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import read_workload
from tests.rules.playing import Document, a_scenario, a_slot, act, submit, tick
from tests.traces.logs import a_fleet, a_log

SLOTS = [a_slot("linux-1"), a_slot("linux-2")]


def run(document: Document) -> dict[str, tuple[float, ...]]:
    """Play a scenario, and return the run times of each class at its end, as a tick would see them."""
    player = Runner(read_scenario(document))
    list(player.play())
    view = player.cluster.ports.view_cache.load()
    assert view is not None
    assert view.run_times == {row.id: row for row in player.cluster.store.find_run_times()}
    return {name: row.seconds for name, row in view.run_times.items()}


def test_a_scenario_learns_from_each_release_once() -> None:
    document = a_scenario(
        submit(0, "r1", runtime=30, tags={"job": "build"}),
        submit(0, "r2", runtime=50, tags={"job": "test"}),
        tick(0),
        slots=SLOTS,
        until=100,
    )
    assert run(document) == {
        '[null,null,"build","x86_64-linux",1,0]': (30.0,),
        '[null,null,"build","x86_64-linux"]': (30.0,),
        '[null,null,"test","x86_64-linux",1,0]': (50.0,),
        '[null,null,"test","x86_64-linux"]': (50.0,),
        "[null,null]": (30.0, 50.0),
        "[null,null,null,null,1,0]": (30.0, 50.0),
        ALL: (30.0, 50.0),
    }


def test_what_does_not_end_by_a_release_is_not_learned() -> None:
    document = a_scenario(
        submit(0, "r1", "r2", "r3"),
        tick(0),
        act(5, "cancel", "r1"),
        act(6, "absent", "r2"),
        act(7, "release", "r3"),  # it waits
        slots=SLOTS,
    )
    assert run(document) == {}


def test_a_scenario_begins_with_the_given_run_times() -> None:
    given = [
        {"seconds": [1, "2m"]},
        {"account": None, "seconds": [3]},
        {"system": "x86_64-linux", "seconds": [4]},
        {"cpus": 5, "seconds": [5]},
        {"account": "ci", "job": "build", "system": "x", "instances": 6, "cpus": 9, "seconds": [6]},
    ]
    document = a_scenario(submit(0, "r1", runtime=30), tick(0), slots=SLOTS, until=100, run_times=given)
    assert run(document) == {
        ALL: (1.0, 120.0, 30.0),
        "[null,null]": (3.0, 30.0),
        '[null,null,null,"x86_64-linux"]': (4.0, 30.0),
        "[null,null,null,null,1,3]": (5.0,),
        '["ci",null,"build","x",3,4]': (6.0,),
        '[null,null,null,"x86_64-linux",1,0]': (30.0,),
        "[null,null,null,null,1,0]": (30.0,),
    }


def test_a_trace_learns_from_each_job_that_ends(tmp_path: Path) -> None:
    fleet = a_fleet()
    rows = [(0, 10 + number, 1) for number in range(5)]
    played = TracePlay(read_workload(a_log(tmp_path, *rows), fleet.most_processors), fleet)
    played.play()
    view = played.cluster.ports.view_cache.load()
    assert view is not None
    assert sorted(view.run_times[ALL].seconds) == [10.0, 11.0, 12.0, 13.0, 14.0]
