"""The engine: the adapters that every operation is handed, and how a change is announced once it is committed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from scheduler.model.events import Event
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import PHASES
from scheduler.model.view import Change
from scheduler.operations.account_metrics import count_spending
from scheduler.operations.admission import Admission
from scheduler.operations.boot_health import count_boots
from scheduler.operations.feasibility import KnownSlots
from scheduler.operations.heartbeats import HostKeys
from scheduler.operations.metrics import observe_times
from scheduler.operations.notices import describe_notice
from scheduler.operations.unit_of_work import ChangeSet
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

CORES = "reservation_cores"
"""The event of a lease that may use more or fewer cpus of its slot: no change of phase."""
_NOTICED = frozenset(
    {
        *(f"reservation_{phase}" for phase in PHASES),
        *("reservation_moved", "reservation_granted", "reservation_revoked", CORES),
    }
)
"""What waiters are told of."""
ASKED_AGAIN = "slot_asked_again"
"""The event of a termination that is asked for once more: no change of state."""


@dataclass
class Ports:
    """Everything that the operations need from outside; wired in one place, handed down from there."""

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
    """Ids that were never given out before: launch ids."""
    record: ClusterRecord | None = None
    """What Redis remembers of the cluster; None in a simulation, which has one process and no Redis."""
    rules_cache: StoredRules | None = None
    known_slots: KnownSlots = field(default_factory=KnownSlots)
    host_keys: HostKeys = field(default_factory=HostKeys)
    admission: Admission = field(default_factory=Admission)
    is_bounded: bool = True
    """Whether a tick bounds the work of one principal; a simulation plans everything in each tick."""

    def rules(self) -> Rules:
        """The rules in force; read anew only when their version has changed."""
        if self.rules_cache is None or self.rules_cache.version != self.store.rules_version():
            self.rules_cache = self.store.load_rules()
            if not self.is_bounded:
                limits = self.rules_cache.rules.limits.model_copy(update={"work_per_tick": 0})
                rules = self.rules_cache.rules.model_copy(update={"limits": limits})
                self.rules_cache = msgspec.structs.replace(self.rules_cache, rules=rules)
        return self.rules_cache.rules


def announce(ports: Ports, change_set: ChangeSet, *, kick: bool) -> None:
    """After the commit: the view first, then slow work, notices and callbacks, and last a kick.

    May be cut off anywhere: the view is mended by the periodic tick, slow work and callbacks are sent again
    by `recover`, and notices and kicks are only hints.
    """
    changes: Sequence[Change] = [*change_set.rows, *change_set.gone]
    if changes:
        ports.view_cache.publish(changes)
    send_slow_work(ports, change_set)
    count_boots(ports.meter, change_set)
    observe_times(ports.meter, change_set)
    count_spending(ports.meter, change_set)
    send_notices(ports, change_set)
    push_to_hosts(ports, change_set)
    send_callbacks(ports, change_set.outgoing)
    if kick:
        ports.notifier.kick()


def send_slow_work(ports: Ports, change_set: ChangeSet) -> None:
    """Ask the queues for the launches and terminations that this change decided."""
    slots = {row.id: row for row in change_set.rows if isinstance(row, Slot)}
    moved = {event.slot: event.name for event in change_set.events if event.slot}
    ports.dispatcher.send_launches([slots[s] for s, name in moved.items() if name == "slot_launching" and s in slots])
    ports.dispatcher.send_terminations(
        [slots[s] for s, name in moved.items() if name in {"slot_terminating", ASKED_AGAIN} and s in slots]
    )


def send_notices(ports: Ports, change_set: ChangeSet) -> None:
    """Tell the waiters of each reservation what became of it; of a new one there is nothing to tell, nor of what
    changes neither its phase nor its place. Limits of cores that came with a lease are told with it.
    """
    noticed = [event for event in change_set.events if event.name in _NOTICED]
    noticed.sort(key=lambda event: event.name != CORES)
    rows = {row.id: row for row in change_set.rows if isinstance(row, Reservation)}
    for event in last_by_reservation(noticed):
        row = rows.get(event.reservation or "")
        if row is not None:
            ports.notifier.notify(row.id, describe_notice(event, row, change_set.slots))


def push_to_hosts(ports: Ports, change_set: ChangeSet) -> None:
    """Tell static hosts that their slot or its leases changed: every lease that comes or goes writes its slot."""
    if change_set.hosts:
        hint_to_hosts(ports, change_set.hosts)


def hint_to_hosts(ports: Ports, slots: Iterable[Slot]) -> None:
    """Hint to the hosts of these slots that they should ask for their leases."""
    ports.notifier.push({slot.id: {"slot": slot.id, "state": slot.state, "cordoned": slot.cordoned} for slot in slots})


def last_by_reservation(events: Iterable[Event]) -> Iterable[Event]:
    """The last event of each reservation."""
    return {event.reservation: event for event in events if event.reservation}.values()


def send_callbacks(ports: Ports, outgoing: Sequence[OutboxMessage]) -> None:
    """Send what the broker takes and forget it; what it does not take, `recover` sends again."""
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
