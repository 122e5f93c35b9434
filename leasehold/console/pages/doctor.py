"""The page Doctor: what needs a person by the state of the cluster, and the checks of `leasehold doctor` that a console
can make. The state of the scheduler in the sidebar of each page links to it.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.console.alerts import read_state
from leasehold.console.page import Page, backend, render
from leasehold.doctor.examination import examine_by_reading
from leasehold.doctor.findings import Finding, failure
from scheduler.model.validation import InvalidInputError
from workers.configuration import read_configuration
from workers.settings import Settings

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
    state = request.app.state
    if not hasattr(state, "examiner"):
        state.examiner = Examiner(backend(request).settings)
    return render(request, "findings.html", findings=await backend(request).run_plain(state.examiner.read))


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
