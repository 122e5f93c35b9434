"""The page Money: what machines cost by account, pool, offering or use, over time, and the budgets."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.console.page import Page, backend, caller, render
from leasehold.web.feed import Feed
from leasehold.web.money import BudgetReport, CostReport, report_budgets, report_costs
from scheduler.model.costs import COST_KINDS, HOUR, Cost, begin_of_hour, find_present_price
from scheduler.model.slots import CostKind, Slot
from scheduler.model.transitions import UNPAID
from scheduler.operations.costs import WAYS, By
from scheduler.ports import Store

DAY: Final = 86400.0
SPANS: Final = {"1d": DAY, "7d": 7 * DAY, "30d": 30 * DAY}
MEANINGS: Final[dict[CostKind, str]] = {
    "used": "with a lease",
    "booting": "not ready yet",
    "idle": "ready without a lease",
    "draining": "takes no more leases",
    "interrupted": "after the notice of an interruption",
    "stopped": "stopped: it costs its storage",
    "unbound": "without a slot, until the sweep ends it or a slot adopts it",
    "adjusted": "what AWS bills more or less than the price of this time",
}
"""Kind of use -> its meaning, in the order of COST_KINDS."""
RARE: Final[frozenset[CostKind]] = frozenset({"stopped", "unbound", "adjusted"})
"""Kinds of use that are shown only if a machine was used in this way."""
STOPS: Final = {
    "warn": "nothing: it only warns",
    "stop": "launches that would exceed it",
    "drain": "launches that would exceed it; it also ends machines, idle ones first",
}
"""Action of a budget -> what the action prevents, as text."""
MOST_ROWS: Final = 200


async def show_money(request: Request) -> Response:
    """Show the sums of the ledger, the price of what runs now, and the budgets."""
    services = backend(request)
    by = request.query_params.get("by", "pool")
    span = request.query_params.get("span", "1d")
    way = by if by in WAYS else "pool"
    seconds = SPANS.get(span, DAY)
    if refusal := caller(request).find_refusal("rules"):
        return render(request, "money.html", page="money", refusal=refusal)
    await services.feed.refresh()
    slots = await services.run_plain(copy_slots, services.feed)
    report, curve, budgets = await services.run(read_page, services.store, way, seconds, slots)
    shown = [each["name"] for each in curve["series"]]
    running = [slot for slot in slots if slot.state not in UNPAID]
    return render(
        request,
        "money.html",
        page="money",
        refusal="",
        report=report,
        rows=report.costs[:MOST_ROWS],
        left_out=max(0, len(report.costs) - MOST_ROWS),
        curve=msgspec.json.encode(curve).decode(),
        newest=[*zip(curve["at"], zip(*(each["values"] for each in curve["series"]), strict=True), strict=True)][
            -25:-1
        ],
        kinds={kind: MEANINGS[kind] for kind in shown},
        by=way,
        ways=WAYS,
        span=span if span in SPANS else "1d",
        spans=list(SPANS),
        budgets=budgets,
        stops=STOPS,
        per_hour=sum(map(find_present_price, slots)),
        machines=len(running),
        stopped=sum(slot.state == "stopped" for slot in slots),
        unpriced=sum(not slot.price for slot in running),
    )


def copy_slots(feed: Feed) -> list[Slot]:
    with feed.lock:
        return list(feed.view.slots.values())


def read_page(
    store: Store, by: By, seconds: float, slots: Sequence[Slot]
) -> tuple[CostReport, dict[str, Any], list[BudgetReport]]:
    """Return (the sums of the ledger by `by` for the last `seconds`, the curve of each kind of use, the budgets)."""
    now = store.now()
    costs = store.read_costs(now - seconds)
    return report_costs(costs, by, now - seconds), make_curve(costs, now - seconds, now), report_budgets(store, slots)


def make_curve(costs: Iterable[Cost], since: float, now: float) -> dict[str, Any]:
    """Return dollars per hour by kind of use for each hour since `since`, in the form that `curves.js` draws, as areas
    that lie on each other. The curve begins with the first hour that has a cost. The hour that has not ended counts by
    its seconds so far; its value stands again at the end, at `now`. A kind in RARE without a cost is missing.
    """
    sums: dict[tuple[float, CostKind], float] = defaultdict(float)
    seen: set[CostKind] = set()
    for cost in costs:
        sums[cost.hour, cost.kind] += cost.dollars
        seen.add(cost.kind)
    first = begin_of_hour(max(since, min((hour for hour, _ in sums), default=now)))
    hours = [first + HOUR * index for index in range(int((now - first) // HOUR) + 1)]
    parts = [min(1.0, max(now - hour, 60.0) / HOUR) for hour in hours]
    series: list[dict[str, Any]] = [
        {
            "name": kind,
            "values": [round(sums[hour, kind] / part, 4) for hour, part in zip(hours, parts, strict=True)],
        }
        for kind in COST_KINDS
        if kind in seen or kind not in RARE
    ]
    for each in series:
        each["values"].append(each["values"][-1])
    return {"at": [*map(round, hours), round(now)], "series": series, "stepped": True, "stacked": True}


PAGE: Final = Page("money", "Money", "/money", 32, [Route("/money", show_money)])
