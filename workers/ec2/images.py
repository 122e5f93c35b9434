"""Find images (AMIs) by an SSM parameter, or as the newest image of an owner with a matching name, and the root devices
of images.
"""

from typing import TYPE_CHECKING, Any, Final

from scheduler.model.machines import NEWEST, ROOT_OF, SSM
from scheduler.ports import CloudError
from workers.ec2.clients import READ_SECONDS, Ec2Access, make_client, open_client
from workers.ec2.errors import cloud_errors

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

_AVAILABLE: Final = {"Name": "state", "Values": ["available"]}


class Ec2Images:
    """Looks up images in one AWS region. `ec2` and `ssm`: boto3 clients."""

    def __init__(self, ec2: "EC2Client", ssm: Any) -> None:
        self._ec2, self._ssm = ec2, ssm

    def find(self, source: str) -> str:
        """Return the id of the image that a source (`ssm:PARAMETER` or `newest:OWNER/NAME`) names now; for
        `root:IMAGE` the name of the root device of this image. Raises CloudError, with the category `not_found` if this
        region has no such image.
        """
        if source.startswith(ROOT_OF):
            image = source.removeprefix(ROOT_OF)
            found = self._describe(Filters=[{"Name": "image-id", "Values": [image]}])
            if not found or not found[0].get("RootDeviceName"):
                raise CloudError("not_found", "NoImage", f"the image {image} is not there, or has no root device")
            return str(found[0]["RootDeviceName"])
        if source.startswith(SSM):
            return self._find_by_parameter(source.removeprefix(SSM))
        owner, _, name = source.removeprefix(NEWEST).partition("/")
        found = self._describe(Owners=[owner], Filters=[{"Name": "name", "Values": [name]}, _AVAILABLE])
        if not found:
            raise CloudError("not_found", "NoImage", f"{owner} has no available image with the name {name}")
        return str(max(found, key=lambda each: (each.get("CreationDate", ""), each["ImageId"]))["ImageId"])

    def _find_by_parameter(self, name: str) -> str:
        with cloud_errors():
            image = str(self._ssm.get_parameter(Name=name)["Parameter"]["Value"])
        # Filtered by id: an unknown id in `ImageIds` would be an error.
        if not self._describe(Filters=[{"Name": "image-id", "Values": [image]}, _AVAILABLE]):
            raise CloudError(
                "not_found",
                "NoImage",
                f"the parameter {name} names the image {image}, which is not there or not available",
            )
        return image

    def _describe(self, **wanted: Any) -> list[Any]:
        with cloud_errors():
            return list(self._ec2.describe_images(**wanted)["Images"])


def make_images(access: Ec2Access) -> Ec2Images:
    """Return the Ec2Images of the region and credentials in `access`. Raises CloudError if boto3 cannot make a
    client.
    """
    return Ec2Images(make_client(access), open_client("ssm", access, READ_SECONDS))
