"""The page What if: edit the rules in force, compare what the next tick would decide under the present and the edited
rules, and apply the edited rules.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.client.async_client import AsyncClient
from leasehold.client.rules import RulesApplied
from leasehold.console.page import Page, backend, caller, change, read_form, render
from leasehold.errors import Refused
from leasehold.texts.change_commands import format_toml
from leasehold.web.caller import needs
from scheduler.model.input_texts import parse_toml
from scheduler.simulation.runner import DECIMALS_FOR_PEOPLE, format_decision, tidy

VERSIONS: Final = 20
MOST_RULES: Final = 256 * 1024
"""The most characters of rules in the editor. Python needs about a second to read them."""
_DIGITS: Final = 18
"""The most digits of the number of a version."""
MOST_DECISIONS: Final = 60
"""The most pairs of decisions (by the present and by the proposed rules) that the page shows; the totals on the page
count all decisions.
"""

_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^.]+')
MOST_LINES: Final = 400
"""The most lines of the difference of two versions of the rules that the page shows."""


@dataclass(frozen=True)
class DiffLine:
    """A line of the difference of two versions of the rules: `removed`, `added`, or the head of a table (`same`)."""

    kind: Literal["removed", "added", "same"]
    text: str


def compare_rules(present: Mapping[str, Any], proposed: Mapping[str, Any]) -> list[DiffLine]:
    """Return the lines of TOML in which two documents of rules differ, each below the head of its table. A table that
    is missing in `proposed` is one line, with all tables within it.
    """
    before, after = (_split_tables(format_toml(document)) for document in (present, proposed))
    kept = {prefix for head in after for prefix in _list_prefixes(head)}
    gone: dict[str, int] = {}
    for head, lines in before.items():
        if (root := next((each for each in _list_prefixes(head) if each not in kept), None)) is not None:
            gone[root] = gone.get(root, 0) + len(lines)
    found = _compare_lines(before.get("", []), after.get("", []))
    found += [
        DiffLine("removed", f"[{root}] is removed, with {number} key{'' if number == 1 else 's'}")
        for root, number in gone.items()
    ]
    for head, lines in after.items():
        if head and lines != before.get(head):
            found.append(DiffLine("same" if head in before else "added", f"[{head}]"))
            found += _compare_lines(before.get(head, []), lines)
    # A table whose own keys are removed while tables within it stay.
    for head, lines in before.items():
        if head and head in kept and head not in after:
            found += [DiffLine("same", f"[{head}]"), *_compare_lines(lines, [])]
    return found


def _compare_lines(old: Sequence[str], new: Sequence[str]) -> list[DiffLine]:
    found = []
    for tag, begin, end, new_begin, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            found += [DiffLine("removed", line) for line in old[begin:end]]
            found += [DiffLine("added", line) for line in new[new_begin:new_end]]
    return found


def _split_tables(text: str) -> dict[str, list[str]]:
    """Return head of a table -> its lines; the head of the values above all tables is ""."""
    tables: dict[str, list[str]] = {"": []}
    head = ""
    for line in filter(None, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            head = line[1:-1]
            tables[head] = []
        else:
            tables[head].append(line)
    return tables


def _list_prefixes(head: str) -> list[str]:
    """Return the heads of the tables that contain a table, the outermost first, and its own; quoted keys may have
    dots.
    """
    parts = _KEY.findall(head)
    return [".".join(parts[: index + 1]) for index in range(len(parts))]


async def show_rules(request: Request) -> Response:
    client, sender = await backend(request).client(caller(request)), caller(request)
    found = await client.rules(VERSIONS)
    return render(
        request,
        "what_if.html",
        page="what-if",
        rules=found,
        text=format_toml(found.document),
        preview_refusal=sender.find_refusal("preview"),
        apply_refusal=sender.find_refusal("apply"),
    )


@needs("preview")
async def preview(request: Request) -> Response:
    """Show what the rules of the form would change, and the decisions of the next tick under both rules."""
    text = (await read_form(request)).get("rules", [""])[0]
    document, fault = await backend(request).run_plain(read_toml, text)
    if document is None:
        return render(request, "preview.html", faults=[fault], preview=None)
    client = await backend(request).client(caller(request))
    try:
        found = await client.preview_rules(document)
    except Refused as error:
        return render(request, "preview.html", faults=[str(each) for each in error.errors], preview=None)
    present, proposed = found.next_tick.present, found.next_tick.proposed
    lines = [[format_decision(tidy(each, DECIMALS_FOR_PEOPLE)) for each in plan] for plan in (present, proposed)]
    pairs = list(zip_longest(*lines, fillvalue=""))
    in_force = (await client.rules(1)).document
    difference = await backend(request).run_plain(compare_rules, in_force, document)
    return render(
        request,
        "preview.html",
        faults=[],
        preview=found,
        difference=difference[:MOST_LINES],
        left_out=max(0, len(difference) - MOST_LINES),
        pairs=pairs[:MOST_DECISIONS],
        hidden=max(0, len(pairs) - MOST_DECISIONS),
        kinds=sorted({*found.next_tick.totals.present, *found.next_tick.totals.proposed}),
        codes=sorted({*found.next_tick.waiting.present, *found.next_tick.waiting.proposed}),
        text=text,
        apply_refusal=caller(request).find_refusal("apply"),
    )


@needs("apply")
async def apply(request: Request) -> Response:
    """Put the rules of the form in force, if the version that the page showed is still in force. Else the request is
    refused, and the page shows that.
    """
    form = await read_form(request)
    document, fault = await backend(request).run_plain(read_toml, form.get("rules", [""])[0])
    expected = form.get("expected", [""])[0]
    if document is None or not (expected.isascii() and expected.isdigit() and len(expected) <= _DIGITS):
        fault = fault or "expected: expected the number of a version"
        return render(request, "preview.html", faults=[fault], preview=None)

    async def act(client: AsyncClient) -> RulesApplied:
        return await client.apply_rules(document, expected=int(expected), source="the console")

    outcome = await change(request, "apply", "rules", act)
    return render(request, "outcomes.html", outcomes=[outcome], bulk=None)


def read_toml(text: str) -> tuple[dict[str, Any] | None, str]:
    """Return (the document of a TOML text, ""), or (None, a sentence with the place of the error) for another text."""
    if len(text) > MOST_RULES:
        return None, f"rules: expected at most {MOST_RULES} characters, got {len(text)}"
    try:
        return parse_toml(text), ""
    except ValueError as error:
        return None, f"rules: expected TOML, got {error}"


PAGE: Final = Page(
    "what-if",
    "What if",
    "/what-if",
    70,
    [
        Route("/what-if", show_rules),
        Route("/what-if/preview", preview, methods=["POST"]),
        Route("/what-if/apply", apply, methods=["POST"]),
    ],
)
