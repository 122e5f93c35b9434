"""Requests that no program sends on purpose get a 4xx with its reason, and no failure of the server."""

import base64
import http.client
import json
from collections.abc import Mapping
from contextlib import closing

import pytest

from tests.api.caller import Caller
from tests.builders import a_request
from tests.client.intake import FakeIntake, a_row
from tests.console.served import Console

DEEP = "[" * 50_000
HUGE = "9" * 22
LONGEST = "9" * 5000
"""Python refuses to read more than 4,300 digits."""


def encode(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


CURSORS = [
    *("%00", "%ff", "x", encode(DEEP), encode(f"[{HUGE}]"), encode(f"[{LONGEST}]"), encode("[1e400]")),
    *map(encode, ("[null]", "[true]", "{}", '["a"]', '["a",1]', "[1.5]")),
]
BODIES = [
    *(b"\xff", b'{"a": "\xed\xa0\x80"}', b'{"a": "\\ud800"}', b'{"a": 1e400}', b"[]", b"\x00"),
    *(b'{"request": {"a": []}}', b'{"id": 1, "request": "\\n"}'),
    *(DEEP.encode(), b'{"a": %s}' % LONGEST.encode(), b'{"request": %s}' % HUGE.encode()),
]


@pytest.mark.parametrize("path", ["/events", "/reservations", "/slots"])
def test_a_cursor_of_another_origin_is_refused(api: Caller, path: str) -> None:
    for cursor in CURSORS:
        found = api.get(f"{path}?cursor={cursor}")
        assert (found.status, [each["path"] for each in found.content["errors"]]) == (400, ["cursor"]), cursor


def test_a_stream_is_not_resumed_from_what_is_no_event(api: Caller) -> None:
    for number in ("-1", "", "x", "1.5", HUGE, LONGEST, "\xb2", "%00"):
        found = api.get("/events", Accept="text/event-stream", Last_Event_ID=number)
        assert (found.status, [each["path"] for each in found.content["errors"]]) == (400, ["Last-Event-ID"]), number


def test_items_that_are_no_list_reach_a_worker_which_refuses_them(api: Caller, intake: FakeIntake) -> None:
    refusal = {"ok": False, "errors": [{"index": 0, "path": "items", "expected": "a list", "got": "x"}]}
    intake.handler = lambda _verb, _document: refusal
    for path in ("/reservations", "/reservations/renew", "/slots/cordon"):
        for items in ("null", "1", '"x"', "{}", f"[{HUGE}]", "[null]", "[]", "[[]]"):
            found = api.send("POST", path, f'{{"items": {items}}}'.encode())
            assert found.faults == [("items", "a list")], items


def test_a_body_that_cannot_be_read_is_refused(api: Caller) -> None:
    for body in BODIES:
        assert api.send("PUT", "/accounts/ci", body).status in {200, 400}, body
        assert api.send("POST", "/reservations/changes", body).status == 400, body


def test_an_address_that_is_none_is_refused(console: Console) -> None:
    targets = (
        "[",
        "//[",
        "/[/",
        "/api/v1/[",
        "/api/v1/slots/%5b%00%ff",
        "/%2f%2f[?token=x",
        "/about?token=%ff",
        "*",
        "/%",
    )
    for target in targets:
        for origin in (None, "http://[", "http://[::1", "null", "\xff", "http://a:b:c"):
            for method, more in (
                ("GET", {"Accept": "text/html"}),
                ("POST", {"Authorization": f"Bearer {console.token}"}),
            ):
                sent = {**more, **({} if origin is None else {"Origin": origin})}
                assert 300 <= find_status(console, method, target, sent) < 500, (method, target, origin)


def test_a_form_that_cannot_be_read_is_refused(console: Console) -> None:
    browser = console.entered()
    headers = {"X-CSRF-Token": browser.csrf(), "Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"\xff\xfe", b"&".join(b"a%d=" % number for number in range(10_000))):
        for path in ("/what-if/preview", "/what-if/apply", "/reservations/bulk", "/reservations/bulk/preview"):
            assert browser.send("POST", path, body, headers).status == 400, path
        assert browser.send("POST", "/login", body[:10_000], headers).status == 401


def test_rules_that_are_no_toml_are_refused(console: Console) -> None:
    browser = console.entered()
    csrf = browser.csrf()
    for rules in ("a = " + "[" * 5000, f"a = {LONGEST}", "a = " + "{b=" * 5000, "\x00", "a"):
        answer = browser.post("/what-if/preview", {"rules": rules}, X_CSRF_Token=csrf)
        assert "expected TOML" in answer.text, rules[:20]
    for expected in (LONGEST, HUGE, "-1", "\xb2"):
        assert browser.post("/what-if/apply", {"rules": "", "expected": expected}, X_CSRF_Token=csrf).status < 500


def find_status(console: Console, method: str, target: str, headers: Mapping[str, str]) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", console.settings.console.port, timeout=20)) as connection:
        connection.request(method, target, headers=dict(headers))
        return connection.getresponse().status


HOSTILE = "x\x1b[2J\x7f\x9b31m\u202eabc\u2066\u200e\u200f\u061c\u2028\ufeffü日"
RAW = frozenset(HOSTILE) - frozenset("x[2J31mabcü日")


def test_json_and_streams_have_no_raw_control_characters(api: Caller, intake: FakeIntake) -> None:
    with api.stream("/stream") as events:
        next(events)
        intake.publish(a_row("r1", request=a_request(tags={"team": HOSTILE}), reason=HOSTILE))
        (changed,) = next(data for _, _, data in events)["reservations"]
    assert changed["request"]["tags"] == {"team": HOSTILE}
    intake.handler = lambda _verb, _document: {
        "ok": False,
        "errors": [{"index": 0, "path": "a", "expected": HOSTILE, "got": HOSTILE}],
    }
    for path, text in (("/reservations/r1", HOSTILE), ("/reservations?limit=1", HOSTILE), ("/conditions", HOSTILE)):
        found = read_raw(api, path)
        assert not RAW & set(found), path
        assert json.dumps(text)[1:-1] in json.dumps(json.loads(found)), path


def read_raw(api: Caller, path: str) -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)) as connection:
        connection.request("GET", f"/api/v1{path}", headers=dict(api.headers))
        return connection.getresponse().read().decode()


def test_a_stream_has_no_raw_control_characters(api: Caller, intake: FakeIntake) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)) as connection:
        connection.request("GET", "/api/v1/stream", headers={**api.headers, "Accept": "text/event-stream"})
        response = connection.getresponse()
        response.readline()
        intake.publish(a_row("r1", reason=HOSTILE))
        line = next(line for line in iter(response.readline, b"") if b"r1" in line).decode()
        assert not RAW & set(line)
        response.close()
