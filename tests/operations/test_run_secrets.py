"""Arguments and environments of commands reach their submitter, operators and the host of the lease alone."""

import json
from typing import Any

import pytest

from scheduler.model.principals import Principal
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.commands.runs import describe_run
from scheduler.operations.explain import explain
from scheduler.operations.rules.preview import preview_rules
from scheduler.ports import Store
from scheduler.simulation.scenario import read_scenario
from scheduler.simulation.snapshot import make_snapshot
from tasks.requests import describe_arguments
from tests.operations.test_runs import HOSTS, OPERATOR, PLAIN, RUN, SECRET, SHOP, Cluster, store

__all__ = ["store"]
EYES = Principal(name="eyes", role="reader")


def test_the_submitter_and_operators_see_the_command_without_values_of_its_environment(store: Store) -> None:
    cluster = Cluster(store).lease().begin()
    cluster.finish(exit_code=3, tail="the end", bytes=7)
    for sender in (SHOP, OPERATOR):
        found = describe_run(cluster.harness.ports, "r1", sender)
        assert (found["run"]["argv"], found["run"]["env"]) == (RUN["argv"], {"PASSWORD": "***"})
        assert (found["state"], found["exit_code"], found["why"], found["phase"]) == ("ended", 3, "exited", "failed")
        (run,) = found["executions"]
        assert (run["state"], run["exit_code"], run["tail"], run["bytes"]) == ("ended", 3, "the end", 7)


@pytest.mark.parametrize(
    ("sender", "path"), [(PLAIN, "reservation"), (HOSTS["lab-1"], "reservation"), (EYES, "reservation"), (None, None)]
)
def test_no_other_sender_gets_the_command(sender: Principal | None, path: str | None) -> None:
    cluster = Cluster().lease()
    with pytest.raises(CommandRefused) as refusal:
        describe_run(cluster.harness.ports, "r1", sender)
    assert refusal.value.fault.path == (path or "principal")
    assert SECRET not in str(refusal.value)


def test_an_unknown_reservation_and_one_without_a_command_are_refused() -> None:
    cluster = Cluster()
    cluster.ask(SHOP, "submit", id="bare", pool="lab")
    for name in ("bare", "unknown"):
        with pytest.raises(CommandRefused, match="reservation"):
            describe_run(cluster.harness.ports, name, SHOP)


def test_on_the_owners_own_stack_unsigned_senders_see_their_commands() -> None:
    cluster = Cluster()
    cluster.harness.ports.is_own_stack = True
    assert cluster.ask(None, "submit", id="r1", pool="lab", run=RUN)["ok"]
    assert describe_run(cluster.harness.ports, "r1", None)["run"]["argv"] == RUN["argv"]


def test_rows_events_explanations_previews_and_answers_have_nothing_of_it(store: Store) -> None:
    cluster = Cluster(store)
    answers = [cluster.submit(request="submission"), cluster.submit("waiting", priority=0)]
    cluster.harness.tick()
    explained = [explain(cluster.harness.ports, name) for name in ("r1", "waiting")]
    previewed = preview_rules(store, {"pools": {}})
    answers += [cluster.report("take", sender=None), cluster.report("take", sender=SHOP)]
    cluster.begin()
    cluster.finish("signal", signal=9)
    explained.append(explain(cluster.harness.ports, "r1"))
    view = cluster.harness.ports.view_cache.load()
    assert view is not None
    with store.transaction() as transaction:
        stored = transaction.find_answers(["submission"])
    found: list[Any] = [
        *(store.find_reservations(), cluster.harness.events, list(view.reservations.values()), explained, previewed),
        *(answers, stored, cluster.harness.mailbox.tasks),
    ]
    for each in found:
        assert SECRET not in str(each)
    assert explained[-1]["ended"] == "a signal ended its command (SIGKILL)"


def test_a_snapshot_for_what_if_has_no_command(store: Store) -> None:
    Cluster(store).lease().begin()
    stored = store.load_rules()
    text = json.dumps(make_snapshot(store.read_rows(), stored.document, stored.rules, {}, store.now()))
    assert SECRET not in text
    assert [row.id for row in read_scenario(json.loads(text)).reservations] == ["r1"]


@pytest.mark.parametrize(
    "document", [{"items": {"run": RUN}}, {"items": [], "run": RUN}, {"items": [{"run": [SECRET]}]}]
)
def test_faults_of_lists_have_nothing_of_it(document: dict[str, Any]) -> None:
    answer = Cluster().ask(SHOP, "submit", **document)
    assert not answer["ok"]
    assert SECRET not in str(answer)


@pytest.mark.parametrize(
    "arguments",
    [
        [{"system": "x", "run": RUN}],
        [{"document": {"system": "x", "run": RUN}}],
        [{"items": [{"id": "r1", "run": RUN}]}],
        [{"id": "r1", "run": RUN}],
        [{"tail": SECRET}],
    ],
)
def test_log_lines_about_messages_have_nothing_of_it(arguments: list[Any]) -> None:
    assert SECRET not in describe_arguments(arguments)


def test_a_principal_as_text_has_no_key() -> None:
    host = HOSTS["lab-1"]
    assert host.key is not None
    assert host.key.decode() not in repr(host) + str([host])
