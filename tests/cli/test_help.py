"""Help: commands in groups with a line each, `-h`, examples, and the fields of a reservation."""

import re
import subprocess
import sys

import pytest

from leasehold.cli.program import GROUPS
from leasehold.client.reservation_fields import CallbackFields, ComponentFields, ReservationFields
from scheduler.model.command_schemas import CallbackDocument, ComponentDocument, ReservationDocument
from scheduler.model.validation import Document
from tests.cli.conftest import Run
from tests.cli.test_commands import COMMANDS

PARENTS = sorted({path[:-1] for path in COMMANDS})
VERBS = """
    Add Apply Cancel Change Check Compare Complete Confirm Cordon Create Delete Drain Examine Explain Follow
    Give Grant List Make Manage Play Print Put Register Release Remove Renew Report Request Restore Roll Run Send
    Serve Set Show Stop Submit Take Uncordon Update Wait Watch Write
"""
NARROW = 80
SUMMARY = re.compile(r"^  (?P<name>[a-z][a-z0-9-]*)  +(?P<text>\S.*)$", re.MULTILINE)


@pytest.mark.parametrize("path", [*PARENTS, *COMMANDS], ids=" ".join)
def test_the_short_option_shows_the_same_help_for_a_narrow_terminal(path: tuple[str, ...], run: Run) -> None:
    short, long = run(*path, "-h"), run(*path, "--help")
    assert (short.status, short.out) == (0, long.out)
    assert "-h, --help" in long.out
    assert [line for line in long.out.splitlines() if len(line) > NARROW] == []


@pytest.mark.parametrize("path", PARENTS, ids=" ".join)
def test_each_command_has_an_imperative_line_that_is_not_cut(path: tuple[str, ...], run: Run) -> None:
    lines = {found["name"]: found["text"] for found in SUMMARY.finditer(run(*path, "--help").out)}
    wanted = {each[len(path)] for each in COMMANDS if each[: len(path)] == path}
    assert set(lines) == wanted
    assert {name: text for name, text in lines.items() if "..." in text or text.split()[0] not in VERBS.split()} == {}


def test_commands_stand_in_groups(run: Run) -> None:
    shown = run("--help").out
    places = [shown.index(f"\n{group}:\n") for group in GROUPS]
    assert places == sorted(places)
    assert "Other commands:" not in shown


def test_the_fields_of_a_reservation_stand_where_the_page_of_the_client_points_to(run: Run) -> None:
    shown = run("reserve", "--help").out.partition("Fields of a reservation")[2]
    listed = set(re.findall(r"^  +([a-z_]+)  ", shown, re.MULTILINE))
    fields = {*ReservationFields.__annotations__, *ComponentFields.__annotations__, *CallbackFields.__annotations__}
    assert fields <= listed


@pytest.mark.parametrize(
    ("fields", "document", "hashed"),
    [
        (ReservationFields, ReservationDocument, {"key_hash"}),
        (ComponentFields, ComponentDocument, set()),
        (CallbackFields, CallbackDocument, set()),
    ],
)
def test_a_client_names_the_fields_that_workers_read(fields: type, document: type[Document], hashed: set[str]) -> None:
    """Of a field in `hashed`, a client takes the text and sends its hash."""
    sent = {f"{each}_hash" if f"{each}_hash" in hashed else each for each in fields.__annotations__}
    assert sent == set(document.model_fields)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_are_not_wrapped(path: tuple[str, ...], run: Run) -> None:
    shown = run(*path, "--help").out
    heading, *examples = shown[shown.index("Examples:") :].split("\n\n")[0].splitlines()
    assert heading == "Examples:"
    assert examples[0].startswith(f"    leasehold {' '.join(path)}")
    assert [each for each in examples if not each.startswith("    leasehold ")] == []


def test_help_imports_no_heavy_module(run: Run) -> None:
    code = (
        "import sys; from leasehold.cli.program import run_safely; run_safely(['--help'])\n"
        "heavy = {'celery', 'kombu', 'redis', 'sqlalchemy', 'boto3', 'moto', 'rich', 'workers', 'tasks'}\n"
        "of_scheduler = [each for each in sys.modules if each.startswith('scheduler.')]\n"
        "others = [each for each in of_scheduler if not each.startswith('scheduler.protocol')]\n"
        "print(sorted(heavy & set(sys.modules)) + others, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("path", PARENTS, ids=" ".join)
def test_no_arguments_print_the_help(path: tuple[str, ...], run: Run) -> None:
    found = run(*path)
    assert (found.status, found.err, found.out) == (0, "", run(*path, "--help").out)


@pytest.mark.parametrize("path", [(), ("reserve",), ("accounts",), ("accounts", "set")], ids=" ".join)
def test_the_command_help_prints_the_help_of_a_command(path: tuple[str, ...], run: Run) -> None:
    found = run("help", *path)
    assert (found.status, found.err, found.out) == (0, "", run(*path, "--help").out)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("help nonsense", "No such command 'nonsense'"),
        ("help accounts nonsense", "No such command 'nonsense'"),
        ("help get r1", "leasehold get has no commands of its own, got 'r1'"),
    ],
)
def test_help_for_a_command_that_does_not_exist_is_refused(words: str, complaint: str, run: Run) -> None:
    found = run(*words.split())
    assert (found.status, len(found.complaints)) == (2, 1)
    assert complaint in found.err


@pytest.mark.parametrize("module", ["leasehold", "leasehold.cli"])
def test_the_command_is_also_a_module(module: str) -> None:
    found = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("Usage: leasehold [OPTIONS] COMMAND")
