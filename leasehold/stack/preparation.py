"""Prepare the database of a stack before its processes work: schema, rules, and slots without machines."""

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.model.slots import Slot
from scheduler.operations.apply import apply_rules
from scheduler.operations.commands.lease_commands import lose
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import OutboxMessage
from scheduler.store.migrating import migrate
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


def prepare_database(url: str) -> list[str]:
    """Create the tables, or update them; return the applied revisions. Raises StoreUnavailableError."""
    return migrate(url)


def prepare_rules(
    settings: Settings, rules: Mapping[str, Any] | None, example: Mapping[str, Any], *, machines_are_gone: bool
) -> int:
    """Apply the rules and return their version. Without rules, those in force stay; if there are none, apply `example`.

    `machines_are_gone`: the machines ended with the emulator of the last run, so their slots are recorded as empty.
    Raises StoreUnavailableError, ViewUnavailableError, InvalidInputError.
    """
    ports = Services(settings, QuietDispatcher).ports
    if rules is None and not ports.store.rules_version():
        rules = example
    if rules is not None:
        apply_rules(ports, rules, source="the start of a local stack")
    if machines_are_gone:
        forget_machines(ports)
    return ports.store.rules_version()


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
