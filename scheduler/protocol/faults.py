"""The sentences of faults. Commands, workers, pages and the HTTP API print a fault in the same words."""

import json


def describe_fault(path: str, expected: str, got: str, code: str | None) -> str:
    """Return a fault as one line: `PATH: expected X, got Y`. For an object that does not exist (code `unknown`), return
    `there is no reservation r1`: `path` is the kind of the object, and `got` its id as JSON.
    """
    if code != "unknown":
        return f"{path}: expected {expected}, got {got}"
    # What follows the kind narrows it down: "a reservation that ci may act on".
    rest = expected.partition(f" {path}")[2]
    return describe_unknown(path, _read_text(got)) + rest


def describe_unknown(kind: str, name: str) -> str:
    """Return the one sentence for an id that does not exist, like `there is no slot linux-9`. `kind`: `reservation`,
    `slot`, `account`, `principal`, …
    """
    return f"there is no {kind} {name}"


def _read_text(value: str) -> str:
    try:
        found = json.loads(value)
    except ValueError:
        # A long text was shortened.
        return value
    # Quotes stay around a text that has control characters as escapes, and an empty one.
    return found if isinstance(found, str) and found.isprintable() and found else value
