"""The history of a play, for the naive tick: answers of the cloud, and the active slots after each write."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler.model.slots import Slot
from scheduler.ports import Transaction
from tests.reference_model.holding import Answered, Counted
from tests.reference_model.picture import find_bucket
from tests.rules.watching import Seen, WatchedPlayer

INACTIVE = ("empty", "error")


class Recorder:
    """Wraps the dispatcher and the store of the simulated cluster."""

    def __init__(self) -> None:
        self.history: list[Counted] = []
        self._ticks = 0
        self._times: dict[int, float] = {}
        """The time of each tick."""
        self._decided: dict[str, int] = {}
        """By launch id: the number of the tick that decided it."""

    def attach(self, player: WatchedPlayer) -> None:
        """From now on all writes are recorded. A tick knows what was written before it began."""
        self._cluster = cluster = player.cluster
        player.make_mark = lambda: len(self.history)
        self._answer, self._open = cluster.dispatcher.launch, cluster.store.transaction
        self._start = cluster.dispatcher.start
        cluster.dispatcher.start = self._note_start  # type: ignore[method-assign]
        cluster.dispatcher.launch = self._note_answer  # type: ignore[method-assign]
        cluster.store.transaction = self._transaction  # type: ignore[method-assign,assignment]

    def note_tick(self, seen: Seen) -> None:
        """A tick was committed, and the cloud has not answered yet."""
        self._ticks += 1
        self._times[self._ticks] = seen.now
        before = {row.launch_id for row in seen.before if isinstance(row, Slot)}
        for row in seen.after:
            if isinstance(row, Slot) and row.state == "launching" and row.launch_id is not None:
                # A slot that was given in flight was decided by no tick.
                self._decided.setdefault(row.launch_id, 0 if row.launch_id in before else self._ticks)
            elif isinstance(row, Slot) and row.power == "start":
                self._decided.setdefault(f"{row.id} at {row.since}", self._ticks)

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        with self._open() as transaction:
            yield transaction
        self.history.append(Counted(self._count()))

    def _count(self) -> Counter[str]:
        return Counter(slot.pool for slot in self._cluster.store.find_slots() if slot.state not in INACTIVE)

    def _note_start(self, slot_id: str, epoch: int) -> str:
        slot, result = self._cluster.find_slot(slot_id), self._start(slot_id, epoch)
        if slot is not None and slot.power == "start":
            decided = f"{slot.id} at {slot.since}"
            self._note(slot, "success" if result == "asked" else result, decided)
            if result != "asked":
                # A later tick of the same instant may start the slot again, and that is another start.
                self._decided.pop(decided, None)
        return result

    def _note_answer(self, name: str, slot_id: str | None) -> object:
        of_gang = (slot for slot in self._cluster.store.find_slots() if slot.batch == name)
        slot = next(of_gang, None) if slot_id is None else self._cluster.find_slot(slot_id)
        result = str(self._answer(name, slot_id))
        self._note(slot, result, name)
        return result

    def _note(self, slot: Slot | None, result: str, decided: str) -> None:
        pool = self._cluster.ports.rules().pools.get(slot.pool) if slot is not None else None
        if slot is not None and pool is not None:
            self.history.append(
                Answered(
                    active=self._count(),
                    at=self._cluster.event_queue.now,
                    pool=slot.pool,
                    bucket=find_bucket(pool, slot.offering or "", slot.market or ""),
                    result=result,
                    decided_in=self._decided.get(decided, 0),
                    decided_at=self._times.get(self._decided.get(decided, 0), -1.0),
                    ticks=self._ticks,
                    quota_hold=pool.quota_hold,
                )
            )
