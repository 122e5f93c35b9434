"""Prepare the database of a stack before its processes work: schema, rules, and slots without machines."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from scheduler.model.slots import Slot
from scheduler.operations.apply import apply_rules
from scheduler.operations.commands.lease_commands import lose
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import OutboxMessage
from workers.services import Services
from workers.settings import Settings


class QuietDispatcher:
    """A dispatcher that sends nothing. The processes that start later find the work in the database."""

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """See Dispatcher.send_launches."""

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """See Dispatcher.send_terminations."""

    def send_checks(self, slots: Sequence[str]) -> None:
        """See Dispatcher.send_checks."""

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """See Dispatcher.send_callback. Raises, so that the message stays in the outbox and `recover` sends it."""
        raise ConnectionError(outgoing.id)

    def wake_at(self, due: float | None, now: float) -> None:
        """See Dispatcher.wake_at."""

    def send_tick(self) -> None:
        """See TickingDispatcher.send_tick."""


EXAMPLE_RULES: Final[dict[str, Any]] = {
    "pools": {
        "linux": {
            "system": "x86_64-linux",
            "max_slots": 4,
            "resources": {"cpus": 4, "memory_mib": 8192},
            "ec2": {"image": "ami-0123456789abcdef0"},
        }
    }
}
"""The first rules of a stack that has no leasehold.toml and no rules. The emulator accepts any image."""


def prepare_rules(settings: Settings, rules: Mapping[str, Any] | None, *, machines_are_gone: bool) -> None:
    """Apply the rules. Without rules, the rules in force stay; if there are none, EXAMPLE_RULES are applied.

    `machines_are_gone`: the machines ended with the emulator of the last run, so their slots are recorded as empty.
    Raises StoreUnavailableError, ViewUnavailableError, InvalidInputError.
    """
    ports = Services(settings, QuietDispatcher).ports
    if rules is None and not ports.store.rules_version():
        rules = EXAMPLE_RULES
    if rules is not None:
        apply_rules(ports, rules, source="the start of a local stack")
    if machines_are_gone:
        forget_machines(ports)


def forget_machines(ports: Ports) -> None:
    """Record that every machine is gone. In the next tick its reservations fail or are requeued."""
    states = ["booting", "binding", "ready", "draining", "terminating"]
    names = [slot.id for slot in ports.store.find_slots(states=states)]
    if not names:
        return
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        work.load(slots=names)
        for name in names:
            lose(work, name)
        outcome = work.flush()
    announce(ports, outcome, kick=False)
