"""Queue `health`: looks at machines, and the level triggers that bring back what got lost."""

from typing import Final

import msgspec

from scheduler.operations.machines.check import check
from scheduler.operations.machines.interrupt import heed_notices
from scheduler.operations.machines.reconcile import Reconciled, reconcile
from scheduler.operations.machines.recover import recover, sweep
from scheduler.operations.refused import record_refused
from scheduler.operations.tick.heartbeat_intake import hear_hosts
from tasks.app import app, services
from tasks.queues import CHECK, HEAR, INTERRUPTIONS, PRUNE, RECONCILE, RECOVER, SWEEP
from workers.logs import get_logger

log = get_logger(__name__)

DAY: Final = 86400.0


@app.task(name=CHECK)
def check_slots(slot_ids: list[str]) -> str:
    """Mirror what EC2 and the probes say of these slots' machines."""
    return f"moved: {check(services.ports, slot_ids)}"


@app.task(name=SWEEP)
def sweep_slots(all_machines: bool = False) -> str:  # noqa: FBT001, FBT002 - an argument of a message
    """Have every slot looked at that is on its way up or down, or every one that has a machine."""
    return f"sent: {sweep(services.ports, all_machines=all_machines)}"


@app.task(name=HEAR)
def hear() -> str:
    """Take note of the heartbeats of static hosts."""
    return f"heard: {hear_hosts(services.ports)}"


@app.task(name=RECOVER)
def recover_lost() -> str:
    """Send again what was decided and neither done nor sent lately; write the events of refused messages."""
    count = recover(services.ports, services.settings.recover_interval)
    if count:
        log.info("Sent again what was due.", action="recover.sent", count=count)
    record_refused(services.ports)
    return f"sent: {count}"


@app.task(name=RECONCILE)
def reconcile_machines() -> str:
    """Hold what EC2 runs under our tags against the slots: nothing is leaked, and no answer stays lost."""
    found = reconcile(services.ports, services.settings.orphan_age)
    if found != Reconciled():
        counts = msgspec.structs.asdict(found)
        log.warning("Machines ran that no slot knew of.", action="reconcile.found", **counts)
    return f"strangers: {found.strangers}"


@app.task(name=INTERRUPTIONS)
def read_interruptions() -> str:
    """Heed what EC2 says ahead of the end of its spot machines.

    It waits for a message until shortly before the next of these tasks comes, so copies do not pile up.
    """
    feed = services.notices
    if feed is None:
        return "no queue"
    heeded = heed_notices(services.ports, feed, services.settings.aws.interruption_interval - 1)
    if heeded.changed:
        log.info("Heeded notices of EC2.", action="interruptions.heeded", count=heeded.changed)
    return f"heeded: {heeded.changed}, left: {heeded.left}"


@app.task(name=PRUNE)
def prune() -> str:
    """Forget events, answers and ended reservations that are older than the settings say."""
    keep, store = services.settings.keep, services.ports.store
    now = store.now()
    count = store.prune(
        events_before=now - keep.events_days * DAY,
        requests_before=now - keep.requests,
        ended_before=now - keep.ended_days * DAY,
    )
    log.info("Forgot what is old.", action="prune.done", count=count)
    return f"forgotten: {count}"
