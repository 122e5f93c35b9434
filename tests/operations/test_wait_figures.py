"""The figures of a report about the waiting reservations are those of a walk over all of them, whatever was kept."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.accounts import FREE, Account, level_of
from scheduler.model.decisions import Plan
from scheduler.model.launch_backoff import Hold, Kind, hold_id
from scheduler.model.view import View
from scheduler.model.waiting_codes import NOT_A_WAIT, WaitingCode
from scheduler.model.waits import Waits
from scheduler.operations.tick.leader import WaitFigures
from tests.builders import NOW, a_reservation, a_slot, some_rules
from tests.rules.fleets import QUICKLY

RULES = some_rules({"pools": {"linux": {}}})
CODES: tuple[WaitingCode, ...] = ("booting", "on_hold", "no_capacity", "no_quota")


@QUICKLY
@given(st.integers(0, 2**32), st.lists(st.sampled_from(["arrive", "leave", "code", "pay", "forget"]), max_size=8))
def test_figures_are_those_of_a_walk(seed: int, steps: list[str]) -> None:
    draw, figures, view, names, codes = (
        random.Random(seed),
        WaitFigures(),
        View(),
        list[str](),
        dict[str, WaitingCode](),
    )
    for version, step in enumerate(["arrive", *steps], 1):
        match step:
            case "arrive":
                for _ in range(draw.randrange(400)):
                    row = _make(len(view.reservations) + 1, draw)
                    view.apply(row)
                    names.insert(draw.choice([len(names), draw.randint(0, len(names))]), row.id)
                    codes[row.id] = draw.choice(CODES)
            case "leave":
                names = [name for name in names if draw.random() < 0.9]
            case "code":
                codes |= {name: draw.choice(CODES) for name in names[: draw.randrange(len(names) + 1)]}
            case "pay":
                balance = draw.choice([(9.0, 0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0, 0.0)])
                view.apply(Account(id="A", version=version, balance=balance))
            case _:
                view.apply(Account(id="A", version=version, forgotten_upto=draw.randrange(200)))
        waits = Waits(names, [(codes[name], "because") for name in names])
        assert figures.describe(Plan((), waits, None), view, RULES, NOW) == _walk(waits, view)


def _make(number: int, draw: random.Random) -> Any:
    account = draw.choice([None, "A", "B"])
    return a_reservation(f"r{number}", sequence=number, created_at=NOW - draw.randrange(1000), account=account)


def _walk(waits: Waits, view: View) -> dict[str, Any]:
    counted = [view.reservations[name].created_at for name, (code, _) in waits.items() if code not in NOT_A_WAIT]
    payers = [view.account_of(view.reservations[name]) for name in waits.names]
    accounts = {
        account.id: [payers.count(account) if level == level_of(account.balance) else 0 for level in range(FREE + 1)]
        for account in payers
        if account is not None
    }
    return {
        "codes": Counter(code for code, _ in waits.reasons),
        "longest_wait": NOW - min(counted, default=NOW),
        "at_quota": [],
        "accounts": accounts,
    }


@pytest.mark.parametrize(
    ("kind", "until", "refused_at_active", "active", "expected"),
    [
        ("quota", NOW + 40, 2, 2, ["linux"]),
        # fewer than at the refusal end it
        ("quota", NOW + 40, 2, 1, []),
        # with none active then, only the time counts
        ("quota", NOW + 40, 0, 0, ["linux"]),
        ("quota", NOW, 2, 5, []),
        ("capacity", NOW + 40, 2, 5, []),
    ],
)
def test_a_pool_is_at_quota_while_the_back_off_lasts(
    kind: Kind, until: float, refused_at_active: int, active: int, expected: list[str]
) -> None:
    hold = Hold(
        id=hold_id("linux", kind, "spot"),
        pool="linux",
        kind=kind,
        subject="spot",
        refused_at=NOW,
        until=until,
        active=refused_at_active,
    )
    slots = [a_slot("linux-0", state="empty"), *(a_slot(f"linux-{number}") for number in range(1, active + 1))]
    assert WaitFigures().describe(Plan((), Waits(), None), View([hold, *slots]), RULES, NOW)["at_quota"] == expected
