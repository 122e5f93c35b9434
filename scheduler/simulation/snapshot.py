"""Snapshot: the live state of the cluster as a scenario for `leasehold simulate`, to try changes from now on."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from scheduler.model.launch_backoff import Hold
from scheduler.model.lives import find_drift
from scheduler.model.pools import Pool
from scheduler.model.reservations import PublicRequest, Reservation, is_over
from scheduler.model.rules import AccountKeys, Rules
from scheduler.model.run_times import RunTimes, list_classes, read_class
from scheduler.model.slots import Slot, slot_order
from scheduler.model.view import Row, View
from scheduler.policy.quota.accounting import charge, settle, sum_running
from scheduler.simulation.scenario import RESERVATION_HISTORY, SLOT_HISTORY

_DIGITS: Final = 6
"""Decimals of seconds in a snapshot. More decimals would be meaningless: a float of the present time in seconds since
the epoch has no more.
"""
_OF_HOLDS: Final = ("pool", "kind", "subject", "delay", "active", "streak")
_OF_REQUESTS: Final = tuple(name for name in PublicRequest.__struct_fields__ if name != "components")
_OF_ACCOUNTS: Final = (*AccountKeys.model_fields, "balance")
_OF_MACHINES: Final = ("market", "price")
"""The fields of a slot's row that describe its machine as it was launched. The snapshot contains these fields, because
the rules of the slot's offering may have changed since the launch.
"""
_UNSEEN: Final = ("ec2", "probe")
"""The keys of a pool in the rules that a simulation does not read. A snapshot does not contain these keys, because
their values may be confidential.
"""


def make_snapshot(
    rows: Iterable[Row], document: Mapping[str, Any], rules: Rules, cloud: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Return a scenario that starts with these database rows and rules, and whose time 0 is `now`. `document`: the
    rules as they were applied; `rules`: these rules, checked. `cloud`: the settings of the simulated cloud.

    Ended reservations, callbacks and fencing tokens are not in the scenario. Empty slots of elastic pools are not in it
    either, unless they are cordoned.
    """
    view = View(rows)
    live = sorted((each for each in view.reservations.values() if not is_over(each)), key=lambda each: each.sequence)
    pools = list(rules.pools)
    slots = [
        each
        for each in view.slots.values()
        if each.pool in rules.pools
        and (each.state != "empty" or each.cordoned or not rules.pools[each.pool].is_elastic)
    ]
    slots.sort(key=lambda each: (pools.index(each.pool), slot_order(each.id)))
    holds = [each for each in view.holds.values() if each.pool in {*pools, "*"}]
    is_dated = any(pool.schedules for pool in rules.pools.values()) or any(
        each.is_timed for each in rules.budgets.values()
    )
    tables = {}
    for account in sorted(view.accounts.values(), key=lambda each: each.id):
        if account.forgotten:
            continue
        if rules.has_quota:
            owned = (each for each in view.reservations.values() if view.account_of(each) == account)
            leases = [lease for each in owned for lease in each.leases]
            account = charge(account, sum_running(account, leases, now), now)  # noqa: PLW2901 - the same account, charged
        tables[account.id] = {name: msgspec.to_builtins(getattr(account, name)) for name in _OF_ACCOUNTS}
    names = dict.fromkeys(name for row in live for name in list_classes(row.request, row.principal))
    known = [row for name in names if (row := view.run_times.get(name)) is not None]
    return {
        "name": "snapshot",
        **({"starts_at": now} if is_dated else {}),
        "config": _without_unseen(document) | ({"accounts": tables} if tables or rules.accounts else {}),
        "cloud": dict(cloud),
        "slots": [_describe_slot(view, each, rules.pools[each.pool], now) for each in slots],
        "reservations": [_describe_reservation(each, view, now) for each in live],
        "holds": [_describe_hold(each, now) for each in sorted(holds, key=lambda each: each.id)],
        **({"run_times": [_describe_class(row) for row in known]} if known else {}),
        "timeline": [{"at": 0, "tick": True}],
        "kicks": True,
        "wakes": True,
    }


def _describe_class(row: RunTimes) -> dict[str, Any]:
    """Return the run times of a class as a record of a scenario. The sizes are the least numbers of the class."""
    fields = dict(zip(("account", "principal", "job", "system", "instances", "cpus"), read_class(row.id), strict=False))
    sizes = {name: (1 << bits) >> 1 for name, bits in fields.items() if isinstance(bits, int)}
    ratios = {"ratios": list(row.ratios)} if row.ratios else {}
    return {**fields, **sizes, "seconds": list(row.seconds), **ratios}


def _without_unseen(document: Mapping[str, Any]) -> dict[str, Any]:
    pools = document.get("pools", {})
    seen = {name: {key: each[key] for key in each if key not in _UNSEEN} for name, each in pools.items()}
    return {**document, "pools": seen}


def _since(at: float | None, now: float) -> float | None:
    return None if at is None else round(at - now, _DIGITS)


def _describe_slot(view: View, slot: Slot, pool: Pool, now: float) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": slot.id,
        "pool": slot.pool,
        "state": slot.state,
        "resources": slot.resources,
        "labels": slot.labels,
        "offering": slot.offering,
        "machine": slot.machine,
        "cordoned": slot.cordoned,
        "leases": [{"reservation": owner, "component": lease.component} for owner, lease in _present(view, slot)],
    }
    record = {key: value for key, value in record.items() if value is not None}
    for lease, (_, known) in zip(record["leases"], _present(view, slot), strict=True):
        lease["resources"] = known.resources
        state: dict[str, Any] = {}
        if known.state != "held":
            state = {"state": known.state, "revoke_by": _since(known.revoke_by, now)}
        if known.revoke_reason is not None:
            state["revoke_reason"] = known.revoke_reason
        cost = list(settle(known, now).cost)
        lease.update({"level": known.level, "cost": cost, "assigned_at": _since(known.assigned_at, now), **state})
        lease.update({"cores": known.cores} if known.cores is not None else {})
    record |= {name: value for name in _OF_MACHINES if (value := getattr(slot, name)) is not None}
    for name in ("since", "idle_since"):
        if (at := getattr(slot, name)) is not None:
            record[name] = _since(at, now)
    if find_drift(slot, pool.launch_digest):
        record["drifted"] = True
    return record | {name: _field(slot, name, now) for name in SLOT_HISTORY}


def _present(view: View, slot: Slot) -> list[Any]:
    return [(owner, lease) for owner, lease in view.leases_of(slot.id) if lease.epoch == slot.epoch]


def _field(row: Slot | Reservation, name: str, now: float) -> Any:
    """Return the value of a row's field for the snapshot. A time is returned as seconds from `now`."""
    value = getattr(row, name)
    is_time = name.endswith("_at") or name in {"interrupted_by", "revoke_by", "last_seen"}
    return _since(value, now) if is_time else list(value) if isinstance(value, tuple) else value


def _describe_reservation(row: Reservation, view: View, now: float) -> dict[str, Any]:
    request = row.request
    fields = {name: getattr(request, name) for name in _OF_REQUESTS}
    if request.account in view.accounts and view.account_of(row) is None:
        # The account was forgotten after the submit, so the reservation has none, even if the name exists again.
        fields["account"] = None
    return {
        "id": row.id,
        "phase": row.phase,
        "priority": row.priority,
        "created_at": _since(row.created_at, now),
        "components": [msgspec.structs.asdict(each) for each in request.components],
        **{name: value for name, value in fields.items() if value is not None},
        **{name: _field(row, name, now) for name in RESERVATION_HISTORY if name != "principal"},
        **({} if row.principal is None else {"principal": row.principal}),
    }


def _describe_hold(hold: Hold, now: float) -> dict[str, Any]:
    times = {name: _since(getattr(hold, name), now) for name in ("refused_at", "until", "decided_at")}
    return {name: getattr(hold, name) for name in _OF_HOLDS} | times
