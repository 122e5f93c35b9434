"""The control API of the EC2 emulator, JSON over HTTP under `/_leasehold/`, for tests and for use with curl."""

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec
from werkzeug.wrappers import Request, Response

from leasehold_emulator.background_events import LONG_BEFORE, LOST, RETIREMENT
from leasehold_emulator.error_codes import describe_reason
from leasehold_emulator.instances import describe_instance, each_instance
from leasehold_emulator.log import EventRecord
from leasehold_emulator.middleware import Middleware
from leasehold_emulator.notices import queue_path
from leasehold_emulator.script import Script, change_speed, parse_script
from leasehold_emulator.settings import read_settings
from leasehold_emulator.spot_prices import list_on_demand_prices
from scheduler.model.validation import Document, InvalidInputError, Name, Seconds, Text, fault, read_document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PREFIX: Final = "/_leasehold/"
ORDERS: Final = frozenset({"interrupt", "rebalance", "maintain", "lose"})
MOST_BODY: Final = 1_000_000


class Order(Document):
    """The JSON body of a control request about some instances, like the request to end them at once."""

    instances: list[Name]


class Interruption(Order):
    """The JSON body of a control request to interrupt spot instances. `deadline`: seconds until the instances end;
    None: the setting `interruption_deadline`.
    """

    deadline: Seconds | None = None


class Maintenance(Order):
    """The JSON body of a control request to announce a scheduled change. `begins_in`: seconds until the change begins.
    `code`: the type of the change in AWS Health, like RETIREMENT.
    """

    begins_in: Seconds = LONG_BEFORE
    code: Name = RETIREMENT


class Loss(Order):
    """The JSON body of a control request to end instances at once, without a notice. `code`, `message`: the state
    reason of the instances; None: an internal error of EC2, and EC2's message of the code.
    """

    code: Name | None = None
    message: Text | None = None


class ControlApi:
    """A WSGI application that serves the control API of the emulator under PREFIX. All other requests go
    to the application that it wraps.
    """

    def __init__(self, middleware: Middleware) -> None:
        self._middleware = middleware

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
        """Serve one HTTP request: by the control API if its path begins with PREFIX, else by the middleware."""
        path = environ.get("PATH_INFO", "")
        if not path.startswith(PREFIX):
            return self._middleware(environ, start_response)
        return self._serve(path.removeprefix(PREFIX), Request(environ))(environ, start_response)

    def _serve(self, path: str, request: Request) -> Response:
        try:
            return _json(self._middleware.locked(lambda: self._act(request.method, path, request)), 200)
        except InvalidInputError as error:
            return _json({"error": str(error)}, 400)
        except LookupError:
            return _json({"error": f"no such resource: {request.method} {PREFIX}{path}"}, 404)

    def _act(self, method: str, path: str, request: Request) -> dict[str, Any]:
        match method:
            case "GET":
                return self._show(path, request)
            case "POST" if path == "script":
                script = _read_script(request)
                self._middleware.play(script)
                return self._show("script", request)
            case "POST" if path in ORDERS:
                return {"events": msgspec.to_builtins(self._order(path, request))}
            case _:
                self._change(method, path, request)
                return self._middleware.control.show()

    def _show(self, path: str, request: Request) -> dict[str, Any]:
        log, control = self._middleware.log, self._middleware.control
        match path:
            case "health":
                return {"status": "ok", "interruption_queue": self._find_queue(request)}
            case "state":
                return {
                    "settings": control.show(),
                    "file_error": control.file_error,
                    "interruption_queue": self._find_queue(request),
                    "instances": [describe_instance(region, instance) for region, instance in each_instance()],
                }
            case "calls":
                return {"calls": msgspec.to_builtins(log.after(_after(request)))}
            case "events":
                return {"events": msgspec.to_builtins(log.events_after(_after(request)))}
            case "prices":
                return {"prices": list_on_demand_prices(request.args.get("region", self._middleware.region))}
            case "script" if self._middleware.player is not None:
                return self._middleware.player.show()
            case "history":
                return {"instances": msgspec.to_builtins(list(control.lives.all.values()))}
            case _:
                raise LookupError(path)

    def _change(self, method: str, path: str, request: Request) -> None:
        control = self._middleware.control
        match method, path:
            case "PUT", "settings":
                control.change(_read(request))
            case "PUT", "faults":
                control.faults.replace(read_settings({"faults": _read(request)}).faults, control.clock())
            case "POST", "faults":
                control.faults.add(read_settings({"faults": [_read(request)]}).faults, control.clock())
            case "POST", "reset":
                self._middleware.reset()
            case _:
                raise LookupError(path)

    def _order(self, what: str, request: Request) -> list[EventRecord]:
        events = self._middleware.background_events
        if what == "interrupt":
            order = read_document(Interruption, _read(request))
            return events.interrupt(order.instances, order.deadline)
        if what == "maintain":
            change = read_document(Maintenance, _read(request))
            return events.maintain(change.instances, change.code, change.begins_in)
        if what == "rebalance":
            return events.recommend(read_document(Order, _read(request)).instances)
        loss = read_document(Loss, _read(request))
        return events.lose(loss.instances, describe_reason(loss.code, loss.message) if loss.code else LOST)

    def _find_queue(self, request: Request) -> str | None:
        """Return the URL of the interruption queue, with the server name from the request's own URL; None if no queue
        is configured.
        """
        name = self._middleware.control.settings.interruption_queue
        return request.host_url.rstrip("/") + queue_path(name) if name else None


def _after(request: Request) -> int:
    return request.args.get("after", 0, type=int)


def _read_text(request: Request) -> str:
    if (request.content_length or 0) > MOST_BODY:
        raise fault("body", f"at most {MOST_BODY} bytes", request.content_length)
    return request.get_data(as_text=True)


def _read(request: Request) -> object:
    text = _read_text(request)
    try:
        return json.loads(text)
    except ValueError as error:
        raise fault("body", "valid JSON", str(error)) from None


def _read_script(request: Request) -> Script:
    """Return the script in the body of a request, TOML or JSON. `?speed=N` overrides its speed."""
    text = _read_text(request)
    script = parse_script(text, "TOML" if "toml" in request.mimetype else "JSON", "body")
    if (speed := request.args.get("speed")) is None:
        return script
    return change_speed(script, speed)


def _json(document: dict[str, Any], status: int) -> Response:
    return Response(json.dumps(document) + "\n", status=status, content_type="application/json")
