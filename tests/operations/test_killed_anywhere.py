"""Any process may die between any two lines, and still nothing is lost, launched twice or leaked."""

from collections.abc import Callable

import pytest

from scheduler.operations.recover import recover, sweep
from scheduler.operations.tick import tick
from tests.operations.rig import TASKS, Killed, Rig, Saboteur

CONFIG = {"pools": {"linux": {"system": "x86_64-linux", "max_slots": 2, "lease_ttl": 0, "idle_scale_down": 10}}}


class Story:
    """One reservation from its submission to the end of its machine, told with deaths on the way."""

    def __init__(self, saboteur: Saboteur) -> None:
        self.rig, self.saboteur = Rig(CONFIG), saboteur
        self.deaths = 0
        self.sabotage()

    def sabotage(self) -> None:
        """Let the ports of the present process be counted."""
        engine, wrap = self.rig.engine, self.saboteur.wrap
        engine.store, engine.board = wrap(engine.store, "store"), wrap(engine.board, "board")
        engine.fleet, engine.probe = wrap(engine.fleet, "fleet"), wrap(engine.probe, "probe")
        engine.dispatcher, engine.bell = wrap(engine.dispatcher, "dispatcher"), wrap(engine.bell, "bell")
        engine.lock, engine.meter = wrap(engine.lock, "lock"), wrap(engine.meter, "meter")

    def survive(self, job: Callable[[], object]) -> bool:
        """Do it; if the process dies of it, start another. Whether it went well."""
        try:
            job()
        except Killed:
            self.deaths += 1
            self.rig.restart()
            return False
        return True

    def insist(self, job: Callable[[], object]) -> None:
        """A client sends its request again until it has the answer."""
        while not self.survive(job):
            pass

    def play_tasks(self) -> None:
        """A message is gone with the process that took it."""
        while self.rig.mailbox.tasks:
            self.survive(self._play_one)

    def _play_one(self) -> None:
        name, arguments = self.rig.mailbox.tasks.pop(0)
        TASKS[name](self.rig.engine, *arguments)

    def pass_time(self, seconds: float) -> None:
        """Beat goes on."""
        rig = self.rig
        end = rig.now + seconds
        while rig.now < end:
            rig.now += 5
            self.survive(lambda: tick(rig.engine, rig.leader))
            self.survive(lambda: recover(rig.engine))
            self.survive(lambda: sweep(rig.engine))
            self.play_tasks()

    def tell(self) -> "Story":
        """Submit, wait until it is leased, release, wait until the machine is gone."""
        rig = self.rig
        self.insist(lambda: rig.submit("r1", request="submit-r1"))
        self.pass_time(35)
        self.insist(lambda: rig.ask("release", request="release-r1", reservation="r1", token=rig.token()))
        self.pass_time(60)
        return self


def ends_well(story: Story) -> None:
    rig = story.rig
    events = [event.name for event in rig.store.events]
    assert rig.phase() == "released"
    assert [slot.state for slot in rig.store.find_slots()] == ["empty"] * 2
    assert rig.fleet.running == []
    assert len(rig.fleet.machines) == 1
    assert events.count("reservation_submitted") == 1
    assert events.count("slot_launching") == 1
    assert events.count("reservation_leased") == 1
    assert events.count("slot_terminating") == 1
    view = rig.engine.board.catch_up() or rig.engine.board.load()
    assert view is None or view.slots == {slot.id: slot for slot in rig.store.find_slots()}


def test_the_story_ends_well_when_nobody_dies() -> None:
    story = Story(Saboteur(0, afterwards=False)).tell()
    ends_well(story)
    assert story.deaths == 0


def list_calls() -> dict[int, str]:
    """The calls at which dying may make a difference: the first of each kind after each change of state."""
    saboteur = Saboteur(0, afterwards=False)
    story = Story(saboteur)
    found: dict[tuple[str, int], int] = {}
    call = saboteur.call

    def note(name: str, act: Callable[[], object]) -> object:
        found.setdefault((name, len(story.rig.store.events)), saboteur.calls + 1)
        return call(name, act)

    saboteur.call = note  # type: ignore[method-assign]
    story.tell()
    return {at: name for (name, _), at in found.items()}


@pytest.mark.parametrize("afterwards", [False, True])
def test_the_story_ends_well_wherever_the_process_dies(afterwards: bool) -> None:
    """At every call of every port, before it took effect and after."""
    calls = list_calls()
    assert len(set(calls.values())) > 30
    for at, name in calls.items():
        story = Story(Saboteur(at, afterwards=afterwards)).tell()
        assert story.deaths == 1
        try:
            ends_well(story)
        except AssertionError as error:
            raise AssertionError(f"killed at call {at}, {name}: {error}") from error
