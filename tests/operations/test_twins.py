"""An installation with a copy of another one's database, and an older database with an emptied Redis."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NoReturn

import msgspec
import pytest
import redis

from scheduler.operations.machines.reconcile import ORPHAN_SECONDS, reconcile
from scheduler.operations.machines.twins import FRESH_SECONDS, LEAST_AGE_SECONDS, MOST_SIGNED, RENEW_SECONDS
from scheduler.operations.membership import JUMP, MOST_TRUSTED
from scheduler.ports import CloudError, ForeignMachineError, StoreUnavailableError
from scheduler.view.redis_ports import RedisRecord
from testbed.servers import find_redis, redis_client, redis_server, redis_url
from tests.operations.harness import CONFIG, NOW, Harness

__all__ = ["find_redis", "redis_client", "redis_server", "redis_url"]


@pytest.fixture
def harness(redis_client: redis.Redis) -> Harness:
    found = Harness()
    found.ports.record = RedisRecord(redis_client)
    return found


def appear(harness: Harness, name: str, slot: str, alive: str = "") -> None:
    """Add a machine of another installation of the cluster, which this database has no launch for."""
    tags: Mapping[str, Any] = {"cluster_id": harness.store.read_cluster().identity, "alive": alive}
    harness.fleet.appear(name, slot, launched_at=NOW - 10 * ORPHAN_SECONDS, **tags)


def lease_a_machine(harness: Harness) -> str:
    """Let a slot have a machine, and return the machine's id."""
    harness.leased()
    ((name, machine),) = harness.fleet.machines.items()
    harness.fleet.machines[name] = msgspec.structs.replace(machine, launched_at=NOW)
    return name


def test_machines_of_a_living_copy_are_neither_ended_nor_adopted_and_reported(harness: Harness) -> None:
    appear(harness, "i-signed", "linux-1", f"other {NOW:.0f}")
    appear(harness, "i-empty-slot", "linux-2")
    appear(harness, "i-no-slot", "windows-1")
    with pytest.raises(ForeignMachineError, match="another installation of cluster"):
        reconcile(harness.ports)
    assert harness.fleet.terminations == []
    assert {slot.state for slot in harness.store.find_slots()} == {"empty"}


@pytest.mark.parametrize("alive", ["", f"other {NOW - FRESH_SECONDS - 1:.0f}", "other", "other x", f"other {'9' * 40}"])
def test_without_a_fresh_sign_of_another_installation_machines_without_a_slot_end(harness: Harness, alive: str) -> None:
    appear(harness, "i-no-slot", "elsewhere-1", alive)
    reconcile(harness.ports)
    assert harness.fleet.terminations == ["i-no-slot"]


def test_an_installation_renews_its_sign_on_few_machines_by_one_call_and_seldom(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = lease_a_machine(harness)
    signed: list[list[str]] = []
    show_life = harness.fleet.show_life

    def count(names: Sequence[str], sign: str) -> dict[str, CloudError]:
        signed.append(list(names))
        return show_life(names, sign)

    monkeypatch.setattr(harness.fleet, "show_life", count)
    reconcile(harness.ports)
    assert signed == [], "a young machine"
    harness.now = harness.now + LEAST_AGE_SECONDS
    for _ in range(2):
        reconcile(harness.ports)
    assert signed == [[machine]]
    assert len(signed[0]) <= MOST_SIGNED
    name, at = harness.fleet.machines[machine].alive.split()
    assert (name, float(at)) == (harness.ports.record.name_installation(), round(harness.now))  # type: ignore[union-attr]


def test_without_the_permission_to_tag_the_sweep_goes_on(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_machines: object, _sign: object) -> None:
        raise CloudError("auth", "UnauthorizedOperation", "no right to tag")

    monkeypatch.setattr(harness.fleet, "show_life", refuse)
    lease_a_machine(harness)
    harness.now = harness.now + LEAST_AGE_SECONDS
    assert reconcile(harness.ports).strangers == 0


def test_a_turn_comes_once_in_its_time(redis_client: redis.Redis) -> None:
    records = [RedisRecord(redis_client) for _ in range(2)]
    assert [each.take_turn(RENEW_SECONDS) for each in records] == [True, False]


def test_the_name_of_an_installation_outlasts_a_flush(redis_client: redis.Redis) -> None:
    records = [RedisRecord(redis_client) for _ in range(2)]
    names = {each.name_installation() for each in records}
    redis_client.flushall()
    assert {each.name_installation() for each in reversed(records)} == names
    assert len(names) == 1


@pytest.mark.parametrize("tags", [{"highest_term": 5 * JUMP}, {"highest_token": 5 * JUMP}])
def test_a_tag_above_the_database_lets_its_numbers_jump(harness: Harness, tags: dict[str, int]) -> None:
    identity = harness.store.read_cluster().identity
    harness.fleet.appear("i-1", "linux-1", cluster_id=identity, launched_at=NOW, **tags)
    reconcile(harness.ports)
    row = harness.store.read_cluster()
    assert min(row.term, row.token) >= JUMP
    assert max(row.term, row.token) >= 6 * JUMP
    assert row.restores == 1
    assert [event.name for event in harness.events if event.name == "restored"] == ["restored"]
    harness.tick()
    reconcile(harness.ports)
    assert harness.store.read_cluster().restores == 1


def test_tags_that_no_cluster_can_have_used_and_those_of_a_living_copy_change_no_number(harness: Harness) -> None:
    identity = harness.store.read_cluster().identity
    harness.fleet.appear("i-1", "linux-1", cluster_id=identity, launched_at=NOW, highest_term=MOST_TRUSTED)
    reconcile(harness.ports)
    appear(harness, "i-2", "linux-2", f"other {NOW:.0f}")
    harness.fleet.appear("i-3", "linux-3", cluster_id=identity, launched_at=NOW, highest_term=5 * JUMP)
    with pytest.raises(ForeignMachineError):
        reconcile(harness.ports)
    assert harness.store.read_cluster().restores == 0


def copy_cluster(harness: Harness, client: redis.Redis, prefix: str = "leasehold:") -> Harness:
    """Return another installation with a copy of the database as it is now, and the same EC2."""
    other = Harness(fleet=harness.fleet)
    other.now = harness.now
    other.store._world = deepcopy(harness.store._world)  # type: ignore[attr-defined]
    other.restart()
    other.ports.record = RedisRecord(client, prefix)
    return other


def sees_another(harness: Harness) -> bool:
    """Compare machines and slots. Return whether another installation was seen."""
    with suppress(ForeignMachineError):
        reconcile(harness.ports)
        return False
    return True


IDLE_TICKS: int = CONFIG["pools"]["linux"]["idle_scale_down"] // 10 + 3


def lease_and_sign(harness: Harness, client: redis.Redis, name: str) -> bool:
    """Lease a new machine, and compare machines and slots when it is old enough for a sign of life. Return whether
    another installation was seen.
    """
    known = set(harness.fleet.machines)
    harness.leased(name)
    for each in harness.fleet.machines.keys() - known:
        machine = harness.fleet.machines[each]
        harness.fleet.machines[each] = msgspec.structs.replace(machine, launched_at=harness.now)
    harness.now = harness.now + LEAST_AGE_SECONDS
    for key in client.scan_iter("*:turn"):
        client.delete(key)
    return sees_another(harness)


def end_lease_and_machine(harness: Harness, name: str) -> None:
    token = harness.token(name)
    assert harness.ask("release", reservation=name, token=token)["ok"]
    for _ in range(IDLE_TICKS):  # a longer time between two ticks counts as an outage
        harness.tick()
        harness.play_tasks()
        harness.now = harness.now + 10


def list_ended_without_a_slot(harness: Harness) -> list[object]:
    return [event.detail["instance"] for event in harness.events if event.name == "machine_orphaned"]


def test_own_former_signs_do_not_hide_an_older_database_with_an_emptied_redis(
    harness: Harness, redis_client: redis.Redis
) -> None:
    lease_and_sign(harness, redis_client, "r1")
    older = copy_cluster(harness, redis_client)
    lease_and_sign(harness, redis_client, "r2")
    lease_and_sign(harness, redis_client, "r3")  # a tag has the numbers from before the machine's own lease
    newest = harness.store.read_cluster()
    redis_client.flushall()
    older.now = harness.now
    older.ports.record = RedisRecord(redis_client)
    with pytest.raises(ForeignMachineError, match="or this one"):
        reconcile(older.ports)
    row = older.store.read_cluster()
    assert row.restores == 1
    assert min(row.term - newest.term, row.token - newest.token) >= JUMP / 2
    assert list_ended_without_a_slot(older) == []
    older.now = older.now + FRESH_SECONDS + 1
    assert reconcile(older.ports).adopted == 2, "when the signs are old"
    assert older.store.read_cluster().restores == 1


def test_the_numbers_of_an_installation_and_its_living_copy_do_not_raise_each_other_in_turn(
    harness: Harness, redis_client: redis.Redis
) -> None:
    lease_and_sign(harness, redis_client, "r1")
    copy = copy_cluster(harness, redis_client, "copy:")
    for name in ("r2", "r3"):
        lease_and_sign(harness, redis_client, name)
    end_lease_and_machine(harness, "r2")
    copy.now = harness.now
    seen = [sees_another(copy)]
    end_lease_and_machine(harness, "r3")
    for turn in range(4):
        for each, name in ((copy, f"c{turn}"), (harness, f"p{turn}")):
            each.now = max(harness.now, copy.now)
            seen.append(lease_and_sign(each, redis_client, name))
            if turn:
                end_lease_and_machine(each, f"{name[0]}{turn - 1}")
    assert seen == [True] * 9
    assert (harness.store.read_cluster().restores, copy.store.read_cluster().restores) == (0, 1)
    assert [*list_ended_without_a_slot(harness), *list_ended_without_a_slot(copy)] == []


def test_a_failed_jump_beside_signs_of_another_installation_is_made_by_the_next_sweep(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    appear(harness, "i-1", "linux-1", f"other {NOW:.0f}")
    harness.fleet.machines["i-1"] = msgspec.structs.replace(harness.fleet.machines["i-1"], highest_term=5 * JUMP)
    with monkeypatch.context() as failing:
        failing.setattr(harness.store, "transaction", refuse_transactions)
        with pytest.raises(StoreUnavailableError):
            reconcile(harness.ports)
    for _ in range(2):
        assert sees_another(harness)
        assert harness.store.read_cluster().restores == 1


def refuse_transactions() -> NoReturn:
    raise StoreUnavailableError("the database is not reachable")


def test_when_the_machine_with_the_sign_ends_the_next_one_gets_a_sign_before_it_counts_as_an_orphan(
    harness: Harness, redis_client: redis.Redis
) -> None:
    lease_and_sign(harness, redis_client, "r1")
    end_lease_and_machine(harness, "r1")
    began = harness.now
    lease_and_sign(harness, redis_client, "r2")
    (only,) = harness.fleet.sweep()
    assert only.alive
    assert harness.now - began < ORPHAN_SECONDS
