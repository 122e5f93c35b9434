"""Retire slots that are no longer to be used: ready ones drain, those in flight are terminated.

Sources: Arvados for changed offerings. `max_uses`, `recycle_unclean` and `unhealthy_after` are Leasehold's own rules:
`pack` would otherwise place leases on a broken machine again and again.
"""

from scheduler.model.decisions import Drain, Reset, Terminate
from scheduler.model.slots import Slot
from scheduler.policy.capacity.machine_fitness import find_reason_to_retire, is_configured
from scheduler.policy.cycle.state import CycleState


def retire(cycle: CycleState) -> None:
    """Retire slots for the reasons of `find_reason_to_retire`. A draining slot takes no new lease; its leases go on."""
    for slot_info in cycle.list_restless():
        if slot_info.state == "ready":
            reason = find_reason_to_retire(slot_info)
            if reason is not None:
                cycle.decide(Drain(slot=slot_info.slot.id, reason=reason))
                slot_info.state = "draining"
        elif slot_info.is_coming and not is_configured(slot_info.slot, slot_info.pool):
            cycle.decide(Terminate(slot=slot_info.slot.id, reason="unconfigured"))
            slot_info.state = "terminating"


def retire_vanished(cycle: CycleState) -> None:
    """Retire the machines of pools that the rules no longer list; they would run and cost money forever otherwise."""
    for slot in cycle.vanished:  # promise: vanished-pool-ended
        decision = _find_end(slot, is_free=not cycle.leases_on(slot))
        if decision is not None:
            cycle.decide(decision)


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
