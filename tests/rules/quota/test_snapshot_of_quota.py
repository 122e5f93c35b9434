"""A snapshot contains accounts: balances, levels, costs, claims, and which reservations precede a forgotten account."""

import json

import pytest

from scheduler.model.rules import read_rules
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from scheduler.simulation.snapshot import make_snapshot
from tests.rules.playing import Document, act, play_out, tick, ticks
from tests.rules.qscheduler import a_quota, an_account, ask, balances, held, idle, leases, runs

ACCOUNTS = {"A": an_account([100], [0.5], max_charge_seconds=400), "B": an_account([0, 9], [0, 0.25])}


def a_fleet(*timeline: Document, grace: float = 30) -> Document:
    return a_quota(
        *timeline,
        slots=[runs("lab-1", "r1", 1, [0, 4]), runs("lab-2", "r2", 5), *idle("lab-3", labels={"img": "1"})],
        reservations=[held("r1", "B"), held("r2")],
        accounts=ACCOUNTS,
        grace=grace,
    )


MOMENTS: dict[str, Document] = {
    "work whose use is not paid for yet": a_fleet(tick(0), act(6, "cordon", "lab-3")),
    "a claim, and a victim that has to end": a_fleet(ask(2, "r3", account="A"), ask(2, "r4", account="A"), tick(4)),
    "a reservation that was preempted at once": a_fleet(
        ask(2, "r3", account="A"), ask(2, "r4", account="A"), tick(4), grace=0
    ),
    "an account that was forgotten and created again": a_fleet(
        ask(1, "r5", account="B", labels={"img": "2"}),
        act(2, "forget_account", "B"),
        act(3, "account", {"id": "B", "balance": [7], "description": "anew"}),
        ask(4, "r6", account="B", labels={"img": "2"}),
        tick(4),
    ),
    "a slot with an unknown occupant": a_fleet(act(3, "confirm", {"reservation": "ghost", "slot": "lab-3"}), tick(4)),
}


def take(player: Runner, config: Document) -> Document:
    """A snapshot as it is written to a file and read again."""
    rows, now = list(player.stage.store.read_rows()), player.stage.agenda.now
    made: Document = json.loads(json.dumps(make_snapshot(rows, config, read_rules(config), {}, now)))
    return made


def play_to_the_end(document: Document) -> Runner:
    player = Runner(read_scenario(document))
    list(player.play())
    return player


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_snapshot_of_its_own_play_is_the_same(moment: str) -> None:
    document = MOMENTS[moment]
    first = take(play_to_the_end(document), document["config"])
    assert take(Runner(read_scenario(first)), first["config"]) == first


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_next_ticks_after_a_snapshot_decide_what_they_would_have_decided(moment: str) -> None:
    """The next ticks decide the same, and lead to the same balances, levels and costs."""
    document = MOMENTS[moment]
    now = document["timeline"][-1]["at"]
    snapshot = take(play_to_the_end(document), document["config"])
    later = [8.0, 20.0, 40.0]
    went_on = play_out({**document, "timeline": [*document["timeline"], *ticks(now, *(now + at for at in later))]})
    restored = play_out({**snapshot, "kicks": False, "wakes": False, "timeline": ticks(0, *later)})
    assert restored.ticks == went_on.ticks[-4:]
    assert balances(restored) == balances(went_on)
    assert leases(restored) == leases(went_on)
    assert restored.slots == went_on.slots
