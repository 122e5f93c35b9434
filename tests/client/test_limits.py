"""CPU limits on a real machine: the processes of a lease, and their limits as the operating system reports them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.agent.enforcer import (
    LOOK_SECONDS,
    UNKNOWN_SECONDS,
    Affinity,
    Cgroups,
    Enforcer,
    find_limits,
    list_tree,
    read_notes,
    write_note,
)
from leasehold.client.models import Hosted
from leasehold.process_identity import find_start
from testbed.guarding import Guarded
from testbed.processes import wait_for

WAITS = ("sleep", "600")
FAMILY = ("sh", "-c", "sleep 600 & wait")
ALLOWED = sorted(os.sched_getaffinity(0))


@pytest.fixture
def family() -> Iterator[int]:
    """A process with one child; both sleep."""
    process = Guarded(FAMILY)
    try:
        wait_for(lambda: len(list_tree([process.pid])) > 1, "the child")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def a_hosted(name: str, cores: float | None, **fields: Any) -> Hosted:
    return Hosted(**{"reservation": name, "component": "main", "token": 1, "cores": cores, **fields})


def cpus(count: int, first: int = 0) -> set[int]:
    """Return `count` CPUs that this process may use, from number `first` on, or all if there are fewer."""
    return {ALLOWED[(first + number) % len(ALLOWED)] for number in range(count)}


def test_a_note_lasts_as_long_as_its_process(tmp_path: Path) -> None:
    with Guarded(WAITS) as process:
        write_note(tmp_path, "r1", "main", process.pid)
        [note] = read_notes(tmp_path)
        assert (note.reservation, note.component, note.pid) == ("r1", "main", process.pid)
        assert note.started == find_start(process.pid)
        process.kill()
    assert (read_notes(tmp_path), list(tmp_path.iterdir())) == ([], [])


def test_a_note_of_another_process_with_the_same_pid_is_ignored(tmp_path: Path) -> None:
    path = write_note(tmp_path, "r1", "main", os.getpid())
    path.write_text(path.read_text(encoding="utf-8").replace(str(find_start(os.getpid())), "1"), encoding="utf-8")
    assert read_notes(tmp_path) == []


def test_a_file_that_is_not_a_note_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "7.json").write_text("{", encoding="utf-8")
    assert (read_notes(tmp_path), read_notes(tmp_path / "none")) == ([], [])


CORES = [
    # cores, cores of earlier leases, CPUs, first CPU
    (1.0, 0.0, 1, 0),
    (1.5, 0.0, 2, 0),
    (0.0, 0.0, 1, 0),
    (1.0, 1.0, 1, 1),
    (1.0000000001, 0.5, 1, 0),
    (64.0, 0.0, 64, 0),
]


@pytest.mark.parametrize(("cores", "before", "count", "first"), CORES)
def test_affinity_holds_for_the_whole_process_tree(
    family: int, cores: float, before: float, count: int, first: int
) -> None:
    """The limit is a number of whole CPUs: rounded up, at least one, at most all. `lift` allows all CPUs again."""
    limits = Affinity()
    limits.apply("r1", list_tree([family]), cores, before)
    assert [os.sched_getaffinity(pid) for pid in list_tree([family])] == [cpus(count, first)] * 2
    limits.lift("r1", list_tree([family]))
    assert [os.sched_getaffinity(pid) for pid in list_tree([family])] == [set(ALLOWED)] * 2


def test_a_process_that_has_ended_is_ignored() -> None:
    Affinity().apply("r1", [2**22 + 1], 1, 0)


@pytest.fixture
def delegated(tmp_path: Path) -> Path:
    """A folder with the files of cgroup v2; a test reads from it what the agent would write to the kernel."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n", encoding="utf-8")
    return tmp_path


def test_a_cgroup_limits_the_cpu_time_of_its_processes_in_each_tenth_of_a_second(delegated: Path) -> None:
    limits = Cgroups(delegated)
    assert (delegated / "cgroup.subtree_control").read_text(encoding="utf-8") == "+cpu +memory"
    for cores, quota in ((3.5, "350000 100000"), (1 / 3, "33333 100000"), (0, "1000 100000")):
        limits.apply("r1", [71, 72], cores, 0)
        [group] = delegated.glob("leasehold-*")
        assert (group / "cpu.max").read_text(encoding="utf-8") == quota
        assert (group / "held" / "cgroup.procs").read_text(encoding="utf-8") == "72"


def test_processes_that_still_run_are_moved_out_of_a_cgroup_before_it_is_removed(delegated: Path) -> None:
    limits = Cgroups(delegated)
    limits.apply("r1", [71], 1, 0)
    with pytest.raises(OSError, match="not empty"):
        # These are real files; in a real cgroup they disappear with the folder.
        limits.lift("r1", [71])
    assert (delegated / "leasehold-free" / "cgroup.procs").read_text(encoding="utf-8") == "71"
    assert not (delegated / "leasehold-free" / "cpu.max").exists()


def test_a_folder_without_a_cpu_controller_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="controllers"):
        find_limits(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("memory\n", encoding="utf-8")
    with pytest.raises(OSError, match="no cpu controller"):
        find_limits(tmp_path)


def test_without_a_cgroup_folder_the_limits_are_affinity() -> None:
    found = find_limits(None)
    assert found is not None
    assert found.name == "affinity"


class RecordedLimits:
    """Limits that are only recorded; `error` is raised instead, like an error of the operating system."""

    name = "notes"

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.calls: list[tuple[Any, ...]] = []

    def apply(self, lease: str, pids: Iterable[int], cores: float, before: float) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append((lease, len(list(pids)), cores, before))

    def lift(self, lease: str, pids: Iterable[int]) -> None:
        self.calls.append((lease, len(list(pids)), None))


class Enforced:
    """An enforcer with its recorded limits and events; `now` is its clock."""

    def __init__(self, folder: Path, *, has_limits: bool = True) -> None:
        self.now, self.limits = 100.0, RecordedLimits()
        self._reported: list[Any] = []
        self.enforcer = Enforcer(folder, self.limits if has_limits else None, self._reported.append, lambda: self.now)

    def events(self) -> list[tuple[Any, ...]]:
        """Return the events since the last call as (event, reservation, cores or reason)."""
        reported, self._reported[:] = list(self._reported), []
        return [(each["event"], each["reservation"], each.get("cores", each.get("why"))) for each in reported]


def test_each_change_is_applied_and_reported_once_and_lifted_when_the_lease_ends(tmp_path: Path, family: int) -> None:
    write_note(tmp_path, "r1", "main", family)
    made = Enforced(tmp_path)
    alone, shared, other = a_hosted("r1", 8.0), a_hosted("r1", 3.5), a_hosted("r2", 4.5, assigned_at=5.0)
    for leases in ([alone], [alone], [shared, other], [shared, other]):
        made.enforcer.enforce(leases)
    assert made.limits.calls == [("r1/main/1", 2, 8.0, 0.0), ("r1/main/1", 2, 3.5, 0.0)]
    assert made.events() == [("limited", "r1", 8.0), ("limited", "r1", 3.5)]
    made.enforcer.enforce([other])
    made.enforcer.lift_all()
    assert made.limits.calls[2:] == [("r1/main/1", 2, None)]


def test_each_lease_gets_the_number_of_cores_of_earlier_leases(tmp_path: Path, family: int) -> None:
    write_note(tmp_path, "r2", "main", family)
    made = Enforced(tmp_path)
    made.enforcer.enforce([a_hosted("r2", 4.5, assigned_at=5.0), a_hosted("r1", 3.5)])
    assert made.limits.calls == [("r2/main/1", 2, 4.5, 3.5)]


def test_a_thorough_run_applies_all_limits_again(tmp_path: Path, family: int) -> None:
    write_note(tmp_path, "r1", "main", family)
    made = Enforced(tmp_path)
    for _ in range(2):
        made.enforcer.enforce([a_hosted("r1", 2.0)], is_thorough=True)
    assert (len(made.limits.calls), made.events()) == (2, [("limited", "r1", 2.0)])


def test_a_watched_lease_is_limited_when_its_process_has_a_note(tmp_path: Path, family: int) -> None:
    made, leases = Enforced(tmp_path), [a_hosted("r1", 2.0)]
    made.enforcer.enforce(leases)
    write_note(tmp_path, "r1", "main", family)
    made.enforcer.watch(leases)
    assert made.limits.calls == [("r1/main/1", 2, 2.0, 0.0)]


def test_a_watch_reads_notes_again_after_a_change_of_their_folder_or_some_seconds(tmp_path: Path, family: int) -> None:
    folder = tmp_path / "notes"
    note, other = write_note(folder, "r1", "main", family), write_note(tmp_path / "other", "r1", "main", os.getpid())
    made, leases = Enforced(folder), [a_hosted("r1", 2.0)]
    made.enforcer.watch(leases)
    note.write_bytes(other.read_bytes())
    made.enforcer.watch(leases)
    assert len(made.limits.calls) == 1
    made.now += LOOK_SECONDS
    made.enforcer.watch(leases)
    assert len(made.limits.calls) == 2


def test_a_failure_to_limit_is_reported_once_and_retried(tmp_path: Path, family: int) -> None:
    write_note(tmp_path, "r1", "main", family)
    made = Enforced(tmp_path)
    made.limits.error = PermissionError(1, "Operation not permitted")
    for _ in range(2):
        made.enforcer.enforce([a_hosted("r1", 2.0)])
    why = "the system refused the limit by notes: [Errno 1] Operation not permitted"
    assert made.events() == [("unlimited", "r1", why)]
    made.limits.error = None
    made.enforcer.enforce([a_hosted("r1", 2.0)])
    assert made.events() == [("limited", "r1", 2.0)]


def test_a_system_without_limits_is_reported(tmp_path: Path, family: int) -> None:
    write_note(tmp_path, "r1", "main", family)
    made = Enforced(tmp_path, has_limits=False)
    made.enforcer.enforce([a_hosted("r1", 2.0)])
    assert made.events() == [("unlimited", "r1", "this system has neither cgroups nor affinity")]


def test_a_lease_without_a_known_process_is_reported_after_a_while(tmp_path: Path) -> None:
    """The holder may be about to start one. A lease without a limit of cores needs no process."""
    made = Enforced(tmp_path)
    leases = [a_hosted("r1", 2.0), a_hosted("r2", None)]
    made.enforcer.enforce(leases)
    made.now += UNKNOWN_SECONDS - 0.1
    made.enforcer.enforce(leases)
    assert made.events() == []
    made.now += 0.1
    for _ in range(2):
        made.enforcer.enforce(leases)
    why = "no process of this lease is known here: start its processes with `leasehold host exec`"
    assert made.events() == [("unlimited", "r1", why)]
