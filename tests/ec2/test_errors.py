"""The table of errors: each known code has a row, and errors without a code have a category as well."""

import re
from pathlib import Path

import pytest
from botocore import exceptions as aws
from botocore.parsers import ResponseParserError

from scheduler.ports import Category, CloudError
from workers.ec2.errors import CODES, Failure, classify, cloud_errors, describe_failure, describe_shortfall

TABLE: list[tuple[str, int, Category]] = [
    # no capacity: the next offering
    ("InsufficientInstanceCapacity", 500, "capacity"),
    ("UnfulfillableCapacity", 400, "capacity"),
    ("InsufficientHostCapacity", 500, "capacity"),
    ("ReservationCapacityExceeded", 400, "capacity"),
    ("Unsupported", 400, "capacity"),
    ("InsufficientFreeAddressesInSubnet", 400, "capacity"),
    ("SpotMaxPriceTooLow", 400, "capacity"),
    # the account's limits
    ("VcpuLimitExceeded", 400, "quota"),
    ("InstanceLimitExceeded", 400, "quota"),
    ("MaxSpotInstanceCountExceeded", 400, "quota"),
    ("MaxFleetCountExceeded", 400, "quota"),
    ("VolumeLimitExceeded", 400, "quota"),
    # the code has precedence over the status: these come as 503
    ("RequestLimitExceeded", 503, "throttled"),
    ("Throttling", 400, "throttled"),
    ("ThrottlingException", 400, "throttled"),
    ("EC2ThrottledException", 503, "throttled"),
    # it is unknown whether the call was carried out
    ("InternalError", 500, "transient"),
    ("Unavailable", 503, "transient"),
    ("SomethingNew", 500, "transient"),
    ("502", 502, "transient"),
    # credentials
    ("UnauthorizedOperation", 403, "auth"),
    ("AccessDenied", 403, "auth"),
    ("AccessDeniedException", 400, "auth"),
    ("AuthFailure", 401, "auth"),
    ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", 403, "auth"),
    ("ExpiredToken", 400, "auth"),
    ("ExpiredTokenException", 400, "auth"),
    ("RequestExpired", 400, "auth"),
    ("OptInRequired", 403, "auth"),
    ("PendingVerification", 400, "auth"),
    # the pool's configuration
    ("InvalidParameter", 400, "misconfigured"),
    ("InvalidParameterValue", 400, "misconfigured"),
    ("InvalidParameterCombination", 400, "misconfigured"),
    ("InvalidAMIID.NotFound", 400, "misconfigured"),
    ("InvalidAMIID.Malformed", 400, "misconfigured"),
    ("InvalidLaunchTemplateId.NotFound", 400, "misconfigured"),
    ("InvalidLaunchTemplateName.NotFoundException", 400, "misconfigured"),
    ("InvalidSubnetID.NotFound", 400, "misconfigured"),
    ("InvalidGroup.NotFound", 400, "misconfigured"),
    ("MissingParameter", 400, "misconfigured"),
    # machines that do not exist
    ("InvalidInstanceID.NotFound", 400, "not_found"),
    ("ParameterNotFound", 400, "not_found"),
    ("InvalidInstanceID.Malformed", 400, "not_found"),
    # anything else
    ("IdempotentParameterMismatch", 400, "unknown"),
    ("UnsupportedOperation", 400, "unknown"),
    ("Unknown", 0, "unknown"),
]


@pytest.mark.parametrize(("code", "status", "category"), TABLE)
def test_a_code_has_its_category(code: str, status: int, category: Category) -> None:
    assert classify(code, status) == category


def test_the_page_has_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "ec2-errors.md"
    rows = re.findall(r"^\| (\w+) \| .+ \| (.+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    stated = {code: category for category, codes in rows if category != "category" for code in codes.split(", ")}
    assert stated == CODES


def test_every_code_of_the_table_is_tested() -> None:
    tested = {code for code, _, _ in TABLE}
    assert [code for code in CODES if not any(known == code or known.startswith(code[:-1]) for known in tested)] == []


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (aws.NoCredentialsError(), "auth"),
        (aws.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), "auth"),
        (aws.ProfileNotFound(profile="nobody"), "auth"),
        (aws.ConnectTimeoutError(endpoint_url="x"), "transient"),
        (aws.ReadTimeoutError(endpoint_url="x"), "transient"),
        (aws.EndpointConnectionError(endpoint_url="x"), "transient"),
        (aws.ConnectionClosedError(endpoint_url="x"), "transient"),
        (aws.SSLError(endpoint_url="x", error=OSError("y")), "transient"),
        # a proxy's page instead of EC2's answer
        (ResponseParserError("invalid XML"), "transient"),
        (aws.ParamValidationError(report="a list is wanted"), "misconfigured"),
        (aws.NoRegionError(), "misconfigured"),
        (aws.InvalidRegionError(region_name="?"), "misconfigured"),
        (aws.ChecksumError(checksum_type="a", expected_checksum="b", actual_checksum="c"), "unknown"),
    ],
)
def test_an_error_of_boto3_itself_has_its_category(error: Failure, category: Category) -> None:
    found = describe_failure(error)
    assert (found.category, found.code) == (category, type(error).__name__)


def test_an_error_keeps_its_code_and_message() -> None:
    answer = {
        "Error": {"Code": "VcpuLimitExceeded", "Message": "no more"},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }
    with pytest.raises(CloudError) as caught, cloud_errors():
        raise aws.ClientError(answer, "RunInstances")  # type: ignore[arg-type]
    assert (caught.value.category, caught.value.code, caught.value.message) == (
        "quota",
        "VcpuLimitExceeded",
        "no more",
    )


@pytest.mark.parametrize(
    ("codes", "reported"),
    [
        # a short delivery without errors counts as capacity
        ([], ("capacity", "UnfulfillableCapacity")),
        # the last capacity error in any position
        (
            ["InsufficientInstanceCapacity", "UnfulfillableCapacity", "VcpuLimitExceeded"],
            ("capacity", "UnfulfillableCapacity"),
        ),
        # without a capacity error the last error
        (["InvalidSubnetID.NotFound", "VcpuLimitExceeded"], ("quota", "VcpuLimitExceeded")),
        (["VcpuLimitExceeded", "SomethingNew"], ("unknown", "SomethingNew")),
    ],
)
def test_a_fleet_without_instances_is_an_error(codes: list[str], reported: tuple[str, str]) -> None:
    found = describe_shortfall([{"ErrorCode": code, "ErrorMessage": "…"} for code in codes])
    assert (found.category, found.code) == reported
