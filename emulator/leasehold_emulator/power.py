"""Decide which calls that stop, start or resize emulated instances are refused: by the state of the instances, by
injected faults, and by the quota.
"""

import time
from collections.abc import Iterable
from typing import Final

from leasehold_emulator.allocation import find_full, list_limits
from leasehold_emulator.calls import Call, Place
from leasehold_emulator.faults import FaultTable
from leasehold_emulator.instances import EmulatedInstance, find_all
from leasehold_emulator.lives import Lives
from leasehold_emulator.settings import FaultRule

_FROM: Final = {
    "StopInstances": frozenset({"running", "stopping", "stopped"}),
    "StartInstances": frozenset({"pending", "running", "stopped"}),
    "ModifyInstanceAttribute": frozenset({"stopped"}),
}
"""Action → the states of an instance in which EC2 carries this action out."""


def find_power_error(call: Call, table: FaultTable, lives: Lives, now: float) -> FaultRule | None:
    """Return the error with which the emulator refuses a call that stops, starts or resizes instances. Return None if
    the emulator does not refuse the call, or if the call does none of these.
    """
    states = _FROM.get(call.action)
    if states is None or (call.action == "ModifyInstanceAttribute" and "InstanceType.Value" not in call.parameters):
        return None
    found = list(find_all(call.instances or [call.parameters.get("InstanceId", "")]).values())
    for each in found:
        if call.action == "StopInstances" and each.life.market == "spot":
            message = f"You can't stop the Spot Instance '{each.id}' because of its one-time Spot Instance request"
            return FaultRule(code="UnsupportedOperation", message=message)
        if each.real_state.name not in states:
            message = f"The instance '{each.id}' is not in a state from which it can be changed ({call.action})"
            return FaultRule(code="IncorrectInstanceState", message=message)
    return _find_shortage(call, found, table, lives, now) if call.action == "StartInstances" else None


def _find_shortage(
    call: Call, instances: Iterable[EmulatedInstance], table: FaultTable, lives: Lives, now: float
) -> FaultRule | None:
    """If capacity or quota is lacking for a start of these instances, return the error of the start; EC2 then starts
    none of them. Return None if all of them can start.
    """
    stopped = [each for each in instances if each.real_state.name == "stopped"]
    to_start = [Place(each.instance_type, str(each.availability_zone), None) for each in stopped]
    places = list(dict.fromkeys(to_start))
    refused = table.take_for_places(call, places, now)
    if refused:
        return next(iter(refused.values()))
    present = time.time()
    alive = [life for life in lives.all.values() if life.region == call.region and life.counts_for_quota(present)]
    full = find_full(to_start, list_limits(call, places, lives.settings, alive))
    return None if full is None else full.error
