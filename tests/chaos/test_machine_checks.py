"""The checker reports each broken promise about machines: batches, gangs, starts and stops, and what they cost."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler.model.slots import Slot
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.store.memory import MemoryStore
from testbed.processes import wait_for
from tests.chaos.checker import find_violations
from tests.chaos.evidence import Evidence, gather
from tests.chaos.points import count_struck, give_order, pass_by
from tests.chaos.test_checker import RESTORE, a_call, a_machine, a_use
from tests.chaos.witness import Witness


def a_binding(slot: str, epoch: int, machine: str, seen: float = 5.0) -> dict[str, Any]:
    return {"slot": slot, "epoch": epoch, "machine": machine, "seen": seen}


def a_life(name: str, launched_at: float, terminated_at: float | None) -> dict[str, Any]:
    return {"id": name, "launched_at": launched_at, "terminated_at": terminated_at}


RANKS = ["i-1", "i-2", "i-3"]
IN_GANG = {"leasehold:batch": "b1", "leasehold:pool": "gang"}
FLEET = a_call(1, "CreateFleet", "t1", instances=RANKS, asked=3)
GANG_USES = [
    a_use(at, component=f"rank/{number}", machine=machine, slot=f"gang-{number}")
    for at in (10, 11)
    for number, machine in enumerate(RANKS)
]
STOP, START = a_call(12, "StopInstances", instances=["i-9"]), a_call(20, "StartInstances", instances=["i-9"])
BULK = Evidence(
    # A gang of three machines that one call launched, and a machine that is stopped, started and stopped again.
    sizes={"r1": 3},
    limits={"gang": 4, "tier": 1},
    slots={"gang-0": "empty", "gang-1": "empty", "gang-2": "empty", "tier-1": "stopped"},
    kept={"i-9": "tier-1"},
    uses=[
        *GANG_USES,
        a_use(21, "r2", 2, machine="i-9", slot="tier-1"),
        a_use(22, "r2", 2, machine="i-9", slot="tier-1"),
    ],
    calls=[
        FLEET,
        {**FLEET, "replayed": True},
        a_call(2, "RunInstances", "t2", instances=["i-9"]),
        STOP,
        START,
        a_call(30, "StopInstances", instances=["i-9"], code="InternalError", lost=True),
        a_call(31, "StopInstances", instances=["i-9"], attempt=2),
    ],
    machines=[*(a_machine(name, tags=IN_GANG) for name in RANKS), a_machine("i-9", "l9", "stopped")],
    launching=4,
    bindings=[
        *(a_binding(f"gang-{number}", 1, name) for number, name in enumerate(RANKS)),
        a_binding("tier-1", 1, "i-9"),
    ],
    lives=[*(a_life(name, 1, 40) for name in RANKS), a_life("i-9", 2, None)],
    ledger=(99.0, 100.0, 101.0),
)
ADOPTED = {(f"gang-{number}", 1) for number in range(3)}
SHORT_CALLS = [{**FLEET, "instances": RANKS[:2]}, *BULK.calls[2:]]


def test_batches_starts_and_stops_that_kept_every_promise_have_no_violations() -> None:
    assert find_violations(BULK) == []


@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        # A machine on two slots, also if only its holder shows that; a slot with two machines; a machine on none.
        (
            replace(BULK, bindings=[*BULK.bindings, a_binding("gang-3", 1, "i-1")]),
            "machine i-1 was on the slots gang-0, ",
        ),
        (
            replace(BULK, bindings=[*BULK.bindings[1:], a_binding("gang-3", 1, "i-1")]),
            "machine i-1 was on the slots gang-0",
        ),
        (
            replace(BULK, bindings=[*BULK.bindings, a_binding("gang-0", 1, "i-4")]),
            "slot gang-0 had the machines i-1, i-4",
        ),
        (replace(BULK, bindings=BULK.bindings[:3]), "machine i-9 was started, and no slot had it"),
        # More machines than slots, or more slots than permitted.
        (
            replace(
                BULK,
                bindings=[*BULK.bindings, a_binding("gang-0", 2, "i-4")],
                lives=[*BULK.lives, a_life("i-4", 39, 50)],
            ),
            "slot gang-0 had i-1 when i-4 was launched",
        ),
        (replace(BULK, limits={"gang": 2}), "pool gang has 3 slots"),
        # A gang on too few machines; a gang on the machines of a fleet that was incomplete.
        (
            replace(BULK, uses=[use for use in BULK.uses if use["machine"] != "i-3"]),
            "r1/1 held 2 machines, and needs 3",
        ),
        (replace(BULK, calls=SHORT_CALLS), "machine i-1 of an incomplete gang was used"),
        # A machine that is stopped under its holder; one that stays stopped without a slot, or runs; an open stop.
        (replace(BULK, calls=[*BULK.calls, {**STOP, "time": 21.5}]), "machine i-9 was stopped while r2 held it"),
        (
            replace(BULK, calls=[each for each in BULK.calls if each != START]),
            "machine i-9 was stopped while r2 held it",
        ),
        (replace(BULK, kept={}), "machine i-9 of slot single-1 is stopped"),
        (
            replace(BULK, machines=[*BULK.machines[:3], a_machine("i-9", "l9", "running")]),
            "machine i-9 of slot single-1 is",
        ),
        (replace(BULK, machines=[*BULK.machines[:3], a_machine("i-9", "l9")]), "slot tier-1 is stopped without i-9"),
        (replace(BULK, slots={"tier-1": "stopping"}), "slot tier-1 is stopping"),
        # Seconds that the ledger lacks, or that it has twice.
        (replace(BULK, ledger=(99.0, 98.0, 101.0)), "the ledger has 98.000 s"),
        (replace(BULK, ledger=(99.0, 102.0, 101.0)), "the ledger has 102.000 s"),
    ],
)
def test_each_broken_promise_about_machines_is_reported(broken: Evidence, violation: str) -> None:
    assert any(line.startswith(violation) for line in find_violations(broken)), find_violations(broken)


@pytest.mark.parametrize(
    "permitted",
    [
        # A restore may put a machine on another slot, and back on its slot.
        replace(
            BULK,
            restores=[replace(RESTORE, marked=50.0, ended=55.0)],
            bindings=[*BULK.bindings, a_binding("gang-3", 1, "i-1", 60), a_binding("gang-0", 1, "i-2", 52)],
        ),
        # A machine that a slot adopted was launched for another slot, or for a gang that is gone.
        replace(
            BULK,
            bindings=[*BULK.bindings, a_binding("gang-3", 2, "i-4"), a_binding("gang-3", 1, "i-5")],
            lives=[*BULK.lives, a_life("i-4", 5, 50), a_life("i-5", 4, 6)],
            adopted={("gang-3", 2)},
        ),
        replace(BULK, calls=SHORT_CALLS, machines=[*BULK.machines[:2], BULK.machines[3]], adopted=ADOPTED),
        # A restore brings back a lease that had ended before the stop.
        replace(
            BULK,
            uses=[*BULK.uses, a_use(56, "r2", 2, machine="i-9", slot="tier-1")],
            restores=[replace(RESTORE, marked=50.0, ended=55.0, held=frozenset({("r2", 2)}))],
        ),
        # An operator stops a machine by hand.
        replace(BULK, calls=[*BULK.calls, {**STOP, "time": 21.5}], handled={"i-9"}),
        # A kill cut off the line of one machine.
        replace(BULK, uses=[*BULK.uses, a_use(11.5, machine="i-1", slot="gang-0", component="rank/0")]),
    ],
)
def test_what_is_permitted_about_machines_is_no_violation(permitted: Evidence) -> None:
    assert find_violations(permitted) == []


class Fleet:
    """A database with one slot, whose changes a test makes at chosen times."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = MemoryStore(lambda: self.now)
        with self.store.transaction() as transaction:
            transaction.save([Slot(id="tier-1", pool="tier")])

    def move(self, to: Any, at: float, **changes: Any) -> None:
        self.now = at
        [slot] = self.store.find_slots()
        causes = {"launching": "tick", "terminating": "tick", "stopped": "tick"}
        with self.store.transaction() as transaction:
            work = UnitOfWork(transaction, causes.get(to, "cloud"))  # type: ignore[arg-type]
            work.move_slot(slot, to, **changes)
            work.flush()

    def change(self, **changes: Any) -> None:
        [slot] = self.store.find_slots()
        with self.store.transaction() as transaction:
            work = UnitOfWork(transaction, "cloud")
            work.put(msgspec.structs.replace(slot, **changes))
            work.flush()


def test_the_seconds_of_the_ledger_are_compared_with_the_events_about_slots(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.move("launching", 1000, epoch=1)
    fleet.move("booting", 1010, instance_id="i-1")
    fleet.move("empty", 1040)
    fleet.move("launching", 1050, epoch=2)
    fleet.move("terminating", 1060)
    fleet.now = 1065
    fleet.change(instance_id="i-2")
    fleet.move("empty", 1070)
    fleet.move("launching", 1080, epoch=3)
    fleet.move("booting", 1090, instance_id="i-3")
    fleet.now = 1100
    assert gather(tmp_path, fleet.store, []).ledger == (40.0, 45.0, 50.0)


def test_a_slot_stays_stopped_only_when_its_stop_is_confirmed(tmp_path: Path) -> None:
    fleet = Fleet()
    for at, state in enumerate(("launching", "booting", "binding", "ready")):
        fleet.move(state, 1000 + at, instance_id=None if state == "launching" else "i-1")
    fleet.move("stopped", 1010, power="stop")
    found = gather(tmp_path, fleet.store, [])
    assert (found.slots, found.kept) == ({"tier-1": "stopping"}, {})
    fleet.change(power=None)
    found = gather(tmp_path, fleet.store, [])
    assert (found.slots, found.kept) == ({"tier-1": "stopped"}, {"i-1": "tier-1"})


def test_the_witness_records_each_machine_of_a_slot(tmp_path: Path) -> None:
    fleet = Fleet()
    (tmp_path / "requests-0.json").write_text(json.dumps([{"id": "r1", "document": {"components": [{"count": 3}]}}]))

    def is_recorded(machine: str) -> bool:
        return any(each["machine"] == machine for each in gather(tmp_path, fleet.store, []).bindings)

    with Witness(tmp_path, fleet.store):
        for epoch, name in ((1, "i-1"), (2, "i-2")):
            fleet.move("launching", 1000, epoch=epoch)
            fleet.move("booting", 1010, instance_id=name)
            wait_for(partial(is_recorded, name), f"the witness to see {name}")
            fleet.move("empty", 1020)
    found = gather(tmp_path, fleet.store, [])
    assert [(each["slot"], each["epoch"], each["machine"]) for each in found.bindings] == [
        ("tier-1", 1, "i-1"),
        ("tier-1", 2, "i-2"),
    ]
    assert found.sizes == {"r1": 3}


class KilledError(Exception):
    """Raised in place of the kill of the process group."""


def test_each_order_that_a_process_carries_out_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_arguments: object) -> None:
        raise KilledError

    monkeypatch.setattr("os.killpg", end)
    pass_by(tmp_path, "before_batch_call")
    for _ in range(2):
        give_order(tmp_path, "before_batch_call", "kill")
        with pytest.raises(KilledError):
            pass_by(tmp_path, "before_batch_call")
        pass_by(tmp_path, "before_batch_call")
    assert count_struck(tmp_path) == {"kill before_batch_call": 2}
