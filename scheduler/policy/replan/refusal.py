"""Why the reservations of one demand wait in a kept cycle."""

from typing import NamedTuple

from scheduler.model.waits import Reason


class Refusal(NamedTuple):
    """Why the reservations of one demand wait. `reason`: the waiting code and its sentence."""

    reason: Reason
    is_withheld: bool
    """Whether a launch would serve the demand, and only `max_slots` or EC2's quota prevents it."""
    is_misfit: bool
    """Whether no slot, even an empty one, could hold an instance of the demand."""
