"""The offerings that a launch may choose: the market that is next in a pool, their order, which ones are eligible, and
the fallback to on-demand.

`PoolLaunches` has the offerings and slots on which the launches and starts in one pool depend in one cycle. Sources:
Arvados (choice of an instance type); EC2 Auto Scaling (`OnDemandBaseCapacity`, `OnDemandPercentageAboveBaseCapacity`:
the market).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Final

from scheduler.model.launch_backoff import Hold, Kind, hold_id
from scheduler.model.pools import MarketRules, Pool
from scheduler.model.quota_classes import quota_subject
from scheduler.model.resources import SLACK, Labels, Resources
from scheduler.model.slots import Market
from scheduler.model.transitions import IN_FLIGHT, INACTIVE
from scheduler.policy.capacity.fits import capacity_of
from scheduler.policy.capacity.requests import InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo, find_life, is_settled_stop
from scheduler.policy.cycle.state import CycleState

_STAYING: Final = IN_FLIGHT | {"ready"}
"""States of the slots that count in the mix. Slots that drain or terminate do not count, because a launch has to
replace them.
"""
_DIGITS: Final = 9
"""A share of slots is rounded to this number of decimals before it is rounded up: as floats, 0.1 × 30 is a little more
than 3.
"""


@dataclass(slots=True)
class MarketMix:
    """How many slots of a pool are in flight or ready (`slots`), and how many of them are on-demand (`on_demand`). A
    slot without a market does not count as on-demand.
    """

    slots: int = 0
    on_demand: int = 0

    def add(self, market: str, count: int = 1) -> None:
        """Add `count` slots of this market to the mix; a negative number takes slots out."""
        self.slots += count
        self.on_demand += count * (market == "on-demand")


def count_mix(found: Iterable[tuple[str, str]]) -> MarketMix:
    """Return the mix of slots. `found`: (state, market) of each slot."""
    mix = MarketMix()
    for state, market in found:
        if state in _STAYING:
            mix.add(market)
    return mix


def find_turn(rules: MarketRules, mix: MarketMix) -> Market | None:
    """Return the market that the next launch of a pool is to have; None if the price decides.

    The pool's slots and the next one are counted together. Of them, `on_demand_base` have to be on-demand, and of the
    remaining ones the share `on_demand_share`, rounded up. If fewer are on-demand, the next launch is on-demand.
    Otherwise the next launch is spot if the pool has an `on_demand_share`, and the price decides if it has none.
    """
    number, share = mix.slots + 1, rules.on_demand_share
    above = max(0, number - rules.on_demand_base)
    if mix.on_demand < number - above + ceil(round(above * (share or 0.0), _DIGITS)):
        return "on-demand"
    return None if share is None else "spot"


def describe_turn(rules: MarketRules, mix: MarketMix) -> str | None:
    """Return a text about the market that the next launch is to have, and why; None if the price decides."""
    turn = find_turn(rules, mix)
    if turn is None:
        return None
    keys = [f"on_demand_base {rules.on_demand_base}"] if rules.on_demand_base else []
    keys += [] if rules.on_demand_share is None else [f"on_demand_share {rules.on_demand_share:g}"]
    counts = f"{mix.on_demand} of {mix.slots} slots are on-demand"
    return f"the next machine is to be {turn}: {counts} ({', '.join(keys)})"


@dataclass(frozen=True, slots=True)
class Choice:
    """One offering that a launch in a pool may choose. `key`: the offering's key; None: the pool has no offerings."""

    key: str | None
    market: str
    price: float
    capacity: Resources | None
    labels: Labels
    is_for_sale: bool = True

    @property
    def rank(self) -> tuple[float, float, float, str]:
        """The sort key of an offering: cheapest first, then more memory, then more cpus, then by name."""
        held = self.capacity or {}
        return (self.price, -held.get("memory_mib", 0), -held.get("cpus", 0), self.key or "")


def list_choices(pool: Pool) -> list[Choice]:
    """Return the offerings from which a new slot of this pool could be launched, in the order in which they are tried.

    A pool without offerings counts as one offering. Offerings that are not for sale are missing, because their type or
    price is unknown or their price is too high.
    """
    return [choice for choice in list_configured(pool) if choice.is_for_sale]


def could_serve(name: str, choice: Choice, needs: Iterable[InstanceRequest]) -> bool:
    """Return whether a new slot of this offering (`choice`) in the pool `name` could hold one of these instances."""
    there = (need for need in needs if name in need.given)
    return any(need.could_hold(name, choice.capacity, choice.labels) for need in there)


def list_configured(pool: Pool) -> list[Choice]:
    """Return all offerings of a pool, best first. Offerings that are not for sale are included."""
    if not pool.offerings:
        return [Choice(None, "", 0.0, pool.resources, pool.labels)]
    choices = [
        Choice(
            key=key,
            market=offering.market,
            price=offering.price,
            capacity=pool.resources if offering.resources is None else offering.resources,
            labels={**pool.labels, **(offering.labels or {})},
            is_for_sale=offering.is_for_sale,
        )
        for key, offering in pool.offering_by_key.items()
    ]
    return sorted(choices, key=lambda choice: choice.rank)


def list_eligible(choices: Sequence[Choice], pool: Pool, turn: Market | None = None) -> list[Choice]:
    """Return the offerings in `choices` whose market is `turn` (None: any market) and whose price is at most
    `price_factor` times that of the cheapest one of this market. `choices`: cheapest first.

    The cheapest one sets the price even while a back-off prevents its launch. The limit allows for rounding errors: 1.5
    times 0.7 includes 1.05.
    """
    offered = choices if turn is None else [choice for choice in choices if choice.market == turn]
    most = offered[0].price * max(1.0, pool.price_factor) * (1 + SLACK) if offered else 0.0
    return [choice for choice in offered if choice.price <= most]


def list_fallback(
    name: str, pool: Pool, fitting: Sequence[Choice], eligible: Sequence[Choice], holds: Mapping[str, Hold],
    turn: Market | None = None, *, is_impatient: bool = False,
) -> list[Choice]:  # fmt: skip
    """Return the on-demand offerings that may be chosen after the `eligible` ones, whatever they cost; [] if none may.

    The pool must have `on_demand_after`, and a spot offering must be eligible or it must be spot's turn. Then they may
    be chosen if one of these is true: (1) each eligible spot offering had `on_demand_after` refusals in a row or more
    that on-demand avoids (`count_refusals`); (2) it is spot's turn and no spot offering is eligible; (3)
    `is_impatient`: the reservation was interrupted `on_demand_after` times or more. When it is on-demand's turn, only
    the eligible ones may be launched.
    """
    most, spot = pool.on_demand_after, [choice for choice in eligible if choice.market == "spot"]
    if not most or not (spot or turn == "spot"):
        return []
    if not is_impatient and any(count_refusals(name, pool, choice, holds) < most for choice in spot):
        return []
    return [choice for choice in fitting if choice.market == "on-demand" and choice not in eligible]


def count_refusals(name: str, pool: Pool, choice: Choice, holds: Mapping[str, Hold]) -> int:
    """Return how many refusals in a row of a spot offering an on-demand offering would avoid: for capacity (in each of
    its places), for the vCPU quota of the spot market, for the missing service-linked role of this market, or for a
    permission that concerns this offering alone.
    """
    rest = find_rest(name, pool, choice, holds, ("capacity",), lambda hold: bool(hold.streak), fewest=True)
    own = (
        hold_id(name, "quota", quota_subject(pool, choice.key, choice.market)),
        hold_id(name, "quota", choice.market),
        hold_id("*", "auth", choice.market),
        hold_id(name, "auth", choice.key or "-"),
    )
    return max(rest.streak if rest else 0, *(hold.streak for each in own if (hold := holds.get(each)) is not None), 0)


def find_rest(
    name: str, pool: Pool, choice: Choice, holds: Mapping[str, Hold], kinds: tuple[Kind, ...],
    counts: Callable[[Hold], bool], *, fewest: bool = False,
) -> Hold | None:  # fmt: skip
    """Return a back-off of one of these kinds because of which the pool `name` cannot launch a choice: one of the
    offering, or, if each of its places rests, the one of them that ends first (`fewest`: that has the fewest refusals).
    None: there is none. `counts`: whether a back-off counts, for example because it lasts.
    """
    whole, *places = list_rest_ids(name, pool, choice, kinds)
    found = [
        next((hold for each in ids if (hold := holds.get(each)) and counts(hold)), None) for ids in (whole, *places)
    ]
    if found[0] is not None or not places:
        return found[0]
    resting = [hold for hold in found[1:] if hold is not None]
    if len(resting) < len(places):
        return None
    return min(resting, key=lambda hold: hold.streak if fewest else hold.until)


def list_rest_ids(name: str, pool: Pool, choice: Choice, kinds: tuple[Kind, ...]) -> list[list[str]]:
    """Return the ids of the back-offs of these kinds that may concern a choice: first those of the offering wherever it
    is launched, then a list for each of its places.
    """
    key = choice.key or ""
    offering = pool.offering_by_key.get(key)
    groups = [[hold_id(name, kind, key) for kind in kinds]]
    for place in pool.ec2.list_places(offering.zone if offering else None):
        subjects = [f"{own}@{each}" for each in place for own in dict.fromkeys((key, ""))]
        groups.append([hold_id(name, kind, subject) for kind in kinds for subject in subjects])
    return groups


def find_end(pool: Pool, market: str, hold: Hold) -> float:
    """Return until when a launch back-off (`hold`) pauses an offering of this market (seconds since the epoch).

    This is the end of the back-off, with one exception. After `on_demand_after` refusals in a row for lack of capacity
    or of the permission for spot, a spot offering stays paused until `spot_again_after` has passed since the last
    refusal, if that is later. Without this exception, launches would return to the spot market at the end of each
    back-off, which is short (`capacity_hold`), to be refused again.
    """
    has_fallen_back = hold.kind in {"capacity", "auth"} and market == "spot" and 0 < pool.on_demand_after <= hold.streak
    return max(hold.until, hold.refused_at + pool.market.spot_again_after) if has_fallen_back else hold.until


def list_alternatives(pool: Pool, chosen: Choice, held: Collection[str | None]) -> list[Choice]:
    """Return `chosen` and the other offerings of its market that a launch may use in its place, best first.

    An alternative has at least the resources and the labels of `chosen`, so that it serves all reservations for which
    the slot is meant. It costs at most `price_factor` times as much as the cheapest offering that satisfies this.
    `held`: the keys of the offerings to leave out, because a launch back-off pauses them; `chosen` is never left out.
    """
    alike = [each for each in list_choices(pool) if each.market == chosen.market and _covers(each, chosen)]
    return [chosen, *(each for each in list_eligible(alike, pool) if each.key not in {chosen.key, *held})]


def _covers(choice: Choice, other: Choice) -> bool:
    if (choice.capacity is None) != (other.capacity is None) or not other.labels.items() <= choice.labels.items():
        return False
    amounts = choice.capacity or {}
    return all(amounts.get(name, 0.0) >= amount for name, amount in (other.capacity or {}).items())


class PoolLaunches:
    """The offerings and slots that launches in one pool may take, and the launches and starts that this cycle has
    decided.

    Speed: each count is made at its first use, so that a tick that considers no launch counts no slots. A count gives
    the same result whenever it is made: after the step `heal`, only launches change whether a slot is active, empty, or
    cordoned and ready.
    """

    def __init__(self, cycle: CycleState, name: str) -> None:
        self._cycle, self._name = cycle, name
        self.launches = self.starts = 0

    @cached_property
    def active(self) -> int:
        """How many slots of the pool are active (count towards `max_slots`), with those that this cycle launches."""
        return sum(each.state not in INACTIVE for each in self._cycle.pools[self._name])

    @cached_property
    def choices(self) -> list[Choice]:
        """The offerings from which a new slot of the pool could be launched, cheapest first."""
        return list_choices(self._cycle.rules.pools[self._name])

    @cached_property
    def mix(self) -> MarketMix:
        """How the slots of the pool divide among the markets (spot and on-demand)."""
        return count_mix((each.state, each.market) for each in self._cycle.pools[self._name])

    @cached_property
    def empty(self) -> list[SlotInfo]:
        """The empty slots that a launch may take. The next launch takes the last one of the list, which is the first in
        slot order.
        """
        slot_infos = reversed(self._cycle.pools[self._name])
        return [each for each in slot_infos if each.state == "empty" and not each.slot.cordoned]

    @cached_property
    def cordoned(self) -> list[SlotInfo]:
        """The cordoned slots that are ready."""
        slot_infos = self._cycle.pools[self._name]
        return [each for each in slot_infos if each.slot.cordoned and each.state == "ready" and not each.stuck]

    @cached_property
    def startable(self) -> list[SlotInfo]:
        """The stopped slots that may be started now, cheapest first, then in slot order."""
        slot_infos, now = self._cycle.pools[self._name], self._cycle.now
        found = [each for each in slot_infos if is_in_tier(each) and not has_to_go(each, now) and _is_for_sale(each)]
        return sorted(found, key=lambda each: (each.slot.price or 0.0, each.order))

    def list_fitting(self, need: InstanceRequest) -> list[Choice]:
        """Return the offerings for a new slot of the pool that could hold one instance, cheapest first."""
        return [each for each in self.choices if need.could_hold(self._name, each.capacity, each.labels)]


def is_in_tier(slot_info: SlotInfo) -> bool:
    """Return whether a slot belongs to the stopped tier (`stopped_slots`): it is stopped, the cloud has confirmed the
    stop, and the slot is not cordoned.
    """
    slot = slot_info.slot
    is_stopped = slot_info.state == slot.state == "stopped" and not slot.cordoned
    return is_stopped and is_settled_stop(slot, slot_info.pool)


def has_to_go(slot_info: SlotInfo, now: float) -> bool:
    """Return whether the slot's machine has drifted or is too old, by the rules of its pool."""
    if not slot_info.pool.replacement.is_on:
        return False
    has_drifted, end = find_life(slot_info, slot_info.pool)
    return has_drifted or now >= end


def _is_for_sale(slot_info: SlotInfo) -> bool:
    """Return whether a new machine of the slot's offering could be launched too: the offering has a known price that is
    not too high.
    """
    offering = slot_info.pool.offering_by_key.get(slot_info.slot.offering or "")
    return offering is None or offering.is_for_sale


def find_own_choice(slot_info: SlotInfo) -> Choice:
    """Return a stopped slot's own offering, as the row of the slot describes it. The slot is started with this offering
    unless it is resized (`list_resized`).
    """
    slot = slot_info.slot
    capacity = capacity_of(slot, slot_info.pool)
    return Choice(slot.offering, slot.market or "", slot.price or 0.0, capacity, slot.labels)


def list_resized(slot_info: SlotInfo) -> list[Choice]:
    """Return the other offerings with which a stopped slot may be started, best first; none unless the pool has
    `resize_stopped`.

    Each offering has the market of the slot's own offering, and at least its resources and labels
    (`list_alternatives`). The machine stays in its zone, so the offering has the same zone or none. The machine's
    architecture fits too, because all offerings of a pool serve one system.
    """
    slot, pool = slot_info.slot, slot_info.pool
    if not pool.resize_stopped:
        return []
    own = next((each for each in list_configured(pool) if each.key == slot.offering), None)
    found = [] if own is None else list_alternatives(pool, own, ())[1:]
    zones = {None, slot.zone}
    return [each for each in found if each.key and pool.offering_by_key[each.key].zone in zones]
