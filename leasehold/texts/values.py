"""Times, durations and amounts as texts for people, and the colours of states; and the sentences of `leasehold events`
and of the console's pages about preemptions, changes of level, changes of cores, and refused messages.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scheduler.model.events import Event

_IN_SENTENCES: Final = frozenset(
    {"preempted", "by", "account", "level", "ran_at", "slot", "slots", "cost", "deadline", "reason", "from", "to"}
    | {"component", "cpus", "queue", "task", "message", "defect", "path", "expected", "got", "more_faults"}
)
"""Keys of an event's details that its sentence already shows, so that they are not printed a second time."""
_FREE: Final = 5


def describe_event(event: "Event") -> str:
    """Return an event as text: a sentence, if this kind of event has one, and the other details as `key=value`."""
    sentence = _find_sentence(event)
    shown = {"refusal"} if event.detail.get("refusal") else _IN_SENTENCES if sentence else frozenset()
    rest = {key: value for key, value in event.detail.items() if key not in shown}
    details = " ".join(f"{key}={_show(value)}" for key, value in rest.items() if value not in (None, "", []))
    return "  ".join(filter(None, (sentence, details)))


def name_source(event: "Event") -> str:
    """Return what caused an event: a tick, the cloud, an operator, or a request, with the principal that signed it."""
    return " ".join(filter(None, ("request" if event.cause == "holder" else event.cause, event.principal)))


def _show(value: object) -> object:
    if isinstance(value, list):
        return ",".join(map(str, map(_show, value)))
    return round(value, 3) if isinstance(value, float) else value


def _find_sentence(event: "Event") -> str:
    detail: Mapping[str, Any] = event.detail
    if event.name == "message_refused":
        text = f"{detail['task']} on the queue {detail['queue']}, message {detail['message']}: "
        text += f"{detail['path']}: expected {detail['expected']}, got {detail['got']}"
        return text + (f" ({detail['more_faults']} more faults)" if detail.get("more_faults") else "")
    if "by" in detail:
        payer = f" of account {detail['account']}" if detail.get("account") else ""
        text = f"preempted by {detail['by']}{payer}, which pays at {_name(detail['level'])}"
        used = show_cost(detail["cost"])
        if component := detail.get("component"):
            text = f"{component} on {detail['slot']} {text}"
            used = f"{used} as its share"
        text += f": it ran at {_name(detail['ran_at'])} and had used {used}"
        return text + _describe_deadline("; its holder must release it by {}", detail)
    if "preempted" in detail:
        verb = "preempted" if event.name == "reservation_leased" else "preempts"
        text = f"{verb} {', '.join(detail['preempted'])} on {detail['slot']} at {_name(detail['level'])}"
        if detail.get("account"):
            text += f": account {detail['account']} pays for what they had used, {show_cost(detail['cost'])}"
        return text + _describe_deadline("; it is free at {} at the latest", detail)
    if event.name == "reservation_relevelled":
        return f"pays at {_name(detail['to'])} from now on, instead of {_name(detail['from'])}"
    if detail.get("refusal"):
        return f"EC2's answer: {detail['refusal']}"
    if event.name == "reservation_cores":
        return f"{detail['component']} may use {detail['cpus']:g} cores of {detail['slot']}"
    return ""


def _describe_deadline(text: str, detail: Mapping[str, Any]) -> str:
    return text.format(show_time(detail["deadline"])) if detail.get("deadline") else ""


def _name(level: Any) -> str:
    return "the free level" if level == _FREE else f"level {level}"


_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_LEAST_SHOWN: Final = 0.005
_STYLES: Final = {
    **dict.fromkeys(("leased", "ready", "ok"), "green"),
    **dict.fromkeys(("pending", "launching", "booting", "binding"), "yellow"),
    **dict.fromkeys(("revoking", "draining", "degraded"), "magenta"),
    "stopped": "blue",
    **dict.fromkeys(("failed", "expired", "error", "down"), "red"),
    **dict.fromkeys(("released", "cancelled", "empty", "terminating"), "dim"),
}


def show_seconds(seconds: float) -> str:
    """Return a duration in seconds as a text for people, like "3 min"."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - a digit more when it matters
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < _DAY else f"{seconds / _DAY:.1f} d"


def show_time(at: float) -> str:
    """Return a time in seconds since the epoch as text in UTC, like 2026-11-21T14:00:00Z."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_amount(amount: float) -> str:
    """Return an amount of a resource with two decimals at most: `4`, `0.5`, `1,234.57`. `amount` of console.js returns
    the same.
    """
    if 0 < abs(amount) < _LEAST_SHOWN:
        return "<0.01" if amount > 0 else ">-0.01"
    return f"{amount:,.2f}".rstrip("0").removesuffix(".")


def show_cost(cost: Iterable[float]) -> str:
    """Return the cost of a lease by paid level in words, like `0.74 of level 2`."""
    return " and ".join(f"{format_amount(amount)} of level {level}" for level, amount in enumerate(cost) if amount) or (
        "nothing"
    )


def show_levels(amounts: Iterable[float]) -> str:
    """Return the amounts of a quota account as a text like `2 1 0 0 0`: a number for each level, the best
    level first.
    """
    return " ".join(f"{amount:.6g}" for amount in amounts)


def find_style(state: str) -> str:
    """Return the colour for a cell with this phase or state; "" for another text."""
    return _STYLES.get(state.partition(" ")[0], "")
