"""Two processes launch the same batch at once, each with its own real connections, while a third gives slots up."""

from functools import partial

import pytest

from scheduler.operations.machines.launch import launch
from scheduler.operations.machines.terminate import terminate_all
from scheduler.operations.tick.tick import tick
from scheduler.operations.unit_of_work import UnitOfWork
from tests.operations.test_races import Rivals, open_one, race, rivals

__all__ = ["open_one", "rivals"]


@pytest.mark.parametrize("most", [None, 2])
def test_a_batch_that_two_processes_launch_and_a_third_gives_up_has_a_machine_for_each_slot(
    rivals: Rivals, most: int | None
) -> None:
    """Two copies of the task run while slots of the batch are cancelled, and terminations of them run."""
    rivals.fleet.most = most
    for number in range(4):
        rivals.first.submit(f"r{number}")
    tick(rivals.first.ports, rivals.first.leader)
    ((kind, (batch,)),) = rivals.first.mailbox.tasks
    assert kind == "launch_batch"

    def give_up() -> None:
        with rivals.store.transaction() as transaction:
            work = UnitOfWork(transaction, "tick")
            work.slots = transaction.load_slots(["linux-2", "linux-3"])
            for slot in work.slots.values():
                if slot.state == "launching":
                    work.move_slot(slot, "terminating", reason="timeout")
            work.flush()
        terminate_all(rivals.second.ports, [("linux-2", 1), ("linux-3", 1)])

    ports = [rivals.first.ports, rivals.second.ports]
    results = race(*(partial(launch, each, batch) for each in ports), give_up)
    assert [each for each in results if isinstance(each, Exception)] == []
    slots = rivals.store.find_slots()
    bound = [slot.instance_id for slot in slots if slot.instance_id is not None]
    assert sorted(bound) == sorted(set(bound)) == sorted(rivals.fleet.running)
    assert len(rivals.fleet.answers) == 1
    assert {slot.state for slot in slots if slot.instance_id is None} <= {"empty"}
