"""Builders of scenarios of quota accounts: one static pool of hosts that take one lease each, and no grace."""

from typing import Any

from tests.rules.playing import SYSTEM, Document, Played, a_scenario, a_slot, a_wish, act, play_out

FOR_EVER = 1e9
POOL: Document = {"system": SYSTEM, "provider": "static", "lease_ttl": 0, "offline_timeout": FOR_EVER}


def an_account(balance: list[float] | None = None, rates: list[float] | None = None, **fields: Any) -> Document:
    """The configuration of an account; it earns nothing by default."""
    found: Document = {"balance": balance or [], "charge_rate": rates or [], **fields}
    return found


def a_quota(*timeline: Document, accounts: Document | None = None, **parts: Any) -> Document:
    """A scenario under the queue `quota`; `grace` is 0 by default, `slots` are in the pool `lab`."""
    scheduler = {"queue": "quota", "preemption_grace": parts.pop("grace", 0), **parts.pop("scheduler", {})}
    pools = {"lab": {**POOL, **parts.pop("pool", {})}}
    document = a_scenario(*timeline, scheduler=scheduler, pools=pools, **parts)
    document["config"]["accounts"] = accounts or {}
    return document


def idle(*names: str, **fields: Any) -> list[Document]:
    """Slots without a lease."""
    return [a_slot(name, **fields) for name in names]


def runs(slot: str, name: str, level: int = 5, cost: list[float] | None = None, **fields: Any) -> Document:
    leases = [{"reservation": name, "level": level, "cost": cost or []}]
    return a_slot(slot, **fields) | {"leases": leases}


def held(name: str, account: str | None = None, **fields: Any) -> Document:
    """A reservation that is leased from the start; a slot record contains its lease."""
    return a_wish(name, phase="leased", **({"account": account} if account else {}), **fields)


def ask(at: float, *names: str, account: str | None = None, **fields: Any) -> Document:
    """Producers submit these for one account."""
    more = {"account": account} if account else {}
    return act(at, "submit", [a_wish(name, **more, **fields) for name in names])


def balances(played: Played) -> dict[str, list[float]]:
    """The final balances, without zeros at their ends."""
    return {each["id"]: _trim(each["balance"]) for each in played.state["accounts"]}


def leases(played: Played) -> dict[str, tuple[int, list[float]]]:
    """By reservation: level and cost of its lease at the end, without zeros at the end of the cost."""
    return {
        each["reservation"]: (each["level"], _trim(each["cost"]))
        for slot in played.state["slots"]
        for each in slot["leases"]
    }


def _trim(levels: list[float]) -> list[float]:
    last = max((index + 1 for index, value in enumerate(levels) if value), default=0)
    return levels[:last]


def play_quota(*timeline: Document, **parts: Any) -> Played:
    return play_out(a_quota(*timeline, **parts))
