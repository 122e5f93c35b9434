"""The feed: one thread follows the view in Redis, and sends the changes to pages by topics (named series of server-sent
events). Each event of a topic is encoded once for all subscribers of the topic.

The feed only reads. It asks Redis for changes every 100 ms while a page listens, else once a second. Its copy of the
view records which rows changed, and keeps ended reservations for a while.

A full garbage collection looks at every object and stops all threads meanwhile. With 100,000 reservations that takes
more than 0.1 s. The rows form no cycles, so reference counts free them, and the rows are kept away from the collector.
"""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

from leasehold.errors import Unavailable
from leasehold.web.server_sent import KEEP_ALIVE, Subscriber, encode_event
from scheduler.model.reservations import Reservation, is_over
from scheduler.model.view import KINDS, Change, Gone, Kind, View
from scheduler.operations.paused_gc import PausedGC
from scheduler.ports import ViewUnavailableError
from workers.logs import get_logger

MOST_ENDED: Final = 20_000
"""The most ended reservations that are kept. If there are more, the reservation that was added first is forgotten."""


MOST_TAG_KEYS: Final = 1000
"""Keys beyond this number are not kept: tags may have any keys, and pages list them in a menu."""


class FollowedView(View):
    """A view that one thread writes and other threads read while they hold the lock `guard`.

    `changed`: kind of row -> ids of the rows that changed since the last call of `take_changed`. `ended`: the
    reservations that have ended within the last `kept_seconds`, by id, oldest first. `tag_keys`: the keys of the tags
    of all reservations that the view has had.
    """

    def __init__(self, kept_seconds: float) -> None:
        self._kept_seconds, self._newest = kept_seconds, 0.0
        self.guard = threading.RLock()
        self.changed: dict[Kind, set[str]] = {}
        self.ended: dict[str, Reservation] = {}
        self.tag_keys: set[str] = set()
        super().__init__()

    def apply_all(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.apply(change)

    def apply(self, change: Change) -> None:
        with self.guard:
            kind = change.kind if isinstance(change, Gone) else KINDS[type(change)]
            touched = self._find_slots(change)
            super().apply(change)
            self.changed.setdefault(kind, set()).add(change.id)
            if kind == "reservations":
                if isinstance(change, Reservation) and len(self.tag_keys) < MOST_TAG_KEYS:
                    self.tag_keys.update(change.request.tags)
                self._keep_ended(change)
                # The boxes of slots show their leases.
                self.changed.setdefault("slots", set()).update(touched, self._find_slots(change))

    def take_changed(self) -> dict[Kind, frozenset[str]]:
        """Return the ids of the rows that changed since the last call, by kind. A slot counts as changed if its row or
        a lease on it changed.
        """
        with self.guard:
            found, self.changed = self.changed, {}
        return {kind: frozenset(ids) for kind, ids in found.items() if ids}

    @contextmanager
    def reading(self) -> Iterator["FollowedView"]:
        """Take the lock of the view and yield the view, which then does not change within the block."""
        with self.guard:
            yield self

    def _find_slots(self, change: Change) -> set[str]:
        known = self.reservations.get(change.id) if isinstance(change, Reservation | Gone) else None
        return {lease.slot for lease in known.leases} if known is not None else set()

    def _keep_ended(self, change: Change) -> None:
        if not isinstance(change, Reservation) or change.id in self.reservations or not is_over(change):
            self.ended.pop(change.id, None)
            return
        known = self.ended.get(change.id)
        if known is None or (known.version, known.marked_at) <= (change.version, change.marked_at):
            self.ended.pop(change.id, None)
            self.ended[change.id] = change
        # Redis removes an ended reservation without a delta. The newest row shows how late it is.
        self._newest = max(self._newest, change.marked_at)
        while self.ended and (
            next(iter(self.ended.values())).marked_at < self._newest - self._kept_seconds
            or len(self.ended) > MOST_ENDED
        ):
            del self.ended[next(iter(self.ended))]


CHANGES: Final = 5000
"""Number of rows that may change before all rows are exempted from collections again. Until then, a full collection
looks at the rows that are new since the last exemption. With fewer than CHANGES new rows it takes some milliseconds.
"""


class GarbageKeeper:
    """Exempts the rows that exist at present from all later collections of garbage (`gc.freeze`). Only one thread may
    use it.
    """

    def __init__(self) -> None:
        self._changes = 0

    def note(self, changes: int, *, is_new: bool) -> None:
        """Record that `changes` rows have changed. `is_new`: all rows of the view were read.

        Exempt all present rows from later garbage collections in two cases: (1) `is_new` is True; (2) at least CHANGES
        rows have changed since the last exemption.
        """
        self._changes += changes
        if is_new or self._changes >= CHANGES:
            self._changes = 0
            # Cycles of garbage would never be freed afterwards.
            gc.collect()
            gc.freeze()


@dataclass(frozen=True)
class ReservationMatch:
    """Conditions on a reservation; a reservation must meet all. `fields`: field of the request (account, pool, system)
    -> its value. `slot`: a slot on which it has a lease. `id_start`: the beginning of its id. `tags`, `labels`: pairs
    that its request must contain. A condition that is None or empty is met by every reservation.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    slot: str | None = None
    id_start: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def matches(self, row: Reservation) -> bool:
        request = row.request
        return (
            (self.id_start is None or row.id.startswith(self.id_start))
            and all(getattr(request, name) == value for name, value in self.fields.items())
            and (self.slot is None or any(lease.slot == self.slot for lease in row.leases))
            and self.tags.items() <= request.tags.items()
            and self.labels.items() <= request.labels.items()
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is no condition, so that every reservation matches."""
        return self == ReservationMatch()


POLL_SECONDS: Final = 0.1
IDLE_SECONDS: Final = 1.0
EMIT_SECONDS: Final = 0.5
"""Shortest time in seconds between two events of a topic."""
SILENT_SECONDS: Final = 1.5
"""Seconds without an answer to the question for changes after which Redis counts as silent."""
LOOK_SECONDS: Final = 0.25
"""Seconds between two checks of a page that waits for Redis whether Redis is silent."""
KEEP_ALIVE_SECONDS: Final = 15.0
STATUS: Final = "status"
"""Topic with the status of the feed itself: whether Redis and the database answer."""

R = TypeVar("R")
log = get_logger(__name__)


@dataclass(frozen=True)
class Changed:
    """The rows that changed after revision `since`, up to `revision`. `ids`: the ids of these rows, by the kind of the
    row; a slot is listed too if a lease on it changed. `is_reset`: the whole view was read again, so every row may have
    changed and `ids` is empty.
    """

    since: int
    revision: int
    ids: Mapping[Kind, frozenset[str]] = field(default_factory=dict)
    is_reset: bool = False

    def of(self, kind: Kind) -> frozenset[str]:
        return self.ids.get(kind, frozenset())

    def joined(self, later: "Changed") -> "Changed":
        kinds = self.ids.keys() | later.ids.keys()
        ids = {kind: self.of(kind) | later.of(kind) for kind in kinds}
        is_reset = self.is_reset or later.is_reset
        return Changed(self.since, later.revision, {} if is_reset else ids, is_reset)


@dataclass(frozen=True)
class FeedStatus:
    """Whether the copy of the view can be used. `is_valid`: the copy is complete and follows Redis. `redis_lost_since`,
    `database_lost_since`: the monotonic time since which Redis or the database does not answer; None: it answers.
    """

    is_valid: bool = False
    redis_lost_since: float | None = None
    database_lost_since: float | None = None


class ViewSource(Protocol):
    """The methods of ViewCache, the store of the view in Redis (scheduler/ports/view.py), that the feed uses."""

    def catch_up(self) -> View | None:
        """Apply the changes since the last call to this process's copy of the view, and return the copy. Return None if
        the whole view must be loaded first (`load`).
        """

    def load(self) -> View | None:
        """Read the whole view from Redis and return it; None if Redis has no valid view."""


Encode = Callable[[Changed], bytes | None]
"""A function that returns the server-sent event of a topic for the given changes (`encode_event`), or None if the
changes do not concern the topic. The thread of the feed calls the function, which may read `Feed.view` under
`Feed.lock`.
"""


@dataclass
class _Topic:
    name: str
    encode: Encode
    subscribers: set[Subscriber] = field(default_factory=set)
    pending: Changed | None = None
    emitted_at: float = float("-inf")


class Feed:
    """The live copy of the view in this process, and the topics that pages subscribe to.

    `view` and `revision` may be read by any thread; hold `lock` while more than one row is read. `source`: the view
    cache, made with `make_view=lambda: FollowedView(...)`. `keeper`: keeps the rows away from the garbage collector of
    this process; None: nothing does.
    """

    def __init__(self, source: ViewSource, kept_seconds: float = 600.0, *, keeper: GarbageKeeper | None = None) -> None:
        self._source = source
        self.view = FollowedView(kept_seconds)
        self.revision = 0
        self.status = FeedStatus()
        self._had_view = False
        self._topics: dict[str, _Topic] = {}
        self._watchers: list[Callable[[Changed], None]] = []
        self._guard = threading.RLock()
        self._asked = threading.Event()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._ends = threading.Event()
        self._asked_at: float | None = None
        """The monotonic time of the question for changes that Redis has not answered yet; None: it has answered."""
        self._thread: threading.Thread | None = None
        self._keeper = keeper
        self.topic(STATUS, lambda _changed: None)

    @property
    def lock(self) -> threading.RLock:
        """The lock of the present copy of the view. The copy does not change while a thread holds the lock."""
        return self.view.guard

    def start(self) -> None:
        self._asked.set()
        self._thread = threading.Thread(target=self._run, name="leasehold-feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        with self._guard:
            for subscriber in {each for topic in self._topics.values() for each in topic.subscribers}:
                subscriber.end()

    def watch(self, note: Callable[[Changed], None]) -> None:
        """Register `note`: the thread of the feed calls it with all changes, also while no page listens."""
        self._watchers.append(note)

    def topic(self, name: str, encode: Encode) -> None:
        """Register a topic. `encode` makes the topic's events from changes, at most two a second, and only while a page
        listens.
        """
        self._topics[name] = _Topic(name, encode)

    def send(self, name: str, block: bytes) -> None:
        """Send the encoded event `block` to the subscribers of a topic, for topics whose events do not come from
        changes of the view.
        """
        self._send(self._topics[name], block)

    def has_listeners(self, name: str) -> bool:
        """Return whether a page or client is subscribed to this topic at present."""
        with self._guard:
            return bool(self._topics[name].subscribers)

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._topics)

    @property
    def subscriptions(self) -> int:
        with self._guard:
            return len({each for topic in self._topics.values() for each in topic.subscribers})

    async def refresh(self) -> None:
        """Return when the view has all changes that Redis had at the time of the call; return at once if the feed has
        stopped.

        If Redis does not answer, return after the failed attempt, or as soon as Redis counts as silent; `view` is then
        what is known.
        """
        if self._ends.is_set():
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        with self._guard:
            self._waiters.append((loop, done))
        self._asked.set()
        with suppress(Unavailable):
            await self.unless_silent(done)

    @property
    def is_silent(self) -> bool:
        """Whether Redis does not answer at present, as far as the feed knows."""
        asked_at = self._asked_at
        is_late = asked_at is not None and time.monotonic() - asked_at >= SILENT_SECONDS
        return is_late or self.status.redis_lost_since is not None

    async def unless_silent(self, act: Awaitable[R]) -> R:
        """Wait for `act`, which waits for Redis, and return its result. Raises Unavailable if Redis is silent: a page
        then shows what is known, whatever time limits the connections have.
        """
        task = asyncio.ensure_future(act)
        try:
            while not (await asyncio.wait([task], timeout=LOOK_SECONDS))[0]:
                if self.is_silent:
                    raise Unavailable("Redis does not answer")
            return task.result()
        finally:
            task.cancel()

    async def subscribe(self, *topics: str) -> AsyncIterator[bytes]:
        """Yield the events of these topics until the reader goes away or cannot keep up. The first event is `hello`: it
        has the revision of the view from which the updates continue, and the status of the feed.

        Raises KeyError for an unknown topic.
        """
        found = [self._topics[name] for name in dict.fromkeys((STATUS, *topics))]
        subscriber = Subscriber(asyncio.get_running_loop())
        with self._guard:
            for topic in found:
                topic.subscribers.add(subscriber)
            # Nothing between this revision and the first update of a topic is left out.
            hello = self._encode_status("hello")
        self._asked.set()
        try:
            yield hello
            async for block in subscriber.read(KEEP_ALIVE_SECONDS, KEEP_ALIVE):
                yield block
        finally:
            with self._guard:
                for topic in found:
                    topic.subscribers.discard(subscriber)

    def note_database(self, *, is_lost: bool) -> None:
        """Record whether the last use of the database failed (`is_lost`), for the status of the feed."""
        with self._guard:
            since = self.status.database_lost_since
            if is_lost == (since is None):
                self._set_status(replace(self.status, database_lost_since=time.monotonic() if is_lost else None))

    def _run(self) -> None:
        while not self._ends.is_set():
            self._asked.wait(self._pause())
            self._asked.clear()
            with self._guard:
                waiters, self._waiters = self._waiters, []
            try:
                self._follow()
                now = time.monotonic()
                for topic in list(self._topics.values()):
                    with self._guard:
                        if topic.pending is None or now - topic.emitted_at < EMIT_SECONDS:
                            continue
                        changed, topic.pending, topic.emitted_at = topic.pending, None, now
                    block = topic.encode(changed)
                    if block is not None:
                        self._send(topic, block)
            except Exception:
                # An error of one topic or row must not end the feed; the next round begins with a new copy.
                log.exception("The feed of the console failed; it continues.", action="console.feed_failed")
            for loop, done in waiters:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_resolve, done)

    def _pause(self) -> float:
        """Return the seconds until changes are read from Redis again. It is IDLE_SECONDS while no page listens; else
        POLL_SECONDS, or less if a topic with changes may send its next event earlier.
        """
        now = time.monotonic()
        with self._guard:
            if not any(topic.subscribers for topic in self._topics.values()):
                return IDLE_SECONDS
            due = [
                topic.emitted_at + EMIT_SECONDS - now
                for topic in self._topics.values()
                if topic.subscribers and topic.pending is not None
            ]
        return max(0.0, min([POLL_SECONDS, *due]))

    def _follow(self) -> None:
        try:
            self._asked_at = time.monotonic()
            try:
                found = self._source.catch_up()
            finally:
                self._asked_at = None
            if found is None:
                with PausedGC():
                    found = self._source.load()
        except ViewUnavailableError as error:
            self._lose(str(error))
            return
        if not isinstance(found, FollowedView):
            self._lose("there is no valid view; the next tick rebuilds it")
            return
        changed, is_new = found.take_changed(), found is not self.view
        if self._keeper is not None:
            self._keeper.note(sum(map(len, changed.values())), is_new=is_new)
        with self._guard:
            self.view, self._had_view = found, True
            if is_new or changed:
                made = Changed(self.revision, self.revision + 1, {} if is_new else changed, is_new)
                self.revision = made.revision
                for note in self._watchers:
                    note(made)
                for topic in self._topics.values():
                    if topic.subscribers:
                        topic.pending = made if topic.pending is None else topic.pending.joined(made)
                    else:
                        topic.pending = None
            if not self.status.is_valid:
                log.info("The console follows the view.", action="console.view_found")
                self._set_status(replace(self.status, is_valid=True, redis_lost_since=None))

    def _lose(self, reason: str) -> None:
        with self._guard:
            if self.status.redis_lost_since is None:
                if self._had_view:
                    log.warning("The console lost the view.", action="console.view_lost", reason=reason)
                else:
                    # The usual start of a stack: the first tick builds the view.
                    log.info("The console waits for the view.", action="console.view_awaited", reason=reason)
                self._set_status(replace(self.status, is_valid=False, redis_lost_since=time.monotonic()))

    def _set_status(self, status: FeedStatus) -> None:
        self.status = status
        self._send(self._topics[STATUS], self._encode_status(STATUS))

    def _send(self, topic: _Topic, block: bytes) -> None:
        with self._guard:
            subscribers = list(topic.subscribers)
        for subscriber in subscribers:
            subscriber.put(block)

    def _encode_status(self, event: str) -> bytes:
        status = self.status
        document = {
            "revision": self.revision,
            "valid": status.is_valid,
            "redis": status.redis_lost_since is None,
            "database": status.database_lost_since is None,
        }
        return encode_event(event, document)


def _resolve(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
