"""The layer: every EC2 request goes through it before it reaches moto."""

import io
import time
from collections.abc import Callable, Iterable
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec
from flask import Flask
from moto.backends import SERVICE_NAMES
from moto.moto_api._internal.models import moto_api_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.wrappers import Response

from workers.ec2.emulator.answers import answer_empty_fleet, answer_error
from workers.ec2.emulator.calls import Call, CallLog, credential_scope, read_call
from workers.ec2.emulator.instances import (
    describe_instance,
    each_instance,
    forget_terminated,
    install_instances,
    warm_up,
    zone_of,
)
from workers.ec2.emulator.settings import FaultRule
from workers.ec2.emulator.steering import Steering

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

FORGET_EVERY: Final = 1.0


class _Remembered(msgspec.Struct, frozen=True):
    """What a client token was used for, and what came of it."""

    parameters: dict[str, str]
    body: bytes
    content_type: str


class Layer:
    """A WSGI application: EC2 with tokens, times and faults; all other services as moto serves them.

    EC2 calls go one at a time (moto's EC2 is not made for threads, and a token must be looked up and written
    in one go); the others, some of which wait for messages, do not wait for each other.
    """

    def __init__(self, steering: Steering, log: CallLog, region: str = "us-east-1") -> None:
        install_instances()
        self.steering, self.log = steering, log
        self._region = region
        self._moto = DomainDispatcherApplication(_create_app)
        self._tokens: dict[tuple[str, str, str], _Remembered] = {}
        self._lock = Lock()
        self._forgotten_at = 0.0
        warm_up(region)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Serve one request."""
        if credential_scope(environ)[1] != "ec2":
            return self._moto(environ, start_response)  # type: ignore[no-any-return]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        return self.serve(read_call(environ, body), environ)(environ, start_response)

    def serve(self, call: Call, environ: "WSGIEnvironment") -> Response:
        """The answer to one EC2 call, written to the log."""
        with self._lock:
            self.steering.refresh()
            self._forget()
            call = _with_zones(call)
            answer, replayed = self._answer(call, environ)
            self.log.append(call, answer.status_code, answer.get_data(as_text=True), replayed=replayed)
            return answer

    def locked(self, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of `act`, while no EC2 call is served."""
        with self._lock:
            self.steering.refresh()
            return act()

    def show_instances(self) -> list[dict[str, Any]]:
        """All instances that EC2 still describes, as JSON values."""
        return [describe_instance(region, instance) for region, instance in each_instance()]

    def reset(self) -> None:
        """As at the start: no instances, tokens, faults or records; times and numbers of records stay."""
        moto_api_backend.reset()
        self._tokens.clear()
        self.steering.replace_faults(())
        self.log.clear()
        warm_up(self._region)

    def _answer(self, call: Call, environ: "WSGIEnvironment") -> tuple[Response, bool]:
        fault = self.steering.faults.take_for_request(call, time.monotonic())
        if fault:
            return _refuse(fault), False
        key = (call.region, call.action, call.token) if call.is_launch and call.token else None
        known = self._tokens.get(key) if key else None
        if known:
            return _replay(known, call), True
        answer = self._launch(call, environ) if call.is_launch else self._forward(call, environ)
        if key and answer.status_code == 200:  # noqa: PLR2004 - HTTP's own figure
            self._tokens[key] = _Remembered(call.parameters, answer.get_data(), answer.content_type or "")
        return answer, False

    def _launch(self, call: Call, environ: "WSGIEnvironment") -> Response:
        met = self.steering.faults.take_for_places(call, call.places, time.monotonic())
        if len(met) == len(call.places):
            faults = list(met.values())
            is_fleet = call.action == "CreateFleet"
            return answer_empty_fleet(str(call.market), faults) if is_fleet else _refuse(faults[0])
        return self._forward(call.without(list(met)) if met else call, environ)

    def _forward(self, call: Call, environ: "WSGIEnvironment") -> Response:
        body = call.body()
        changed = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return Response.from_app(self._moto, changed, buffered=True)

    def _forget(self) -> None:
        now = time.monotonic()
        if now - self._forgotten_at >= FORGET_EVERY:
            self._forgotten_at = now
            forget_terminated(self.steering.settings.forget_seconds)


def _create_app(service: SERVICE_NAMES) -> Flask:
    app = create_backend_app(service)
    # A fault inside moto is an answer with status 500, not the end of the connection.
    app.debug = False
    return app


def _with_zones(call: Call) -> Call:
    """The call with the zones that its subnets are in."""
    places = (msgspec.structs.replace(place, zone=zone_of(place, call.region)) for place in call.places)
    return msgspec.structs.replace(call, places=tuple(places))


def _refuse(fault: FaultRule) -> Response:
    return answer_error(fault.code, fault.message, fault.http_status)


def _replay(known: _Remembered, call: Call) -> Response:
    if known.parameters != call.parameters:
        message = f"the client token {call.token} was used with other parameters"
        return answer_error("IdempotentParameterMismatch", message, 400)
    return Response(known.body, status=200, content_type=known.content_type)
