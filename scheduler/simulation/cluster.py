"""The simulated cluster: the operations of production with ports in memory, a virtual clock and a simulated cloud."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any

import msgspec

from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.events import Event
from scheduler.model.pools import find_pool_of_number
from scheduler.model.reservations import Lease, Reservation, list_instances
from scheduler.model.rules import expiry_of_lease, list_image_sources, read_rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED, HOLDING, INACTIVE
from scheduler.operations.change_set import ChangeSet
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.commands.submit import Submission, new_reservation, submit
from scheduler.operations.market import save_market
from scheduler.operations.ports import Ports, announce
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.run_times import record_runs
from scheduler.operations.tick.leader import Leader
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.quota.accounting import weigh
from scheduler.simulation.cloud import EventQueue, SimulatedCloud, SimulatedDispatcher, SimulatedViewCache
from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.market import SimulatedMarket
from scheduler.simulation.scenario import SLOT_HISTORY, LeaseRecord, ReservationRecord, SlotRecord, list_history
from scheduler.store.memory import MemoryStore
from scheduler.view.memory import MemoryHeartbeats, MemoryLeaderLock, MemoryMeter, MemoryNotifier


@dataclass
class SimulatedCluster:
    """A simulated cluster: virtual clock, cloud, workers, database in memory, and the ports that connect them."""

    event_queue: EventQueue
    cloud: SimulatedCloud
    dispatcher: SimulatedDispatcher
    store: MemoryStore
    notifier: MemoryNotifier
    ports: Ports
    leader: Leader

    def find_slot(self, name: str) -> Slot | None:
        """Return the present row of the slot with the id `name`; None if there is no such slot."""
        return next(iter(self.store.find_slots(ids=[name])), None)

    def change(
        self,
        apply: Callable[[UnitOfWork], object],
        load: Callable[[UnitOfWork], object],
        *,
        kick_for_marks: bool = False,
    ) -> ChangeSet:
        """Run `apply`, which carries out a command as an operator, on the rows that `load` loads. Publish the changed
        rows, and return all changes.

        A refused command changes nothing. A change that moves only times of rows (a renewal, a heartbeat) requests a
        tick only with `kick_for_marks`; any other change requests a tick.
        """
        with self.store.transaction() as transaction:
            work = UnitOfWork(transaction, "operator")
            load(work)
            with suppress(CommandRefused):
                apply(work)
            change_set = work.flush()
        announce(self.ports, change_set, kick=change_set.is_change or (kick_for_marks and bool(change_set.rows)))
        return change_set


def build_cluster(config: dict[str, Any], delays: CloudDocument) -> SimulatedCluster:
    """Return a simulated cluster without slots, under the rules `config`, at time 0. `delays`: the settings of the
    simulated cloud.
    """
    event_queue = EventQueue()
    cloud = SimulatedCloud(event_queue, delays)
    dispatcher = SimulatedDispatcher(event_queue, cloud)
    store = MemoryStore(lambda: event_queue.now)
    notifier = MemoryNotifier(clock=lambda: event_queue.now, kick_seconds=inf)
    numbers = count(1)
    ports = Ports(
        store=store,
        view_cache=SimulatedViewCache(),
        lock=MemoryLeaderLock(clock=lambda: event_queue.now),
        notifier=notifier,
        heartbeats=MemoryHeartbeats(lambda: event_queue.now),
        dispatcher=dispatcher,
        meter=MemoryMeter(),
        fleet=cloud,
        probe=cloud,
        new_id=lambda: f"launch-{next(numbers)}",
        is_observed=False,
        is_bounded=False,
    )
    leader = Leader(holder="simulation", interval=inf, lock_seconds=inf)
    dispatcher.ports = ports
    cluster = SimulatedCluster(event_queue, cloud, dispatcher, store, notifier, ports, leader)
    if delays.market.is_on:
        _open_market(cluster, config)
    apply_simulated(ports, config)
    notifier.hear()
    return cluster


def apply_simulated(ports: Ports, config: dict[str, Any], prefix: str = "") -> None:
    """Apply rules to a simulated cluster, whose cloud has every image. `prefix`: as in `apply_rules`."""
    images = {source: f"image-of-{source}" for source in list_image_sources(read_rules(config, prefix))}
    apply_rules(ports, config, prefix=prefix, images=images)


def _open_market(cluster: SimulatedCluster, config: dict[str, Any]) -> None:
    """Give the cluster its simulated market, read the first prices, and schedule the later reads. A read that finds
    other prices requests a tick, because a simulation has no periodic tick.
    """
    queue, store, rules = cluster.event_queue, cluster.store, read_rules(config)
    market = cluster.cloud.market = SimulatedMarket(cluster.cloud.delays.market, rules)
    save_market(store, types=market.read_types(queue.now))
    market.refresh(store, rules)

    def refresh() -> None:
        if market.refresh(store, store.load_rules().rules):
            cluster.notifier.kick()

    def repeat() -> None:
        refresh()
        queue.note(queue.now + market.document.interval, repeat)

    for at in market.list_reads():
        if at > 0:
            queue.note(at, refresh)
    if market.moves:
        queue.note(market.document.interval, repeat)


def put_reservations(cluster: SimulatedCluster, given: Iterable[ReservationRecord]) -> None:
    """Insert the reservations that a scenario has at its start, in this order and with the phases of their records."""
    rules, now = cluster.ports.rules(), cluster.event_queue.now
    rows = []
    for document in given:
        row = new_reservation(document, rules, document.created_at)
        if document.phase != "pending":
            held = document.phase in {"leased", "revoking"}
            expires_at = row.expires_at
            if held and expires_at is None:
                expires_at = expiry_of_lease(row.request, rules, now)
            row = msgspec.structs.replace(
                row,
                phase=document.phase,
                expires_at=expires_at,
                leased_at=now if held else None,
                finished_at=None if held else now,
            )
        rows.append(row)
    with cluster.store.transaction() as transaction:
        transaction.insert_reservations(rows)


def submit_all(cluster: SimulatedCluster, documents: Iterable[ReservationDocument]) -> ChangeSet:
    with cluster.store.transaction() as transaction:
        _, change_set = submit(transaction, cluster.ports.rules(), [Submission(list(documents))])
    announce(cluster.ports, change_set, kick=change_set.is_change)
    return change_set


def count_released(cluster: SimulatedCluster, events: Iterable[Event], rows: Iterable[Reservation]) -> None:
    """Count the leases that were released with these events into the run times of their classes. `rows`: the present
    reservations of the events. Workers count some time after the release.
    """
    released = {event.reservation for event in events if event.name == "reservation_released"}
    if released:
        with cluster.store.transaction() as transaction:
            change_set = record_runs(transaction, [row for row in rows if row.id in released])
        announce(cluster.ports, change_set, kick=False)


def put_slot(cluster: SimulatedCluster, given: SlotRecord) -> None:
    """Create or replace the slot that a slot record describes, with its machine and leases.

    If the slot is between two states (`booting`, `terminating`, ...), its next changes of state are scheduled.
    """
    now = cluster.event_queue.now
    with cluster.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        work.load(slots=[given.id], reservations=[lease.reservation for lease in given.leases])
        known = work.slots.get(given.id)
        made = _make_slot(cluster, given, known, _find_epoch(work, given, known), now)
        slot = msgspec.structs.replace(made, **list_history(given, SLOT_HISTORY))
        # The machine that the slot had is booked until now.
        work.put(slot if known is None else msgspec.structs.replace(slot, meter=known.meter))
        for lease in given.leases:
            holder = work.reservations.get(lease.reservation)
            if holder is not None and holder.phase not in ENDED:
                _put_lease(work, cluster, slot, holder, lease)
        work.add_event(Event(at=now, name="slot_given", cause="operator", slot=slot.id))
        change_set = work.flush()
    announce(cluster.ports, change_set, kick=True)
    _go_on(cluster, next(row for row in change_set.rows if isinstance(row, Slot) and row.id == given.id))


def put_absent_host(cluster: SimulatedCluster, name: str) -> None:
    """Create an `empty` slot for a host of a static pool if the slot does not exist, so that the host may register
    later.
    """
    pool = find_pool_of_number(name, {pool: rules.most_slots for pool, rules in cluster.ports.rules().pools.items()})
    if pool is not None and cluster.find_slot(name) is None:
        put_slot(cluster, SlotRecord(id=name, pool=pool, state="empty"))


def _find_epoch(work: UnitOfWork, given: SlotRecord, known: Slot | None) -> int:
    """Return the epoch that a slot gets from the slot record `given`. `known`: the present row of the slot; None: there
    is no such slot.

    The epoch is a new one in two cases: the record has another machine than the slot, or leases of a removed slot or
    lost machine remain. So earlier leases do not count as leases on the present machine.
    """
    has_left = (known is None or known.state == "empty") and bool(work.leases.list_all(given.id))
    if known is None:
        return work.leases.last_epoch(given.id) + has_left
    is_another = known.machine is not None and given.machine is not None and known.machine != given.machine
    return known.epoch + (is_another or has_left)


def _make_slot(cluster: SimulatedCluster, given: SlotRecord, known: Slot | None, epoch: int, now: float) -> Slot:
    pool = cluster.ports.rules().pools[given.pool]
    offering = pool.offering_by_key.get(given.offering or "")
    since = now if given.since is None else given.since
    has_machine = given.state not in INACTIVE and pool.is_elastic
    offered = pool.resources if offering is None or offering.resources is None else offering.resources
    resources = offered if given.resources is None else given.resources
    idle = given.state == "ready" and not given.leases
    return Slot(
        version=known.version if known else 0,
        id=given.id,
        pool=given.pool,
        state=given.state,
        epoch=epoch,
        since=since,
        idle_since=(since if given.idle_since is None else given.idle_since) if idle else given.idle_since,
        offering=given.offering,
        market=offering.market if offering and given.market is None else given.market,
        price=offering.price if offering and given.price is None else given.price,
        resources=resources,
        labels=given.labels
        if given.labels is not None
        else {**pool.labels, **((offering.labels if offering else None) or {})},
        machine=given.machine,
        cordoned=given.cordoned,
        last_seen=now if given.last_seen is None else given.last_seen,
        uses=len(given.leases),
        launch_id=f"given-{given.id}-{epoch}" if has_machine else None,
        storage_price=pool.stopped_price if given.state == "stopped" else None,
        launched_at=since if has_machine else None,
        launch_digest=("image:other" if given.drifted else pool.launch_digest) if has_machine else None,
        instance_id=f"i-{given.id}-{epoch}" if has_machine and given.state != "launching" else None,
    )


def _put_lease(
    work: UnitOfWork, cluster: SimulatedCluster, slot: Slot, reservation: Reservation, given: LeaseRecord
) -> None:
    """Store the lease of a slot record as a lease of its reservation. The lease counts as confirmed, and the
    reservation as leased.

    If the record's `state` is `claimed`, the reservation stays pending and waits for the slot.
    """
    is_claim = given.state == "claimed"
    token = 0 if is_claim else reservation.token or work.transaction.next_tokens(1)[0]
    lease = _make_lease(cluster, slot, reservation, given, token)
    if lease.kind == "elastic":
        lease = msgspec.structs.replace(lease, token=work.transaction.next_tokens(1)[0])
    leases = (*(each for each in reservation.leases if each.component != given.component), lease)
    if is_claim:
        work.put(msgspec.structs.replace(reservation, leases=leases))
        return
    expiry = expiry_of_lease(reservation.request, cluster.ports.rules(), work.now)
    work.put(
        msgspec.structs.replace(
            reservation,
            phase="leased" if reservation.phase == "pending" else reservation.phase,
            leases=leases,
            token=token,
            confirmed_at=work.now,
            leased_at=work.now,
            expires_at=expiry if reservation.expires_at is None else reservation.expires_at,
        )
    )


def _make_lease(
    cluster: SimulatedCluster, slot: Slot, reservation: Reservation, given: LeaseRecord, token: int
) -> Lease:
    """Return the lease that a slot record describes. It accumulates cost from now on if accounts pay for leases."""
    rules, now = cluster.ports.rules(), cluster.event_queue.now
    pool = rules.pools[slot.pool]
    settings = rules.settings_of(reservation.request.pool, reservation.request.system)
    is_metered = settings.queue == "quota"
    instances = [each for kind in ("essential", "elastic") for each in list_instances(reservation.request, kind)]
    asked = next(each.component for each in instances if each.name == given.component)
    resources = {**pool.default_resources, **asked.resources} if given.resources is None else given.resources
    return Lease(
        component=given.component,
        kind=asked.kind,
        slot=slot.id,
        epoch=slot.epoch,
        token=token,
        resources=resources,
        level=given.level,
        cost=given.cost,
        charged_at=now if is_metered and given.state != "revoking" else None,
        weight=weigh(resources, slot, pool, settings) if is_metered else 1.0,
        assigned_at=now if given.assigned_at is None else given.assigned_at,
        confirmed_at=now,
        state=given.state,
        revoke_by=given.revoke_by,
        revoke_reason=given.revoke_reason,
        cores=given.cores,
    )


def _go_on(cluster: SimulatedCluster, slot: Slot) -> None:
    """Schedule the next changes of a slot that is between two states (`booting`, ...). Their times are counted from the
    slot's `since`, when the present state began.
    """
    delays = cluster.cloud.delays
    if slot.launch_id is None:
        return
    if slot.state == "launching":
        cluster.dispatcher.go_on_launching(slot)
        return
    runs_at = slot.since + (delays.boot if slot.state == "booting" else 0.0)
    serves_at = runs_at + (delays.bind if slot.state in {"booting", "binding"} else 0.0)
    name = slot.instance_id or ""
    cluster.cloud.put(name, slot.id, slot.launch_id, runs_at, serves_at)
    if slot.state == "stopped":
        cluster.cloud.put_stopped(name)
    if slot.state == "terminating":
        cluster.cloud.end(name, slot.since + delays.terminate)
    if slot.state not in HOLDING:
        cluster.dispatcher.note_checks(slot)
