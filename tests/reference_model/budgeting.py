"""Budgets in dollars. Rule: "A running machine counts as running for one more hour"."""

from math import inf
from typing import TYPE_CHECKING

from scheduler.model.budgets import Budget
from tests.reference_model.picture import Picture, Site

if TYPE_CHECKING:
    from tests.reference_model.launching import Offer

ROUNDING = 1e-6


def is_in(budget: Budget, pool: str, account: str) -> bool:
    """Whether a machine of the pool that was launched for the account counts."""
    in_pools = len(budget.pools) == 0 or pool in budget.pools
    in_accounts = len(budget.accounts) == 0 or account in budget.accounts
    return in_pools and in_accounts


def find_left(picture: Picture, name: str) -> float:
    """Rule: what may run = the least of `per_hour`, what is left of the day, and what is left of the month."""
    budget, spent = picture.rules.budgets[name], picture.rules.spending.get(name)
    left = [inf if budget.per_hour is None else budget.per_hour]
    if budget.per_day is not None:
        left.append(budget.per_day - (spent.day if spent else 0))
    if budget.per_month is not None:
        left.append(budget.per_month - (spent.month if spent else 0))
    return max(0, min(left))


def sum_running(picture: Picture, budget: Budget, *, with_leaving: bool) -> float:
    """The prices of the machines that count."""
    leaving = () if with_leaving else ("draining", "terminating")
    # A machine that this tick stops still counts, and one that was stopped and ends does not.
    paid = [site for site in picture.sites if site.is_new or site.row.state != "stopped"]
    paid = [site for site in paid if with_leaving or site.state != "stopped"]
    return sum(
        site.price
        for site in paid
        if site.is_active and site.state not in leaving and is_in(budget, site.name, site.account)
    )


def is_over_budget(picture: Picture, offer: "Offer", account: str) -> bool:
    """Rule: "A launch that would exceed a budget is not made"; one without a price exceeds none."""
    for name, budget in picture.rules.budgets.items():
        if budget.action == "warn" or not is_in(budget, offer.pool, account) or not offer.price:
            continue
        running = sum_running(picture, budget, with_leaving=True)
        if running + offer.price > find_left(picture, name) + ROUNDING:
            return True
    return False


def save(picture: Picture) -> None:
    """Rule: "`drain`: machines end until the others cost no more than the budget allows": those in flight that no
    reservation waits for, idle ones, longest idle first, and those with leases only if nothing is left.
    """
    for name, budget in picture.rules.budgets.items():
        if budget.action != "drain":
            continue
        left = find_left(picture, name)
        for site in list_to_go(picture, budget, is_used_up=left == 0):
            if sum_running(picture, budget, with_leaving=False) <= left + ROUNDING:
                break
            picture.decide("drain" if site.state == "ready" else "terminate", site.id, "over_budget")
            site.state = "draining" if site.state == "ready" else "terminating"


def list_to_go(picture: Picture, budget: Budget, *, is_used_up: bool) -> list[Site]:
    """In the order in which they end; cordoned ones and those that this tick launches are not among them."""
    sites = [
        site
        for site in picture.sites
        if is_in(budget, site.name, site.account) and site.price and not site.row.cordoned and not site.is_new
    ]
    coming = [site for site in sites if site.is_coming and not site.is_in_use]
    idle = sorted((site for site in sites if site.is_idle), key=lambda site: site.idle_since)
    used = [site for site in sites if site.state == "ready" and not site.is_idle and is_used_up]
    return coming + idle + used
