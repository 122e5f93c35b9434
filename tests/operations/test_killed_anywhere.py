"""Any process may die between any two lines, and still nothing is lost, launched twice or leaked."""

from collections.abc import Callable

import pytest

from scheduler.model.launch_backoff import Hold
from scheduler.operations.machines.check import recover, sweep
from scheduler.operations.machines.reconcile import reconcile
from scheduler.operations.tick.tick import tick
from tests.operations.harness import TASKS, Harness, Killed, Saboteur

CONFIG = {"pools": {"linux": {"system": "x86_64-linux", "max_slots": 2, "lease_ttl": 0, "idle_scale_down": 10}}}


class Story:
    """One reservation from its submission to the end of its machine, with deaths of processes on the way."""

    def __init__(self, saboteur: Saboteur) -> None:
        self.harness, self.saboteur = Harness(CONFIG), saboteur
        self.deaths = 0
        self.sabotage()

    def sabotage(self) -> None:
        """Let the ports of the present process be counted."""
        ports, wrap = self.harness.ports, self.saboteur.wrap
        ports.store, ports.view_cache = wrap(ports.store, "store"), wrap(ports.view_cache, "board")
        ports.fleet, ports.probe = wrap(ports.fleet, "fleet"), wrap(ports.probe, "probe")
        ports.dispatcher, ports.notifier = wrap(ports.dispatcher, "dispatcher"), wrap(ports.notifier, "bell")
        ports.lock, ports.meter = wrap(ports.lock, "lock"), wrap(ports.meter, "meter")

    def survive(self, job: Callable[[], object]) -> bool:
        """Do it; if the process dies of it, start another. Whether it went well."""
        try:
            job()
        except Killed:
            self.deaths += 1
            self.harness.restart()
            return False
        return True

    def insist(self, job: Callable[[], object]) -> None:
        """A client sends its request again until it has the answer."""
        while not self.survive(job):
            pass

    def play_tasks(self) -> None:
        """A message is gone with the process that took it."""
        while self.harness.mailbox.tasks:
            self.survive(self._play_one)

    def _play_one(self) -> None:
        name, arguments = self.harness.mailbox.tasks.pop(0)
        TASKS[name](self.harness.ports, *arguments)

    def pass_time(self, seconds: float) -> None:
        """Beat goes on."""
        harness = self.harness
        end = harness.now + seconds
        while harness.now < end:
            harness.now += 5
            self.survive(lambda: tick(harness.ports, harness.leader))
            self.survive(lambda: recover(harness.ports))
            self.survive(lambda: sweep(harness.ports))
            self.survive(lambda: reconcile(harness.ports))
            self.play_tasks()

    def tell(self) -> "Story":
        """Submit, wait until it is leased, release, wait until the machine is gone."""
        harness = self.harness
        self.insist(lambda: harness.submit("r1", request="submit-r1"))
        self.pass_time(35)
        self.insist(lambda: harness.ask("release", request="release-r1", reservation="r1", token=harness.token()))
        self.pass_time(60)
        return self

    def ends_well(self) -> None:
        """One machine, one lease, one termination; nothing is left, and the view equals SQL."""
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
        assert view is None or view.slots == {slot.id: slot for slot in harness.store.find_slots()}


class OrphanStory(Story):
    """Three machines that no row knows: one for an empty slot, one more for it, and a young one of no slot."""

    def tell(self) -> "Story":
        """They are there; beat goes on until they are not."""
        fleet, now = self.harness.fleet, self.harness.now
        fleet.appear("i-lost", "linux-2", launched_at=now - 400)
        fleet.appear("i-other", "linux-2", launched_at=now - 350)
        fleet.appear("i-young", "linux-9", launched_at=now - 280)
        self.pass_time(60)
        return self

    def ends_well(self) -> None:
        """Adopted once, served, idle, gone; the others ended; and nothing of it holds launches back."""
        harness = self.harness
        events = [event.name for event in harness.events]
        assert [slot.state for slot in harness.store.find_slots()] == ["empty"] * 2
        assert (harness.fleet.running, set(harness.fleet.terminations)) == ([], {"i-lost", "i-other", "i-young"})
        assert (events.count("slot_adopted"), events.count("slot_ready")) == (1, 1)
        assert [row for row in harness.store.read_rows() if isinstance(row, Hold) and row.kind == "strangers"] == []


@pytest.mark.parametrize("kind", [Story, OrphanStory])
def test_the_story_ends_well_when_no_process_dies(kind: type[Story]) -> None:
    story = kind(Saboteur(0, afterwards=False)).tell()
    story.ends_well()
    assert story.deaths == 0


def list_calls(kind: type[Story] = Story) -> dict[int, str]:
    """The calls at which dying may make a difference: the first of each kind after each change of state."""
    saboteur = Saboteur(0, afterwards=False)
    story = kind(saboteur)
    found: dict[tuple[str, int], int] = {}
    call = saboteur.call

    def note(name: str, act: Callable[[], object]) -> object:
        found.setdefault((name, len(story.harness.events)), saboteur.calls + 1)
        return call(name, act)

    saboteur.call = note  # type: ignore[method-assign]
    story.tell()
    return {at: name for (name, _), at in found.items()}


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize(("kind", "least"), [(Story, 30), (OrphanStory, 25)])
def test_the_story_ends_well_wherever_the_process_dies(kind: type[Story], least: int, afterwards: bool) -> None:
    """At every call of every port, before it took effect and after."""
    calls = list_calls(kind)
    assert len(set(calls.values())) > least
    for at, name in calls.items():
        story = kind(Saboteur(at, afterwards=afterwards)).tell()
        assert story.deaths == 1
        try:
            story.ends_well()
        except AssertionError as error:
            raise AssertionError(f"killed at call {at}, {name}: {error}") from error
