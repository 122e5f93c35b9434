"""What to do about an error of AWS: chosen by the code and the category of the error, without I/O.

Sources: EC2's "Error codes for the Amazon EC2 API"; the names and codes of "Service Quotas" for EC2.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from leasehold.doctor.rules import Finding, failure, ok, warning
from scheduler.model.quota_classes import find_quota
from scheduler.ports import CloudError

PASSING: Final = frozenset({"capacity", "throttled", "transient"})
"""Categories of errors that end by themselves. The credentials and the settings are not shown to be wrong."""
SPOT_ROLE: Final = "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"
_PAGE: Final = "docs/how-to/aws.md"
_UNKNOWN_KEY: Final = frozenset(
    {
        *("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "InvalidSecurityToken"),
        *("MissingAuthenticationToken", "NotAuthorized", "InvalidSecurity"),
    }
)
_EXPIRED: Final = ("ExpiredToken", "RequestExpired")
_OF_VCPUS: Final = frozenset({"VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded"})
_UNSIGNED: Final = frozenset({"SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignature"})
_UNREACHABLE: Final = frozenset(
    {
        *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"),
        *("ConnectionError", "HTTPClientError", "ProxyConnectionError", "SSLError", "ResponseParserError"),
    }
)
_KEYS: Final[Sequence[tuple[str, str, str]]] = (
    # what the code begins with, the key of the pool, what it needs
    ("InvalidAMIID", "ec2.image", "an image that this account may use in this region, of the type's architecture"),
    ("ImageIdUnavailable", "ec2.image", "an image that is available"),
    (
        "OptInRequired",
        "ec2.image",
        "an image whose terms were accepted in AWS Marketplace, in a region that is enabled",
    ),
    ("InvalidSnapshot", "ec2.image", "an image whose snapshots this account may use"),
    ("KmsKeyNotFound", "ec2.image", "an image whose encryption key this account may use"),
    ("KMSKeyNotAccessible", "ec2.image", "an image whose encryption key this account may use"),
    ("InvalidKMSKey", "ec2.image", "an image whose encryption key is enabled"),
    ("InvalidKeyPair", "ec2.key_name", "a key pair of this region"),
    ("InvalidIamInstanceProfile", "ec2.instance_profile", "an instance profile of this account"),
    ("InvalidGroup", "ec2.security_groups", "security groups (sg-…) of the VPC of the subnets"),
    ("InvalidSecurityGroup", "ec2.security_groups", "security groups (sg-…) of the VPC of the subnets"),
    ("InvalidSubnet", "ec2.subnets", "subnets of this region and account"),
    ("DefaultSubnetDoesNotExist", "ec2.subnets", "subnets, because the zone has no default subnet"),
    ("InsufficientFreeAddressesInSubnet", "ec2.subnets", "subnets with free addresses"),
    ("DefaultVpcDoesNotExist", "ec2.subnets", "subnets, because the account has no default VPC in this region"),
    ("VPC", "ec2.subnets", "subnets: the type runs only in a VPC"),
    ("MissingInput", "ec2.subnets", "subnets, because the account has no default VPC in this region"),
    ("InvalidInterface", "ec2.subnets", "subnets with free addresses"),
    ("InvalidLaunchTemplateId.VersionNotFound", "ec2.launch_template_version", "a version of the launch template"),
    ("InvalidLaunchTemplateName", "ec2.launch_template", "a launch template of this region"),
    ("InvalidLaunchTemplate", "ec2.launch_template", "a launch template of this region, with a version that exists"),
    ("NoSuchVersion", "ec2.launch_template_version", "a version of the launch template"),
    ("InvalidUserData", "ec2.user_data", "user data of at most 16 KiB"),
    ("InvalidBlockDeviceMapping", "ec2.volume_gib", "a size of at least that of the image's snapshot"),
    ("InvalidTagKey", "ec2.tags", "keys of tags that do not begin with aws:"),
    ("TagLimitExceeded", "ec2.tags", "fewer tags: a machine has at most 50"),
    ("InvalidAvailabilityZone", "offerings (zone)", "a zone of this region"),
    ("InvalidZone", "offerings (zone)", "a zone of this region"),
    ("InvalidInstanceType", "offerings (type)", "an instance type"),
    ("InstanceTypeNotSupported", "offerings (type)", "an instance type that the zone and the image support"),
    ("Unsupported", "offerings (type)", "an instance type that the zone and the image support"),
    ("InvalidMarketType", "offerings (market)", "on-demand for types that EC2 does not sell as spot"),
    ("InvalidFleetConfig", "offerings", "each type once for a market and zone"),
)
_PARAMETERS: Final[Sequence[tuple[str, str]]] = (
    # a parameter that EC2's message names, the key of the pool
    ("iaminstanceprofile", "ec2.instance_profile"),
    ("instance profile", "ec2.instance_profile"),
    ("groupid", "ec2.security_groups"),
    ("securitygroup", "ec2.security_groups"),
    ("subnet", "ec2.subnets"),
    ("keyname", "ec2.key_name"),
    ("userdata", "ec2.user_data"),
    ("user data", "ec2.user_data"),
    ("blockdevicemapping", "ec2.volume_gib"),
    ("volumesize", "ec2.volume_gib"),
    ("launchtemplate", "ec2.launch_template"),
    ("launch template", "ec2.launch_template"),
    ("availabilityzone", "offerings (zone)"),
    ("instancetype", "offerings (type)"),
    ("instance type", "offerings (type)"),
    ("architecture", "offerings (type)"),
    ("imageid", "ec2.image"),
    ("tag", "ec2.tags"),
)


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """The call whose error is explained. `action`: its permission, like `ec2:RunInstances`. `policy`: name of the file
    in docs/iam/ whose policy permits it. `pool`: name of the pool whose settings it used; "": it used none. `quota`:
    what limits its machines, as `MARKET:CLASS`; "": not known. `region`: the region of the call. `has_template`:
    whether the pool names a launch template of its own.
    """

    action: str = ""
    policy: str = ""
    pool: str = ""
    quota: str = ""
    region: str = ""
    has_template: bool = False


def judge_call(check: str, error: CloudError | None, tried: Tried, text: str = "permitted") -> Finding:
    """Return the finding on a call: ok with `text` if AWS permits it (`error` None); a warning if the error ends by
    itself; else a failure.
    """
    if error is None:
        return ok(check, text)
    is_passing = error.category in PASSING and error.code not in _UNREACHABLE
    make = warning if is_passing else failure
    return make(check, show_error(error), find_remedy(error, tried))


def show_error(error: CloudError) -> str:
    return " ".join(str(error).split())


def find_remedy(error: CloudError, tried: Tried) -> str:
    code = error.code
    if code.endswith("ServiceLinkedRoleCreationNotPermitted"):
        return f"Run `{SPOT_ROLE}` once in this account, as an administrator ({_PAGE})."
    if code.startswith(("UnauthorizedOperation", "AccessDenied", "AuthorizationError")):
        return _permit(error.message, tried)
    if error.category == "auth" and code != "OptInRequired":
        return _authenticate(code, tried)
    if code == "NoRegionError":
        return "Set aws.region (LEASEHOLD_AWS__REGION)."
    if error.category == "transient" or code in _UNREACHABLE:
        return _reach(code, tried)
    if error.category == "throttled":
        return "Wait a minute. If it lasts, lower aws.calls_per_second, or ask AWS for a higher limit of API calls."
    if error.category == "quota":
        return _raise_quota(code, tried)
    is_of_settings = code.startswith(("Unsupported", "Insufficient", "InstanceType"))
    if (error.category == "capacity" and not is_of_settings) or code.startswith("InsufficientInstanceCapacity"):
        return "Nothing is wrong here: try again later, or add offerings, zones or types to the pool."
    return _correct(code, error.message, tried)


def _permit(message: str, tried: Tried) -> str:
    found = re.search(r"perform: ([a-z0-9-]+:[A-Za-z]+)(?: on resource: (\S+))?", message)
    action = found[1] if found else tried.action
    where = f" on {found[2]}" if found and found[2] else ""
    if "service control policy" in message or "resource control policy" in message:
        return f"A policy of the organization denies {action}{where}: its administrator has to permit it."
    if "permissions boundary" in message:
        return f"Permit {action}{where} in the permissions boundary of the role, too."
    denied = ": a statement denies it explicitly" if "explicit deny" in message else ""
    return f"Permit {action}{where}{denied}; compare the role's policies with docs/iam/{tried.policy}.json ({_PAGE})."


def _authenticate(code: str, tried: Tried) -> str:
    role = "Give this host a role, or name a profile of boto3's configuration (aws.profile)."
    region = f" in {tried.region}" if tried.region else ""
    if code.startswith(_EXPIRED):
        return f"Renew the credentials, and let the clock of this host follow a time service (NTP: chrony). {role}"
    if code in _UNSIGNED:
        return "Correct aws.secret_access_key, and let the clock of this host follow a time service (NTP: chrony)."
    if code in _UNKNOWN_KEY:
        return (
            f"Correct the credentials (aws.access_key_id, aws.profile, the role) and aws.region: AWS does not know"
            f" this key{region}, or the region is not enabled in the account (`aws account list-regions`)."
        )
    if code == "PendingVerification":
        return f"Wait until AWS has validated the account{region}: it sends an e-mail."
    if code == "Blocked":
        return "Ask AWS (aws-verification@amazon.com): the account is blocked."
    if code == "SubscriptionRequiredException":
        return "Complete the registration of the account at AWS, with a means of payment."
    return role


def _reach(code: str, tried: Tried) -> str:
    if code in _UNREACHABLE:
        region = f" ({tried.region})" if tried.region else ""
        return (
            f"Correct aws.region{region} or aws.endpoint_url, or let this host reach AWS: network, proxy, VPC endpoint."
        )
    return "Try again: AWS has a fault of its own."


def _raise_quota(code: str, tried: Tried) -> str:
    if code == "TagLimitExceeded":
        return _correct(code, "", tried)
    known = find_quota(tried.quota) if code in _OF_VCPUS else None
    if known is None:
        return f"Ask AWS for a higher quota (Service Quotas{_in(tried.region)}), or delete what uses it: {code}."
    return (
        f'Raise the quota "{known.name}" ({known.code}){_in(tried.region)}: `aws service-quotas'
        f" request-service-quota-increase --service-code ec2 --quota-code {known.code} --desired-value VCPUS`."
    )


def _in(region: str) -> str:
    return f" in {region}" if region else ""


def _correct(code: str, message: str, tried: Tried) -> str:
    if code == "InvalidRules":
        return "Correct the key that the message names."
    own = f"pools.{tried.pool}." if tried.pool else ""
    for begin, key, expected in _KEYS:
        if code.startswith(begin):
            return f"Correct {own}{key}{_or_template(key, tried)}: it needs {expected}."
    named = message.replace("_", "").lower()
    key = next((key for word, key in _PARAMETERS if word in named), "ec2")
    if not own:
        return f"Correct what the message names, or compare the role's policies with docs/iam/{tried.policy}.json."
    return f"Correct {own}{key}{_or_template(key, tried)}, by what the message names."


def _or_template(key: str, tried: Tried) -> str:
    is_of_template = key.startswith("ec2.") and key not in {"ec2.tags", "ec2.subnets"}
    return " or its launch template" if tried.has_template and is_of_template else ""
