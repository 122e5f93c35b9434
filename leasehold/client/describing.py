"""Texts that describe requests, for error messages and for programs that list messages, such as Flower."""

from collections.abc import Mapping, Sized
from typing import Any


def describe_silence(verb: str, document: Mapping[str, Any], seconds: float, reason: str) -> str:
    """Return the error message about a request that was not answered within `seconds`. `reason`: what is known about
    the cause; "" if the cause is not known.
    """
    why = f": {reason}" if reason else ""
    return (
        f"no answer to {verb} of {describe_request(document)} for {seconds:g} s{why}; asking again with the same id is"
        " safe"
    )


def describe_request(document: Mapping[str, Any]) -> str:
    """Return a short text that names what a request is about: the id of a reservation, slot or account, or the number
    of its items. Return "?" if the document has neither. Flower shows this text.
    """
    if isinstance(items := document.get("items"), Sized):
        return f"{len(items)} items"
    about = ("reservation", "id", "slot", "account")
    return str(next((document[name] for name in about if document.get(name)), "?"))[:200]
