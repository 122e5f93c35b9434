"""The launch back-offs of a cycle: which launches EC2's refusals prevent now.

A back-off concerns what EC2 refused: an offering, a place, a quota class of a market, the pool, a market of the
account, or every launch. The other launches go on. Sources: Arvados (back-offs, the trial after one for a quota);
the EC2 user guide (quota classes).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import inf

from scheduler.model.launch_backoff import Hold, Kind, hold_id
from scheduler.model.quota_classes import is_limited_by, quota_subject
from scheduler.model.slots import Slot
from scheduler.model.waiting_codes import ENTRIES, WaitingCode
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.offerings import Choice, PoolLaunches, find_end, find_rest


class LaunchRefusals:
    """What EC2's refusals prevent in one cycle. `next_end`: the earliest end of a back-off that prevented a launch."""

    def __init__(self, cycle: CycleState, pools: Mapping[str, PoolLaunches]) -> None:
        self._cycle, self._pools, self._holds = cycle, pools, cycle.view.holds
        refused = {hold.pool for hold in self._holds.values() if hold.kind not in {"unhealthy", "strangers"}}
        self._refused = frozenset(pools if "*" in refused else refused)
        """The pools in which a back-off may prevent launches. Speed: the other pools are not searched."""
        self.next_end = inf
        self._launched: Counter[tuple[str, str]] = Counter()
        """(pool, quota subject) -> launches and starts that this cycle has decided."""

    def note_launch(self, name: str, key: str | None, market: str, count: int = 1) -> None:
        """Count a launch or start of this cycle, which may be the trial of a quota. `count` -1 takes it back."""
        if name in self._refused:
            self._launched[name, quota_subject(self._cycle.rules.pools[name], key, market)] += count

    def find_code(self, name: str, choice: Choice) -> WaitingCode | None:
        """Return the waiting code of the back-off that prevents a launch or start of this choice; None: there is none.
        Back-offs for quotas are not considered.
        """
        if name not in self._refused:
            return None
        if self._is_resting(name, choice, ("capacity",)):
            return "capacity"
        if self._lasts_for(choice, name, hold_id(name, "throttled")):
            return "throttled"
        permissions = ((name, choice.key or ""), (name, ""), ("*", choice.market), ("*", ""))
        if any(self._lasts_for(choice, name, hold_id(pool, "auth", subject)) for pool, subject in permissions):
            return "misconfigured"
        return "misconfigured" if self._is_resting(name, choice, ("capacity", "misconfigured")) else None

    def _is_resting(self, name: str, choice: Choice, kinds: tuple[Kind, ...]) -> bool:
        def lasts(hold: Hold) -> bool:
            return self._lasts_for(choice, name, hold.id)

        return find_rest(name, self._cycle.rules.pools[name], choice, self._holds, kinds, lasts) is not None

    def _lasts_for(self, choice: Choice, name: str, identity: str) -> bool:
        hold = self._holds.get(identity)
        return hold is not None and self.goes_on(find_end(self._cycle.rules.pools[name], choice.market, hold))

    def goes_on(self, until: float) -> bool:
        """Return whether a launch back-off that ends at `until` still lasts. If so, schedule a cycle for its end."""
        if self._cycle.is_due(until):
            return False
        self.next_end = min(self.next_end, until)
        return True

    def describe(self, code: WaitingCode, pools: Collection[str]) -> str | None:
        """Return the cloud's words about the newest refusal in these pools that leads to this waiting code; None: it
        gave none.
        """
        kinds = {*(ENTRIES[code].backoffs or ())} - {"unhealthy"}  # a failed boot is no answer of the cloud
        found = [hold for hold in self._holds.values() if hold.kind in kinds and hold.pool in {"*", *pools}]
        newest = max(found, key=lambda hold: (hold.refused_at, hold.id), default=None)
        return None if newest is None else newest.words

    def find_quota(self, name: str, choice: Choice) -> Hold | None:
        """Return the back-off for EC2's quota that prevents launches of this choice, the narrowest one; None: none
        does.
        """
        return self._find_quota(name, choice.key, choice.market)

    def is_at_quota(self, slot: Slot) -> bool:
        """Return whether a back-off for the quota that the slot's machine uses goes on, or the trial after it does."""
        quota = slot.pool, slot.offering, slot.market or ""
        return self._find_quota(*quota) is not None or self._is_probing(*quota)

    def _find_quota(self, name: str, offering: str | None, market: str) -> Hold | None:
        holds = self._list_quotas(name, offering, market)
        return next((hold for hold in holds if not self._is_quota_over(name, hold)), None)

    def is_probing(self, name: str, choice: Choice) -> bool:
        """Return whether the trial after a back-off for a quota that this choice needs is under way: a launch, or the
        start of a stopped slot, of the same quota.
        """
        return self._is_probing(name, choice.key, choice.market)

    def _is_probing(self, name: str, offering: str | None, market: str) -> bool:
        over = [hold for hold in self._list_quotas(name, offering, market) if self._is_quota_over(name, hold)]
        return any(self._is_under_way(name, hold) for hold in over)

    def may_probe(self, name: str, choice: Choice) -> bool:
        """Return whether a back-off for a quota that this choice needs is over, and no launch or start has succeeded
        since. Then one of them may test whether EC2 still refuses machines.
        """
        quotas = list(self._list_quotas(name, choice.key, choice.market))
        return bool(quotas) and all(self._is_quota_over(name, hold) for hold in quotas)

    def _list_quotas(self, name: str, offering: str | None, market: str) -> Iterator[Hold]:
        if name in self._refused:
            subject = quota_subject(self._cycle.rules.pools[name], offering, market)
            for each in dict.fromkeys((subject, market, "")):
                if (hold := self._holds.get(hold_id(name, "quota", each))) is not None:
                    yield hold

    def _is_under_way(self, name: str, hold: Hold) -> bool:
        pool = self._cycle.rules.pools[name]
        subjects = {subject for (each, subject), count in self._launched.items() if each == name and count}
        for slot_info in self._cycle.pools[name]:
            slot = slot_info.slot
            is_asked = slot.state == "launching" or (slot.state == "booting" and slot.power == "start")
            if is_asked and slot_info.state == slot.state:
                subjects.add(quota_subject(pool, slot.offering, slot.market or ""))
        return any(is_limited_by(subject, hold.subject) for subject in subjects)

    def _is_quota_over(self, name: str, hold: Hold) -> bool:
        there = self._pools[name]
        fewer = hold.active > 0 and there.active - there.launches < hold.active
        return fewer or not self.goes_on(hold.until)
