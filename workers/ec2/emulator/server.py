"""The emulator as a server: threads, silence, and an end on SIGTERM or SIGINT."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Final

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import make_server as make_wsgi_server

from workers.ec2.emulator.access import Door
from workers.ec2.emulator.control import Control
from workers.ec2.emulator.layer import Middleware
from workers.ec2.emulator.log import CallLog
from workers.ec2.emulator.settings import EmulatorSettings
from workers.ec2.emulator.steering import Steering

DEFAULT_PORT: Final = 4579
BACKLOG: Final = 128
TEND_EVERY: Final = 0.1


class _Handler(MotoRequestHandler):
    """Says nothing of requests: the call log does. Answers small packets at once."""

    disable_nagle_algorithm = True

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 - werkzeug's own name
        """Nothing."""


class EmulatorServer:
    """An emulator that listens, but serves only once it is started. `url` is boto3's `endpoint_url`; `secret`: what
    requests have to be signed with (workers/ec2/emulator/access.py), None: any request is served.
    """

    def __init__(self, host: str, port: int, layer: Middleware, secret: str | None = None) -> None:
        self.layer = layer
        control = Control(layer)
        application = control if secret is None else Door(control, secret)
        # Bound here: werkzeug ends the process when a port is taken.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family, backlog=BACKLOG) as bound:
            self._server = make_wsgi_server(
                host, port, application, threaded=True, request_handler=_Handler, fd=bound.fileno()
            )
        self._thread = Thread(target=self._server.serve_forever, name="ec2-emulator", daemon=True)
        self._nature = Thread(target=self._tend, name="ec2-nature", daemon=True)
        self._ended = Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def start(self) -> "EmulatorServer":
        """Serve in a thread of its own."""
        self.layer.begin()
        self._thread.start()
        self._nature.start()
        return self

    def stop(self) -> None:
        """Serve no more and close the port."""
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._nature.join()
        self._server.server_close()

    def _tend(self) -> None:
        """EC2 acts by itself, also while nobody calls."""
        while not self._ended.wait(TEND_EVERY):
            self.layer.tend()


def make_server(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    settings: EmulatorSettings | None = None,
    state_file: Path | None = None,
    call_log: Path | None = None,
    region: str = "us-east-1",
    secret: str | None = None,
) -> EmulatorServer:
    """An emulator on this host and port (0 = any free one), ready to be started; one a process.

    `state_file` (TOML or JSON, see EmulatorSettings) goes before `settings` and is read again when it
    changes; `call_log` is appended to as JSON lines. Raises OSError when the port is taken or the file cannot
    be read, InvalidInputError when the file is wrong.
    """
    steering = Steering(settings or EmulatorSettings(), state_file)
    return EmulatorServer(host, port, Middleware(steering, CallLog(call_log), region), secret)


def run_emulator(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    state_file: Path | None = None,
    call_log: Path | None = None,
    settings: EmulatorSettings | None = None,
    region: str = "us-east-1",
    secret: str | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM or SIGINT; `on_ready` is called with the URL. To be called from the main thread."""
    server = make_server(
        host, port, settings=settings, state_file=state_file, call_log=call_log, region=region, secret=secret
    )
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server.start()
    on_ready(server.url)
    stop.wait()
    server.stop()
