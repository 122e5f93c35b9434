"""The HTTP status and the message that EC2 sends with each error code, and the codes that are about places.

Sources: "Error codes for the Amazon EC2 API", "Troubleshoot instance launch issues", and answers of EC2 in public
issues of its users. The emulator has a table of its own: if it used the one of its client (workers.ec2.errors), it
could not show a fault of that table.
"""

from collections.abc import Mapping
from typing import Final

INJECTED: Final = "injected by the emulator"
"""Message of a code that has none here."""
ABOUT_PLACES: Final = frozenset(
    {
        "InsufficientInstanceCapacity",
        "UnfulfillableCapacity",
        "InsufficientHostCapacity",
        "ReservationCapacityExceeded",
        "Unsupported",
        "InsufficientFreeAddressesInSubnet",
        "SpotMaxPriceTooLow",
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "MaxFleetCountExceeded",
        "VolumeLimitExceeded",
    }
)
"""Codes of capacity and quota. EC2 reports them about an instance type in a zone, in the answer of a fleet that may
have instances at other places.
"""
_STATUSES: Final[Mapping[str, int]] = {
    "InsufficientInstanceCapacity": 500,
    "InsufficientHostCapacity": 500,
    "InternalError": 500,
    "InternalFailure": 500,
    "ServerInternal": 500,
    "Unavailable": 503,
    "ServiceUnavailable": 503,
    "RequestLimitExceeded": 503,
    "UnauthorizedOperation": 403,
    "AuthFailure": 401,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": 403,
    "Blocked": 403,
    "ExpiredToken": 403,
    "InvalidClientTokenId": 403,
    "SignatureDoesNotMatch": 403,
    "OptInRequired": 403,
    "DryRunOperation": 412,
}
"""Error code -> HTTP status of the answer. Any other code has the status 400."""
_MESSAGES: Final[Mapping[str, str]] = {
    # Capacity.
    "InsufficientInstanceCapacity": "There is no Spot or On-Demand capacity available that matches your request.",
    "UnfulfillableCapacity": (
        "Unable to fulfill capacity due to your request configuration. Please adjust your request and try again."
    ),
    "InsufficientHostCapacity": "There is not sufficient capacity to fulfill your Dedicated Host request.",
    "InsufficientFreeAddressesInSubnet": (
        "There are not enough free addresses in the subnet to satisfy the requested number of instances."
    ),
    "Unsupported": (
        "The requested configuration is currently not supported. Please check the documentation for supported "
        "configurations."
    ),
    "SpotMaxPriceTooLow": "Your Spot request price is lower than the minimum required Spot request fulfillment price.",
    # Quotas.
    "VcpuLimitExceeded": (
        "You have requested more vCPU capacity than your current vCPU limit allows for the instance bucket that the "
        "specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an "
        "adjustment to this limit."
    ),
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "InstanceLimitExceeded": (
        "You have requested more instances than your current instance limit allows for the specified instance type. "
        "Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
    ),
    "MaxFleetCountExceeded": "You've reached the quota on the number of EC2 Fleets for this account.",
    "VolumeLimitExceeded": "You have exceeded your maximum gp3 storage limit in this region.",
    # The caller and its rights.
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
    "AuthFailure": "AWS was not able to validate the provided access credentials",
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": (
        "The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances."
    ),
    "Blocked": (
        "This account is currently blocked and not recognized as a valid account. Please contact "
        "aws-verification@amazon.com if you have questions."
    ),
    "ExpiredToken": "The security token included in the request is expired",
    "RequestExpired": "Request has expired.",
    "InvalidClientTokenId": "The security token included in the request is invalid",
    "SignatureDoesNotMatch": (
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access "
        "Key and signing method. Consult the service documentation for details."
    ),
    "OptInRequired": (
        "In order to use this AWS Marketplace product you need to accept terms and subscribe. To do so please visit "
        "https://aws.amazon.com/marketplace"
    ),
    "PendingVerification": (
        "Your request for accessing resources in this region is being validated, and you will not be able to launch "
        "additional resources in this region until the validation is complete. We will notify you by email once your "
        "request has been validated."
    ),
    # The request.
    "IdempotentParameterMismatch": (
        "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
    ),
    "IdempotentInstanceTerminated": (
        "The request to launch an instance uses the same client token as a previous request for which the instance has "
        "been terminated."
    ),
    "InvalidAMIID.NotFound": "The image id does not exist",
    "InvalidAvailabilityZone": "Invalid availability zone",
    "InvalidGroup.NotFound": "The security group does not exist",
    "InvalidKeyPair.NotFound": "The key pair does not exist",
    "InvalidLaunchTemplateId.NotFound": "The specified launch template does not exist.",
    "InvalidLaunchTemplateName.NotFoundException": "The specified launch template does not exist.",
    "InvalidParameterValue": "Value for parameter is invalid.",
    "InvalidSubnetID.NotFound": "The subnet ID does not exist",
    "MissingParameter": "The request must contain the parameter",
    "OperationNotPermitted": "The instance does not support this operation.",
    "InvalidFleetConfig": "The fleet configuration contains duplicate instance pools.",
    "DryRunOperation": "Request would have succeeded, but DryRun flag is set.",
    # EC2 itself.
    "RequestLimitExceeded": "Request limit exceeded.",
    "InternalError": "An internal error has occurred",
    "InternalFailure": "An internal error has occurred",
    "Unavailable": "The service is unavailable. Please try again shortly.",
    "ServiceUnavailable": "The service is unavailable. Please try again shortly.",
    # Reasons for the end of a machine.
    "Client.InternalError": "Client error on launch",
    "Client.InstanceInitiatedShutdown": "Instance initiated shutdown",
    "Client.InvalidSnapshot.NotFound": "The specified snapshot was not found",
    "Client.UserInitiatedShutdown": "User initiated shutdown",
    "Client.VolumeLimitExceeded": "Volume limit exceeded",
    "Server.InsufficientInstanceCapacity": "Insufficient capacity to satisfy the launch request",
    "Server.InternalError": "Internal error on launch",
    "Server.ScheduledStop": "Stopped due to a scheduled retirement",
    "Server.SpotInstanceShutdown": "Spot instance shutdown",
    "Server.SpotInstanceTermination": "Spot instance termination",
}
"""Error code, or code of a state reason -> EC2's message."""


def find_status(code: str) -> int:
    """Return the HTTP status with which EC2 sends this error code."""
    return _STATUSES.get(code, 400)


def find_message(code: str) -> str:
    """Return the message that EC2 sends with this error code, or with this code of a state reason."""
    return _MESSAGES.get(code, INJECTED)


def describe_reason(code: str, message: str | None = None) -> str:
    """Return the text of a state reason, like "Client.InternalError: Client error on launch"."""
    return f"{code}: {find_message(code) if message is None else message}"
