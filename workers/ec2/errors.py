"""Find the category of each EC2 error (capacity, quota, auth …) by its code, else by its HTTP status.

`scheduler.ports.CloudError` describes the reaction to each category. docs/reference/ec2-errors.md has the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from botocore import exceptions as aws
from botocore.client import BaseClient
from botocore.parsers import ResponseParserError

from scheduler.ports import UNHEARD, Category, CloudError

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
    # Of other services than EC2, like the Pricing API.
    "AccessDenied*": "auth",
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
    # Of SSM, for an image that is named by a parameter.
    "ParameterNotFound": "not_found",
    # No machine can have such an id.
    "InvalidInstanceID.Malformed": "not_found",
}
"""Code of an EC2 error → category of the error. A code that ends with `*` stands for all codes that begin with the text
before the `*`. The category of any other code follows from the HTTP status.
"""

POWER_REFUSALS: Final = frozenset({"IncorrectInstanceState", "UnsupportedOperation", "OperationNotPermitted"})
"""Codes with which EC2 refuses to stop, start or resize a machine because of the state or the kind of this machine. In
answers to these calls the codes have the category `misconfigured`.
"""

_UNCLEAR: Final = "leasehold_unclear"
"""Key of a mark: an attempt of a boto3 call left open whether EC2 has carried the call out. The mark is in the context
of the call, and in the metadata of its answer.
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
"""Exceptions of botocore that have no EC2 error code → category. In the categories auth and misconfigured no request
was sent; in the category transient the request may have been carried out, but no readable answer came.
"""


Failure = aws.ClientError | aws.BotoCoreError | ResponseParserError
"""All exceptions that a call of boto3 may raise."""


def classify(code: str, http_status: int) -> Category:
    """Return the category of an EC2 error. A known code has the category in CODES. An unknown code has the category
    `transient` if the HTTP status is 5xx, else `unknown`.

    The code has precedence over the status, because RequestLimitExceeded comes with status 503.
    docs/reference/ec2-errors.md has the table.
    """
    exact = CODES.get(code)
    if exact is not None:
        return exact
    for prefix, category in _PREFIXES:
        if code.startswith(prefix):
            return category
    return "transient" if http_status >= 500 else "unknown"  # noqa: PLR2004 - HTTP server errors


def describe_failure(error: Failure) -> CloudError:
    """Return an exception of boto3 as CloudError. Its code is EC2's error code; if there is none, the name of the
    exception's class.

    boto3 may have sent the request before, in an attempt that left open whether EC2 carried it out. Then an error that
    EC2 returns before it examines the request has the category `transient`, because the earlier attempt may have had an
    effect.
    """
    if isinstance(error, aws.ClientError):
        found = error.response.get("Error", {})
        code = found.get("Code", "Unknown")
        metadata: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
        category = classify(code, metadata.get("HTTPStatusCode", 0))
        if category in UNHEARD and metadata.get(_UNCLEAR):
            category = "transient"  # promise: unclear-attempt-remembered
        return CloudError(category, code, found.get("Message", ""))
    for kinds, category in _FAILURES:
        if isinstance(error, kinds):
            return CloudError(category, type(error).__name__, str(error))
    return CloudError("unknown", type(error).__name__, str(error))


def remember_unclear_attempts(client: BaseClient) -> None:
    """Mark an answer to this boto3 client if an earlier attempt of the same call was unclear. An attempt is unclear if
    EC2 may or may not have carried the call out.

    boto3 repeats such a call itself, and raises only the error of the last attempt. That error may be throttling,
    although the first attempt launched machines.
    """
    events: Any = client.meta.events  # the stubs do not know what the handlers get
    events.register(f"response-received.{client.meta.service_model.service_id.hyphenize()}", _mark_unclear)


def _mark_unclear(
    parsed_response: dict[str, Any] | None, context: dict[str, Any], exception: Exception | None, **_event: Any
) -> None:
    """Record two marks for an attempt of a call. An attempt is unclear (EC2 may or may not have carried the call out)
    after no answer, a server error or an unknown error. (1) In the context of the call: this attempt or an earlier one
    was unclear. (2) In the answer: an earlier attempt of the call was unclear.
    """
    metadata: dict[str, Any] = {} if parsed_response is None else parsed_response.setdefault("ResponseMetadata", {})
    if context.get(_UNCLEAR):
        metadata[_UNCLEAR] = True
    error = {} if parsed_response is None else parsed_response.get("Error", {})
    category = classify(error["Code"], metadata.get("HTTPStatusCode", 0)) if "Code" in error else None
    context[_UNCLEAR] = context.get(_UNCLEAR) or exception is not None or category in {"transient", "unknown"}


@contextmanager
def cloud_errors() -> Iterator[None]:
    """Within this context, turn each exception of boto3 into a CloudError."""
    try:
        yield
    except (aws.ClientError, aws.BotoCoreError, ResponseParserError) as error:
        raise describe_failure(error) from error


@contextmanager
def power_errors() -> Iterator[None]:
    """Within this context, turn each exception of boto3 into a CloudError. If its code is in POWER_REFUSALS, the
    category is `misconfigured`.
    """
    try:
        with cloud_errors():
            yield
    except CloudError as error:
        if error.code not in POWER_REFUSALS:
            raise
        raise CloudError("misconfigured", error.code, error.message) from error


def describe_shortfall(errors: Sequence[Mapping[str, Any]]) -> CloudError:
    """Return a CloudError with the reason why EC2 accepted a launch but launched no instance. `errors`: the errors in
    EC2's answer.

    If there are capacity errors, the reason is the last one of them; else it is the last error. If there is no error at
    all, the reason is missing capacity. Sources: Arvados; EC2's CreateFleet, which may launch fewer instances without
    an error.
    """
    if not errors:
        return CloudError("capacity", "UnfulfillableCapacity", "EC2's answer to the launch request has no instance")
    read = [(classify(code := error.get("ErrorCode", "Unknown"), 200), code, error) for error in errors]
    category, code, chosen = next((row for row in reversed(read) if row[0] == "capacity"), read[-1])
    return CloudError(category, code, chosen.get("ErrorMessage", ""))
