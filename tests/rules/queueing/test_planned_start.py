"""Planned starts of protected reservations (`guard` `shadow`): what may run before them, and what is kept."""

from collections.abc import Iterable
from typing import Any

import pytest

from scheduler.simulation.runner import play
from scheduler.simulation.scenario import read_scenario

Line = dict[str, Any]
LATE_WAIT = 10_000.0
"""The time of the tick, at which all that was submitted at 0 has waited for longer than the guard's hour."""


def a_host(name: str, *leased: str, cpus: float = 1) -> Line:
    return {
        "id": name,
        "pool": "lab",
        "resources": {"cpus": cpus},
        "leases": [{"reservation": each} for each in leased],
    }


def running(name: str, since: float, cpus: float = 1, **fields: Any) -> Line:
    asked = {"id": name, "system": "x", "resources": {"cpus": cpus}, "tags": {"job": name}}
    return {**asked, "phase": "leased", "leased_at": since, "confirmed_at": since, **fields}


def waiting(name: str, cpus: float = 1, count: int = 1, **fields: Any) -> Line:
    components = [{"name": "main", "count": count, "resources": {"cpus": cpus}}]
    return {"id": name, "system": "x", "components": components, "tags": {"job": name}, **fields}


def known(name: str, *seconds: float) -> Line:
    """The class of a job, with five run times."""
    return {"job": name, "system": "x", "seconds": list(seconds) if len(seconds) > 1 else [*seconds] * 5}


class Played:
    """One tick at LATE_WAIT, or a play up to `until`."""

    def __init__(
        self,
        hosts: Iterable[Line],
        reservations: Iterable[Line],
        run_times: Iterable[Line],
        *late: Line,
        scheduler: Line | None = None,
        timeline: Iterable[Line] = (),
        most_uses: int = 0,
    ) -> None:
        pool = {"system": "x", "provider": "static", "offline_timeout": 1e9, "lease_ttl": 0, "max_uses": most_uses}
        submits = [{"at": LATE_WAIT, "submit": each} for each in late]
        lines = play(
            read_scenario(
                {
                    "config": {"scheduler": scheduler or {}, "pools": {"lab": {**pool, "max_leases_per_slot": 100}}},
                    "slots": list(hosts),
                    "reservations": list(reservations),
                    "run_times": list(run_times),
                    "timeline": [*submits, {"at": LATE_WAIT, "tick": True}, *timeline],
                    "wakes": bool(timeline),
                }
            )
        )
        found = list(lines)
        self.state = found[-1]["state"]
        ticks = [line for line in found if "tick" in line]
        self.decisions = [(line["at"], each) for line in ticks for each in line["decisions"]]
        self.codes = {each["reservation"]: each["code"] for each in ticks[-1]["waiting"]}
        self.leases = {
            each["reservation"]: [lease["slot"] for lease in each["leases"]]
            for _, each in self.decisions
            if each["do"] == "assign"
        }
        self.starts = {each["reservation"]: each["at"] for _, each in self.decisions if each["do"] == "plan_start"}


HOSTS = [a_host("lab-1", "old"), a_host("lab-2")]
OLD = running("old", LATE_WAIT - 1000)
WIDE = waiting("wide", count=2)
"""It needs both hosts, and waits for the end of `old`, which is expected 4,000 s after the tick."""
TIMES = [known("old", 5000), known("short", 3999), known("long", 4001)]


def test_work_that_ends_before_the_planned_start_may_use_planned_slots() -> None:
    late = [waiting("unknown"), waiting("long"), waiting("short")]
    played = Played(HOSTS, [OLD, WIDE], TIMES, *late)
    assert (played.starts, played.leases) == ({"wide": LATE_WAIT + 4000}, {"short": ["lab-2"]})
    assert played.codes == {"wide": "no_capacity", "unknown": "behind_queue", "long": "behind_queue"}


@pytest.mark.parametrize(
    ("times", "scheduler"),
    [
        (TIMES, {"guard": "strict"}),
        ([], {}),  # nothing is known
        (TIMES[1:], {}),  # nothing is known of the lease that is awaited
        ([known("old", 900, 900, 900, 900, 999), *TIMES[1:]], {}),  # it has outlived what is known
        ([known("old", 5000, 5000, 5000, 5000), *TIMES[1:]], {}),  # too few run times
    ],
)
def test_otherwise_all_slots_are_kept(times: list[Line], scheduler: Line) -> None:
    played = Played(HOSTS, [OLD, WIDE], times, waiting("short"), scheduler=scheduler)
    assert (played.starts, played.leases, played.codes["short"]) == ({}, {}, "behind_queue")


@pytest.mark.parametrize(
    ("wait", "planned", "is_kept"),
    [
        (LATE_WAIT, LATE_WAIT - 2500, False),  # exactly 25 % of its wait: not yet late
        (LATE_WAIT, LATE_WAIT - 2501, True),
        (4000.0, LATE_WAIT - 1001, True),
        (3601.0, LATE_WAIT - 900, False),
        (2000.0, LATE_WAIT - 600, False),  # ten minutes at least
        (2000.0, LATE_WAIT - 601, True),
    ],
)
def test_all_slots_are_kept_for_a_reservation_whose_first_planned_start_is_long_over(
    wait: float, planned: float, is_kept: bool
) -> None:
    wide = {**WIDE, "created_at": LATE_WAIT - wait, "planned_start": planned}
    played = Played(HOSTS, [OLD, wide], TIMES, waiting("short"), scheduler={"starvation_guard": 60})
    assert (played.starts, "short" in played.leases) == ({}, not is_kept)


def test_the_first_planned_start_is_noted_once() -> None:
    timeline: list[Line] = [
        {"at": LATE_WAIT + 10, "tick": True},
        {"at": LATE_WAIT + 20, "release": "old"},
        {"at": LATE_WAIT + 20, "tick": True},
    ]
    played = Played(HOSTS, [OLD, WIDE], TIMES, timeline=timeline)
    assert [each["do"] for _, each in played.decisions] == ["plan_start", "assign"]
    assert played.leases == {"wide": ["lab-1", "lab-2"]}


def test_a_reservation_that_returns_to_the_queue_gets_a_new_first_planned_start() -> None:
    timeline: list[Line] = [
        {"at": LATE_WAIT + 20, "release": "old"},
        {"at": LATE_WAIT + 20, "tick": True},
        {"at": LATE_WAIT + 30, "suspend": "wide"},
        {"at": LATE_WAIT + 30, "tick": True},
    ]
    played = Played(HOSTS, [OLD, WIDE], TIMES, timeline=timeline)
    [wide] = [each for each in played.state["reservations"] if each["id"] == "wide"]
    assert (wide["phase"], wide.get("planned_start")) == ("pending", None)


def test_work_that_leaves_room_for_the_reservation_may_run_beside_it() -> None:
    """At the planned start 4 of 5 cpus are free, and 3 of them are planned."""
    hosts = [a_host("lab-1", "old", "stays", cpus=5)]
    rows = [OLD | {"resources": {"cpus": 2}}, running("stays", LATE_WAIT - 10), waiting("big", cpus=3)]
    times = [known("old", 5000), known("stays", 90_000)]
    played = Played(hosts, rows, times, waiting("first"), waiting("second"), waiting("third"))
    assert (played.starts, played.leases) == ({"big": LATE_WAIT + 4000}, {"first": ["lab-1"]})
    assert played.codes == {"big": "no_capacity", "second": "behind_queue", "third": "behind_queue"}


def test_what_is_lent_and_what_runs_beside_never_exceed_what_is_free_now() -> None:
    hosts = [a_host("lab-1", "old", cpus=5)]
    rows = [OLD | {"resources": {"cpus": 2}}, waiting("big", cpus=4)]
    late = [waiting("short", cpus=2), waiting("long"), waiting("longer")]
    played = Played(hosts, rows, TIMES, *late)
    assert played.leases == {"short": ["lab-1"], "long": ["lab-1"]}
    played = Played(hosts, rows, TIMES, *late[1:], waiting("short", cpus=3))
    assert played.leases == {"long": ["lab-1"]}


def test_what_was_lent_is_not_free_beside_the_planned_start_either() -> None:
    """Beside `wide`, two cpus of lab-1 are left, of which `short` takes one: of `pair`, one instance fits there."""
    hosts = [a_host("lab-1", cpus=5), a_host("lab-2", "old", cpus=4)]
    rows = [running("old", LATE_WAIT - 1000, cpus=3), waiting("wide", cpus=3, count=2)]
    played = Played(hosts, rows, TIMES, waiting("short", cpus=4), waiting("pair", count=2))
    assert played.leases == {"short": ["lab-1"], "pair": ["lab-1", "lab-2"]}


def test_several_instances_may_be_planned_on_one_slot() -> None:
    old = running("old", LATE_WAIT - 1000, cpus=2)
    played = Played([a_host("lab-1", "old", cpus=2)], [old, WIDE], TIMES)
    assert played.starts == {"wide": LATE_WAIT + 4000}


def test_an_idle_slot_with_less_than_one_cpu_is_planned() -> None:
    hosts = [a_host("lab-1", "old", cpus=0.5), a_host("lab-2", cpus=0.5)]
    played = Played(hosts, [running("old", LATE_WAIT - 1000, cpus=0.5), waiting("wide", cpus=0.5, count=2)], TIMES)
    assert played.starts == {"wide": LATE_WAIT + 4000}


def test_a_gang_may_use_lent_slots_together_with_others() -> None:
    """`wide` could not use lab-3, which is not kept."""
    hosts = [*({**each, "labels": {"zone": "1"}} for each in HOSTS), a_host("lab-3")]
    rows = [OLD, WIDE | {"labels": {"zone": "1"}}]
    played = Played(hosts, rows, TIMES, waiting("short", count=2))
    assert played.leases == {"short": ["lab-3", "lab-2"]}
    played = Played(hosts, rows, TIMES, waiting("long", count=2))
    assert (played.leases, played.codes["long"]) == ({}, "behind_queue")


def test_the_slots_that_are_free_last_are_planned() -> None:
    """Of three slots that are free by the start of a reservation that needs two, the idle one stays with other work."""
    hosts = [a_host("lab-1"), a_host("lab-2", "old"), a_host("lab-3", "older")]
    rows = [OLD, running("older", LATE_WAIT - 1000), WIDE]
    times = [known("old", 5000), known("older", 5000)]
    played = Played(hosts, rows, times, waiting("unknown"))
    # With lab-1 the start would be no earlier: one of the others is needed.
    assert (played.starts, played.leases) == ({"wide": LATE_WAIT + 4000}, {"unknown": ["lab-1"]})


@pytest.mark.parametrize(("depth", "leased"), [(1, {"unknown"}), (2, set[str]())])
def test_a_slot_is_planned_for_as_many_reservations_as_the_depth_is(depth: int, leased: set[str]) -> None:
    """`first` is planned on lab-1. The second one is planned on the other slots only with a depth of 2."""
    hosts = [a_host("lab-1", "old", cpus=2), a_host("lab-2", "older", cpus=2)]
    rows = [OLD, running("older", LATE_WAIT - 1000), waiting("first", cpus=2), waiting("second", cpus=2)]
    times = [known("old", 5000), known("older", 6000)]
    played = Played(hosts, rows, times, waiting("unknown"), scheduler={"guard_depth": depth})
    assert played.leases.keys() == leased
    assert played.starts == {"first": LATE_WAIT + 4000} | ({"second": LATE_WAIT + 5000} if depth == 2 else {})


def test_a_lease_that_is_revoked_ends_with_its_grace() -> None:
    ending = OLD | {"phase": "revoking", "revoke_reason": "preempted", "revoke_by": LATE_WAIT + 30}
    played = Played(HOSTS, [ending, WIDE], [known("short", 29), known("long", 31)], waiting("long"), waiting("short"))
    assert (played.starts, played.leases) == ({"wide": LATE_WAIT + 30}, {"short": ["lab-2"]})


def test_a_tick_is_due_when_a_planned_start_has_come() -> None:
    """`old` outlives 5,000 s, so it is expected to end after 9,000 s, and there is time for `long` then."""
    times = [known("old", *[5000] * 20, 9000), known("long", 4000)]
    late = {"at": LATE_WAIT + 1, "submit": waiting("long")}
    ticks = [{"at": LATE_WAIT + each, "tick": True} for each in (1, 5000)]
    played = Played(HOSTS, [OLD, WIDE], times, timeline=[late, *ticks])
    assert [(at, each["do"], each["reservation"]) for at, each in played.decisions] == [
        (LATE_WAIT, "plan_start", "wide"),
        (LATE_WAIT + 4000, "assign", "long"),
    ]


def test_what_a_request_states_counts_for_it_and_for_its_lease() -> None:
    stated = OLD | {"expected_runtime": 5000}
    short = waiting("short", expected_runtime=3999)
    played = Played(HOSTS, [stated, WIDE], [known("other", 1)], waiting("long"), short)
    assert (played.starts, played.leases) == ({"wide": LATE_WAIT + 4000}, {"short": ["lab-2"]})


@pytest.mark.parametrize(("most", "count"), [(0, 4), (5, 4), (4, 3), (3, 2), (2, 1)])
def test_work_beside_a_planned_start_leaves_the_uses_of_the_machine_that_it_needs(most: int, count: int) -> None:
    """lab-2 has five cores, of which an instance of `wide` needs three; the other one gets lab-1 when `old` ends."""
    hosts = [a_host("lab-1", "old", cpus=3), a_host("lab-2", cpus=5)]
    reservations = [running("old", LATE_WAIT - 1000, 3), waiting("wide", 3, 2)]
    late = [waiting(f"unknown{number}", 0.5) for number in range(5)]
    played = Played(hosts, reservations, [known("old", 5000)], *late, most_uses=most)
    assert played.leases == {f"unknown{number}": ["lab-2"] for number in range(count)}
