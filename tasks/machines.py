"""The tasks of the queues `launch`, `health` and `terminate`. They launch, start, stop, check and end machines, and
send lost work again.

Launches run in threads, because a call may take up to a minute. Terminations have a queue of their own, so that they do
not wait behind launches.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from scheduler.model.rules import Rules, list_unfound
from scheduler.operations.machines.check import check, record_refused, recover, sweep
from scheduler.operations.machines.interrupt import handle_notices
from scheduler.operations.machines.joining import find_forgotten
from scheduler.operations.machines.launch import launch
from scheduler.operations.machines.power import start_all, stop_all
from scheduler.operations.machines.reconcile import Reconciled, reconcile
from scheduler.operations.machines.spot_prices import follow_spot_prices
from scheduler.operations.machines.terminate import terminate, terminate_all
from scheduler.operations.machines.work import act_once, launch_once
from scheduler.operations.market import refresh_market, uses_market
from scheduler.operations.rules.images import refresh_images
from scheduler.operations.run_times import learn_run_times
from scheduler.operations.tick.heartbeat_intake import hear_hosts
from scheduler.ports import CloudError
from tasks.app import app
from tasks.queues import (
    CHECK,
    HEAR,
    IMAGES,
    INTERRUPTIONS,
    LAUNCH_BATCH,
    LAUNCH_SLOT,
    LEARN,
    MARKET,
    PRUNE,
    RECONCILE,
    RECOVER,
    START_SLOTS,
    STOP_SLOTS,
    SWEEP,
    TERMINATE_SLOT,
    TERMINATE_SLOTS,
)
from workers.logs import get_logger

log = get_logger(__name__)
DAY: Final = 86400.0


@app.task(name=CHECK)
def check_slots(slot_ids: list[str]) -> str:
    """Record the states that EC2 and the probes report for the machines of these slots."""
    return f"moved: {check(app.services.ports, slot_ids)}"


@app.task(name=SWEEP)
def sweep_slots(all_machines: bool = False) -> str:  # noqa: FBT001, FBT002 - an argument of a message
    """Send messages that request checks of slots: of each slot whose machine is changing its state (see
    `operations.machines.check.sweep`), or with `all_machines` of all slots that have a machine.
    """
    return f"sent: {sweep(app.services.ports, all_machines=all_machines)}"


@app.task(name=HEAR)
def hear() -> str:
    """Record the heartbeats that static hosts (machines that are not launched on EC2) have sent."""
    return f"heard: {hear_hosts(app.services.ports)}"


@app.task(name=RECOVER)
def recover_lost() -> str:
    """Send messages again for launches, terminations and callbacks (messages to producers) that are decided, not done,
    and were not sent lately. Write the events about refused messages into the database. Look up the images that were
    not found yet.
    """
    count = recover(app.services.ports, app.services.settings.recover_interval)
    if count:
        log.info(
            "Messages for overdue launches, terminations or callbacks were sent again.",
            action="recover.sent",
            count=count,
        )
    record_refused(app.services.ports)
    if any(list_unfound(app.services.ports.rules())):
        # The pools of these images launch nothing meanwhile.
        _look_images_up()
    return f"sent: {count}"


@app.task(name=RECONCILE)
def reconcile_machines() -> str:
    """Compare the EC2 machines that have this cluster's tags with the slots. If the answer to a launch was lost, record
    its machine on the slot; terminate machines that belong to no slot.
    """
    found = reconcile(app.services.ports, app.services.settings.orphan_age)
    if found != Reconciled(strangers=found.trials, trials=found.trials):
        log.warning("Machines without a slot were found.", action="reconcile.found", **msgspec.structs.asdict(found))
    return f"strangers: {found.strangers}"


@app.task(name=INTERRUPTIONS)
def read_interruptions() -> str:
    """Record EC2's notices about interruptions of spot machines.

    The task waits for notices until shortly before the next such task is sent, so that copies do not pile up.
    """
    feed = app.services.notices
    if feed is None:
        return "no queue"
    handled = handle_notices(app.services.ports, feed, app.services.settings.aws.interruption_interval - 1)
    if handled.changed:
        log.info(
            "EC2's notices about interruptions were recorded.", action="interruptions.heeded", count=handled.changed
        )
    return f"heeded: {handled.changed}, left: {handled.left}"


def _look_images_up() -> str:
    found = refresh_images(app.services.ports, app.services.images)
    if found.changed:
        log.info("The images of pools have changed.", action="images.found", images=found.changed)
    if found.failed:
        log.warning("Images could not be looked up; the known ones stay.", action="images.failed", errors=found.failed)
    return f"changed: {len(found.changed)}, failed: {len(found.failed)}"


@app.task(name=IMAGES)
def find_images() -> str:
    """Look up the images that the rules name by a source (`ssm:…`, `newest:…`) and not by an id, and store their ids
    with the rules.
    """
    return _look_images_up()


@app.task(name=MARKET)
def read_market() -> str:
    """Read spot prices for the pools that use them. Also read instance types and on-demand prices if the known ones are
    too old.
    """
    store, settings = app.services.ports.store, app.services.settings.market
    rules = store.load_rules().rules
    if not uses_market(rules):
        # The ledger may need the prices of volumes and addresses.
        return f"prices: {_read_on_demand(rules)}" if settings.on_demand_interval else "no pool uses them"
    found = refresh_market(store, app.services.market, rules, catalogue_age=settings.catalogue_age)
    follow_spot_prices(app.services.ports)
    log.info(
        "Prices and instance types were read from EC2.",
        action="market.read",
        types=found.types,
        prices=found.prices,
        changed=found.changed,
    )
    count = _read_on_demand(rules) if settings.on_demand_interval else 0
    return f"prices: {found.prices + count}"


def _read_on_demand(rules: Rules) -> int:
    """Read the on-demand prices if a reading is due, and return their number. If AWS refuses it, log this once and
    return 0; imported prices remain.
    """
    reader, interval = app.services.on_demand, app.services.settings.market.on_demand_interval
    try:
        found = reader.read(app.services.ports.store, app.services.market, rules, interval)
    except CloudError as error:
        if not reader.is_refused:
            log.warning(
                "On-demand prices cannot be read from AWS's price list; imported and known prices remain.",
                action="market.prices_refused",
                error=str(error),
            )
        reader.is_refused = True
        return 0
    if found is None:
        return 0
    reader.is_refused = False
    log.info(
        "On-demand prices were read from AWS's price list.",
        action="market.prices",
        prices=found.prices,
        changed=found.changed,
    )
    return found.prices


@app.task(name=LEARN)
def learn() -> str:
    """Count the leases that were released lately into the run times of their classes."""
    return f"ended: {learn_run_times(app.services.ports)}"


@app.task(name=PRUNE)
def prune() -> str:
    """Delete events, answers, ended reservations, costs and price changes that are older than the settings allow."""
    keep, store = app.services.settings.keep, app.services.ports.store
    now = store.now()
    count = store.prune(
        events_before=now - keep.events_days * DAY,
        requests_before=find_forgotten(now, keep.requests),
        ended_before=now - keep.ended_days * DAY,
    )
    count += store.prune_ledger(
        costs_before=now - keep.costs_days * DAY,
        machines_before=now - keep.events_days * DAY,
        prices_before=now - keep.prices_days * DAY,
    )
    log.info(
        "Events, answers and ended reservations were deleted, as they were older than `keep` allows.",
        action="prune.done",
        count=count,
    )
    return f"forgotten: {count}"


@app.task(name=LAUNCH_SLOT)
def launch_slot(slot_id: str, launch_id: str) -> str:
    """Launch a machine on EC2 for this slot, if the slot still waits for the launch with the id `launch_id`."""
    ports = app.services.ports
    result = launch_once(ports, launch_id, lambda: launch(ports, launch_id, slot_id))
    log.info(
        "A machine was launched." if result == "success" else "No machine was launched.",
        action=f"launch.{result}",
        slot=slot_id,
    )
    return result


@app.task(name=LAUNCH_BATCH)
def launch_slots(batch: str) -> str:
    """Launch the machines of all slots of this batch by one request to EC2."""
    ports = app.services.ports
    result = launch_once(ports, batch, lambda: launch(ports, batch))
    log.info(
        "The machines of a batch were launched." if result == "success" else "A batch was not launched.",
        action=f"launch.{result}",
        batch=batch,
    )
    return result


def _log_outcomes(action: str, outcomes: Mapping[str, str], requested: str, other: str) -> str:
    """Log one line for each different outcome, with the number of slots that had it. Return the different outcomes as
    one text. `outcomes`: slot -> outcome. `requested`: the sentence for the outcome "asked" (EC2 was asked); `other`:
    the sentence for any other outcome.
    """
    for result, count in Counter(outcomes.values()).items():
        log.info(requested if result == "asked" else other, action=f"{action}.{result}", slots=count)
    return ", ".join(sorted(set(outcomes.values())))


@app.task(name=START_SLOTS)
def start_slots(slots: list[tuple[str, int]]) -> str:
    """Start the stopped machines that these slots have in these epochs, given as pairs (slot, epoch)."""
    outcomes = act_once(app.services.ports, "start", [(slot, epoch) for slot, epoch in slots], start_all)
    return _log_outcomes("start", outcomes, "The starts of machines were requested.", "Machines were not started.")


@app.task(name=STOP_SLOTS)
def stop_slots(slots: list[tuple[str, int]]) -> str:
    """Stop the machines that these slots have in these epochs, given as pairs (slot, epoch)."""
    outcomes = act_once(app.services.ports, "stop", [(slot, epoch) for slot, epoch in slots], stop_all)
    return _log_outcomes("stop", outcomes, "The stops of machines were requested.", "Machines were not stopped.")


_ENDS: Final = {
    "asked": "The end of machines was requested.",
    "not_due": "The end of machines is put off: EC2 did not accept it before.",
    "empty": "No machine had to be ended.",
    "not_wanted": "No machine had to be ended.",
}
"""Outcome of the termination of a slot's machine -> sentence. Any other outcome is the category of an error of EC2."""


def _log_ends(outcomes: Mapping[str, str], **fields: object) -> str:
    """Log one line for each different outcome of terminations, with the number of slots that had it, and as a warning
    if EC2 did not accept them. Return the different outcomes as one text. `outcomes`: slot -> outcome.
    """
    for result, count in Counter(outcomes.values()).items():
        sentence = _ENDS.get(result, "EC2 did not accept the end of machines; it is requested again.")
        write = log.info if result in _ENDS else log.warning
        write(sentence, action=f"terminate.{result}", slots=count, **fields)
    return ", ".join(sorted(set(outcomes.values())))


@app.task(name=TERMINATE_SLOTS)
def terminate_slots(slots: list[tuple[str, int]]) -> str:
    """End the machines that these slots have in these epochs, given as pairs (slot, epoch)."""
    return _log_ends(act_once(app.services.ports, "terminate", [(slot, epoch) for slot, epoch in slots], terminate_all))


@app.task(name=TERMINATE_SLOT)
def terminate_slot(slot_id: str, epoch: int) -> str:
    """End the machine that this slot has in the epoch `epoch`; a machine of another epoch of the slot is not ended."""
    outcomes = act_once(
        app.services.ports,
        "terminate",
        [(slot_id, epoch)],
        lambda ports, _: {slot_id: terminate(ports, slot_id, epoch)},
    )
    return _log_ends(outcomes, slot=slot_id, epoch=epoch)
