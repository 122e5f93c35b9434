"""A process may be killed at any call of a port, and nothing is lost, launched twice or left running."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from scheduler.model.launch_backoff import Hold
from scheduler.operations.machines.check import recover, sweep
from scheduler.operations.machines.reconcile import reconcile
from scheduler.operations.tick.tick import tick
from tests.operations.harness import TASKS, Harness
from tests.operations.saboteur import Killed, Saboteur
from tests.view.rows import as_in_view

CONFIG = {"pools": {"linux": {"system": "x86_64-linux", "max_slots": 2, "lease_ttl": 0, "idle_scale_down": 10}}}


class Run:
    """One reservation from its submission to the end of its machine; one process is killed on the way."""

    config = CONFIG

    def __init__(self, saboteur: Saboteur) -> None:
        self.harness, self.saboteur = Harness(self.config), saboteur
        self.kills = self.jobs = 0
        self.sabotage()

    def sabotage(self) -> None:
        """Wrap the ports of the current process with the saboteur."""
        ports, wrap = self.harness.ports, self.saboteur.wrap
        ports.store, ports.view_cache = wrap(ports.store, "store"), wrap(ports.view_cache, "view_cache")
        ports.fleet, ports.probe = wrap(ports.fleet, "fleet"), wrap(ports.probe, "probe")
        ports.dispatcher, ports.notifier = wrap(ports.dispatcher, "dispatcher"), wrap(ports.notifier, "notifier")
        ports.lock, ports.meter = wrap(ports.lock, "lock"), wrap(ports.meter, "meter")

    def survive(self, job: Callable[[], object]) -> bool:
        """Run the job and return whether it succeeded; start a new process if the process was killed."""
        self.jobs += 1
        try:
            job()
        except Killed:
            self.kills += 1
            self.harness.restart()
            return False
        return True

    def insist(self, job: Callable[[], object]) -> None:
        """Repeat the request until it is answered, as a client does."""
        while not self.survive(job):
            pass

    def play_tasks(self) -> None:
        """Run the tasks of all messages. A message is lost with the process that took it."""
        while self.harness.mailbox.tasks:
            self.survive(self._play_one)

    def _play_one(self) -> None:
        name, arguments = self.harness.mailbox.tasks.pop(0)
        TASKS[name](self.harness.ports, *arguments)

    def pass_time(self, seconds: float) -> None:
        """Run the periodic jobs for this number of seconds."""
        harness = self.harness
        end = harness.now + seconds
        while harness.now < end:
            harness.now += 5
            self.survive(lambda: tick(harness.ports, harness.leader))
            self.survive(lambda: recover(harness.ports))
            self.survive(lambda: sweep(harness.ports))
            self.survive(lambda: reconcile(harness.ports))
            self.play_tasks()

    def play(self) -> "Run":
        """Submit, wait until it is leased, release, and wait until the machine is terminated."""
        harness = self.harness
        self.insist(lambda: harness.submit("r1", request="submit-r1"))
        self.pass_time(35)
        self.insist(lambda: harness.ask("release", request="release-r1", reservation="r1", token=harness.token()))
        self.pass_time(60)
        return self

    def check_end(self) -> None:
        """Check that there was one machine, one lease and one termination, and that the view equals the database."""
        harness = self.harness
        events = [event.name for event in harness.events]
        assert harness.phase() == "released"
        assert [slot.state for slot in harness.store.find_slots()] == ["empty"] * 2
        assert harness.fleet.running == []
        assert len(harness.fleet.machines) == 1
        assert events.count("reservation_submitted") == 1
        assert events.count("slot_launching") == 1
        assert events.count("reservation_leased") == 1
        assert events.count("slot_terminating") == 1
        view = harness.ports.view_cache.catch_up() or harness.ports.view_cache.load()
        assert view is None or view.slots == {slot.id: slot for slot in as_in_view(harness.store.find_slots())}


class BatchRun(Run):
    """Three reservations, whose machines are launched by one request and ended by another one."""

    config = {"pools": {"linux": {**CONFIG["pools"]["linux"], "max_slots": 3}}}

    def play(self) -> "Run":
        """Submit three reservations, wait until they are leased, release them, and wait until the machines are gone."""
        harness = self.harness
        for name in ("r1", "r2", "r3"):
            self.insist(lambda name=name: harness.submit(name, request=f"submit-{name}"))  # type: ignore[misc]
        self.pass_time(35)
        for name in ("r1", "r2", "r3"):
            fields = {"request": f"release-{name}", "reservation": name}
            self.insist(lambda fields=fields, name=name: harness.ask("release", **fields, token=harness.token(name)))  # type: ignore[misc]
        self.pass_time(60)
        return self

    def check_end(self) -> None:
        """Check that each slot had one machine and each reservation one lease, and that no machine is left."""
        harness = self.harness
        events = [event.name for event in harness.events]
        assert [harness.phase(name) for name in ("r1", "r2", "r3")] == ["released"] * 3
        assert [slot.state for slot in harness.store.find_slots()] == ["empty"] * 3
        assert (harness.fleet.running, len(harness.fleet.machines)) == ([], 3)
        assert len(harness.fleet.answers) == 1
        assert events.count("slot_launching") == events.count("slot_terminating") == 3
        view = harness.ports.view_cache.catch_up() or harness.ports.view_cache.load()
        assert view is None or view.slots == {slot.id: slot for slot in as_in_view(harness.store.find_slots())}


class OrphanRun(Run):
    """Three machines that no row knows: two that name the same empty slot, and a young one of an unknown slot."""

    def play(self) -> "Run":
        """Add the machines and run the periodic jobs until they are terminated."""
        fleet, now = self.harness.fleet, self.harness.now
        fleet.appear("i-lost", "linux-2", launched_at=now - 400)
        fleet.appear("i-other", "linux-2", launched_at=now - 350)
        fleet.appear("i-young", "linux-9", launched_at=now - 280)
        self.pass_time(60)
        return self

    def check_end(self) -> None:
        """Check that one machine was adopted once and all were terminated, and that no back-off is left."""
        harness = self.harness
        events = [event.name for event in harness.events]
        assert [slot.state for slot in harness.store.find_slots()] == ["empty"] * 2
        assert (harness.fleet.running, set(harness.fleet.terminations)) == ([], {"i-lost", "i-other", "i-young"})
        assert (events.count("slot_adopted"), events.count("slot_ready")) == (1, 1)
        assert [row for row in harness.store.read_rows() if isinstance(row, Hold) and row.kind == "strangers"] == []


class StoppedRun(Run):
    """A machine of the stopped tier is launched, stopped, started for a reservation, and ended when another one is in
    the tier.
    """

    config = {
        "pools": {
            "linux": {
                **CONFIG["pools"]["linux"],
                "stopped_slots": 1,
                "offerings": [{"name": "small", "market": "on-demand"}],
            }
        }
    }

    def play(self) -> "Run":
        """Wait until a machine is stopped, then do as with a machine that is launched."""
        self.pass_time(50)
        return super().play()

    def check_end(self) -> None:
        """Check that there were two machines, two stops and one start, and that one stopped machine is left."""
        harness = self.harness
        events = [event.name for event in harness.events]
        assert harness.phase() == "released"
        assert sorted(slot.state for slot in harness.store.find_slots()) == ["empty", "stopped"]
        assert [slot.power for slot in harness.store.find_slots()] == [None, None]
        assert [harness.fleet.machines[name].state for name in harness.fleet.running] == ["stopped"]
        assert len(harness.fleet.machines) == 2
        assert events.count("slot_launching") == events.count("slot_stopped") == 2
        assert events.count("slot_booting") == 3
        assert events.count("reservation_leased") == events.count("slot_terminating") == 1
        view = harness.ports.view_cache.catch_up() or harness.ports.view_cache.load()
        assert view is None or view.slots == {slot.id: slot for slot in as_in_view(harness.store.find_slots())}


@pytest.mark.parametrize("kind", [Run, BatchRun, OrphanRun, StoppedRun])
def test_the_run_ends_as_expected_without_a_kill(kind: type[Run]) -> None:
    run = kind(Saboteur(0, afterwards=False)).play()
    run.check_end()
    assert run.kills == 0


class Call(NamedTuple):
    """The name of a call, and the number of the job that makes it."""

    name: str
    job: int


def list_calls(kind: type[Run] = Run) -> dict[int, Call]:
    """Return number -> call, for the calls at which a kill may make a difference.

    These are the first calls of each method after each new event.
    """
    saboteur = Saboteur(0, afterwards=False)
    run = kind(saboteur)
    found: dict[tuple[str, int], tuple[int, Call]] = {}
    call = saboteur.call

    def note(name: str, act: Callable[[], object]) -> object:
        found.setdefault((name, len(run.harness.events)), (saboteur.calls + 1, Call(name, run.jobs)))
        return call(name, act)

    saboteur.call = note  # type: ignore[method-assign]
    run.play()
    return dict(found.values())


def is_killed_before_the_next(calls: dict[int, Call], at: int) -> bool:
    """Whether a kill before the next call of the same job is tried, which leaves what a kill after this one leaves.

    It does not beside a call of the lock: Python releases the lock on the way out of a job that has taken it.
    """
    this, following = calls[at], calls.get(at + 1)
    is_of_the_lock = any(each and each.name.startswith("lock.") for each in (this, following))
    return following is not None and following.job == this.job and not is_of_the_lock


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize(("kind", "least"), [(Run, 30), (BatchRun, 30), (OrphanRun, 25), (StoppedRun, 30)])
def test_the_run_ends_as_expected_wherever_the_process_is_killed(kind: type[Run], least: int, afterwards: bool) -> None:
    """The process is killed before or after each of these calls took effect."""
    calls = list_calls(kind)
    assert len({each.name for each in calls.values()}) > least
    for at, (name, _) in calls.items():
        if afterwards and is_killed_before_the_next(calls, at):
            continue
        run = kind(Saboteur(at, afterwards=afterwards)).play()
        assert run.kills == 1
        try:
            run.check_end()
        except AssertionError as error:
            raise AssertionError(f"killed at call {at}, {name}: {error}") from error
