"""The smaller ports on Redis: leader lock, notifier, heartbeats and cluster record.

    <prefix>heartbeat:<slot>    string  see scheduler/protocol/heartbeats.py; expires after KEPT_SECONDS
    <prefix>heartbeat:<slot>:<run>      the same, from this run of the host's agent
    <prefix>heartbeats:since    string  "<run id of the server> <its time>": heartbeats are kept here since then

Hosts write a heartbeat with one plain SET, so they need no Lua script. The age of a heartbeat is computed from its
remaining time to live, so only the clock of the Redis server counts.
"""

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Final, Self, cast

import msgspec
import redis
from typing_extensions import override

from scheduler.ports import (
    ClusterRecord,
    Heard,
    LeaderLock,
    Notifier,
    Remembered,
    ViewUnavailableError,
    check_reply_address,
)
from scheduler.protocol.heartbeats import Heartbeat, read_heartbeat
from scheduler.protocol.names import DEFAULT_PREFIX, TICKS, RedisNames
from scheduler.view.connection import (
    NO_READS,
    Bundle,
    Command,
    EarlyRead,
    ask,
    load_script,
    name_script,
    redis_errors,
    run_script,
)

KICK_SECONDS = 2.0
"""Seconds during which all kicks (requests for a tick) together send one message, unless a tick begins earlier."""
MARK_SECONDS: Final = 0.2
"""Seconds after the end of a wait for a kick for which the mark of a process that died stays. A kick that meets it is
lost, as with a worker that dies with the message for a tick.
"""
REPLY_SECONDS = 60
MESSAGES_A_CALL: Final = 1000
"""The most notices (to holders) or hints (to hosts) that are published in one round trip."""


class RedisNotifier(Notifier):
    """The Notifier port on Redis. `send_tick`: the function that sends one message for a tick; its errors are passed
    on. `write_tick`: the function that returns such a message as text if the queue of ticks is in the same Redis, so
    that a kick takes one round trip; it returns None otherwise.

    Everything is sent as JSON: notices for holders on the channel `<prefix>notice:<reservation>`, hints for a host on
    `<prefix>host:<slot>`, answers to requests onto the lists `<prefix>reply:<word>`.
    """

    def __init__(
        self,
        client: redis.Redis,
        send_tick: Callable[[], None],
        prefix: str = DEFAULT_PREFIX,
        *,
        kick_seconds: float = KICK_SECONDS,
        write_tick: Callable[[], str | None] | None = None,
        bundle: Bundle | None = None,
    ) -> None:
        self._bundle = bundle or Bundle(client)
        self._client, self._send_tick, self._write_tick = client, send_tick, write_tick
        self._names, self._kick_ms = RedisNames(prefix), int(kick_seconds * 1000)
        self._flag, self._waits, self._woken = (f"{prefix}kick{part}" for part in ("", ":waits", ":woken"))
        self._begin_wait, self._end_wait = load_script(client, "begin_wait"), load_script(client, "end_wait")
        self._publish_messages = load_script(client, "publish_messages")
        self._kick = load_script(client, "kick")

    @override
    def kick(self) -> None:
        message = None if self._write_tick is None else self._write_tick()
        if message is None:
            self._bundle.send()
            self._kick_alone(None)
            return
        command = name_script(self._kick, self._kick_keys, [self._kick_ms, message])
        self._bundle.add(command, lambda: self._kick_alone(message))

    @property
    def _kick_keys(self) -> list[str]:
        return [self._flag, TICKS, self._waits, self._woken]

    @redis_errors()
    @override
    def await_kick(self, seconds: float) -> bool:
        if self._write_tick is None:
            return False
        wait_ms = int((seconds + MARK_SECONDS) * 1000)
        if not run_script(self._client, self._begin_wait, [self._flag, self._waits, self._woken], [wait_ms]):
            return False
        if self._client.blpop([self._woken], timeout=seconds):
            return True
        return bool(run_script(self._client, self._end_wait, [self._waits, self._woken], []))

    def _kick_alone(self, message: str | None) -> None:
        if message is not None and self._kick_at_once(message):
            return
        if not self._raise_flag():
            return
        is_sent = False
        try:
            self._send_tick()
            is_sent = True
        finally:
            if not is_sent:
                self.hear()

    @redis_errors()
    @override
    def hear(self) -> None:
        self._client.delete(self._flag)

    @redis_errors()
    @override
    def notify(self, notices: Mapping[str, Mapping[str, Any]]) -> None:
        self._publish({self._names.notice(reservation): each for reservation, each in notices.items()})

    @redis_errors()
    @override
    def push(self, news: Mapping[str, Mapping[str, Any]]) -> None:
        self._publish({self._names.host(slot): each for slot, each in news.items()})

    @override
    def reply(self, address: str, answer: Mapping[str, Any]) -> None:
        if self.reply_to_all([(address, answer)]):
            raise ViewUnavailableError(f"Redis: {address} is not the list for the answers to a request")

    @redis_errors()
    @override
    def reply_to_all(self, answers: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        for address, _ in answers:
            check_reply_address(address, self._names.prefix)
        with self._client.pipeline(transaction=True) as pipeline:
            for address, answer in answers:
                pipeline.rpush(address, msgspec.json.encode(answer))
                pipeline.expire(address, REPLY_SECONDS)
            results: list[Any] = pipeline.execute(raise_on_error=False)
        errors = [each for each in results if isinstance(each, redis.RedisError)]
        if any("WRONGTYPE" not in str(each) for each in errors):
            raise errors[0]
        pushed = zip(answers, results[::2], strict=True)
        return [address for (address, _), result in pushed if isinstance(result, redis.RedisError)]

    def _publish(self, messages: Mapping[str, Mapping[str, Any]]) -> None:
        """Publish each message on its channel (channel -> message), at most MESSAGES_A_CALL in one round trip."""
        # As text, because the MessagePack of Redis 6 has no bytes.
        pairs = [(channel, msgspec.json.encode(message).decode()) for channel, message in messages.items()]
        if len(pairs) == 1:
            channel, message = pairs[0]
            self._bundle.add(("PUBLISH", channel, message), lambda: self._client.publish(channel, message))
            return
        for start in range(0, len(pairs), MESSAGES_A_CALL):
            arguments = [msgspec.msgpack.encode(pairs[start : start + MESSAGES_A_CALL])]
            command = name_script(self._publish_messages, [], arguments)
            self._bundle.add(command, partial(self._publish_messages, [], arguments))

    @redis_errors()
    def _kick_at_once(self, message: str) -> bool:
        """Put the message for a tick into its queue, unless an earlier kick sent one and no tick has begun since.
        Return True if a message is in the queue; False if it must be sent in another way, because the key of the queue
        is no list or the Redis user may not run scripts.
        """
        try:
            self._kick(self._kick_keys, [self._kick_ms, message])
        except redis.ResponseError:
            return False
        return True

    @redis_errors()
    def _raise_flag(self) -> bool:
        return bool(self._client.set(self._flag, 1, nx=True, px=self._kick_ms))


KEPT_SECONDS: Final = 86400
HOSTS_A_CALL: Final = 1000
GONE: Final = -2
"""The answer to PTTL for a key that does not exist any more."""


class RedisHeartbeats:
    """The Heartbeats port on Redis. Hosts write their heartbeats to Redis, and every process can read them."""

    def __init__(self, client: redis.Redis, prefix: str = DEFAULT_PREFIX) -> None:
        self._client, self._since = client, f"{prefix}heartbeats:since"
        self._names = RedisNames(prefix)

    @redis_errors()
    def listen(self, hosts: Mapping[str, str], runs: Mapping[str, str] | None = None) -> Heard:
        """Return the heartbeats of these hosts (slot id -> machine id). Heartbeats that another machine sent for the
        slot are ignored. The result's `kept_for` counts from the last flush or restart of the Redis server. See
        Heartbeats.
        """
        runs = runs or {}
        slots = list(hosts)
        found: list[tuple[str, Heartbeat | None, float]] = []
        for start in range(0, len(slots), HOSTS_A_CALL):
            some = slots[start : start + HOSTS_A_CALL]
            found += self._read([(slot, run) for slot in some for run in dict.fromkeys([runs.get(slot), None])])
        return Heard.of(hosts, found, self._kept_for())

    def _read(self, places: Sequence[tuple[str, str | None]]) -> Iterator[tuple[str, Heartbeat | None, float]]:
        """Yield (slot id, heartbeat, age in seconds) for each pair of a slot and a run of its agent (None: the key that
        no run has) at which there is a value. The heartbeat is None if the value is none.
        """
        with self._client.pipeline(transaction=False) as pipeline:
            for slot, run in places:
                key = self._names.heartbeat(slot, run)
                pipeline.get(key)
                pipeline.pttl(key)
            answers: list[Any] = pipeline.execute(raise_on_error=False)
        for (slot, _), value, left in zip(places, answers[::2], answers[1::2], strict=True):
            for each in (value, left):
                # A key of another type must not hide the heartbeats of all hosts.
                if isinstance(each, Exception) and not str(each).startswith("WRONGTYPE"):
                    raise each
            if isinstance(value, Exception):
                yield slot, None, 0.0
            elif value is not None and left != GONE:
                is_kept = 0 < left <= KEPT_SECONDS * 1000
                yield slot, read_heartbeat(value) if is_kept else None, KEPT_SECONDS - left / 1000

    def _kept_for(self) -> float:
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.time()
            pipeline.info("server")
            pipeline.get(self._since)
            answers: tuple[tuple[int, int], dict[str, Any], bytes | None] = tuple(pipeline.execute())
        (seconds, microseconds), server, stored = answers
        now, run_id = seconds + microseconds / 1e6, str(server["run_id"])
        written, _, since = (stored or b"").decode(errors="replace").partition(" ")
        with suppress(ValueError):
            if written == run_id:
                return max(now - float(since), 0.0)
        self._client.set(self._since, f"{run_id} {now:.3f}")
        return 0.0


RESTORING = "restoring"


_IDENTITY: Final = re.compile(rb"[0-9a-f]{32}")


class RedisRecord(ClusterRecord, EarlyRead):
    """The ClusterRecord port on Redis, under the keys `<prefix>cluster` (text) and `<prefix>highest` (hash). `client`
    must return bytes. `others`: records in other places that belong to the same cluster; what is written here is
    written there, too.
    """

    def __init__(self, client: redis.Redis, prefix: str = DEFAULT_PREFIX, others: Sequence["RedisRecord"] = ()) -> None:
        self._others = others
        self._client, self._cluster, self._highest = client, RedisNames(prefix).cluster, f"{prefix}highest"
        self._installation, self._name = f"{prefix}installation", secrets.token_hex(8)
        self._early: Sequence[Any] | None = None
        self._last: Remembered | None = None
        """What the last `read` has found; None after the next `keep`."""
        self._keep = load_script(client, "keep_record")

    @redis_errors()
    @override
    def read(self) -> Remembered:
        found, self._early = self._early, None
        if found is None:
            with self._client.pipeline(transaction=False) as pipeline:
                pipeline.get(self._cluster)
                pipeline.hmget(self._highest, ["term", "token", RESTORING])
                # A key of another type answers with an error instead of its contents.
                found = pipeline.execute(raise_on_error=False)
        identity, numbers = (None if isinstance(each, redis.ResponseError) else each for each in found)
        term, token, restoring = cast("list[bytes | None]", numbers or [None, None, None])
        self._last = remembered = Remembered(
            identity=identity.decode() if identity and _IDENTITY.fullmatch(identity) else None,
            term=_read_number(term),
            token=_read_number(token),
            is_restoring=restoring is not None,
        )
        return remembered

    @override
    def list_commands(self) -> Sequence[Command]:
        return [("GET", self._cluster), ("HMGET", self._highest, "term", "token", RESTORING)]

    @override
    def keep_replies(self, replies: Sequence[Any] | None) -> None:
        self._early = replies

    @redis_errors()
    @override
    def keep(self, identity: str, term: int, token: int) -> str:
        last, self._last = self._last, None
        if last is not None and last.identity == identity and last.term >= term and last.token >= token:
            return identity
        kept: bytes = run_script(self._client, self._keep, [self._cluster, self._highest], [identity, term, token])
        for other in self._others:
            with suppress(ViewUnavailableError):  # a user of Redis may have no right to its key
                other.keep(identity, term, token)
        return kept.decode(errors="replace")

    @redis_errors()
    @override
    def name_installation(self) -> str:
        self._client.set(self._installation, self._name, nx=True)
        found = cast("bytes | None", self._client.get(self._installation))
        self._name = found.decode(errors="replace") if found else self._name
        return self._name

    @redis_errors()
    @override
    def take_turn(self, seconds: float) -> bool:
        return bool(self._client.set(f"{self._installation}:turn", 1, nx=True, px=int(seconds * 1000)))

    @redis_errors()
    @override
    def has_compared_tags(self) -> bool:
        return bool(self._client.exists(f"{self._installation}:compared"))

    @redis_errors()
    @override
    def keep_compared_tags(self) -> None:
        self._client.set(f"{self._installation}:compared", 1)

    @redis_errors()
    @override
    def begin_restore(self) -> None:
        try:
            self._client.hset(self._highest, RESTORING, 1)
        except redis.ResponseError:
            self._client.delete(self._highest)
            self._client.hset(self._highest, RESTORING, 1)

    @redis_errors()
    @override
    def end_restore(self, identity: str, term: int, token: int) -> None:
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.delete(self._highest)
            pipeline.set(self._cluster, identity)
            pipeline.hset(self._highest, mapping={"term": term, "token": token})
            pipeline.execute()
        for other in self._others:
            with suppress(ViewUnavailableError):  # as above
                other.end_restore(identity, term, token)


def _read_number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


class RedisLeaderLock(LeaderLock):
    """The LeaderLock port on Redis, under the keys `<prefix>leader` and `<prefix>again`. Each process has one object. A
    `take` that succeeds also deletes the notifier's key `<prefix>kick`, in the same round trip. `early`: the reads
    whose results a tick needs right after `take`. `take` already sends the commands of these reads (EarlyRead).

    Every `take` has its own random token. If Redis gave no answer, the command or the next `take` is repeated with the
    same token. `clock`: a monotonic clock in seconds. `renew` and `seconds_left` may be called by another thread than
    the other methods.
    """

    def __init__(
        self,
        client: redis.Redis,
        prefix: str = DEFAULT_PREFIX,
        *,
        lock_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        early: Sequence[EarlyRead] = NO_READS,
    ) -> None:
        self._early = early
        self._client, self._keys = client, [RedisNames(prefix).leader, f"{prefix}again"]
        self._kick = f"{prefix}kick"
        self._lock_ms, self._clock = int(lock_seconds * 1000), clock
        self._token = ""
        self._unanswered: str | None = None
        self._held_since: float | None = None
        self._take = load_script(client, "take_lock")
        self._renew = load_script(client, "renew_lock")
        self._release = load_script(client, "release_lock")

    @redis_errors()
    @override
    def take(self) -> bool:
        token = self._unanswered or secrets.token_hex(16)
        self._unanswered = token
        began = self._clock()
        keys, arguments = [*self._keys, self._kick], list[bytes | str | int]([token, self._lock_ms])
        reads = [each.list_commands() for each in self._early]
        replies: list[Any] = []
        if any(reads):
            with suppress(redis.RedisError):
                replies = ask(self._client, [name_script(self._take, keys, arguments), *chain.from_iterable(reads)])
        # A take whose reply was lost is repeated with the same token.
        is_taken = bool(replies[0] if replies else self._take(keys, arguments))
        start = 1
        for early, commands in zip(self._early, reads, strict=True):
            part = replies[start : start + len(commands)]
            early.keep_replies(part if is_taken and commands and len(part) == len(commands) else None)
            start += len(commands)
        self._unanswered = None
        if is_taken:
            self._token, self._held_since = token, began
        return is_taken

    @redis_errors()
    @override
    def renew(self) -> bool:
        began = self._clock()
        is_ours = self._held_since is not None and bool(self._renew(self._keys[:1], [self._token, self._lock_ms]))
        self._held_since = began if is_ours else None
        return is_ours

    @redis_errors()
    @override
    def release(self) -> bool:
        self._held_since = None
        for early in self._early:
            early.keep_replies(None)
        return bool(run_script(self._client, self._release, self._keys, [self._token]))

    @redis_errors()
    @override
    def seconds_until_free(self) -> float:
        # A result below 0 means that no process has the lock.
        return max(0.0, self._client.pttl(self._keys[0]) / 1000)

    @override
    def seconds_left(self) -> float:
        since = self._held_since
        return 0.0 if since is None else max(0.0, since + self._lock_ms / 1000 - self._clock())


IDLE_SHARES: Final = 12
"""How long the thread of a Renewal waits for the next tick before the thread ends. The unit is a third of
`lock_seconds`, so 12 means four times the duration of the lock.
"""


class Renewal:
    """A `with` block during which a thread renews the leader lock, each time after a third of `lock_seconds`, the
    duration of the lock.

    The renewals end when another process has the lock or the lock has expired; `LeaderLock.seconds_left` shows this.
    While Redis cannot be reached, the renewals are tried again until the lock expires. Leaving the block waits for a
    renewal that is under way. The block may be entered again. Between two blocks the thread waits, at most IDLE_SHARES
    thirds of `lock_seconds`. Starting a thread in every tick would cost most of a millisecond.
    """

    def __init__(self, lock: LeaderLock, lock_seconds: float) -> None:
        self._lock, self._every_seconds = lock, lock_seconds / 3
        self._guard = threading.Condition()
        self._due: float | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        with self._guard:
            # The thread needs no signal: it wakes at least once in the time after which the renewal is due.
            self._due = time.monotonic() + self._every_seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lock-renewal", daemon=True)
                self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._guard:
            self._due = None

    def _run(self) -> None:
        idle = 0
        with self._guard:
            while self._due is not None or idle < IDLE_SHARES:
                left = self._every_seconds if self._due is None else self._due - time.monotonic()
                if left > 0:
                    idle = idle + 1 if self._due is None else 0
                    self._guard.wait(left)
                else:
                    self._due = time.monotonic() + self._every_seconds if self._is_held() else None
            self._thread = None

    def _is_held(self) -> bool:
        try:
            return self._lock.renew()
        except ViewUnavailableError:
            return self._lock.seconds_left() > 0
