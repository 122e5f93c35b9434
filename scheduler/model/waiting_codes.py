"""The waiting codes: for each reason why a reservation is pending, one entry with all that depends on the code.

A new code is a name in `WaitingCode`, an entry in `_find_entry`, and the step of the plan that reports it. The order of
the codes, the conditions of `explain`, the metrics and the table of docs/reference/queueing.md follow from here:
`python -m scheduler.model.waiting_codes` prints that table.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, assert_never, get_args

from scheduler.model.launch_backoff import Kind

WaitingCode = Literal[
    "on_hold",
    "no_pool",
    "never_fits",
    "no_quota",
    "account_limit",
    "behind_queue",
    "booting",
    "at_max_slots",
    "at_quota",
    "over_budget",
    "capacity",
    "throttled",
    "misconfigured",
    "gang_incomplete",
    "cordoned",
    "no_capacity",
]
"""The code for the reason why a reservation waits. If several apply, the first one in this order is reported."""
NoCode = Literal[""]
"""Stands for a waiting code where nothing prevents a lease or a launch."""


class Entry(NamedTuple):
    """What depends on a waiting code."""

    sentence: str
    """Why the reservation waits, for people. A step that knows more reports a sentence of its own with the code."""
    conditions: tuple[str, ...]
    """The conditions of `explain` that are not met if the code is reported, in the order in which they apply. For a
    condition without a function in `explain/matrix.py`, the matrix shows what the plan reports.
    """
    needs: str | None = None
    """What would have to be true for a lease; None: it depends on the sizes of machines (`explain/matrix.py`)."""
    prevents_launch: bool = False
    """Whether the code names a reason for which a launch is not made."""
    backoffs: tuple[Kind, ...] | None = None
    """The kinds of launch back-offs that lead to the code; None: the code is not about the launches of a pool."""
    lacks_slot: bool = False
    """Whether the launch would be made if the pool, or EC2's quota, had room for one more slot."""
    holds_reserve: bool = False
    """Whether the pool launches nothing for its warm reserve or its stopped tier meanwhile."""
    of_a_market: bool = False
    """Whether the turn of a market may be the reason. For example, it is on-demand's turn in a pool, and EC2's quota
    prevents only on-demand launches.
    """
    is_servable: bool = True
    """Whether the end of other leases, or a launch, may serve the reservation. If not, rules or hosts must change."""
    is_a_wait: bool = True
    """Whether the reservation counts for the longest wait in the report of a tick."""


def _find_entry(code: WaitingCode) -> Entry:  # noqa: C901, PLR0912 (a table, as a match: mypy finds a code without entry)
    match code:
        case "on_hold":
            return Entry(
                "on hold until it is resumed, or its priority is above 0",
                conditions=("not_on_hold",),
                needs="it is resumed and its priority is above 0, and machines have room for it",
                is_a_wait=False,
            )
        case "no_pool":
            return Entry("no pool serves its system", conditions=("pool",), is_servable=False)
        case "never_fits":
            return Entry(
                "no slot or offering could hold one of its components, even empty",
                conditions=("labels", "size"),
                is_servable=False,
            )
        case "no_quota":
            return Entry(
                "its account has nothing left at any level, and may not run at the free level",
                conditions=("account_balance",),
                needs="its account has a balance at a level that it may use",
            )
        case "account_limit":
            return Entry(
                "a limit of its account refuses a lease",
                conditions=("account_limits",),
                needs="its account runs fewer leases, or has higher limits",
            )
        case "behind_queue":
            return Entry(
                "an earlier reservation has waited for so long that no later one may overtake it",
                conditions=("turn", "starvation_guard", "work_budget"),
                needs="the reservations before it in the queue have their leases",
                prevents_launch=True,
            )
        case "booting":
            return Entry(
                "all its instances have room on slots that are ready or in flight",
                conditions=("slots_started",),
                needs="the machines that it waits for are ready",
                is_a_wait=False,
            )
        case "at_max_slots":
            return Entry(
                "a launch would serve the reservation, but no slot is left within max_slots",
                conditions=("max_slots",),
                needs="a slot within max_slots is free, and may be launched",
                prevents_launch=True,
                backoffs=(),
                lacks_slot=True,
                holds_reserve=True,
            )
        case "at_quota":
            return Entry(
                "a launch would serve the reservation, but EC2's quota is reached",
                conditions=("ec2_quota",),
                needs="EC2's quota allows one more machine",
                prevents_launch=True,
                backoffs=("quota",),
                lacks_slot=True,
                holds_reserve=True,
                of_a_market=True,
            )
        case "over_budget":
            return Entry(
                "a launch would serve the reservation, but it would exceed a budget",
                conditions=("budget",),
                needs="its budgets allow one more machine",
                prevents_launch=True,
                backoffs=(),
                holds_reserve=True,
                of_a_market=True,
            )
        case "capacity":
            return Entry(
                "EC2 is short of capacity in every offering that could serve the reservation",
                conditions=("ec2_capacity",),
                needs="EC2 has capacity again for an offering of its pools",
                prevents_launch=True,
                backoffs=("capacity",),
                of_a_market=True,
            )
        case "throttled":
            return Entry(
                "EC2 asked us to slow down; launches of this pool are paused",
                conditions=("launch_rate",),
                needs="EC2 accepts launches again",
                prevents_launch=True,
                backoffs=("throttled",),
            )
        case "misconfigured":
            return Entry(
                "EC2 refused the last launch as misconfigured, or for lack of permission",
                conditions=("launch_settings",),
                needs="EC2 accepts the launch settings and permissions of its pools",
                prevents_launch=True,
                backoffs=("misconfigured", "auth", "unhealthy"),
                of_a_market=True,
            )
        case "gang_incomplete":
            return Entry("some of its instances would fit, but not all", conditions=("whole_gang",))
        case "cordoned":
            return Entry("only cordoned slots have room for the reservation", conditions=("not_cordoned",))
        case "no_capacity":
            return Entry(
                "no slot has room for the reservation, and none can be launched",
                conditions=("free_capacity",),
                of_a_market=True,
            )
        case _:
            assert_never(code)


WAITING_CODES: Final[tuple[WaitingCode, ...]] = get_args(WaitingCode)
ENTRIES: Final[Mapping[WaitingCode, Entry]] = MappingProxyType({code: _find_entry(code) for code in WAITING_CODES})


def _list_codes(has: Callable[[Entry], bool]) -> tuple[WaitingCode, ...]:
    return tuple(code for code, entry in ENTRIES.items() if has(entry))


UNSERVABLE: Final = frozenset(_list_codes(lambda each: not each.is_servable))
NOT_A_WAIT: Final = frozenset(_list_codes(lambda each: not each.is_a_wait))
PREVENTING: Final = _list_codes(lambda each: each.prevents_launch)
LACKING_SLOT: Final = frozenset(_list_codes(lambda each: each.lacks_slot))
HOLDING_RESERVE: Final = frozenset(_list_codes(lambda each: each.holds_reserve))
OF_A_MARKET: Final = frozenset(_list_codes(lambda each: each.of_a_market))


def first_code(codes: Iterable[WaitingCode | None]) -> WaitingCode | NoCode:
    """Return the waiting code to report if these are the reasons that prevent the possible launches: the first one in
    PREVENTING. Return "" if there is no reason, or if one is None (that launch is possible).
    """
    found = set(codes)
    return "" if None in found else next((code for code in PREVENTING if code in found), "")


def format_table() -> str:
    """Return the table of docs/reference/queueing.md: each code with its sentence."""
    rows = (f"| `{code}` | {each.sentence[0].upper()}{each.sentence[1:]}. |" for code, each in ENTRIES.items())
    return "\n".join(["| code | reason |", "|---|---|", *rows])


if __name__ == "__main__":
    print(format_table())  # noqa: T201 (a part of a page)
