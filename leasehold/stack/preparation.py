"""Prepare the database of a stack before its processes start: apply the rules, and record that the emulator's machines
are gone.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from scheduler.model.rules import read_rules
from scheduler.model.slots import Slot
from scheduler.operations.apply import apply_rules
from scheduler.operations.commands.slot_commands import lose
from scheduler.operations.market.refresh import refresh_market
from scheduler.operations.market.resolve import has_requirements
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import CloudError, OutboxMessage
from workers.services import Services
from workers.settings import Settings


class QuietDispatcher:
    """A dispatcher (which sends work to other processes) that sends nothing. The processes that start later find the
    work in the database.
    """

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """Send nothing: the launch worker later finds the launches of these slots in the database."""

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """Send nothing: the terminate worker later finds the terminations of these slots' machines in the database."""

    def send_power(self, slots: Sequence[Slot]) -> None:
        """Send nothing: the workers later find the starts and stops of these slots' machines in the database."""

    def send_checks(self, slots: Sequence[str]) -> None:
        """Send nothing: the health worker later finds in the database the slots to check."""

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """Send nothing, and raise ConnectionError: the message then stays in the outbox, and the task `recover` sends
        it later.
        """
        raise ConnectionError(outgoing.id)

    def wake_at(self, due: float | None, now: float) -> None:
        """Schedule nothing: beat requests ticks as soon as it runs."""

    def send_tick(self) -> None:
        """Send nothing: beat requests ticks as soon as it runs."""

    def write_tick(self) -> None:
        """Return None: a kick calls `send_tick`."""


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
"""The rules that a stack without a leasehold.toml gets at its first start. The emulator accepts any image."""


def prepare_rules(settings: Settings, rules: Mapping[str, Any] | None, *, machines_are_gone: bool) -> None:
    """Apply `rules` to the database. If `rules` is None, the rules in force stay; if there are none, EXAMPLE_RULES are
    applied.

    `machines_are_gone`: the emulator of the last run has ended with its machines, so their slots are recorded as empty.
    Raises StoreUnavailableError, ViewUnavailableError, InvalidInputError.
    """
    services = Services(settings, QuietDispatcher)
    ports = services.ports
    if rules is None and not ports.store.rules_version():
        rules = EXAMPLE_RULES
    if rules is not None:
        read = read_rules(dict(rules), "")
        if has_requirements(read):
            # Without an answer of EC2, the types and prices of the database count.
            with suppress(CloudError):
                refresh_market(ports.store, services.market, read, catalogue_age=settings.market.catalogue_age)
        apply_rules(ports, rules, source="the start of a local stack")
    if machines_are_gone:
        forget_machines(ports)


def forget_machines(ports: Ports) -> None:
    """Record in the database that the machines of all slots are gone. In the next tick the reservations on these slots
    fail or are requeued.
    """
    states = ["booting", "binding", "ready", "draining", "terminating", "stopped"]
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
