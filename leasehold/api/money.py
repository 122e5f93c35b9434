"""Reads of costs, budgets and offers over HTTP, from the database."""

from typing import Final, cast

from starlette.requests import Request
from starlette.responses import Response

from leasehold.api.queries import Query, make_page
from leasehold.api.service import Service, check_right, respond
from leasehold.web.money import CostReport, read_offers, report_budgets, report_costs
from scheduler.model.costs import HOUR
from scheduler.operations.costs import WAYS, By
from scheduler.ports import Store

USUAL_HOURS: Final = 24


class Money:
    """The handlers of reads about money. A caller needs the right to read the rules, because the rules contain prices
    and budgets.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def costs(self, request: Request) -> Response:
        """Respond with the sums of the cost ledger for the last hours: the parameter `hours`, or USUAL_HOURS."""
        check_right(request, "rules")
        query = Query(request)
        by = cast("By", query.take_choice("by", WAYS, "pool"))
        hours = query.take_number("hours", USUAL_HOURS)
        query.end()
        await self._service.open_client(request)
        backend = self._service.backend
        return respond(await backend.run(_read_costs, backend.store, by, hours * HOUR))

    async def budgets(self, request: Request) -> Response:
        """Respond with all budgets, and what was spent of each."""
        check_right(request, "rules")
        Query(request).end()
        await self._service.open_client(request)
        store = self._service.backend.store
        return respond(make_page(await self._service.backend.run(_read_budgets, store), None))

    async def offers(self, request: Request) -> Response:
        """Respond with the offers (what launches would buy) of one pool or of all pools."""
        check_right(request, "rules")
        query = Query(request)
        pool = query.take("pool")
        query.end()
        await self._service.open_client(request)
        backend = self._service.backend
        pools = [] if pool is None else [pool]
        return respond(make_page(await backend.run(read_offers, backend.store, backend.settings.market, pools), None))


def _read_costs(store: Store, by: By, seconds: float) -> CostReport:
    since = store.now() - seconds
    return report_costs(store.read_costs(since), by, since)


def _read_budgets(store: Store) -> list[object]:
    return [*report_budgets(store, store.find_slots())]
