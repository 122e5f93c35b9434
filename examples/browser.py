"""Debian's Chromium, driven by Selenium, for pictures of the console and for its tests. Nothing is downloaded: browser
and driver must be installed.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NARROWEST: Final = 500
"""The narrowest window that Chromium opens, in pixels. `resize` makes pages narrower."""
HEIGHT: Final = 900


class NoBrowserError(Exception):
    """Raised if a program is not installed. The message names it."""


@contextmanager
def open_browser(*, width: int = 1280, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """Open a browser with a profile of its own until the end of the block. Raises NoBrowserError."""
    found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in found.items() if path is None]:
        packages = {"chromium": "chromium", "chromedriver": "chromium-driver"}
        raise NoBrowserError(f"not installed: {', '.join(missing)} (apt install {packages[missing[0]]})")
    with tempfile.TemporaryDirectory(prefix="leasehold-chromium-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = found["chromium"] or ""
        for option in (*OPTIONS, f"--user-data-dir={profile}", f"--window-size={max(NARROWEST, width)},{HEIGHT}"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service(found["chromedriver"], env={**os.environ, "HOME": profile})
        driver = webdriver.Chrome(options=options, service=service)
        try:
            # Some versions give a window without a screen no focus, and then no element gets the event.
            driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
            resize(driver, width=width, dark=dark)
            yield driver
        finally:
            driver.quit()


def resize(driver: webdriver.Chrome, *, width: int, height: int = HEIGHT, dark: bool = False) -> None:
    """Set the size of the page in pixels, at one device pixel each, and the colour scheme that the user prefers."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
