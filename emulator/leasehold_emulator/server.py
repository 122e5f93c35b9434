"""The HTTP server of the EC2 emulator. SIGTERM or SIGINT ends it."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import make_server as make_wsgi_server

from leasehold_emulator.access import SecretCheck
from leasehold_emulator.control import Control
from leasehold_emulator.control_api import ControlApi
from leasehold_emulator.log import CallLog
from leasehold_emulator.machine_processes import InstanceIdentities, MachineProcesses, list_scripts
from leasehold_emulator.middleware import Middleware
from leasehold_emulator.script import Script
from leasehold_emulator.settings import EmulatorSettings
from scheduler.protocol.marks import Mark

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed.wsgi import StartResponse, WSGIEnvironment

DEFAULT_PORT: Final = 4579
BACKLOG: Final = 128
EVENTS_EVERY: Final = 0.1


class _Handler(MotoRequestHandler):
    """Handles the HTTP requests to the EC2 emulator. It writes no log lines, because the call log has all calls, and it
    sends small packets without delay.
    """

    disable_nagle_algorithm = True

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 - werkzeug's own name
        """Write a line about a request into the log. Here: write nothing, because the call log has all calls."""


class EmulatorServer:
    """The server of an EC2 emulator. It takes its port when it is made, and serves requests after `start`. Its `url` is
    the `endpoint_url` for boto3.

    `secret`: the key with which requests must be signed (emulator/leasehold_emulator/access.py); None: requests are not
    checked.
    """

    def __init__(self, host: str, port: int, middleware: Middleware, secret: str | None = None) -> None:
        self.middleware = middleware
        control_api = ControlApi(middleware)
        self._application = control_api if secret is None else SecretCheck(control_api, secret)
        # The socket is bound here, because werkzeug ends the process if the port is taken.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family, backlog=BACKLOG) as bound:
            self._server = make_wsgi_server(
                host, port, self._serve, threaded=True, request_handler=_Handler, fd=bound.fileno()
            )
        self._thread = Thread(target=self._server.serve_forever, name="ec2-emulator", daemon=True)
        self._events = Thread(target=self._run_events, name="ec2-events", daemon=True)
        self._ended = Event()
        self._machines: MachineProcesses | None = None
        """The instances that are played as processes; None: none was played yet."""

    def _serve(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
        if self._machines is None:
            return self._application(environ, start_response)
        return InstanceIdentities(self._application, self._machines)(environ, start_response)

    @property
    def url(self) -> str:
        """The URL of the EC2 emulator, to be used as boto3's `endpoint_url`."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def start(self) -> "EmulatorServer":
        """Start to serve the EC2 emulator, in threads of its own, and return this server."""
        self.middleware.begin()
        self._thread.start()
        self._events.start()
        return self

    def play(self, script: Script) -> None:
        """Play this script from now on, in place of the present one."""

        def act() -> dict[str, Any]:
            self.middleware.play(script)
            return {}

        self.middleware.locked(act)

    def stop(self) -> None:
        """Stop the server of the EC2 emulator and close its port."""
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._events.join()
        self._server.server_close()
        if self._machines is not None:
            self._machines.close()

    def _run_events(self) -> None:
        """Until the server stops, run the planned events (like interruptions) when they are due. They run even if no
        call comes.
        """
        while not self._ended.wait(EVENTS_EVERY):
            self.middleware.run_due_events()
            if self.middleware.control.settings.run_user_data:
                if self._machines is None:
                    self._machines = MachineProcesses(self.url, self.middleware.region)
                self._machines.follow(self.middleware.locked(list_scripts))


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
    """Return the server of an EC2 emulator on this host and port (0: any free port). The caller starts it. A process
    can have one.

    `state_file` (TOML or JSON, see EmulatorSettings) overrides `settings` and is read again when it changes. Calls are
    appended to `call_log` as JSON lines. Raises OSError if the port is taken or the file cannot be read,
    InvalidInputError if the file is wrong.
    """
    control = Control(settings or EmulatorSettings(), state_file)
    return EmulatorServer(host, port, Middleware(control, CallLog(call_log), region), secret)


def run_emulator(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    state_file: Path | None = None,
    call_log: Path | None = None,
    settings: EmulatorSettings | None = None,
    region: str = "us-east-1",
    secret: str | None = None,
    on_ready: Callable[[EmulatorServer], None] = lambda _: None,
) -> None:
    """Serve an EC2 emulator until SIGTERM or SIGINT. When it serves, call `on_ready` with its server.

    This function must be called in the main thread, which gets the signals.
    """
    server = make_server(
        host, port, settings=settings, state_file=state_file, call_log=call_log, region=region, secret=secret
    )
    stop = Mark()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server.start()
    on_ready(server)
    stop.wait()
    server.stop()
