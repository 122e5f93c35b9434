"""The engine: the adapters that every operation is handed, and how a change is announced once it is committed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from scheduler.model.events import Event
from scheduler.model.moves import PHASES
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import Change
from scheduler.operations.admission import Admission
from scheduler.operations.boots import count_boots
from scheduler.operations.foresee import KnownSlots
from scheduler.operations.heartbeats import HostKeys
from scheduler.operations.ledger import Outcome
from scheduler.operations.notices import describe_notice
from scheduler.operations.spending import count_spending
from scheduler.operations.timing import observe_times
from scheduler.ports import (
    Bell,
    Board,
    ClusterRecord,
    Dispatcher,
    Fleet,
    Lock,
    Meter,
    Outgoing,
    Probe,
    Pulse,
    Store,
    StoredRules,
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
class Engine:
    """Everything that the operations need from outside; wired in one place, handed down from there."""

    store: Store
    board: Board
    lock: Lock
    bell: Bell
    pulse: Pulse
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


def announce(engine: Engine, outcome: Outcome, *, kick: bool) -> None:
    """After the commit: the view first, then slow work, notices and callbacks, and last a kick.

    May be cut off anywhere: the view is mended by the periodic tick, slow work and callbacks are sent again
    by `recover`, and notices and kicks are only hints.
    """
    changes: Sequence[Change] = [*outcome.rows, *outcome.gone]
    if changes:
        engine.board.publish(changes)
    send_slow_work(engine, outcome)
    count_boots(engine.meter, outcome)
    observe_times(engine.meter, outcome)
    count_spending(engine.meter, outcome)
    send_notices(engine, outcome)
    push_to_hosts(engine, outcome)
    send_callbacks(engine, outcome.outgoing)
    if kick:
        engine.bell.kick()


def send_slow_work(engine: Engine, outcome: Outcome) -> None:
    """Ask the queues for the launches and terminations that this change decided."""
    slots = {row.id: row for row in outcome.rows if isinstance(row, Slot)}
    moved = {event.slot: event.name for event in outcome.events if event.slot}
    engine.dispatcher.send_launches([slots[s] for s, name in moved.items() if name == "slot_launching" and s in slots])
    engine.dispatcher.send_terminations(
        [slots[s] for s, name in moved.items() if name in {"slot_terminating", ASKED_AGAIN} and s in slots]
    )


def send_notices(engine: Engine, outcome: Outcome) -> None:
    """Tell the waiters of each reservation what became of it; of a new one there is nothing to tell, nor of what
    changes neither its phase nor its place. Limits of cores that came with a lease are told with it.
    """
    noticed = [event for event in outcome.events if event.name in _NOTICED]
    noticed.sort(key=lambda event: event.name != CORES)
    rows = {row.id: row for row in outcome.rows if isinstance(row, Reservation)}
    for event in last_by_reservation(noticed):
        row = rows.get(event.reservation or "")
        if row is not None:
            engine.bell.notify(row.id, describe_notice(event, row, outcome.slots))


def push_to_hosts(engine: Engine, outcome: Outcome) -> None:
    """Tell static hosts that their slot or its leases changed: every lease that comes or goes writes its slot."""
    if outcome.hosts:
        hint_to_hosts(engine, outcome.hosts)


def hint_to_hosts(engine: Engine, slots: Iterable[Slot]) -> None:
    """Hint to the hosts of these slots that they should ask for their leases."""
    engine.bell.push({slot.id: {"slot": slot.id, "state": slot.state, "cordoned": slot.cordoned} for slot in slots})


def last_by_reservation(events: Iterable[Event]) -> Iterable[Event]:
    """The last event of each reservation."""
    return {event.reservation: event for event in events if event.reservation}.values()


def send_callbacks(engine: Engine, outgoing: Sequence[Outgoing]) -> None:
    """Send what the broker takes and forget it; what it does not take, `recover` sends again."""
    taken = []
    for each in outgoing:
        try:
            engine.dispatcher.send_callback(each)
        except ConnectionError:
            break
        taken.append(each.id)
    if taken:
        with engine.store.transaction() as transaction:
            transaction.delete_outgoing(taken)
