"""Offerings by requirement: what an instance type must have, in place of the name of one type.

`meets` compares a requirement with the facts about one instance type, which come from EC2 (`scheduler.model.market`).
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from math import inf
from typing import Annotated, Final, Literal

from scheduler.model.market import ACCELERATORS, KINDS, InstanceType
from scheduler.model.slots import Market
from scheduler.model.validation import Amount, Before, Document, Name, Text, expected, is_number

LEAST: Final = "min"
MOST: Final = "max"


def _span(value: object) -> object:
    """Return a table with a least (`min`) and a greatest (`max`) amount, unchanged. Raises ExpectedError for another
    key, or if `max` is below `min`.
    """
    if isinstance(value, dict):
        for key in value:
            if key not in {LEAST, MOST}:
                raise expected(f"the key {LEAST} or {MOST}", got=str(key))
        least, most = value.get(LEAST, 0), value.get(MOST)
        if is_number(least) and is_number(most) and most < least:
            raise expected(f"at least {LEAST} ({least:g})", key=MOST, got=most)
    return value


Span = Annotated[dict[Name, Amount], Before(_span)]
"""The least and the greatest amount that is accepted, like `{ min = 2, max = 8 }`; both ends belong to it, and either
may be missing.
"""


def is_within(amount: float, span: Mapping[str, float]) -> bool:
    """Return whether `amount` is within the span."""
    return span.get(LEAST, 0.0) <= amount <= span.get(MOST, inf)


class Requirements(Document):
    """What an instance type must have, so that the pool may launch it.

    `leasehold apply` finds the matching types in EC2's catalogue of instance types.
    """

    cpus: Span = {}
    """Number of vCPUs, like `{ min = 2, max = 8 }`; default: any."""
    memory_mib: Span = {}
    """Memory in MiB; default: any."""
    architecture: Literal["x86_64", "arm64", "i386"] = "x86_64"
    """Architecture of the processor, which must be that of the image."""
    generation: Literal["current", "previous", "any"] = "current"
    """Generation of the type, as EC2 classifies it."""
    accelerators: Span = {"max": 0}
    """Number of GPUs or other accelerators; default: none, or any if `gpus`, `neurons` or `fpgas` has a `min`."""
    gpus: Span = {}
    """Number of GPUs; default: any within `accelerators`."""
    neurons: Span = {}
    """Number of Inferentia and Trainium devices; default: any within `accelerators`."""
    fpgas: Span = {}
    """Number of FPGAs; default: any within `accelerators`."""
    local_disk_gib: Span = {}
    """Size of all local disks together in GiB; `{ max = 0 }`: only types without one. With a `min` above 0 the size is
    the resource `local_disk_gib` of the machines.
    """
    bare_metal: bool = False
    """Whether bare-metal types are accepted, which boot slowly."""
    type_labels: bool = False
    """Whether machines have the labels `instance_type` and `instance_family`. With these labels, machines of different
    types are not interchangeable, so each request to EC2 names one type instead of several to choose from.
    """
    include: tuple[Text, ...] = ()
    """Patterns of types that are accepted, like `m7*`; none = all."""
    exclude: tuple[Text, ...] = ()
    """Patterns of types that are not accepted, like `t*` or `*.nano`."""

    def describe(self, kind: InstanceType) -> tuple[dict[str, float], dict[str, str]]:
        """Return the resources and the labels of a machine of this type. The size of local disks is a resource only if
        `local_disk_gib` has a `min`, and the names of type and family are labels only if `type_labels` is set.

        A machine may take the place of another one only if it has the same labels and at least the same resources. So
        properties that are not required are left out.
        """
        disk = {"local_disk_gib": kind.local_disk_gib} if self.local_disk_gib.get(LEAST) else {}
        return kind.resources | disk, kind.labels | (kind.type_labels if self.type_labels else {})

    def meets(self, kind: InstanceType, market: Market) -> bool:
        """Return whether an instance type meets the requirements and can be bought in `market`."""
        return next(self.list_misses(kind, market), None) is None

    def list_misses(self, kind: InstanceType, market: Market) -> Iterator[str]:
        """Yield the keys of the requirements that an instance type does not meet; `market` if it cannot be bought
        there.
        """
        if market not in kind.markets:
            yield "market"
        if self.architecture not in kind.architectures:
            yield "architecture"
        if self.generation != "any" and kind.is_current != (self.generation == "current"):
            yield "generation"
        has_kind = ACCELERATORS not in self.model_fields_set and any(getattr(self, each).get(LEAST) for each in KINDS)
        for key in ("cpus", "memory_mib", ACCELERATORS, *KINDS, "local_disk_gib"):
            is_open = has_kind and key == ACCELERATORS
            if not is_open and not is_within(getattr(kind, key), getattr(self, key)):
                yield key
        if kind.is_bare_metal and not self.bare_metal:
            yield "bare_metal"
        if self.include and not any(fnmatchcase(kind.name, pattern) for pattern in self.include):
            yield "include"
        if any(fnmatchcase(kind.name, pattern) for pattern in self.exclude):
            yield "exclude"
