"""Termination protection and stop protection of emulated EC2 instances, by zone.

Sources: EC2 API reference, TerminateInstances ("If you terminate multiple instances across multiple Availability
Zones …"), and user guide, "Enable stop protection": it prevents terminations, too.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from leasehold_emulator.calls import Call
from leasehold_emulator.instances import EmulatedInstance, find_all
from leasehold_emulator.settings import FaultRule

_VERBS: Final = {"TerminateInstances": "terminated", "StopInstances": "stopped"}
_ATTRIBUTES: Final = {
    "TerminateInstances": ("disableApiTermination", "disableApiStop"),
    "StopInstances": ("disableApiStop",),
}
"""Action -> the attributes of an instance that prevent it, in the order in which EC2 names them."""


class Protection(msgspec.Struct, frozen=True):
    """The refusal of a call that ends or stops instances, because one of them is protected. `others`: the ids of the
    call in zones without a protected instance of the call. The call is carried out for them, although it is refused.
    """

    error: FaultRule
    others: list[str]


def find_protection(call: Call) -> Protection | None:
    """Return the refusal of a call that ends or stops protected instances; None if the call does not name any. A call
    with an unknown id is refused as a whole, by moto.
    """
    if call.action not in _VERBS:
        return None
    instances = find_all(call.instances).values()
    protected = [(each, attribute) for each in instances if (attribute := _find_attribute(each, call.action))]
    if not protected or len(instances) < len(set(call.instances)):
        return None
    zones = {each.availability_zone for each, _ in protected}
    return Protection(
        error=_refuse(call.action, *protected[0]),
        others=[each.id for each in instances if each.availability_zone not in zones],
    )


def _find_attribute(instance: EmulatedInstance, action: str) -> str | None:
    """Return the attribute that protects this instance from this action; None if it is not protected."""
    is_set = {
        "disableApiTermination": instance.disable_api_termination,
        "disableApiStop": instance.disable_api_stop,
    }
    names: Sequence[str] = () if instance.is_ending else _ATTRIBUTES[action]
    return next((name for name in names if is_set[name] in {True, "true"}), None)


def _refuse(action: str, instance: EmulatedInstance, attribute: str) -> FaultRule:
    message = (
        f"The instance '{instance.id}' may not be {_VERBS[action]}. "
        f"Modify its '{attribute}' instance attribute and try again."
    )
    return FaultRule(code="OperationNotPermitted", message=message)
