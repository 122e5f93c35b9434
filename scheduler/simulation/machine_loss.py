"""The loss of machines in a simulation: the cloud takes one, with or without a notice."""

from collections.abc import Callable
from contextlib import suppress

from scheduler.model.slots import Slot
from scheduler.operations.commands import lease_commands
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.machines.check import check
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.simulation.cluster import SimulatedCluster


def ignoring_refusals(act: Callable[[UnitOfWork], object]) -> Callable[[UnitOfWork], None]:
    """Return `act` as a function that ignores CommandRefused. A refused command changes nothing."""

    def attempt(work: UnitOfWork) -> None:
        with suppress(CommandRefused):
            act(work)

    return attempt


def interrupt_slot(cluster: SimulatedCluster, name: str, deadline: float) -> None:
    """Give the interruption notice now. Its machine is gone after `deadline` seconds."""
    gone_at = cluster.event_queue.now + deadline
    cluster.change(
        ignoring_refusals(lambda work: lease_commands.interrupt(work, name, gone_at)),
        lambda work: work.load(slots=[name]),
    )
    slot = cluster.find_slot(name)
    if slot is None or slot.interrupted_by is None:
        return
    epoch = slot.epoch
    cluster.event_queue.note(slot.interrupted_by, lambda: _reclaim(cluster, name, epoch))


def _reclaim(cluster: SimulatedCluster, name: str, epoch: int) -> None:
    slot = cluster.find_slot(name)
    if slot is not None and slot.epoch == epoch:
        lose_slot(cluster, name)


def lose_slot(cluster: SimulatedCluster, name: str) -> None:
    """End the slot's machine now, without a notice."""
    slot: Slot | None = cluster.find_slot(name)
    if slot is not None and slot.instance_id:
        cluster.cloud.end(slot.instance_id, cluster.event_queue.now)
        check(cluster.ports, [name])
    else:
        cluster.change(
            ignoring_refusals(lambda work: lease_commands.lose(work, name)), lambda work: work.load(slots=[name])
        )
