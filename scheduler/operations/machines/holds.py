"""The launch back-offs (rows called holds) that refused launches cause: which ones begin, grow and end.

Sources: Arvados' holds; the EC2 user guide (quota classes).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from scheduler.model.launch_backoff import Hold, find_pause, hold_id, is_trial
from scheduler.model.launch_backoff import Refusal as HoldKind
from scheduler.model.pools import Pool
from scheduler.model.quota_classes import quota_subject
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.scaling.offerings import find_end, find_rest, list_choices, list_configured, list_rest_ids
from scheduler.ports import Category, CloudError, Refusal

MOST_DELAY = 60.0
KINDS: Mapping[Category, HoldKind] = {
    "capacity": "capacity",
    "quota": "quota",
    "throttled": "throttled",
    "auth": "auth",
}
"""Category of a refusal -> the kind of its launch back-off; any other: `misconfigured`."""
PLACED: tuple[HoldKind, ...] = ("capacity", "misconfigured")
"""The kinds of back-offs that may concern a place."""


def find_held_places(work: UnitOfWork, pool: Pool | None, name: str, keys: Sequence[str | None]) -> tuple[str, ...]:
    """Return the subnets and zones in which launches of these offerings rest now; () in a pool with a single place."""
    places = [] if pool is None else pool.ec2.list_places(None)
    if len(places) <= 1:
        return ()
    owners = {"", *((key or "") for key in keys if len(keys) == 1)}
    ids = {
        hold_id(name, kind, f"{own}@{each}"): each
        for place in places for each in place for kind in PLACED for own in owners
    }  # fmt: skip
    holds = work.transaction.load_holds(sorted(ids)).values()
    return tuple(sorted({ids[hold.id] for hold in holds if work.now < hold.until}))


def list_held(work: UnitOfWork, pool: Pool, name: str, market: str) -> set[str | None]:
    """Return the keys of the offerings of a market whose launches rest now."""
    choices = [choice for choice in list_configured(pool) if choice.market == market and choice.key is not None]
    own = {
        each.key: [hold_id(name, "quota", quota_subject(pool, each.key, market)), hold_id(name, "auth", each.key or "")]
        for each in choices
    }
    rests = [ids for choice in choices for ids in list_rest_ids(name, pool, choice, PLACED)]
    holds = work.transaction.load_holds(sorted({each for ids in (*own.values(), *rests) for each in ids}))

    def lasts(hold: Hold | None) -> bool:
        return hold is not None and work.now < find_end(pool, market, hold)

    return {
        choice.key
        for choice in choices
        if find_rest(name, pool, choice, holds, PLACED, lasts)
        or any(lasts(holds.get(each)) for each in own[choice.key])
    }


def forget_holds(work: UnitOfWork, rules: Rules, slots: Iterable[Slot], *, at_boot: bool = False) -> None:
    """Delete the launch back-offs (holds) that concern the launches of these slots, because they succeeded. A back-off
    whose reason came as the end of a machine is deleted only when a machine has become ready (`at_boot`).
    """
    concerned: dict[str, list[Slot]] = {}
    for slot in slots:
        for name in _list_concerned(rules.pools.get(slot.pool), slot):
            concerned.setdefault(name, []).append(slot)
    for name, hold in work.transaction.load_holds(sorted(concerned)).items():
        is_over = hold.kind == "throttled" or work.now >= hold.until
        if hold.kind == "quota":
            is_over = any(is_trial(hold, slot.since) for slot in concerned[name])
        if is_over and hold.at_boot == at_boot:
            work.delete(hold)


def _list_concerned(pool: Pool | None, slot: Slot) -> Iterator[str]:
    """Yield the ids of the launch back-offs that may concern the launch of a slot. `pool`: the rules of the slot's
    pool; None: the rules no longer have it.
    """
    key, market = slot.offering or "", slot.market or ""
    places = sorted(filter(None, {slot.zone, slot.subnet}))
    yield hold_id(slot.pool, "throttled")
    for subject in {"", market, *([quota_subject(pool, slot.offering, market)] if pool else [])}:
        yield hold_id(slot.pool, "quota", subject)
    for kind in PLACED:
        yield hold_id(slot.pool, kind, key)
        yield from (hold_id(slot.pool, kind, f"{own}@{place}") for place in places for own in {key, ""})
    for name, subject in ((slot.pool, key), (slot.pool, ""), ("*", market), ("*", "")):
        yield hold_id(name, "auth", subject)


def read_refusal(slot: Slot, error: CloudError) -> Refusal:
    """Return the error of a slot's launch as the refusal of the slot's offering."""
    return error.refuse(slot.offering)


def note_refusal(
    work: UnitOfWork,
    pool: Pool,
    slot: Slot,
    refusal: Refusal,
    *,
    is_definite: bool = True,
    refused: int = 1,
    at_boot: bool = False,
) -> None:
    """Stage the launch back-off (a row called hold) that pauses launches of what EC2 refused.

    Equal refusals of launches that one tick decided count as one. `is_definite`: whether this launch will not be sent
    again. `refused`: the number of slots whose launch is refused. `at_boot`: EC2 launched the machine, and gave the
    refusal as the reason of its end. Any answer except `throttled` deletes the pool's back-off for throttling. All
    holds are locked in one call, so that transactions lock them in the same order. Source: Arvados' holds.
    """
    kind = KINDS.get(refusal.category, "misconfigured")
    name, subject = _find_subject(pool, slot, refusal)
    own = hold_id(name, kind, subject)
    throttled = hold_id(slot.pool, "throttled")
    locked = lock_holds(work, pool, [(slot, refusal)])
    if is_definite:
        discount_refused(work, slot, own, locked.values(), refused)
    if kind != "throttled" and throttled in locked:
        work.delete(locked[throttled])
    known = work.holds.get(own) or locked.get(own)
    same = known is not None and known.decided_at == slot.since
    streak = known.streak + (not same) if known else 1
    match kind:
        case "capacity":
            delay = pool.capacity_hold
        case "quota":
            delay = pool.quota_hold
        case "throttled":
            # Delays: 1, 2.5, 4.75, 8.125, … at most 60 s. Equal refusals of launches of one tick count as one.
            delay = known.delay if known else 0.0
            delay = delay if same else min(MOST_DELAY, delay * 1.5 + 1)
        case "auth":
            delay = find_pause(MOST_DELAY, streak)
        case _:
            delay = find_pause(pool.error_cooldown, streak)
    active = count_others(work, slot, refused) if kind == "quota" else 0
    work.put(
        Hold(
            version=known.version if known else 0,
            id=own,
            pool=name,
            kind=kind,
            subject=subject,
            refused_at=work.now,
            until=work.now + delay,
            delay=delay,
            active=min(active, known.active) if same and known else active,
            decided_at=slot.since,
            streak=streak,
            code=refusal.code,
            message=refusal.message,
            at_boot=at_boot,
        )
    )


def lock_holds(work: UnitOfWork, pool: Pool, refused: Iterable[tuple[Slot, Refusal]]) -> dict[str, Hold]:
    """Lock and return the launch back-offs that `note_refusal` changes for these refusals, each with its slot. Call it
    before the first of several calls of `note_refusal`, so that all transactions lock them in the same order.
    """
    wanted = set[str]()
    for slot, refusal in refused:
        name, subject = _find_subject(pool, slot, refusal)
        wanted |= {hold_id(slot.pool, "throttled"), *list_quota_holds(slot.pool, pool)}
        wanted.add(hold_id(name, KINDS.get(refusal.category, "misconfigured"), subject))
    return work.transaction.load_holds(sorted(wanted))


def _find_subject(pool: Pool, slot: Slot, refusal: Refusal) -> tuple[str, str]:
    """Return what is paused after a refusal of this slot's launch: the `pool` and the `subject` of the back-off."""
    key, scope = slot.offering or "", refusal.scope
    match KINDS.get(refusal.category, "misconfigured"):
        case "throttled":
            return slot.pool, ""
        case "quota":
            return slot.pool, "" if scope == "pool" else quota_subject(pool, slot.offering, slot.market or "")
        case "auth" if scope in {"caller", "market"}:
            return "*", "" if scope == "caller" else slot.market or ""
        case "auth" if scope == "pool":
            return slot.pool, ""
    own = "" if scope == "place" and refusal.place else key
    return slot.pool, f"{own}@{refusal.place}" if refusal.place else own


def list_quota_holds(name: str, pool: Pool) -> list[str]:
    """Return the ids that launch back-offs for EC2 quotas may have in this pool: for the pool, for each market of its
    offerings (written by earlier versions), and for each quota class in it.
    """
    choices = list_choices(pool)
    subjects = {
        "",
        *(each.market for each in choices),
        *(quota_subject(pool, each.key, each.market) for each in choices),
    }
    return sorted(hold_id(name, "quota", subject) for subject in subjects)


def list_quota_holds_of(rules: Rules, pools: Iterable[str]) -> list[str]:
    """Return the ids that launch back-offs for EC2 quotas have in these pools. Pools that the rules do not list are
    skipped.
    """
    names = sorted(set(pools) & rules.pools.keys())
    return [each for name in names for each in list_quota_holds(name, rules.pools[name])]


def end_quota_holds(work: UnitOfWork, holds: Mapping[str, Hold]) -> None:
    """End each launch back-off for an EC2 quota whose pool has fewer active slots now than when EC2 refused the launch.
    Call it before other slots of the transaction become active, because these would hide the lower number.
    """
    lasting = [hold for hold in holds.values() if hold.kind == "quota" and hold.active and work.now < hold.until]
    active = {name: work.transaction.count_active(name) for name in {hold.pool for hold in lasting}}
    for hold in lasting:
        if active[hold.pool] < hold.active:
            work.put(msgspec.structs.replace(hold, until=work.now))


def discount_refused(work: UnitOfWork, refused: Slot, own: str, holds: Collection[Hold], count: int = 1) -> None:
    """Correct `active`, the stored number of active slots, in the other launch back-offs for an EC2 quota which began
    at the same time as this refusal, or which a launch of the same tick caused. The number is lowered to the number of
    the pool's slots that are active now, so that slots whose launch was refused do not count.

    The slot of a refused launch is no longer active. Without the correction, a later count would be lower than the
    stored number. That would look like freed EC2 quota and end these back-offs. `own`: the id of the back-off that this
    refusal caused; it does not change. `holds`: the back-offs that may be corrected. `count`: the number of slots whose
    launch is refused now; `refused` is one of them.
    """
    others = [hold for hold in holds if hold.kind == "quota" and hold.id != own]
    # Back-offs that began at the same time: refused at this instant, or for launches that the same tick decided.
    alike = [hold for hold in others if hold.refused_at == work.now or hold.decided_at == refused.since]
    active = count_others(work, refused, count) if alike else 0
    for hold in alike:
        if active < hold.active:
            work.put(msgspec.structs.replace(hold, active=active))


def count_others(work: UnitOfWork, refused: Slot, count: int = 1) -> int:
    """Return the number of active slots in the pool of the slot `refused`, without the slots whose launch is refused
    now. `count`: the number of these slots; `refused` is one of them.
    """
    active = work.transaction.count_active(refused.pool)
    return active - (count if refused.state not in INACTIVE else 0)
