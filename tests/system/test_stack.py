"""From a producer to EC2 and back on real processes. Later tests do more damage."""

from uuid import uuid4

import pytest

from testbed.processes import wait_for
from testbed.stack import Answer, Stack, a_pool
from tests.system.conftest import RULES

pytestmark = pytest.mark.timeout(120)


def test_a_reservation_is_leased_and_released_and_its_machine_is_terminated(stack: Stack) -> None:
    earlier = {each["id"] for each in stack.instances()}
    assert stack.submit("first")["phase"] == "pending"
    (row,) = stack.await_phase(["first"], "leased")
    slot = next(each for each in stack.slots() if each.id == row.leases[0].slot)
    assert slot.state == "ready"
    assert slot.instance_id in {each["id"] for each in stack.instances("running")}
    answer = stack.ask("release", {"reservation": "first", "token": row.token})
    assert (answer["ok"], answer["phase"]) == (True, "released")
    stack.await_empty()
    machines = [each for each in stack.instances() if each["id"] not in earlier]
    assert [(each["id"], each["state"]) for each in machines] == [(slot.instance_id, "terminated")]


def test_every_reservation_of_a_batch_is_served_on_few_slots(stack: Stack) -> None:
    names = [f"batch-{number}" for number in range(200)]
    answer = stack.ask("submit", {"items": [{"id": name, "pool": "linux"} for name in names]})
    assert answer["ok"]
    assert [each["reservation"] for each in answer["results"]] == names
    waiting = set(names)

    def serve() -> bool:
        rows = stack.services.ports.store.find_reservations(ids=sorted(waiting), phases=["leased"], limit=200)
        if rows:
            releases = [{"reservation": row.id, "token": row.token} for row in rows]
            assert stack.ask("release", {"items": releases})["ok"]
            waiting.difference_update(row.id for row in rows)
        return not waiting

    wait_for(serve, "the batch to be served", 90)
    stack.await_phase(names, "released")
    stack.await_empty()


def test_a_repeated_request_changes_nothing_and_gets_the_same_answer(stack: Stack) -> None:
    request = uuid4().hex
    submit = {"request": request, "id": "repeated", "pool": "warm"}
    first = stack.ask("submit", submit)
    (row,) = stack.await_phase(["repeated"], "leased")
    assert stack.ask("submit", submit) == first
    assert stack.find("repeated").version == row.version
    assert stack.ask("release", {"reservation": "repeated", "token": row.token})["ok"]
    assert stack.ask("submit", submit) == first
    assert stack.find("repeated").phase == "released"


def test_a_lease_on_a_ready_slot_does_not_wait_for_the_interval(stack: Stack) -> None:
    names = [f"quick-{number}" for number in range(10)]
    for name in names:
        stack.ask("submit", {"id": name, "pool": "warm"})
        stack.await_phase([name], "leased")
    rows = [stack.find(name) for name in names]
    waited = sum((row.leased_at or 0.0) - row.created_at for row in rows)
    # Without kicks each would wait for half of the interval on average.
    assert waited < len(rows) * stack.settings.ticks.interval / 4
    for row in rows:
        assert stack.ask("release", {"reservation": row.id, "token": row.token})["ok"]


GOOD = {"id": "bad", "pool": "linux"}
BAD_DOCUMENTS = [
    ("submit", {"pool": "linux"}, "id"),
    ("submit", {"id": 7, "pool": "linux"}, "id"),
    ("submit", {"id": "bad"}, "system"),
    ("submit", GOOD | {"pool": "linxu"}, "pool"),
    ("submit", {"id": "bad", "system": "x86_46-linux"}, "system"),
    ("submit", GOOD | {"resources": {"cpus": -1}}, "resources.cpus"),
    ("submit", GOOD | {"resources": {"cpus": float("nan")}}, "resources.cpus"),
    ("submit", GOOD | {"resources": {"cpus": 10**400}}, "resources.cpus"),
    ("submit", GOOD | {"resources": {"cpus": "two"}}, "resources.cpus"),
    ("submit", GOOD | {"resources": [1, 2]}, "resources"),
    ("submit", GOOD | {"labels": {"zone": "x" * 1_000_000}}, "labels.zone"),
    ("submit", GOOD | {"tags": {"broken": "\ud800"}}, "tags.broken"),
    ("submit", GOOD | {"colour": "red"}, "colour"),
    ("submit", {"items": "all"}, "items"),
    ("submit", {"items": []}, "items"),
    ("release", {"reservation": "unknown"}, "reservation"),
    ("release", {"reservation": ["first"]}, "reservation"),
    ("renew", {"reservation": "first", "token": 999_999}, "reservation"),
    ("priority", {"reservation": "first", "priority": float("inf")}, "priority"),
    ("cordon", {"slot": "nowhere-1"}, "slot"),
    ("query", {"ids": 3}, "ids"),
    ("explain", {"reservation": "unknown"}, "reservation"),
    ("conditions", {"pool": ["linux"]}, "pool"),
    ("rules", {"history": 101}, "history"),
    ("preview", {"rules": {"pols": {}}}, "rules.pols"),
    ("apply", {"rules": {}, "expected": 99}, "expected"),
    ("apply", {"rules": {"pools": []}, "expected": 1}, "rules.pools"),
]


@pytest.mark.parametrize(("verb", "document", "path"), BAD_DOCUMENTS)
def test_a_bad_document_gets_one_clear_answer(stack: Stack, verb: str, document: Answer, path: str) -> None:
    answer = stack.ask(verb, document, 10)
    assert not answer["ok"]
    (error,) = answer["errors"]
    assert error["path"] == path
    assert error["expected"]
    assert len(error["got"]) < 200


def test_a_stale_token_is_refused(stack: Stack) -> None:
    stack.ask("submit", {"id": "stale", "pool": "warm"})
    (row,) = stack.await_phase(["stale"], "leased")
    answer = stack.ask("release", {"reservation": "stale", "token": row.token + 1000})
    assert answer["errors"][0]["path"] == "token"
    assert stack.find("stale").phase == "leased"
    assert stack.ask("release", {"reservation": "stale", "token": row.token})["ok"]


@pytest.mark.parametrize("arguments", [[], ["x", "y", "z"], [1, 2], [{}, {}], [None, None]])
@pytest.mark.parametrize(
    "name", ["leasehold.reservations.submit", "leasehold.ticks.tick", "leasehold.launch.slot", "leasehold.health.check"]
)
def test_no_malformed_message_ends_a_worker(stack: Stack, name: str, arguments: list[object]) -> None:
    queue = name.split(".")[1]
    pid = stack.processes[queue].pid
    stack.app.send_task(name, args=arguments)
    stack.await_canary(queue)
    assert stack.processes[queue].pid == pid


def test_no_foreign_message_ends_a_worker(stack: Stack) -> None:
    bodies: list[tuple[object, dict[str, object]]] = [
        ([1], {"task": "leasehold.launch.slot", "id": "1"}),
        ({"what": "ever"}, {"task": "leasehold.launch.slot", "id": "2"}),
        ([["a", "b"], {}, {}], {"task": "leasehold.launch.slot"}),
        ([["a", "b"], {}, {}], {"task": "leasehold.launch.unknown", "id": "3"}),
        ("text", {}),
        (["abc", {}, {}], {"task": "leasehold.launch.slot", "id": "5"}),
        ([[["deep"] * 3, {}], {}, {}], {"task": "leasehold.launch.slot", "id": "4", "expires": "never"}),
    ]
    with stack.app.producer_or_acquire() as producer:
        for body, headers in bodies:
            producer.publish(body, exchange="", routing_key="launch", headers=headers, serializer="json")
        producer.publish("gASVAA==", exchange="", routing_key="launch", content_type="application/x-python-serialize")
    stack.await_canary("launch")
    assert stack.processes["launch"].is_alive


def test_answers_go_to_reply_addresses_only(stack: Stack) -> None:
    stack.send("submit", {"request": uuid4().hex, "reply_to": "leasehold:leader", "id": "astray", "pool": "warm"})
    wait_for(lambda: "task.foreign_address" in stack.processes["reservations"].read_log(), "the log line")
    assert stack.redis.type("leasehold:leader") in {b"none", b"string"}
    assert stack.services.ports.store.find_reservations(ids=["astray"]) == []


def test_killed_workers_lose_no_request(stack: Stack) -> None:
    names = [f"survivor-{number}" for number in range(9)]
    for name in names:
        stack.send("submit", {"request": uuid4().hex, "id": name, "pool": "linux"})
    killed = [stack.processes[queue] for queue in ("reservations", "ticks", "launch", "health")]
    for process in killed:
        process.kill()
    for process in killed:
        process.start()
    for name in names:
        assert stack.submit(name)["ok"]
    rows = stack.await_phase(names, "leased")
    releases = [{"reservation": row.id, "token": row.token} for row in rows]
    assert stack.ask("release", {"items": releases})["ok"]
    stack.await_empty()


def test_an_emptied_redis_loses_no_reservation(stack: Stack) -> None:
    names = [f"emptied-{number}" for number in range(8)]
    for name in names[:4]:
        assert stack.submit(name)["ok"]
    stack.redis_server.kill()
    stack.redis_server.restart()
    for name in names[4:]:
        assert stack.submit(name)["ok"]
    rows = stack.await_phase(names, "leased")
    releases = [{"reservation": row.id, "token": row.token} for row in rows]
    assert stack.ask("release", {"items": releases})["ok"]
    stack.await_phase(names, "released")


def test_in_the_end_no_machine_is_left(stack: Stack) -> None:
    stack.apply({"pools": {**RULES["pools"], "warm": a_pool(system="warm-linux", min_slots=0, max_slots=1)}})
    try:
        for pool in ("linux", "warm"):
            stack.await_empty(pool)
        assert stack.instances("pending", "running", "shutting-down") == []
        assert stack.launched() == len(stack.instances("terminated"))
        assert all(process.is_alive for process in stack.processes.values())
    finally:
        # The tests of other files use the same stack.
        stack.apply(RULES)
