"""Signed heartbeats: only the host of a slot is heard for it, and each of its heartbeats once."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import redis

from leasehold.common.heartbeats import Heartbeat, format_heartbeat, is_heartbeat_of, read_heartbeat, sign_heartbeat
from leasehold.common.signing import make_key, read_key
from scheduler.operations.heartbeats import AccessMode
from scheduler.operations.tick.heartbeat_intake import hear_hosts
from scheduler.ports import Heartbeats, StoredPrincipal
from scheduler.view.memory import MemoryHeartbeats
from scheduler.view.redis_heartbeats import KEPT_SECONDS, RedisHeartbeats
from tests.operations.harness import CONFIG, Harness
from tests.servers import redis_client, redis_server, redis_url

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
    """Two hosts, each with a principal; and a producer."""
    rig = Harness(RULES)
    with rig.store.transaction() as transaction:
        transaction.load_principals()
        transaction.save_principals(
            [
                StoredPrincipal(name=name, role="producer" if name == "shop" else "host", key=key, created_at=rig.now)
                for name, key in KEYS.items()
            ]
        )
    rig.ports.host_keys.mode = mode
    for slot, machine in (("lab-1", "m1"), ("lab-2", "m2")):
        assert rig.ask("register", slot=slot, pool="lab", machine=machine)["ok"]
    rig.tick()
    rig.now += 10
    return rig


def a_beat(
    rig: Harness, key: str = "lab-1", slot: str = "lab-1", cluster: str | None = None, **fields: Any
) -> Heartbeat:
    """A heartbeat as the host of lab-1 would sign it now."""
    beat = Heartbeat(**{"machine": "m1", "counter": int(rig.now * 1000), **fields})
    identity = rig.store.read_cluster().identity if cluster is None else cluster
    return sign_heartbeat(read_key(KEYS[key]), identity, slot, beat)


def hear(rig: Harness, beat: Heartbeat, slot: str = "lab-1") -> bool:
    """Whether the host is heard when this heartbeat arrives now."""
    rig.heartbeats.put(slot, beat)
    before = rig.slot(slot)
    hear_hosts(rig.ports)
    return rig.slot(slot).last_seen != before.last_seen


def count(rig: Harness, reason: str) -> float:
    return rig.meter.counts["leasehold_heartbeats_refused_total", (("reason", reason),)]


def test_a_heartbeat_that_its_host_signed_is_heard_and_its_counter_kept() -> None:
    rig = a_lab()
    assert hear(rig, a_beat(rig))
    assert (rig.slot("lab-1").last_seen, rig.slot("lab-1").heartbeat) == (rig.now, rig.now * 1000)
    rig.now += 10
    assert hear(rig, a_beat(rig, version="1:2:30"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # of another host, of no host, for another slot, of another cluster
        ({"key": "lab-2"}, "signature"),
        ({"key": "shop"}, "signature"),
        ({"slot": "lab-2"}, "signature"),
        ({"cluster": "other"}, "signature"),
    ],
)
def test_a_heartbeat_that_another_signed_is_not_heard(changes: dict[str, str], reason: str) -> None:
    rig = a_lab()
    assert not hear(rig, a_beat(rig, **changes))
    assert count(rig, reason) == 1


@pytest.mark.parametrize("field", ["machine", "version", "counter", "mac"])
def test_a_heartbeat_with_a_changed_field_is_not_heard(field: str) -> None:
    rig = a_lab()
    changed: Any = {"machine": "m2", "version": "9:9:30", "counter": int(rig.now * 1000) + 1, "mac": "0" * 64}[field]
    slot = "lab-2" if field == "machine" else "lab-1"
    assert not hear(rig, a_beat(rig, slot=slot)._replace(**{field: changed}), slot)
    assert count(rig, "signature") == 1


@pytest.mark.parametrize("mode", ["open", "warn", "signed"])
def test_a_wrong_signature_is_refused_in_every_mode_and_a_missing_one_in_signed(mode: AccessMode) -> None:
    rig = a_lab(mode)
    assert not hear(rig, a_beat(rig, key="lab-2"))
    rig.now += 1
    assert hear(rig, Heartbeat("m1")) is (mode != "signed")
    assert count(rig, "unsigned") == (mode == "signed")


def test_a_copy_of_a_heartbeat_does_not_keep_a_dead_host_alive() -> None:
    rig = a_lab()
    beats = [a_beat(rig, counter=int(rig.now * 1000) + number) for number in range(3)]
    assert all(hear(rig, beat) for beat in beats[:1])
    seen = rig.slot("lab-1").last_seen
    hear_hosts(rig.ports)
    assert count(rig, "copy") == 0
    for beat in (beats[0], beats[0]):
        rig.now += 5
        assert not hear(rig, beat)
    assert (rig.slot("lab-1").last_seen, count(rig, "copy")) == (seen, 2)
    assert hear(rig, beats[2])
    rig.now += 5
    assert not hear(rig, beats[1])


def test_a_tick_does_not_hear_a_copy_before_it_takes_a_host_for_silent() -> None:
    rig = a_lab()
    beat = a_beat(rig)
    assert hear(rig, beat)
    rig.ask("submit", id="r1", system="lab-linux")
    rig.tick()
    for _ in range(8):
        rig.now += 5
        rig.heartbeats.put("lab-1", beat)
        rig.tick()
    assert rig.slot("lab-1").last_seen == rig.now - 40


def test_an_earlier_heartbeat_does_not_speak_for_a_host_that_was_removed_and_is_back() -> None:
    rig = a_lab()
    earlier = a_beat(rig)
    rig.now += 20
    rig.ask("remove", slot="lab-1")
    answer = rig.ask("register", slot="lab-1", pool="lab", machine="m1")
    assert answer["heartbeat"] == rig.now * 1000
    rig.now += 1
    assert not hear(rig, earlier)
    assert hear(rig, a_beat(rig, counter=answer["heartbeat"] + 1))


def test_a_rotated_key_counts_until_its_time_is_over() -> None:
    rig = a_lab()
    fresh = make_key()
    with rig.store.transaction() as transaction:
        known = transaction.load_principals()["lab-1"]
        transaction.save_principals(
            [
                StoredPrincipal(
                    name="lab-1",
                    role="host",
                    key=fresh,
                    created_at=known.created_at,
                    previous_key=known.key,
                    previous_until=rig.now + 60,
                )
            ]
        )
    assert hear(rig, a_beat(rig))
    rig.now += 60
    assert not hear(rig, a_beat(rig))
    new = Heartbeat("m1", counter=int(rig.now * 1000) + 1)
    assert hear(rig, sign_heartbeat(read_key(fresh), rig.store.read_cluster().identity, "lab-1", new))


@pytest.fixture(params=["memory", "redis"])
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[Heartbeats, Any]]:
    """Each pulse, and how a heartbeat gets there."""
    if request.param == "memory":
        memory = MemoryHeartbeats()
        yield memory, memory.put
        return
    client: redis.Redis = request.getfixturevalue("redis_client")

    def put(slot: str, beat: Heartbeat) -> None:
        client.set(f"leasehold:heartbeat:{slot}", format_heartbeat(beat), ex=KEPT_SECONDS)

    yield RedisHeartbeats(client), put


def test_a_pulse_hands_on_counter_and_mac(kept: tuple[Heartbeats, Any]) -> None:
    heartbeats, put = kept
    signed = sign_heartbeat(read_key(KEYS["lab-1"]), "c", "lab-1", Heartbeat("m1", "1:2:30", 5))
    put("lab-1", signed)
    put("lab-2", Heartbeat("m2", "1:1:30"))
    heard = heartbeats.listen({"lab-1": "m1", "lab-2": "m2", "lab-3": "m3"})
    assert heard.signed == {"lab-1": signed}
    assert set(heard.ages) == {"lab-1", "lab-2"}


def test_the_signature_does_not_depend_on_where_one_word_ends() -> None:
    key = read_key(KEYS["lab-1"])
    one = sign_heartbeat(key, "c", "lab-1", Heartbeat("m1", "2", 34))
    assert sign_heartbeat(key, "c", "lab-1", Heartbeat("m12", "", 34)).mac != one.mac
    assert sign_heartbeat(key, "c", "lab-1", Heartbeat("m1", "23", 4)).mac != one.mac
    assert is_heartbeat_of(key, "c", "lab-1", one)
    assert read_heartbeat(format_heartbeat(one).encode()) == one
