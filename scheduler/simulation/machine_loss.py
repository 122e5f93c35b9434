"""The loss of machines in a simulation: the cloud ends a machine, with or without a notice, on order or at random."""

from random import Random

from scheduler.model.slots import Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.operations.commands import slot_commands
from scheduler.operations.machines.check import check
from scheduler.simulation.cluster import SimulatedCluster

NOTICE_SECONDS = 120.0
"""Seconds between EC2's notice of an interruption and the end of the machine."""
RETIREMENT = "RETIREMENT"
"""The word that AWS Health's code of a change contains if the change ends the machine."""
HOUR = 3600.0


def interrupt_slot(cluster: SimulatedCluster, name: str, deadline: float) -> None:
    """Announce now that the cloud interrupts the machine of this slot, and end the machine after `deadline` seconds."""
    gone_at = cluster.event_queue.now + deadline
    cluster.change(
        lambda work: slot_commands.interrupt(work, name, gone_at),
        lambda work: work.load(slots=[name]),
    )
    slot = cluster.find_slot(name)

    def reclaim() -> None:
        present = cluster.find_slot(name)
        if present is not None and slot is not None and present.epoch == slot.epoch:
            lose_slot(cluster, name)

    if slot is not None and slot.interrupted_by is not None:
        cluster.event_queue.note(slot.interrupted_by, reclaim)


def announce_change(cluster: SimulatedCluster, name: str, begins_in: float, code: str) -> None:
    """Announce now that the cloud changes the machine of this slot in `begins_in` seconds. `code`: AWS Health's name of
    the change. If the code contains RETIREMENT, the machine ends at that time, unless the slot has another machine by
    then.
    """
    before, begins_at, rules = cluster.find_slot(name), cluster.event_queue.now + begins_in, cluster.ports.rules()
    cluster.change(
        lambda work: slot_commands.maintain(work, rules, name, code, begins_at),
        lambda work: work.load(slots=[name]),
    )

    def retire() -> None:
        present = cluster.find_slot(name)
        if present is not None and before is not None and present.epoch == before.epoch:
            lose_slot(cluster, name)

    if before is not None and before.instance_id and RETIREMENT in code:
        cluster.event_queue.note(begins_at, retire)


def lose_slot(cluster: SimulatedCluster, name: str) -> None:
    """End the machine of this slot now, without an earlier notice."""
    slot = cluster.find_slot(name)
    if slot is not None and slot.instance_id:
        cluster.cloud.end(slot.instance_id, cluster.event_queue.now)
        check(cluster.ports, [name])
    else:
        cluster.change(lambda work: slot_commands.lose(work, name), lambda work: work.load(slots=[name]))


class Interruptions:
    """Interrupts spot machines at random, on average `interruption_rate` times per hour of a machine. The rate of
    `[cloud]` counts in traces only; the rate of `[cloud.market]` counts in scenarios, too.

    The same seed gives the same interruptions, whatever the scheduling rules are.
    """

    def __init__(self, cluster: SimulatedCluster, *, is_trace: bool = True) -> None:
        self._cluster = cluster
        delays = cluster.cloud.delays
        self._rate, self._seed = delays.market.interruption_rate, delays.market.seed
        if is_trace and delays.interruption_rate:
            self._rate, self._seed = delays.interruption_rate, delays.seed

    def note_machine(self, slot: Slot) -> None:
        """Schedule the interruption of the machine that a slot has launched. The time from now to the interruption
        depends only on the seed, slot and epoch. On-demand machines are not interrupted.
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
