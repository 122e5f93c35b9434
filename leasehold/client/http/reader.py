"""Read rows and the report of the last tick from the HTTP API."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from typing_extensions import override

from leasehold.client.http.channel import HttpChannel
from leasehold.client.models import (
    Account,
    Explanation,
    LastWait,
    Reservation,
    RunTimes,
    Slot,
    Wait,
    find_waits,
    read_explanation,
)
from leasehold.client.ports import Joined, Reader
from leasehold.errors import NotAnswered, Refused, Unavailable, Unknown
from scheduler.protocol.http_routes import MOST_IDS, quote_id

ROWS_A_PAGE: Final = 1000
R = TypeVar("R")


class HttpReader(Reader):
    """Reads rows and the report of the last tick from an HTTP API. Every method raises Unavailable if the server does
    not answer or has no valid view.
    """

    checks_names = True

    def __init__(self, channel: HttpChannel) -> None:
        self._channel = channel

    @override
    async def check(self) -> None:
        await self._read("/slots", {"limit": 1})

    @override
    async def find_joined(self, ids: Sequence[str], expected: Collection[str] = ()) -> list[Joined]:
        if len(ids) == 1:
            return [await self._find_row(ids[0])]
        found: dict[str, Joined] = {}
        for start in range(0, len(ids), MOST_IDS):
            page = await self._read("/reservations", {"id": list(ids[start : start + MOST_IDS])})
            found |= {row["id"]: read_joined(row) for row in page["items"]}
        return [found.get(name, Joined(None)) for name in ids]

    @override
    async def list_reservations(
        self, phases: frozenset[str] | None, wanted: Mapping[str, str | None], tags: Mapping[str, str]
    ) -> list[Reservation]:
        query: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        query |= {f"tag.{name}": value for name, value in tags.items()}
        if phases is not None:
            query["phase"] = sorted(phases)
            if not phases:
                return []
        rows = {row["id"]: read_joined(row).row async for row in self._pages("/reservations", query)}
        return [row for row in rows.values() if row is not None]

    @override
    async def find_slots(self, ids: Sequence[str]) -> list[Slot | None]:
        return [await self._find(f"/slots/{quote_id(name)}", Slot) for name in ids]

    @override
    async def list_slots(self, pool: str | None, state: str | None) -> list[Slot]:
        query = {name: value for name, value in (("pool", pool), ("state", state)) if value is not None}
        return [_convert(row, Slot) async for row in self._pages("/slots", query)]

    @override
    async def list_accounts(self) -> list[Account]:
        return [_convert(row, Account) async for row in self._pages("/accounts", {})]

    @override
    async def list_run_times(self, account: str | None, job: str | None) -> list[RunTimes]:
        query = {name: value for name, value in (("account", account), ("job", job)) if value is not None}
        return [_convert(row, RunTimes) async for row in self._pages("/run-times", query)]

    @override
    async def find_etas(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(ids), MOST_IDS):
            found |= (await self._read("/forecasts", {"id": list(ids[start : start + MOST_IDS])}))["etas"]
        return found

    @override
    async def read_foresight(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._read("/forecasts")
        return {name: value for name, value in found.items() if name != "etas"}

    @override
    async def read_report(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._read("/report")
        return found

    @override
    async def explain(self, reservation: str) -> Explanation:
        path = f"/reservations/{quote_id(reservation)}/explanation"
        return read_explanation(await self._read(path, {"source": "view"}))

    @override
    async def find_waits(self, ids: Sequence[str]) -> list[LastWait]:
        if len(ids) == 1:
            try:
                found = await self.explain(ids[0])
            except Unknown:
                return [LastWait()]
            why = None if found.code is None else Wait(code=found.code, detail=found.detail or "")
            return [LastWait(why, found.as_of)]
        return find_waits(await self.read_report(), ids)

    async def _find_row(self, reservation: str) -> Joined:
        found = await self._find(f"/reservations/{quote_id(reservation)}", dict)
        return Joined(None) if found is None else read_joined(found)

    async def _find(self, path: str, type_: type[R]) -> R | None:
        try:
            return _convert(await self._read(path), type_)
        except Unknown:
            return None

    async def _pages(self, path: str, query: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        asked: dict[str, Any] = {**query, "limit": ROWS_A_PAGE}
        while True:
            page = await self._read(path, asked, is_filtered=True)
            for item in page["items"]:
                yield item
            if page.get("next") is None:
                return
            asked["cursor"] = page["next"]

    async def _read(self, path: str, query: Mapping[str, Any] | None = None, *, is_filtered: bool = False) -> Any:
        """Return the JSON table of a resource. `is_filtered`: whether the query has values of the caller; then raise
        Refused if the server refuses them.
        """
        try:
            found = await self._channel.read(path, query)
        except (NotAnswered, Refused) as error:
            if is_filtered and isinstance(error, Refused) and all(each.code is None for each in error.errors):
                raise
            raise Unavailable(str(error)) from error
        if not isinstance(found, dict):
            raise Unavailable(f"{self._channel.url} is no HTTP API of Leasehold: its response is no JSON")
        return found


def read_joined(row: dict[str, Any]) -> Joined:
    """Return the reservation in `row`, an object of the HTTP API. The machine of a lease is unknown if the lease lacks
    the field `instance_id`; the value null means a known machine that is no EC2 instance.
    """
    missing = frozenset(lease["slot"] for lease in row.get("leases", ()) if "instance_id" not in lease)
    return Joined(_convert(row, Reservation), missing)


def _convert(content: Any, type_: type[R]) -> R:
    try:
        return msgspec.convert(content, type_)
    except msgspec.ValidationError as error:
        raise Unavailable(f"the server has another version of Leasehold: {error}") from error
