"""Plays the running instances as processes of this machine: each one runs its user data, with credentials of its own
that prove to STS which instance it is, and with a metadata service that names its id.

Only user data that begins with `#!` is run, by `/bin/sh`. Whoever may launch instances in the emulator can thus run
programs as its user, so this is off unless the setting `run_user_data` is on.
"""

import base64
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.sax.saxutils import escape

from werkzeug.wrappers import Request, Response

from leasehold_emulator import machine_init
from leasehold_emulator.access import is_signed
from leasehold_emulator.instances import RUNNING, EmulatedInstance, each_instance

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

ACCOUNT: Final = "123456789012"
ROLE: Final = "emulated-host"
"""Role of the credentials of each played instance."""
END_SECONDS: Final = 5.0
"""Time limit for the end of the processes of one instance."""
_INHERITED: Final = ("HOME", "LANG", "TZ")
_KEY_BYTES: Final = 8
METADATA_PATH: Final = "/_machines/"
"""Begin of the paths of the metadata services: the id of the instance and the path of EC2's service follow."""
_SESSION_PATH: Final = "latest/api/token"
_ID_PATH: Final = "latest/meta-data/instance-id"
_SESSION_HEADER: Final = "X-aws-ec2-metadata-token"


class _Machine(NamedTuple):
    """A played instance: the process that runs its user data, its folder, and its credentials."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    access_key: str
    secret: str
    session: str
    """What its metadata service gives to a PUT, and wants from a GET."""


class MachineProcesses:
    """The played instances. `url`: the address of the emulator. Not safe for threads: `follow` is called by one thread.

    `folder` gets a folder for each instance, with the output of its user data in `console.log`; default: a temporary
    folder.
    """

    def __init__(self, url: str, region: str, folder: Path | None = None) -> None:
        self._url, self._region = url, region
        self._is_temporary = folder is None
        self._folder = Path(tempfile.mkdtemp(prefix="leasehold-machines-")) if folder is None else folder
        self._machines: dict[str, _Machine] = {}
        self._secrets: dict[str, tuple[str, str]] = {}
        """Access key -> the instance and the secret key. A request thread reads it, as it does `_machines`."""

    def follow(self, running: Mapping[str, str]) -> None:
        """Start the instances that are not played yet, and end the played ones that run no more. `running`: id -> user
        data of each running instance (`list_scripts`).
        """
        for name in [name for name in self._machines if name not in running]:
            self._end(name)
        for name, script in running.items():
            if name not in self._machines:
                self._begin(name, script)

    def find_instance(self, access_key: str) -> tuple[str, str] | None:
        """Return the instance with this access key, and its secret key; None if there is none."""
        return self._secrets.get(access_key)

    def find_session(self, instance: str) -> str | None:
        """Return the session of the metadata service of this instance; None if there is none."""
        machine = self._machines.get(instance)
        return None if machine is None else machine.session

    def close(self) -> None:
        """End all played instances, and remove a temporary folder."""
        for each in self._machines.values():
            each.process.terminate()
        for name in list(self._machines):
            self._end(name)
        if self._is_temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, name: str, script: str) -> None:
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / "user-data.sh"
        path.write_text(script, encoding="utf-8")
        access_key, secret = f"ASIA{secrets.token_hex(_KEY_BYTES).upper()}", secrets.token_urlsafe(32)
        environment = {key: os.environ[key] for key in _INHERITED if key in os.environ} | {
            # As in an image that has the same Python.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "XDG_STATE_HOME": str(folder / "state"),
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_SESSION_TOKEN": secrets.token_urlsafe(32),
            "AWS_REGION": self._region,
            "AWS_ENDPOINT_URL_STS": self._url,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{self._url}{METADATA_PATH}{name}",
            "EMULATED_INSTANCE_ID": name,
            "EMULATED_FOLDER": str(folder),
        }
        with (folder / "console.log").open("ab") as console:
            process = subprocess.Popen(  # noqa: S603 - playing the machine's own user data is the purpose
                [sys.executable, "-S", "-E", machine_init.__file__, str(path)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        self._secrets[access_key] = name, secret
        self._machines[name] = _Machine(process, folder, access_key, secret, secrets.token_urlsafe(32))

    def _end(self, name: str) -> None:
        machine = self._machines.pop(name)
        del self._secrets[machine.access_key]
        machine.process.terminate()
        try:
            machine.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            for pid in machine_init.list_descendants(machine.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            machine.process.kill()
            machine.process.wait()


def list_scripts() -> dict[str, str]:
    """Return id -> user data of the running instances whose user data is a script."""
    found = (each for _, each in each_instance() if isinstance(each, EmulatedInstance))
    texts = {each.id: _decode(each.user_data) for each in found if each.real_state.code == RUNNING}
    return {name: text for name, text in texts.items() if text.startswith("#!")}


def _decode(user_data: object) -> str:
    try:
        return base64.b64decode(str(user_data or ""), validate=True).decode()
    except ValueError:
        return ""


class InstanceIdentities:
    """A WSGI application in front of the emulator. To the played instances it answers GetCallerIdentity of STS, if the
    request is signed with their credentials, and version 2 of their metadata service, which has only their id. All
    other requests pass on.
    """

    def __init__(self, inside: "WSGIApplication", machines: MachineProcesses) -> None:
        self._inside, self._machines = inside, machines

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Serve one HTTP request."""
        if environ.get("PATH_INFO", "").startswith(METADATA_PATH):
            return self._show_metadata(Request(environ))(environ, start_response)
        scope = environ.get("HTTP_AUTHORIZATION", "").split(",")[0].rpartition("Credential=")[2].split("/")
        known = self._machines.find_instance(scope[0])
        if known is None or scope[3:4] != ["sts"]:
            return self._inside(environ, start_response)
        instance, secret = known
        request = Request(environ)
        answer = _name_caller(instance) if is_signed(request, secret) else _refuse()
        return answer(environ, start_response)

    def _show_metadata(self, request: Request) -> Response:
        instance, _, path = request.path.removeprefix(METADATA_PATH).partition("/")
        session = self._machines.find_session(instance)
        if session is None:
            return Response(status=404)
        if (request.method, path) == ("PUT", _SESSION_PATH):
            return Response(session, mimetype="text/plain")
        if request.headers.get(_SESSION_HEADER) != session:
            return Response(status=401)
        if (request.method, path) == ("GET", _ID_PATH):
            return Response(instance, mimetype="text/plain")
        return Response(status=404)


def _name_caller(instance: str) -> Response:
    arn = escape(f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{instance}")
    return Response(
        '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
        f"<Arn>{arn}</Arn><UserId>AROAEMULATED:{escape(instance)}</UserId><Account>{ACCOUNT}</Account>"
        "</GetCallerIdentityResult></GetCallerIdentityResponse>",
        mimetype="text/xml",
    )


def _refuse() -> Response:
    return Response(
        '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
        "<Code>SignatureDoesNotMatch</Code><Message>The request signature does not match.</Message></Error>"
        "</ErrorResponse>",
        403,
        mimetype="text/xml",
    )
