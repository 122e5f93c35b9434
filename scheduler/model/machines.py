"""The rules about the machines of a pool: which instance types may be launched, how a launch request is built, and how
a machine is probed.

The classes here are tables below `config.pools.NAME`. They are documented and read like those of `rules.py`.
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from math import inf
from string import Template
from typing import Annotated, Final, Literal

from scheduler.model.market import ACCELERATORS, KINDS, InstanceType
from scheduler.model.slots import Machine, Market
from scheduler.model.validation import (
    Amount,
    Before,
    Document,
    LabelMap,
    Name,
    Port,
    Positive,
    ResourceMap,
    Seconds,
    Text,
    accept_if,
    check_unicode,
    expected,
    is_number,
)

# Images that the rules name by a source: an SSM parameter, or the newest image of an owner with a matching name.
#
# A source is resolved to the id of an image (AMI) when rules are applied, and later by a periodic task. The ids are
# stored with the rules, so a launch needs no look-up.


SSM: Final = "ssm:"
"""Beginning of a source that names an SSM parameter: `ssm:/PATH`."""
NEWEST: Final = "newest:"
"""Beginning of a source that names the newest image of an owner: `newest:OWNER/NAME`. NAME may have `*` and `?`."""
ROOT_OF: Final = "root:"
"""Beginning of a source that names the root device of an image: `root:IMAGE`. Rules do not contain it: it is looked up
for a pool with `volume_gib`.
"""
_MOST: Final = 1024
_SOURCE: Final = re.compile(r"ssm:(/[A-Za-z0-9_.-]+)+|newest:[A-Za-z0-9-]+/[A-Za-z0-9()\[\] ./'@_*?-]+")


def is_source(image: str | None) -> bool:
    """Return whether `image` is the source of an image (`ssm:…` or `newest:…`). Return False for the id of an image,
    and for None.
    """
    return image is not None and image.startswith((SSM, NEWEST))


ImageName = Annotated[
    Text,
    Before(
        accept_if(
            lambda value: (
                not isinstance(value, str) or not is_source(value) or (len(value) <= _MOST and _SOURCE.fullmatch(value))
            ),
            "ssm:/PATH of a parameter, newest:OWNER/NAME of images, or the id of an image",
        )
    ),
]
"""The id of an image, or its source. The source has to be well-formed."""


# Offerings by requirement: what an instance type must have, in place of the name of one type.
#
# `meets` compares a requirement with the facts about one instance type, which come from EC2 (`scheduler.model.market`).


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
    """Size of all local disks in GiB; `{ max = 0 }`: none. A `min` above 0 makes it a resource of the machines."""
    bare_metal: bool = False
    """Whether bare-metal types are accepted, which boot slowly."""
    type_labels: bool = False
    """Whether machines have the labels `instance_type` and `instance_family`; a request then names one type."""
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
            span = getattr(self, key)
            is_within = span.get(LEAST, 0.0) <= getattr(kind, key) <= span.get(MOST, inf)
            if not is_within and not (has_kind and key == ACCELERATORS):
                yield key
        if kind.is_bare_metal and not self.bare_metal:
            yield "bare_metal"
        if self.include and not any(fnmatchcase(kind.name, pattern) for pattern in self.include):
            yield "include"
        if any(fnmatchcase(kind.name, pattern) for pattern in self.exclude):
            yield "exclude"


MOST_USER_DATA = 12_000
"""Maximum length of user data (a script that EC2 runs at boot) in characters. EC2 accepts 16 KiB after variables are
filled in.
"""


MOST_HOPS: Final = 64
"""Greatest hop limit of the metadata service. Source: EC2, "Instance metadata options"."""
HopLimit = Annotated[
    int,
    Before(
        accept_if(
            lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_HOPS,
            f"a whole number from 1 to {MOST_HOPS}",
        )
    ),
]


def read_market(value: object) -> object:
    """Return the name of a market as it is stored: `on_demand` may be written for `on-demand`."""
    return "on-demand" if value == "on_demand" else value


def _user_data(value: object) -> str:
    if not isinstance(value, str):
        raise expected("a text", got=type(value).__name__)
    got = f"{len(value)} characters"
    if len(value) > MOST_USER_DATA:
        raise expected(f"a text of at most {MOST_USER_DATA} characters", got=got)
    return check_unicode(value, got=got)


class Offering(Document):
    """An offering: an EC2 instance type that a pool may launch, with its market, zone, resources and price per hour.

    With `require`, each type that meets the requirements is an offering.
    """

    name: Name
    """Name of the offering in plans, launch back-offs and events. With `require`: `TYPE/MARKET`."""
    market: Annotated[Market, Before(read_market)] = "spot"
    """Market in which the machine is bought: `spot` or `on-demand`."""
    price: Amount = 0.0
    """Price per hour. Default with `require` or `market.prices`: the lowest price of the table `prices` in the
    offering's zones.
    """
    resources: ResourceMap | None = None
    """Resources of a machine of this offering; default: the pool's `resources`."""
    labels: LabelMap | None = None
    """Labels of the machines of this offering; default: the pool's `labels`."""
    type: Name | None = None
    """EC2 instance type; default: `name`."""
    zone: Name | None = None
    """Availability zone; default: any zone of the pool's subnets."""
    require: Requirements | None = None
    """Requirements in place of `type`. The types come from the catalogue that `leasehold apply` reads from EC2."""

    def check_fields(self) -> None:
        """Refuse an offering that has both a type and requirements. Raises ExpectedError."""
        if self.require is not None and self.type is not None:
            raise expected("no `type` beside `require`", key="type", got=self.type)

    @property
    def is_for_sale(self) -> bool:
        """Whether a launch may choose this offering. An offering with `require` stands for many types and is not itself
        launched: False.
        """
        return self.require is None

    @property
    def instance_type(self) -> str:
        """The EC2 instance type of this offering: `type`, else `name`."""
        return self.type or self.name


class UnsoldOffering(Offering):
    """An offering that is not launched now, because its price is unknown or too high. A machine that was launched from
    it stays.
    """

    reason: Text
    """Why no launch may choose the offering."""

    @property
    def is_for_sale(self) -> bool:
        """Whether a launch may choose this offering: always False."""
        return False


class ProbeRules(Document):
    """How the machines of a pool are probed for readiness."""

    kind: Literal["none", "tcp", "http", "command"] = "none"
    """`none`: EC2's status checks; `tcp`: a connection; `http`: a successful response; `command`: exit status 0."""
    port: Port | None = None
    """Port of the machine that is probed; required for `tcp` and `http`."""
    path: Text = "/"
    """Path that the `http` probe requests."""
    command: tuple[Text, ...] = ()
    """Command of the health worker for a probe, with `{address}` and `{instance_id}`. Exit status 0 = ready."""
    timeout: Seconds = 5.0
    """Time limit of one probe."""

    def check_fields(self) -> None:
        """Refuse a probe of kind `tcp` or `http` without a port, and one of kind `command` without a command. Raises
        ExpectedError.
        """
        if self.kind in {"tcp", "http"} and self.port is None:
            raise expected(f"a port for a probe of kind {self.kind}", key="port", got=None)
        if self.kind == "command" and not self.command:
            raise expected("a command for a probe of kind command", key="command", got=[])


class Ec2Rules(Document):
    """How EC2 launches for this pool are built: from a launch template, or from an image and its settings."""

    launch_template: Text | None = None
    """Id (`lt-…`) or name of a launch template. The other keys of this table override it."""
    launch_template_version: Positive | None = None
    """Version number of the launch template. `$Latest` is not allowed."""
    image: ImageName | None = None
    """Id of the image (AMI), or its source: `ssm:/PATH` of a parameter, or `newest:OWNER/NAME` for the newest image
    with that name (`*` and `?` match). Required without a launch template.
    """
    subnets: tuple[Text, ...] = ()
    """`subnet-…`, or `ZONE:subnet-…`, whose zone counts for prices, and where EC2 does not permit to describe subnets;
    none = the default network's.
    """
    single_zone: bool = False
    """Whether the machines of one gang are all launched in one zone."""
    security_groups: tuple[Text, ...] = ()
    """Ids of the security groups; none = those of the launch template, else the network's default."""
    instance_profile: Text | None = None
    """Name or ARN of the instance profile. Machines with agents join by a token without one."""
    key_name: Text | None = None
    """Name of the SSH key pair; default: no key pair."""
    volume_gib: Positive | None = None
    """Size of the root volume in GiB; default: the image's. With a `launch_template` it requires `root_device`."""
    root_device: Text | None = None
    """Name of the root device, like `/dev/sda1`; default: that of the `image`, which is looked up."""
    metadata_hop_limit: HopLimit | None = None
    """Network hops, 1 to 64, of the machine's metadata service: 2 for programs in containers. Default: that of the
    launch template, or 1.
    """
    address: Literal["private", "public", "ipv6", "dns"] | None = None
    """Address of a machine for reservations and probes: the private or public IPv4 address, the IPv6 address, or the
    private DNS name. Default: the first of private, public and IPv6.
    """
    user_data_file: Text | None = None
    """Template file of the user data, relative to the leasehold.toml. `apply` reads the file."""
    user_data: Annotated[str, Before(_user_data)] | None = None
    """Template of the user data without `user_data_file`, whose content `apply` stores here."""
    tags: LabelMap = {}
    """Additional tags of instances and volumes."""
    spot_allocation: Literal["price-capacity-optimized", "capacity-optimized", "lowest-price"] = (
        "price-capacity-optimized"
    )
    """How EC2 chooses among subnets and offerings for a spot launch."""

    def list_places(self, zone: str | None) -> list[tuple[str, ...]]:
        """Return the places in which an offering of this zone (None: of any zone) may be launched. Each place has the
        names by which a refusal may name it: its subnet and its zone, as far as the rules name them.

        A subnet is written as `subnet-…`, or as `ZONE:subnet-…` for launches in this zone only.
        """
        pairs = [entry.rpartition(":") for entry in self.subnets]
        subnets = [(subnet, own or zone) for own, _, subnet in pairs if not own or zone in {None, own}]
        places = [tuple(filter(None, pair)) for pair in subnets]
        return places or ([(zone,)] if zone else [])

    @cached_property
    def names_slot(self) -> bool:
        """Whether the user data differs from machine to machine, because it names the slot or the launch. One request
        to EC2 gives all its machines the same user data, so the machines of such a pool are launched one by one.
        """
        return not self._named.isdisjoint({"slot", "launch_id"})

    @cached_property
    def names_offering(self) -> bool:
        """Whether the user data names the offering. Then EC2 must not choose among several offerings."""
        return "offering" in self._named

    @property
    def lacks_root_device(self) -> bool:
        """Whether the name of the image's root device is needed and not set."""
        return bool(self.volume_gib and self.image and not (self.launch_template or self.root_device))

    def choose_address(self, machine: Machine) -> str | None:
        """Return the address of a machine of this pool; None if the machine has no such address, or not yet."""
        return machine.address if self.address is None else machine.addresses.get(self.address)

    @property
    def _named(self) -> set[str]:
        return set(Template(self.user_data or "").get_identifiers())

    def check_fields(self) -> None:
        """Refuse a launch template without the number of its version. Raises ExpectedError."""
        if self.launch_template and not self.launch_template_version:
            raise expected("the number of a version", key="launch_template_version", got=None)
