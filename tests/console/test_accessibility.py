"""Every page of the console in Debian's Chromium, on a real stack: structure, labels, the keyboard, contrast, and a
window of 400 pixels, in light and dark.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from examples.browser import resize
from leasehold.console.pages import PAGES as KNOWN
from leasehold.stack import Stack
from scheduler.store.opening import open_store
from tests.console.chromium import Window, open_window
from tests.store.test_runs import a_run

pytestmark = pytest.mark.timeout(240)
CHECKS = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8")
LONG_ID = "a-long-id-" * 12
RULES = {
    "scheduler": {"queue": "quota"},
    "pools": {
        "lab": {
            "system": "x86_64-linux",
            "min_slots": 2,
            "max_slots": 2,
            "offerings": [
                {"name": "m5.xlarge", "price": 0.192, "resources": {"cpus": 4}},
                {"name": "m5.4xlarge", "market": "on-demand", "price": 0.768, "resources": {"cpus": 16}},
            ],
            "ec2": {"image": "ami-04681a1dbd79675a5"},
        },
        "hosts": {"system": "hosts-linux", "provider": "static"},
    },
    "budgets": {"all": {"per_hour": 0.01, "per_day": 500, "action": "warn"}},
    "accounts": {"ci": {"description": "Builds", "charge_rate": [0, 2], "balance": [0, 60]}},
}
PAGES = (
    "/fleet",
    "/fleet?slot=lab-1",
    "/fleet?text=nothing-matches",
    "/reservations",
    "/reservations?phase=pending&account=ci",
    "/reservations?id=nothing-matches&phase=unknown",
    "/reservations/first",
    f"/reservations/{LONG_ID}",
    "/reservations/ended",
    "/reservations/command",
    "/accounts",
    "/accounts/ci?span=1h",
    "/money",
    "/money?by=kind&span=7d",
    "/offers",
    "/offers?pool=none",
    "/queues",
    "/forecasts",
    "/events",
    "/events?name=nothing_matches",
    "/what-if",
    "/doctor",
    "/about",
    "/api/v1/docs",
    "/no-such-page",
)
LOADED = """document.readyState === 'complete' && !!window.htmx
    && !document.querySelector('.htmx-request, .health:empty, #curve:empty, #pools .empty')
    && !document.querySelector('#why h2 + .muted:last-child, #command > h2 + p + .muted:last-child')"""
MOST_STOPS = 400


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    environment = {"LEASEHOLD_TICKS__INTERVAL": "1"}
    with Stack(tmp_path_factory.mktemp("stack"), rules=RULES, environment=environment) as running:
        with running.client() as client:
            for name in ("first", "second"):
                client.reserve(id=name, system="x86_64-linux", resources={"cpus": 4}, account="ci", ttl=0)
                client.wait(name, timeout=60)
            client.cordon("lab-2")
            client.reserve(id=LONG_ID, system="x86_64-linux", resources={"cpus": 4}, account="ci", tags={"a": "b"})
            client.reserve(id="ended", system="x86_64-linux", resources={"cpus": 400})
            client.cancel("ended", reason="a long reason " * 12)
            run = {"argv": ["make", "a long argument " * 20], "env": {"TOKEN": "hidden"}, "cwd": "/srv"}
            client.submit({"id": "command", "pool": "hosts", "resources": {"cpus": 400}, "run": run})
        # No host of this stack runs commands.
        store = open_store(running.database_url)
        with store.transaction() as transaction:
            transaction.load_reservations(["command"])
            transaction.save_executions([a_run("command", token, tail="x" * 8000) for token in (1, 2)])
        store.close()
        yield running


@pytest.fixture(scope="module")
def window(stack: Stack) -> Iterator[Window]:
    """Return a window that has opened the address of the console with its token."""
    origin, token = (stack.console_url or "").split("/?")
    with open_window(origin) as opened:
        opened.open(f"/?{token}")
        yield opened


def show(window: Window, path: str, *, width: int = 1280, dark: bool = False) -> None:
    """Show a page, and return when it and its parts are loaded."""
    resize(window.driver, width=width, dark=dark)
    window.open(path)
    window.wait_for(lambda: window.run(LOADED), f"the page {path}")
    window.driver.execute_script(CHECKS)


def check(window: Window, *names: str) -> dict[str, list[str]]:
    """Return the faults that these checks find on the page, by check."""
    found = {name: list(window.run(f"window.pageChecks.{name}()")) for name in names}
    return {name: faults for name, faults in found.items() if faults}


def test_every_page_is_visited() -> None:
    """A new page is added to the list of these tests."""
    assert [page.path for page in KNOWN if page.in_navigation and page.path not in PAGES] == []


def test_every_page_has_one_heading_a_main_part_and_names_for_its_controls(window: Window) -> None:
    found = {}
    for path in PAGES:
        show(window, path)
        found[path] = check(window, "structure", "ids", "labels", "unreachable")
    assert {path: faults for path, faults in found.items() if faults} == {}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_have_contrast_and_no_page_is_wider_than_its_window(window: Window, *, dark: bool) -> None:
    window.errors()
    found = {}
    for path in PAGES:
        show(window, path, width=400, dark=dark)
        found[path] = check(window, "contrasts", "width", "cards", "texts")
    assert {path: faults for path, faults in found.items() if faults} == {}
    expected = [line for line in window.errors() if "/no-such-page" not in line]
    assert expected == []


@pytest.mark.parametrize("path", ["/fleet?slot=lab-1", "/reservations", f"/reservations/{LONG_ID}", "/what-if"])
def test_tab_reaches_every_control_and_shows_where_it_is(window: Window, path: str) -> None:
    show(window, path)
    window.run("(document.activeElement.blur(), 1)")
    visited: list[str] = []
    while len(visited) < MOST_STOPS:
        # To whatever has the focus: a page that refreshes its table may have replaced that element.
        ActionChains(window.driver).send_keys(Keys.TAB).perform()
        stop = window.run("window.pageChecks.mark()")
        if not stop or stop in visited:
            break
        visited.append(stop)
    assert [each for each in visited if each.startswith("not visible")] == []
    assert check(window, "missed") == {}
    assert len(visited) >= window.run("window.pageChecks.stops()")


def test_a_row_of_the_list_is_one_line_and_a_text_that_is_cut_is_whole_with_the_focus(window: Window) -> None:
    show(window, "/reservations")
    heights = window.run("[...document.querySelectorAll('.lines tbody tr')].map((each) => each.clientHeight)")
    assert max(heights) < 1.5 * min(heights)
    chip = "document.querySelector('.lines a.badge')"
    assert window.run(f"{chip}.parentElement.scrollWidth > {chip}.parentElement.clientWidth")
    window.run(f"({chip}.focus({{focusVisible: true}}), 1)")
    assert window.run(f"{chip}.parentElement.scrollWidth <= {chip}.parentElement.clientWidth")


def test_parts_that_a_person_opens_keep_the_rules_of_pages(window: Window) -> None:
    """The comparison of rules, the preview of a bulk change, the question before a change, and the page of the API."""
    checks = ("ids", "labels", "unreachable", "contrasts", "width")
    found = {}
    for dark in (False, True):
        show(window, "/what-if", width=400, dark=dark)
        window.run("(document.querySelector('#rules').value += '\\n[ticks]\\nwrong = 1\\n', 1)")
        window.click("#rules-form button.primary")
        window.find("#preview .problem")
        found["wrong rules", dark] = check(window, *checks)
        show(window, "/what-if", width=400, dark=dark)
        replace = "document.querySelector('#rules').value.replace('max_slots = 2', 'max_slots = 3')"
        window.run(f"(document.querySelector('#rules').value = {replace}, 1)")
        window.click("#rules-form button.primary")
        window.find("#apply")
        found["comparison", dark] = check(window, *checks)
        show(window, "/reservations", width=400, dark=dark)
        window.click("#check-all")
        window.click("#bulk button[value=cancel]")
        window.click("#bulk-result [data-bulk-ids]")
        window.find("dialog[open]")
        found["preview and question", dark] = check(window, *checks)
        window.click("dialog button[value=no]")
        show(window, "/api/v1/docs", width=400, dark=dark)
        window.run("document.querySelectorAll('details').forEach((each) => { each.open = true; }) ?? 1")
        found["resources", dark] = check(window, "structure", *checks)
    assert {part: faults for part, faults in found.items() if faults} == {}


def test_the_checks_find_faults(window: Window) -> None:
    """Otherwise the tests above could never fail."""
    checks = ("structure", "ids", "labels", "unreachable", "contrasts", "width", "cards", "texts")
    show(window, "/about", width=400)
    assert check(window, *checks) == {}
    window.driver.execute_script(
        """const main = document.querySelector('main');
        const add = (tag, fields, text = '') => {
          const each = Object.assign(document.createElement(tag), fields);
          each.textContent = text;
          main.append(each);
          return each;
        };
        add('h1', {id: 'main'}, 'Another');
        add('input', {});
        add('span', {}, 'x').setAttribute('role', 'button');
        Object.assign(add('p', {}, 'pale').style, {color: '#bbb', background: '#fff'});
        add('div', {}).style.cssText = 'width: 3000px; height: 1px';
        add('table', {});
        add('table', {className: 'cards lines'}).innerHTML = `<thead><tr><th>Phase</th><th>Priority</th></tr></thead>
          <tbody><tr><td>of no heading</td><td>1</td></tr></tbody>`;
        add('table', {className: 'cards'}).innerHTML = '<tr><td>of no label</td></tr>';
        add('p', {}).innerHTML = '<b class="badge" title="a sentence">code</b> another <i>a sentence</i>';"""
    )
    found = check(window, *checks)
    assert set(found) == {*checks}
    assert [line.split(": ")[0] for line in found["cards"]] == ["no cards", "no label", "no label"]
    assert len(found["texts"]) == 1
