"""The category of each EC2 error (capacity, quota, auth …): by its code, else by its HTTP status.

`scheduler.ports.CloudError` describes the reaction to a category. docs/reference/ec2-errors.md has the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from botocore import exceptions as aws
from botocore.parsers import ResponseParserError

from scheduler.ports import Category, CloudError

CODES: Final[Mapping[str, Category]] = {
    "InsufficientInstanceCapacity": "capacity",
    "UnfulfillableCapacity": "capacity",
    "InsufficientHostCapacity": "capacity",
    "ReservationCapacityExceeded": "capacity",
    "Unsupported": "capacity",
    "InsufficientFreeAddressesInSubnet": "capacity",
    "SpotMaxPriceTooLow": "capacity",
    "VcpuLimitExceeded": "quota",
    "InstanceLimitExceeded": "quota",
    "MaxSpotInstanceCountExceeded": "quota",
    "MaxFleetCountExceeded": "quota",
    "VolumeLimitExceeded": "quota",
    "RequestLimitExceeded": "throttled",
    "Throttling*": "throttled",
    "EC2ThrottledException": "throttled",
    "InternalError": "transient",
    "Unavailable": "transient",
    "UnauthorizedOperation": "auth",
    "AuthFailure*": "auth",
    "ExpiredToken*": "auth",
    # EC2's code for expired credentials and for a wrong clock.
    "RequestExpired": "auth",
    "OptInRequired": "auth",
    "PendingVerification": "auth",
    "InvalidParameter*": "misconfigured",
    "InvalidAMIID*": "misconfigured",
    "InvalidLaunchTemplate*": "misconfigured",
    "InvalidSubnetID*": "misconfigured",
    "InvalidGroup*": "misconfigured",
    "MissingParameter": "misconfigured",
    "InvalidInstanceID.NotFound": "not_found",
    # No machine can have such an id.
    "InvalidInstanceID.Malformed": "not_found",
}
"""EC2's error code, or its beginning before a `*` → category of the error. Other codes are judged by the HTTP status.
"""

_PREFIXES: Final = tuple((code[:-1], category) for code, category in CODES.items() if code.endswith("*"))

_FAILURES: Final[Sequence[tuple[tuple[type[Exception], ...], Category]]] = (
    (
        (
            aws.NoCredentialsError,
            aws.PartialCredentialsError,
            aws.CredentialRetrievalError,
            aws.MetadataRetrievalError,
            aws.TokenRetrievalError,
            aws.NoAuthTokenError,
            aws.SSOError,
            aws.LoginError,
            aws.ProfileNotFound,
        ),
        "auth",
    ),
    (
        (
            aws.ConnectionError,
            aws.HTTPClientError,
            aws.IncompleteReadError,
            # The answer is not EC2's XML: it comes from a proxy.
            ResponseParserError,
        ),
        "transient",
    ),
    (
        (
            aws.ParamValidationError,
            aws.ValidationError,
            aws.BaseEndpointResolverError,
            aws.EndpointProviderError,
            aws.InvalidEndpointConfigurationError,
        ),
        "misconfigured",
    ),
)
"""Exceptions of botocore that have no EC2 error code → category. No request was sent (auth, misconfigured), or no
readable answer came (transient).
"""


Failure = aws.ClientError | aws.BotoCoreError | ResponseParserError
"""The types of all exceptions that a call of boto3 raises."""


def classify(code: str, http_status: int) -> Category:
    """Return the category of an EC2 error: by its code, else `transient` for a 5xx, else `unknown`.

    The code has precedence, because RequestLimitExceeded comes with status 503. docs/reference/ec2-errors.md has the
    table.
    """
    exact = CODES.get(code)
    if exact is not None:
        return exact
    for prefix, category in _PREFIXES:
        if code.startswith(prefix):
            return category
    return "transient" if http_status >= 500 else "unknown"  # noqa: PLR2004 - HTTP server errors


def describe_failure(error: Failure) -> CloudError:
    """Return an error of boto3 as CloudError, with EC2's code or else botocore's class name."""
    if isinstance(error, aws.ClientError):
        found = error.response.get("Error", {})
        code = found.get("Code", "Unknown")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return CloudError(classify(code, status), code, found.get("Message", ""))
    for kinds, category in _FAILURES:
        if isinstance(error, kinds):
            return CloudError(category, type(error).__name__, str(error))
    return CloudError("unknown", type(error).__name__, str(error))


@contextmanager
def cloud_errors() -> Iterator[None]:
    """Turn each exception of boto3 in the `with` block into a CloudError."""
    try:
        yield
    except (aws.ClientError, aws.BotoCoreError, ResponseParserError) as error:
        raise describe_failure(error) from error


def describe_shortfall(errors: Sequence[Mapping[str, Any]]) -> CloudError:
    """Return a CloudError with the reason why a launch that EC2 accepted gave no instance.

    Of several `errors` in the answer the last capacity error is reported, else the last one; without errors it is a
    capacity error. Sources: Arvados; EC2's CreateFleet, which may deliver fewer instances without an error.
    """
    if not errors:
        return CloudError("capacity", "UnfulfillableCapacity", "EC2's answer to the launch request has no instance")
    read = [(classify(code := error.get("ErrorCode", "Unknown"), 200), code, error) for error in errors]
    category, code, chosen = next((row for row in reversed(read) if row[0] == "capacity"), read[-1])
    return CloudError(category, code, chosen.get("ErrorMessage", ""))
