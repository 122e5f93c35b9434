"""The result of one check."""

from typing import Final, Literal

import msgspec

Outcome = Literal["ok", "warning", "failure", "skipped"]

CLOCK_SECONDS: Final = 1.0
"""Largest difference between clocks that is accepted (docs/how-to/aws.md, "The hosts")."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the check of this name. `text`: the observation; `remedy`: what to do, "" if nothing."""

    check: str
    outcome: Outcome
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    """Return the finding of a check that found no fault."""
    return Finding(check=check, outcome="ok", text=text)


def warning(check: str, text: str, remedy: str) -> Finding:
    """Return a finding on a part that works but is probably not configured as intended."""
    return Finding(check=check, outcome="warning", text=text, remedy=remedy)


def failure(check: str, text: str, remedy: str) -> Finding:
    """Return a finding on a part that does not work, or that will fail."""
    return Finding(check=check, outcome="failure", text=text, remedy=remedy)


def skipped(check: str, why: str) -> Finding:
    """Return the finding of a check that did not run, with the reason."""
    return Finding(check=check, outcome="skipped", text=why)
