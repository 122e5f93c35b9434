"""The view on Redis: a copy of the database's rows as JSON, numbered changes of the copy, and a generation that shows
whether the copy is complete.

A reader gets the rows as they were some moments ago, or nothing. The generation contains the run id of the Redis
server. So after a flush, a restart or a restore from a snapshot the view is not valid until a leader rebuilds it from
SQL. `publish.lua` lists the keys.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import count, islice
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
import redis
from typing_extensions import override

from scheduler.model.history import Sample, find_place
from scheduler.model.reservations import Reservation
from scheduler.model.view import ROW_TYPES, Change, Kind, Row, View, count_rows
from scheduler.model.waits import NO_WAITS, WaitBlock, Waits
from scheduler.ports import SetAside, ViewCache, ViewUnavailableError
from scheduler.protocol.names import DEFAULT_PREFIX, RedisNames
from scheduler.protocol.redis_primary import note_view
from scheduler.protocol.report import read_report
from scheduler.view.codec import RowReader, decode_deltas, has_user_data, pack_changes
from scheduler.view.connection import Ahead, Bundle, Command, EarlyRead, load_script, name_script, redis_errors
from scheduler.view.set_aside import VIEW_TYPES, ContentCheck, forget_records, list_records, set_aside

# Which blocks of waiting reservations the report of a tick adds and deletes in Redis. A block has the waiting codes of
# some reservations that follow each other in the queue; scheduler/protocol/report.py defines its form.


class BlockChange(NamedTuple):
    """How a report changes the blocks in Redis. `fields`: the names of all blocks after the change, in queue order.
    `added`: name -> contents of each block to write. `removed`: the names of the blocks to delete.
    """

    fields: list[str]
    added: dict[str, bytes]
    removed: list[str]
    is_whole: bool
    """Whether `added` has all blocks of waiting reservations, because this process does not know the blocks in Redis.
    """


class WaitBlocks:
    """The blocks of waiting reservations that this process has written to Redis with its last report."""

    def __init__(self) -> None:
        self._fields: dict[WaitBlock, str] | None = None
        """Block -> the name under which Redis has it (a field of a hash), in queue order. Blocks that are not
        in Redis are not in the table. Blocks are compared by identity. None: it is not known which blocks Redis has.
        """
        self._numbers = count()
        self._name = secrets.token_hex(4)

    def forget(self) -> None:
        """Forget which blocks Redis has: the next report contains all of them."""
        self._fields = None

    def follow(self, waits: Waits) -> BlockChange:
        """Return the change to the stored blocks after which they contain exactly these waiting reservations."""
        is_whole, before = self._fields is None, self._fields or {}
        blocks = waits.cut(tuple(before))
        added = {block: f"{self._name}-{next(self._numbers)}" for block in blocks if block not in before}
        self._fields = {block: added.get(block) or before[block] for block in blocks}
        removed = [] if is_whole else sorted(field for block, field in before.items() if block not in self._fields)
        bodies = {field: _encode(block) for block, field in added.items()}
        return BlockChange(list(self._fields.values()), bodies, removed, is_whole)


def _encode(block: WaitBlock) -> bytes:
    different = list(dict.fromkeys(block.reasons))
    numbers = {reason: number for number, reason in enumerate(different)}
    of_each = [numbers[reason] for reason in block.reasons] if len(different) > 1 else []
    return msgspec.json.encode((block.names, different, of_each))


CHANGES_A_CALL = 500
"""Maximum number of changed rows that are sent to one Lua script. Redis serves no other client during a script; with
this number, that takes some milliseconds.
"""
ENTRIES_A_CALL = 100
"""Maximum number of entries of the view's stream of changes that a call reads. Each has up to CHANGES_A_CALL changes.
"""
EARLY_ENTRIES: Final = 10
"""The most entries of the stream of changes that are read together with the take of the leader lock. The number is
small, because a process that does not get the lock reads them in vain.
"""
ROWS_A_CALL = 1000
START = b"0"
"""The cursor of a Redis scan before its first and after its last call."""
LOADS_TRIED = 3
"""The most attempts at loading the whole view. A load is repeated if Redis has dropped changes that were made
meanwhile.
"""

T = TypeVar("T")


class RedisViewCache(ViewCache, EarlyRead):
    """The ViewCache port on Redis. Each process has one object. `client` must return bytes (`make_redis`).

    Any thread may publish, read rows and write reports. The process's own copy (`catch_up`, `load`, `rebuild`) belongs
    to one thread. `publish` writes into the view of any valid generation, because whole rows are merged by their
    versions. A reader applies only changes of the generation (build of the view) that it has copied.
    """

    def __init__(
        self,
        client: redis.Redis,
        prefix: str = DEFAULT_PREFIX,
        *,
        kept_seconds: float = 600,
        deltas_kept: int = 50_000,
        make_view: Callable[[], View] = View,
        bundle: Bundle | None = None,
    ) -> None:
        self._bundle = bundle or Bundle(client)
        self._client, self._prefix = client, prefix
        self._kept_ms, self._deltas_kept = int(kept_seconds * 1000), deltas_kept
        self._view: View | None = None
        self._make_view = make_view
        self._generation, self._sequence = b"", 0
        self._has_user_data = False
        """Whether this process has read a row with user data since the last rebuild."""
        self._early: tuple[bytes, int, list[Any] | None] | None = None
        """(generation, sequence, changes) that were read when the leader lock was taken: the position of this copy at
        that time, and the later changes. None: nothing was read.
        """
        self._names, self._keys = RedisNames(prefix), _ScriptKeys(prefix)
        self._contents, self._blocks = ContentCheck(client, prefix), WaitBlocks()
        self._publish = load_script(client, "validity", "publish")
        self._catch_up = load_script(client, "validity", "catch_up")
        self._position = load_script(client, "validity", "position")
        self._scan_rows = load_script(client, "scan_rows")
        self._begin = load_script(client, "begin_rebuild")
        self._finish = load_script(client, "validity", "finish_rebuild")
        self._count = load_script(client, "validity", "count_rows")
        self._publish_clock, self._clock = load_script(client, "publish_clock"), self._names.clock

    @redis_errors()
    @override
    def publish(self, changes: Sequence[Change]) -> bool:
        if changes and len(changes) <= CHANGES_A_CALL:
            command = name_script(self._publish, self._keys.all, self._list_arguments(changes, b""))
            found: list[bool] = []
            self._bundle.add(command, lambda: found.append(self._send(changes)))
            return all(found)
        self._bundle.send()
        # The first call sends the script to Redis, so that its hash is known there.
        is_valid = not changes or self._send(changes[:CHANGES_A_CALL])
        if not is_valid or len(changes) <= CHANGES_A_CALL:
            return is_valid
        with suppress(redis.RedisError), closing(Ahead(self._client)) as ahead:
            return all(self._send_ahead(ahead, _batches(changes[CHANGES_A_CALL:], CHANGES_A_CALL)))
        # The connection was lost, or Redis has dropped the script: these calls are tried again. Rows may be sent twice.
        return all(self._send(batch) for batch in _batches(changes, CHANGES_A_CALL))

    @redis_errors()
    @override
    def catch_up(self) -> View | None:
        if self._view is not None and not self._apply_deltas(self._view):  # promise: gap-reloads
            self._view = None
        if self._view is not None:
            note_view(self._client, is_valid=True)
        return self._view

    @override
    def list_commands(self) -> Sequence[Command]:
        arguments: list[bytes | int] = [self._generation, self._sequence, EARLY_ENTRIES]
        return [] if self._view is None else [name_script(self._catch_up, self._keys.catch_up, arguments)]

    @override
    def keep_replies(self, replies: Sequence[Any] | None) -> None:
        self._early = None if replies is None else (self._generation, self._sequence, replies[0])

    @redis_errors()
    @override
    def load(self) -> View | None:
        self._view = None
        for _ in range(LOADS_TRIED):
            position = cast("tuple[bytes, int] | None", self._position(self._keys.position))
            note_view(self._client, is_valid=position is not None)
            if position is None:
                return None
            self._generation, self._sequence = position
            view = self._scan()
            if view is None:
                return None
            if self._apply_deltas(view):
                self._view = view
                break
        return self._view

    @redis_errors()
    @override
    def read_kept(self) -> dict[str, Reservation]:
        found: dict[str, Reservation] = {}
        with suppress(redis.ResponseError):  # the key has another type
            for _, body in self._client.hscan_iter(self._keys.rows("reservations"), count=ROWS_A_CALL):
                with suppress(msgspec.DecodeError):
                    row = msgspec.json.decode(cast("bytes", body), type=Reservation)
                    found[row.id] = row
        return found

    @redis_errors()
    @override
    def rebuild(self, rows: Iterable[Row]) -> View:
        self._view, self._has_user_data = None, False
        generation = cast("bytes", self._begin(self._keys.all, [secrets.token_hex(8)]))
        view = self._make_view()
        # Without rows, the first call sends the script to Redis, so that its hash is known there.
        _require(self._send([], generation))
        with closing(Ahead(self._client)) as ahead:
            for is_ours in self._send_ahead(ahead, _apply_each(view, _batches(rows, CHANGES_A_CALL)), generation):
                _require(is_ours)
        _require(bool(self._finish(self._keys.generations, [generation])))
        self._generation, self._sequence = generation, 0
        self._view = view if self._apply_deltas(view) else self.load()
        _require(self._view is not None)
        return cast("View", self._view)

    @redis_errors()
    @override
    def set_aside_wrong_keys(self) -> list[SetAside]:
        # Repair the list of renamed keys first, so that it can be written.
        set_aside(self._client, self._prefix, {f"{self._prefix}set-aside": "list"})
        types = {f"{self._prefix}{key}": kind for key, kind in VIEW_TYPES.items()}
        found = set_aside(self._client, self._prefix, types)
        found += set_aside(self._client, self._prefix, dict.fromkeys(self._contents.find_unreadable(), "unreadable"))
        if any(each.key.startswith(f"{self._prefix}view:") for each in found):
            self._client.delete(self._keys.generation)
        return found

    @redis_errors()
    @override
    def list_set_aside(self) -> list[SetAside]:
        return list_records(self._client, self._prefix)

    @redis_errors()
    @override
    def forget_set_aside(self, records: Sequence[SetAside]) -> None:
        forget_records(self._client, self._prefix, records)

    @redis_errors()
    @override
    def matches_copy(self) -> bool:
        if self._has_user_data:
            return False
        for _ in range(LOADS_TRIED):
            view = self.catch_up()
            stored = cast("list[int] | None", self._count(self._keys.all, [self._generation]))
            if view is None or stored is None:
                return False
            sequence, *counts = stored
            if sequence == self._sequence:
                return dict(zip(ROW_TYPES, counts, strict=True)) == count_rows(view)
        return True

    @redis_errors()
    @override
    def publish_time(self, now: float) -> None:
        self._publish_clock([self._clock], [repr(now)])

    @redis_errors()
    @override
    def write_report(self, report: Mapping[str, Any], waits: Waits = NO_WAITS) -> None:
        for _ in range(2):
            change = self._blocks.follow(waits)
            try:
                with self._client.pipeline(transaction=True) as pipeline:
                    if change.is_whole:
                        pipeline.delete(self._names.waits)
                    if change.added:
                        pipeline.hset(self._names.waits, mapping=cast("dict[Any, Any]", change.added))
                    pipeline.set(self._names.report, msgspec.json.encode({**report, "blocks": change.fields}))
                    if change.removed:
                        pipeline.hdel(self._names.waits, *change.removed)
                    pipeline.hlen(self._names.waits)
                    *_, stored = pipeline.execute()
            except redis.RedisError:
                self._blocks.forget()
                raise
            if stored == len(change.fields):
                break
            # Another leader wrote blocks, or Redis lost some: write all of them.
            self._blocks.forget()

    @redis_errors()
    @override
    def read_report(self) -> dict[str, Any]:
        return read_report(self._client, self._names)

    @redis_errors()
    @override
    def write_sample(self, sample: Sample) -> None:
        self._client.hset(self._names.history, str(find_place(sample.at)), cast("str", msgspec.json.encode(sample)))

    @redis_errors()
    @override
    def read_history(self) -> list[Sample]:
        found: list[Sample] = []
        for body in cast("dict[bytes, bytes]", self._client.hgetall(self._names.history)).values():
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(body, type=Sample))
        return found

    def _send_ahead(self, ahead: Ahead, batches: Iterable[Sequence[Change]], generation: bytes = b"") -> Iterator[bool]:
        """Send each batch of changes to the script `publish` on the connection `ahead`. Yield for each batch whether
        Redis has stored it. `generation`: that of the rebuild whose rows are sent; b"": no rebuild.

        Speed: Redis takes a batch while the next one is made and encoded.
        """
        for batch in batches:
            arguments = self._list_arguments(batch, generation)
            if ahead.is_awaited:
                yield bool(ahead.receive())
            ahead.send("EVALSHA", self._publish.sha, len(self._keys.all), *self._keys.all, *arguments)
        if ahead.is_awaited:
            yield bool(ahead.receive())

    def _send(self, changes: Sequence[Change], generation: bytes = b"") -> bool:
        return bool(self._publish(self._keys.all, self._list_arguments(changes, generation)))

    def _list_arguments(self, changes: Sequence[Change], generation: bytes) -> list[bytes | int]:
        return [generation, self._kept_ms, self._deltas_kept, pack_changes(changes)]

    def _apply_deltas(self, view: View) -> bool:
        """Apply the newest changes in Redis to this copy of the view, and return True. Return False if this is
        impossible: the view has a new generation, some changes are no longer kept, or rows are unreadable.

        The deletions of one `publish` come last. Any order is correct, because rows have versions.
        """
        is_done = False
        while not is_done:
            answer = self._read_deltas()
            if answer is None:
                return False
            try:
                for field, body in zip(answer[2::2], answer[3::2], strict=True):
                    changes = decode_deltas(field.decode(), body)
                    self._has_user_data = self._has_user_data or has_user_data(changes)
                    view.apply_all(changes)
            except msgspec.DecodeError:
                return False
            is_done, self._sequence = bool(answer[0]), answer[1]
        return True

    def _read_deltas(self) -> list[Any] | None:
        early, self._early = self._early, None
        if early is not None and early[:2] == (self._generation, self._sequence):
            return early[2]
        arguments: list[bytes | int] = [self._generation, self._sequence, ENTRIES_A_CALL]
        return cast("list[Any] | None", self._catch_up(self._keys.catch_up, arguments))

    def _scan(self) -> View | None:
        """Return a copy of the view; each row is as it was at some moment during the scan. Return None if some rows are
        unreadable.
        """
        view, reader = self._make_view(), RowReader()
        try:
            for kind in ROW_TYPES:
                for body in self._scan_kind(kind):
                    rows = reader.decode(kind, body)
                    self._has_user_data = self._has_user_data or (kind == "slots" and has_user_data(rows))
                    view.apply_all(rows)
        except msgspec.DecodeError:
            return None
        return view

    def _scan_kind(self, kind: Kind) -> Iterator[bytes]:
        """Yield JSON arrays of the stored rows of one kind. A row may be in two of them; a row that is added or deleted
        meanwhile may be in none.

        Speed: Redis makes the next array while the caller decodes the one before it.
        """
        key, script = self._keys.rows(kind), self._scan_rows
        cursor, body = cast("list[bytes]", script([key], [START, ROWS_A_CALL]))
        with closing(Ahead(self._client)) as ahead:
            while cursor != START:
                # The first call has sent the script to Redis, so that its hash is known there.
                ahead.send("EVALSHA", script.sha, 1, key, cursor, ROWS_A_CALL)
                yield body
                cursor, body = cast("list[bytes]", ahead.receive())
        yield body


class _ScriptKeys:
    """For each Lua script of the view, the Redis keys that are passed to the script, in the order that the comment at
    the top of the script's file gives.
    """

    def __init__(self, prefix: str) -> None:
        names = RedisNames(prefix)
        self.rows, self.generation = names.rows, names.generation
        self.generations = [names.generation, names.building]
        self.position = [names.generation, names.sequence]
        self.catch_up = [names.generation, names.sequence, names.deltas]
        others = [names.gone, names.leaving, *map(names.rows, ROW_TYPES)]
        self.all = [names.generation, names.building, names.sequence, names.deltas, *others]


def _require(is_ours: bool) -> None:  # noqa: FBT001 - an answer of Redis
    if not is_ours:
        raise ViewUnavailableError(
            "the rebuild of the view was given up: another process began a rebuild, or Redis restarted"
        )


def _apply_each(view: View, batches: Iterable[list[Row]]) -> Iterator[list[Row]]:
    """Yield each batch of rows after applying it to `view`, this process's copy of the view."""
    for batch in batches:
        view.apply_all(batch)
        yield batch


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
