"""Heal's last part: slots whose service is over, for whatever reason, drain; those on their way go at once.

Sources: Arvados (changed offerings); `max_uses`, `recycle_unclean` and `unhealthy_after` are ours: a machine that
nobody can work on must not be fed for ever by `pack`.
"""

from scheduler.model.decisions import Drain, Reset, Terminate
from scheduler.model.slots import Slot
from scheduler.policy.draft import Draft
from scheduler.policy.fitness import find_reason_to_retire, is_configured


def retire(draft: Draft) -> None:
    """Drain what is no longer to be used: nothing new is put on it, and its leases run on."""
    for place in draft.list_restless():
        if place.state == "ready":
            reason = find_reason_to_retire(place)
            if reason is not None:
                draft.decide(Drain(slot=place.slot.id, reason=reason))
                place.state = "draining"
        elif place.is_coming and not is_configured(place.slot, place.pool):
            draft.decide(Terminate(slot=place.slot.id, reason="unconfigured"))
            place.state = "terminating"


def retire_vanished(draft: Draft) -> None:
    """Let go of the machines of pools that the rules no longer list, or they would run and cost for ever: ready ones
    drain and their leases run on, those on their way go at once.
    """
    for slot in draft.vanished:  # promise: vanished-pool-ended
        decision = _find_end(slot, is_free=not draft.leases_on(slot))
        if decision is not None:
            draft.decide(decision)


def _find_end(slot: Slot, *, is_free: bool) -> Drain | Terminate | Reset | None:
    match slot.state:
        case "ready":
            return Drain(slot=slot.id, reason="unconfigured")
        case "launching" | "booting" | "binding":
            return Terminate(slot=slot.id, reason="unconfigured")
        case "draining" if is_free:
            return Terminate(slot=slot.id, reason="drained")
        case "error":
            return Reset(slot=slot.id, reason="cooled_down")
        case _:
            return None
