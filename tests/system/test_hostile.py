"""Hostile requests to a stack of real workers with `access.mode = signed`: nothing of other principals changes."""

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from leasehold.client.client import Client
from leasehold.errors import Refused
from scheduler.model.accounts import Account
from scheduler.model.principals import Principal
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.operations.principals import add_principal
from scheduler.ports import StoredPrincipal
from scheduler.protocol.names import RESERVATIONS, task_name
from scheduler.protocol.signing import format_key_line, read_key, sign_headers
from scheduler.protocol.verbs import Role
from testbed.processes import wait_for
from testbed.stack import Stack, a_pool
from tests.operations.hostile import KEY, Item, list_attempts
from tests.system.bad_messages import an_envelope
from workers.settings import AccessSettings, Settings

RULES: dict[str, Any] = {
    "pools": {
        "linux": a_pool(lease_ttl=0),
        "lab": {"system": "lab-linux", "provider": "static", "lease_ttl": 0, "offline_timeout": 3600},
    }
}
PATIENCE = 60.0


class SignedStack(Stack):
    """A stack where the principal `shop` has a lease and pending reservations, and the host lab-1 is ready."""

    def _read_settings(self) -> Settings:
        """Read settings without access control. Kicks of this process are unsigned, so only periodic ticks run."""
        return super()._read_settings().model_copy(update={"access": AccessSettings()})

    def _await_workers(self) -> None:
        """Do nothing: canaries of this process are not signed, and the first lease waits for all workers."""

    def add(self, name: str, role: Role, *accounts: str) -> StoredPrincipal:
        return add_principal(self.services.ports.store, {"name": name, "role": role, "accounts": [*accounts]})

    def client(self, principal: StoredPrincipal | None) -> Client:
        """Return a client that signs as this principal; None: a client that does not sign."""
        cluster = self.services.ports.store.read_cluster().identity
        line = None if principal is None else format_key_line(principal.name, principal.key, cluster)
        return Client(self.redis_url("leasehold"), key=line, timeout=PATIENCE)

    def set_up(self) -> None:
        """Add the principals, the host and the reservations that the hostile requests name."""
        self.shop = self.add("shop", "producer", "shop")
        self.rival = self.add("rival", "producer", "rival")
        self.operator, self.lab = self.add("ops", "operator"), self.add("lab-1", "host")
        self.others: dict[Role, StoredPrincipal] = {
            "producer": self.rival,
            "host": self.add("lab-2", "host"),
            "reader": self.add("eyes", "reader"),
        }
        with self.client(self.operator) as client:
            # Workers read new principals within a second.
            wait_for(lambda: _is_accepted(lambda: client.account("shop", balance=[5, 5])), "the principals")
            client.account("rival")
        with self.client(self.lab) as client:
            client.hosts.register("lab-1", pool="lab", machine="m1")
        with self.client(self.rival) as client:
            client.reserve(id="mine", pool="linux", priority=0)
        with self.client(self.shop) as client:
            client.reserve(id="leased", pool="lab", key=KEY)
            client.submit({"id": "waiting", "pool": "linux", "priority": 0, "request": "q-shop"})
            client.reserve_many([{"id": name, "pool": "linux", "priority": 0} for name in ("bare", "held-up")])
            client.wait("leased", timeout=PATIENCE)

    def rows(self) -> dict[str, tuple[Any, ...]]:
        """Return id -> the fields of the row that a command could change; fields that ticks change are left out."""
        return {row.id: _show(row) for row in self.services.ports.store.read_rows() if not _is_hold(row)}


def _is_accepted(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except Refused:
        return False
    return True


def _is_hold(row: object) -> bool:
    return not isinstance(row, Reservation | Slot | Account)


def _show(row: Any) -> tuple[Any, ...]:
    match row:
        case Reservation():
            return row.version, row.phase, row.token, row.expires_at, row.confirmed_at, row.leases
        case Slot():
            return row.version, row.state, row.cordoned, row.machine, row.drain_reason, row.labels, row.resources
        case _:
            return (row,)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SignedStack]:
    with SignedStack(tmp_path_factory.mktemp("hostile"), RULES, ACCESS__MODE="signed") as running:
        running.set_up()
        yield running


async def collect(answers: AsyncIterator[Item]) -> list[Item]:
    return [each async for each in answers]


def ask_all(client: Client, attempts: list[tuple[str, Item]]) -> list[tuple[str, Item, list[Item]]]:
    """Send the hostile requests; return each with the answers to its documents. Requests of one verb go together."""
    # Requests with the same id share a reply address, so they are sent one after the other.
    answered = [
        (verb, item, [client.ask(verb, item, timeout=PATIENCE)]) for verb, item in attempts if "request" in item
    ]
    for verb in dict.fromkeys(verb for verb, _ in attempts):
        items = [item for name, item in attempts if name == verb and "request" not in item]
        answers = client._run(collect(client._core._wire.ask_each(verb, items, PATIENCE)))
        answered += [(verb, item, answer.get("results", [answer])) for item, answer in zip(items, answers, strict=True)]
    return answered


@pytest.mark.parametrize("role", ["producer", "host", "reader", None], ids=str)
def test_no_hostile_attempt_changes_anything(stack: SignedStack, role: Role | None) -> None:
    """The requests name ids, accounts, slots and requests of others and guess tokens from 1 to 1000.

    They are sent by each role and without a signature.
    """
    sender = None if role is None else stack.others[role]
    (leased,) = stack.services.ports.store.find_reservations(ids=["leased"])
    attempts = list_attempts(
        {"leased": leased.token, "waiting": 0, "bare": 0, "held-up": 0},
        Principal(name="rival", role="producer") if sender is None else sender.principal,
    )
    before = stack.rows()
    with stack.client(sender) as client:
        answered = ask_all(client, attempts)
    assert len(answered) == len(attempts) >= 20
    assert [(verb, item) for verb, item, answers in answered if any(each["ok"] for each in answers)] == []
    if sender is None:
        assert {error["path"] for *_, answers in answered for each in answers for error in each["errors"]} == {
            "signature"
        }
    assert stack.rows() == before


def test_a_replayed_message_is_not_executed_twice(stack: SignedStack) -> None:
    """A captured message that is sent again gets its stored answer, and later changes stay."""
    address = f"leasehold:reply:{uuid4().hex}"
    task = task_name(RESERVATIONS, "priority")
    document = {"request": uuid4().hex, "reply_to": address, "reservation": "waiting", "priority": 0}
    envelope = an_envelope(RESERVATIONS, task, [[document], {}, None], uuid4().hex)
    envelope["headers"] |= sign_headers(
        read_key(stack.shop.key),
        principal="shop",
        cluster=stack.services.ports.store.read_cluster().identity,
        queue=RESERVATIONS,
        task=task,
        message_id=envelope["headers"]["id"],
        now=stack.services.ports.store.now(),
        body=base64.b64decode(envelope["body"]),
    )

    def push() -> Any:
        stack.redis.lpush(RESERVATIONS, json.dumps(envelope))
        _, answer = wait_for(lambda: stack.redis.blpop([address], timeout=2), "the answer")
        return json.loads(answer)

    first = push()
    with stack.client(stack.shop) as client:
        client.suspend("waiting")
        client.priority("waiting", 3)
    before = stack.rows()
    assert push() == first
    assert first["ok"]
    assert stack.rows() == before
    with stack.client(stack.shop) as client:
        client.priority("waiting", 0)
        client.resume("waiting")


def test_only_heartbeats_signed_by_the_host_count(stack: SignedStack) -> None:
    """An unsigned heartbeat and one signed by another host do not count; the next one of the host does."""

    def last_seen() -> float | None:
        return stack.services.ports.store.find_slots(ids=["lab-1"])[0].last_seen

    def count(reason: str) -> float:
        counters = stack.services.meter.read().counters  # type: ignore[attr-defined]  # of RedisMeter
        return float(counters.get("leasehold_heartbeats_refused_total", {}).get((reason,), 0))

    before = last_seen()
    with stack.client(stack.others["host"]) as client:
        client.hosts.heartbeat("lab-1", "m1")
        wait_for(lambda: count("unsigned"), "the plain heartbeat to be refused")
        client.hosts.heartbeat("lab-2", "m1")
        captured = stack.redis.get("leasehold:heartbeat:lab-2")
        assert captured is not None
        stack.redis.set("leasehold:heartbeat:lab-1", captured, ex=86400)
    wait_for(lambda: count("signature"), "the heartbeat of another host to be refused")
    assert last_seen() == before
    with stack.client(stack.lab) as client:
        client.hosts.heartbeat("lab-1", "m1")
    wait_for(lambda: last_seen() != before, "the heartbeat of the host itself")
