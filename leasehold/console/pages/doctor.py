"""The page Doctor: what needs a person by the state of the cluster, and the checks of `leasehold doctor` that a console
can make. The state of the scheduler in the sidebar of each page links to it: whether it ticks, and what needs a person.
That state costs one small read of Redis and a walk over the slots, at most every STATE_SECONDS.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import redis
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.console.page import Page, backend, keep, render
from leasehold.doctor.examination import examine_by_reading
from leasehold.doctor.rules import Finding, failure, judge_machines, judge_ticks, warning
from leasehold.errors import Unavailable
from leasehold.web.backend import Backend
from leasehold.web.feed import FeedStatus
from scheduler.model.launch_backoff import Kind
from scheduler.model.validation import InvalidInputError
from scheduler.model.view import View
from scheduler.operations.costs import BudgetStatus
from scheduler.protocol.names import RedisNames
from scheduler.protocol.report import read_head
from scheduler.view.connection import make_redis
from scheduler.view.redis_clock import RedisClock
from workers.configuration import read_configuration
from workers.settings import Settings

STATE_SECONDS: Final = 2.0
HOLDS: Final[dict[Kind, str]] = {
    "capacity": "EC2 lacked capacity",
    "quota": "EC2's quota is used up",
    "throttled": "EC2 throttled launches",
    "auth": "AWS refused the credentials",
    "misconfigured": "EC2 refused the request as misconfigured",
    "unhealthy": "boots fail one after the other",
}
"""Kind of a launch back-off (a pause of launches after a refusal by EC2) -> the reason that pages show."""
_NEED_A_PERSON: Final = frozenset({"auth", "misconfigured", "quota", "unhealthy"})
"""Kinds of launch back-offs that do not end by themselves."""


@dataclass(frozen=True)
class SchedulerState:
    """Whether the scheduler works. `ticked_at`: cluster time of the last tick; None: there was none, or it is not
    known. `alerts`: what needs a person, the failures first.
    """

    ticked_at: float | None
    alerts: Sequence[Finding]

    @property
    def level(self) -> str:
        """Return the worst outcome of the alerts; `ok` without one."""
        return self.alerts[0].outcome if self.alerts else "ok"


class StateReader:
    """Reads the state of the scheduler, at most once in STATE_SECONDS."""

    def __init__(self, services: Backend) -> None:
        settings = services.settings
        self._feed, self._interval = services.feed, settings.ticks.interval
        self._client = make_redis(settings.view_url or "")
        self._names, self._clock = RedisNames(settings.view.prefix), RedisClock(self._client, settings.view.prefix)
        self._known, self._read_at = SchedulerState(None, ()), float("-inf")

    def read(self) -> SchedulerState:
        if time.monotonic() - self._read_at < STATE_SECONDS:
            return self._known
        self._read_at = time.monotonic()
        head, now = {}, self._clock.now()
        with suppress(redis.RedisError, ValueError):
            head = read_head(self._client, self._names)
        status = self._feed.status
        with self._feed.lock:
            found = find_alerts(self._feed.view, now)
        ticked_at = head.get("at") if isinstance(head.get("at"), int | float) else None
        if status.is_valid:
            ticks = judge_ticks(None if ticked_at is None else now - ticked_at, self._interval)
            found += [ticks] if ticks.outcome == "failure" else []
        found += find_lost(status) + find_exceeded(head.get("budgets", []))
        found.sort(key=lambda each: each.outcome != "failure")
        self._known = SchedulerState(ticked_at, found)
        return self._known


async def read_state(request: Request) -> SchedulerState:
    """Return the state of the scheduler. While Redis does not answer, it has that alert."""
    services = backend(request)
    reader = keep(request, "scheduler_state", lambda: StateReader(services))
    try:
        return await services.feed.unless_silent(services.run_plain(reader.read))
    except Unavailable:
        return SchedulerState(None, find_lost(services.feed.status, is_silent=True))


def find_lost(status: FeedStatus, *, is_silent: bool = False) -> list[Finding]:
    """Return a failure for Redis and for the database if it does not answer."""
    found = []
    if is_silent or not status.is_valid:
        found.append(
            failure(
                "redis",
                "Redis, or its copy of the cluster, cannot be read",
                "Look at the Redis server. After a flush, the next tick writes the copy again.",
            )
        )
    if status.database_lost_since is not None:
        found.append(failure("database", "the database does not answer", "Look at the database server."))
    return found


def find_alerts(view: View, now: float) -> list[Finding]:
    """Return what needs a person by the rows of the view: slots in error, launches that are held back, and machines
    that EC2 refuses to end.
    """
    found = []
    errors = Counter(slot.pool for slot in view.slots.values() if slot.state == "error")
    for pool, count in sorted(errors.items()):
        text = f"{count} {'slot is' if count == 1 else 'slots are'} in error"
        found.append(warning(f"pool {pool}", text, "The panel of such a slot on the page Fleet has the reason."))
    ended = [slot for slot in view.slots.values() if slot.state in {"terminating", "stopped"}]
    machines = judge_machines(ended, list(view.holds.values()))
    if machines.outcome == "failure":
        found.append(machines)
    held = {
        (each.pool, each.kind): each for each in view.holds.values() if each.kind in _NEED_A_PERSON and each.until > now
    }
    for (pool, kind), hold in sorted(held.items()):
        name = "all pools" if pool == "*" else f"pool {pool}"
        text = f"launches pause: {HOLDS[kind]}" + (f" (EC2's answer: {hold.words})" if hold.words else "")
        found.append(warning(name, text, "The page Offers has each pause with its end."))
    return found


def find_exceeded(budgets: object) -> list[Finding]:
    found = []
    with suppress(msgspec.ValidationError):
        for each in msgspec.convert(budgets, list[BudgetStatus]):
            if each.exceeded:
                text = f"exceeded: {', '.join(key.removeprefix('per_') for key in each.exceeded)}"
                found.append(warning(f"budget {each.budget}", text, "The page Money has its limits and what it stops."))
    return found


CHECK_SECONDS: Final = 2.0
"""Seconds that each check may take."""
KEPT_SECONDS: Final = 20.0
"""Seconds for which the findings of one examination are shown to all."""


class Examiner:
    """Runs the checks, at most once in KEPT_SECONDS."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._guard = settings, threading.Lock()
        self._known: Sequence[Finding] = ()
        self._read_at = float("-inf")

    def read(self) -> Sequence[Finding]:
        """Return the findings of the checks, the faults first."""
        with self._guard:
            if time.monotonic() - self._read_at >= KEPT_SECONDS:
                self._known, self._read_at = sorted(self._examine(), key=_rank), time.monotonic()
            return self._known

    def _examine(self) -> list[Finding]:
        try:
            configuration = replace(read_configuration(), settings=self._settings)
        except InvalidInputError as error:
            lines = "; ".join(map(str, error.faults))
            return [failure("configuration", lines, "Correct the file, and start the console again.")]
        return list(examine_by_reading(configuration, CHECK_SECONDS))


def _rank(finding: Finding) -> int:
    return ("failure", "warning", "ok", "skipped").index(finding.outcome)


async def show_doctor(request: Request) -> Response:
    """Show the alerts at once; the page loads the findings, because the checks take some seconds."""
    return render(request, "doctor.html", page="doctor", state=await read_state(request))


async def show_findings(request: Request) -> Response:
    services = backend(request)
    examiner = keep(request, "examiner", lambda: Examiner(services.settings))
    return render(request, "findings.html", findings=await services.run_plain(examiner.read))


async def show_pulse(request: Request) -> Response:
    """Show the state of the scheduler for the sidebar."""
    return render(request, "pulse.html", state=await read_state(request))


PAGE: Final = Page(
    "doctor",
    "Doctor",
    "/doctor",
    890,
    [Route("/doctor", show_doctor), Route("/doctor/findings", show_findings), Route("/doctor/pulse", show_pulse)],
)
