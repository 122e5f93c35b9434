"""A generator of bad messages. Each message states where its refusal has to appear: in an answer or in the log."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Literal

from scheduler.model.command_schemas import SCHEMAS
from scheduler.protocol.names import QUEUE_NAMES, RESERVATIONS, task_name

Account = Literal["answer", "line", "count"]
Kind = Literal["wrong shape", "huge", "unknown task", "forged token", "replayed token", "forged id"]
JUNK: Final[list[Any]] = [
    *(None, True, False, 0, -1, 1.5, 10**400, float("nan"), float("inf"), "", " ", "\0", "\ud800", "x" * 5000),
    *([], {}, [[]], [{}], {"a": {"b": []}}, [1, 2, 3], {"": ""}, "null", "$(id)", "../../x", "'; DROP TABLE slots; --"),
]
"""Values of every JSON type, with extremes and strings that attack shells, paths and SQL."""


@dataclass(frozen=True)
class BadMessage:
    """A message for the list of a queue, and where its refusal has to appear.

    `account`: `answer`: an answer at `address`; `line`: a log line with `id`; `count`: a log line without an id.
    """

    queue: str
    text: str
    account: Account
    id: str
    what: str
    kind: Kind = "wrong shape"

    @property
    def address(self) -> str:
        return f"leasehold:reply:{self.id}"


def an_envelope(queue: str, task: str, body: object, name: str) -> dict[str, Any]:
    """Return a task message as kombu writes it to a Redis list; `body` becomes JSON in base64."""
    return {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "any", "task": task, "id": name, "retries": 0, "timelimit": [None, None]},
        "properties": {
            "delivery_mode": 2,
            "delivery_tag": name,
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": queue},
        },
    }


class Generator:
    """Makes bad messages.

    `target`: a reservation with a lease on `slot`; `token`: its current token; `earlier`: a previous token of it;
    `pool`: an existing pool.
    """

    def __init__(self, seed: int, *, target: str, token: int, earlier: int, pool: str, slot: str) -> None:
        self._random = Random(seed)
        self._target, self._token, self._earlier, self._pool, self._slot = target, token, earlier, pool, slot
        self._count = 0
        self._seed = seed
        self._kinds: list[tuple[int, Kind, Callable[[str], BadMessage]]] = [
            (12, "wrong shape", self._bad_reservation),
            (6, "wrong shape", self._bad_command),
            (4, "forged token", self._forged_token),
            (4, "replayed token", self._replayed_token),
            (5, "forged id", self._forged_id),
            (3, "wrong shape", self._bad_list),
            (2, "wrong shape", self._nothing_like_a_document),
            (3, "wrong shape", self._without_address),
            (2, "wrong shape", self._foreign_address),
            (6, "wrong shape", self._wrong_arguments),
            (2, "forged id", self._forged_slot),
            (2, "huge", self._huge),
            (20, "unknown task", self._unknown_task),
            (33, "wrong shape", self._broken_envelope),
            (20, "wrong shape", self._broken_body),
            (13, "wrong shape", self._no_envelope),
        ]

    def make(self, count: int) -> list[BadMessage]:
        """Return `count` messages of all kinds."""
        chosen = self._random.choices(self._kinds, [weight for weight, _, _ in self._kinds], k=count)
        return [replace(make(self._new_id()), kind=kind) for _, kind, make in chosen]

    def make_huge(self) -> list[BadMessage]:
        """Return a few messages of extreme size or depth."""
        many = [{"id": f"huge-{number}", "pool": self._pool} for number in range(10_001)]
        deep: Any = []
        for _ in range(300):
            deep = [deep]
        deeper = "[" * 100_000 + "]" * 100_000
        documents: list[Any] = [
            {"id": "huge", "pool": self._pool, "tags": {"a": "x" * 3_000_000}},
            {"id": "huge", "pool": self._pool, "tags": {f"t{number}": "x" for number in range(100_000)}},
            {"items": many},
            {"items": [{"wrong": number} for number in range(10_000)]},
        ]
        found = [self._request("submit", document, self._new_id(), "huge") for document in documents]
        names = [self._new_id() for _ in range(3)]
        envelopes = [an_envelope(RESERVATIONS, task_name(RESERVATIONS, "submit"), [[deep], {}, {}], names[0])]
        for name, body in ((names[1], deeper.encode()), (names[2], b'[["' + b"x" * 26_000_000 + b'"], {}, {}]')):
            envelope = an_envelope(RESERVATIONS, task_name(RESERVATIONS, "submit"), [], name)
            envelopes.append(envelope | {"body": base64.b64encode(body).decode()})
        for name, envelope in zip(names, envelopes, strict=True):
            found.append(BadMessage(RESERVATIONS, json.dumps(envelope), "line", name, "huge"))
        digits = an_envelope(RESERVATIONS, "x", [], self._new_id())
        text = json.dumps(digits).replace('"retries": 0', f'"retries": {"9" * 10_000}')
        return [*found, BadMessage(RESERVATIONS, text, "count", "", "huge")]

    def _new_id(self) -> str:
        self._count += 1
        return f"bad-{self._seed}-{self._count}"

    def _junk(self) -> Any:
        return self._random.choice(JUNK)

    def _pick(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def _message(self, queue: str, task: str, body: object, name: str, account: Account, what: str) -> BadMessage:
        return BadMessage(queue, json.dumps(an_envelope(queue, task, body, name)), account, name, what)

    def _request(self, verb: str, document: dict[str, Any], name: str, what: str) -> BadMessage:
        full = {**document, "request": name, "reply_to": f"leasehold:reply:{name}"}
        return self._message(
            RESERVATIONS, task_name(RESERVATIONS, verb), [[full], {}, {}], name, "answer", f"{what} {verb}"
        )

    def _spoiled(self, name: str) -> dict[str, Any]:
        """Return the document of a reservation with one fault in it."""
        good: dict[str, Any] = {"id": name, "pool": self._pool}
        junk = self._junk()
        spoil: dict[str, Any] = self._pick(
            {"id": self._pick(None, 7, "", "a b", "x" * 201, "-x", [name], {}, "\0", "a\ud800")},
            {"pool": self._pick(None, 3, "nowhere", "warn", "", [], "linux\0")},
            {"system": "warm-linux"},
            {"resources": self._pick([1], "2", 3, {"cpus": -1}, {"cpus": "2"}, {"cpus": float("nan")}, {"": 1})},
            {"resources": {"cpus": self._pick(10**400, 1e300, float("-inf"), None, True, [], {})}},
            {"labels": self._pick([], 1, "x", {"a": 1}, {"a": "x" * 257}, {"a": "\0"}, {"a": "\ud800"}, {" ": "x"})},
            {"tags": {f"t{number}": "x" for number in range(65)}},
            {"priority": self._pick(-1, "1", None, float("inf"), float("nan"), 10**400, [], True)},
            {"ttl": self._pick(-1, "soon", "5 parsecs", [], {}, float("nan"), True, "-5s")},
            {"restart_policy": self._pick("always", "", None, 1, ["never"])},
            {"components": self._pick(1, [1], [{}], [{"name": "a", "count": 0}], [{"name": "a"}, {"name": "a"}])},
            {"components": [{"name": "a", "count": self._pick(10_001, -1, 1.5, "2", 10**400)}]},
            {"on_end": self._pick(1, "x", {}, {"task": "t"}, {"task": "t", "queue": "leasehold:leader"})},
            {"on_lease": {"task": "t", "queue": self._pick("reservations", "unacked", "unacked_index", "_kombu", "")}},
            {self._pick("colour", "ID", "pools", "__proto__", "token", "items\0"): junk},
        )
        return good | spoil

    def _bad_reservation(self, name: str) -> BadMessage:
        return self._request("submit", self._spoiled(name), name, "bad")

    def _bad_command(self, name: str) -> BadMessage:
        # `absent` about an unknown reservation is true, so it would not be refused.
        verb = self._pick(*(each for each in SCHEMAS if each not in {"submit", "absent"}))
        key = "reservation" if "reservation" in SCHEMAS[verb].model_fields else "slot"
        junk = self._junk()
        return self._request(verb, self._pick({}, {key: junk}, {key: self._target, "colour": junk}), name, "bad")

    def _forged_token(self, name: str) -> BadMessage:
        verb = self._pick("release", "renew", "confirm", "fail", "surrender", "decline", "suspend", "resume")
        token = self._pick(
            None, 0, -1, self._token + 1, self._token - 1, self._token + 10**6, 2**63, 10**400, str(self._token), 0.5
        )
        return self._request(verb, {"reservation": self._target, "token": token}, name, "forged token")

    def _forged_id(self, name: str) -> BadMessage:
        # `absent` about an unknown reservation is true, so it would not be refused.
        verb = self._pick(*(each for each in SCHEMAS if each not in {"submit", "absent"}))
        key = "reservation" if "reservation" in SCHEMAS[verb].model_fields else "slot"
        more = {"priority": 3} if verb == "priority" else {}
        # The id of a row of another kind, or one similar to a known id.
        other = self._slot if key == "reservation" else self._target
        near = [self._target.upper(), f"{self._target} ", f"{self._target}\0", f"{self._target}.0", f"./{self._target}"]
        forged = self._pick(f"unknown-{name}", other, self._pool, "reservations", str(self._token), *near)
        return self._request(verb, {key: forged, **more}, name, "forged id")

    def _replayed_token(self, name: str) -> BadMessage:
        """Return a request of the previous holder; its token was valid before the reservation was leased again."""
        verb = self._pick("release", "renew", "confirm", "fail", "surrender", "decline", "suspend")
        return self._request(verb, {"reservation": self._target, "token": self._earlier}, name, "replayed token")

    def _huge(self, name: str) -> BadMessage:
        """Return a request of some hundred kilobytes."""
        text, number = "x" * 300_000, self._pick(10**4000, -(10**4000), 2**64)
        document: dict[str, Any] = self._pick(
            {"id": text, "pool": self._pool},
            {"id": name, "pool": text},
            {"id": name, "pool": self._pool, "labels": {text: text}},
            {"id": name, "pool": self._pool, "tags": {f"t{each}": "x" for each in range(5000)}},
            {"id": name, "pool": self._pool, "resources": {f"r{each}": each for each in range(5000)}},
            {"id": name, "pool": self._pool, "components": [{"name": f"c{each}"} for each in range(10_001)]},
            {"id": name, "pool": self._pool, "priority": number},
            {"id": name, "pool": self._pool, text: 1},
            {"items": [{}] * 10_001},
            {"items": [text]},
        )
        return self._request("submit", document, name, "huge")

    def _bad_list(self, name: str) -> BadMessage:
        items = [self._pick(self._spoiled(f"{name}.{number}"), self._junk()) for number in range(3)]
        bad: Any = self._pick(items, [], {}, "all", 7, [items])
        return self._request("submit", {"items": bad, **self._pick({}, {}, {"id": name})}, name, "bad list")

    def _nothing_like_a_document(self, name: str) -> BadMessage:
        junk = self._pick(*(each for each in JUNK if not isinstance(each, dict)))
        verb = self._pick(*SCHEMAS, "query")
        return self._message(RESERVATIONS, task_name(RESERVATIONS, verb), [[junk], {}, {}], name, "line", "no document")

    def _without_address(self, name: str) -> BadMessage:
        document = self._spoiled(name) | self._pick({}, {"request": name}, {"request": self._junk()})
        task = task_name(RESERVATIONS, "submit")
        return self._message(RESERVATIONS, task, [[document], {}, {}], name, "line", "bad without address")

    def _foreign_address(self, name: str) -> BadMessage:
        address = self._pick("leasehold:leader", "reservations", "leasehold:reply:", "leasehold:reply:a:b", "", 7, {})
        document = {"request": name, "reply_to": address, "id": name, "pool": self._pool}
        queue = self._pick(*QUEUE_NAMES)
        verb, argument = ("submit", document) if queue == RESERVATIONS else ("canary", address)
        return self._message(queue, task_name(queue, verb), [[argument], {}, {}], name, "line", "foreign address")

    def _wrong_arguments(self, name: str) -> BadMessage:
        queue, verb, wrong = self._pick(
            ("reservations", "submit", [[], [1, 2], [{}, {}]]),
            ("reservations", "query", [[], [1, 2]]),
            ("reservations", "leases", [[], [1, 2]]),
            ("ticks", "tick", [[1], ["now"], [[]], [{}]]),
            ("ticks", "canary", [[], [1], [None], ["a", "b"], [{}]]),
            ("launch", "slot", [[], ["warm-1"], ["warm-1", 7], [None, None], [{}, {}], ["a", "b", "c"]]),
            ("terminate", "slot", [[], ["warm-1"], ["warm-1", "1"], ["warm-1", None], [1, 1], ["a", 1.5]]),
            ("health", "check", [[], ["warm-1"], [[1]], [{}], [None], [["a"], ["b"]]]),
            ("health", "sweep", [["yes"], [1, 2], [{}]]),
            ("health", "recover", [[1], [[]]]),
            ("health", "hear", [[1], [{}]]),
            ("health", "prune", [["all"], [0]]),
            ("health", "learn", [["all"], [{}]]),
        )
        arguments, named = self._random.choice(wrong), {}
        if self._random.random() < 0.3:
            named = {"force": True}
        return self._message(queue, task_name(queue, verb), [arguments, named, None], name, "line", "wrong arguments")

    def _forged_slot(self, name: str) -> BadMessage:
        queue, second = self._pick(("launch", "no-launch"), ("terminate", 10**9))
        body = [[f"nowhere-{name}", second], {}, {}]
        return self._message(queue, task_name(queue, "slot"), body, name, "line", "forged slot")

    def _unknown_task(self, name: str) -> BadMessage:
        queue = self._pick(*QUEUE_NAMES)
        other = self._pick(*(each for each in QUEUE_NAMES if each != queue))
        task = self._pick(
            *("leasehold.launch.slots", "celery.backend_cleanup", "celery.chord", "os.system", "", "tasks.app"),
            *(task_name(other, "canary"), f"leasehold.{queue}.", f"leasehold.{queue}.Canary", "x" * 100_000),
            *(7, None, ["leasehold.ticks.tick"], {"task": 1}),
        )
        return self._message(queue, task, [[], {}, {}], name, "line", "unknown task")

    def _broken_envelope(self, name: str) -> BadMessage:
        queue = self._pick(*QUEUE_NAMES)
        envelope = an_envelope(queue, task_name(queue, "canary"), [[f"leasehold:reply:{name}"], {}, {}], name)
        headers, properties = envelope["headers"], envelope["properties"]
        spoil: Callable[[], object] = self._pick(
            lambda: envelope.update(
                {"content-type": self._pick("application/x-python-serialize", "text/plain", 7, None)}
            ),
            lambda: envelope.update({"content-type": self._pick("application/x-yaml", "application/data", "")}),
            lambda: envelope.update({"content-encoding": self._pick("utf-99", "binary", None, 7, "latin-1")}),
            lambda: envelope.update({"body": self._pick(None, 7, [], {}, "", "!", "AAAA", "gASVAA==", "\ud800")}),
            lambda: envelope.update({"properties": self._pick(None, 7, [], "x", {}, {"delivery_tag": name})}),
            lambda: properties.update({"delivery_info": self._pick(None, {}, [], {"exchange": ""}, {"exchange": 1})}),
            lambda: properties.update({"delivery_tag": self._pick(None, 7, "", [], {})}),
            lambda: properties.update({"body_encoding": self._pick("rot13", 7, "", [])}),
            lambda: properties.update({"priority": self._pick("high", -1, 10**400, [], 1.5)}),
            lambda: headers.update({"eta": self._pick("2099-01-01T00:00:00", "soon", 7, [1], "", 0, {}, False)}),
            lambda: headers.update({"expires": self._pick("never", 7, [1], {}, "", True)}),
            lambda: headers.update({"compression": self._pick("zlib", "application/x-gzip", 7)}),
            lambda: headers.update({"retries": self._pick("many", [1], {"a": 1})}),
            lambda: headers.update({self._pick("chain", "callbacks", "errbacks", "chord", "stamps"): [{"task": "x"}]}),
            lambda: headers.update({"shadow": self._pick("x", 7, [1])}),
        )
        spoil()
        return BadMessage(queue, json.dumps(envelope), "line", name, "broken envelope")

    def _broken_body(self, name: str) -> BadMessage:
        queue = self._pick(*QUEUE_NAMES)
        link = {"task": task_name(queue, "canary"), "args": [], "kwargs": {}, "options": {}}
        body = self._pick(
            *(7, None, True, "text", [], {}, [1], [[], {}], [[], {}, {}, {}], ["abc", {}, {}], [{}, {}, {}]),
            *([[], [], {}], [[], None, {}], [[], {}, []], [[], {}, 7], {"task": "x", "args": []}),
            # kombu decodes these as values of Python types.
            *([[{"__type__": "uuid", "__value__": "7"}], {}, {}], [[{"__type__": "datetime", "__value__": 7}], {}, {}]),
            *([[], {}, {"callbacks": [link]}], [[], {}, {"errbacks": [link]}], [[], {}, {"chord": link}]),
        )
        return self._message(queue, task_name(queue, "canary"), body, name, "line", "broken body")

    def _no_envelope(self, name: str) -> BadMessage:
        notice = {
            "version": "0",
            "id": name,
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "source": "aws.ec2",
            "detail": {"instance-id": "i-0123456789abcdef0", "instance-action": "terminate"},
        }
        text = self._pick(
            *("", " ", "{", "nothing", "[", "null", "7", "[]", "{}", '"text"', '{"headers": []}', "\udcff"),
            *(json.dumps(notice), json.dumps({"Type": "Notification", "Message": json.dumps(notice)})),
            *('{"body": "", "headers": {}}', '{"headers": {"task": "leasehold.ticks.tick"}}', "[" * 100_000),
        )
        return BadMessage(self._pick(*QUEUE_NAMES), text, "count", "", "no envelope")
