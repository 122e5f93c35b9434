"""Prepare the database of a stack, and see its workers work: `python -m leasehold.stack.preparation`.

This is a process of its own, which ends when the stack runs, because the supervisor needs neither SQLAlchemy nor redis
afterwards: 50 MiB. `Preparation` of leasehold/stack/embedded.py is the supervisor's end. The process brings the
schema up to date, waits for Redis, and reads a line with the rules. Then it applies the rules, records that the
emulator's machines are gone, and waits for an answer of each worker. It reports each part in a line.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Any, Final

import redis

from leasehold.canaries import Canaries
from leasehold.client.client import Client
from leasehold.client.redis.own_transport import open_wire
from leasehold.errors import LeaseholdError
from scheduler.model.rules import read_rules
from scheduler.model.slots import Slot
from scheduler.model.validation import InvalidInputError
from scheduler.operations.commands.slot_commands import lose
from scheduler.operations.market import has_requirements, refresh_market
from scheduler.operations.ports import Ports, announce
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.rules.images import look_up
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import CloudError, OutboxMessage, StoreUnavailableError, ViewUnavailableError
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from workers.configuration import load_settings
from workers.services import Services
from workers.settings import Settings

_POLL_SECONDS: Final = 0.02


class QuietDispatcher:
    """A dispatcher (which sends work as tasks to other processes) that sends nothing, for a time at which no process
    may run. The processes that start later find the work in the database.
    """

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """Send tasks that launch the machines of these slots. Here: send nothing, because the launch worker later finds
        the launches in the database.
        """

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """Send tasks that terminate the machines of these slots. Here: send nothing, because the terminate worker later
        finds the terminations in the database.
        """

    def send_power(self, slots: Sequence[Slot]) -> None:
        """Send tasks that start or stop the machines of these slots. Here: send nothing, because the workers later find
        the starts and stops in the database.
        """

    def send_checks(self, slots: Sequence[str]) -> None:
        """Send tasks that check the machines of these slots. Here: send nothing, because the health worker later finds
        the slots in the database.
        """

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """Send a message of the outbox to a producer. Here: send nothing and raise ConnectionError, so that the message
        stays in the outbox; the task `recover` sends it later.
        """
        raise ConnectionError(outgoing.id)

    def wake_at(self, due: float | None, now: float) -> None:
        """Schedule a tick for the time `due`. Here: do nothing, because beat requests ticks as soon as it runs."""

    def send_tick(self) -> None:
        """Request a tick now. Here: do nothing, because beat requests ticks as soon as it runs."""

    def write_tick(self) -> None:
        """Return the message that requests a tick. The notifier, which sends kicks (hints that a tick should run), puts
        this message into the queue of ticks. Here: return None, so that the notifier calls `send_tick` instead.
        """


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


def prepare_rules(
    settings: Settings, rules: Mapping[str, Any] | None, *, machines_are_gone: bool
) -> dict[str, CloudError]:
    """Apply `rules` to the database. If `rules` is None, the rules in force stay; if there are none, EXAMPLE_RULES are
    applied. Return the images that the rules name by a source and that could not be looked up: source -> error. Their
    pools launch nothing until the health worker finds them.

    `machines_are_gone`: the emulator of the last run has ended with its machines, so their slots are recorded as empty.
    Raises StoreUnavailableError if the database cannot be reached, ViewUnavailableError if Redis fails, and
    InvalidInputError if the rules are wrong.
    """
    services = Services(settings, QuietDispatcher)
    ports = services.ports
    if rules is None and not ports.store.rules_version():
        rules = EXAMPLE_RULES
    failed: dict[str, CloudError] = {}
    if rules is not None:
        read = read_rules(dict(rules), "")
        if has_requirements(read):
            # Without an answer of EC2, the types and prices of the database count.
            with suppress(CloudError):
                refresh_market(ports.store, services.market, read, catalogue_age=settings.market.catalogue_age)
        images, failed = look_up(services.images, read)
        apply_rules(ports, rules, source="the start of a local stack", images=images)
    if machines_are_gone:
        forget_machines(ports)
    return failed


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


def _serve(settings: Settings) -> None:
    migrate(settings.database_url)
    _report("the database")
    with closing(open_wire(settings)) as wire:
        while not _answers(wire.redis):
            time.sleep(_POLL_SECONDS)
        _report("redis")
        order = json.loads(sys.stdin.readline() or "null")
        if order is None:
            # The supervisor has ended.
            return
        failed = prepare_rules(settings, order["rules"], machines_are_gone=order["machines_are_gone"])
        with closing(open_store(settings.database_url)) as store:
            systems = [pool.system for pool in store.load_rules().rules.pools.values()]
        images = {source: f"{each.category}: {each.code}" for source, each in failed.items()}
        _report("the rules", failed=images, systems=systems)
        canaries = Canaries(wire)
        canaries.send()
        # The first tick makes the view. Beat sends its first one an interval after its start. Celery is imported here,
        # while the programs start.
        from tasks.app import app  # noqa: PLC0415 - see above
        from tasks.dispatch import CeleryDispatcher  # noqa: PLC0415 - see above

        CeleryDispatcher(app, tick_seconds=settings.ticks.interval, now=app.services.clock.now).send_tick()
        silent = {*QUEUE_NAMES, "view"}
        with Client(settings.broker_url, view_url=settings.view_url, prefix=settings.view.prefix) as client:
            while silent:
                for name in sorted(silent):
                    if _has_view(client) if name == "view" else canaries.answered(name):
                        silent.discard(name)
                        _report(name)
                time.sleep(_POLL_SECONDS)


def _answers(client: redis.Redis) -> bool:
    with suppress(redis.RedisError):
        return bool(client.ping())
    return False


def _has_view(client: Client) -> bool:
    """Return whether clients can read the view, which the first tick builds."""
    with suppress(LeaseholdError):
        client.ping()
        return True
    return False


def _report(part: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"part": part, **more}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Prepare the stack of this process's settings. A known error is reported, another one is a traceback."""
    try:
        _serve(load_settings())
    except InvalidInputError as error:
        _report("", faults=[asdict(each) for each in error.faults])
    except (StoreUnavailableError, ViewUnavailableError) as error:
        _report("", error=f"the stack cannot be prepared: {error}")
    except LeaseholdError as error:
        _report("", error=str(error))


if __name__ == "__main__":
    main()
