"""Machine images (AMIs) of the emulated EC2: Amazon's public images, and the root devices of registered ones.

moto has data about the images that SSM's public parameters name. `know_no_images` keeps moto from loading thousands of
them; this module loads those that a call of EC2 looks up.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.utilities.utils import load_resource

from leasehold_emulator.calls import Call

DESCRIBE: Final = "DescribeImages"
REGISTER: Final = "RegisterImage"
AMAZON_LINUX_ROOT: Final = "/dev/xvda"
UBUNTU_ROOT: Final = "/dev/sda1"
LATEST: Final = "latest_amis"
"""moto's data about the newest images of Amazon Linux."""
_SOURCES: Final = (LATEST, "ecs/optimized_amis")
_NAMED: Final = re.compile(r"ImageId\.\d+|Filter\.\d+\.Value\.\d+")
_OWNER: Final = re.compile(r"Owner\.\d+")
_ID: Final = re.compile(r"<imageId>([^<]+)<")
_UBUNTU_LIKE: Final = re.compile(r"ubuntu|debian|windows|rhel|sles|suse", re.IGNORECASE)


def know_public_images(call: Call) -> None:
    """Before a DescribeImages, add to moto's images those of Amazon's public images that the call looks up: by id, or
    the newest ones if it names an owner.
    """
    known = ec2_backends[DEFAULT_ACCOUNT_ID][call.region].amis
    public = _load_public_images(call.region)
    wanted = {value for key, value in call.parameters.items() if _NAMED.fullmatch(key)}
    if any(_OWNER.fullmatch(key) for key in call.parameters):
        wanted |= {name for name, (source, _) in public.items() if source == LATEST}
    for name in wanted & (public.keys() - known.keys()):
        _, data = public[name]
        known[name] = Ami(ec2_backends[DEFAULT_ACCOUNT_ID][call.region], **data, owner_alias="amazon")


def complete_registration(call: Call, answer: str) -> None:
    """Give the image of a RegisterImage the root device and the architecture that the call names, which moto ignores.
    The default of the root device follows from the image's name.
    """
    known, given = ec2_backends[DEFAULT_ACCOUNT_ID][call.region].amis, call.parameters
    for name in _ID.findall(answer):
        image = known[name]
        image.root_device_name = given.get("RootDeviceName") or find_root_device(given.get("Name", ""))
        image.root_device_type = "ebs"
        image.architecture = given.get("Architecture", "x86_64")


def find_root_device(name: str) -> str:
    """Return the usual root device of images with such a name: that of Ubuntu and its like, or that of Amazon Linux."""
    return UBUNTU_ROOT if _UBUNTU_LIKE.search(name) else AMAZON_LINUX_ROOT


@cache
def _load_public_images(region: str) -> Mapping[str, tuple[str, dict[str, Any]]]:
    """Return the id of each public image in the region -> the source of its data, and the data."""
    return dict(_read_public_images(region, _SOURCES))


def _read_public_images(region: str, sources: Iterable[str]) -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    for source in sources:
        try:
            found: list[dict[str, Any]] = load_resource(f"ec2/resources/{source}/{region}.json")
        except FileNotFoundError:
            continue  # a region that moto does not know
        for data in found:
            yield data["ami_id"], (source, data)
