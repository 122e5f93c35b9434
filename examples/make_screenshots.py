"""Make the pictures of the console: a stack with a small fleet, each of its pages in Chromium.

    python -m examples.make_screenshots              # docs/pictures/console-*.png
    python -m examples.make_screenshots --every DIR  # each page, light and dark, at 1280 and 400 pixels

It needs the packages of `make .venv`, Chromium and its driver. Times and ids in the pictures differ from run to run, so
no test compares them.
"""

import argparse
import sys
import tempfile
import time
from base64 import b64decode
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Final

from PIL import Image
from selenium import webdriver

from examples.browser import NoBrowserError, open_browser, resize
from examples.shown_fleet import EMULATOR, ENVIRONMENT, RULES, WAITING, add_prices, fill
from leasehold.stack import Stack, StackError
from scheduler.store.opening import open_store

FOLDER: Final = Path(__file__).parent.parent / "docs" / "pictures"
PAGES: Final = {
    "fleet": "/fleet",
    "fleet-slot": "/fleet?slot=linux-1",
    "reservations": "/reservations",
    "reservation": f"/reservations/{WAITING}",
    "accounts": "/accounts",
    "account": "/accounts/ci?span=1h",
    "money": "/money",
    "offers": "/offers?pool=arm",
    "queues": "/queues",
    "events": "/events",
    "what-if": "/what-if",
    "about": "/about",
}
KEPT: Final = (
    *((f"console-{name}", name, 1280, False) for name in PAGES if name not in {"fleet-slot", "about"}),
    ("console-fleet-dark", "fleet-slot", 1280, True),
    ("console-reservations-narrow", "reservations", 400, False),
)
"""File, page, width, and whether it is dark."""
EVERY: Final = tuple(
    (f"{name}-{width}{'-dark' if dark else ''}", name, width, dark)
    for name in PAGES
    for width in (1280, 400)
    for dark in (False, True)
)
TALLEST: Final = 1100
TALLEST_OF_ALL: Final = 1800
"""The height of a picture in pixels at most, without and with `--every`. A longer page is cut."""
COLOURS: Final = 256
"""A palette makes the files three times smaller."""
PATIENCE_SECONDS: Final = 20.0
SETTLED: Final = """return document.readyState === 'complete'
    && !document.querySelector('.htmx-request, #why h2 + .muted:last-child, #pools .empty, #curve:empty')"""


HAS_CURVE: Final = """const data = document.querySelector('#curve-data');
    return !!data && JSON.parse(data.textContent).at.length > 1"""


def main(arguments: list[str]) -> int:
    """Write the pictures and return 0. Return 1 after one line if something is missing."""
    parser = argparse.ArgumentParser(description="Make the pictures of the console.")
    parser.add_argument("--every", type=Path, metavar="DIR", help="all pages in all forms, into this folder")
    every: Path | None = parser.parse_args(arguments).every
    try:
        with (
            open_browser() as driver,
            tempfile.TemporaryDirectory(prefix="leasehold-pictures-") as folder,
            Stack(Path(folder), rules=RULES, environment=ENVIRONMENT, emulator=EMULATOR) as stack,
        ):
            _take_all(driver, stack, every)
    except (NoBrowserError, StackError, TimeoutError) as error:
        print(f"no pictures: {error}", file=sys.stderr)
        return 1
    return 0


def _take_all(driver: webdriver.Chrome, stack: Stack, every: Path | None) -> None:
    if stack.console_url is None:
        raise StackError("the extra `console` is not installed")
    origin = stack.console_url.split("/?")[0]
    url = stack.configuration.environment["LEASEHOLD_DATABASE__URL"]
    with stack.client() as client, closing(open_store(url)) as store:
        fill(client)
        add_prices(store)
    driver.get(stack.console_url)
    # Balances are stored once a minute; a curve needs two.
    _await(driver, f"{origin}{PAGES['account']}", HAS_CURVE, 150)
    into = every or FOLDER
    into.mkdir(parents=True, exist_ok=True)
    for file, page, width, dark in EVERY if every else KEPT:
        path = into / f"{file}.png"
        picture = take_picture(driver, f"{origin}{PAGES[page]}", width, TALLEST_OF_ALL if every else TALLEST, dark=dark)
        picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def take_picture(driver: webdriver.Chrome, url: str, width: int, tallest: int, *, dark: bool) -> Image.Image:
    """Return a page from its top, in a window of `width` pixels, cut after `tallest` pixels."""
    resize(driver, width=width, dark=dark)
    # Before the page is laid out: else the first picture has a scroll bar.
    driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    driver.get(url)
    _await(driver, None, SETTLED, PATIENCE_SECONDS)
    if url.endswith(PAGES["what-if"]):
        _compare_rules(driver)
    height = driver.execute_script("return document.documentElement.scrollHeight")
    resize(driver, width=width, height=min(max(height, 700), tallest), dark=dark)
    _await(driver, None, SETTLED, PATIENCE_SECONDS)
    driver.execute_script("document.activeElement?.blur(); scrollTo(0, 0)")
    found = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    return Image.open(BytesIO(b64decode(found["data"]))).convert("RGB")


def _compare_rules(driver: webdriver.Chrome) -> None:
    """Propose more slots on the page What if, and wait for the comparison."""
    driver.execute_script(
        """const rules = document.querySelector('#rules');
        rules.value = rules.value.replace('max_slots = 14', 'max_slots = 18');
        rules.rows = 12;
        document.querySelector('#rules-form button.primary').click();"""
    )
    _await(driver, None, "return !!document.querySelector('#preview #apply')", PATIENCE_SECONDS)


def _await(driver: webdriver.Chrome, url: str | None, script: str, seconds: float) -> None:
    """Return as soon as a script returns true on the page. With `url` the page is loaded before each call."""
    deadline = time.monotonic() + seconds
    while True:
        if url is not None:
            driver.get(url)
        time.sleep(0.2 if url is None else 1)
        if driver.execute_script(script):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{driver.current_url} was not ready after {seconds:g} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
