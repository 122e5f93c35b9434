"""Texts for people about three things: (1) the facts about a slot that its state does not show; (2) what pauses the
launches of a pool; (3) what a quota account has left and when it can pay again. Source for accounts: qscheduler.
"""

from collections.abc import Collection, Iterator
from math import ceil
from typing import Final

import msgspec

from scheduler.model.accounts import FREE, NOTHING, PAID, Account, Levels, add, at_level, level_of
from scheduler.model.launch_backoff import Hold, Kind
from scheduler.model.lives import find_drift
from scheduler.model.pools import Pool
from scheduler.model.quota_classes import show_class
from scheduler.model.rules import Rules
from scheduler.model.schedules import OVERRIDES, find_window, show_instant
from scheduler.model.slots import ADOPTED, Slot
from scheduler.model.transitions import IN_FLIGHT, INACTIVE
from scheduler.model.view import View
from scheduler.policy.lifecycle.timers import find_timeout, is_silent
from scheduler.policy.quota.accounting import charge, sum_running
from scheduler.policy.scaling.offerings import count_mix, describe_turn, find_end

_MINUTE: Final = 60
_HOUR: Final = 3600
_REASONS: Final = {
    "requested": "an operator drains it",
    "leaving": "the host leaves",
    "interrupted": "EC2 takes its machine back",
    "rebalance": "EC2 recommends to replace its machine",
    "maintenance": "EC2 will stop, restart or retire its machine",
    "idle": "it was idle for too long",
    "at_quota": "EC2's quota is reached and a launch needs its place",
    "over_budget": "a budget does not allow it any more",
    "unconfigured": "its offering is not configured any more",
    "unhealthy": "it is unhealthy",
    "silent": "its agent is silent",
    "unclean": "a lease on it was not released by its holder",
    "used_up": "its machine has had max_uses leases",
    "aged": "its machine is older than max_age",
    "drifted": "its machine differs from what the pool launches now",
    "consolidated": "a cheaper offering can replace it",
    "surplus": "the stopped tier of its pool has enough slots",
}
_ANSWERS: Final = {
    "empty": "EC2 refused or ended its last machine",
    "error": "EC2 refused its last machine",
    "terminating": "EC2 refuses to end its machine",
}
"""State of a slot -> what EC2's words on the slot (`refusal`) are about."""


def describe_slot(slot: Slot, pool: Pool | None, now: float) -> list[str]:
    """Return short texts about a slot: each is a fact at `now` (seconds since the epoch) that the slot's state does not
    show. Return [] if there are none. `pool`: the rules of the slot's pool; None: the pool is not configured.
    """
    conditions = [*_describe_way(slot, pool, now), *_describe_loss(slot, pool, now)]
    if pool is not None and slot.state not in INACTIVE and (parts := find_drift(slot, pool.launch_digest)):
        conditions.append(f"drifted: the pool has another {', '.join(map(str, parts))} now")
    if slot.cordoned:
        conditions.append("cordoned: takes no new leases")
    if slot.stranger is not None:
        conditions.append(
            f"the unknown reservation {slot.stranger} was confirmed on it: takes no leases until it is reported as idle"
        )
    if slot.unconfirmed:
        conditions.append(f"unconfirmed leases in a row: {_of(slot.unconfirmed, pool)}")
    if slot.failed_probes:
        conditions.append(f"failed probes in a row: {_of(slot.failed_probes, pool)}")
    if pool is None:
        conditions.append(f"its pool {slot.pool} is not configured any more")
    return conditions


def describe_pool(view: View, rules: Rules, name: str, now: float, kinds: Collection[Kind] | None = None) -> list[str]:
    """Return texts about what pauses the launches of a pool at `now`: one for each launch back-off, with its reason and
    its end. If the pool mixes markets, one more text is about the market of the next launch.

    `kinds`: only back-offs of these kinds are described, and the market only if `capacity` is among them (default:
    all).
    """
    holds = [each for each in view.holds.values() if each.pool in {name, "*"} and (kinds is None or each.kind in kinds)]
    holds.sort(key=lambda each: each.id)
    pool, slots = rules.pools[name], [slot for slot in view.slots.values() if slot.pool == name]
    active = sum(slot.state not in INACTIVE for slot in slots)
    texts = [
        f"{text}; EC2's answer: {hold.words}" if hold.words else text
        for hold in holds
        for text in _describe_pause(hold, pool, active, now)
    ]
    if pool.market.has_mix and (kinds is None or "capacity" in kinds):
        mix = count_mix((slot.state, slot.market or "") for slot in slots)
        texts += [text] if (text := describe_turn(pool.market, mix)) is not None else []
    return texts


def describe_schedules(pool: Pool, now: float) -> list[str]:
    """Return a text about each schedule of a pool whose window is open at `now`: the limits that it sets, and when the
    window ends.
    """
    found = []
    for schedule in pool.schedules:
        window = find_window(schedule, now)
        if window is not None and window.start <= now:
            values = ((key, getattr(schedule, key)) for key in OVERRIDES)
            limits = ", ".join(f"{key} = {value}" for key, value in values if value is not None)
            found.append(f"schedule {schedule.cron}: {limits} until {show_instant(schedule, window.end)}")
    return found


def describe_subject(hold: Hold) -> str:
    """Return a text that names what a launch back-off pauses: a pool, every pool, or a part of one: an offering, a
    place (subnet or zone), a market, or a quota class of a market.
    """
    pool = "every pool" if hold.pool == "*" else f"pool {hold.pool}"
    if hold.kind == "unhealthy" or not hold.subject:
        return pool
    if hold.kind == "quota":
        market, _, quota_class = hold.subject.partition(":")
        return f"{market} vCPUs of {show_class(quota_class)} types of {pool}" if quota_class else f"{market} of {pool}"
    offering, place = split_subject(hold.subject)
    return f"{offering or 'every offering'} of {pool}" + (f" in {place}" if place else "")


def split_subject(subject: str) -> tuple[str, str]:
    """Return (offering, place) of a launch back-off whose subject is `KEY`, `KEY@PLACE` or `@PLACE`. "": every one."""
    offering, at, place = subject.rpartition("@")
    return (offering, place) if at else (subject, "")


def _describe_way(slot: Slot, pool: Pool | None, now: float) -> Iterator[str]:
    if slot.state in IN_FLIGHT:
        most = find_timeout(slot.state, pool) if pool else None
        yield f"{slot.state} for {show_span(now - slot.since)}" + (f" of {show_span(most)} at most" if most else "")
    if slot.power == "start":
        yield "its stopped machine is started"
    if slot.state == "stopped":
        yield "its machine stops, and cannot be started yet" if slot.power else "its machine is started for demand"
    if slot.launch_reason == ADOPTED and slot.state in IN_FLIGHT:
        yield "its machine was found by the cluster's tags and adopted"
    if slot.state == "error":
        rest = show_span(slot.since + pool.error_cooldown - now) if pool else "a while"
        yield f"its launch failed ({slot.error or 'unknown'}): not launched again for {rest}"
    if slot.refusal is not None:
        yield f"{_ANSWERS.get(slot.state, 'EC2 answered about its machine')}: {slot.refusal}"
    if slot.attempts > 1 and slot.state in {"launching", "terminating"}:
        yield f"{slot.state}: tried {slot.attempts} times"


def _describe_loss(slot: Slot, pool: Pool | None, now: float) -> Iterator[str]:
    if is_silent(slot, pool, now) and slot.last_seen is not None:
        yield f"offline: no heartbeat for {show_span(now - slot.last_seen)}"
    if slot.missed:
        yield f"missing: EC2 did not list its machine in {slot.missed} checks in a row"
    if slot.state == "empty" and slot.machine and pool is not None and not pool.is_elastic:
        yield f"lost: waits for its host {slot.machine} to register again"
    if slot.interrupted_by is not None and slot.state not in INACTIVE:
        left = slot.interrupted_by - now
        yield (
            f"interrupted: EC2 ends its machine in {show_span(left)}"
            if left > 0
            else "interrupted: EC2 ends its machine now"
        )
    if slot.drain_reason and slot.state not in INACTIVE:
        yield f"leaves service: {_REASONS.get(slot.drain_reason, slot.drain_reason)}"


def _of(count: int, pool: Pool | None) -> str:
    return f"{count} of {pool.unhealthy_after}" if pool and pool.unhealthy_after else str(count)


def _describe_pause(hold: Hold, pool: Pool, active: int, now: float) -> Iterator[str]:
    offering = pool.offering_by_key.get(split_subject(hold.subject)[0])
    until = find_end(pool, "" if offering is None else offering.market, hold)
    subject, ends = describe_subject(hold), f"for {show_span(until - now)} more"
    is_on = now < until
    again = f" ({hold.streak} refusals in a row)" if hold.streak > 1 else ""
    match hold.kind:
        case "capacity" if is_on:
            why = ", spot_again_after" if until > hold.until else ""
            yield f"EC2 has no capacity for {subject}: not launched {ends}{again}{why}"
        case "quota" if is_on and (not hold.active or active >= hold.active):
            learned = f", or until fewer than {hold.active} machines are active" if hold.active else ""
            yield f"EC2's quota of {subject} is reached: not launched {ends}{learned}"
        case "quota":
            yield f"EC2's quota of {subject} was reached: the next launch is tried alone"
        case "throttled" if is_on:
            yield f"EC2 asked us to slow down: nothing is launched in {subject} {ends}"
        case "misconfigured" if is_on:
            yield f"the launch of {subject} was refused as misconfigured: not tried {ends}{again}"
        case "auth" if is_on and hold.pool == "*" and not hold.subject:
            yield f"EC2 refused the credentials or permissions of the workers: nothing is launched {ends}"
        case "auth" if is_on:
            yield f"EC2 does not permit to launch {subject}: not tried {ends}{again}"
        case "unhealthy" if pool.unhealthy_after and hold.streak >= pool.unhealthy_after:
            rests = f"nothing is launched {ends}" if is_on else "one machine is tried alone"
            yield f"{hold.streak} boots in a row failed (the last one: {hold.subject}): {rests}"
        case "strangers" if is_on and hold.active:
            yield f"machines of ours that no slot knows: {hold.active}"


def show_span(seconds: float) -> str:
    """Return a duration as text: in seconds up to 2 minutes, in minutes up to 2 hours, then in hours."""
    seconds = max(0.0, seconds)
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


_A_MOMENT: Final = 0.001


class Forecast(msgspec.Struct, frozen=True):
    """What can be foreseen about a quota account. `account`: the account as if it was charged now. `use`: what its
    running leases cost per second, as one amount for each paid level.
    """

    account: Account
    use: Levels
    level: int
    """The best quota level that the account can pay for; 5: it can pay for no level."""


def forecast(view: View, account: Account, now: float) -> Forecast:
    """Return the forecast for a quota account at `now`, see `Forecast`."""
    every = (item for leases in view.leases_on.values() for item in leases.items())
    payers = ((lease, view.account_of(view.reservations[owner])) for (owner, _), lease in every)
    leases = [lease for lease, payer in payers if payer is not None and payer.id == account.id]
    charged = charge(account, sum_running(account, leases, now), now)
    use = NOTHING
    for lease in leases:
        if lease.charged_at is not None:
            use = add(use, at_level(lease.level, lease.weight))
    return Forecast(charged, use, level_of(charged.balance))


def list_recoveries(found: Forecast) -> Iterator[tuple[float, int]]:
    """Yield (seconds, level) for each quota level that is better than the account's present one and that the account
    will be able to pay for again. `seconds`: the time until then; the soonest comes first.

    The account's running work is assumed to continue. An account with a balance of 0 cannot pay.
    """
    times = [(_seconds_until_paid(found, level), level) for level in PAID if level < found.level]
    yield from sorted((seconds, level) for seconds, level in times if seconds is not None)


def _seconds_until_paid(found: Forecast, level: int) -> float | None:
    """Return the seconds until a quota account can pay for `level`; None if it never can.

    There are three reasons for None: the account earns nothing at the level; its earnings are capped at 0; its running
    work costs at least as much as the account earns.
    """
    account = found.account
    gain = account.charge_rate[level] - found.use[level]
    if account.charge_rate[level] * account.max_charge_seconds <= 0 or gain <= 0:
        return None
    # the balance has to be above 0, not at 0
    return -account.balance[level] / gain + _A_MOMENT


def describe_account(found: Forecast) -> str:
    """Return a text about a quota account: what it has left, how long that lasts, and when the account can pay
    again.
    """
    account = found.account
    if found.level == FREE:
        text = f"account {account.id} has nothing left at any level"
    else:
        text = f"account {account.id} has {account.balance[found.level]:,.6g} of level {found.level} left"
        loss = found.use[found.level] - account.charge_rate[found.level]
        if loss > 0:
            text += f"; its running work uses this up in {account.balance[found.level] / loss:.3g} s"
    again = [f"at level {level} in {ceil(seconds)} s" for seconds, level in list_recoveries(found)]
    if found.level == 0:
        return text
    if not again and not any(account.charge_rate):
        return f"{text}; it earns nothing"
    if not again:
        why = (
            "it earns only below a balance of 0 (max_charge_seconds = 0)"
            if account.max_charge_seconds <= 0
            else "its running work costs as much as it earns"
        )
        return text if found.level < FREE else f"{text}; {why}"
    return f"{text}; it can pay again {' and '.join(again)}"
