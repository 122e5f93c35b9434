"""Findings: the results of the checks of `leasehold doctor`."""

from typing import Final, Literal

import msgspec

Outcome = Literal["ok", "warning", "failure", "skipped"]

CLOCK_SECONDS: Final = 1.0
"""Largest difference in seconds between a clock and cluster time that is no fault (docs/how-to/aws.md, "The hosts")."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check. `check`: the name of the check; `outcome`: ok, warning, failure or skipped; `text`: what
    was observed; `remedy`: what to do about it, "" if nothing.
    """

    check: str
    outcome: Outcome
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    """Return the finding of a check that found no fault. `text`: what was observed."""
    return Finding(check=check, outcome="ok", text=text)


def warning(check: str, text: str, remedy: str) -> Finding:
    """Return the finding of a check on a part that works but is probably not configured as intended. `remedy`: what to
    do.
    """
    return Finding(check=check, outcome="warning", text=text, remedy=remedy)


def failure(check: str, text: str, remedy: str) -> Finding:
    """Return the finding of a check on a part that does not work, or that will fail. `remedy`: what to do."""
    return Finding(check=check, outcome="failure", text=text, remedy=remedy)


def skipped(check: str, why: str) -> Finding:
    """Return the finding of a check that did not run. `why`: the reason."""
    return Finding(check=check, outcome="skipped", text=why)
