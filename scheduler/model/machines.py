"""The machines of a pool: which may be bought, what a launch of them is made of, and how they are asked whether they
serve. Keys of `config.pools.NAME`, documented and read as those in `rules`.
"""

from typing import Annotated, Literal

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
    check_unicode,
    expected,
)

Market = Literal["spot", "on-demand"]
MOST_USER_DATA = 12_000
"""Characters; EC2 takes 16 KiB after the variables are filled in."""


def _market(value: object) -> object:
    return "on-demand" if value == "on_demand" else value


def _user_data(value: object) -> str:
    if not isinstance(value, str):
        raise expected("a text", got=type(value).__name__)
    got = f"{len(value)} characters"
    if len(value) > MOST_USER_DATA:
        raise expected(f"a text of at most {MOST_USER_DATA} characters", got=got)
    return check_unicode(value, got=got)


class Offering(Document):
    """An instance type in a market (and zone) with what it holds and what it costs per hour."""

    name: Name
    """What it is called in plans, holds and events."""
    market: Annotated[Market, Before(_market)] = "spot"
    """How it is bought: `spot` or `on-demand`."""
    price: Amount = 0.0
    """What it costs an hour; the cheapest that fits is launched first."""
    resources: ResourceMap | None = None
    """What a machine of it holds; left out = the pool's `resources`."""
    labels: LabelMap | None = None
    """Labels of its machines; left out = the pool's `labels`."""
    type: Name | None = None
    """The EC2 instance type; left out = `name`."""
    zone: Name | None = None
    """The availability zone; left out = any that the pool's subnets are in."""

    @property
    def instance_type(self) -> str:
        """The EC2 instance type."""
        return self.type or self.name


class ProbeRules(Document):
    """How a pool's machines are asked whether they serve."""

    kind: Literal["none", "tcp", "http", "command"] = "none"
    """`none`: EC2's own status checks; `tcp`: a connection; `http`: a good answer; `command`: exit status 0."""
    port: Port | None = None
    """Port on the machine; `tcp` and `http` need it."""
    path: Text = "/"
    """What `http` asks for."""
    command: tuple[Text, ...] = ()
    """Run on the health worker; `{address}` and `{instance_id}` are replaced. Exit status 0 = ready."""
    timeout: Seconds = 5.0
    """How long one probe may take."""

    def check_fields(self) -> None:
        """See Document.check_fields."""
        if self.kind in {"tcp", "http"} and self.port is None:
            raise expected(f"a port for a probe of kind {self.kind}", key="port", got=None)
        if self.kind == "command" and not self.command:
            raise expected("a command for a probe of kind command", key="command", got=[])


class Ec2Rules(Document):
    """What an EC2 launch of this pool is made of: a launch template, or an image and what belongs to it."""

    launch_template: Text | None = None
    """Id (`lt-…`) or name of a launch template; what stands beside it here overrides it."""
    launch_template_version: Positive | None = None
    """The number of its version, never `$Latest`: a launch must be repeatable."""
    image: Text | None = None
    """Id of the image (AMI); a pool without a launch template needs it."""
    subnets: tuple[Text, ...] = ()
    """`subnet-…`, or `ZONE:subnet-…` for offerings of that zone; none = the default network's."""
    security_groups: tuple[Text, ...] = ()
    """Ids of the security groups; none = the network's default one; a launch template brings its own."""
    instance_profile: Text | None = None
    """Name or ARN of the instance profile; left out = none."""
    key_name: Text | None = None
    """Name of the SSH key pair; left out = none."""
    volume_gib: Positive | None = None
    """Size of the root volume in GiB; left out = the image's."""
    user_data_file: Text | None = None
    """Template file of the user data, relative to the leasehold.toml that names it; read by `apply`."""
    user_data: Annotated[str, Before(_user_data)] | None = None
    """The template itself, where no file is named; the file's text stands here once it was read."""
    tags: LabelMap = {}
    """Further tags of instances and volumes."""
    spot_allocation: Literal["price-capacity-optimized", "capacity-optimized", "lowest-price"] = (
        "price-capacity-optimized"
    )
    """How EC2 chooses among several subnets of a spot launch with a launch template."""

    def check_fields(self) -> None:
        """See Document.check_fields."""
        if self.launch_template and not self.launch_template_version:
            raise expected("the number of a version", key="launch_template_version", got=None)
