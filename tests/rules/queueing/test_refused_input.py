"""Bad input is refused before anything is played, with one line that names the path and what was expected."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.model.validation import InvalidInputError
from scheduler.simulation.scenario import load_scenario, read_scenario
from tests.rules.playing import Document, a_holder, a_pool, a_scenario, a_slot, a_wish, act, submit, tick


def with_pool(**changes: Any) -> Document:
    return a_scenario(pool=changes)


LINES: dict[str, tuple[Any, str]] = {
    "the example of the contract": (
        a_scenario(*[tick(0)] * 3, {"at": 0, "submit": a_wish("r1", resources={"cpus": "two"})}),
        'timeline[3].submit.resources.cpus: expected a number >= 0, got "two"',
    ),
    "in a list": (
        a_scenario({"at": 0, "submit": [a_wish("r1"), a_wish("r2", resources={"cpus": -1})]}),
        "timeline[0].submit[1].resources.cpus: expected a number >= 0, got -1",
    ),
    "run times of no known class": (
        {**a_scenario(), "run_times": [{"acount": "ci", "seconds": [1]}]},
        'run_times[0].acount: expected a known key (did you mean "account"?), got "acount"',
    ),
    "a class without run times": (
        {**a_scenario(), "run_times": [{"account": "ci", "seconds": []}]},
        "run_times[0].seconds: expected at least one run time, got []",
    ),
    "run times that are missing": (
        {**a_scenario(), "run_times": [{}]},
        "run_times[0].seconds: expected a value, got nothing",
    ),
    "a negative run time": (
        {**a_scenario(), "run_times": [{"seconds": [1, -1]}]},
        'run_times[0].seconds[1]: expected a duration >= 0 (seconds, or like "30s", "15m", "1h"), got -1',
    ),
    "a class twice": (
        {**a_scenario(), "run_times": [{"cpus": 5, "seconds": [1]}, {"cpus": 7, "seconds": [1]}]},
        'run_times[1]: expected each class once, got "[null,null,null,null,1,3]"',
    ),
    "not a number": (
        a_scenario(submit(0, "r1", resources={"cpus": float("nan")})),
        "timeline[0].submit[0].resources.cpus: expected a number >= 0, got nan",
    ),
    "max_leases_per_slot 0": (
        with_pool(max_leases_per_slot=0),
        "config.pools.linux.max_leases_per_slot: expected a whole number >= 1, got 0",
    ),
    "min above max": (with_pool(min_slots=5), "config.pools.linux.min_slots: expected at most max_slots (4), got 5"),
    "a negative count": (
        with_pool(target_warm_slots=-1),
        "config.pools.linux.target_warm_slots: expected a whole number >= 0, got -1",
    ),
    "more slots than there may be rows": (
        with_pool(max_slots=1_000_000_000),
        "config.pools.linux.max_slots: expected at most 1000000, got 1000000000",
    ),
    "more slots than there may be rows, by a schedule": (
        with_pool(schedules=[{"cron": "0 8 * * *", "until": "18:00", "max_slots": 1_000_001}]),
        "config.pools.linux.schedules[0].max_slots: expected at most 1000000, got 1000001",
    ),
    "more slots than there may be rows, in all pools": (
        a_scenario(pools={name: {"system": "x", "max_slots": 600_000} for name in "ab"}),
        "config.pools: expected at most 1000000 slots in all ec2 pools together (max_slots), got 1200000",
    ),
    "half a slot": (with_pool(max_slots=1.5), "config.pools.linux.max_slots: expected a whole number >= 0, got 1.5"),
    "a negative duration": (
        with_pool(boot_timeout=-1),
        'config.pools.linux.boot_timeout: expected a duration >= 0 (seconds, or like "30s", "15m", "1h"), got -1',
    ),
    "no duration at all": (
        with_pool(boot_timeout="soon"),
        'config.pools.linux.boot_timeout: expected a duration >= 0 (seconds, or like "30s", "15m", "1h"), got "soon"',
    ),
    "an ec2 pool without max_slots": (
        a_scenario(pools={"linux": {"system": "x"}}),
        "config.pools.linux.max_slots: expected a whole number >= 0 (an ec2 pool needs it), got null",
    ),
    "an unknown key": (
        with_pool(max_slot=3),
        'config.pools.linux.max_slot: expected a known key (did you mean "max_slots"?), got "max_slot"',
    ),
    "an unknown key at the top": (
        {**a_scenario(), "tick_evry": 5},
        'tick_evry: expected a known key (did you mean "tick_every"?), got "tick_evry"',
    ),
    "an unknown action": (
        a_scenario(act(0, "submti", {})),
        'timeline[0]: expected a known action (did you mean "submit"?), got "submti"',
    ),
    "two actions": (
        a_scenario({"at": 0, "tick": True, "release": "r1"}),
        'timeline[0]: expected `at` and exactly one action, got ["tick", "release"]',
    ),
    "no action": (a_scenario({"at": 0}), "timeline[0]: expected `at` and exactly one action, got []"),
    "no time": (a_scenario({"tick": True}), "timeline[0].at: expected a value, got nothing"),
    "time runs backwards": (
        a_scenario(tick(5), tick(4)),
        "timeline[1].at: expected a number >= 5 (times never decrease), got 4.0",
    ),
    "a negative time": (a_scenario(tick(-1)), "timeline[0].at: expected a number >= 0, got -1"),
    "a tick that is no tick": (
        a_scenario(act(0, "tick", False)),
        'timeline[0].tick: expected true or {"between": [actions]}, got false',
    ),
    "a tick within a tick": (
        a_scenario({"at": 0, "tick": {"between": [{"tick": True}]}}),
        'timeline[0].tick.between[0]: expected exactly one action other than tick, got {"tick": true}',
    ),
    "tick_every 0": ({**a_scenario(), "tick_every": 0}, "tick_every: expected a duration > 0, got 0"),
    "a slot of no pool": (
        a_scenario(slots=[{"id": "x-1", "pool": "linus"}]),
        'slots[0].pool: expected a pool of config (did you mean "linux"?), got "linus"',
    ),
    "an unknown state": (
        a_scenario(slots=[{"id": "linux-1", "pool": "linux", "state": "redy"}]),
        (
            "slots[0].state: expected one of empty, launching, booting, binding, ready, draining, terminating, error,"
            " stopped"
            ' (did you mean "ready"?), got "redy"'
        ),
    ),
    "a lease of an unknown reservation": (
        a_scenario(slots=[a_slot("linux-1", "ready", "r1")]),
        'slots[0].leases[0].reservation: expected a reservation that was declared, got "r1"',
    ),
    "a lease of an unknown component": (
        a_scenario(
            slots=[{"id": "linux-1", "pool": "linux", "leases": [{"reservation": "r1", "component": "mian"}]}],
            reservations=[a_holder("r1")],
        ),
        'slots[0].leases[0].component: expected one of main, got "mian"',
    ),
    "two components with one name": (
        a_scenario(submit(0, "r1", components=[{"name": "w"}, {"name": "w"}])),
        'timeline[0].submit[0].components: expected components whose instances have different names, got ["w", "w"]',
    ),
    "a component with the name of another one's instance": (
        a_scenario(submit(0, "r1", components=[{"name": "w", "count": 2}, {"name": "w.1"}])),
        'timeline[0].submit[0].components: expected components whose instances have different names, got ["w", "w.1"]',
    ),
    "a slot record later": (
        a_scenario(act(0, "slot", a_slot("linux-1", "ready", "r9"))),
        'timeline[0].slot.leases[0].reservation: expected a reservation that was declared, got "r9"',
    ),
    "cordon of an unknown slot": (
        a_scenario(act(0, "cordon", "linux-5")),
        'timeline[0].cordon: expected a slot that was declared (did you mean "linux-4"?), got "linux-5"',
    ),
    "interrupt of an unknown slot": (
        a_scenario(act(0, "interrupt", {"slot": "mac-1", "deadline": 3})),
        'timeline[0].interrupt.slot: expected a slot that was declared, got "mac-1"',
    ),
    "fail of an unknown reservation": (
        a_scenario(act(0, "fail", {"reservation": "r1"})),
        'timeline[0].fail.reservation: expected a reservation that was declared, got "r1"',
    ),
    "declared later": (
        a_scenario(act(0, "surrender", {"reservation": "r1"}), submit(0, "r1")),
        'timeline[0].surrender.reservation: expected a reservation that was declared, got "r1"',
    ),
    "priority of an unknown reservation": (
        a_scenario(act(0, "priority", {"reservation": "r1", "priority": 2})),
        'timeline[0].priority.reservation: expected a reservation that was declared, got "r1"',
    ),
    "an outage of an unknown pool": (
        a_scenario(act(0, "outage", {"pool": "mac", "error": "quota", "until": 3})),
        'timeline[0].outage.pool: expected a pool of config, got "mac"',
    ),
    "an outage of an unknown kind": (
        a_scenario(act(0, "outage", {"pool": "linux", "error": "weather", "until": 3})),
        'timeline[0].outage.error: expected one of capacity, quota, throttled, misconfigured, got "weather"',
    ),
    "rules that do not fit": (
        a_scenario(act(0, "rules", {"pools": {"linux": {"max_slots": 1, "min_slots": 2}}})),
        "timeline[0].rules.pools.linux.min_slots: expected at most max_slots (1), got 2",
    ),
    "a restart policy in another case": (
        a_scenario(submit(0, "r1", restart_policy="Never")),
        'timeline[0].submit[0].restart_policy: expected one of never, on_failure (did you mean "never"?), got "Never"',
    ),
    "neither system nor pool": (
        a_scenario({"at": 0, "submit": {"id": "r1"}}),
        "timeline[0].submit.system: expected a system or a pool (one of them), got null",
    ),
    "an id that is empty": (
        a_scenario(submit(0, "r 1")),
        ('timeline[0].submit[0].id: expected a name (letters, digits and ._:@/+-, at most 200 characters), got "r 1"'),
    ),
    "an id of an action that is empty": (
        a_scenario(act(0, "release", "r 1")),
        'timeline[0].release: expected a name (letters, digits and ._:@/+-, at most 200 characters), got "r 1"',
    ),
    "an id that is a number": (a_scenario(act(0, "release", 5)), "timeline[0].release: expected an id, got 5"),
    "not a table": ([], ".: expected a table, got []"),
    "a timeline that is no list": ({"timeline": {}}, "timeline: expected a list, got {}"),
}


@pytest.mark.parametrize("name", LINES)
def test_the_first_fault_is_reported_in_one_line(name: str) -> None:
    document, line = LINES[name]
    with pytest.raises(InvalidInputError) as caught:
        read_scenario(document)
    assert str(caught.value.faults[0]) == line


FILES: dict[str, bytes] = {
    "cut off": b'{"at":',
    "empty": b"",
    "no text": b"\xff{}",
    "TOML in a JSON file": b"until = 5",
    "unclosed brackets": b"[" * 100_000,
    "a key twice": b'{"until": 5, "until": 6}',
    "a key twice, deep inside": b'{"config": {"pools": {"linux": {"max_slots": 1, "max_slots": 1}}}}',
    "a number of thousands of digits": b'{"until": ' + b"9" * 5_000 + b"}",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_json_is_refused_with_its_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(FILES[name])
    with pytest.raises(InvalidInputError) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{path}: expected JSON (or TOML in a .toml file), got ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["one.json", "one.JSON", "one.toml", "ONE.TOML"])
def test_a_file_may_have_a_byte_order_mark_and_an_ending_in_capitals(name: str, tmp_path: Path) -> None:
    text = "until = 5" if name.lower().endswith(".toml") else '{"until": 5}'
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert load_scenario(tmp_path / name).until == 5


def test_of_several_faults_only_the_first_is_reported() -> None:
    """Bad input ends with one line."""
    document = a_scenario(act(0, "outage", {}), pool={"boot_timeout": -1, "max_slot": 3})
    with pytest.raises(InvalidInputError) as caught:
        read_scenario(document)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_name_with_line_ends_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load_scenario(tmp_path / "no\nfile.json")
    assert len(str(caught.value).splitlines()) == 1


ACCEPTED: dict[str, Document] = {
    "a warm pool above the maximum is bounded": with_pool(target_warm_slots=9),
    "durations as texts": with_pool(boot_timeout="15m", idle_scale_down="30s"),
    "a static pool needs no maximum": a_scenario(pools={"hosts": {"system": "x", "provider": "static"}}),
    "unknown ids, where they are no error": a_scenario(
        act(0, "release", "r1"),
        act(0, "cancel", "r1"),
        act(0, "renew", "r1"),
        act(0, "confirm", {"reservation": "r1", "slot": "mac-1"}),
        act(0, "seen", "mac-1"),
    ),
    "POOL-n within the max_slots of a static pool, whatever that is": a_scenario(
        act(0, "cordon", "lab-70000"), pools={"lab": {"system": "x", "provider": "static", "max_slots": 1_000_000_000}}
    ),
    "POOL-n within max_slots of a static pool": a_scenario(
        act(0, "cordon", "lab-2"), pools={"lab": {"system": "x", "provider": "static", "max_slots": 2}}
    ),
    "POOL-n within max_slots": a_scenario(act(0, "cordon", "linux-4")),
    "a slot of a pool that the rules made larger": a_scenario(
        act(0, "rules", {"pools": {"linux": {"max_slots": 9}}}), act(0, "drain", "linux-9")
    ),
    "the top-level tables count as declared together": a_scenario(
        slots=[a_slot("linux-9", "ready", "r1")], reservations=[a_holder("r1")], pool=a_pool()
    ),
    "unknown systems wait": a_scenario(submit(0, "r1", system="mac")),
    "a lease with its level and cost": a_scenario(
        slots=[a_slot("linux-1") | {"leases": [{"reservation": "r1", "level": 2, "cost": [0, 0, 7.5, 0, 0]}]}],
        reservations=[a_holder("r1")],
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_valid_input_is_accepted(name: str) -> None:
    read_scenario(ACCEPTED[name])


def test_names_that_look_like_those_of_instances_are_accepted_where_no_instance_has_them() -> None:
    components = [{"name": "w", "count": 2}, {"name": "w.2"}, {"name": "w.01"}, {"name": "v"}, {"name": "v.0"}]
    read_scenario(a_scenario(submit(0, "r1", components=components)))
