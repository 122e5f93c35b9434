"""Signed heartbeats: only the host of a slot can send one for it, and each heartbeat counts once."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import redis

from scheduler.operations.heartbeats import AccessMode
from scheduler.operations.tick.heartbeat_intake import hear_hosts
from scheduler.ports import Heartbeats, StoredPrincipal
from scheduler.protocol.heartbeats import Heartbeat, format_heartbeat, is_heartbeat_of, read_heartbeat, sign_heartbeat
from scheduler.protocol.signing import make_key, read_key
from scheduler.view.memory import MemoryHeartbeats
from scheduler.view.redis_ports import KEPT_SECONDS, RedisHeartbeats
from testbed.servers import redis_client, redis_server, redis_url
from tests.operations.harness import CONFIG, Harness

__all__ = ["redis_client", "redis_server", "redis_url"]

TIMEOUT: Final = 30.0
RULES: Final[dict[str, Any]] = {
    "pools": {
        **CONFIG["pools"],
        "lab": {"system": "lab-linux", "provider": "static", "lease_ttl": 0, "offline_timeout": TIMEOUT},
    }
}
KEYS: Final = {name: make_key() for name in ("lab-1", "lab-2", "shop")}


def a_lab(mode: AccessMode = "signed") -> Harness:
    """Return a harness with two hosts and a producer, each with a principal."""
    harness = Harness(RULES)
    with harness.store.transaction() as transaction:
        transaction.load_principals()
        transaction.save_principals(
            [
                StoredPrincipal(
                    name=name, role="producer" if name == "shop" else "host", key=key, created_at=harness.now
                )
                for name, key in KEYS.items()
            ]
        )
    harness.ports.host_keys.mode = mode
    for slot, machine in (("lab-1", "m1"), ("lab-2", "m2")):
        assert harness.ask("register", slot=slot, pool="lab", machine=machine)["ok"]
    harness.tick()
    harness.now += 10
    return harness


def a_beat(
    harness: Harness, key: str = "lab-1", slot: str = "lab-1", cluster: str | None = None, **fields: Any
) -> Heartbeat:
    """Return a heartbeat of lab-1, signed now (default: with the key of lab-1)."""
    beat = Heartbeat(**{"machine": "m1", "counter": int(harness.now * 1000), **fields})
    identity = harness.store.read_cluster().identity if cluster is None else cluster
    return sign_heartbeat(read_key(KEYS[key]), identity, slot, beat)


def hear(harness: Harness, beat: Heartbeat, slot: str = "lab-1") -> bool:
    """Let this heartbeat arrive; return whether it was accepted."""
    harness.heartbeats.put(slot, beat)
    before = harness.slot(slot)
    hear_hosts(harness.ports)
    return harness.slot(slot).last_seen != before.last_seen


def count(harness: Harness, reason: str) -> float:
    return harness.meter.counts["leasehold_heartbeats_refused_total", (("reason", reason),)]


def test_a_heartbeat_signed_by_its_host_is_accepted_and_its_counter_stored() -> None:
    harness = a_lab()
    assert hear(harness, a_beat(harness))
    assert (harness.slot("lab-1").last_seen, harness.slot("lab-1").heartbeat) == (harness.now, harness.now * 1000)
    harness.now += 10
    assert hear(harness, a_beat(harness, version="1:2:30"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # signed by another host, by a producer, for another slot, for another cluster
        ({"key": "lab-2"}, "signature"),
        ({"key": "shop"}, "signature"),
        ({"slot": "lab-2"}, "signature"),
        ({"cluster": "other"}, "signature"),
    ],
)
def test_a_heartbeat_with_another_signature_is_refused(changes: dict[str, str], reason: str) -> None:
    harness = a_lab()
    assert not hear(harness, a_beat(harness, **changes))
    assert count(harness, reason) == 1


@pytest.mark.parametrize("field", ["machine", "version", "counter", "mac"])
def test_a_heartbeat_with_a_changed_field_is_refused(field: str) -> None:
    harness = a_lab()
    changed: Any = {"machine": "m2", "version": "9:9:30", "counter": int(harness.now * 1000) + 1, "mac": "0" * 64}[
        field
    ]
    slot = "lab-2" if field == "machine" else "lab-1"
    assert not hear(harness, a_beat(harness, slot=slot)._replace(**{field: changed}), slot)
    assert count(harness, "signature") == 1


@pytest.mark.parametrize("mode", ["open", "warn", "signed"])
def test_a_wrong_signature_is_refused_in_every_mode_and_a_missing_one_in_signed(mode: AccessMode) -> None:
    harness = a_lab(mode)
    assert not hear(harness, a_beat(harness, key="lab-2"))
    harness.now += 1
    assert hear(harness, Heartbeat("m1")) is (mode != "signed")
    assert count(harness, "unsigned") == (mode == "signed")


def test_heartbeats_of_another_machine_are_counted_and_harm_nothing() -> None:
    harness = a_lab()
    harness.heartbeats.put("lab-2", Heartbeat("another"))
    assert hear(harness, a_beat(harness))
    assert count(harness, "machine") == 1


def test_a_copy_of_a_heartbeat_does_not_keep_a_host_online() -> None:
    harness = a_lab()
    beats = [a_beat(harness, counter=int(harness.now * 1000) + number) for number in range(3)]
    assert all(hear(harness, beat) for beat in beats[:1])
    seen = harness.slot("lab-1").last_seen
    hear_hosts(harness.ports)
    assert count(harness, "copy") == 0
    for beat in (beats[0], beats[0]):
        harness.now += 5
        assert not hear(harness, beat)
    assert (harness.slot("lab-1").last_seen, count(harness, "copy")) == (seen, 2)
    assert hear(harness, beats[2])
    harness.now += 5
    assert not hear(harness, beats[1])


def test_a_tick_does_not_count_a_copy_of_a_heartbeat() -> None:
    harness = a_lab()
    beat = a_beat(harness)
    assert hear(harness, beat)
    harness.ask("submit", id="r1", system="lab-linux")
    harness.tick()
    for _ in range(8):
        harness.now += 5
        harness.heartbeats.put("lab-1", beat)
        harness.tick()
    assert harness.slot("lab-1").last_seen == harness.now - 40


def test_a_heartbeat_from_before_a_removal_does_not_count_after_a_new_registration() -> None:
    harness = a_lab()
    earlier = a_beat(harness)
    harness.now += 20
    harness.ask("remove", slot="lab-1")
    answer = harness.ask("register", slot="lab-1", pool="lab", machine="m1")
    assert answer["heartbeat"] == harness.now * 1000
    harness.now += 1
    assert not hear(harness, earlier)
    assert hear(harness, a_beat(harness, counter=answer["heartbeat"] + 1))


def test_a_rotated_key_counts_until_its_time_is_over() -> None:
    harness = a_lab()
    fresh = make_key()
    with harness.store.transaction() as transaction:
        known = transaction.load_principals()["lab-1"]
        transaction.save_principals(
            [
                StoredPrincipal(
                    name="lab-1",
                    role="host",
                    key=fresh,
                    created_at=known.created_at,
                    previous_key=known.key,
                    previous_until=harness.now + 60,
                )
            ]
        )
    assert hear(harness, a_beat(harness))
    harness.now += 60
    assert not hear(harness, a_beat(harness))
    new = Heartbeat("m1", counter=int(harness.now * 1000) + 1)
    assert hear(harness, sign_heartbeat(read_key(fresh), harness.store.read_cluster().identity, "lab-1", new))


@pytest.fixture(params=["memory", "redis"])
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[Heartbeats, Any]]:
    """Each implementation of the port, and a function that stores a heartbeat in it."""
    if request.param == "memory":
        memory = MemoryHeartbeats()
        yield memory, memory.put
        return
    client: redis.Redis = request.getfixturevalue("redis_client")

    def put(slot: str, beat: Heartbeat) -> None:
        client.set(f"leasehold:heartbeat:{slot}", format_heartbeat(beat), ex=KEPT_SECONDS)

    yield RedisHeartbeats(client), put


def test_heartbeats_are_returned_with_counter_and_mac(kept: tuple[Heartbeats, Any]) -> None:
    heartbeats, put = kept
    signed = sign_heartbeat(read_key(KEYS["lab-1"]), "c", "lab-1", Heartbeat("m1", "1:2:30", 5))
    put("lab-1", signed)
    put("lab-2", Heartbeat("m2", "1:1:30"))
    heard = heartbeats.listen({"lab-1": "m1", "lab-2": "m2", "lab-3": "m3"})
    assert heard.signed == {"lab-1": signed}
    assert set(heard.ages) == {"lab-1", "lab-2"}


def test_the_signature_covers_the_limits_between_fields() -> None:
    key = read_key(KEYS["lab-1"])
    one = sign_heartbeat(key, "c", "lab-1", Heartbeat("m1", "2", 34))
    assert sign_heartbeat(key, "c", "lab-1", Heartbeat("m12", "", 34)).mac != one.mac
    assert sign_heartbeat(key, "c", "lab-1", Heartbeat("m1", "23", 4)).mac != one.mac
    assert is_heartbeat_of(key, "c", "lab-1", one)
    assert read_heartbeat(format_heartbeat(one).encode()) == one
