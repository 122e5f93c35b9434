"""The states of a slot and the phases of a reservation. scheduler/model/transitions.py has the legal changes."""

from typing import Final, Literal, get_args

SlotState = Literal["empty", "launching", "booting", "binding", "ready", "draining", "terminating", "error", "stopped"]
Phase = Literal["pending", "leased", "revoking", "released", "cancelled", "expired", "failed"]

SLOT_STATES: Final[tuple[SlotState, ...]] = get_args(SlotState)
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
