"""Features of the client over HTTP only: credentials, connections, and what it does not need."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from leasehold import BadCredentials, Client, NotAnswered, Unavailable
from leasehold.client.http.channel import HttpChannel
from tests.client.intake import Access, Document, FakeIntake, a_row, accept

KEY = "ci:" + "k" * 43 + "@a-cluster"


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("http://leasehold.example", {"token": "t" * 43}, "expected https for a token or a key"),
        ("http://leasehold.example", {"key": KEY}, "expected https for a token or a key"),
        ("https://ada:secret@leasehold.example", {}, "expected no user in it"),
        ("http://127.0.0.1:1", {"token": "t", "key": KEY}, "expected either a token or the key"),
        ("http://127.0.0.1:1", {"token": "a b"}, "printable ASCII"),
        ("redis://127.0.0.1:1/0", {"token": "t"}, "expected the URL of an HTTP API"),
    ],
)
def test_credentials_that_cannot_be_sent_safely_are_refused(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadCredentials, match=text) as caught:
        Client(url, **options)
    assert "secret" not in str(caught.value)
    assert "k" * 43 not in str(caught.value)


def test_a_redirect_gets_no_credentials() -> None:
    seen: list[tuple[str | None, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.headers["Host"], self.headers["Authorization"]))
            self.send_response(302 if self.server is first else 200)
            self.send_header("Location", f"http://127.0.0.1:{other.server_port}/login")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Handler) as first, HTTPServer(("127.0.0.1", 0), Handler) as other:
        for server in (first, other):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        with Client(f"http://127.0.0.1:{first.server_port}", token="t" * 43) as client:
            client.now()
            with pytest.raises(Unavailable, match="302"):
                client.get("r1")
        for server in (first, other):
            server.shutdown()
    assert seen == [(f"127.0.0.1:{first.server_port}", f"Bearer {'t' * 43}")] * 2


@pytest.mark.parametrize("url", ["http://", "http://a:port", "https://"])
def test_a_malformed_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(Unavailable, match="URL"):
        Client(url)


def test_a_wrong_token_is_refused(http_access: Access, intake: FakeIntake) -> None:
    with http_access.open(token="wrong") as client:
        with pytest.raises(BadCredentials):
            client.reserve(id="r1", system="s")
        with pytest.raises(BadCredentials):
            client.get("r1")
    assert intake.seen == []


def test_the_token_comes_from_the_environment(
    http_access: Access, intake: FakeIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_CONSOLE__TOKEN", http_access.token)
    with Client(http_access.url) as client:
        assert client.reserve(id="r1", system="s").id == "r1"


def test_a_principal_proves_itself_with_its_key_and_keeps_keys_of_reservations(
    http_access: Access, intake: FakeIntake
) -> None:
    intake._redis.set("leasehold:cluster", "a-cluster")
    with http_access.open(key=http_access.add_principal("shop")) as client:
        client.reserve(id="keyed", system="s")
        key = client.find_key("keyed")
        assert key is not None
        client.renew("keyed", 1)
    (_, submitted), (_, renewed) = intake.seen
    assert (submitted["key_hash"] is not None, renewed["key"]) == (True, key)
    assert key not in str(submitted)


def test_requests_share_a_connection_and_a_lost_one_is_replaced(http_access: Access, intake: FakeIntake) -> None:
    with http_access.open() as client:
        client.reserve(id="r1", system="s")
        (kept,) = list_connections(client)
        client.get("r1")
        assert list_connections(client) == [kept]
        # As a server or a proxy does that ends an idle connection.
        kept._connection._network_stream.get_extra_info("socket").shutdown(2)
        assert client.reserve(id="r2", system="s").id == "r2"
        assert list_connections(client) != [kept]


def list_connections(client: Client) -> list[Any]:
    channel: HttpChannel = client._wire.channel
    pool: Any = channel._client._transport
    return list(pool._pool.connections)


def test_a_request_is_repeated_under_its_id_if_its_connection_is_lost(
    http_access: Access, intake: FakeIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, failures = httpx.AsyncClient.send, iter([httpx.ReadError, httpx.ConnectError, None])
    sent: list[str | None] = []

    async def fail_twice(client: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
        sent.append(request.headers.get("Idempotency-Key"))
        if failure := next(failures, None):
            raise failure("lost")
        return await send(client, request, **options)

    monkeypatch.setattr(httpx.AsyncClient, "send", fail_twice)
    with http_access.open() as client:
        assert client.renew("r1", 1).ok
    assert intake.verbs() == ["renew"]
    assert (len(sent), len(set(sent))) == (3, 1)


def test_no_proxy_of_the_environment_is_used(
    http_access: Access, intake: FakeIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with http_access.open() as client:
        assert client.renew("r1", 1).ok
        client.now()


def test_a_request_that_outlasts_one_response_is_sent_again_with_its_id(
    http_access: Access, intake: FakeIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.client.http.wire.SLICE_SECONDS", 0.2)
    may_answer = threading.Event()
    intake.handler = lambda verb, document: accept(verb, document) if may_answer.is_set() else None
    with http_access.open() as client:
        threading.Timer(1.0, may_answer.set).start()
        assert client.reserve(id="r1", system="s", timeout=30).id == "r1"
        may_answer.clear()
        with pytest.raises(NotAnswered, match=r"no answer to submit of r2 for 0\.5 s: messages wait"):
            client.reserve(id="r2", system="s", timeout=0.5)
    ids = {document["id"]: set[str]() for _, document in intake.seen}
    for _, document in intake.seen:
        ids[document["id"]].add(document["request"])
    assert {name: len(each) for name, each in ids.items()} == {"r1": 1, "r2": 1}


def test_a_server_that_is_no_leasehold_is_reported(intake: FakeIntake) -> None:
    with Client("http://127.0.0.1:1", token="t") as client:
        for ask in (client.ping, lambda: client.reserve(id="r1", system="s", timeout=0.2)):
            with pytest.raises(Unavailable, match=r"the HTTP API at http://127\.0\.0\.1:1 cannot be reached"):
                ask()


def test_checks_of_queues_need_redis(http_access: Access) -> None:
    with http_access.open() as client, pytest.raises(Unavailable, match="URL of the broker's Redis"):
        _ = client.probe


def test_any_request_of_the_protocol_is_sent_and_its_answer_returned(http_access: Access, intake: FakeIntake) -> None:
    refusal: Document = {"ok": False, "errors": [{"index": 0, "path": "slot", "expected": "a slot", "got": "x"}]}
    intake.handler = lambda _verb, _document: refusal
    with http_access.open() as client, Client(intake.url, timeout=5) as direct:
        assert client.ask("drain", {"slot": "x"}) == direct.ask("drain", {"slot": "x"}) == refusal


def test_the_client_over_http_needs_neither_redis_nor_celery_nor_the_extra() -> None:
    code = (
        "import sys; from leasehold import Client; Client('http://127.0.0.1:1', token='t')\n"
        "print(sorted({'redis', 'celery', 'kombu', 'starlette', 'uvicorn', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_command_uses_the_url_of_an_http_api(http_access: Access, intake: FakeIntake, tmp_path: Path) -> None:
    intake.publish(a_row("r1"))
    done = subprocess.run(
        [sys.executable, "-m", "leasehold.cli", "list", "--json"],
        env={
            "PATH": "",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "LEASEHOLD_BROKER__URL": http_access.url,
            "LEASEHOLD_CONSOLE__TOKEN": http_access.token,
        },
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert '"r1"' in done.stdout


def test_each_response_has_cluster_time(http_access: Access, intake: FakeIntake) -> None:
    with http_access.open() as client:
        intake._redis.set("leasehold:clock", "0")
        # A measurement over a network is exact to the time of the round trip.
        assert abs(client.now() - float(intake._redis.time()[0])) < 60
