"""The loss of machines in a simulation: the cloud takes one, with or without a notice, on order or at random."""

from collections.abc import Callable
from contextlib import suppress
from random import Random

from scheduler.model.slots import Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.operations.commands import lease_commands
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.machines.check import check
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.simulation.cluster import SimulatedCluster

NOTICE_SECONDS = 120.0
"""Seconds between EC2's notice and the end of the machine."""
HOUR = 3600.0


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
    slot = cluster.find_slot(name)
    if slot is not None and slot.instance_id:
        cluster.cloud.end(slot.instance_id, cluster.event_queue.now)
        check(cluster.ports, [name])
    else:
        cluster.change(
            ignoring_refusals(lambda work: lease_commands.lose(work, name)), lambda work: work.load(slots=[name])
        )


class Interruptions:
    """Interrupts spot machines at random, on average `interruption_rate` times per slot and hour of its life.

    The same seed gives the same interruptions under every policy.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        delays = cluster.cloud.delays
        self._rate, self._seed = delays.interruption_rate, delays.seed

    def note_machine(self, slot: Slot) -> None:
        """Schedule the interruption of a launched machine. Its time depends only on the seed, the slot
        and its epoch.
        """
        if not self._rate or slot.market == "on-demand":
            return
        # Not for secrets: the result must be the same each time.
        seconds = Random(f"{self._seed}/{slot.id}/{slot.epoch}").expovariate(self._rate / HOUR)
        name, epoch = slot.id, slot.epoch
        self._cluster.event_queue.note(self._cluster.event_queue.now + seconds, lambda: self._interrupt(name, epoch))

    def _interrupt(self, name: str, epoch: int) -> None:
        slot = self._cluster.find_slot(name)
        if slot is not None and slot.epoch == epoch and slot.state in WITH_MACHINE:
            interrupt_slot(self._cluster, name, NOTICE_SECONDS)
