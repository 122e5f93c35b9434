"""How a change of the rules would move the starts of what waits, by account: plays under both rules, side by side."""

from collections import defaultdict
from math import isinf
from statistics import median
from time import monotonic
from typing import Final

import msgspec

from scheduler.foresight.forecaster import Forecaster
from scheduler.model.rules import Rules
from scheduler.model.view import View

PLAYS: Final = 8
PLAY_SECONDS: Final = 0.2
"""After this time no further play is begun for the rules. A preview plays under both rules."""
MOST_WAITING: Final = 2000
"""With more waiting reservations nothing is played, because one play alone would take too long for a preview."""
NOTED_SHARE: Final = 0.1
NOTED_SECONDS: Final = 10.0
"""A wait that moves by less than this, or by less than that share, is not reported: plays are random."""


class AccountWait(msgspec.Struct, frozen=True, kw_only=True):
    """How long the work of an account that waits now would still wait, as the median of its reservations in seconds.
    None: it would not start within the time over which plays look ahead.
    """

    account: str
    """"": the work without an account."""
    waiting: int
    """How many of its reservations wait."""
    before: float | None
    after: float | None


def compare_waits(before: View, present: Rules, after: View, proposed: Rules, now: float) -> tuple[AccountWait, ...]:
    """Return the accounts whose waits would move, by name; none with more than MOST_WAITING waiting reservations.
    `before` and `after`: the state under the `present` and the `proposed` rules in force.
    """
    if not 0 < len(before.by_phase["pending"]) <= MOST_WAITING:
        return ()
    old, new = _find_waits(before, present, now), _find_waits(after, proposed, now)
    found = [
        AccountWait(account=name, waiting=count, before=old[name][1], after=new[name][1])
        for name, (count, _) in sorted(old.items())
        if name in new
    ]
    return tuple(each for each in found if _has_moved(each.before, each.after))


def _find_waits(view: View, rules: Rules, now: float) -> dict[str, tuple[int, float | None]]:
    forecaster, ends_at = Forecaster(), monotonic() + PLAY_SECONDS
    forecaster.see(view, rules, "", now, rules.spending)
    forecaster.play_while(lambda: monotonic() < ends_at, PLAYS)
    waits: dict[str, list[float]] = defaultdict(list)
    for row in view.by_phase["pending"].values():
        predicted = forecaster.predict(row)
        if predicted is not None:
            waits[row.request.account or ""].append(predicted.median)
    middles = {name: (len(each), median(each)) for name, each in waits.items()}
    return {name: (count, None if isinf(middle) else middle) for name, (count, middle) in middles.items()}


def _has_moved(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) > max(NOTED_SECONDS, NOTED_SHARE * before)
