"""Each code of EC2 has its category and scope in the three places where it may stand, and so has an error without a
code.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from botocore import exceptions as aws
from botocore.parsers import ResponseParserError

from scheduler.ports import MOST_MESSAGE, CloudError
from workers.ec2.errors import (
    LAUNCHING,
    OTHER,
    TABLE,
    Failure,
    Meaning,
    Row,
    Where,
    choose_error,
    classify,
    classify_reason,
    cloud_errors,
    describe_failure,
    read_error,
    read_message,
)

REFUSED = {"capacity", "quota", "throttled", "auth", "misconfigured"}
"""The categories that a machine's state reason may have."""
PLACES: dict[str, set[str]] = {
    "": set(get_args(Where)),
    "image": set(get_args(Where)),
    "launch": {"call", "fleet", "machine"},
    "power": {"power"},
    "fleet": {"fleet"},
}
"""Note in error_codes.tsv → the places for which its line holds."""
NOT_AUTHORIZED = "Not authorized for images: [ami-0123456789abcdef0]"


class Known(NamedTuple):
    """A line of error_codes.tsv."""

    category: str
    scopes: list[str]
    code: str
    note: str

    @property
    def message(self) -> str:
        return NOT_AUTHORIZED if self.note == "image" else "no"

    @property
    def examples(self) -> list[str]:
        """The code, or two codes that its `*` stands for."""
        stem = self.code.removesuffix("*")
        return [self.code] if stem == self.code else [f"{stem}NotFound", f"{stem}Odd.Ending"]


def read_known() -> list[Known]:
    """Read error_codes.tsv."""
    text = (Path(__file__).parent / "error_codes.tsv").read_text(encoding="utf-8")
    lines = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return [Known(line[0], line[1].split(", "), line[2], line[3] if line[3:] else "") for line in lines]


KNOWN = read_known()


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.code + known.note)
def test_a_code_means_the_same_wherever_it_stands(known: Known) -> None:
    for code in known.examples:
        for where in PLACES[known.note] - {"machine"}:
            scope = known.scopes[-1 if where == "fleet" else 0]
            for status in (200, 400, 500):
                found = classify(code, status, known.message, where)  # type: ignore[arg-type]
                assert found == (known.category, scope), (where, status)
            alone = classify(code, 400, known.message, where, is_of_one=True)  # type: ignore[arg-type]
            assert alone == (known.category, known.scopes[-1])
        if "machine" in PLACES[known.note]:
            expected = (known.category, known.scopes[-1]) if known.category in REFUSED else None
            for prefix in ("Client.", "Server.", ""):
                assert classify_reason(f"{prefix}{code}", known.message) == expected


def test_an_unsupported_operation_is_about_the_machine_only_if_its_power_changes() -> None:
    meanings = {where: classify("UnsupportedOperation", 400, "", where) for where in ("call", "power", "fleet")}
    assert meanings == {
        "call": ("capacity", "offering"),
        "fleet": ("capacity", "offering"),
        "power": ("state", "machine"),
    }


@pytest.mark.parametrize(
    ("code", "status", "meaning"),
    [
        # a 4xx with a readable code is a definite refusal
        ("NobodyKnowsThisCode", 400, OTHER),
        ("NobodyKnowsThisCode", 403, OTHER),
        ("AuthFailure.OfAnotherKind", 403, OTHER),
        ("InvalidFleetConfiguration", 400, OTHER),
        ("com.amazon#SomeException", 400, OTHER),
        # so is any code among the errors of a fleet
        ("NobodyKnowsThisCode", 200, OTHER),
        # it is unknown whether the call was carried out
        ("NobodyKnowsThisCode", 500, Meaning("transient", "offering")),
        ("502", 502, Meaning("transient", "offering")),
        ("", 503, Meaning("transient", "offering")),
        ("", 400, Meaning("unknown", "offering")),
        ("404", 404, Meaning("unknown", "offering")),
        ("not a code", 400, Meaning("unknown", "offering")),
        ("X" * 1000, 400, Meaning("unknown", "offering")),
        ("", 0, Meaning("unknown", "offering")),
    ],
)
def test_a_code_that_the_table_lacks_has_the_meaning_of_the_rule(code: str, status: int, meaning: Meaning) -> None:
    assert classify(code, status) == meaning


@pytest.mark.parametrize(
    "code",
    [
        "Client.UserInitiatedShutdown",
        "Client.InstanceInitiatedShutdown",
        "Client.UserInitiatedHibernate",
        "Server.SpotInstanceTermination",
        "Server.SpotInstanceShutdown",
        "Server.ScheduledStop",
        "Client.InternalError",
        "Server.InternalError",
        "Client.NobodyKnowsThisCode",
        "pending",
        "",
    ],
)
def test_a_state_reason_that_refuses_no_launch_has_no_meaning(code: str) -> None:
    assert classify_reason(code) is None


def describe(row: Row, code: str) -> str:
    notes = {LAUNCHING: " (launch)", frozenset({"power"}): " (power)", frozenset({"fleet"}): " (in a fleet's answer)"}
    return code + notes.get(row.where, "") + (" (names an image)" if row.about else "")


def test_the_page_has_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "ec2-errors.md"
    rows = re.findall(r"^\| (\w+) \| ([\w, ]+) \| (.+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    stated = {(category, scope, code) for category, scope, codes in rows for code in codes.split(", ")}
    table = {
        (row.category, row.scope + (f", {row.of_one}" if row.of_one else ""), describe(row, code))
        for row in TABLE
        for code in row.codes.split()
    }
    assert stated - {("category", "scope", "codes")} == table


def test_every_code_of_the_table_is_tested() -> None:
    tested = {known.code for known in KNOWN}
    assert {code for row in TABLE for code in row.codes.split()} == tested


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (aws.NoCredentialsError(), ("auth", "caller")),
        (aws.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), ("auth", "caller")),
        (aws.ProfileNotFound(profile="nobody"), ("auth", "caller")),
        (aws.ConnectTimeoutError(endpoint_url="x"), ("transient", "offering")),
        (aws.ReadTimeoutError(endpoint_url="x"), ("transient", "offering")),
        (aws.EndpointConnectionError(endpoint_url="x"), ("transient", "offering")),
        (aws.ConnectionClosedError(endpoint_url="x"), ("transient", "offering")),
        (aws.SSLError(endpoint_url="x", error=OSError("y")), ("transient", "offering")),
        # a proxy's page instead of EC2's answer
        (ResponseParserError("invalid XML"), ("transient", "offering")),
        (aws.ParamValidationError(report="a list is wanted"), ("misconfigured", "offering")),
        (aws.NoRegionError(), ("misconfigured", "offering")),
        (aws.InvalidRegionError(region_name="?"), ("misconfigured", "offering")),
        (aws.ChecksumError(checksum_type="a", expected_checksum="b", actual_checksum="c"), ("unknown", "offering")),
    ],
)
def test_an_error_of_boto3_itself_has_its_meaning(error: Failure, meaning: tuple[str, str]) -> None:
    found = describe_failure(error)
    assert (found.category, found.scope, found.code) == (*meaning, type(error).__name__)


def answer(code: str, message: str = "no", status: int = 400, operation: str = "RunInstances") -> aws.ClientError:
    """Return the exception of boto3 for an answer of EC2."""
    found: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return aws.ClientError(found, operation)


def test_an_error_keeps_its_code_and_message() -> None:
    with pytest.raises(CloudError) as caught, cloud_errors():
        raise answer("VcpuLimitExceeded", "no more")
    found = caught.value
    assert (found.category, found.scope, found.code, found.message) == (
        "quota",
        "class",
        "VcpuLimitExceeded",
        "no more",
    )


def test_the_operation_decides_what_an_unsupported_operation_concerns() -> None:
    operations = ("RunInstances", "CreateFleet", "StartInstances", "TerminateInstances", "ModifyInstanceAttribute")
    found = [describe_failure(answer("UnsupportedOperation", operation=name)).category for name in operations]
    assert found == ["capacity", "capacity", "state", "state", "state"]


def test_an_error_without_a_code_is_named_by_its_status() -> None:
    assert describe_failure(answer("", "", 404)).code == "HTTP404"
    assert describe_failure(answer("502", "Bad Gateway", 502)).code == "HTTP502"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("The image id '[ami-1]' does not exist", "The image id '[ami-1]' does not exist"),
        ("two\n  lines\t and\x07 a bell", r"two lines and\x07 a bell"),
        ("<html>\n<body><h1>Forbidden</h1>\n<br/>by the proxy</body></html>", "Forbidden by the proxy"),
        ("Value (a < b) is invalid", "Value (a < b) is invalid"),
        ("x" * 100_000, "x" * MOST_MESSAGE),
        ("\x1b" * 100_000, r"\x1b" * (MOST_MESSAGE // 4)),
    ],
)
def test_a_message_is_one_bounded_line_without_tags(text: str, read: str) -> None:
    assert read_message(text) == read


@pytest.mark.parametrize(
    ("codes", "shown"),
    [
        # the last capacity error in any position
        (["InsufficientInstanceCapacity", "UnfulfillableCapacity", "VcpuLimitExceeded"], "UnfulfillableCapacity"),
        # without a capacity error the last error
        (["UnauthorizedOperation", "VcpuLimitExceeded"], "VcpuLimitExceeded"),
        # what a user has to mend comes before capacity
        (["InvalidAMIID.NotFound", "UnfulfillableCapacity"], "InvalidAMIID.NotFound"),
        (["UnfulfillableCapacity", "SomethingNew", "VcpuLimitExceeded"], "SomethingNew"),
    ],
)
def test_of_several_errors_of_a_fleet_one_is_shown(codes: list[str], shown: str) -> None:
    assert choose_error([read_error({"ErrorCode": code}) for code in codes]).code == shown
