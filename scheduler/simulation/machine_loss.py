"""What becomes of a machine without anybody's word: the cloud takes it, after a notice or without one."""

from collections.abc import Callable

from scheduler.model.slots import Slot
from scheduler.operations.commands import lease_commands
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.machines.check import check
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.simulation.cluster import SimulatedCluster


def heed(act: Callable[[UnitOfWork], object]) -> Callable[[UnitOfWork], None]:
    """The same, with words that cannot be heeded passed over: nothing changes then."""

    def attempt(work: UnitOfWork) -> None:
        try:
            act(work)
        except CommandRefused:
            return

    return attempt


def interrupt_slot(stage: SimulatedCluster, name: str, deadline: float) -> None:
    """The notice now; at its deadline (seconds from now) the machine is gone."""
    gone_at = stage.agenda.now + deadline
    stage.change(heed(lambda work: lease_commands.interrupt(work, name, gone_at)), lambda work: work.load(slots=[name]))
    slot = stage.find_slot(name)
    if slot is None or slot.interrupted_by is None:
        return
    epoch = slot.epoch
    stage.agenda.note(slot.interrupted_by, lambda: _reclaim(stage, name, epoch))


def _reclaim(stage: SimulatedCluster, name: str, epoch: int) -> None:
    slot = stage.find_slot(name)
    if slot is not None and slot.epoch == epoch:
        lose_slot(stage, name)


def lose_slot(stage: SimulatedCluster, name: str) -> None:
    """Its machine is gone."""
    slot: Slot | None = stage.find_slot(name)
    if slot is not None and slot.instance_id:
        stage.cloud.end(slot.instance_id, stage.agenda.now)
        check(stage.ports, [name])
    else:
        stage.change(heed(lambda work: lease_commands.lose(work, name)), lambda work: work.load(slots=[name]))
