"""Texts for people about requests."""

from collections.abc import Mapping
from typing import Any


def describe_silence(verb: str, document: Mapping[str, Any], seconds: float, reason: str) -> str:
    """Return the message about a request that was not answered within `seconds`."""
    why = f": {reason}" if reason else ""
    return (
        f"no answer to {verb} of {describe_request(document)} for {seconds:g} s{why}; asking again with the same id is"
        " safe"
    )


def describe_request(document: Mapping[str, Any]) -> str:
    """Return as text for people what a request is about: an id, or a number of items. Flower shows this text."""
    if "items" in document:
        return f"{len(document['items'])} items"
    about = ("reservation", "id", "slot", "account")
    return str(next((document[name] for name in about if document.get(name)), "?"))[:200]
