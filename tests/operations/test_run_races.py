"""Two processes act on one command at once, each with its own real connections: one of them wins."""

from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from scheduler.model.decisions import Expire
from scheduler.model.principals import Principal
from scheduler.model.runs import RunState
from scheduler.operations.commands.intake import accept
from scheduler.operations.commands.submit import Answer
from scheduler.operations.ports import Ports
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.view.memory import InMemoryRedis
from tests.operations.harness import Harness
from tests.operations.test_races import Open, lead, open_one, race, write
from tests.operations.test_runs import HOSTS, NONCE, RULES, SHOP, Cluster

__all__ = ["open_one"]
ROUNDS = 3


@repeated_if_overtaken
def ask(ports: Ports, principal: Principal, verb: str, **document: Any) -> Answer:
    """Carry out a request as the task of the intake does."""
    return accept(ports, verb, {"request": uuid4().hex, **document}, principal=principal)


class Rivals:
    """Two processes on one database, with a host and a reservation whose command is taken or waits."""

    def __init__(self, open_one: Open) -> None:
        self.cluster = Cluster(open_one())
        store = open_one()
        self.second = Harness(RULES, store=store, redis=InMemoryRedis(store.now))

    def find_lease(self, name: str) -> dict[str, Any]:
        token = self.cluster.row(name).token
        host = {"slot": "lab-1", "machine": "m-lab-1", "run": "run-1"}
        return {**host, "reservation": name, "component": "main", "token": token}


@pytest.fixture
def rivals(open_one: Open) -> Rivals:
    return Rivals(open_one)


def test_of_two_takers_one_gets_the_command(rivals: Rivals) -> None:
    """Both are the agent that has registered last, by the row that they read."""
    cluster = rivals.cluster
    for number in range(ROUNDS):
        name = f"r{number}"
        cluster.lease(name)
        lease = rivals.find_lease(name) | {"nonce": NONCE}
        slot = cluster.harness.slot("lab-1")
        # Without a run on the row of the slot, each run is accepted as the present one.
        cluster.harness.put(msgspec.structs.replace(slot, run=None))
        takes = [
            partial(ask, ports, HOSTS["lab-1"], "take", **{**lease, "run": run})
            for ports, run in ((cluster.harness.ports, "run-1"), (rivals.second.ports, "run-2"))
        ]
        answers: list[Any] = race(*takes)
        assert sorted("command" in each for each in answers) == [False, True], answers
        winner = next(run for answer, run in zip(answers, ("run-1", "run-2"), strict=True) if answer["ok"])
        (found,) = cluster.harness.store.find_executions(name)
        assert found.run == winner
        assert cluster.ask(SHOP, "cancel", reservation=name)["ok"]


def test_an_exit_and_a_cancellation_leave_one_outcome(rivals: Rivals) -> None:
    cluster = rivals.cluster
    for number in range(ROUNDS):
        name = f"r{number}"
        cluster.lease(name).begin(name)
        lease = rivals.find_lease(name)
        answers: list[Any] = race(
            partial(ask, cluster.harness.ports, HOSTS["lab-1"], "exited", **lease, why="exited", exit_code=0),
            partial(ask, rivals.second.ports, SHOP, "cancel", reservation=name),
        )
        row = cluster.row(name)
        assert answers[0]["ok"], answers
        assert row.phase == ("cancelled" if answers[1]["ok"] else "released")
        # Whichever came first, the row has the outcome of the command.
        assert row.run == RunState("ended", 0, None, "exited")
        assert cluster.harness.store.find_executions(name)[0].state == "ended"


def test_an_exit_and_an_expiry_leave_one_outcome(rivals: Rivals) -> None:
    cluster = rivals.cluster
    for number in range(ROUNDS):
        name = f"r{number}"
        cluster.lease(name).begin(name)
        lease = rivals.find_lease(name)
        row = cluster.row(name)
        cluster.harness.put(msgspec.structs.replace(row, expires_at=cluster.harness.store.now() - 1))
        lead(rivals.second)
        answer: Any
        answer, skipped = race(
            partial(ask, cluster.harness.ports, HOSTS["lab-1"], "exited", **lease, why="exited", exit_code=0),
            repeated_if_overtaken(partial(write, rivals.second, Expire(reservation=name, reason="ttl"))),
        )
        row = cluster.row(name)
        assert answer["ok"], answer
        assert isinstance(skipped, list), skipped
        assert row.phase == ("released" if skipped else "expired")
        assert row.run == RunState("ended", 0, None, "exited")
        assert row.leases == ()
