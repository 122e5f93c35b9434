"""The page Accounts: levels and balances of the quota accounts, their balances over time, and preemptions with what was
paid for them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.client.async_client import AsyncClient
from leasehold.client.models import Account
from leasehold.console.page import EventRow, Page, backend, caller, change, make_rows, render
from leasehold.errors import Unavailable
from leasehold.web.feed import Feed
from scheduler.ports import EventFilter, Store

DAY: Final = 86400.0
SPANS: Final = {"1h": 3600.0, "6h": 6 * 3600.0, "1d": DAY, "7d": 7 * DAY}
MOST_POINTS: Final = 1500
"""The most points of one curve: more cannot be seen."""
MOST_PREEMPTIONS: Final = 50


async def show_accounts(request: Request) -> Response:
    """List the accounts with their levels, balances and running leases."""
    services, client = backend(request), await backend(request).client(caller(request))
    accounts = await _list_accounts(client, services.feed)
    await services.feed.refresh()
    counts = await services.run_plain(count_reservations, services.feed)
    preemptions = await services.run(find_preemptions, services.store, None)
    return render(request, "accounts.html", page="accounts", accounts=accounts, counts=counts, preemptions=preemptions)


def count_reservations(feed: Feed) -> dict[str, Counter[str]]:
    """Return for each account how many reservations it has in each phase, without ended ones."""
    counts: dict[str, Counter[str]] = {}
    with feed.lock:
        for phase in ("pending", "leased", "revoking"):
            for row in feed.view.by_phase[phase].values():
                owner = feed.view.account_of(row)
                if owner is not None:
                    counts.setdefault(owner.id, Counter())[phase] += 1
    return counts


async def show_account(request: Request) -> Response:
    """Show one account: its settings, the curve of its balances, and the preemptions that it paid for."""
    name = request.path_params["name"]
    services = backend(request)
    found = await _find(request, name)
    span = request.query_params.get("span", "1d")
    seconds = SPANS.get(span, DAY)
    now = (await services.client(caller(request))).now()
    samples = await services.run(services.store.read_balances, name, now - seconds)
    step = len(samples) // MOST_POINTS + 1
    shown = samples[::step]
    paid = max((index + 1 for row in shown for index, each in enumerate(row.balance) if each), default=1)
    curve = {
        "at": [round(row.at) for row in shown],
        "series": [
            {"name": f"level {level}", "values": [row.balance[level] for row in shown]} for level in range(paid)
        ],
    }
    return render(
        request,
        "account.html",
        page="accounts",
        account=found,
        curve=msgspec.json.encode(curve).decode(),
        samples=shown[-12:],
        is_empty=not shown,
        span=span if span in SPANS else "1d",
        spans=list(SPANS),
        preemptions=await services.run(find_preemptions, services.store, name),
        refusal=caller(request).find_refusal("reset_account"),
    )


async def reset_account(request: Request) -> Response:
    """Set the balance of an account to 0 at every level."""
    name = request.path_params["name"]

    def act(client: AsyncClient) -> Any:
        return client.reset_account(name)

    outcome = await change(request, "reset_account", name, act)
    return render(request, "outcomes.html", outcomes=[outcome], bulk=None)


def find_preemptions(store: Store, account: str | None) -> list[EventRow]:
    """Return an event for each of the newest preemptions, newest first: that of the reservation that was preempted. It
    names the one that took the slot, its level (class of service), the account that pays, and the amount. `account`:
    return only the preemptions that this account pays for; None: return all.
    """
    found = []
    for event in reversed(store.read_events(EventFilter(newest=True, limit=2000))):
        if "by" in event.detail:
            if account is None or event.detail.get("account") == account:
                found.append(event)
            if len(found) == MOST_PREEMPTIONS:
                break
    return make_rows(found)


async def _list_accounts(client: AsyncClient, feed: Feed) -> Sequence[Account]:
    """Return the accounts of the view, sorted by name; as the feed knows them, while Redis does not answer."""
    try:
        return await client.accounts()
    except Unavailable:
        with feed.lock:
            stored = [row for _, row in sorted(feed.view.accounts.items()) if not row.forgotten]
        return msgspec.json.decode(msgspec.json.encode(stored), type=list[Account])


async def _find(request: Request, name: str) -> Account:
    client = await backend(request).client(caller(request))
    for account in await _list_accounts(client, backend(request).feed):
        if account.id == name:
            return account
    raise HTTPException(404, f"There is no account {name[:200]}.")


PAGE: Final = Page(
    "accounts",
    "Accounts",
    "/accounts",
    30,
    [
        Route("/accounts", show_accounts),
        Route("/accounts/{name:path}/reset", reset_account, methods=["POST"]),
        Route("/accounts/{name:path}", show_account),
    ],
)
