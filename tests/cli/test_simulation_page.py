"""`leasehold simulate --html`: one page with the figures of the simulation, whatever its texts are."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from leasehold.simulate.report import embed, write_report
from tests.cli.conftest import Run
from tests.cli.webdriver import Browser, find_browser, open_browser
from tests.traces.logs import a_line, write_log

CONFIG = """
[pools.nodes]
system = "x86_64-linux"
provider = "static"
max_slots = 2
resources = { cpus = 1 }
"""
ROWS = [(0, 100, 1), (0, 100, 1), (1, 200, 1), (2, 10, 1), (3, 10, 1), (4, 10, 2)]
HOSTILE = "x</script><img src=x onerror=alert(1)>&amp;<!--\u2028\u202e\x1b[2J"
TRACE = ("simulate", "log.swf", "--config", "fleet.toml")


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    """Write a fleet of two hosts and a log of six jobs."""
    (tmp_path / "fleet.toml").write_text(CONFIG)
    write_log(tmp_path, *(a_line(number, row) for number, row in enumerate(ROWS, start=1)))


class Page(HTMLParser):
    """The elements of a page, and the text of its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._is_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._is_data = dict(attrs).get("id") == "data"

    def handle_endtag(self, tag: str) -> None:
        self._is_data = False

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data += data


def read(path: Path) -> dict[str, Any]:
    document = json.loads(Page(path.read_text(encoding="utf-8")).data)
    assert isinstance(document, dict)
    return document


def write_scenario(folder: Path, name: str) -> Path:
    reservations = [{"id": name, "system": "x"}, {"id": "r2", "system": "x"}]
    document = {
        "config": {"pools": {"a": {"system": "x", "max_slots": 1}}},
        "slots": [{"id": "a-1", "pool": "a", "state": "ready"}],
        "timeline": [{"at": 0, "submit": reservations}, {"at": 0, "tick": True}, {"at": 90, "tick": True}],
    }
    path = folder / "scenario.json"
    path.write_text(json.dumps(document))
    return path


def test_the_page_of_a_trace_has_the_figures_that_the_command_prints(run: Run, tmp_path: Path) -> None:
    found = run(*TRACE, "--json", "--html", "page.html")
    assert (found.status, found.err) == (0, "")
    summary = json.loads(found.out)
    (part,) = read(tmp_path / "page.html")["runs"]
    figures = {each["name"]: each["value"] for each in part["figures"]}
    assert (figures["finished"], figures["wait mean"]) == (summary["finished"], summary["wait"]["mean"])
    assert (figures["utilisation"], figures["ticks"]) == (summary["utilisation"], summary["ticks"])
    assert part["waits"]["count"] == sum(part["waits"]["classes"]) == 6
    assert sum(each["wait"] for each in part["longest"]) / 6 == pytest.approx(summary["wait"]["mean"])
    waiting = part["curves"]["waiting"]
    # The area under the curve is the sum of all waits: the last period ends with the run.
    seconds = [
        min((n + 1) * waiting["width"], part["end"]) - n * waiting["width"] for n in range(len(waiting["means"]))
    ]
    area = sum(mean * each for mean, each in zip(waiting["means"], seconds, strict=True))
    assert area == pytest.approx(summary["wait"]["mean"] * 6, rel=1e-4)
    assert max(waiting["peaks"]) == 4


def test_the_page_of_a_comparison_has_a_part_for_each_setting(run: Run, tmp_path: Path) -> None:
    found = run(*TRACE, "--compare", "queue=fifo,size", "--json", "--html", "page.html")
    runs = json.loads(found.out)["runs"]
    parts = read(tmp_path / "page.html")["runs"]
    assert [part["settings"] for part in parts] == [each["settings"] for each in runs]
    values = [{each["name"]: each["value"] for each in part["figures"]} for part in parts]
    assert [each["wait p95"] for each in values] == [each["wait"]["p95"] for each in runs]


def test_the_page_loads_nothing_and_permits_no_other_script(run: Run, tmp_path: Path) -> None:
    run(*TRACE, "--html", "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert not [each for each in page.elements if each[1].get("src") or each[1].get("href")]
    (policy,) = [each["content"] for tag, each in page.elements if each.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", (tmp_path / "page.html").read_text(encoding="utf-8"))


def write_hostile_page(run: Run, folder: Path) -> Path:
    """Write a page with a hostile title and a hostile id. Names cannot have such characters, names of files can."""
    run("simulate", str(write_scenario(folder, "r1")), "--html", "page.html")
    document = read(folder / "page.html") | {"title": HOSTILE}
    hostile = json.loads(json.dumps(document).replace('"r1"', json.dumps(HOSTILE)))
    assert hostile["runs"][0]["longest"][1]["id"] == HOSTILE
    write_report(folder / "hostile.html", hostile)
    return folder / "hostile.html"


def test_texts_of_users_cannot_end_the_data(run: Run, tmp_path: Path) -> None:
    path = write_hostile_page(run, tmp_path)
    page = Page(path.read_text(encoding="utf-8"))
    assert [tag for tag, _ in page.elements if tag in {"script", "img"}] == ["script", "script"]
    assert read(path)["runs"][0]["longest"][1]["id"] == HOSTILE
    assert not set("<>&\u2028\u202e\x1b") & set(embed([HOSTILE]))


def test_control_characters_in_names_are_visible_on_the_page(run: Run, tmp_path: Path) -> None:
    name = "x<img src=x>\u202e\x1b[2J&.json"
    write_scenario(tmp_path, "r1").rename(tmp_path / name)
    assert run("simulate", name, "--html", "page.html").status == 0
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert read(tmp_path / "page.html")["title"] == r"x<img src=x>\u202e\x1b[2J&.json"
    assert "img" not in {tag for tag, _ in page.elements}


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("nowhere/page.html", "--html: there is no folder nowhere"),
        ("folder", "--html: folder is a folder, expected a file"),
        ("pipe", "--html: pipe is no regular file"),
    ],
)
def test_a_page_that_cannot_be_written_is_one_line_before_anything_is_played(
    path: str, complaint: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for words in (TRACE, ("simulate", str(write_scenario(tmp_path, "r1")))):
        found = run(*words, "--html", path)
        assert (found.status, found.out, found.complaints) == (1, "", [f"leasehold: {complaint}"])


def test_an_earlier_page_stays_if_the_new_one_is_not_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("before")
    assert run(*TRACE, "--compare", "queue=nonsense", "--html", "page.html").status == 2
    assert (tmp_path / "page.html").read_text() == "before"
    assert run(*TRACE, "--html", "page.html").status == 0
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert not list(tmp_path.glob(".*.part"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if find_browser() is None:
        pytest.skip("no chromium and chromedriver here")
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("is_dark", [False, True])
def test_a_browser_draws_the_page_within_its_width(
    width: int, is_dark: bool, browser: Browser, run: Run, tmp_path: Path
) -> None:
    run(*TRACE, "--compare", "queue=fifo,size", "--html", "page.html")
    browser.show(width, is_dark=is_dark)
    browser.open(tmp_path / "page.html")
    assert browser.run("return document.documentElement.dataset.ready") == "yes"
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    lines = browser.run("return [...document.querySelectorAll('#queue path.curve')].map(p => p.getTotalLength())")
    # A line for the mean and one for the peak of each setting, each across the drawing.
    assert len(lines) == 4
    assert min(lines) > width / 4
    assert browser.run("return document.querySelectorAll('#comparison tbody tr').length") == 2
    colours = browser.run(
        "const c = document.querySelector('#lanes canvas');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; const seen = new Set();"
        "for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);"
        "return [...seen]"
    )
    busy = "88,166,232" if is_dark else "31,111,178"
    assert busy in colours
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(15, 20, 25)" if is_dark else "rgb(255, 255, 255)"
    )


def test_a_browser_shows_texts_of_users_as_texts(browser: Browser, run: Run, tmp_path: Path) -> None:
    browser.open(write_hostile_page(run, tmp_path))
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.run("return document.querySelector('#longest').textContent.includes('</script><img src=x')")
    assert browser.run("return document.querySelector('#title').textContent") == HOSTILE


def test_the_keyboard_moves_through_the_changes_of_a_slot_and_opens_the_table(
    browser: Browser, run: Run, tmp_path: Path
) -> None:
    write_scenario(tmp_path, "r1")
    run("simulate", "scenario.json", "--html", "page.html")
    browser.open(tmp_path / "page.html")
    browser.run("document.querySelector('#lanes canvas').focus()")
    output = "return document.querySelector('#lanes output').textContent"
    assert browser.run(output) == "a-1, 0 s to 1.5 min: ready, 100.0 % used, by r1"
    browser.press("ArrowRight")
    assert browser.run(output) == "a-1, 1.5 min: empty"
    browser.run("document.querySelector('#lanes details').open = true")
    script = "return document.querySelector('#lanes tbody') && document.querySelector('#lanes tbody').textContent"
    wanted = "a-10 s1.5 minready100.0 %r1"
    assert browser.run("return new Promise(done => requestAnimationFrame(() => done(1)))") == 1
    assert browser.run(script) == wanted
