"""The page What if: edit the rules in force, compare what the next tick would decide under the present and the edited
rules, and apply the edited rules.
"""

from itertools import zip_longest
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.client.async_client import AsyncClient
from leasehold.client.rules import RulesApplied
from leasehold.console.changes import change
from leasehold.console.page import Page, backend, caller, needs, read_form, render
from leasehold.errors import Refused
from leasehold.texts.toml_text import format_toml
from scheduler.model.toml_text import parse_toml
from scheduler.simulation.show import DECIMALS_FOR_PEOPLE, format_decision, tidy

VERSIONS: Final = 20
MOST_RULES: Final = 256 * 1024
"""The most characters of rules in the editor. Python needs about a second to read them."""
_DIGITS: Final = 18
"""The most digits of the number of a version."""
MOST_DECISIONS: Final = 60
"""The most pairs of decisions (by the present and by the proposed rules) that the page shows; the totals on the page
count all decisions.
"""


async def show_rules(request: Request) -> Response:
    """Show the rules in force in an editor, and their history."""
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
    form = await read_form(request)
    text = form.get("rules", [""])[0]
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
    return render(
        request,
        "preview.html",
        faults=[],
        preview=found,
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
