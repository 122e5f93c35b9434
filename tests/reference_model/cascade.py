"""The heuristic of Pace, Venzano, Carra and Michiardi as published, for one resource and instances of one unit each:
all elastic instances are taken off, and the cascade is computed again for each reservation.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Wish:
    """A reservation that is leased or pending: its numbers of essential and elastic instances, in rank order."""

    name: str
    rank: tuple[float, ...]
    essential: int
    elastic: int


@dataclass(frozen=True)
class Setting:
    """The settings that decide which reservation starts."""

    elastic: str
    backfill: bool
    preemption: bool


def cascade(served: Sequence[Wish], total: int) -> dict[str, int]:
    """The number of elastic instances granted to each, in rank order, beside all essential ones."""
    left = total - sum(each.essential for each in served)
    granted = {}
    for each in sorted(served, key=lambda each: each.rank):
        granted[each.name] = min(each.elastic, left)
        left -= granted[each.name]
    return granted


def serve(total: int, leased: dict[Wish, int], pending: Sequence[Wish], setting: Setting) -> dict[str, int]:
    """Which reservations are leased after one tick, and the number of instances of each. `leased`: with their elastic
    ones.
    """
    if setting.elastic in {"rigid", "malleable"}:
        return _only_give(total, leased, pending, setting)
    served = list(leased)
    for each in sorted(pending, key=lambda each: each.rank):
        if _is_admitted(each, served, total, setting):
            served.append(each)
        elif not setting.backfill:
            break
    granted = cascade(served, total)
    return {each.name: each.essential + granted[each.name] for each in served}


def _only_give(total: int, leased: dict[Wish, int], pending: Sequence[Wish], setting: Setting) -> dict[str, int]:
    held = {each.name: each.essential + elastic for each, elastic in leased.items()}
    for each in sorted(leased, key=lambda each: each.rank):
        held[each.name] += min(each.essential + each.elastic - held[each.name], total - sum(held.values()))
    for each in sorted(pending, key=lambda each: each.rank):
        whole, free = each.essential + each.elastic, total - sum(held.values())
        if (whole if setting.elastic == "rigid" else each.essential) <= free:
            held[each.name] = min(whole, free)
        elif not setting.backfill:
            break
    return held


def _is_admitted(each: Wish, served: Sequence[Wish], total: int, setting: Setting) -> bool:
    essential = sum(other.essential for other in [*served, each])
    before, after = cascade(served, total), cascade([*served, each], total)
    if essential + sum(before.values()) <= total:
        return True
    if essential > total:
        return False
    use = essential - each.essential + sum(before.values())
    if setting.elastic == "yielding" or essential + sum(after.values()) > use:
        return True
    ahead = sum(before[other.name] for other in served if other.rank < each.rank)
    return setting.preemption and essential + ahead <= total
