"""The plain scheduler decides qscheduler's cases as the source states, so that the engine can be compared with it."""

from typing import Any

import pytest

from tests.reference_model.quota.playing import play_plain

Document = dict[str, Any]


def a_document(*timeline: Document, slots: list[Document], reservations: Any = (), **parts: Any) -> Document:
    scheduler = {"queue": "quota", "preemption_grace": 0} | parts.pop("scheduler", {})
    pools = {"linux": {"system": "x", "provider": "static", "max_leases_per_slot": parts.pop("room", 1)}}
    config = {"scheduler": scheduler, "pools": pools, "accounts": parts.pop("accounts", {})}
    return {"config": config, "slots": slots, "reservations": list(reservations), "timeline": list(timeline)}


def a_slot(number: int, holder: str | None = None, level: int = 5, *cost: float, **labels: str) -> Document:
    leases = [{"reservation": holder, "level": level, "cost": list(cost)}] if holder else []
    return {"id": f"linux-{number}", "pool": "linux", "labels": labels, "leases": leases}


def a_job(name: str, account: str | None = None, **fields: Any) -> Document:
    return {"id": name, "system": "x", "account": account} | fields


def submit(at: float, *jobs: Document) -> Document:
    return {"at": at, "submit": list(jobs)}


def tick(at: float) -> Document:
    return {"at": at, "tick": True}


def state(line: Document) -> str:
    match line["do"]:
        case "assign":
            return f"{line['reservation']} on {line['leases'][0]['slot']} at {line['level']}"
        case "preempt":
            return f"{line['reservation']} preempts {' '.join(line['victims'])}"
        case "relevel":
            return f"{line['reservation']} {line['from']} to {line['to']}"
        case _:
            return f"{line['do']} {line['reservation']}"


A_FREE = [a_job("v", phase="leased")]

CASES: dict[str, tuple[Document, list[str]]] = {
    "no account runs at the free level": (
        a_document(submit(0, a_job("r")), tick(0), slots=[a_slot(1)]),
        ["r on linux-1 at 5"],
    ),
    "no slot has the label": (
        a_document(
            submit(0, a_job("r", "A", labels={"x": "1"})), tick(0), slots=[a_slot(1)], accounts={"A": {"balance": [1]}}
        ),
        ["r waits never_fits"],
    ),
    "no balance and no free tasks": (
        a_document(
            submit(0, a_job("r", "A")), tick(0), slots=[a_slot(1)], accounts={"A": {"disable_free_tasks": True}}
        ),
        ["r waits no_quota"],
    ),
    "a debt at level 0 does not exclude level 1": (
        a_document(submit(0, a_job("r", "A")), tick(0), slots=[a_slot(1)], accounts={"A": {"balance": [-5, 3]}}),
        ["r on linux-1 at 1"],
    ),
    "the cheaper of two is demoted": (
        a_document(
            tick(0),
            slots=[a_slot(1, "d", 0, 1), a_slot(2, "c", 0)],
            reservations=[a_job("d", "A", phase="leased"), a_job("c", "A", phase="leased")],
            accounts={"A": {"charge_rate": [1.1, 0.9], "balance": [-1200, 1200, 1200]}},
        ),
        ["c 0 to 1"],
    ),
    "above 600 running work is promoted": (
        a_document(
            tick(0),
            slots=[a_slot(1, "r", 2)],
            reservations=[a_job("r", "A", phase="leased")],
            accounts={"A": {"charge_rate": [0, 0.5], "balance": [0, 600.5]}},
        ),
        ["r 2 to 1"],
    ),
    "exactly 600 does nothing": (
        a_document(
            tick(0),
            slots=[a_slot(1, "r", 2)],
            reservations=[a_job("r", "A", phase="leased")],
            accounts={"A": {"charge_rate": [0, 0.5], "balance": [0, 600]}},
        ),
        [],
    ),
    "cost {1}, balance {1}": (
        a_document(
            submit(0, a_job("r", "A")),
            tick(0),
            slots=[a_slot(1, "v", 5, 1)],
            reservations=A_FREE,
            accounts={"A": {"balance": [1]}},
        ),
        ["r waits no_capacity"],
    ),
    "cost {0,100}, balance {1,-50}": (
        a_document(
            submit(0, a_job("r", "A")),
            tick(0),
            slots=[a_slot(1, "v", 5, 0, 100)],
            reservations=A_FREE,
            accounts={"A": {"balance": [1, -50]}},
        ),
        ["r preempts v", "r on linux-1 at 0", "v waits no_capacity"],
    ),
    "an account with worse work running is barred": (
        a_document(
            submit(0, a_job("r", "A")),
            tick(0),
            slots=[a_slot(1, "own", 4), a_slot(2, "v")],
            reservations=[a_job("own", "A", phase="leased"), *A_FREE],
            accounts={"A": {"balance": [10]}},
        ),
        ["r waits no_capacity"],
    ),
    "one preemption a slot": (
        a_document(
            submit(0, a_job("r1", "A"), a_job("r2", "A")),
            tick(0),
            slots=[a_slot(1, "v")],
            reservations=A_FREE,
            accounts={"A": {"balance": [10]}},
        ),
        ["r1 preempts v", "r1 on linux-1 at 0", "v waits no_capacity", "r2 waits no_capacity"],
    ),
    "the preference goes before the number of labels": (
        a_document(
            submit(
                0,
                a_job("r1", labels={"b": "1", "c": "1"}, prefers={"img": "2"}),
                a_job("r2", labels={"b": "1"}, prefers={"img": "1"}),
            ),
            tick(0),
            slots=[a_slot(1, b="1", c="1", img="1")],
        ),
        ["r2 on linux-1 at 5", "r1 waits no_capacity"],
    ),
    "the soft limit": (
        a_document(
            submit(0, a_job("r1", "A"), a_job("r2", "A"), a_job("r3", "A", prefers={"img": "1"})),
            tick(0),
            slots=[a_slot(1), a_slot(2), a_slot(3)],
            accounts={"A": {"balance": [10], "max_fanout": 1}},
        ),
        ["r1 on linux-1 at 0", "r3 on linux-2 at 0", "r2 on linux-3 at 5"],
    ),
    "idle at the instant of the assignment": (
        a_document(submit(0, a_job("r")), tick(0), {"at": 0, "idle": {"slot": "linux-1"}}, tick(1), slots=[a_slot(1)]),
        ["r on linux-1 at 5"],
    ),
    "grace 30": (
        a_document(
            submit(0, a_job("r", "A")),
            tick(0),
            {"at": 5, "release": "w"},
            tick(5),
            tick(30),
            slots=[a_slot(1, "v"), a_slot(2, "w", 0, 99)],
            reservations=[*A_FREE, a_job("w", phase="leased")],
            accounts={"A": {"balance": [1]}},
            scheduler={"preemption_grace": 30},
        ),
        [
            "r preempts v",
            "r waits no_capacity",
            "r waits no_capacity",
            "requeue v",
            "r on linux-1 at 0",
            "v on linux-2 at 5",
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_case_of_the_source(name: str) -> None:
    document, expected = CASES[name]
    reported = [
        word
        for each in play_plain(document)
        for ticked in each["ticks"]
        for word in [
            *(state(line) for line in ticked["decisions"]),
            *(f"{job} waits {code}" for job, code in ticked["waiting"].items()),
        ]
    ]
    assert reported == expected


CHARGES: dict[str, tuple[Document, list[float], list[float], list[float]]] = {
    # name: the account, levels that its leases run at, when ticks are; its balance at the end
    "a new account at 1": ({"charge_rate": [1, 2, 3], "max_charge_seconds": 2}, [], [1], [1, 2, 3, 0, 0]),
    "a new account at 10": ({"charge_rate": [1, 2, 3], "max_charge_seconds": 2}, [], [1, 10], [2, 4, 6, 0, 0]),
    "two leases at 0": ({"charge_rate": [1, 2, 3], "max_charge_seconds": 2}, [0, 0], [1], [-1, 2, 3, 0, 0]),
    "one at each": ({"charge_rate": [1, 2, 3], "max_charge_seconds": 10}, [0, 1, 2], [2], [0, 2, 4, 0, 0]),
    "half a second a second": (
        {"charge_rate": [0.5], "max_charge_seconds": 10, "balance": [1]}, [0], [1, 2, 5, 10], [-4, 0, 0, 0, 0]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHARGES)
def test_a_charge_of_the_source(name: str) -> None:
    account, levels, times, expected = CHARGES[name]
    names = [f"r{index}" for index in range(len(levels))]
    document = a_document(
        *(tick(at) for at in times),
        slots=[a_slot(index, each, int(level)) for index, (each, level) in enumerate(zip(names, levels, strict=True))],
        reservations=[a_job(each, "A", phase="leased") for each in names],
        accounts={"A": account},
    )
    assert list(play_plain(document))[-1]["state"]["balances"] == {"A": expected}
