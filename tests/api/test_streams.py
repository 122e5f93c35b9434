"""Streams: the history with resumption, and the changed rows of the view."""

import http.client
from contextlib import closing
from itertools import islice

import pytest
import redis

from leasehold.web.server_sent import Places
from scheduler.model.events import Event
from testbed.processes import wait_for
from tests.api.caller import Caller
from tests.api.test_requests import enter_as
from tests.builders import a_slot
from tests.client.intake import FakeIntake, a_row
from tests.console.served import Console


def append(console: Console, *names: str) -> None:
    """Store events, as operations do."""
    with console.store.transaction() as transaction:
        transaction.append_events(
            [Event(at=1.0, name="reservation_leased", cause="tick", reservation=name) for name in names]
        )


def test_the_streams_of_one_caller_leave_places_for_others(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    monkeypatch.setattr(console.app.state.backend, "streams", Places(4))
    eye, ada = enter_as(console, "eye", "reader"), enter_as(console, "ada", "reader")
    with eye.stream("/stream") as blocks:
        next(blocks)
        refused = eye.get("/stream")
        assert (refused.status, refused.content["type"]) == (429, "urn:problem-type:leasehold:too-many")
        with ada.stream("/events?newest=true"):
            pass
    wait_for(lambda: not console.app.state.backend.streams.count("eye"), "the end of the stream")


def test_the_history_is_read_in_pages(api: Caller, console: Console) -> None:
    append(console, "r1", "r2", "r3")
    first = api.get("/events?limit=2").content
    assert [each["reservation"] for each in first["items"]] == ["r1", "r2"]
    second = api.get(f"/events?limit=2&cursor={first['next']}").content
    assert ([each["reservation"] for each in second["items"]], second["next"]) == (["r3"], None)
    newest = api.get("/events?newest=true&limit=1").content["items"]
    assert [(each["reservation"], each["cause"]) for each in newest] == [("r3", "tick")]
    assert [each["reservation"] for each in api.get("/events?reservation=r2").content["items"]] == ["r2"]


def test_a_stream_of_events_continues_after_the_last_one_that_was_received(api: Caller, console: Console) -> None:
    append(console, "r1", "r2")
    with api.stream("/events") as events:
        received = list(islice(events, 2))
        append(console, "r3")
        received += islice(events, 1)
    assert [(name, data["reservation"]) for _, name, data in received] == [
        ("reservation_leased", name) for name in ("r1", "r2", "r3")
    ]
    append(console, "r4", "r5")
    with api.stream("/events", Last_Event_ID=str(received[1][0])) as events:
        assert [data["reservation"] for _, _, data in islice(events, 3)] == ["r3", "r4", "r5"]


def test_a_stream_of_the_newest_events_begins_now_and_is_filtered(api: Caller, console: Console) -> None:
    append(console, "r1")
    with api.stream("/events?newest=true&reservation=r2") as events:
        append(console, "r1", "r2")
        ((number, _, data),) = islice(events, 1)
    assert (number, data["reservation"]) == (str(data["number"]), "r2")


def test_an_event_id_that_is_no_number_is_refused(api: Caller) -> None:
    reply = api.get("/events", Accept="text/event-stream", Last_Event_ID="x")
    assert (reply.status, reply.faults) == (400, [("Last-Event-ID", "the number of an event")])


def test_the_stream_of_rows_begins_with_the_revision_and_has_each_change(api: Caller, intake: FakeIntake) -> None:
    with api.stream("/stream") as events:
        _, name, hello = next(events)
        assert (name, hello["valid"]) == ("hello", True)
        intake.publish(a_slot("linux-1", version=1), a_row("r1", key_hash="0" * 64))
        _, name, changed = next(events)
    assert (name, changed["since"]) == ("rows", hello["revision"])
    assert [each["id"] for each in changed["slots"] + changed["reservations"]] == ["linux-1", "r1"]
    assert "key_hash" not in str(changed)


@pytest.mark.parametrize("path", ["/api/v1/stream", "/api/v1/events", "/live?topic=fleet"])
def test_a_request_for_the_head_of_a_stream_ends(api: Caller, path: str) -> None:
    headers = {**api.headers, "Accept": "text/event-stream"}
    with closing(http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)) as connection:
        for _ in range(2):
            connection.request("HEAD", path, headers=headers)
            response = connection.getresponse()
            assert (response.status, response.getheader("Content-Type")) == (200, "text/event-stream; charset=utf-8")
            response.read()


def test_an_unknown_topic_is_refused(api: Caller) -> None:
    assert api.get("/stream?topic=nothing").faults[0][0] == "topic"


def test_a_host_gets_hints_of_its_own_slot_only(console: Console) -> None:
    host, anna = enter_as(console, "lab-1", "host"), enter_as(console, "anna", "operator")
    assert [each.get("/slots/lab-2/hint?wait=0").status for each in (host, anna)] == [403, 200]


def test_the_first_request_for_hints_is_answered_at_once_because_earlier_hints_were_missed(
    console: Console, redis_client: redis.Redis
) -> None:
    host = enter_as(console, "linux-1", "host")
    assert host.get("/slots/linux-1/hint?wait=20").content == {"changed": True, "commands": []}
    assert not host.get("/slots/linux-1/hint?wait=0.1").content["changed"]
    redis_client.publish("leasehold:host:linux-1", b"{}")
    assert host.get("/slots/linux-1/hint?wait=20").content["changed"]
