"""A snapshot of elastic instances, of revoked ones and of claims continues as the live state would."""

import json

from scheduler.model.decisions import describe_decision
from scheduler.model.view import View
from scheduler.policy.plan import plan
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from scheduler.simulation.snapshot import make_snapshot
from tests.rules.playing import Document, act
from tests.rules.zoe import a_lab, an_application, submitted

GIVING_BACK = a_lab(
    submitted(0, an_application("r1", 1, 4), an_application("r2", 1, 1)),
    act(1, "surrender", {"reservation": "r1", "component": "more.3"}),
    submitted(5, an_application("r3", 2)),
    slots=[6],
    scheduler={"preemption_grace": 30},
    until=10,
)
"""r3 has a claim on what r1 and r2 are to give back; r1 has all the instances that it requests."""


def decide(player: Runner, at: float) -> list[Document]:
    rows = list(player.stage.store.read_rows())
    return [describe_decision(each) for each in plan(View(rows), player.stage.ports.rules(), at).decisions]


def play(document: Document) -> Runner:
    player = Runner(read_scenario(document))
    list(player.play())
    return player


def test_a_snapshot_decides_what_the_live_state_would() -> None:
    live = play(GIVING_BACK)
    rules = live.stage.ports.rules()
    made = make_snapshot(list(live.stage.store.read_rows()), GIVING_BACK["config"], rules, {}, 10)
    again = Runner(read_scenario(json.loads(json.dumps(made))))
    states = [lease.get("state") for slot in made["slots"] for lease in slot["leases"]]
    assert (states.count("claimed"), states.count("revoking")) == (2, 2)
    for later in (0, 24.9, 25):
        assert decide(again, later) == decide(live, 10 + later)
    assert decide(again, 25) != []
