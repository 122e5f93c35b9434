"""Permissions of roles: hostile requests of each role change nothing, and a key authenticates a holder."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import pytest

from scheduler.model.command_schemas import SCHEMAS
from scheduler.model.principals import ROLES_BY_VERB, Principal, find_role_fault
from scheduler.model.view import Row
from scheduler.operations.commands.intake import accept, check_question
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.ports import Store
from scheduler.protocol.verbs import QUESTIONS
from scheduler.store.memory import MemoryStore
from scheduler.store.opening import open_store
from tests.operations.harness import CONFIG, NOW, Harness
from tests.operations.hostile import HOLDERS_VERBS, KEY, KEY_HASH, OTHER_KEY, VICTIMS, Item, list_attempts
from tests.operations.test_commit import slot, write_all
from tests.operations.test_elastic_commit import GRANT, elastic_lease, with_elastic

SHOP: Final = Principal(name="shop", role="producer", accounts=("shop",))
RIVAL: Final = Principal(name="rival", role="producer", accounts=("rival",))
OPERATOR: Final = Principal(name="ops", role="operator")
OTHER_HOST: Final = Principal(name="lab-2", role="host")
READER: Final = Principal(name="eyes", role="reader")
WORKER: Final = Principal(name="leasehold", role="worker")
RULES: Final[dict[str, Any]] = {
    "pools": {
        "linux": {**CONFIG["pools"]["linux"], "max_slots": 6},
        "lab": {"system": "lab-linux", "provider": "static", "lease_ttl": 0, "offline_timeout": 30},
    }
}


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore(lambda: NOW)
        return
    opened = open_store(request.getfixturevalue(f"{request.param}_url"))
    yield opened
    opened.close()


class Cluster:
    """A harness with a host, accounts and reservations of several principals.

    The principal `shop` has an account and the reservations `leased` (with a key), `bare` (leased without a key),
    `waiting` and `held-up`. `mine` is a reservation of the principal `rival`. `lab-1` is a host.
    """

    def __init__(self, store: Store | None = None) -> None:
        self.harness = Harness(RULES, store=store)
        self.ask(OPERATOR, "account", account="shop", balance=[5, 5])
        self.ask(OPERATOR, "account", account="rival")
        self.ask(Principal(name="lab-1", role="host"), "register", slot="lab-1", pool="lab", machine="m1")
        self.submit(SHOP, "leased", key_hash=KEY_HASH)
        self.submit(SHOP, "bare")
        self.submit(SHOP, "waiting", priority=0, request="q-shop")
        self.submit(SHOP, "held-up", priority=0, account="shop", key_hash=KEY_HASH)
        self.submit(RIVAL, "mine", priority=0)
        for _ in range(2):
            self.harness.tick()
            self.harness.play_tasks()
        self.harness.tick()
        assert self.harness.phase("leased") == self.harness.phase("bare") == "leased"

    def ask(self, principal: Principal | None, verb: str, **document: Any) -> dict[str, Any]:
        """Send a request of this principal and return the answer."""
        return accept(self.harness.ports, verb, {"request": uuid4().hex} | document, principal=principal)

    def submit(self, principal: Principal, name: str, **fields: Any) -> None:
        assert self.ask(principal, "submit", id=name, system="x86_64-linux", **fields)["ok"]

    def rows(self) -> tuple[list[Row], list[Any]]:
        return sorted(self.harness.store.read_rows(), key=lambda row: (type(row).__name__, row.id)), list(
            self.harness.events
        )

    def proof(self, name: str) -> dict[str, Any]:
        """Return the id and the token of a reservation, as every reader of the view sees them."""
        return {"reservation": name, "token": self.harness.token(name)}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("principal", [RIVAL, OTHER_HOST, READER, WORKER], ids=lambda each: each.role)
def test_no_hostile_attempt_of_a_principal_succeeds(store: Store, principal: Principal) -> None:
    """All hostile requests are refused, and no row and no event changes."""
    cluster = Cluster(store)
    before = cluster.rows()
    attempts = list_attempts({name: cluster.harness.token(name) for name in VICTIMS}, principal)
    assert len(attempts) >= 20
    succeeded = []
    for verb, item in attempts:
        answer = cluster.ask(principal, verb, **item)
        if any(each["ok"] for each in answer.get("results", [answer])):
            succeeded.append((verb, item))
    assert succeeded == []
    assert cluster.rows() == before


def test_an_unsigned_sender_without_the_key_does_not_release_by_guessed_tokens(cluster: Cluster) -> None:
    """The key of a reservation protects its lease also where unsigned messages are accepted."""
    before = cluster.rows()
    for verb in HOLDERS_VERBS:
        items = [{"reservation": "leased", "token": token} for token in range(1, 1001)]
        answer = cluster.ask(None, verb, items=[*items, {**items[0], "key": OTHER_KEY}])
        assert {error["path"] for each in answer["results"] for error in each["errors"]} == {"key"}
    assert cluster.rows() == before


@pytest.mark.parametrize("verb", ["release", "renew", "confirm", "fail", "decline", "suspend"])
def test_a_holder_needs_token_and_key(cluster: Cluster, verb: str) -> None:
    proof = cluster.proof("leased")
    for principal in (SHOP, None):
        assert cluster.ask(principal, verb, **proof)["errors"][0]["path"] == "key"
        assert cluster.ask(principal, verb, **proof, key=OTHER_KEY)["errors"][0]["path"] == "key"
        stale = {**proof, "token": proof["token"] + 1}
        assert cluster.ask(principal, verb, **stale, key=KEY)["errors"][0]["path"] == "token"
    assert cluster.ask(SHOP, verb, **proof, key=KEY)["ok"]


@pytest.mark.parametrize("verb", ["release", "renew", "suspend", "resume"])
def test_a_pending_reservation_with_a_key_needs_it_too(cluster: Cluster, verb: str) -> None:
    assert cluster.ask(SHOP, verb, reservation="held-up")["errors"][0]["path"] == "key"
    assert cluster.ask(SHOP, verb, reservation="held-up", key=KEY)["ok"]


def test_an_elastic_lease_is_surrendered_only_with_the_key() -> None:
    _, _, harness = write_all([slot(), with_elastic(elastic_lease(), principal="shop", key_hash=KEY_HASH)], [GRANT])
    command = {"reservation": "r1", "component": "more.0", "token": elastic_lease().token}
    for verb in ("fail", "surrender"):
        answer = accept(harness.ports, verb, {"request": uuid4().hex, **command}, principal=SHOP)
        assert answer["errors"][0]["path"] == "key"
    assert harness.ask("surrender", **command, key=KEY)["ok"]


@pytest.mark.parametrize("verb", ["release", "renew", "fail", "decline", "suspend"])
def test_a_lease_without_a_key_works_by_its_token(cluster: Cluster, verb: str) -> None:
    for name, principal in (("bare", SHOP), ("bare", None)):
        assert not cluster.ask(principal, verb, reservation=name)["ok"]
    assert cluster.ask(SHOP, verb, **cluster.proof("bare"))["ok"]


@pytest.mark.parametrize("verb", ["release", "cancel", "suspend", "fail", "absent"])
def test_an_operator_needs_neither_token_nor_key(cluster: Cluster, verb: str) -> None:
    assert cluster.ask(OPERATOR, verb, reservation="leased")["ok"]
    (event,) = [each for each in cluster.harness.events if each.reservation == "leased"][-1:]
    assert (event.cause, event.principal) == ("operator", "ops")


def test_a_stale_token_is_stale_for_an_operator_too(cluster: Cluster) -> None:
    """An operator that states a token is checked like any other holder."""
    proof = cluster.proof("leased")
    answer = cluster.ask(OPERATOR, "release", reservation="leased", token=proof["token"] + 1)
    assert answer["errors"][0]["path"] == "token"


def test_rows_and_events_name_the_principal_that_caused_them(cluster: Cluster) -> None:
    cluster.ask(SHOP, "release", **cluster.proof("bare"))
    rows = {row.id: row.principal for row in cluster.harness.store.find_reservations()}
    assert rows == {**dict.fromkeys(VICTIMS, "shop"), "mine": "rival"}
    found = {(event.name, event.reservation): event.principal for event in cluster.harness.events if event.reservation}
    assert found["reservation_submitted", "bare"] == found["reservation_released", "bare"] == "shop"
    assert found["reservation_leased", "bare"] is None
    assert {event.principal for event in cluster.harness.events if event.name == "account_set"} == {"ops"}


def test_requests_are_counted_by_role_principal_and_result(cluster: Cluster) -> None:
    def counted(**labels: str) -> float:
        return cluster.harness.meter.counts["leasehold_requests_total", tuple(sorted(labels.items()))]

    first = counted(role="producer", principal="rival", result="refused")
    cluster.ask(RIVAL, "cancel", items=[{"reservation": "leased"}, {"reservation": "mine"}])
    cluster.ask(RIVAL, "drain", slot="linux-1")
    assert counted(role="producer", principal="rival", result="refused") == first + 2
    assert counted(role="producer", principal="rival", result="accepted") == 2
    cluster.ask(None, "cancel", reservation="bare")
    assert counted(role="unsigned", principal="", result="accepted") == 1


def test_items_of_a_list_are_checked_one_by_one(cluster: Cluster) -> None:
    items: list[Item] = [
        {"id": "a", "system": "x86_64-linux", "account": "shop"},
        {"id": "b", "system": "x86_64-linux", "account": "rival"},
        {"id": "leased", "system": "x86_64-linux"},
        {"id": "mine", "system": "x86_64-linux"},
    ]
    answer = cluster.ask(RIVAL, "submit", items=items)
    assert [each["ok"] for each in answer["results"]] == [False, True, False, True]
    paths = [(error["index"], error["path"]) for each in answer["results"] for error in each.get("errors", ())]
    assert paths == [(0, "account"), (2, "id")]


def test_a_refusal_is_the_same_for_an_unknown_reservation_and_for_that_of_another_principal(cluster: Cluster) -> None:
    for verb in ("cancel", "renew", "release"):
        foreign = cluster.ask(RIVAL, verb, reservation="leased")["errors"]
        unknown = cluster.ask(RIVAL, verb, reservation="absent")["errors"]
        assert str(foreign).replace("leased", "absent") == str(unknown)


def test_the_answer_about_an_id_or_request_of_another_principal_contains_no_details(cluster: Cluster) -> None:
    answer = cluster.ask(RIVAL, "submit", id="leased", system="x86_64-linux")
    assert list(answer) == ["ok", "errors"]
    answer = cluster.ask(RIVAL, "submit", request="q-shop", id="waiting", system="x86_64-linux", priority=0)
    assert [error["path"] for error in answer["errors"]] == ["request"]
    assert list(answer) == ["ok", "errors"]


def test_the_stored_answer_is_returned_to_the_same_principal_only(cluster: Cluster) -> None:
    again = cluster.ask(SHOP, "submit", request="q-shop", id="waiting", system="x86_64-linux", priority=0)
    assert (again["ok"], again["reservation"]) == (True, "waiting")
    assert not cluster.ask(None, "submit", request="q-shop", id="waiting", system="x86_64-linux", priority=0)["ok"]


def test_any_principal_may_change_an_unsigned_reservation(cluster: Cluster) -> None:
    """Reservations from before principals work as before after the upgrade."""
    assert cluster.ask(None, "submit", id="old", system="x86_64-linux", priority=0)["ok"]
    assert cluster.ask(RIVAL, "priority", reservation="old", priority=2)["ok"]
    assert cluster.ask(SHOP, "cancel", reservation="old")["ok"]


def test_a_host_may_register_the_slot_of_its_own_name(cluster: Cluster) -> None:
    assert cluster.ask(OTHER_HOST, "register", slot="lab-2", pool="lab", machine="m2")["ok"]
    assert cluster.ask(OTHER_HOST, "leave", slot="lab-2", machine="m2")["ok"]


def test_a_producer_confirms_where_its_reservation_is_leased_only(cluster: Cluster) -> None:
    (row,) = cluster.harness.store.find_reservations(ids=["bare"])
    proof = cluster.proof("bare")
    assert cluster.ask(SHOP, "confirm", **proof, slot=row.leases[0].slot)["ok"]
    assert cluster.ask(SHOP, "confirm", **proof, slot="linux-3")["errors"][0]["path"] == "slot"
    assert cluster.ask(OPERATOR, "confirm", reservation="waiting", slot="lab-1")["ok"]


@pytest.mark.parametrize(
    ("principal", "allowed"),
    [
        (None, {"command", "query", "explain", "conditions", "leases", "rules", "preview"}),
        (OPERATOR, {"command", "query", "explain", "conditions", "leases", "rules", "preview"}),
        (RIVAL, {"command", "query", "explain", "conditions", "rules"}),
        (READER, {"query", "explain", "conditions", "rules"}),
        (Principal(name="lab-1", role="host"), {"leases"}),
        # the leases of another host contain tokens
        (OTHER_HOST, set()),
        (WORKER, set()),
    ],
)
def test_a_question_is_answered_to_the_roles_that_may_ask_it(principal: Principal | None, allowed: set[str]) -> None:
    answered = set()
    questions = dict.fromkeys(("command", "query", "explain", "conditions", "rules", "preview"), None) | {
        "leases": "lab-1"
    }
    for verb, name in questions.items():
        with suppress(CommandRefused):
            check_question(principal, verb, slot=name)
            answered.add(verb)
    assert answered == allowed


def test_every_verb_has_its_roles() -> None:
    assert ROLES_BY_VERB.keys() == SCHEMAS.keys() | QUESTIONS | {"apply"}
    assert [verb for verb, roles in ROLES_BY_VERB.items() if "operator" not in roles] == ["take"]
    assert not any("worker" in roles for roles in ROLES_BY_VERB.values())
    assert find_role_fault(None, "drain") is None


def test_neither_key_nor_hash_is_in_an_answer_an_event_or_a_notice(cluster: Cluster) -> None:
    faulty = ["short", 5, KEY_HASH.upper(), {"key": KEY}]
    answers = [cluster.ask(SHOP, "submit", id="bad", system="x86_64-linux", key_hash=each) for each in faulty]
    answers += [
        cluster.ask(SHOP, "renew", **cluster.proof("leased"), key=each) for each in ("k" * 31, 5, [KEY], KEY, OTHER_KEY)
    ]
    answers += [cluster.ask(SHOP, "renew", key=KEY, items=[cluster.proof("leased")])]
    answers += [cluster.ask(SHOP, "submit", id="bad", system="x86_64-linux", key=KEY)]
    answers += [cluster.ask(SHOP, "submit", id="leased", system="x86_64-linux", key_hash="0" * 64)]
    cluster.ask(SHOP, "release", **cluster.proof("leased"), key=KEY)
    published = str(
        [answers, cluster.harness.events, cluster.harness.notifier.notices, cluster.harness.mailbox.callbacks]
    )
    assert not any(secret in published for secret in (KEY, OTHER_KEY, KEY_HASH, KEY_HASH.upper(), "k" * 31, "0" * 64))
    assert KEY not in str(cluster.rows())
