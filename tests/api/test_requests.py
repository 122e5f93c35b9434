"""Requests to workers over HTTP: their documents, their ids, and the status of each answer."""

import threading
from collections.abc import Callable

import pytest
import redis

from scheduler.model.principals import ROLES_BY_VERB
from scheduler.ports import StoredPrincipal
from scheduler.protocol.http_routes import LISTS, PROBLEM_TYPE, ROUTES
from scheduler.protocol.signing import make_key
from scheduler.protocol.verbs import Role
from testbed.processes import wait_for
from tests.api.caller import Caller
from tests.client.intake import Document, FakeIntake, accept
from tests.console.served import Console
from tests.console.test_gate import basic

INTERNAL = {"request", "reply_to"}


def sent(intake: FakeIntake) -> list[tuple[str, Document]]:
    """Return the verbs and documents that the intake got, each request once."""
    found = {document["request"]: (verb, document) for verb, document in intake.seen}
    return [
        (verb, {name: value for name, value in each.items() if name not in INTERNAL}) for verb, each in found.values()
    ]


def enter_as(console: Console, name: str, role: Role) -> Caller:
    """Return a caller that is the principal `name`."""
    key = make_key()
    console.add(StoredPrincipal(name=name, role=role, key=key, created_at=0.0))
    # The server reads the principals at most once a second.
    wait_for(lambda: name in console.app.state.gate.principals.read().principals, "the principal")
    return Caller(console.settings.console.port, {"Authorization": basic(name, key)})


@pytest.fixture
def api_of(api: Caller, console: Console) -> Callable[[str], Caller]:
    """A function that returns a caller for a verb: the local token is an operator's, which takes no command."""
    return lambda verb: api if "operator" in ROLES_BY_VERB[verb] else enter_as(console, "a/b", "host")


def test_every_verb_of_the_queue_has_a_resource() -> None:
    assert ROUTES.keys() == ROLES_BY_VERB.keys()


def test_a_submission_is_answered_with_the_place_of_the_reservation(api: Caller, intake: FakeIntake) -> None:
    reply = api.post("/reservations", {"id": "a/b", "system": "s"})
    assert (reply.status, reply.headers["Location"]) == (201, "/api/v1/reservations/a%2Fb")
    assert reply.content["phase"] == "pending"
    assert sent(intake) == [("submit", {"id": "a/b", "system": "s"})]


def test_a_submission_without_an_id_gets_one(api: Caller, intake: FakeIntake) -> None:
    replies = [api.post("/reservations", {"system": "s", **more}) for more in ({}, {"id": None})]
    assert [reply.status for reply in replies] == [201, 201]
    made = [document["id"] for _, document in sent(intake)]
    assert made == [reply.content["reservation"] for reply in replies]
    assert len({*made}) == 2
    items = [{"system": "s"}, {"system": "s", "id": "mine"}, {"system": "s"}]
    api.post("/reservations", {"items": items})
    _, document = sent(intake)[-1]
    first, second, third = document["items"]
    assert second["id"] == "mine"
    assert len({first["id"], third["id"], *made}) == 4


def test_a_repeated_submission_gets_the_same_ids(api: Caller, console: Console, intake: FakeIntake) -> None:
    shop = enter_as(console, "shop", "producer")
    for caller in (api, api, shop):
        caller.post("/reservations", {"system": "s"}, Idempotency_Key="order 17")
        caller.post("/reservations", {"items": [{"system": "s"}, {"system": "s"}]}, Idempotency_Key="order 18")
    asked = [document.get("items", [document]) for _, document in intake.seen]
    ids = [tuple(item["id"] for item in items) for items in asked]
    assert ids[:2] == ids[2:4]
    assert len({name for names in ids for name in names}) == 6


@pytest.mark.parametrize("verb", sorted(ROUTES.keys() - {"submit", "query", "conditions", "preview", "apply", "rules"}))
def test_the_field_in_the_path_and_the_body_make_the_document(
    verb: str, api_of: Callable[[str], Caller], intake: FakeIntake
) -> None:
    """An id may contain a slash, which is %2F in the path."""
    route = ROUTES[verb]
    intake.handler = lambda _verb, _document: {"ok": True, "phase": "pending"}
    path = route.path.replace(f"{{{route.field}}}", "a%2Fb")
    reply = api_of(verb).send(route.method, path, {"token": 7} if route.has_body else None)
    assert reply.status == 200, reply
    more: Document = {"token": 7} if route.has_body else {}
    assert sent(intake) == [(verb, {str(route.field): "a/b", **more})]


@pytest.mark.parametrize("verb", sorted(LISTS))
def test_a_list_of_documents_is_one_request(verb: str, api_of: Callable[[str], Caller], intake: FakeIntake) -> None:
    items = [{"id": "r1"}, {"id": "r2"}]
    reply = api_of(verb).post(LISTS[verb].path, {"items": items})
    assert reply.status == 200
    assert [each["ok"] for each in reply.content["results"]] == [True, True]
    assert sent(intake) == [(verb, {"items": items})]


def test_a_refused_item_does_not_refuse_the_others(api: Caller, intake: FakeIntake) -> None:
    fault = {"index": 1, "path": "system", "expected": "a system or a pool", "got": "null"}
    results = [{"ok": True, "reservation": "r1"}, {"ok": False, "errors": [fault]}]
    intake.handler = lambda _verb, _document: {"ok": False, "results": results}
    reply = api.post("/reservations", {"items": [{"id": "r1"}, {"id": "r2"}]})
    assert (reply.status, reply.content) == (200, {"ok": False, "results": results})


def test_a_repeated_request_has_the_same_id_for_workers(api: Caller, console: Console, intake: FakeIntake) -> None:
    """The same key of another verb or another caller is another request."""
    for _ in range(2):
        api.post("/reservations", {"id": "r1", "system": "s"}, Idempotency_Key="order 17")
    api.post("/reservations", {"id": "r1", "system": "s", "request": "order 17"})
    api.post("/reservations/r1/cancel", Idempotency_Key="order 17")
    enter_as(console, "shop", "producer").post("/reservations", {"id": "r1", "system": "s"}, Idempotency_Key="order 17")
    ids = [document["request"] for _, document in intake.seen]
    assert len(ids) == 5
    assert (len(set(ids[:3])), len(set(ids))) == (1, 3)


def test_an_answer_goes_to_this_server_only(api: Caller, intake: FakeIntake, redis_client: redis.Redis) -> None:
    api.post("/reservations", {"id": "r1", "system": "s", "reply_to": "leasehold:reply:mine"})
    assert intake.seen[0][1]["reply_to"] != "leasehold:reply:mine"
    assert not redis_client.exists("leasehold:reply:mine")


def fault_of(path: str, expected: str, code: str | None = None) -> Document:
    more = {} if code is None else {"code": code}
    return {"ok": False, "errors": [{"index": 0, "path": path, "expected": expected, "got": "this", **more}]}


STATUSES = [
    # What the worker refuses -> status
    (fault_of("priority", "a number >= 0"), 400),
    # The status does not depend on the texts of a fault.
    (fault_of("key", "a text"), 400),
    (fault_of("token", "a whole number"), 400),
    (fault_of("reservation", "a value"), 400),
    (fault_of("any", "any", "conflict"), 409),
    (fault_of("any", "any", "a code of a later version"), 400),
    (fault_of("reservation", "a name (letters, digits and ._:@/+-, at most 200 characters)"), 400),
    (fault_of("principal", "a principal with the role operator", "forbidden"), 403),
    (fault_of("signature", "a signature of a known principal", "forbidden"), 403),
    (fault_of("key", "the key of r1", "forbidden"), 403),
    (fault_of("account", "one of the accounts of shop: ci", "forbidden"), 403),
    (fault_of("slot", "lab-1, the slot of this principal", "forbidden"), 403),
    (fault_of("reservation", "a known reservation", "unknown"), 404),
    (fault_of("reservation", "a reservation that shop may act on", "unknown"), 404),
    (fault_of("token", "the current token of r1", "conflict"), 409),
    (fault_of("reservation", "a reservation that has not ended", "conflict"), 409),
    (fault_of("request", "an id that no other principal has used", "conflict"), 409),
]


@pytest.mark.parametrize(("answer", "status"), STATUSES)
def test_the_status_of_a_refusal_names_its_kind(answer: Document, status: int, api: Caller, intake: FakeIntake) -> None:
    intake.handler = lambda _verb, _document: answer
    reply = api.post("/reservations/r1/priority", {"priority": 5})
    assert (reply.status, reply.headers["Content-Type"]) == (status, "application/problem+json")
    assert (reply.content["status"], reply.content["errors"]) == (status, answer["errors"])
    assert reply.content["type"].startswith("urn:problem-type:leasehold:")


def test_a_request_without_an_answer_may_be_repeated(api: Caller, intake: FakeIntake) -> None:
    intake.handler = lambda _verb, _document: None
    reply = api.post("/reservations?timeout=0.3", {"id": "r1", "system": "s"})
    assert (reply.status, reply.content["type"]) == (504, "urn:problem-type:leasehold:not-answered")
    assert "asking again with the same id is safe" in reply.content["detail"]


def test_an_overloaded_service_names_the_time_of_the_next_attempt(api: Caller, intake: FakeIntake) -> None:
    shed = {**fault_of(".", "a queue that is answered within 1 s"), "retry_after": 0.05}
    intake.handler = lambda _verb, _document: shed
    reply = api.post("/reservations?timeout=0.5", {"id": "r1", "system": "s"})
    assert (reply.status, reply.content["type"]) == (503, "urn:problem-type:leasehold:overloaded")
    assert int(reply.headers["Retry-After"]) > 0


BAD = [
    # method, path, body, headers -> status, path of the fault
    ("POST", "/reservations", b"{", {}, 400, "body"),
    ("POST", "/reservations", b"[1]", {}, 400, "body"),
    ("POST", "/reservations", b"\xff", {}, 400, "body"),
    ("POST", "/reservations", b"[" * 100_000, {}, 400, "body"),
    ("POST", "/reservations", b"[" + b"[]," * 100_000 + b"[]]", {}, 400, "body"),
    ("POST", "/reservations/query", b'{"ids":' + b"[" * 30 + b"]" * 30 + b"}", {}, 400, "body"),
    ("POST", "/reservations", b"{}", {"Content-Type": "text/plain"}, 415, None),
    ("POST", "/reservations", b" " * (2 * 1024 * 1024 + 1), {}, 413, None),
    ("POST", "/reservations", b"{}", {"Idempotency-Key": "k" * 201}, 400, "request"),
    ("POST", "/reservations", b'{"request": 5}', {}, 400, "request"),
    ("POST", "/reservations?timeout=soon", b"{}", {}, 400, "timeout"),
    ("POST", "/reservations?timeout=1e9", b"{}", {}, 400, "timeout"),
    ("POST", "/reservations?wait=1", b"{}", {}, 400, "wait"),
    ("POST", "/reservations/r1/cancel", b'{"reservation": "r2"}', {}, 400, "reservation"),
    ("GET", "/slots/a/leases/more", None, {}, 404, None),
    ("GET", "/nothing", None, {}, 404, None),
    ("PATCH", "/reservations", b"{}", {}, 405, None),
    ("POST", "/reservations/changes", b'{"marks": []}', {}, 400, "marks"),
    ("POST", "/reservations/changes", b'{"marks": {"a": "1"}, "wait": true}', {}, 400, "wait"),
    ("POST", "/reservations/changes", b'{"marks": {"a": "1"}, "timeout": 9}', {}, 400, "timeout"),
    ("POST", "/reservations/changes?wait=9", b'{"marks": {"a": "1"}}', {}, 400, "wait"),
    ("POST", "/slots/a/heartbeat", b'{"machine": 5}', {}, 400, "machine"),
]


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "fault"), BAD)
def test_bad_input_is_refused_before_it_is_sent(
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    status: int,
    fault: str | None,
    api: Caller,
    intake: FakeIntake,
) -> None:
    reply = api.send(method, path, body, headers)
    assert reply.status == status, reply
    if fault is not None:
        assert [each for each, _ in reply.faults] == [fault]
    assert intake.seen == []


PROBLEMS = [
    # method, path, headers -> status, last part of the type
    ("GET", "/status", {"Host": "evil.example"}, 421, "host"),
    ("POST", "/reservations", {"Origin": "http://evil.example"}, 403, "forbidden"),
    ("POST", "/reservations", {"Content-Length": str(3 * 1024 * 1024)}, 413, "too-large"),
    ("GET", "/status", {"Authorization": "Bearer wrong"}, 401, "unknown-caller"),
    ("GET", "/nothing", {}, 404, "unknown"),
    ("PATCH", "/reservations", {}, 405, "method"),
    ("POST", "/reservations", {"Content-Type": "text/plain"}, 415, "media-type"),
]


@pytest.mark.parametrize(("method", "path", "headers", "status", "kind"), PROBLEMS)
def test_every_error_is_a_problem_with_a_type(
    method: str, path: str, headers: dict[str, str], status: int, kind: str, api: Caller
) -> None:
    reply = api.send(method, path, None if method == "GET" else {}, headers)
    assert (reply.status, reply.headers["Content-Type"]) == (status, PROBLEM_TYPE)
    assert (reply.content["type"], reply.content["status"]) == (f"urn:problem-type:leasehold:{kind}", status)


def test_too_many_failed_logins_are_a_problem(api: Caller) -> None:
    replies = [api.get("/status", Authorization="Bearer wrong") for _ in range(11)]
    assert replies[-1].content["type"] == "urn:problem-type:leasehold:too-many"
    assert int(replies[-1].headers["Retry-After"]) > 0


def test_a_role_limits_what_a_caller_may_do(console: Console, intake: FakeIntake) -> None:
    reader, producer = enter_as(console, "eye", "reader"), enter_as(console, "shop", "producer")
    assert reader.post("/reservations", {"id": "r1", "system": "s"}).status == 403
    assert producer.post("/slots/linux-1/drain").status == 403
    assert (reader.get("/slots").status, producer.get("/slots").status) == (200, 200)
    assert intake.seen == []


def test_a_host_may_send_heartbeats_of_its_own_slot_only(console: Console, redis_client: redis.Redis) -> None:
    redis_client.set("leasehold:cluster", "c-1")
    host = enter_as(console, "lab-1", "host")
    assert host.post("/slots/lab-2/heartbeat", {"machine": "m1"}).status == 403
    assert host.post("/slots/lab-1/heartbeat", {"machine": "m1", "version": "0:7:1"}).status == 200
    assert redis_client.exists("leasehold:heartbeat:lab-1")
    assert not redis_client.exists("leasehold:heartbeat:lab-2")
    assert host.get("/reservations").status == 403


def test_a_caller_without_credentials_gets_nothing(console: Console, intake: FakeIntake) -> None:
    unknown = Caller(console.settings.console.port, {})
    for method, path in (("GET", "/status"), ("GET", "/openapi.json"), ("POST", "/reservations")):
        assert unknown.send(method, path, {} if method == "POST" else None).status == 401
    assert intake.seen == []


def test_the_rules_are_routed(api: Caller, intake: FakeIntake) -> None:
    intake.handler = lambda _verb, _document: {"ok": True, "version": 2, "changed": True}
    rules: Document = {"pools": {}}
    assert api.get("/rules?history=5").status == 200
    assert api.post("/rules/preview", {"rules": rules}).status == 200
    assert api.send("PUT", "/rules", {"rules": rules, "expected": 2}).status == 200
    assert sent(intake) == [
        ("rules", {"history": 5}),
        ("preview", {"rules": rules}),
        ("apply", {"rules": rules, "expected": 2}),
    ]


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let at most twelve requests of a server wait for workers."""
    monkeypatch.setattr("leasehold.api.asking.MOST_WAITING", 12)


@pytest.mark.usefixtures("few_places")
def test_the_waiting_requests_of_one_caller_leave_places_for_others(console: Console, intake: FakeIntake) -> None:
    reader, producer = enter_as(console, "eye", "reader"), enter_as(console, "shop", "producer")
    intake.handler = lambda verb, document: None if verb == "query" else accept(verb, document)
    found: list[int] = []

    def ask() -> None:
        found.append(reader.post("/reservations/query?timeout=20", {"ids": ["r1"]}).status)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(found) == 3, "the refusals of what exceeds a quarter of the places")
    assert found == [503] * 3
    assert producer.post("/reservations", {"id": "r1", "system": "s"}).status == 201
    intake.handler = accept
    for thread in threads:
        thread.join()
    assert found == [503] * 3 + [200] * 3


@pytest.mark.parametrize("verb", sorted(verb for verb, route in ROUTES.items() if route.has_body))
def test_no_body_is_read_before_the_right_of_the_caller_is_checked(
    verb: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = ROUTES[verb]
    roles: tuple[Role, ...] = ("reader", "host", "producer")
    other = next(role for role in roles if role not in ROLES_BY_VERB[verb])
    caller = enter_as(console, "other", other)
    monkeypatch.setattr("msgspec.json.decode", None)
    path = route.path.replace(f"{{{route.field}}}", "a")
    assert caller.send(route.method, path, b"{}").status == 403


def test_an_address_with_very_many_parameters_is_refused(api: Caller) -> None:
    assert api.get(f"/reservations?{'&'.join(['phase=x'] * 201)}").status == 400


def test_many_requests_wait_at_the_same_time(api: Caller, intake: FakeIntake) -> None:
    may_answer = threading.Event()
    intake.handler = lambda verb, document: accept(verb, document) if may_answer.wait(20) else None
    found: list[int] = []

    def submit(number: int) -> None:
        found.append(api.post("/reservations", {"id": f"r{number}", "system": "s"}).status)

    threads = [threading.Thread(target=submit, args=[number]) for number in range(12)]
    for each in threads:
        each.start()
    wait_for(lambda: api.get("/status").status == 200, "a read while requests wait")
    may_answer.set()
    for each in threads:
        each.join()
    assert found == [201] * 12
