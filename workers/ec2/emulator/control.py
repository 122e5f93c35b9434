"""The control API under `/_leasehold/`: plain JSON over HTTP, for tests and for people with curl."""

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec
from werkzeug.wrappers import Request, Response

from scheduler.model.validation import InvalidInputError, fault
from workers.ec2.emulator.layer import Layer
from workers.ec2.emulator.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PREFIX: Final = "/_leasehold/"
MOST_BODY: Final = 1_000_000


class Control:
    """A WSGI application beside the layer: it answers what is under PREFIX and passes on the rest."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
        """Serve one request."""
        path = environ.get("PATH_INFO", "")
        if not path.startswith(PREFIX):
            return self._layer(environ, start_response)
        return self._serve(path.removeprefix(PREFIX), Request(environ))(environ, start_response)

    def _serve(self, path: str, request: Request) -> Response:
        try:
            return _json(self._layer.locked(lambda: self._act(request.method, path, request)), 200)
        except InvalidInputError as error:
            return _json({"error": str(error)}, 400)
        except LookupError:
            return _json({"error": f"no such resource: {request.method} {PREFIX}{path}"}, 404)

    def _act(self, method: str, path: str, request: Request) -> dict[str, Any]:
        steering = self._layer.steering
        match method, path:
            case "GET", "health":
                return {"status": "ok"}
            case "GET", "state":
                return self._show_state()
            case "GET", "calls":
                after = request.args.get("after", 0, type=int)
                return {"calls": msgspec.to_builtins(self._layer.log.after(after))}
            case "PUT", "settings":
                steering.change(_read(request))
            case "PUT", "faults":
                steering.replace_faults(read_settings({"faults": _read(request)}).faults)
            case "POST", "faults":
                steering.add_faults(read_settings({"faults": [_read(request)]}).faults)
            case "POST", "reset":
                self._layer.reset()
            case _:
                raise LookupError(path)
        return steering.show()

    def _show_state(self) -> dict[str, Any]:
        steering = self._layer.steering
        return {
            "settings": steering.show(),
            "file_error": steering.file_error,
            "instances": self._layer.show_instances(),
        }


def _read(request: Request) -> object:
    if (request.content_length or 0) > MOST_BODY:
        raise fault("body", f"at most {MOST_BODY} bytes", request.content_length)
    try:
        return json.loads(request.get_data())
    except ValueError as error:
        raise fault("body", "valid JSON", str(error)) from None


def _json(document: dict[str, Any], status: int) -> Response:
    return Response(json.dumps(document) + "\n", status=status, content_type="application/json")
