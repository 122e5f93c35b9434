"""The middleware of the EC2 emulator, which handles every EC2 request before moto (a mock of AWS) gets it."""

import io
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec
from flask import Flask
from moto.backends import SERVICE_NAMES
from moto.moto_api._internal.models import moto_api_backend
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.wrappers import Response

from leasehold_emulator.allocation import Price
from leasehold_emulator.answers import (
    answer_empty_fleet,
    answer_fault,
    answer_fleet,
    answer_outside_window,
    find_signing_error,
    lose,
    read_error,
)
from leasehold_emulator.background_events import BackgroundEvents
from leasehold_emulator.calls import Call, Place, credential_scope, read_call, read_signing_time
from leasehold_emulator.control import Control
from leasehold_emulator.error_codes import describe_reason
from leasehold_emulator.faults import Throttle
from leasehold_emulator.images import DESCRIBE, REGISTER, complete_registration, know_public_images
from leasehold_emulator.instance_pages import INSTANCES, STATUSES, InstancePages
from leasehold_emulator.instances import (
    EmulatedInstance,
    find_all,
    find_subnet,
    forget_all,
    forget_terminated,
    install_instances,
    know_no_images,
    warm_up,
    without_hidden,
    zone_of,
)
from leasehold_emulator.launching import Grant, find_refusal, grant_launch
from leasehold_emulator.log import CallLog, find_instances
from leasehold_emulator.notices import make_queue
from leasehold_emulator.power import find_power_error
from leasehold_emulator.price_list import SERVICE as PRICE_SERVICE
from leasehold_emulator.price_list import answer_price_error, answer_products, read_price_call
from leasehold_emulator.protection import find_protection
from leasehold_emulator.queues import Dispatcher, install_queues
from leasehold_emulator.script import Script, ScriptPlayer
from leasehold_emulator.settings import FaultRule
from leasehold_emulator.spot_prices import ACTION as SPOT_PRICES
from leasehold_emulator.spot_prices import find_on_demand_price
from leasehold_emulator.templates import complete_launch
from leasehold_emulator.type_pages import answer_page, is_paged
from leasehold_emulator.young_templates import CREATE, YoungTemplates

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

FORGET_EVERY: Final = 1.0


class _Remembered(msgspec.Struct, frozen=True):
    """The first launch with a client token: its parameters and its answer. A later launch with the same token gets the
    same answer. `body` None: the launch was refused; the same request is judged again, and another one is refused.
    """

    parameters: dict[str, str]
    body: bytes | None = None
    content_type: str = ""


class _Reply(msgspec.Struct, frozen=True):
    """The answer to an EC2 call. `replayed`: whether it repeats the answer to an earlier call with the same client
    token; `faults`: the names of the faults that applied, for the log.
    """

    answer: Response
    replayed: bool = False
    faults: list[str] = []


class Middleware:
    """A WSGI application that serves EC2 calls with client tokens, delays and injected faults, and calls of the Pricing
    API. moto serves the calls of all other AWS services.

    EC2 calls are served one at a time, because moto's EC2 is not thread-safe, and because a token must be looked up and
    stored in one step. Other calls, some of which wait for messages, run in parallel.
    """

    def __init__(self, control: Control, log: CallLog, region: str = "us-east-1") -> None:
        know_no_images()
        self.control, self.log = control, log
        self.background_events = BackgroundEvents(control.lives, log)
        self.region = region
        """The AWS region that moto prepares at the start, and in which scripts and the interruption queue are."""
        self._moto = Dispatcher(_create_app)
        self._tokens: dict[tuple[str, str, str], _Remembered] = {}
        self._throttle, self._young_templates = Throttle(), YoungTemplates()
        self._pages = InstancePages()
        self._lock = Lock()
        self._forgotten_at = 0.0
        self._queue: str | None = None
        self.player: ScriptPlayer | None = None
        """The player of the present script, or of the last one; None: no script was played."""
        warm_up(region)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Serve one HTTP request of an AWS client: a call to EC2 by the emulator, a call to another service by moto."""
        service = credential_scope(environ)[1]
        if service == PRICE_SERVICE:
            return self._serve_prices(environ)(environ, start_response)
        if service != "ec2":
            error = find_signing_error(read_signing_time(environ), time.time())
            serve = self._moto if error is None else answer_outside_window(error, environ.get("CONTENT_TYPE", ""))
            return serve(environ, start_response)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        return self.serve(read_call(environ, body), environ)(environ, start_response)

    def begin(self) -> None:
        """From now on, let moto create launched instances as objects of EmulatedInstance, and record them in this
        emulator.
        """
        install_instances(self.control.lives)
        install_queues()
        self.run_due_events()

    def serve(self, call: Call, environ: "WSGIEnvironment") -> Response:
        """Answer one EC2 call and record it in the log. Raises ConnectionResetError if an injected fault loses the
        answer, so that the caller gets none.
        """
        with self._lock:
            self._advance()
            places = (msgspec.structs.replace(place, zone=zone_of(place, call.region)) for place in call.places)
            call = msgspec.structs.replace(call, places=tuple(places))
            reply = self._answer(call, environ)
            is_ok = reply.answer.status_code == 200  # noqa: PLR2004 - HTTP status OK
            lost = self.control.faults.take("lost", call, time.monotonic()) if is_ok else None
            self.log.append(
                call,
                reply.answer.status_code,
                reply.answer.get_data(as_text=True),
                replayed=reply.replayed,
                lost=lost is not None,
                faults=[*reply.faults, *([f"lost:{lost.lost}"] if lost else [])],
            )
        return lose(lost, environ) if lost else reply.answer

    def _serve_prices(self, environ: "WSGIEnvironment") -> Response:
        """Answer one call of the Pricing API, which moto does not have, and record it in the log."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        call = read_price_call(environ.get("HTTP_X_AMZ_TARGET", ""), credential_scope(environ)[0], body)
        with self._lock:
            self._advance()
            fault = self.control.faults.take("request", call, time.monotonic())
            if fault is not None:
                answer = answer_price_error(str(fault.code), fault.text, fault.http_status)
            else:
                answer = answer_products(call)
            text, faults = answer.get_data(as_text=True), [f"error:{fault.code}"] if fault else []
            self.log.append(call, answer.status_code, text, replayed=False, lost=False, faults=faults)
        return answer

    def locked(self, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call `act` while this emulator serves no EC2 call, and return the result of `act`."""
        with self._lock:
            self._advance()
            return act()

    def run_due_events(self) -> None:
        """Run the background events (like interruptions) that are due. The server calls this method regularly, even if
        no EC2 call comes.
        """
        with self._lock:
            self._advance()
            self.background_events.state_changes.send()

    def play(self, script: Script) -> None:
        """Play a script from now on, in place of the present one."""
        if self.player is not None:
            self.player.stop()
        self.player = ScriptPlayer(script, self.control, self.background_events, self.region)

    def reset(self) -> None:
        """Remove all instances, client tokens, faults and records of the emulator, and end its script. Its other
        settings stay, and the numbering of records continues.
        """
        moto_api_backend.reset()
        forget_all()
        self._pages.clear()
        self._tokens.clear()
        self._throttle.clear()
        self._young_templates.clear()
        self.background_events.clear()
        self.player = None
        self.control.restart()
        self.log.clear()
        self.log.append_event("reset")
        warm_up(self.region)
        self._queue = None
        self._advance()

    def _advance(self) -> None:
        self.control.refresh()
        queue = self.control.settings.interruption_queue
        if queue is not None and queue != self._queue:
            make_queue(queue, self.region)
        self._queue = queue
        self.background_events.advance()
        now = time.monotonic()
        if now - self._forgotten_at >= FORGET_EVERY:
            self._forgotten_at = now
            forget_terminated(self.control.settings.forget_seconds)

    def _answer(self, call: Call, environ: "WSGIEnvironment") -> _Reply:
        if refused := self._refuse(call):
            return refused
        if missing := self._young_templates.find_missing(call, time.monotonic()):
            return _Reply(answer_fault(missing), faults=[f"error:{missing.code}"])
        if protection := find_protection(call):
            if protection.others:
                self._forward(call.naming(protection.others), environ)
            return _Reply(answer_fault(protection.error), faults=[f"protected:{protection.error.code}"])
        if call.action == SPOT_PRICES:
            return _Reply(self.control.spot_prices.describe(call))
        if is_paged(call):
            patterns = self.control.settings.instance_types
            return _Reply(answer_page(call, patterns, lambda part: self._forward(part, environ)))
        if call.action in {INSTANCES, STATUSES}:
            return _Reply(self._pages.answer(call, lambda part: self._forward(part, environ)))
        return self._launch(call, environ) if call.is_launch else _Reply(self._carry_out(call, environ))

    def _carry_out(self, call: Call, environ: "WSGIEnvironment") -> Response:
        """Let moto carry out a call that launches nothing, and do what moto leaves out."""
        self._pages.note(call)
        if call.action == DESCRIBE:
            know_public_images(call)
        answer = self._forward(call, environ)
        if call.action == REGISTER:
            complete_registration(call, answer.get_data(as_text=True))
        if call.action == CREATE and answer.status_code == 200:  # noqa: PLR2004 - HTTP status OK
            found_at = time.monotonic() + self.control.settings.template_lag_seconds
            self._young_templates.add(call, answer.get_data(as_text=True), found_at)
        return answer

    def _refuse(self, call: Call) -> _Reply | None:
        """Return the refusal of a call that is not carried out at all, because of its signing time, throttling, an
        injected fault, DryRun, or the state of its instances. Return None if nothing prevents the call.
        """
        now = time.monotonic()
        if late := find_signing_error(call.signed_at, time.time()):
            return _Reply(answer_fault(late), faults=[f"error:{late.code}"])
        if not self._throttle.admits(call, self.control.settings.throttling, now):
            return _Reply(answer_fault(FaultRule(code="RequestLimitExceeded")), faults=["throttled"])
        if fault := self.control.faults.take("request", call, now):
            return _Reply(answer_fault(fault), faults=[f"error:{fault.code}"])
        if call.is_dry_run:
            return _Reply(answer_fault(FaultRule(code="DryRunOperation")))
        if refused := find_power_error(call, self.control.faults, self.control.lives, now):
            return _Reply(answer_fault(refused), faults=[f"power:{refused.code}"])
        return None

    def _launch(self, call: Call, environ: "WSGIEnvironment") -> _Reply:
        key = (call.region, call.action, call.token) if call.token else None
        known = self._tokens.get(key) if key else None
        if known and known.parameters != call.parameters:
            return _Reply(answer_fault(FaultRule(code="IdempotentParameterMismatch")), replayed=True)
        if known and known.body is not None:
            return _Reply(self._repeat(call, known), replayed=True)
        if key:
            self._tokens[key] = _Remembered(call.parameters)
        if call.action == "CreateFleet" and (refusal := find_refusal(call)):
            return _Reply(answer_fault(refusal))
        grant = grant_launch(call, self.control.faults, self.control.lives, self._find_price(call), time.monotonic())
        if call.action == "CreateFleet":
            answer = self._create_fleet(call, grant, environ)
        elif grant.counts:
            answer = self._forward(call.asking_for(sum(grant.counts.values())), environ)
            complete_launch(call, find_launched(answer))
        else:
            answer = answer_fault(grant.errors[0][1])
        given = find_launched(answer)
        self.background_events.add(given, call.token)
        if key and answer.status_code == 200:  # noqa: PLR2004 - HTTP status OK
            self._tokens[key] = _Remembered(call.parameters, answer.get_data(), answer.content_type or "")
        return _Reply(answer, faults=[*grant.faults, *self._fail_machines(call, given)])

    def _repeat(self, call: Call, known: _Remembered) -> Response:
        """Return the answer to a launch with a known client token: the earlier answer, unless the instances of a
        RunInstances have ended.
        """
        answer = Response(known.body, status=200, content_type=known.content_type)
        if call.action == "CreateFleet":
            is_empty = self.control.settings.fleet_replays == "empty"
            return answer_empty_fleet(str(call.market), []) if is_empty else answer
        has_ended = all(each.real_state.name == "terminated" for each in find_launched(answer))
        return answer_fault(FaultRule(code="IdempotentInstanceTerminated")) if has_ended else answer

    def _fail_machines(self, call: Call, instances: Iterable[EmulatedInstance]) -> list[str]:
        """Plan the ends of these new instances that injected faults bring about. Return the names of the faults."""
        faults = list[str]()
        for instance in instances:
            place = Place(instance.life.type, instance.life.zone, instance.subnet_id)
            rule = self.control.faults.take_for_machine(call, place, time.monotonic())
            if rule is not None:
                self.background_events.end(instance, describe_reason(str(rule.code), rule.text), rule.after or 0.0)
                faults.append(f"machine:{rule.code}")
        return list(dict.fromkeys(faults))

    def _create_fleet(self, call: Call, grant: Grant, environ: "WSGIEnvironment") -> Response:
        """Let moto launch the instances of a CreateFleet call that the emulator allows (`grant`), with one call to moto
        for each place (instance type and zone), because moto launches all instances of one call at one place. If moto
        refuses some places, the answer has an error for each of them. If it refuses all, its first refusal is the
        answer.
        """
        given, refused = list[str](), list[tuple[Place | None, Response]]()
        for place, count in grant.counts.items():
            part = call.only(place, find_subnet(place, call.region)).asking_for(count)
            answer = self._forward(part, environ)
            if answer.status_code == 200:  # noqa: PLR2004 - HTTP status OK
                complete_launch(part, find_launched(answer))
                given.append(answer.get_data(as_text=True))
            else:
                refused.append((place, answer))
        errors = [*grant.errors, *((place, read_error(answer)) for place, answer in refused)]
        if given:
            return answer_fleet(given, str(call.market), errors)
        return refused[0][1] if refused else answer_empty_fleet(str(call.market), errors)

    def _find_price(self, call: Call) -> Price:
        """Return a function from a place (instance type and zone) to its present price in the market of this launch
        call. The price of a place without an instance type is infinite.
        """

        def find(place: Place) -> float:
            if place.type is None:
                return inf
            if call.market == "spot":
                return self.control.spot_prices.find(place.type, place.zone or "").price
            return find_on_demand_price(place.type)

        return find

    def _forward(self, call: Call, environ: "WSGIEnvironment") -> Response:
        body = call.body()
        changed = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        with without_hidden(call.region) if call.action.startswith("Describe") else nullcontext():
            return Response.from_app(self._moto, changed, buffered=True)


def find_launched(answer: Response) -> list[EmulatedInstance]:
    """Return the instances in the answer to a launch."""
    return list(find_all(find_instances(answer.get_data(as_text=True))).values())


def _create_app(service: SERVICE_NAMES) -> Flask:
    app = create_backend_app(service)
    # Without debug mode an error in moto is an answer with status 500 and does not cut the connection.
    app.debug = False
    return app
