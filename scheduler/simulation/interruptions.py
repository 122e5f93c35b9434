"""Random spot interruptions at a rate. The same seed gives the same ones under every policy."""

from random import Random

from scheduler.model.slots import Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.machine_loss import interrupt_slot

NOTICE_SECONDS = 120.0
"""Seconds between EC2's notice and the end of the machine."""
HOUR = 3600.0


class Interruptions:
    """Interrupts spot machines, on average `interruption_rate` times per slot and hour of its life."""

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
