"""Images over HTTP: Amazon's public ones, the root devices of images, and what launch templates give to machines."""

from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.ec2.conftest import IMAGE, REGION, Emulator
from tests.ec2.test_emulator_boots import describe
from tests.ec2.test_emulator_limits import SPOT

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

LATEST = "/aws/service/ami-amazon-linux-latest/"
OWN, OTHER = "/dev/xvda", "/dev/sda1"


def find_parameter(emulator: Emulator, name: str) -> str:
    session = boto3.session.Session("testing", "testing", region_name=REGION)
    ssm = session.client("ssm", endpoint_url=emulator.url)
    return str(ssm.get_parameter(Name=name)["Parameter"]["Value"])


def register(client: "EC2Client", name: str, **options: Any) -> str:
    return client.register_image(Name=name, **options)["ImageId"]


def a_volume(device: str, size: int = 40) -> dict[str, Any]:
    return {"DeviceName": device, "Ebs": {"VolumeSize": size, "VolumeType": "gp3", "DeleteOnTermination": True}}


def volumes(client: "EC2Client", machine: str) -> dict[str, int]:
    """Return device -> GiB for the volumes of a machine."""
    attached = {
        each["DeviceName"]: each["Ebs"]["VolumeId"] for each in describe(client, machine)["BlockDeviceMappings"]
    }
    found = client.describe_volumes(VolumeIds=list(attached.values()))["Volumes"]
    sizes = {volume["VolumeId"]: volume["Size"] for volume in found}
    return {device: sizes[volume] for device, volume in attached.items()}


def run_one(client: "EC2Client", **options: Any) -> str:
    request: Any = {"InstanceType": "c5.large", "MinCount": 1, "MaxCount": 1, **options}
    return client.run_instances(**request)["Instances"][0]["InstanceId"]


def launch_fleet(client: "EC2Client", data: dict[str, Any], market: str) -> str:
    """Launch a machine by a CreateFleet with a launch template that contains `data`."""
    number = len(client.describe_launch_templates()["LaunchTemplates"])
    document: Any = {"InstanceType": "c5.large", **data}
    client.create_launch_template(LaunchTemplateName=f"template-{number}", LaunchTemplateData=document)
    specification = {"LaunchTemplateName": f"template-{number}", "Version": "$Latest"}
    request: Any = {
        "Type": "instant",
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": market},
        "LaunchTemplateConfigs": [
            {"LaunchTemplateSpecification": specification, "Overrides": [{"InstanceType": "c5.large"}]}
        ],
    }
    [instance] = client.create_fleet(**request)["Instances"]
    return str(instance["InstanceIds"][0])


@pytest.mark.parametrize(
    "name", [f"{LATEST}al2023-ami-kernel-default-x86_64", f"{LATEST}al2023-ami-kernel-default-arm64"]
)
def test_an_image_that_a_public_parameter_names_is_there(name: str, plain: "EC2Client", emulator: Emulator) -> None:
    image = find_parameter(emulator, name)
    [by_id] = plain.describe_images(ImageIds=[image])["Images"]
    [by_filter] = plain.describe_images(Filters=[{"Name": "image-id", "Values": [image]}])["Images"]
    assert by_id == by_filter
    assert (by_id["State"], by_id["RootDeviceName"], by_id["Architecture"]) == (
        "available",
        OWN,
        name.rpartition("-")[2],
    )
    assert volumes(plain, run_one(plain, ImageId=image)) == {OWN: 8}


def test_the_newest_image_of_amazon_with_a_name_is_found(plain: "EC2Client", emulator: Emulator) -> None:
    pattern = [{"Name": "name", "Values": ["al2023-ami-2023*-x86_64"]}]
    images = plain.describe_images(Owners=["amazon"], Filters=pattern)["Images"]  # type: ignore[arg-type]
    assert find_parameter(emulator, f"{LATEST}al2023-ami-kernel-default-x86_64") in {each["ImageId"] for each in images}


def test_an_image_that_was_not_registered_is_not_found_but_launched(plain: "EC2Client", emulator: Emulator) -> None:
    with pytest.raises(ClientError, match=r"InvalidAMIID\.NotFound"):
        plain.describe_images(ImageIds=[IMAGE])
    assert plain.describe_images(Filters=[{"Name": "image-id", "Values": [IMAGE]}])["Images"] == []
    assert volumes(plain, run_one(plain, ImageId=IMAGE)) == {OWN: 8}


@pytest.mark.parametrize(
    ("name", "options", "root"),
    [
        ("al2023-builder", {}, OWN),
        ("builder", {}, OWN),
        ("ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64", {}, OTHER),
        ("builder", {"RootDeviceName": OTHER}, OTHER),
        ("ubuntu-builder", {"RootDeviceName": OWN, "Architecture": "arm64"}, OWN),
    ],
)
def test_a_registered_image_has_its_root_device(
    name: str, options: dict[str, str], root: str, plain: "EC2Client", emulator: Emulator
) -> None:
    image = register(plain, name, **options)
    [found] = plain.describe_images(ImageIds=[image])["Images"]
    assert (found["RootDeviceName"], found["RootDeviceType"]) == (root, "ebs")
    assert found["Architecture"] == options.get("Architecture", "x86_64")
    machine = describe(plain, run_one(plain, ImageId=image))
    assert machine["RootDeviceName"] == root
    assert [each["DeviceName"] for each in machine["BlockDeviceMappings"]] == [root]


@pytest.mark.parametrize("way", ["RunInstances", "template", "spot fleet", "on-demand fleet"])
def test_a_volume_at_the_root_device_sizes_it_and_another_one_is_added(
    way: str, plain: "EC2Client", emulator: Emulator
) -> None:
    image = register(plain, "ubuntu")

    def launch(device: str) -> str:
        data = {"ImageId": image, "BlockDeviceMappings": [a_volume(device)]}
        if way == "RunInstances":
            return run_one(plain, **data, **SPOT)
        if way == "template":
            document: Any = data
            name = f"volumes-{device.rpartition('/')[2]}"
            plain.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=document)
            return run_one(plain, LaunchTemplate={"LaunchTemplateName": name})
        return launch_fleet(plain, data, way.removesuffix(" fleet"))

    assert volumes(plain, launch(OTHER)) == {OTHER: 40}
    machine = launch(OWN)
    assert volumes(plain, machine) == {OTHER: 8, OWN: 40}
    plain.terminate_instances(InstanceIds=[machine])


@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_a_fleet_gets_the_protection_and_the_metadata_options_of_its_template(
    market: str, plain: "EC2Client", emulator: Emulator
) -> None:
    options = {"HttpTokens": "required", "HttpPutResponseHopLimit": 3}
    machine = launch_fleet(plain, {"ImageId": IMAGE, "DisableApiTermination": True, "MetadataOptions": options}, market)
    found = describe(plain, machine)["MetadataOptions"]
    assert {key: found[key] for key in options} == options
    with pytest.raises(ClientError, match="OperationNotPermitted"):
        plain.terminate_instances(InstanceIds=[machine])


def test_a_single_launch_gets_its_protection(plain: "EC2Client", emulator: Emulator) -> None:
    machine = run_one(plain, ImageId=IMAGE, DisableApiTermination=True)
    with pytest.raises(ClientError, match="OperationNotPermitted"):
        plain.terminate_instances(InstanceIds=[machine])
