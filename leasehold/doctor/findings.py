"""What one check came to."""

from typing import Final, Literal

import msgspec

Outcome = Literal["ok", "warning", "failure", "skipped"]

CLOCK_SECONDS: Final = 1.0
"""Clocks may differ by so much (docs/how-to/aws.md, "The hosts")."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`text`: what was seen; `remedy`: in a sentence what to do about it, "" where nothing is to be done."""

    check: str
    outcome: Outcome
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check=check, outcome="ok", text=text)


def warning(check: str, text: str, remedy: str) -> Finding:
    """It works, and is hardly meant."""
    return Finding(check=check, outcome="warning", text=text, remedy=remedy)


def failure(check: str, text: str, remedy: str) -> Finding:
    """It does not work, or will not."""
    return Finding(check=check, outcome="failure", text=text, remedy=remedy)


def skipped(check: str, why: str) -> Finding:
    """It could not be looked at."""
    return Finding(check=check, outcome="skipped", text=why)
