"""A headless Chromium for tests of pages: the few commands of the WebDriver protocol that the tests need."""

import base64
import json
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from testbed.guarding import Guarded
from testbed.processes import wait_for

PROGRAMS: Final = ("chromium", "chromedriver")
_SECONDS: Final = 60.0
_ARGUMENTS: Final = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


def find_browser() -> tuple[str, str] | None:
    """Return the paths of Chromium and its driver; None if one of them is missing."""
    found = [shutil.which(name) for name in PROGRAMS]
    return None if None in found else (str(found[0]), str(found[1]))


class Browser:
    """One session of a browser."""

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, path: Path) -> None:
        """Load a file and wait until its script has ended."""
        self.send("POST", "/url", url=path.as_uri())

    def run(self, script: str) -> Any:
        """Return what the body of a function in JavaScript returns in the page."""
        return self.send("POST", "/execute/sync", script=script, args=[])

    def control(self, command: str, **parameters: Any) -> Any:
        """Send a command of Chromium's own protocol."""
        return self.send("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def show(self, width: int, height: int = 900, *, is_dark: bool = False) -> None:
        """Set the size of the page and its colour scheme."""
        self.control(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.control("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        """Press a key, like `ArrowRight`, in the element that has the focus."""
        for kind in ("rawKeyDown", "keyUp"):
            self.control("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def photograph(self) -> bytes:
        """Return the whole page as a PNG."""
        found = self.control("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        return base64.b64decode(found["data"])

    def send(self, method: str, path: str, **body: Any) -> Any:
        """Send one command of the session and return its value."""
        return _send(method, self._url + path, body)


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Yield a session of a new browser, with its log in `folder`."""
    programs = find_browser()
    assert programs is not None
    chromium, driver = programs
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    root = f"http://127.0.0.1:{port}"
    with (folder / "driver.log").open("wb") as log:
        started = Guarded([driver, f"--port={port}"], stdout=log, stderr=log)
    try:
        wait_for(lambda: _is_ready(root), "the driver of the browser")
        arguments = [*_ARGUMENTS, f"--user-data-dir={folder / 'profile'}"]
        options = {"goog:chromeOptions": {"binary": chromium, "args": arguments}}
        session = _send("POST", f"{root}/session", {"capabilities": {"alwaysMatch": options}})
        browser = Browser(f"{root}/session/{session['sessionId']}")
        # Some versions give a window without a screen no focus, and then no element gets the event.
        browser.control("Emulation.setFocusEmulationEnabled", enabled=True)
        try:
            yield browser
        finally:
            browser.send("DELETE", "")
    finally:
        started.kill()
        started.wait()


def _is_ready(root: str) -> bool:
    try:
        return bool(_send("GET", f"{root}/status", {})["ready"])
    except OSError:
        return False


def _send(method: str, url: str, body: dict[str, Any]) -> Any:
    data = json.dumps(body).encode() if method == "POST" else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 - loopback
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(error.read().decode()) from None
