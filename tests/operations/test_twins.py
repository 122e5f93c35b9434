"""An installation with a copy of another one's database, and an older database with an emptied Redis."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
import redis

from scheduler.operations.jump import JUMP, MOST_TRUSTED
from scheduler.operations.machines.reconcile import ORPHAN_SECONDS, reconcile
from scheduler.operations.machines.twins import FRESH_SECONDS, LEAST_AGE_SECONDS, MOST_SIGNED, RENEW_SECONDS
from scheduler.ports import CloudError, ForeignMachineError
from scheduler.view.redis_ports import RedisRecord
from tests.operations.harness import NOW, Harness
from tests.servers import find_redis, redis_client, redis_server, redis_url

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
