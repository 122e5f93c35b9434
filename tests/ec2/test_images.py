"""Images by an SSM parameter, and the newest image with a name, on the emulator."""

import pytest

from scheduler.model.validation import InvalidInputError
from scheduler.operations.rules.images import find_images
from scheduler.ports import CloudError, LaunchOrder
from tests.builders import some_rules
from tests.ec2.conftest import REGION, Emulator
from workers.ec2.clients import Ec2Access, open_client
from workers.ec2.images import Ec2Images, make_images
from workers.ec2.requests import freeze_request

OWNER = "123456789012"
LATEST = "ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"


@pytest.fixture
def access(emulator: Emulator) -> Ec2Access:
    return Ec2Access(region=REGION, endpoint_url=emulator.url, access_key_id="testing", secret_access_key="testing")


@pytest.fixture
def finder(access: Ec2Access) -> Ec2Images:
    return make_images(access)


def register(access: Ec2Access, name: str) -> str:
    """Register an image of the emulator's account, which begins without images."""
    ec2 = open_client("ec2", access, 5)
    return str(ec2.register_image(Name=name, Architecture="x86_64", RootDeviceName="/dev/xvda")["ImageId"])


def put_parameter(access: Ec2Access, name: str, value: str) -> None:
    open_client("ssm", access, 5).put_parameter(Name=name, Value=value, Type="String", Overwrite=True)


def test_a_parameter_names_an_image_that_is_there(finder: Ec2Images, access: Ec2Access) -> None:
    image = register(access, "linux-1")
    put_parameter(access, "/images/linux", image)
    assert finder.find("ssm:/images/linux") == image


@pytest.mark.parametrize("value", ["ami-00000000", "no image"])
def test_a_parameter_that_names_no_image_of_the_region_is_not_found(
    finder: Ec2Images, access: Ec2Access, value: str
) -> None:
    put_parameter(access, "/images/gone", value)
    with pytest.raises(CloudError, match="which is not there") as raised:
        finder.find("ssm:/images/gone")
    assert raised.value.category == "not_found"


def test_the_newest_image_with_a_name_is_found(finder: Ec2Images, access: Ec2Access) -> None:
    """Of images that were made in the same second, that with the greatest id."""
    found = {register(access, name) for name in ("builder-1", "builder-2")}
    register(access, "another")
    images = open_client("ec2", access, 5).describe_images(ImageIds=sorted(found))["Images"]
    newest = max(images, key=lambda each: (each["CreationDate"], each["ImageId"]))
    assert finder.find(f"newest:{OWNER}/builder-*") == newest["ImageId"]
    assert finder.find(f"newest:{OWNER}/*er-?") in found


MISSING = {
    "a parameter": ("ssm:/images/none", "ParameterNotFound"),
    "a name": ("newest:amazon/no-such-image-*", "NoImage"),
}


@pytest.mark.parametrize("name", MISSING)
def test_rules_that_name_a_source_without_an_image_are_refused_in_one_line(finder: Ec2Images, name: str) -> None:
    source, code = MISSING[name]
    rules = some_rules({"pools": {"linux": {"ec2": {"image": source}}}})
    with pytest.raises(InvalidInputError) as raised:
        find_images(finder, rules)
    assert str(raised.value) == (
        f'pools.linux.ec2.image: expected a source that names an existing image ({code}), got "{source}"'
    )


def test_a_look_up_that_fails_otherwise_is_no_fault_of_the_rules(access: Ec2Access, emulator: Emulator) -> None:
    emulator.set_fault(action="DescribeImages", code="UnauthorizedOperation", status=403)
    found = find_images(make_images(access), some_rules({"pools": {"linux": {"ec2": {"image": LATEST}}}}))
    assert (found.images, found.errors[LATEST].category) == ({}, "auth")


def test_a_pool_whose_image_was_not_found_yet_launches_nothing() -> None:
    order = LaunchOrder(slot="linux-1", pool="linux", launch_id="l", generation=1)
    rules = some_rules({"pools": {"linux": {"ec2": {"image": LATEST}}}})
    with pytest.raises(CloudError, match=r"pools\.linux\.ec2\.image: expected an image that was found"):
        freeze_request(order, rules, "leasehold", REGION)


def test_the_root_device_of_an_image_is_found(finder: Ec2Images, access: Ec2Access) -> None:
    image = register(access, "builder-1")
    described = open_client("ec2", access, 5).describe_images(ImageIds=[image])["Images"]
    assert finder.find(f"root:{image}") == described[0]["RootDeviceName"]
    with pytest.raises(CloudError) as caught:
        finder.find("root:ami-0123456789abcdef9")
    assert caught.value.category == "not_found"
