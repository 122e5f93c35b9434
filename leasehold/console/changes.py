"""Changes that a page requests. The console sends each change to a worker as a request, like a producer, and shows its
outcome as a sentence.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request

from leasehold.client.async_client import AsyncClient
from leasehold.client.models import Answer
from leasehold.console.page import backend, caller
from leasehold.errors import LeaseholdError, NotAnswered


@dataclass(frozen=True)
class Outcome:
    """The outcome of one change. `about`: the id of the object to change. `ok`: whether the change was carried out.
    `text`: the outcome as a sentence for people.
    """

    about: str
    ok: bool
    text: str


async def change(
    request: Request,
    verb: str,
    about: str,
    act: Callable[[AsyncClient], Awaitable[object]],
    describe: Callable[[Answer], str] | None = None,
) -> Outcome:
    """Request one change from a worker for the caller of an HTTP request, write it to the log, and return the outcome.
    `verb`, `about`: the name of the requested change and the id of the object to change.

    `act` sends the request by the client that it gets, which acts as the caller. `describe` makes the text of the
    outcome from a worker's answer; None: the text names the new state. A refusal, or an answer that did not come, is
    returned as an outcome and not raised: a page may change several rows by one call each, and a refused change must
    not hide the outcomes of the other changes.
    """
    services, sender = backend(request), caller(request)
    refusal = sender.find_refusal(verb)
    if refusal is not None:
        return Outcome(about, ok=False, text=refusal)
    try:
        answer = await act(await services.client(sender))
    except LeaseholdError as error:
        services.log_change(sender, verb, about, error)
        late = "; it is not known whether it was carried out" if isinstance(error, NotAnswered) else ""
        return Outcome(about, ok=False, text=f"{error}{late}")
    services.log_change(sender, verb, about, answer)
    text = describe(answer) if describe is not None and isinstance(answer, Answer) else _describe(answer)
    return Outcome(about, ok=True, text=text)


def _describe(answer: object) -> str:
    if isinstance(answer, Answer):
        state = answer.phase or answer.state
        return f"done; it is {state} now" if state else "done"
    return "done"
