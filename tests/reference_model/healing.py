"""Expire and heal, rule by rule, each with the sentence from which it was written."""

from scheduler.model.pools import Pool
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from tests.reference_model.picture import HOLDING, IN_FLIGHT, INACTIVE, Picture, Site, settings_of

ENDED = ("released", "cancelled", "expired", "failed")
AT_LIMIT = "revoking for its limit since this tick"


def expire(picture: Picture) -> None:
    """Rule: "A reservation expires when now >= its expiry. Pending and leased ones expire alike" (autoscaler). Then
    those at the `max_runtime` that their account enforces.
    """
    for each in picture.reservations:
        over = each.expires_at is not None and picture.now >= each.expires_at
        if over and picture.phases[each.id] not in ENDED:
            expire_now(picture, each, "ttl")
    for each in picture.list_in("leased"):
        most, account = each.request.max_runtime, picture.find_account(each)
        if most is None or each.leased_at is None or account is None or not account.enforce_max_runtime:
            continue
        if picture.now >= each.leased_at + most:
            end_at_limit(picture, each)


def expire_now(picture: Picture, reservation: Reservation, reason: str) -> None:
    """It has ended, and so have its leases."""
    picture.decide("expire", reservation.id, reason)
    picture.phases[reservation.id] = "expired"
    picture.end_leases(reservation)


def end_at_limit(picture: Picture, reservation: Reservation) -> None:
    """Rule: "its leases end at `max_runtime`, counted from `leased_at` … after `preemption_grace`". No grace lasts
    longer than a machine.
    """
    grace = settings_of(picture.rules, reservation).preemption_grace
    found = [picture.find(lease.slot, lease.epoch) for lease in reservation.leases]
    ends = [site.row.interrupted_by for site in found if site is not None and site.row.interrupted_by is not None]
    by = min([picture.now + grace, *ends])
    if not grace or by <= picture.now:
        expire_now(picture, reservation, "limit")
    else:
        picture.decide("expire", reservation.id, "limit", f"by {by:g}")
        picture.phases[reservation.id] = AT_LIMIT


def heal(picture: Picture) -> None:
    """Grace periods, interruptions, lost and silent slots, timeouts, restarts, unconfirmed leases, retired slots."""
    end_graces(picture)
    for site in picture.sites:
        if site.row.interrupted_at is not None and site.state not in (*INACTIVE, "terminating"):
            interrupt(picture, site)
    fail_without_slot(picture)
    for site in picture.sites:
        if site.state == site.row.state:
            time_out(picture, site)
    restart(picture)
    take_back_unconfirmed(picture)
    for site in picture.sites:
        retire(picture, site)


def requeue(picture: Picture, reservation: Reservation, reason: str) -> None:
    """Make it pending again, at once, with its position in the queue. "A reservation at its limit ends instead"."""
    if picture.phases[reservation.id] == AT_LIMIT or is_at_limit(reservation):
        expire_now(picture, reservation, "limit")
        return
    picture.decide("requeue", reservation.id, reason)
    picture.phases[reservation.id] = "pending"
    picture.end_leases(reservation)


def is_at_limit(reservation: Reservation) -> bool:
    """Whether an earlier tick has found it at its limit."""
    return reservation.phase == "revoking" and reservation.revoke_reason == "limit"


def fail(picture: Picture, reservation: Reservation, reason: str) -> None:
    """Orchard: "All its leases end then … restarted by the following tick, not by the one that found out"."""
    picture.decide("fail", reservation.id, reason)
    picture.phases[reservation.id] = "failed in this tick"
    picture.end_leases(reservation)


def is_there(picture: Picture, reservation: Reservation) -> bool:
    """Whether all the slots of its leases have the machines for which the leases were given."""
    return all(picture.find(lease.slot, lease.epoch) is not None for lease in reservation.leases)


def end_graces(picture: Picture) -> None:
    """Rule: "It is `revoking` for `interruption_grace` at most … and it is placed when the holder lets go"."""
    for each in picture.list_in("revoking"):
        found = [picture.find(lease.slot, lease.epoch) for lease in each.leases]
        ends = [site.row.interrupted_by for site in found if site is not None and site.row.interrupted_by is not None]
        by = each.revoke_by  # "never beyond" the deadline of a notice, also of one that came later
        is_earlier = by is not None and bool(ends) and min(ends) < by
        by = min(ends) if is_earlier else by
        reason = "slot_interrupted" if is_earlier else each.revoke_reason or "preempted"
        if by is None or picture.now >= by or not is_there(picture, each):
            requeue(picture, each, reason)
            continue
        if is_earlier:
            words = ("expire", each.id, "limit") if is_at_limit(each) else ("requeue", each.id, reason)
            picture.decide(*words, f"by {by:g}")
        if not is_at_limit(each):
            picture.returning.append(each.id)


def interrupt(picture: Picture, site: Site) -> None:
    """Rule: "A ready slot drains (the leases of one that drains already are requeued alike); one in flight is
    terminated at once and is from this tick on neither capacity nor reserve nor minimum." (the autoscaler)
    """
    if site.state in IN_FLIGHT:
        picture.decide("terminate", site.id, "interrupted")
        site.state = "terminating"
    elif site.state == "ready":
        picture.decide("drain", site.id, "interrupted")
        site.state = "draining"
    site.is_useless = True
    for each in holders_on(picture, site, "leased"):
        if each.id not in picture.returning:
            take_back(picture, each)


def holders_on(picture: Picture, site: Site, *phases: str) -> list[Reservation]:
    """Return the reservations with leases there, in order of submission."""
    owners = {owner for owner, _ in site.leases}
    return [each for each in picture.reservations if each.id in owners and picture.phases[each.id] in phases]


def take_back(picture: Picture, reservation: Reservation) -> None:
    """Rule: "Whatever its `restart_policy`: … `revoking` for `interruption_grace` at most (unset: until the
    deadline; never beyond it), and with a grace of 0 placed in the same tick. With `on_interruption: fail` it fails
    instead." Without a grace, too, "when a slot that it needs is gone".
    """
    if reservation.request.on_interruption == "fail":
        fail(picture, reservation, "slot_interrupted")
        return
    grace = settings_of(picture.rules, reservation).interruption_grace
    ends = [] if grace is None else [picture.now + grace]
    slots = {lease.slot for lease in reservation.leases}
    ends += [
        site.row.interrupted_by for site in picture.sites if site.id in slots and site.row.interrupted_by is not None
    ]
    if not ends or min(ends) <= picture.now or not is_there(picture, reservation):
        requeue(picture, reservation, "slot_interrupted")
        return
    picture.decide("requeue", reservation.id, "slot_interrupted", f"by {min(ends):g}")
    picture.phases[reservation.id] = "revoking"
    picture.returning.append(reservation.id)


def fail_without_slot(picture: Picture) -> None:
    """Rule: "A reservation fails … when a slot that holds one of its essential components is gone or offline."
    "Offline: now - `last_seen` strictly greater than `offline_timeout` … only slots of `static` pools go offline."
    (Orchard) In a pool with `agent`, a machine whose agent has registered goes offline, too, and drains.
    """
    silent = set()
    for site in picture.sites:
        heard = picture.now if site.row.last_seen is None else site.row.last_seen
        is_launched = site.pool.provider != "static"
        has_agent = not is_launched or (site.pool.agent and site.row.machine is not None)
        if has_agent and site.state in HOLDING and picture.now > heard + site.pool.offline_timeout:
            site.is_useless = True
            silent.add(site.id)
            if is_launched and site.state == "ready":
                picture.decide("drain", site.id, "silent")
                site.state = "draining"
    for each in picture.list_in("leased"):
        if not is_there(picture, each):
            fail(picture, each, "slot_gone")
        elif any(lease.slot in silent for lease in each.leases):
            fail(picture, each, "slot_offline")


def time_out(picture: Picture, site: Site) -> None:
    """Rule: "Age in state = now - `since`, and the comparison is >=." A slot that this tick has not moved yet."""
    pool, since = site.pool, site.row.since
    limits = {"launching": pool.launch_timeout, "booting": pool.boot_timeout, "binding": pool.binding_timeout}
    if site.state in IN_FLIGHT:
        if picture.now >= since + limits[site.state]:
            if site.state != "launching" and not site.row.drain_reason:
                picture.failed_boots.append(site.name)
            terminate(picture, site, "timeout")
        elif site.row.drain_reason:  # an operator's drain, or a recommendation of EC2, of a slot in flight
            is_named = site.row.drain_reason in {"rebalance", "maintenance"}
            terminate(picture, site, str(site.row.drain_reason) if is_named else "requested")
    elif site.state == "stopped":
        end_stopped(picture, site)
    elif site.state == "terminating" and picture.now >= since + pool.terminating_timeout:
        terminate(picture, site, "timeout")  # "asked once more"
    elif site.state == "draining":
        end_draining(picture, site)
    elif site.state == "error" and picture.now >= since + pool.error_cooldown:
        picture.decide("reset", site.id, "cooled_down")
        site.state = "empty"


def end_stopped(picture: Picture, site: Site) -> None:
    """Rule: a machine that does not stop within `terminating_timeout` is terminated; so is a stopped one that an
    operator drains, or whose pool has no stopped tier any more.
    """
    row, pool = site.row, site.pool
    if row.power == "stop" and picture.now >= row.since + pool.terminating_timeout:
        terminate(picture, site, "timeout")
    elif row.drain_reason:
        terminate(picture, site, "requested")
    elif not pool.stopped_slots and not row.cordoned:
        terminate(picture, site, "surplus")


def terminate(picture: Picture, site: Site, reason: str) -> None:
    """In the tick in which a slot times out it stops counting as in flight."""
    picture.decide("terminate", site.id, reason)
    site.state, site.is_useless = "terminating", True


def end_draining(picture: Picture, site: Site) -> None:
    """Rule: "A draining slot without leases is terminated, reason `drained`"; "until the slot has been draining
    for `drain_timeout` (0: no limit): then they are requeued and it is terminated, reason `timeout`". An interrupted
    one has the deadline of its notice. "A drained host is `empty` until it registers again."
    """
    reason = "drained"
    if site.leases:
        limit = site.pool.drain_timeout
        if not limit or site.row.interrupted_at is not None or picture.now < site.row.since + limit:
            return
        reason = "timeout"
        for each in holders_on(picture, site, "leased", "revoking", AT_LIMIT):
            requeue(picture, each, "slot_draining")
    if site.pool.provider == "static" and site.row.launch_id is None:
        picture.decide("reset", site.id, reason)
        site.state = "empty"
    else:
        terminate(picture, site, reason)


def restart(picture: Picture) -> None:
    """Rule: "The first time at the next tick; after that when now - (time of its last restart) is strictly greater
    than `restart_delay`." `max_restarts` (0 = no limit).
    """
    for each in picture.list_in("failed"):
        settings = settings_of(picture.rules, each)
        is_due = each.restarted_at is None or picture.now > each.restarted_at + settings.restart_delay
        is_left = not settings.max_restarts or each.restarts < settings.max_restarts
        if each.request.restart_policy == "on_failure" and is_due and is_left:
            picture.decide("restart", each.id, "restart_due")
            picture.phases[each.id] = "pending"


def take_back_unconfirmed(picture: Picture) -> None:
    """Rule: an assignment that is not confirmed for `confirm_timeout` (0 = off; >=) goes back to the queue;
    `max_unconfirmed` (0 = no limit; then `failed`, reason `unconfirmed`). Not while a machine that was found has not
    answered.
    """
    if awaits_machines(picture):
        return
    for each in picture.list_in("leased"):
        settings = settings_of(picture.rules, each)
        since = picture.now if each.leased_at is None else each.leased_at
        is_judged = settings.confirm_timeout and each.confirmed_at is None
        if not is_judged or picture.now < since + settings.confirm_timeout:
            continue
        for site in picture.sites:
            site.unconfirmed += sum(owner == each.id for owner, _ in site.leases)
        if settings.max_unconfirmed and each.unconfirmed >= settings.max_unconfirmed:
            fail(picture, each, "unconfirmed")
        else:
            requeue(picture, each, "unconfirmed")


def awaits_machines(picture: Picture) -> bool:
    """Rule: "Unconfirmed leases are judged only on a view that began after the last unknown machine answered"
    (Arvados), for `adoption_timeout` at most.
    """
    found = [hold.refused_at for hold in picture.holds if hold.kind == "strangers"]
    adopted = (site for site in picture.sites if site.row.launch_reason == "adopted" and site.state in IN_FLIGHT)
    found += [site.row.last_seen for site in adopted if site.row.last_seen is not None]
    return any(picture.now < at + picture.rules.scheduler.adoption_timeout for at in found)


def retire(picture: Picture, site: Site) -> None:
    """Slots whose service is over drain: they take no new lease, and their leases run on."""
    if site.state == "ready":
        reason = find_end(site)
        if reason:
            picture.decide("drain", site.id, reason)
            site.state = "draining"
    elif (site.is_coming or site.state == "stopped") and not is_configured(site.row, site.pool):
        picture.decide("terminate", site.id, "unconfigured")
        site.state = "terminating"
    elif site.state == "stopped" and 0 < site.pool.max_uses <= site.row.uses:
        # A lower `max_uses` came with new rules.
        picture.decide("terminate", site.id, "used_up")
        site.state = "terminating"


def find_end(site: Site) -> str:
    """Return why a ready slot is to drain, the first reason that applies.

    "A slot that was launched from an offering which its pool no longer configures" (Arvados); `unhealthy_after`:
    "leases unconfirmed or probes failed in a row drain the slot"; `recycle_unclean`: a lease that did not end by
    `release`; `max_uses`: after that number of leases, when they are over and no unknown occupant runs there.
    """
    row, pool = site.row, site.pool
    if not is_configured(row, pool):
        return "unconfigured"
    if pool.unhealthy_after and max(site.unconfirmed, row.failed_probes) >= pool.unhealthy_after:
        return "unhealthy"
    if site.is_unclean:
        return "unclean"
    if pool.max_uses and row.uses >= pool.max_uses and not site.leases and row.stranger is None:
        return "used_up"
    return row.drain_reason or ""


def is_configured(row: Slot, pool: Pool) -> bool:
    """Rule: "A slot without an offering (registered, or given as a record) is not [concerned]."

    An offering's key is its name, with market and zone where names stand twice; it stays the same offering.
    """
    if row.offering is None or pool.provider == "static":
        return True
    name = row.offering.split("/")[0]
    return any(each.name == name and row.market in (None, each.market) for each in pool.offerings)
