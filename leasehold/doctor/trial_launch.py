"""Launch one machine of a pool for real, wait until it is ready, and end it: `leasehold doctor --launch-one POOL`.

The request is the one that a launch task of the pool sends. The machine belongs to no slot: its launch id begins with
`doctor-`, so no slot adopts it. If this process dies, the reconciliation of machines and slots terminates the machine,
as it terminates every machine without a slot.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final, Literal

import msgspec

from leasehold.doctor.remedies import Tried, find_remedy, show_error
from scheduler.model.quota_classes import quota_subject
from scheduler.model.rules import Rules
from scheduler.model.slots import TRIAL, Machine, Slot
from scheduler.operations.machines.launch import MOST_ATTEMPTS, find_delay, may_have_launched, search_made
from scheduler.operations.rules.offers import Ages, Offer, list_offers
from scheduler.ports import UNCLEAR, UNHEARD, CloudError, ClusterRow, Fleet, LaunchOrder, Probe, Store
from scheduler.protocol.marks import Mark

LOOK_SECONDS: Final = 1.0
"""Seconds between two calls that read the state of the machine from EC2."""
HOUR: Final = 3600.0
PhaseName = Literal["request", "pending", "running", "ready", "ended"]
MEANINGS: Final[dict[PhaseName, str]] = {
    "request": "until EC2 answers the launch request",
    "pending": "until EC2 reports that the machine runs",
    "running": "until the machine passes its probe or status checks",
    "ready": "until EC2 accepts the request to end it",
    "ended": "until EC2 reports that the machine is gone",
}
Show = Callable[[PhaseName, float], None]
_PASSING: Final = frozenset({"transient", "throttled"})
"""Categories of errors of EC2 after which the state of the machine is read again later."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One completed phase of the machine of a trial launch (MEANINGS). `text`: what ended the phase."""

    name: PhaseName
    seconds: float
    text: str


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial launch."""

    pool: str
    offering: str
    launch_id: str
    instance_id: str | None
    phases: tuple[Phase, ...]
    ready_after: float | None
    """Seconds from the launch request until the machine was ready; None: it did not become ready."""
    seconds: float
    """Seconds from EC2's answer to the launch until EC2 reported the end of the machine."""
    price: float | None
    """Dollars per hour; None: the price is not known."""
    price_source: str | None
    cost: float | None
    """`price` × `seconds`, in dollars; None: the price is not known."""
    is_ended: bool
    """Whether no machine of this trial runs any more."""
    problem: str | None = None
    remedy: str | None = None
    """What to do about an error of EC2; None: no call failed."""
    refused: tuple[str, ...] = ()
    """Offerings that were tried before and that EC2 refused for lack of capacity or quota, each with EC2's answer."""


class _TrialError(Exception):
    """Raised if the machine of a trial does not reach the expected state, or not in time."""


class _StoppedError(Exception):
    """Raised if a trial is interrupted before its machine is ready."""


def list_offers_to_try(store: Store, rules: Rules, pool: str, ages: Ages) -> list[Offer]:
    """Return the offers that launches of this pool would choose, in order. Offers without a launch back-off (a pause
    after a refusal by EC2) come before the others. Return [] if no offering can be bought.

    As for launches, an offer costs at most `price_factor` times as much as the first one of its market, and on-demand
    follows after spot only if the pool has `on_demand_after`.
    """
    known, found = rules.pools[pool], list[Offer]()
    listed = list_offers(store, ages, pools=[pool])
    sold = [each for each in listed if not known.offering_by_key or _is_sold(rules, each)]
    for offer in sorted(sold, key=lambda each: bool(each.holds)):
        first = next((each for each in sold if each.market == offer.market), offer)
        is_dear = (offer.price or 0.0) > (first.price or 0.0) * max(1.0, known.price_factor)
        is_other = bool(found) and offer.market != found[0].market and not known.on_demand_after
        if not found or not (is_dear or is_other):
            found.append(offer)
    return found


def _is_sold(rules: Rules, offer: Offer) -> bool:
    offering = rules.pools[offer.pool].offering_by_key.get(offer.key)
    return offering is not None and offering.is_for_sale


def make_order(offer: Offer, cluster: ClusterRow) -> LaunchOrder:
    """Return the launch order (what to launch, and for which slot) of a trial. The name of its slot is one that no slot
    of a pool can have.
    """
    mark = secrets.token_hex(8)
    return LaunchOrder(
        slot=f"{offer.pool}-{TRIAL}{mark}",
        pool=offer.pool,
        launch_id=f"{TRIAL}{mark}",
        generation=1,
        offerings=(offer.key,) if offer.key else (),
        cluster_id=cluster.identity,
        highest=f"{cluster.term}.{cluster.token}",
    )


class TrialLaunch:
    """One trial launch. `rules`: the rules in force, completed with the offerings that satisfy their requirements.
    `order`: what to launch (`make_order`). `show` is called with the present phase and its seconds so far, and `report`
    with each completed phase.
    """

    def __init__(
        self,
        fleet: Fleet,
        probe: Probe,
        rules: Rules,
        order: LaunchOrder,
        *,
        show: Show = lambda _phase, _seconds: None,
        report: Callable[[Phase], None] = lambda _phase: None,
    ) -> None:
        self._fleet, self._probe, self._rules, self._order = fleet, probe, rules, order
        self._show, self._report = show, report
        self._pool = rules.pools[order.pool]
        self._request: dict[str, object] | None = None
        """The launch request; None: it was not sent, or EC2 has certainly launched no machine for it."""
        self._machine: Machine | None = None
        self._is_listed = self._is_gone = False
        self._phases: list[Phase] = []
        self._answered_at: float | None = None
        self._ended_at: float | None = None
        self._problem: str | None = None
        self._remedy: str | None = None
        self._interrupt = Mark()
        self._is_ending = self._is_left = False
        self.lacks: str | None = None
        """EC2's answer if it launched nothing for lack of capacity or quota, so that another offering may do."""

    @property
    def is_interrupted(self) -> bool:
        """Whether `interrupt` was called."""
        return self._interrupt.is_set

    def interrupt(self) -> None:
        """Let `run` end the machine and return; the call to EC2 that runs is completed before. A signal handler calls
        this. A second call raises KeyboardInterrupt, which leaves `run` at once: the machine may still run.
        """
        if self._interrupt.is_set:
            self._is_left = True
            raise KeyboardInterrupt
        # Not by an exception: it may strike within a library that drops it, or that then keeps a lock for ever.
        self._interrupt.set()

    def run(self) -> None:
        """Launch the machine, wait until it is ready, and end it. A problem is not raised; `describe` returns it."""
        try:
            places = self._fleet.find_places(self._order.pool, self._rules)
            request = self._fleet.freeze(msgspec.structs.replace(self._order, places=places), self._rules)
            self._rest(0)
            with self._phase("request", lambda: f"{request['api']}: {self._known.id}"):
                self._request = request
                self._machine = self._send(request)
                self._answered_at = time.monotonic()
            with self._phase("pending", self._describe_machine):
                self._await(lambda machine: machine.state == "running", "run")
            slot = Slot(id=self._order.slot, pool=self._order.pool, state="binding")
            kind = self._pool.probe.kind
            passed = "EC2's status checks passed" if kind == "none" else f"the probe ({kind}) passed"
            with self._phase("running", lambda: passed):
                self._await(lambda machine: self._probe.is_ready(slot, machine, self._rules), "become ready")
        except CloudError as error:
            self._problem = show_error(error)
            self._remedy = find_remedy(error, self._tried)
            if self._request is None and error.category in {"capacity", "quota"}:
                self.lacks = error.answer
        except _TrialError as error:
            self._problem = str(error)
        except _StoppedError:
            pass
        finally:
            if not self._is_left:
                self._end()

    def describe(self, offer: Offer, refused: Sequence[str] = ()) -> Trial:
        """Return the result of the trial. `offer`: the offer from which the order was made. `refused`: see Trial."""
        begin, end = self._answered_at, self._ended_at or time.monotonic()
        seconds = 0.0 if begin is None else end - begin
        price = offer.price or None
        is_ready = any(each.name == "running" for each in self._phases)
        until_ready = sum(each.seconds for each in self._phases if each.name in {"request", "pending", "running"})
        return Trial(
            pool=offer.pool,
            offering=offer.key,
            launch_id=self._order.launch_id,
            instance_id=None if self._machine is None else self._machine.id,
            phases=tuple(self._phases),
            ready_after=until_ready if is_ready else None,
            seconds=seconds,
            price=price,
            price_source=offer.source if price else None,
            cost=None if price is None else price * seconds / HOUR,
            is_ended=self._request is None or self._is_gone,
            problem=self._problem,
            remedy=self._remedy,
            refused=tuple(refused),
        )

    @property
    def _tried(self) -> Tried:
        key = self._order.offering
        offering = self._pool.offering_by_key.get(key or "")
        return Tried(
            action="ec2:RunInstances",
            policy="launch" if self._machine is None else "look",
            pool=self._order.pool,
            quota=quota_subject(self._pool, key, offering.market) if offering else "",
            has_template=self._pool.ec2.launch_template is not None,
        )

    def _send(self, request: dict[str, object]) -> Machine:
        """Send a launch request and return the machine. If it is unknown whether EC2 launched a machine, send the
        request again: EC2 then returns the same machine. Raises CloudError if EC2 refuses, or after MOST_ATTEMPTS.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = self._fleet.launch(request)
                if not answer.machines:
                    raise answer.refusals[-1].to_error(is_after_unclear=answer.is_after_unclear)
                return answer.machines[0]
            except CloudError as refused:
                found, error = search_made(lambda: self._fleet.find_launched(request), refused, attempt, MOST_ATTEMPTS)
                if found:
                    return found[0]
                if not may_have_launched(error.category, attempt, MOST_ATTEMPTS):
                    if attempt == 1 or error.category not in UNCLEAR | UNHEARD:
                        self._request = None
                    raise error from refused
                self._rest(find_delay(attempt))

    def _await(self, is_so: Callable[[Machine], bool], what: str) -> None:
        """Return as soon as `is_so` holds for the machine. Raise _TrialError if the machine ends before, or if `is_so`
        does not hold within `boot_timeout` + `binding_timeout` of the pool. `what`: the awaited step, for the message,
        like "become ready".
        """
        most = self._pool.boot_timeout + self._pool.binding_timeout
        while True:
            machine = self._look()
            if machine is not None and machine.state in {"stopping", "terminated"}:
                why = f": EC2's reason is {machine.reason}" if machine.reason else ""
                raise _TrialError(f"{machine.id} was {machine.state} before it could {what}{why}")
            if machine is not None and is_so(machine):
                return
            if time.monotonic() - (self._answered_at or 0.0) > most:
                raise _TrialError(f"{self._known.id} did not {what} in {most:g} s (boot_timeout + binding_timeout)")
            self._pause()

    def _end(self) -> None:
        """End the machine and wait until EC2 reports that it is gone. Do nothing if no machine can exist. A problem is
        not raised; `describe` returns it.
        """
        self._is_ending = True
        try:
            if self._request is None:
                return
            if self._machine is None:
                # The outcome of the launch is unknown. The same request returns its machine.
                self._machine = self._send(self._request)
                self._answered_at = time.monotonic()
            if self._problem is None and self._phases and self._phases[-1].name == "running":
                with self._phase("ready", lambda: "its end was requested"):
                    self._terminate()
            else:
                self._terminate()
            with self._phase("ended", lambda: "terminated"):
                self._await_end()
        except (CloudError, _TrialError) as error:
            text = show_error(error) if isinstance(error, CloudError) else str(error)
            self._problem = "; ".join(filter(None, (self._problem, text)))

    def _terminate(self) -> None:
        for attempt in count(1):
            try:
                error = self._fleet.terminate([self._known.id]).get(self._known.id)
            except CloudError as whole:
                error = whole
            if error is None:
                return
            if attempt == MOST_ATTEMPTS:
                raise error
            self._rest(find_delay(attempt))

    def _await_end(self) -> None:
        began = time.monotonic()
        while True:
            machine = self._look()
            if (self._is_listed and machine is None) or (machine is not None and machine.state == "terminated"):
                self._is_gone, self._ended_at = True, time.monotonic()
                return
            if machine is None or machine.state != "stopping":
                # EC2 ignores the end of a machine that it does not list yet.
                self._terminate()
            if time.monotonic() - began > self._pool.terminating_timeout:
                raise _TrialError(f"EC2 did not report the end of {self._known.id} in time (terminating_timeout)")
            self._pause()

    def _look(self) -> Machine | None:
        """Return the machine as EC2 describes it; None if EC2 does not list it. If EC2 does not answer, return the
        machine as it was known before.
        """
        try:
            found = self._fleet.describe([self._known.id]).get(self._known.id)
        except CloudError as error:
            if error.category not in _PASSING:
                raise
            # Without an answer it is not known that the machine is gone.
            return self._known
        if found is not None:
            self._is_listed, self._machine = True, found
        return found

    @property
    def _known(self) -> Machine:
        if self._machine is None:
            raise _TrialError("no machine was launched")
        return self._machine

    def _describe_machine(self) -> str:
        machine = self._known
        words = [machine.type, machine.market, machine.zone and f"in {machine.zone}", machine.address]
        return " ".join(filter(None, words))

    @contextmanager
    def _phase(self, name: PhaseName, describe: Callable[[], str]) -> Iterator[None]:
        """Measure how long the block within this context takes, and report it as the phase `name`. If the block raises
        an error, the phase is not reported. `describe` returns what ended the phase.
        """
        self._present = name, time.monotonic()
        self._show(name, 0.0)
        yield
        phase = Phase(name=name, seconds=time.monotonic() - self._present[1], text=describe())
        self._phases.append(phase)
        self._report(phase)

    def _pause(self) -> None:
        name, began = self._present
        self._show(name, time.monotonic() - began)
        self._rest(LOOK_SECONDS)

    def _rest(self, seconds: float) -> None:
        """Wait. Raises _StoppedError if the trial is interrupted before its end began."""
        if self._is_ending:
            time.sleep(seconds)
        elif self._interrupt.wait(seconds):
            raise _StoppedError
