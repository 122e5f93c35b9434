"""Hazards: spot notices at random, at a rate, the same ones for the same seed whatever the policy."""

from random import Random

from scheduler.model.slots import Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.machine_loss import interrupt_slot

NOTICE_SECONDS = 120.0
"""How long before it takes a machine EC2 says so."""
HOUR = 3600.0


class Interruptions:
    """Interrupts spot machines `interruption_rate` times per slot and hour that it is there, on average."""

    def __init__(self, stage: SimulatedCluster) -> None:
        self._stage = stage
        delays = stage.cloud.delays
        self._rate, self._seed = delays.interruption_rate, delays.seed

    def note_machine(self, slot: Slot) -> None:
        """A machine was launched: when it will be interrupted depends on the seed and its slot's epoch alone."""
        if not self._rate or slot.market == "on-demand":
            return
        # Not for secrets: it has to come out the same each time.
        seconds = Random(f"{self._seed}/{slot.id}/{slot.epoch}").expovariate(self._rate / HOUR)
        name, epoch = slot.id, slot.epoch
        self._stage.agenda.note(self._stage.agenda.now + seconds, lambda: self._interrupt(name, epoch))

    def _interrupt(self, name: str, epoch: int) -> None:
        slot = self._stage.find_slot(name)
        if slot is not None and slot.epoch == epoch and slot.state in WITH_MACHINE:
            interrupt_slot(self._stage, name, NOTICE_SECONDS)
