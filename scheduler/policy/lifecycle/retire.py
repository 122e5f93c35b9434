"""Heal's last part: slots whose service is over, for whatever reason, drain; those on their way go at once.

Sources: Arvados (changed offerings); `max_uses`, `recycle_unclean` and `unhealthy_after` are ours: a machine that
nobody can work on must not be fed for ever by `pack`.
"""

from scheduler.model.decisions import Drain, Reset, Terminate
from scheduler.model.slots import Slot
from scheduler.policy.capacity.machine_fitness import find_reason_to_retire, is_configured
from scheduler.policy.cycle.state import CycleState


def retire(cycle: CycleState) -> None:
    """Drain what is no longer to be used: nothing new is put on it, and its leases run on."""
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
    """Let go of the machines of pools that the rules no longer list, or they would run and cost for ever: ready ones
    drain and their leases run on, those on their way go at once.
    """
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
