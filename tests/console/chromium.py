"""A window of Debian's Chromium for tests of the console. See `examples/browser.py`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from examples.browser import NoBrowserError, open_browser
from testbed.processes import wait_for
from tests.ci_rules import NO_CHROMIUM

R = TypeVar("R")


class Window:
    """One window of a browser."""

    def __init__(self, driver: webdriver.Chrome, origin: str) -> None:
        self.driver, self.origin = driver, origin

    def open(self, path: str) -> None:
        """Show a page of the console."""
        self.driver.get(f"{self.origin}{path}")

    def find(self, selector: str) -> WebElement:
        """Return the first shown element of this selector, as soon as there is one."""
        return self.wait_for(lambda: next(iter(self.find_all(selector)), None), f"{selector} on the page")

    def find_all(self, selector: str) -> list[WebElement]:
        return self.settled(
            lambda: [each for each in self.driver.find_elements(By.CSS_SELECTOR, selector) if each.is_displayed()]
        )

    def use(self, selector: str, act: Callable[[WebElement], R]) -> R:
        """Return what `act` returns for the first shown element of this selector, again if the page has just replaced
        the element.
        """
        return self.settled(lambda: act(self.find(selector)))

    def click(self, selector: str) -> None:
        self.use(selector, lambda each: each.click())

    def press(self, keys: str) -> None:
        """Press keys, for whatever has the focus then: the page may replace the focused element at any time."""
        ActionChains(self.driver).send_keys(keys).perform()

    def text(self, selector: str) -> str:
        """Return the text of the shown elements."""
        return self.settled(lambda: "\n".join(each.text for each in self.find_all(selector)))

    def await_text(self, selector: str, text: str) -> None:
        """Return as soon as the elements show this text."""
        self.wait_for(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def wait_for(self, find: Callable[[], R | None], what: str) -> R:
        """Return the first true value of `find`. The message of a failure describes the page as it is then."""
        try:
            return wait_for(find, what)
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n{self.describe()}") from None

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the value of a JavaScript expression."""
        return self.driver.execute_script(f"return {script}", *arguments)

    def settled(self, act: Callable[[], R]) -> R:
        """Return what `act` returns. It is repeated while the page replaces the elements that it uses."""
        for _ in range(20):
            try:
                return act()
            except StaleElementReferenceException:
                continue
        return act()

    def errors(self) -> list[str]:
        """Return the errors in the browser's log since the last call."""
        lines = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [each["message"] for each in lines if each["level"] == "SEVERE"]

    def describe(self) -> str:
        """Return address and text of the page, for the message of a failure."""
        return f"{self.driver.current_url}: {self.text('body')[:2000]}"


@contextmanager
def open_window(origin: str, *, width: int = 1280, dark: bool = False) -> Iterator[Window]:
    """Open a window of a browser with a profile of its own. Skip the test if no Chromium is installed."""
    try:
        with open_browser(width=width, dark=dark) as driver:
            yield Window(driver, origin)
    except NoBrowserError:
        pytest.skip(NO_CHROMIUM)
