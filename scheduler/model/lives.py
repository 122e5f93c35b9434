"""The life of a machine: the rules by which machines of a pool are replaced, when a machine is too old, and whether it
differs from what the pool launches now (drift).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal
from zlib import crc32

from scheduler.model.machines import Ec2Rules, is_source
from scheduler.model.slots import Slot
from scheduler.model.validation import Amount, Before, Document, Seconds, accept_if, expected, is_number

_SHARE: Final = re.compile(r"([0-9]{1,3})%")
_WHOLE: Final = 100
_DIGITS: Final = 8
"""Hexadecimal digits of each part of a launch digest."""
_CRCS: Final = 1 << 32


def _budget(value: object) -> str:
    """Return a disruption budget as text: a number of slots like `3`, or a share of a pool's slots like `10%`."""
    if isinstance(value, str) and (found := _SHARE.fullmatch(value)) and int(found[1]) <= _WHOLE:
        return value
    if is_number(value) and value >= 0 and value == int(value):
        return str(int(value))
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) <= len(str(_CRCS)):
        return str(int(value))
    raise expected('a whole number >= 0, or a share from "0%" to "100%"')


Budget = Annotated[str, Before(_budget)]
Fraction = Annotated[
    float, Before(accept_if(lambda value: is_number(value) and 0 <= value < 1, "a number >= 0 and < 1"))
]


class ReplacementRules(Document):
    """When machines of a pool are replaced, and how many at a time. A pool of static hosts has no such rules."""

    max_age: Seconds = 0.0
    """Age after which a machine is replaced: idle ones first, others when their leases have ended; 0 = off."""
    max_age_jitter: Fraction = 0.1
    """Share of `max_age` by which the life of a machine may be shorter."""
    drift: Literal["replace", "ignore"] = "ignore"
    """Whether to `replace` or `ignore` machines of another template, image, user data, network or tags than the pool
    has now.
    """
    disruption_budget: Budget = "10%"
    """Maximum number of slots that are replaced at a time: a number, or a share of the slots like "10%", rounded up."""
    min_saving: Amount = 0.0
    """Share of its price that a cheaper offering must save to replace an idle machine, like 0.3; 0 = off."""

    def check_fields(self) -> None:
        """Raise ExpectedError if `min_saving` is above 1: no offering saves more than the whole price."""
        if self.min_saving > 1:
            raise expected("a share of at most 1", key="min_saving", got=self.min_saving)

    @property
    def is_on(self) -> bool:
        """Whether any of the rules is set, so that machines may be replaced."""
        return bool(self.max_age or self.drift == "replace" or self.min_saving)

    def count_allowed(self, active: int) -> int:
        """Return how many slots may be replaced at a time in a pool with this number of active slots."""
        if not self.disruption_budget.endswith("%"):
            return int(self.disruption_budget)
        return -(-active * int(self.disruption_budget[:-1]) // _WHOLE)


def digest_launch(ec2: Ec2Rules) -> str:
    """Return the launch digest of a pool's EC2 rules: the hash of each part by which machines may differ, as `PART:HASH
    PART:HASH …`. Equal rules give equal digests; the order of subnets and groups does not count. An image whose id is
    not known yet is left out.
    """
    parts: dict[str, object] = {
        "template": [ec2.launch_template, ec2.launch_template_version],
        **({} if is_source(ec2.image) else {"image": ec2.image}),
        "user_data": ec2.user_data,
        "network": [sorted(ec2.subnets), sorted(ec2.security_groups)],
        "machine": [ec2.instance_profile, ec2.key_name, ec2.volume_gib],
        "tags": ec2.tags,
    }
    return " ".join(f"{name}:{_hash(part)}" for name, part in parts.items())


def _hash(part: object) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def find_drift(slot: Slot, digest: str) -> tuple[str, ...]:
    """Return the names of the parts (`image`, `tags` and so on) in which the slot's machine differs from what a pool
    with this launch digest launches now; () if it does not differ.

    A machine without a digest does not differ: it was adopted, or launched by a version that stored no digest. A part
    that only one of the digests has, because another version made it, does not differ either.
    """
    if slot.launch_digest is None or slot.launch_digest == digest:
        return ()
    known, present = _split(slot.launch_digest), _split(digest)
    return tuple(name for name, mark in known.items() if present.get(name, mark) != mark)


def _split(digest: str) -> Mapping[str, str]:
    return {name: mark for name, _, mark in (part.partition(":") for part in digest.split())}


def find_end_of_life(slot: Slot, rules: ReplacementRules) -> float:
    """Return the time from which on the slot's machine is too old: its launch plus `max_age` of `rules` (which must be
    set), less the jitter. The jitter, at most the share `max_age_jitter` of `max_age`, follows from the id and the
    epoch of the slot, so that it is the same in each plan. If no time of launch is known, the age counts from the time
    at which the slot entered its present state.
    """
    launched_at = slot.since if slot.launched_at is None else slot.launched_at
    jitter = crc32(f"{slot.id}/{slot.epoch}".encode()) / _CRCS
    return launched_at + rules.max_age * (1 - rules.max_age_jitter * jitter)
