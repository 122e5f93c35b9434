"""The set of ports (adapters of database, Redis, EC2 and queues) that every operation gets, and the announcement of a
committed change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import msgspec

from scheduler.model.accounts import PAID
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.market import EXTRAS, StoredMarket
from scheduler.model.reservations import Reservation
from scheduler.model.rules import InForce, Rules, RulesInForce
from scheduler.model.slots import Slot
from scheduler.model.transitions import PHASES
from scheduler.model.view import Change
from scheduler.operations.admission import Admission, KnownSlots
from scheduler.operations.change_set import ChangeSet, describe_notice
from scheduler.operations.heartbeats import HostKeys
from scheduler.operations.market import resolve_rules, uses_market
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.reservations import CORES
from scheduler.operations.writers.slots import ASKED_AGAIN, BOOTING
from scheduler.ports import (
    ClusterRecord,
    Dispatcher,
    Fleet,
    Forecasts,
    Heartbeats,
    LeaderLock,
    Meter,
    NoForecasts,
    Notifier,
    NoWorkWatch,
    OutboxMessage,
    Probe,
    RulesVersion,
    Store,
    StoredRules,
    ViewCache,
    ViewUnavailableError,
    WorkWatch,
)

_NOTICED = frozenset(
    {
        *(f"reservation_{phase}" for phase in PHASES),
        *("reservation_moved", "reservation_granted", "reservation_revoked"),
    }
)
"""Names of the events after which a notice is published on the channel of their reservation. After an event CORES (a
new CPU limit of a lease) a notice is published too.
"""

TO_LEASE: Final = "leasehold_time_to_lease_seconds"
TO_STATE: Final = {"slot_binding": "leasehold_boot_seconds", "slot_ready": "leasehold_time_to_ready_seconds"}
SPENT: Final = "leasehold_account_spent_total"
PREEMPTIONS: Final = "leasehold_preemptions_total"
PREEMPTED: Final = "leasehold_preempted_total"
MOST_NAMED: Final = 5
"""The most slots that one warning about a refusal names."""
LOST: Final = frozenset({"gone", "lost"})
"""The reasons in the events of a slot that became empty because its machine disappeared."""


KNOWN_SECONDS: Final = 15.0
"""How long a process uses the forecasts of new reservations that it has read, before it reads them again."""


@dataclass
class Newcomers:
    """The forecasts of new reservations, as this process has read them last."""

    _by_kind: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _read_at: float | None = None

    def list_known(self, forecasts: Forecasts) -> Mapping[str, Mapping[str, Any]]:
        """Return the forecast of a reservation that is accepted now, by its kind (`name_kind`), as tables for answers.
        Kinds without a forecast are missing, and so are all while Redis does not answer.
        """
        now = monotonic()
        if self._read_at is None or now - self._read_at >= KNOWN_SECONDS:
            self._read_at = now
            try:
                found = forecasts.read_summary()
            except ViewUnavailableError:
                found = None
            newcomers = {} if found is None else found.newcomers
            self._by_kind = {kind: each.list_fields() for kind, each in newcomers.items()}
        return self._by_kind


@dataclass
class Ports:
    """The adapters (database, Redis, EC2, queues) that operations use, and values that a process keeps between
    operations. One object is created for a process and passed to every operation.
    """

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
    """Function that returns a new unique id for a launch."""
    work_watch: WorkWatch = field(default_factory=NoWorkWatch)
    forecasts: Forecasts = field(default_factory=NoForecasts)
    newcomers: Newcomers = field(default_factory=Newcomers)
    unchecked: dict[str, None] = field(default_factory=dict)
    """The ids of slots that sweeps of this process have chosen for a check and not sent yet, oldest first."""
    swept_at: float = 0.0
    """Cluster time at which a sweep of this process last sent checks."""
    record: ClusterRecord | None = None
    """The port to the cluster's record in Redis; None in a simulation, which has one process and no Redis."""
    rules_cache: StoredRules | None = None
    in_force: RulesInForce = field(default_factory=RulesInForce)
    time_zero: float = 0.0
    """The time, in seconds since the epoch, at which cluster time is 0. Only a simulation, whose time begins with 0,
    sets it: schedules need the date.
    """
    market_version: int | None = None
    """Version of the market with which the cached rules were resolved; None if they do not use the market."""
    extras: StoredMarket = field(default_factory=StoredMarket)
    """The stored prices of EXTRAS, and the version of the market that has them."""
    known_slots: KnownSlots = field(default_factory=KnownSlots)
    host_keys: HostKeys = field(default_factory=HostKeys)
    admission: Admission = field(default_factory=Admission)
    together: Callable[[], AbstractContextManager[object]] = nullcontext
    """A function that returns a context manager. Within it, publishes, notices and kicks of this thread may be delayed
    until its end. Then all are sent in their order, in one round trip.
    """
    is_observed: bool = True
    """Whether anything reads notices, hints to hosts and metrics. False in a simulation, in which operations make none
    of these.
    """
    warn: Callable[..., object] = lambda _sentence, **_fields: None
    """Writes a warning to the log of this process: `warn("Sentence.", action="noun.verb", slot=…)`. Default: no log."""
    is_own_stack: bool = False
    """Whether this process belongs to a stack that `leasehold up` runs with a Redis of its own. Only the owner of the
    stack can reach that Redis.
    """
    is_bounded: bool = True
    """Whether a tick limits its work for one principal. False in a simulation, where each tick plans everything."""

    def rules(self, version: RulesVersion | None = None) -> Rules:
        """Return the rules as applied, without the changed values of open schedules. `version`: the present versions,
        if the caller has just read them; None: they are read.
        """
        return self.stored_rules(version).rules

    def rules_at(self, now: float, version: RulesVersion | None = None) -> InForce:
        """Return the rules with the values that schedules put in force at `now` (cluster time), and the cluster time at
        which other values may come into force. `version`: the present versions, if the caller has just read them; None:
        they are read.
        """
        found = self.in_force.find(self.rules(version), now + self.time_zero)
        return found._replace(until=found.until - self.time_zero)

    def stored_rules(self, version: RulesVersion | None = None) -> StoredRules:
        """Return the rules as applied, with their version. Requirements in them are replaced by instance types and
        prices of the market. The rules are read from the database only if their version, or that of a market that they
        use, has changed. `version`: the present versions, if the caller has just read them; None: they are read.
        """
        present = self.store.rules_versions() if version is None else version
        cached = self.rules_cache
        is_current = cached is not None and cached.version == present.document
        if cached is None or not is_current or self.market_version not in {None, present.market}:
            cached = self.rules_cache = self._load_rules()
        return cached

    def extra_prices(self, version: RulesVersion) -> StoredMarket:
        """Return the prices of volumes and public addresses. The table of prices is read only if the version of the
        market has changed. `version`: the present versions.
        """
        if self.extras.version != version.market:
            market = self.store.load_market()
            prices = tuple(each for each in market.prices if each.type in EXTRAS)
            self.extras = StoredMarket(version=market.version, prices=prices)
        return self.extras

    def _load_rules(self) -> StoredRules:
        stored = self.store.load_rules()
        rules, self.market_version = stored.rules, None
        if not self.is_bounded:
            rules = rules.model_copy(update={"limits": rules.limits.model_copy(update={"work_per_tick": 0})})
        if uses_market(rules):
            market = self.store.load_market()
            rules, self.market_version = resolve_rules(rules, market), market.version
        return msgspec.structs.replace(stored, rules=rules)


@contextmanager
def cloud_work(ports: Ports) -> Iterator[UnitOfWork]:
    """Begin a transaction, and a unit of work in it whose events have the cause `cloud`. The end of the `with` block
    commits the transaction.
    """
    with ports.store.transaction() as transaction:
        yield UnitOfWork(transaction, "cloud")


def announce(ports: Ports, change_set: ChangeSet, *, kick: bool) -> None:
    """Announce a committed change: publish its rows to the view, then send slow work, notices and callbacks. `kick`:
    also request a tick, as the last step.

    The process may die at any point of this. The periodic tick repairs the view, and `recover` sends slow work
    (launches, terminations) and callbacks again. Notices and requested ticks are only hints, and may be lost.
    """
    changes: Sequence[Change] = [*change_set.rows, *change_set.gone]
    has_more = bool(change_set.outgoing or any(event.slot for event in change_set.events))
    with ports.together():
        if changes:
            ports.view_cache.publish(changes)
        if ports.is_observed:
            # A reservation gets one notice, about its last event. That of a new CPU limit counts only if it is alone.
            limits = [event for event in change_set.events if event.name == CORES]
            noticed = limits + [event for event in change_set.events if event.name in _NOTICED]
            rows = {row.id: row for row in change_set.rows if isinstance(row, Reservation)}
            last = {event.reservation: event for event in noticed if event.reservation in rows}
            if last:
                ports.notifier.notify(
                    {name: describe_notice(event, rows[name], change_set.slots) for name, event in last.items()}
                )
            # A lease that comes or goes on a static host also changes the slot, so its host gets a hint.
            hint_to_hosts(ports, change_set.hosts, change_set.find_new_commands())
        if kick and not has_more:
            ports.notifier.kick()
    if has_more:
        _send_slow_work(ports, change_set)
        send_callbacks(ports, change_set.outgoing)
        if kick:
            ports.notifier.kick()
    if ports.is_observed:
        _count_boots(ports.meter, change_set)
        _observe_times(ports.meter, change_set)
        _count_spending(ports.meter, change_set)
        for outcome in change_set.outcomes:
            ports.meter.count("leasehold_command_outcomes_total", {"why": outcome.why})
        _warn_of_refusals(ports, change_set)


def _warn_of_refusals(ports: Ports, change_set: ChangeSet) -> None:
    """Write a warning for each refusal of the cloud that a committed change records: one for each launch back-off that
    begins, however many slots it concerned, and one for all slots with the same words that were refused anything else.
    """
    for row in change_set.rows:
        if isinstance(row, Hold) and row.kind != "strangers" and row.code and row.refused_at == change_set.at:
            ports.warn(
                "EC2 refused launches.",
                action="launch.refused",
                pool=row.pool,
                offering=row.subject,
                kind=row.kind,
                code=row.code,
                reason=row.message,
                seconds=round(row.until - row.refused_at, 3),
            )
    others: dict[tuple[str, str], list[str]] = {}
    for event in change_set.events:
        if (words := event.detail.get("refusal")) and event.slot and event.detail.get("from") != "launching":
            others.setdefault((event.name, str(words)), []).append(event.slot)
    for (name, words), slots in others.items():
        code, _, reason = words.partition(": ")
        ports.warn(
            "EC2 ended machines, or refused to change them.",
            action="machine.refused",
            event_name=name,
            slots=slots[:MOST_NAMED],
            count=len(slots),
            code=code,
            reason=reason,
        )


def _send_slow_work(ports: Ports, change_set: ChangeSet) -> None:
    """Send the launches, terminations, starts and stops that a committed change requested, as tasks to their queues."""
    slots = {row.id: row for row in change_set.rows if isinstance(row, Slot)}
    moved = {event.slot: event.name for event in change_set.events if event.slot}
    if not moved:
        return
    ports.dispatcher.send_launches([slots[s] for s, name in moved.items() if name == "slot_launching" and s in slots])
    ports.dispatcher.send_terminations(
        [slots[s] for s, name in moved.items() if name in {"slot_terminating", ASKED_AGAIN} and s in slots]
    )
    powered = [slots[s] for s, name in moved.items() if name in {"slot_stopped", "slot_booting"} and s in slots]
    if powered := [slot for slot in powered if slot.power is not None]:
        ports.dispatcher.send_power(powered)


def hint_to_hosts(
    ports: Ports, slots: Iterable[Slot], commands: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> None:
    """Send a hint to the host of each of these slots. `commands`: slot id -> its leases whose commands are new."""
    hints = {slot.id: {"slot": slot.id, "state": slot.state, "cordoned": slot.cordoned} for slot in slots}
    if hints:
        named = {name: {"commands": new} for name, new in (commands or {}).items()}
        ports.notifier.push({name: hint | named.get(name, {}) for name, hint in hints.items()})


def send_callbacks(ports: Ports, outgoing: Sequence[OutboxMessage]) -> None:
    """Send callbacks (Celery tasks) to the producers' queues. Delete each callback that the broker accepted from the
    outbox; the periodic task `recover` sends the other callbacks again.
    """
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


def _count_boots(meter: Meter, change_set: ChangeSet) -> None:
    """Count in the metrics what a committed change shows: (1) each boot of a machine that ended, by its outcome, e.g.
    `success` when the slot became ready; (2) each machine that disappeared. Source: Arvados.
    """
    for event in change_set.events:
        slot = None if event.slot is None else change_set.slots.get(event.slot)
        if slot is None:
            continue
        state = str(event.detail.get("from", ""))
        if (ended := _outcome_of(event, state)) is not None:
            meter.count("leasehold_boot_outcomes_total", {"pool": slot.pool, "outcome": ended})
        if event.name == "slot_empty" and state != "terminating" and event.detail.get("reason") in LOST:
            meter.count("leasehold_slot_disappeared_total", {"state": state})


def _outcome_of(event: Event, state: str) -> str | None:
    """Return the outcome, as a label of metrics, if the event ended the boot of a machine; else return None. `state`:
    the state of the slot before the event.
    """
    if state not in BOOTING:
        return None
    match event.name:
        case "slot_ready":
            return "success"
        case "slot_terminating":
            return "failure" if event.detail.get("reason") == "timeout" else "aborted"
        case "slot_empty":
            return "disappeared"
        case _:
            return None


def _observe_times(meter: Meter, change_set: ChangeSet) -> None:
    """Record in the metrics the durations that ended with a committed change. They are the time from submission to the
    first lease (source: Orchard), and the times from EC2's answer to a launch until the machine runs and until it
    serves (source: Arvados).
    """
    waits = [each for event in change_set.events if isinstance(each := event.detail.get("waited"), float)]
    if waits:
        meter.observe(TO_LEASE, {}, *waits)
    for event in change_set.events:
        if event.name not in TO_STATE:
            continue
        slot = change_set.slots.get(event.slot or "")
        # `last_seen` of a launched slot is the time of EC2's answer to the launch.
        if slot is not None and slot.launch_id is not None and slot.last_seen is not None:
            meter.observe(TO_STATE[event.name], {"pool": slot.pool}, max(0.0, event.at - (slot.last_seen or event.at)))


def _count_spending(meter: Meter, change_set: ChangeSet) -> None:
    """Count in the metrics what accounts paid for leases. Also count each preemption, both for the account that gained
    a slot and for the account that lost it.
    """
    for account, spent in change_set.spent.items():
        for level in PAID:
            if spent[level]:
                meter.count(SPENT, _label(account, level), spent[level])
    preempting = [event for event in change_set.events if "preempted" in event.detail or "by" in event.detail]
    if not preempting:
        return
    rows = {row.id: row for row in change_set.rows if isinstance(row, Reservation)}
    for event in preempting:
        if isinstance(victims := event.detail.get("preempted"), list):
            _count_preemption(meter, PREEMPTIONS, event, rows, "level", len(victims))
        if "by" in event.detail:
            _count_preemption(meter, PREEMPTED, event, rows, "ran_at", 1)


def _count_preemption(
    meter: Meter, name: str, event: Event, rows: Mapping[str, Reservation], key: str, amount: int
) -> None:
    row, level = rows.get(event.reservation or ""), event.detail.get(key)
    if row is not None and isinstance(level, int):
        meter.count(name, _label(row.request.account or "", level), amount)


def _label(account: str, level: int) -> dict[str, str]:
    return {"account": account, "level": str(level)}
