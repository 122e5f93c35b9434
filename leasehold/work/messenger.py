"""The messenger: it sends the requests of a host about the commands of its leases to the scheduler.

One thread renews the leases, and REPORTERS send the rest, so that a slow answer about one lease delays neither renewals
nor other leases. Requests about several leases travel together.
"""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from leasehold.client.models import LeaseKey
from leasehold.errors import LeaseholdError, Refused
from leasehold.work.command import HostIdentity, Signer, WrongCommand, read_command
from leasehold.work.fence import Term, find_fence, find_renewal, move_fence
from leasehold.work.jobs import IDLE_SECONDS, RETRY_SECONDS, Job, Jobs
from leasehold.work.ports import CommandsPort, Outcome, Printed, Renewed, Taken

OUTPUT_SECONDS: Final = 1.0
"""Seconds between two reports of output; each has the output of all commands."""
START_SECONDS: Final = 0.1
"""Seconds after which a start is reported. A command that has ended by then needs no such report, and starts that
follow each other share one.
"""
REPORTERS: Final = 4
"""Threads that send requests other than renewals."""
UNKNOWN_LOSS_SECONDS: Final = 300.0
"""Seconds after which a command that an unknown agent has taken counts as lost, if its pool has no offline timeout."""
BATCH: Final = 50
"""The most leases of one request."""


class Messenger:
    """Sends the requests about `jobs` by `port`. `wake` is called when an answer has given the guard something to do.
    `send_renewals` and `send_reports` are what its threads run, until the jobs are closed.
    """

    def __init__(
        self, jobs: Jobs, port: CommandsPort, signer: Signer | None, host: HostIdentity, wake: Callable[[], None]
    ) -> None:
        self._jobs, self._port, self._signer, self._host, self._wake = jobs, port, signer, host, wake
        self._begun_at = jobs.clock()
        self._output_at, self._is_printing = 0.0, False
        self._turn_to_wait = threading.Lock()

    def send_renewals(self) -> None:
        while True:
            with self._jobs.lock:
                while not (live := self._find_renewable()) and not self._jobs.is_closed:
                    due = [each.renewal_at for each in self._jobs.list_live() if each.renewal_at is not None]
                    pause = min(due) - self._jobs.clock() if due else IDLE_SECONDS
                    self._jobs.renewable.wait(max(pause, 0.01))
                if self._jobs.is_closed:
                    return
            sent_at = self._jobs.clock()
            try:
                answers = self._port.renew([each.key for each in live])
            except LeaseholdError:
                answers = {}
            with self._jobs.lock:
                for job in live:
                    self._take_renewal(job, answers.get(job.key), sent_at)
            self._wake()

    def _find_renewable(self) -> list[Job]:
        """Return all leases with running commands if the renewal of one is due; else []."""
        now, live = self._jobs.clock(), self._jobs.list_live()
        return live if any(each.renewal_at is not None and each.renewal_at <= now for each in live) else []

    def send_reports(self) -> None:
        while True:
            # One thread waits for the next request, the others for their turn to wait.
            with self._turn_to_wait:
                request = self._await_report()
            if request is None:
                return
            request()

    def _await_report(self) -> Callable[[], None] | None:
        """Return the next request when it is due; None if the runner is closed."""
        with self._jobs.lock:
            while not self._jobs.is_closed:
                request, pause = self._find_report()
                if request is not None:
                    return request
                self._jobs.due.wait(pause)
        return None

    def _find_report(self) -> tuple[Callable[[], None] | None, float]:
        """Return the next request that is due; None and the pause until one is."""
        now, jobs = self._jobs.clock(), [each for each in self._jobs.values() if not each.is_asked]
        due = [each for each in jobs if each.retry_at <= now]
        started = [each for each in jobs if each.state == "running" and each.report_start_at is not None]
        kinds: list[tuple[Callable[[list[Job]], None], list[Job]]] = [
            (self._report_ends, [each for each in due if each.state == "ended"]),
            (self._take, [each for each in due if each.state == "wanted" and not each.is_revoking]),
            (self._report_starts, [each for each in started if max(each.report_start_at or 0.0, each.retry_at) <= now]),
        ]
        for request, found in kinds:
            if found:
                alone = [each for each in found if each.is_alone]
                return self._ask_about(alone[:1] or found[:BATCH], request), 0.0
        printed = [each for each in self._jobs.list_live() if each.printed is not None]
        if printed and self._output_at <= now and not self._is_printing:
            self._is_printing = True
            return (lambda: self._report_output(printed)), 0.0
        times = [IDLE_SECONDS, *(each.retry_at - now for each in jobs if each.retry_at > now)]
        times += [(each.report_start_at or 0.0) - now for each in started]
        times += [self._output_at - now] if printed and not self._is_printing else []
        return None, max(min(times), 0.01)

    def _ask_about(self, jobs: list[Job], request: Callable[[list[Job]], None]) -> Callable[[], None]:
        """Return a call of `request` for these jobs, about which no other request is sent until it has returned."""
        for each in jobs:
            each.is_asked = True

        def ask() -> None:
            try:
                request(jobs)
            finally:
                with self._jobs.lock:
                    for each in jobs:
                        each.is_asked = False
                    self._jobs.due.notify()

        return ask

    def _take(self, jobs: Sequence[Job]) -> None:
        """Ask for the commands of leases, and verify the answers."""
        if self._signer is None:
            return
        with self._jobs.lock:
            wanted = [each for each in jobs if each.state == "wanted" and self._begin_record(each)]
        nonces, sent_at = {each.key: secrets.token_hex(16) for each in wanted}, self._jobs.clock()
        if not nonces:
            return
        try:
            answers = self._port.take(nonces)
        except Refused as error:
            answers = dict.fromkeys(nonces, error)
        except LeaseholdError:
            self._put_off(wanted, is_silent=True)
            return
        for job in wanted:
            self._take_answer(job, answers[job.key], self._signer, nonces[job.key], sent_at)
        self._wake()

    def _begin_record(self, job: Job) -> bool:
        """Write the record of a job. Return whether it has one."""
        if job.record is None:
            try:
                job.record = self._jobs.records.begin(job.key, self._host.run)
            except OSError as error:
                self._jobs.report_once(job.key, "not_run", why=f"no record can be written: {error}")
                self._put_off([job])
        return job.record is not None

    def _take_answer(self, job: Job, answer: Taken | Refused, signer: Signer, nonce: str, sent_at: float) -> None:
        if isinstance(answer, Refused):
            self._take_refusal(job, answer)
            return
        try:
            command = read_command(answer, signer, self._host, job.key, nonce)
        except WrongCommand as error:
            self._jobs.report_once(job.key, "wrong_command", why=str(error))
            self._put_off([job])
            return
        with self._jobs.lock:
            if self._jobs.get(job.key) is not job:
                return
            job.state, job.command = "taken", command
            if job.record is not None:
                job.record.run = self._host.run
            job.term = Term(command.ttl, command.offline_timeout)
            job.fence, job.renewal_at = find_fence(sent_at, job.term), find_renewal(sent_at, job.term)
            job.is_alone = False
            job.retry.reset()
            self._jobs.renewable.notify()

    def _take_refusal(self, job: Job, error: Refused) -> None:
        """React to a refused `take`. If another agent has taken the command, it is lost: at once if it can be one of
        this slot's earlier agents that has started nothing, else when its fence is over.
        """
        with self._jobs.lock:
            if not any(each.path == "run" and each.code == "conflict" for each in error.errors):
                self._jobs.report_once(job.key, "not_run", why=str(error))
                self._put_off([job])
                return
            record = job.record
            wait = job.term.offline_timeout or UNKNOWN_LOSS_SECONDS
            is_known = record is not None and record.run != self._host.run
            if is_known or self._jobs.clock() >= self._begun_at + wait:
                self._jobs.end(
                    job,
                    Outcome(why="lost", error="an earlier agent of the host took the command, and did not start it"),
                )
            else:
                self._put_off([job])

    def _put_off(self, jobs: Sequence[Job], *, is_silent: bool = False) -> None:
        """Repeat the requests about jobs later. `is_silent`: a request about all of them got no answer."""
        with self._jobs.lock:
            for job in jobs:
                job.retry_at = self._jobs.clock() + job.retry.take()
                job.is_alone = is_silent and (job.is_alone or len(jobs) > 1)

    def _report_starts(self, jobs: Sequence[Job]) -> None:
        answered = self._report_to(jobs, lambda: self._port.started([each.key for each in jobs]))
        with self._jobs.lock:
            for job in answered:
                job.report_start_at = None

    def _report_ends(self, jobs: Sequence[Job]) -> None:
        outcomes = {each.key: each.outcome for each in jobs if each.outcome is not None}
        answered = self._report_to(jobs, lambda: self._port.exited(outcomes))
        with self._jobs.lock:
            for job in answered:
                job.state, job.done_at = "done", self._jobs.clock()
                if job.record is not None:
                    job.record.is_reported = True
                    self._jobs.save(job.record)
            self._jobs.changed.notify_all()

    def _report_to(self, jobs: Sequence[Job], request: Callable[[], Mapping[LeaseKey, Refused]]) -> Sequence[Job]:
        """Send a request about jobs. Return those that were answered; a refusal is an answer too, unless it is one of
        the sender, whose key may be valid later.
        """
        is_of_sender = False
        try:
            refused = request()
        except Refused as error:
            refused = {each.key: error for each in jobs}
            is_of_sender = any(each.path in {"signature", "principal"} for each in error.errors)
        except LeaseholdError:
            self._put_off(jobs, is_silent=True)
            return ()
        for key, refusal in refused.items():
            self._jobs.report_once(key, "refused", why=str(refusal))
        if is_of_sender:
            self._put_off(jobs)
            return ()
        with self._jobs.lock:
            for job in jobs:
                job.is_alone = False
                job.retry.reset()
        return jobs

    def _report_output(self, jobs: Sequence[Job]) -> None:
        with self._jobs.lock:
            self._output_at = self._jobs.clock() + OUTPUT_SECONDS
            reports = [Printed(job.key, *job.printed) for job in jobs if job.printed is not None]
            for job in jobs:
                job.printed = None
        pause = 0.0
        try:
            self._port.output(reports)
        except LeaseholdError:
            # The next report has a newer end.
            pause = RETRY_SECONDS * 5
        with self._jobs.lock:
            self._is_printing = False
            self._output_at = max(self._output_at, self._jobs.clock() + pause)
            self._jobs.due.notify()

    def _take_renewal(self, job: Job, answer: Renewed | Refused | None, sent_at: float) -> None:
        if job.state not in {"taken", "running"}:
            return
        if isinstance(answer, Renewed):
            job.term = job.term._replace(ttl=answer.ttl)
            job.fence = move_fence(job.fence, sent_at, job.term) if job.fence else find_fence(sent_at, job.term)
            job.renewal_at = find_renewal(sent_at, job.term)
            job.is_fence_moved = True
            return
        job.renewal_at = self._jobs.clock() + RETRY_SECONDS
        if answer is not None and any(each.path in {"token", "reservation"} for each in answer.errors):
            # The lease has ended: another holder may have the slot.
            job.ending, job.is_to_kill, job.renewal_at = job.ending or "revoked", True, None
