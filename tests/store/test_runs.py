"""The contract of commands and their runs: they are read as they were written, and go with their reservation."""

from typing import Any

import msgspec

from scheduler.model.runs import Execution, RunState, StoredCommand
from scheduler.ports import Store
from tests.builders import NOW, a_reservation
from tests.store.test_contract import insert, save

COMMAND = '{"argv":["echo","é\\u0000"]}'


def a_run(name: str = "r1", token: int = 3, component: str = "main", **fields: Any) -> Execution:
    host = {"slot": "lab-1", "machine": "m1", "run": "run-1", "taken_at": NOW}
    return msgspec.convert({"reservation": name, "token": token, "component": component, **host, **fields}, Execution)


def write(store: Store, *rows: StoredCommand | Execution) -> None:
    with store.transaction() as transaction:
        transaction.save_commands([row for row in rows if isinstance(row, StoredCommand)])
        transaction.save_executions([row for row in rows if isinstance(row, Execution)])


def with_command(store: Store, *names: str) -> None:
    insert(store, *(msgspec.structs.replace(a_reservation(name), run=RunState("running")) for name in names))
    write(store, *(StoredCommand(name, COMMAND) for name in names), *(a_run(name) for name in names))


def test_a_command_is_read_as_it_was_written(store: Store) -> None:
    with_command(store, "r1", "r2")
    insert(store, a_reservation("bare"))
    assert [store.find_command(name) for name in ("r1", "r2", "bare", "unknown")] == [COMMAND, COMMAND, None, None]
    with store.transaction() as transaction:
        assert transaction.load_commands(["r1", "bare"]) == {"r1": COMMAND}
        assert transaction.load_commands([]) == {}


def test_a_transaction_reads_its_own_writes(store: Store) -> None:
    insert(store, a_reservation("r1"))
    with store.transaction() as transaction:
        transaction.save_commands([StoredCommand("r1", COMMAND)])
        transaction.save_executions([a_run()])
        assert transaction.load_commands(["r1"]) == {"r1": COMMAND}
        assert transaction.load_executions(["r1"]) == [a_run()]
        transaction.save_executions([a_run(state="started", started_at=NOW + 1)])
        assert [run.state for run in transaction.load_executions(["r1"])] == ["started"]


def test_a_run_is_replaced_by_its_key_and_runs_come_in_the_order_of_their_takes(store: Store) -> None:
    with_command(store, "r1", "r2")
    ended: dict[str, Any] = {
        "state": "ended",
        "ended_at": NOW + 9.5,
        "exit_code": 0,
        "why": "exited",
        "tail": "ä\n",
        "bytes": 2**40,
    }
    write(store, a_run(**ended))
    write(store, a_run(token=9, taken_at=NOW + 7), a_run(component="b", taken_at=NOW + 5), a_run(component="a"))
    found = store.find_executions("r1")
    assert [(run.token, run.component) for run in found] == [(3, "a"), (3, "main"), (3, "b"), (9, "main")]
    assert found[1] == a_run(**ended)
    assert store.find_executions("r2") == [a_run("r2")]
    assert store.find_executions("unknown") == []


def test_they_are_deleted_with_their_reservation(store: Store) -> None:
    with_command(store, "r1", "r2", "kept")
    with store.transaction() as transaction:
        transaction.delete([transaction.load_reservations(["r1"])["r1"]])
    (row,) = store.find_reservations(ids=["r2"])
    save(store, msgspec.structs.replace(row, phase="released", changed_at=NOW - 100))
    store.prune(events_before=0, requests_before=0, ended_before=NOW)
    for name in ("r1", "r2"):
        assert (store.find_command(name), store.find_executions(name)) == (None, [])
    assert (store.find_command("kept"), store.find_executions("kept")) == (COMMAND, [a_run("kept")])


def test_the_state_of_a_command_is_a_part_of_the_row(store: Store) -> None:
    states = [None, RunState(), RunState("running"), RunState("ended", 3, None, "exited")]
    insert(store, *(msgspec.structs.replace(a_reservation(f"r{n}"), run=state) for n, state in enumerate(states)))
    assert [row.run for row in store.find_reservations()] == states
    (_, row, *_) = store.find_reservations()
    save(store, msgspec.structs.replace(row, run=RunState("ended", signal=9, why="out_of_memory")))
    assert store.find_reservations()[1].run == RunState("ended", None, 9, "out_of_memory")
