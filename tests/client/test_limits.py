"""Limits of cores on a real machine: which processes belong to a lease, and what the system says of them afterwards."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.agent.cpu_limits import Affinity, Cgroups, find_limits
from leasehold.agent.enforcer import UNKNOWN_SECONDS, Enforcer
from leasehold.agent.processes import list_tree, read_notes, write_note
from leasehold.client.models import Hosted
from leasehold.process_identity import find_start
from tests.guarding import Guarded
from tests.system.processes import wait_for

WAITS = ("sleep", "600")
FAMILY = ("sh", "-c", "sleep 600 & wait")
ALLOWED = sorted(os.sched_getaffinity(0))


@pytest.fixture
def family() -> Iterator[int]:
    """A process with a child, both of which wait."""
    process = Guarded(FAMILY)
    try:
        wait_for(lambda: len(list_tree([process.pid])) > 1, "the child")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def held(name: str, cores: float | None, **fields: Any) -> Hosted:
    return Hosted(**{"reservation": name, "component": "main", "token": 1, "cores": cores, **fields})


def cpus(count: int, first: int = 0) -> set[int]:
    """So many of those that this process may use, as far as there are so many."""
    return {ALLOWED[(first + number) % len(ALLOWED)] for number in range(count)}


def test_a_note_lasts_as_long_as_its_process(tmp_path: Path) -> None:
    with Guarded(WAITS) as process:
        write_note(tmp_path, "r1", "main", process.pid)
        [note] = read_notes(tmp_path)
        assert (note.reservation, note.component, note.pid) == ("r1", "main", process.pid)
        assert note.started == find_start(process.pid)
        process.kill()
    assert (read_notes(tmp_path), list(tmp_path.iterdir())) == ([], [])


def test_another_process_that_got_its_id_is_not_taken_for_it(tmp_path: Path) -> None:
    path = write_note(tmp_path, "r1", "main", os.getpid())
    path.write_text(path.read_text(encoding="utf-8").replace(str(find_start(os.getpid())), "1"), encoding="utf-8")
    assert read_notes(tmp_path) == []


def test_what_is_no_note_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "7.json").write_text("{", encoding="utf-8")
    assert (read_notes(tmp_path), read_notes(tmp_path / "none")) == ([], [])


CORES = [
    # cores, those before it, whole cores, from which on
    (1.0, 0.0, 1, 0),
    (1.5, 0.0, 2, 0),
    (0.0, 0.0, 1, 0),
    (1.0, 1.0, 1, 1),
    (1.0000000001, 0.5, 1, 0),
    (64.0, 0.0, 64, 0),
]


@pytest.mark.parametrize(("cores", "before", "count", "first"), CORES)
def test_affinity_is_that_of_the_whole_tree(family: int, cores: float, before: float, count: int, first: int) -> None:
    """Whole cores, rounded up, one at least, as many as there are at most; and all of them again in the end."""
    limits = Affinity()
    limits.apply("r1", list_tree([family]), cores, before)
    assert [os.sched_getaffinity(pid) for pid in list_tree([family])] == [cpus(count, first)] * 2
    limits.lift("r1", list_tree([family]))
    assert [os.sched_getaffinity(pid) for pid in list_tree([family])] == [set(ALLOWED)] * 2


def test_a_process_that_is_gone_is_passed_over() -> None:
    Affinity().apply("r1", [2**22 + 1], 1, 0)


@pytest.fixture
def delegated(tmp_path: Path) -> Path:
    """A folder that looks as one of cgroup v2 does; what is written there is what the kernel would be told."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n", encoding="utf-8")
    return tmp_path


def test_a_group_says_how_much_of_a_tenth_of_a_second_its_processes_may_use(delegated: Path) -> None:
    limits = Cgroups(delegated)
    assert (delegated / "cgroup.subtree_control").read_text(encoding="utf-8") == "+cpu"
    for cores, quota in ((3.5, "350000 100000"), (1 / 3, "33333 100000"), (0, "1000 100000")):
        limits.apply("r1", [71, 72], cores, 0)
        [group] = delegated.glob("leasehold-*")
        assert (group / "cpu.max").read_text(encoding="utf-8") == quota
        assert (group / "cgroup.procs").read_text(encoding="utf-8") == "72"


def test_what_still_runs_in_a_group_that_ends_is_moved_out_of_it(delegated: Path) -> None:
    limits = Cgroups(delegated)
    limits.apply("r1", [71], 1, 0)
    with pytest.raises(OSError, match="not empty"):
        # Here its files are real ones; the kernel's own go with the folder.
        limits.lift("r1", [71])
    assert (delegated / "leasehold-free" / "cgroup.procs").read_text(encoding="utf-8") == "71"
    assert not (delegated / "leasehold-free" / "cpu.max").exists()


def test_a_folder_that_is_no_cgroup_with_cpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="controllers"):
        find_limits(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("memory\n", encoding="utf-8")
    with pytest.raises(OSError, match="no cpu controller"):
        find_limits(tmp_path)


def test_without_a_folder_it_is_affinity_where_the_system_has_it() -> None:
    found = find_limits(None)
    assert found is not None
    assert found.name == "affinity"


class NotedLimits:
    """Limits that are noted alone; `error` is what the system says to them."""

    name = "notes"

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.done: list[tuple[Any, ...]] = []

    def apply(self, lease: str, pids: Iterable[int], cores: float, before: float) -> None:
        if self.error is not None:
            raise self.error
        self.done.append((lease, len(list(pids)), cores, before))

    def lift(self, lease: str, pids: Iterable[int]) -> None:
        self.done.append((lease, len(list(pids)), None))


class Enforced:
    """An enforcer with what it did and told; `now` is its clock."""

    def __init__(self, folder: Path, *, can: bool = True) -> None:
        self.now, self.limits = 100.0, NotedLimits()
        self.told: list[Any] = []
        self.enforcer = Enforcer(folder, self.limits if can else None, self.told.append, lambda: self.now)

    def events(self) -> list[tuple[Any, ...]]:
        told, self.told[:] = list(self.told), []
        return [(each["event"], each["reservation"], each.get("cores", each.get("why"))) for each in told]


def test_each_change_is_applied_and_told_once_and_undone_in_the_end(tmp_path: Path, family: int) -> None:
    write_note(tmp_path, "r1", "main", family)
    made = Enforced(tmp_path)
    alone, shared, other = held("r1", 8.0), held("r1", 3.5), held("r2", 4.5, assigned_at=5.0)
    for leases in ([alone], [alone], [shared, other], [shared, other]):
        made.enforcer.enforce(leases)
    assert made.limits.done == [("r1/main/1", 2, 8.0, 0.0), ("r1/main/1", 2, 3.5, 0.0)]
    assert made.events() == [("limited", "r1", 8.0), ("limited", "r1", 3.5)]
    made.enforcer.enforce([other])
    made.enforcer.lift_all()
    assert made.limits.done[2:] == [("r1/main/1", 2, None)]


def test_of_several_leases_each_knows_how_many_cores_those_before_it_have(tmp_path: Path, family: int) -> None:
    write_note(tmp_path, "r2", "main", family)
    made = Enforced(tmp_path)
    made.enforcer.enforce([held("r2", 4.5, assigned_at=5.0), held("r1", 3.5)])
    assert made.limits.done == [("r2/main/1", 2, 4.5, 3.5)]


def test_a_thorough_look_applies_all_anew(tmp_path: Path, family: int) -> None:
    write_note(tmp_path, "r1", "main", family)
    made = Enforced(tmp_path)
    for _ in range(2):
        made.enforcer.enforce([held("r1", 2.0)], is_thorough=True)
    assert (len(made.limits.done), made.events()) == (2, [("limited", "r1", 2.0)])


def test_where_it_cannot_it_says_so_once_and_tries_again(tmp_path: Path, family: int) -> None:
    write_note(tmp_path, "r1", "main", family)
    made = Enforced(tmp_path)
    made.limits.error = PermissionError(1, "Operation not permitted")
    for _ in range(2):
        made.enforcer.enforce([held("r1", 2.0)])
    assert made.events() == [("unlimited", "r1", "notes: [Errno 1] Operation not permitted")]
    made.limits.error = None
    made.enforcer.enforce([held("r1", 2.0)])
    assert made.events() == [("limited", "r1", 2.0)]


def test_a_system_that_knows_no_limits_says_so(tmp_path: Path, family: int) -> None:
    write_note(tmp_path, "r1", "main", family)
    made = Enforced(tmp_path, can=False)
    made.enforcer.enforce([held("r1", 2.0)])
    assert made.events() == [("unlimited", "r1", "this system has neither cgroups nor affinity")]


def test_a_lease_of_which_no_process_is_known_is_told_after_a_while(tmp_path: Path) -> None:
    """Its holder may be about to start one; a lease where nobody counts cpus needs none."""
    made = Enforced(tmp_path)
    leases = [held("r1", 2.0), held("r2", None)]
    made.enforcer.enforce(leases)
    made.now += UNKNOWN_SECONDS - 0.1
    made.enforcer.enforce(leases)
    assert made.events() == []
    made.now += 0.1
    for _ in range(2):
        made.enforcer.enforce(leases)
    assert made.events() == [("unlimited", "r1", "no process of it is known here: see leasehold host exec")]
