"""The answer to a request: its address, its sending, and its text for logs."""

from scheduler.model.validation import Fault, show
from scheduler.operations.commands.submit import Answer
from scheduler.ports import ForeignAddressError, check_reply_address
from tasks.base import UnansweredError
from tasks.current import find_services


def find_address(document: object) -> str | None:
    """Return the address for the answer, None if the document has none. Raises ForeignAddressError if the address is no
    answer address of this cluster.
    """
    address = document.get("reply_to") if isinstance(document, dict) else None
    if address is None:
        return None
    if not isinstance(address, str):
        raise ForeignAddressError(f"reply_to: expected a text, got {show(address)}")
    check_reply_address(address, find_services().settings.view.prefix)
    return address


def send_answer(address: str | None, answer: Answer) -> None:
    """Send the answer to `address`. Without an address (None), raise UnansweredError if the answer refuses the request,
    else do nothing.
    """
    if address is not None:
        find_services().ports.notifier.reply(address, answer)
    elif not answer["ok"]:
        faults = [
            Fault(each["path"], each["expected"], each["got"])
            for result in answer.get("results", [answer])
            for each in result.get("errors", ())
        ]
        raise UnansweredError(faults, describe_answer(answer))


def describe_answer(answer: Answer) -> str:
    """Return a short text about an answer for logs, without tokens: "accepted", or how many documents were refused."""
    results = answer.get("results", [answer])
    refused = sum(not each["ok"] for each in results)
    if refused:
        return f"refused: {refused} of {len(results)}"
    return "accepted" if len(results) == 1 else f"accepted: {len(results)}"
