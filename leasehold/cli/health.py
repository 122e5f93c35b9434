"""The document that `leasehold status --json` prints."""

from typing import Any

import msgspec


class Status(msgspec.Struct, kw_only=True):
    """The output of `leasehold status --json`. `state` is `ok`, `degraded` or `down`; `problems` are the reasons if it
    is not `ok`.
    """

    state: str
    problems: list[str]
    reservations: dict[str, int] = {}
    slots: dict[str, int] = {}
    queues: dict[str, int] = {}
    term: int | None = None
    leads_now: bool = False
    tick_age_seconds: float | None = None
    tick_seconds: float | None = None
    accounts: dict[str, int] = {}
    """Quota account -> the best level (class of service, 0 is best) that the account can pay for; 5: it can pay for
    none.
    """
    waiting: list[str] = []
    """The ids of the pending reservations, in the order in which they are served."""
    leader: str | None = None
    """The process that ran the last tick (run of the scheduler), as `host:pid`."""
    view_lag_seconds: float | None = None
    """By how many seconds the view (the copy of the state in Redis) was behind the database when the leader last
    compared them: the age of the oldest change that the view lacked, or 0.
    """
    clocks: list[dict[str, Any]] = []
    """The processes whose wall clock is more than a second off cluster time (the time of the database), with `process`,
    `host` and `seconds` (positive if the clock is ahead). No scheduling decision depends on wall clocks.
    """
    refused_ends: dict[str, str] = {}
    """Slot whose machine EC2 refuses to end -> EC2's answer. `leasehold doctor` has the remedy."""
    urls: dict[str, str] = {}
    """Addresses without passwords: of the broker, and of the web pages of a stack that runs in this folder or above."""
