"""Find the meaning of each EC2 error: its category (capacity, quota, auth …) and its scope (what it concerns).

`scheduler.ports.CloudError` describes the reaction to each category. docs/reference/ec2-errors.md has the table.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from botocore import exceptions as aws
from botocore.parsers import ResponseParserError

from scheduler.ports import MOST_MESSAGE, UNCLEAR, UNHEARD, Category, CloudError, Scope
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from botocore.client import BaseClient  # a quarter of a second, and commands that check rules make no client

Where = Literal["call", "power", "fleet", "machine"]
"""Where a code is found. call: the error of a call. power: the error of a call that stops, starts, resizes or ends
machines. fleet: an entry of `Errors` in the answer of CreateFleet. machine: the state reason of a machine.
"""
EVERYWHERE: Final[frozenset[Where]] = frozenset({"call", "power", "fleet", "machine"})
LAUNCHING: Final = EVERYWHERE - {"power"}
IMAGE: Final = re.compile(r"\bami-|\bimages?\b", re.IGNORECASE)


class Meaning(NamedTuple):
    """The meaning of an error. See `scheduler.ports.CloudError`."""

    category: Category
    scope: Scope


class Row(NamedTuple):
    """One row of the table of EC2's errors. `codes`: separated by spaces; `*` stands for any ending. The row holds only
    in the places `where`, and only for messages in which `about` is found (None: for all). `of_one`: the scope if only
    one offering was refused (None: `scope`).
    """

    category: Category
    scope: Scope
    codes: str
    where: frozenset[Where] = EVERYWHERE
    about: re.Pattern[str] | None = None
    of_one: Scope | None = None


TABLE: Final[Sequence[Row]] = (
    Row(
        "capacity",
        "offering",
        "InsufficientInstanceCapacity InsufficientCapacity InsufficientHostCapacity"
        " InsufficientReservedInstanceCapacity InsufficientCapacityOnHost UnfulfillableCapacity"
        " ReservationCapacityExceeded MaxScheduledInstanceCapacityExceeded SpotMaxPriceTooLow Unsupported"
        " InstanceTypeNotSupported",
    ),
    # A fleet answers so if a zone does not offer the type. As the error of a call it concerns the whole request.
    Row("capacity", "offering", "InvalidFleetConfiguration", where=frozenset({"fleet"})),
    Row("capacity", "offering", "UnsupportedOperation", where=LAUNCHING),
    Row(
        "capacity",
        "place",
        "InsufficientFreeAddressesInSubnet InsufficientAddressCapacity InsufficientVolumeCapacity",
    ),
    Row(
        "quota",
        "class",
        "VcpuLimitExceeded MaxSpotInstanceCountExceeded MaxSpotFleetRequestCountExceeded"
        " SpotInstanceRequestLimitExceeded InstanceLimitExceeded",
    ),
    Row(
        "quota",
        "pool",
        "MaxFleetCountExceeded VolumeLimitExceeded MaxIOPSLimitExceeded NetworkInterfaceLimitExceeded"
        " AddressLimitExceeded HostLimitExceeded ResourceLimitExceeded ResourceCountLimitExceeded"
        " ResourceCountExceeded LimitExceeded ScheduledInstanceLimitExceeded SnapshotLimitExceeded"
        " LaunchTemplateLimitExceeded LaunchTemplateVersionLimitExceeded TemplateLimitExceeded TagLimitExceeded",
    ),
    Row(
        "throttled",
        "pool",
        "RequestLimitExceeded Throttling* ThrottledException EC2ThrottledException RequestThrottled*"
        " TooManyRequestsException RequestResourceCountExceeded BandwidthLimitExceeded PriorRequestNotComplete"
        " ConcurrentRequestLimitExceeded SlowDown",
    ),
    Row(
        "transient",
        "offering",
        "InternalError InternalFailure Unavailable ServiceUnavailable ServerInternal RequestTimeout* DependencyFailure",
    ),
    Row("misconfigured", "offering", "AuthFailure", about=IMAGE),
    Row(
        "auth",
        "caller",
        # RequestExpired: expired credentials, or a wrong clock.
        "AuthFailure ExpiredToken* RequestExpired PendingVerification Blocked InvalidClientTokenId"
        " SignatureDoesNotMatch InvalidSignatureException IncompleteSignature MissingAuthenticationToken"
        " UnrecognizedClientException InvalidSecurityToken NotAuthorized SubscriptionRequiredException",
    ),
    Row("auth", "market", "AuthFailure.ServiceLinkedRoleCreationNotPermitted"),
    Row("auth", "pool", "UnauthorizedOperation AccessDenied* AuthorizationError", of_one="offering"),
    Row(
        "misconfigured",
        "offering",
        "OptInRequired InvalidAMIID.* InvalidKeyPair.* InvalidIamInstanceProfile* InvalidGroup.* InvalidSecurityGroup*"
        " InvalidLaunchTemplate* InvalidUserData.Malformed InvalidBlockDeviceMapping InvalidSnapshot.NotFound"
        " InvalidTagKey.Malformed ImageIdUnavailable KmsKeyNotFound KMSKeyNotAccessibleFault InvalidKMSKey.InvalidState"
        " MissingParameter MissingInput VPCIdNotSpecified DefaultVpcDoesNotExist VPCResourceNotSpecified"
        " InvalidFleetConfig InvalidParameter* InvalidRequest InvalidOptionCombination InvalidState NoSuchVersion"
        " EncryptedVolumesNotSupported InvalidInstanceType InvalidMarketType InvalidTenancy"
        " InstanceCreditSpecification.NotSupported UnsupportedHibernationConfiguration InvalidHostID.NotFound"
        " InvalidPlacementGroup.Unknown InvalidCapacityReservationId.*",
    ),
    Row(
        "misconfigured",
        "place",
        "InvalidSubnetID.* InvalidSubnet InvalidSubnet.Conflict DefaultSubnetDoesNotExist InvalidAvailabilityZone"
        " InvalidZone.NotFound InvalidInterface.IpAddressLimitExceeded",
    ),
    Row("token", "machine", "IdempotentParameterMismatch"),
    Row("gone", "machine", "IdempotentInstanceTerminated"),
    # ParameterNotFound is of SSM: a parameter that names an image.
    Row("not_found", "machine", "InvalidInstanceID.NotFound InvalidInstanceID InvalidInstanceID.Malformed"),
    Row("not_found", "offering", "ParameterNotFound"),
    Row("state", "machine", "IncorrectInstanceState IncorrectState OperationNotPermitted"),
    Row("state", "machine", "UnsupportedOperation", where=frozenset({"power"})),
)
"""All codes whose meaning does not follow from the rule of `classify`, or that a state reason may have. If several rows
have a code, the first one that holds counts, and a row with the whole code counts before one with `*`.
"""
ABOUT_ZONES: Final = frozenset({"InsufficientVolumeCapacity", "InvalidAvailabilityZone", "InvalidZone.NotFound"})
"""Codes with the scope `place` that concern a zone, and not one subnet of it."""
OTHER: Final = Meaning("misconfigured", "offering")
"""The meaning of any other code: EC2 refuses the request as it is."""

_POWER: Final = frozenset(
    {"StopInstances", "StartInstances", "TerminateInstances", "RebootInstances", "ModifyInstanceAttribute"}
)
_REFUSALS: Final[frozenset[Category]] = frozenset({"capacity", "quota", "throttled", "auth", "misconfigured"})
_SERVER_ERRORS: Final = 500
_READABLE: Final = re.compile(r"[A-Za-z][\w.:#/-]{0,127}")
_HAS_CODE: Final = re.compile(rb"<Code>\s*[A-Za-z][^<]*</Code>")
_PAGE: Final = re.compile(rb"\s*<(?:!doctype\s+)?html\b", re.IGNORECASE)
_ENCODED: Final = re.compile(r"\s*Encoded authorization failure message:\s*\S*")
_TAG: Final = re.compile(r"<[!/?]?[A-Za-z][^<>]*>")
_UNCLEAR: Final = "leasehold_unclear"
"""Key of a mark: an attempt of a boto3 call left open whether EC2 has carried the call out. The mark is in the context
of the call, and in the metadata of its answer.
"""


def _sort_codes() -> tuple[dict[str, list[Row]], list[tuple[str, Row]]]:
    exact, prefixes = dict[str, list[Row]](), list[tuple[str, Row]]()
    for row in TABLE:
        for code in row.codes.split():
            if code.endswith("*"):
                prefixes.append((code[:-1], row))
            else:
                exact.setdefault(code, []).append(row)
    return exact, prefixes


_EXACT, _PREFIXES = _sort_codes()

_FAILURES: Final[Sequence[tuple[tuple[type[Exception], ...], Meaning]]] = (
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
        Meaning("auth", "caller"),
    ),
    (
        (
            aws.ConnectionError,
            aws.HTTPClientError,
            aws.IncompleteReadError,
            # The answer is not EC2's XML: it comes from a proxy.
            ResponseParserError,
        ),
        Meaning("transient", "offering"),
    ),
    (
        (
            aws.ParamValidationError,
            aws.ValidationError,
            aws.BaseEndpointResolverError,
            aws.EndpointProviderError,
            aws.InvalidEndpointConfigurationError,
        ),
        OTHER,
    ),
)
"""Exceptions of botocore that have no EC2 error code → meaning. In the categories auth and misconfigured no request was
sent; in the category transient the request may have been carried out, but no readable answer came.
"""


Failure = aws.ClientError | aws.BotoCoreError | ResponseParserError
"""All exceptions that a call of boto3 may raise."""


def classify(
    code: str, http_status: int, message: str = "", where: Where = "call", *, is_of_one: bool = False
) -> Meaning:
    """Return the meaning of an EC2 error. A code that TABLE has for this place and message has the meaning of its row.
    Any other code is `transient` with the HTTP status 5xx, and else misconfigured: EC2 has refused the request. Without
    a readable code the error is `transient` or `unknown`.

    The code has precedence over the status, because RequestLimitExceeded comes with status 503. `is_of_one`: only one
    offering was refused, as always in the answer of a fleet and in a state reason.
    """
    row = _look_up(code, message, where)
    if row is not None:
        is_of_one = is_of_one or where in {"fleet", "machine"}
        return Meaning(row.category, row.of_one if is_of_one and row.of_one else row.scope)
    if http_status >= _SERVER_ERRORS:
        return Meaning("transient", "offering")
    return OTHER if _READABLE.fullmatch(code) else Meaning("unknown", "offering")


def _look_up(code: str, message: str, where: Where) -> Row | None:
    rows = [*_EXACT.get(code, ()), *(row for prefix, row in _PREFIXES if code.startswith(prefix))]
    hold = (row for row in rows if where in row.where and (row.about is None or row.about.search(message)))
    return next(hold, None)


def classify_reason(code: str, message: str = "") -> Meaning | None:
    """Return the meaning of a machine's state reason (`Client.VolumeLimitExceeded`) if EC2 ended the machine for a
    reason that concerns further launches. Return None for any other reason, such as an interruption, a shutdown or a
    code that TABLE lacks: it concerns this machine only.
    """
    row = _look_up(code.removeprefix("Client.").removeprefix("Server."), message, "machine")
    if row is None or row.category not in _REFUSALS:
        return None
    return Meaning(row.category, row.of_one or row.scope)


def read_message(text: str) -> str:
    """Return a message of the cloud as one line without HTML tags and control characters, at most MOST_MESSAGE
    characters. The encoded text of a refusal, which only AWS can read, is not a part of it.
    """
    # A page of a proxy may be long, and most of it may be tags.
    line = " ".join(_TAG.sub(" ", _ENCODED.sub("", text[: 40 * MOST_MESSAGE])).split())
    return make_visible(line)[:MOST_MESSAGE]


def describe_failure(error: Failure, *, is_of_one: bool = False) -> CloudError:
    """Return an exception of boto3 as CloudError. Its code is EC2's error code; if there is none, the name of the
    exception's class. `is_of_one`: the call concerned only one offering.

    boto3 may have sent the request before, in an attempt that left open whether EC2 carried it out. Then an error that
    EC2 returns before it examines the request has the category `transient`, because the earlier attempt may have had an
    effect, and any other error is marked (`is_after_unclear`).
    """
    if isinstance(error, aws.ClientError):
        found = error.response.get("Error", {})
        code, message = found.get("Code") or "", read_message(found.get("Message") or "")
        metadata: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
        where: Where = "power" if error.operation_name in _POWER else "call"
        category, scope = classify(code, metadata.get("HTTPStatusCode", 0), message, where, is_of_one=is_of_one)
        is_after_unclear = was_unclear(error.response)
        if category in UNHEARD and is_after_unclear:
            category, scope = "transient", "offering"  # promise: unclear-attempt-remembered
        shown = code if _READABLE.fullmatch(code) else f"HTTP{metadata.get('HTTPStatusCode', '')}"
        return CloudError(category, shown, message, scope, is_after_unclear=is_after_unclear)
    for kinds, meaning in _FAILURES:
        if isinstance(error, kinds):
            return CloudError(meaning.category, type(error).__name__, read_message(str(error)), meaning.scope)
    return CloudError("unknown", type(error).__name__, read_message(str(error)))


def was_unclear(answer: Mapping[str, Any]) -> bool:
    """Return whether boto3 had sent the request of this answer before, in an attempt that left open whether EC2 carried
    it out.
    """
    return bool(answer.get("ResponseMetadata", {}).get(_UNCLEAR))


def remember_unclear_attempts(client: "BaseClient") -> None:
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
    category = classify(error["Code"], metadata.get("HTTPStatusCode", 0)).category if "Code" in error else None
    context[_UNCLEAR] = context.get(_UNCLEAR) or exception is not None or category in UNCLEAR


def refuse_foreign_answers(client: "BaseClient") -> None:
    """Let a call of this EC2 client fail with ResponseParserError if the answer is a page of HTML, or an error without
    a code. Such an answer is not EC2's. botocore would read it as an answer without content, or fail with a TypeError.
    """
    events: Any = client.meta.events
    events.register("before-parse.ec2", _refuse_foreign)


def _refuse_foreign(response_dict: dict[str, Any], **_event: Any) -> None:
    body, status = response_dict.get("body") or b"", response_dict["status_code"]
    is_error = status >= 300  # noqa: PLR2004 - EC2 sends no redirections
    if not _PAGE.match(body) and (not is_error or _HAS_CODE.search(body)):
        return
    if status >= _SERVER_ERRORS:
        # botocore reads an empty answer as an error with the HTTP status as its code, and repeats the call.
        response_dict["body"] = b""
        return
    text = body[: 40 * MOST_MESSAGE].decode("utf-8", "replace")
    raise ResponseParserError(f"the answer with the HTTP status {status} is not EC2's: {text}")


@contextmanager
def cloud_errors(*, is_of_one: bool = False) -> Iterator[None]:
    """Within this context, turn each exception of boto3 into a CloudError. `is_of_one`: see `describe_failure`."""
    try:
        yield
    except (aws.ClientError, aws.BotoCoreError, ResponseParserError) as error:
        raise describe_failure(error, is_of_one=is_of_one) from error


RANKS: Final[Mapping[Category, int]] = {"capacity": 1, "misconfigured": 2}
"""Of several errors of a fleet, the one with the highest rank is shown; category -> rank, 0 if it is missing. Capacity
comes before other errors as in Arvados, and what a user has to mend comes before capacity.
"""


def read_error(error: Mapping[str, Any]) -> CloudError:
    """Return an entry of `Errors` in the answer of CreateFleet as CloudError."""
    code, message = error.get("ErrorCode") or "", read_message(error.get("ErrorMessage") or "")
    category, scope = classify(code, 200, message, "fleet")
    return CloudError(category, code if _READABLE.fullmatch(code) else "Unknown", message, scope)


def choose_error(errors: Iterable[CloudError]) -> CloudError:
    """Return the error to show: of those with the highest rank the last one."""
    return max(reversed(list(errors)), key=lambda each: RANKS.get(each.category, 0))
