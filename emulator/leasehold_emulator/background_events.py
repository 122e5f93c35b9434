"""What happens to emulated EC2 instances without a call: interruptions, rebalance recommendations, scheduled changes,
failing boots, sudden losses.

Planned events are kept in a heap by their due time. The middleware runs the due ones before each call, and a thread of
the server runs them in between.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

from leasehold_emulator.error_codes import describe_reason
from leasehold_emulator.instances import EmulatedInstance, find_instance
from leasehold_emulator.lives import Lives
from leasehold_emulator.log import CallLog, EventRecord
from leasehold_emulator.notices import interruption_event, maintenance_event, rebalance_event, send_notice
from leasehold_emulator.state_changes import StateChanges
from scheduler.model.validation import fault

INTERRUPTED: Final = describe_reason("Server.SpotInstanceTermination")
FAILED: Final = describe_reason("Server.InternalError")
LOST: Final = describe_reason("Server.InternalError", "Internal error")
RETIRED: Final = describe_reason("Server.ScheduledStop")
RETIREMENT: Final = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
LONG_BEFORE: Final = 14 * 86_400.0
"""Seconds from the announcement of a scheduled change to its begin, unless another number is given."""
MAINTENANCE_SECONDS: Final = 2 * 3600.0
"""Length of a scheduled change."""


class BackgroundEvents:
    """Plans and runs what happens to the emulated instances without a call, like interruptions and boot failures. Not
    thread-safe; the middleware uses it under its lock.
    """

    def __init__(self, lives: Lives, log: CallLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._lives, self._log, self._clock = lives, log, clock
        self.state_changes = StateChanges(lives)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._number = count()

    def add(self, instances: Iterable[EmulatedInstance], token: str | None) -> None:
        """For each of these new instances, plan the boot failure and the interruption that were drawn at its launch.
        Record the client token of the launch, None if it had none.
        """
        instances = list(instances)
        self.state_changes.add(instances)
        for instance in instances:
            instance.life.token = token
            fate = instance.fate
            if fate.failure == "terminated":
                self._plan(instance.runs_at, partial(self._fail, instance))
            elif fate.failure is not None:
                self._log_failure(instance)
            if fate.interrupted_after is not None:
                deadline = self._lives.settings.interruption_deadline
                self._plan(self._clock() + fate.interrupted_after, partial(self._warn_if_there, instance, deadline))

    def plan(self, seconds: float, act: Callable[[], object]) -> None:
        """Plan to call `act` after this number of seconds."""
        self._plan(self._clock() + seconds, act)

    def log_step(self, region: str, text: str) -> None:
        """Record in the log that a step of a script begins. `text`: what the step means."""
        self._log.append_event("step", region, detail=text)

    def advance(self) -> None:
        """Run all planned events that are due."""
        while self._due and self._due[0][0] <= self._clock():
            heapq.heappop(self._due)[2]()

    def interrupt(self, instances: Sequence[str], deadline: float | None) -> list[EventRecord]:
        """Send an interruption notice for each of these spot instances, and end the instance `deadline` seconds later
        (None: the setting `interruption_deadline`). Return the log records of the notices.

        Raises InvalidInputError if one of the instances is not a spot instance that is alive.
        """
        found = self._find(instances, spot=True)
        seconds = self._lives.settings.interruption_deadline if deadline is None else deadline
        return [self._warn(instance, seconds) for instance in found]

    def recommend(self, instances: Sequence[str]) -> list[EventRecord]:
        """Send a rebalance recommendation for each of these spot instances. Return the log records.

        Raises InvalidInputError if one of the instances is not a spot instance that is alive.
        """
        return [self._recommend(instance) for instance in self._find(instances, spot=True)]

    def maintain(self, instances: Sequence[str], code: str, seconds: float) -> list[EventRecord]:
        """Announce a scheduled change of these instances that begins in `seconds`. Return the log records.

        `code`: the type of AWS Health's event, like RETIREMENT. An instance that is to retire ends when the change
        begins. Raises InvalidInputError if one of the instances is not alive.
        """
        found, begins_at = self._find(instances, spot=False), time.time() + seconds
        by_region: dict[str, list[EmulatedInstance]] = {}
        for instance in found:
            by_region.setdefault(instance.life.region, []).append(instance)
            if "RETIREMENT" in code:
                self.plan(seconds, partial(self._retire, instance))
        records = []
        for region, group in by_region.items():
            event = maintenance_event([each.life for each in group], code, begins_at, begins_at + MAINTENANCE_SECONDS)
            notices, names = self._send(event), [each.id for each in group]
            records.append(
                self._log.append_event("maintenance", region, names, detail=code, deadline=begins_at, notices=notices)
            )
        return records

    def lose(self, instances: Sequence[str], reason: str = LOST) -> list[EventRecord]:
        """End these instances at once, without a notice. Return the log records. `reason`: EC2's text for the cause.
        Raises InvalidInputError if one of the instances is not alive.
        """
        return [self._lose(instance, reason) for instance in self._find(instances, spot=False)]

    def end(self, instance: EmulatedInstance, reason: str, seconds: float) -> None:
        """Plan the end of an instance after this number of seconds. `reason`: EC2's text for the cause, like
        "Client.InternalError: why".
        """
        self.plan(seconds, partial(self._end, instance, reason))

    def clear(self) -> None:
        """Remove all planned events, and the records of all emulated instances."""
        self._due.clear()
        self.state_changes.clear()
        self._lives.all.clear()

    def _find(self, instances: Sequence[str], *, spot: bool) -> list[EmulatedInstance]:
        found = [(name, find_instance(name)) for name in instances]
        wanted = "the id of a spot instance that is alive" if spot else "the id of an instance that is alive"
        for index, (name, instance) in enumerate(found):
            if instance is None or instance.is_ending or (spot and instance.life.market != "spot"):
                raise fault(f"instances[{index}]", wanted, name)
        return [instance for _, instance in found if instance is not None]

    def _warn_if_there(self, instance: EmulatedInstance, deadline: float) -> None:
        if not instance.is_ending:
            self._warn(instance, deadline)

    def _warn(self, instance: EmulatedInstance, seconds: float) -> EventRecord:
        """Send the interruption notice of a spot instance, plan the end of the instance in `seconds`, and return the
        log record of the notice.

        If several ends are planned for an instance, it ends at the earliest one, and the later ones do nothing.
        """
        life, now = instance.life, time.time()
        life.warned_at = life.warned_at or now
        life.deadline = min(now + seconds, life.deadline or now + seconds)
        self._plan(self._clock() + seconds, partial(self._interrupt, instance))
        notices = self._send(interruption_event(life))
        return self._log.append_event("warned", life.region, [life.id], deadline=life.deadline, notices=notices)

    def _recommend(self, instance: EmulatedInstance) -> EventRecord:
        notices, life = self._send(rebalance_event(instance.life)), instance.life
        return self._log.append_event("rebalance", life.region, [life.id], notices=notices)

    def _send(self, event: dict[str, Any]) -> int:
        """Send a notice of EC2. A random draw decides how often: 0 times (the notice is lost), once, or twice (the
        notice is doubled). Return this number.
        """
        notices = self._lives.count_notices()
        for _ in range(notices):
            send_notice(event)
        return notices

    def _interrupt(self, instance: EmulatedInstance) -> None:
        if not instance.is_ending:
            instance.end_by_itself("interrupted", INTERRUPTED, self._lives.settings.terminate_seconds)
            self._log.append_event("interrupted", instance.life.region, [instance.id])

    def _retire(self, instance: EmulatedInstance) -> None:
        if not instance.is_ending:
            instance.end_by_itself("retired", RETIRED, self._lives.settings.terminate_seconds)
            self._log.append_event("retired", instance.life.region, [instance.id])

    def _fail(self, instance: EmulatedInstance) -> None:
        if not instance.is_ending:
            instance.end_by_itself("boot_failure", FAILED, 0.0)
            self._log_failure(instance)

    def _end(self, instance: EmulatedInstance, reason: str) -> None:
        if not instance.is_ending:
            # A launch that fails ends without shutting down.
            is_pending = instance.real_state.name == "pending"
            instance.end_by_itself("fault", reason, 0.0 if is_pending else self._lives.settings.terminate_seconds)
            self._log.append_event("ended", instance.life.region, [instance.id], detail=reason)

    def _lose(self, instance: EmulatedInstance, reason: str) -> EventRecord:
        instance.end_by_itself("lost", reason, 0.0)
        return self._log.append_event("lost", instance.life.region, [instance.id])

    def _log_failure(self, instance: EmulatedInstance) -> None:
        self._log.append_event("boot_failure", instance.life.region, [instance.id], detail=instance.life.boot_failure)

    def _plan(self, due: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._due, (due, next(self._number), act))
