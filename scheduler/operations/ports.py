"""The set of ports that every operation gets, and the announcement of a committed change."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from scheduler.model.events import Event
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import PHASES
from scheduler.model.view import Change
from scheduler.operations.admission import Admission, KnownSlots
from scheduler.operations.heartbeats import HostKeys
from scheduler.operations.metrics import count_changes
from scheduler.operations.unit_of_work import ChangeSet, describe_notice
from scheduler.operations.writers.reservations import CORES
from scheduler.operations.writers.slots import ASKED_AGAIN
from scheduler.ports import (
    ClusterRecord,
    Dispatcher,
    Fleet,
    Heartbeats,
    LeaderLock,
    Meter,
    Notifier,
    OutboxMessage,
    Probe,
    Store,
    StoredRules,
    ViewCache,
)

_NOTICED = frozenset(
    {
        *(f"reservation_{phase}" for phase in PHASES),
        *("reservation_moved", "reservation_granted", "reservation_revoked", CORES),
    }
)
"""The events of which the reservation's channel gets a notice."""


@dataclass
class Ports:
    """The adapters that operations use. They are created in one place and passed to every operation."""

    store: Store
    view_cache: ViewCache
    lock: LeaderLock
    notifier: Notifier
    heartbeats: Heartbeats
    dispatcher: Dispatcher
    meter: Meter
    fleet: Fleet
    probe: Probe
    new_id: Callable[[], str]
    """Returns a new unique id, for launches."""
    record: ClusterRecord | None = None
    """The cluster record in Redis; None in a simulation, which has one process and no Redis."""
    rules_cache: StoredRules | None = None
    known_slots: KnownSlots = field(default_factory=KnownSlots)
    host_keys: HostKeys = field(default_factory=HostKeys)
    admission: Admission = field(default_factory=Admission)
    is_bounded: bool = True
    """Whether a tick limits the work for one principal. False in a simulation, which plans everything in each tick."""

    def rules(self) -> Rules:
        """Return the rules in force. They are read again only when their version has changed."""
        if self.rules_cache is None or self.rules_cache.version != self.store.rules_version():
            self.rules_cache = self.store.load_rules()
            if not self.is_bounded:
                limits = self.rules_cache.rules.limits.model_copy(update={"work_per_tick": 0})
                rules = self.rules_cache.rules.model_copy(update={"limits": limits})
                self.rules_cache = msgspec.structs.replace(self.rules_cache, rules=rules)
        return self.rules_cache.rules


def announce(ports: Ports, change_set: ChangeSet, *, kick: bool) -> None:
    """Publish a committed change: first to the view, then slow work, notices and callbacks, and a kick last.

    The process may die at any point: the periodic tick repairs the view, `recover` sends slow work and callbacks
    again, and notices and kicks are only hints.
    """
    changes: Sequence[Change] = [*change_set.rows, *change_set.gone]
    if changes:
        ports.view_cache.publish(changes)
    send_slow_work(ports, change_set)
    count_changes(ports.meter, change_set)
    send_notices(ports, change_set)
    push_to_hosts(ports, change_set)
    send_callbacks(ports, change_set.outgoing)
    if kick:
        ports.notifier.kick()


def send_slow_work(ports: Ports, change_set: ChangeSet) -> None:
    """Send the launches and terminations of this change to their queues."""
    slots = {row.id: row for row in change_set.rows if isinstance(row, Slot)}
    moved = {event.slot: event.name for event in change_set.events if event.slot}
    ports.dispatcher.send_launches([slots[s] for s, name in moved.items() if name == "slot_launching" and s in slots])
    ports.dispatcher.send_terminations(
        [slots[s] for s, name in moved.items() if name in {"slot_terminating", ASKED_AGAIN} and s in slots]
    )


def send_notices(ports: Ports, change_set: ChangeSet) -> None:
    """Publish a notice for each reservation that changed its phase or leases.

    A reservation gets one notice, about its last event. New limits of cpus count as the last event only if nothing
    else happened.
    """
    noticed = [event for event in change_set.events if event.name in _NOTICED]
    noticed.sort(key=lambda event: event.name != CORES)
    rows = {row.id: row for row in change_set.rows if isinstance(row, Reservation)}
    for event in last_by_reservation(noticed):
        row = rows.get(event.reservation or "")
        if row is not None:
            ports.notifier.notify(row.id, describe_notice(event, row, change_set.slots))


def push_to_hosts(ports: Ports, change_set: ChangeSet) -> None:
    """Send hints to the static hosts whose slot or leases changed. Each lease that comes or goes writes its slot."""
    if change_set.hosts:
        hint_to_hosts(ports, change_set.hosts)


def hint_to_hosts(ports: Ports, slots: Iterable[Slot]) -> None:
    """Hint to the hosts of these slots that they should ask for their leases."""
    ports.notifier.push({slot.id: {"slot": slot.id, "state": slot.state, "cordoned": slot.cordoned} for slot in slots})


def last_by_reservation(events: Iterable[Event]) -> Iterable[Event]:
    """Return the last event of each reservation."""
    return {event.reservation: event for event in events if event.reservation}.values()


def send_callbacks(ports: Ports, outgoing: Sequence[OutboxMessage]) -> None:
    """Send callbacks and delete those that the broker accepted. `recover` sends the others again."""
    taken = []
    for each in outgoing:
        try:
            ports.dispatcher.send_callback(each)
        except ConnectionError:
            break
        taken.append(each.id)
    if taken:
        with ports.store.transaction() as transaction:
            transaction.delete_outgoing(taken)
