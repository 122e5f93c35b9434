"""New events reach the open pages by the stream: read and encoded once, whatever the number of pages."""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from leasehold.console.pages.events import MOST_NEW, encode_rows
from scheduler.model.events import Event
from scheduler.ports import EventFilter
from tests.console.served import Console


@contextmanager
def listening(console: Console) -> Iterator[http.client.HTTPResponse]:
    """Open the stream of a page Events, and read `hello`."""
    with closing(http.client.HTTPConnection("127.0.0.1", console.settings.console.port, timeout=20)) as connection:
        connection.request("GET", "/live?topic=events", headers={"Authorization": f"Bearer {console.token}"})
        answer = connection.getresponse()
        with answer:
            assert read_block(answer)[0] == "hello"
            yield answer


def read_block(answer: http.client.HTTPResponse) -> tuple[str, bytes]:
    """Return the name and the data of the next event that is no status."""
    fields: dict[str, bytes] = {}
    while True:
        line = answer.readline()
        assert line, "the stream has ended"
        name, _, value = line.rstrip(b"\n").partition(b": ")
        if name in {b"event", b"data"}:
            fields[name.decode()] = value
        elif line == b"\n" and fields.get("event", b"status") != b"status":
            return fields["event"].decode(), fields["data"]


def store_event(console: Console, **fields: Any) -> None:
    with console.store.transaction() as transaction:
        transaction.append_events([Event(**{"at": 1.0, "name": "slot_ready", "cause": "cloud", **fields})])


def test_all_pages_get_the_same_rows_of_one_read(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[list[Event]] = []
    read_events = console.store.read_events

    def note(which: EventFilter) -> list[Event]:
        reads.append(read_events(which))
        return reads[-1]

    monkeypatch.setattr(console.store, "read_events", note)
    with ExitStack() as pages:
        streams = [pages.enter_context(listening(console)) for _ in range(3)]
        store_event(console, slot="s-1", reservation="<b>r1</b>")
        found = [read_block(each) for each in streams]
    assert found[0] == found[1] == found[2]
    assert len([found for found in reads if found]) == 1
    update = json.loads(found[0][1])
    (row,) = update["rows"]
    assert (row["slot"], row["reservation"], row["name"], row["number"]) == (
        "s-1",
        "<b>r1</b>",
        "slot_ready",
        update["newest"],
    )
    assert "&lt;b&gt;r1&lt;/b&gt;" in row["html"]
    assert "<b>r1" not in row["html"]


def test_a_page_misses_no_event_between_its_answer_and_its_stream(console: Console) -> None:
    store_event(console, slot="s-1")
    browser = console.entered()
    assert 'data-newest="1"' in browser.get("/events").text
    store_event(console, slot="s-2")
    with listening(console) as stream:
        assert "s-2" in browser.get("/events/new?after=1").text
        store_event(console, slot="s-3")
        assert [row["slot"] for row in json.loads(read_block(stream)[1])["rows"]] == ["s-3"]


def test_many_events_are_left_to_the_page() -> None:
    events = [Event(at=1.0, name="slot_ready", cause="cloud", number=number) for number in range(1, MOST_NEW + 2)]
    _, _, data = encode_rows("", events).partition(b"data: ")
    assert json.loads(data) == {"newest": MOST_NEW + 1, "rows": None}
