"""The doctor's remedy for an error of AWS follows from its code and category."""

import pytest

from leasehold.doctor.remedies import Tried, find_remedy, judge_call, show_error
from scheduler.model.quota_classes import CLASS_OF_FAMILY, find_quota
from scheduler.ports import Category, CloudError
from workers.ec2.errors import read_message

LAUNCH = Tried(action="ec2:RunInstances", policy="launch", pool="linux", quota="on-demand:g", region="eu-west-1")
ARN = "arn:aws:ec2:eu-west-1:123456789012:instance/*"
DENIED = (
    "You are not authorized to perform this operation. User: arn:aws:sts::123456789012:assumed-role/launch/sched-a is"
    f" not authorized to perform: ec2:RunInstances on resource: {ARN} {{}}"
    " Encoded authorization failure message: 4GIOHlTkIaWHQD0Q0m6XSnuUMCm-abcdefghijklmnop"
)
NO_STATEMENT = "because no identity-based policy allows the ec2:RunInstances action."
ROLE_PASSED = (
    "You are not authorized to perform this operation. User: u is not authorized to perform: iam:PassRole on"
    " resource: arn:aws:iam::123456789012:role/machine because no identity-based policy allows it."
)


@pytest.mark.parametrize(
    ("category", "code", "message", "remedy"),
    [
        # permissions: the action and the resource that EC2 names, and where the policy stands
        ("auth", "UnauthorizedOperation", DENIED.format(NO_STATEMENT), f"Permit ec2:RunInstances on {ARN}; compare"),
        ("auth", "UnauthorizedOperation", DENIED.format(NO_STATEMENT), "docs/iam/launch.json"),
        ("auth", "UnauthorizedOperation", ROLE_PASSED, "Permit iam:PassRole on arn:aws:iam::123456789012:role/machine"),
        ("auth", "UnauthorizedOperation", "not you", "Permit ec2:RunInstances; compare"),
        ("auth", "AccessDeniedException", "no", "Permit ec2:RunInstances"),
        (
            "auth",
            "UnauthorizedOperation",
            DENIED.format("with an explicit deny in a service control policy."),
            f"A policy of the organization denies ec2:RunInstances on {ARN}",
        ),
        (
            "auth",
            "UnauthorizedOperation",
            DENIED.format("with an explicit deny in an identity-based policy."),
            "a statement denies it explicitly",
        ),
        (
            "auth",
            "UnauthorizedOperation",
            DENIED.format("because no permissions boundary allows the ec2:RunInstances action."),
            "in the permissions boundary",
        ),
        (
            "auth",
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "",
            "Run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
        ),
        # the caller: credentials, clock, region, account
        ("auth", "NoCredentialsError", "", "Give this host a role, or name a profile"),
        ("auth", "ExpiredToken", "", "Renew the credentials, and let the clock"),
        ("auth", "RequestExpired", "", "Renew the credentials, and let the clock"),
        ("auth", "SignatureDoesNotMatch", "", "Correct aws.secret_access_key, and let the clock"),
        ("auth", "AuthFailure", "", "or the region is not enabled in the account"),
        ("auth", "InvalidClientTokenId", "", "AWS does not know this key in eu-west-1"),
        ("auth", "PendingVerification", "", "Wait until AWS has validated the account in eu-west-1"),
        ("auth", "Blocked", "", "the account is blocked"),
        ("transient", "EndpointConnectionError", "", "Correct aws.region (eu-west-1) or aws.endpoint_url"),
        ("unknown", "NoRegionError", "You must specify a region.", "Set aws.region"),
        ("transient", "InternalError", "", "Try again"),
        ("throttled", "RequestLimitExceeded", "", "lower aws.calls_per_second"),
        # quotas
        ("quota", "VcpuLimitExceeded", "", '"Running On-Demand G and VT instances" (L-DB2E81BA) in eu-west-1'),
        ("quota", "VcpuLimitExceeded", "", "request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA"),
        ("quota", "VolumeLimitExceeded", "", "Service Quotas in eu-west-1"),
        ("capacity", "InsufficientInstanceCapacity", "", "Nothing is wrong here"),
        # the keys of the pool
        ("misconfigured", "InvalidAMIID.NotFound", "", "Correct pools.linux.ec2.image: it needs"),
        ("auth", "OptInRequired", "", "Correct pools.linux.ec2.image: it needs an image whose terms"),
        ("unknown", "InvalidKeyPair.NotFound", "", "Correct pools.linux.ec2.key_name"),
        ("misconfigured", "InvalidSubnetID.NotFound", "", "Correct pools.linux.ec2.subnets"),
        ("misconfigured", "InvalidGroup.NotFound", "", "Correct pools.linux.ec2.security_groups"),
        ("misconfigured", "InvalidLaunchTemplateId.VersionNotFound", "", "pools.linux.ec2.launch_template_version"),
        ("misconfigured", "InvalidLaunchTemplateName.NotFoundException", "", "pools.linux.ec2.launch_template:"),
        ("misconfigured", "InvalidUserData.Malformed", "", "pools.linux.ec2.user_data"),
        ("misconfigured", "InvalidZone.NotFound", "", "pools.linux.offerings (zone)"),
        ("capacity", "Unsupported", "", "pools.linux.offerings (type)"),
        (
            "misconfigured",
            "InvalidParameterValue",
            "Value (ci) for parameter iamInstanceProfile.name is invalid.",
            "Correct pools.linux.ec2.instance_profile, by what the message names.",
        ),
        ("misconfigured", "NobodyKnowsThisCode", "A sentence.", "Correct pools.linux.ec2, by what the message names."),
        ("misconfigured", "InvalidRules", "config.pools.linux.ec2.image: …", "Correct the key that the message names."),
    ],
)
def test_an_error_of_aws_has_its_own_remedy(category: Category, code: str, message: str, remedy: str) -> None:
    assert remedy in find_remedy(CloudError(category, code, message), LAUNCH)


def test_a_pool_with_a_launch_template_is_sent_to_the_template_too() -> None:
    tried = Tried(action="ec2:CreateFleet", policy="launch", pool="linux", has_template=True)
    assert "pools.linux.ec2.image or its launch template" in find_remedy(
        CloudError("misconfigured", "InvalidAMIID.NotFound", ""), tried
    )
    assert "pools.linux.ec2.subnets: it needs" in find_remedy(
        CloudError("misconfigured", "InvalidSubnetID.NotFound", ""), tried
    )


@pytest.mark.parametrize("quota_class", sorted({*CLASS_OF_FAMILY.values()}))
def test_each_quota_class_has_a_quota_of_aws(quota_class: str) -> None:
    found = find_quota(f"on-demand:{quota_class}")
    assert found is not None
    assert found.code.startswith("L-")


@pytest.mark.parametrize("subject", ["", "spot", "spot:hpc", "on-demand:other"])
def test_an_unknown_quota_has_no_code(subject: str) -> None:
    assert find_quota(subject) is None


def test_a_message_is_shown_up_to_its_point_without_the_encoded_text() -> None:
    message = read_message(DENIED.format(NO_STATEMENT) + 1500 * "x")
    shown = show_error(CloudError("auth", "UnauthorizedOperation", message))
    assert shown.endswith(NO_STATEMENT)
    assert "4GIOH" not in shown


@pytest.mark.parametrize(
    ("category", "outcome"),
    [
        ("capacity", "warning"),
        ("throttled", "warning"),
        ("transient", "warning"),
        ("quota", "failure"),
        ("auth", "failure"),
        ("misconfigured", "failure"),
        ("unknown", "failure"),
    ],
)
def test_what_ends_by_itself_is_a_warning(category: Category, outcome: str) -> None:
    assert judge_call("aws look", CloudError(category, "Code", ""), LAUNCH).outcome == outcome
    assert judge_call("aws look", None, LAUNCH).outcome == "ok"


def test_an_endpoint_that_is_not_reached_is_a_failure() -> None:
    error = CloudError("transient", "EndpointConnectionError", "Could not connect to the endpoint URL")
    assert judge_call("aws look", error, LAUNCH).outcome == "failure"
