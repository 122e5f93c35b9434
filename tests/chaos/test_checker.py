"""The checker reports each broken promise, and nothing if all promises were kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from scheduler.model.events import Event
from scheduler.model.rules import Rules
from scheduler.operations.commands.submit import submit
from scheduler.ports import Store
from scheduler.store.memory import MemoryStore
from testbed.processes import wait_for
from tests.chaos.checker import find_violations
from tests.chaos.evidence import Evidence, Line, Restoration, gather
from tests.chaos.witness import EVENTS, OVERLAP, Witness


def a_use(at: float, reservation: str = "r1", token: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "event": "use",
        "at": at,
        "reservation": reservation,
        "token": token,
        "component": "main",
        "slot": "single-1",
        "machine": "i-1",
        "cpus": 0,
        **changes,
    }


def a_call(at: float, action: str, token: str | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "time": at,
        "action": action,
        "token": token,
        "instances": ["i-1"],
        "asked": 1,
        "replayed": False,
        "code": None,
        "faults": [],
        "lost": False,
        "attempt": 1,
        **changes,
    }


def a_machine(
    name: str = "i-1", launch: str = "l1", state: str = "terminated", tags: dict[str, str] | None = None
) -> dict[str, Any]:
    own = {"leasehold:launch": launch, "leasehold:slot": "single-1"}
    return {"id": name, "state": state, "tags": own if tags is None else tags}


def a_tick(term: int, at: float, seen: float | None = None) -> dict[str, Any]:
    return {"term": term, "at": at, "seen": at if seen is None else seen}


GOOD = Evidence(
    accepted={"r1", "r2"},
    phases={"r1": "released", "r2": "expired"},
    slots={"single-1": "empty", "single-2": "error"},
    uses=[a_use(10), a_use(11), a_use(11, "r2", 2), a_use(12, "r2", 2)],
    calls=[
        a_call(1, "RunInstances", "t1"),
        a_call(2, "RunInstances", "t1", replayed=True),
        a_call(3, "TerminateInstances", code="Throttling"),
        a_call(13, "TerminateInstances"),
    ],
    machines=[a_machine()],
    launching=1,
    terms=[1, 1, 2, 5],
    ticks=[a_tick(1, 1.0), a_tick(1, 2.0), a_tick(3, 2.0)],
)

RESTORE = Restoration(
    backup=5.0,
    marked=20.0,
    ended=25.0,
    term=100,
    token=100,
    remembered=frozenset({"r1", "r2", "r3"}),
    held=frozenset({("r1", 1)}),
)
RESTORED = Evidence(
    # The restore lost r2's lease. Its holder uses the machine until it is notified; the next holder has it already.
    # r4 had ended before the backup.
    accepted={"r1", "r2", "r3", "r4", "r5"},
    phases={"r1": "released", "r2": "cancelled", "r3": "cancelled", "r5": "released"},
    uses=[
        a_use(10),
        a_use(26),
        a_use(18, "r2", 9, machine="i-2"),
        a_use(26, "r2", 9, machine="i-2"),
        a_use(25.5, "r5", 101, machine="i-2"),
        a_use(27, "r5", 101, machine="i-2"),
    ],
    calls=[a_call(25.8, "TerminateInstances", instances=["i-3"])],
    # The restore removes the events of term 7 from SQL; while it runs SQL shows the numbers of the backup.
    terms=[1, 5, 7, 100, 101],
    ticks=[a_tick(7, 19.0, 19), a_tick(5, 4.0, 24), a_tick(101, 25.5, 26)],
    restores=[RESTORE],
    ended={"r1", "r4", "r5"},
    restored={"r2": 6.0, "r3": 7.0},
)


def test_the_permitted_effects_of_a_restore_are_no_violation() -> None:
    assert find_violations(RESTORED) == []
    # The machine ended after the backup, at 5, and the restore put it back on its slot.
    assert find_violations(replace(RESTORED, calls=[a_call(12, "TerminateInstances")])) == []


def test_a_restored_lease_may_be_used_again_before_the_restore_has_ended() -> None:
    # r1 was released after the backup, and r5 had its machine until the mark. The restore undoes both.
    between = [a_use(15, "r5", 50), a_use(19.9, "r5", 50)]
    again = [*RESTORED.uses, *between, a_use(24.9)]
    assert find_violations(replace(RESTORED, uses=again)) == []
    # r1 was not idle before the mark: its holder and that of r5 had the machine at once.
    both = find_violations(replace(RESTORED, uses=[*again, a_use(19.5)]))
    assert both == ["i-1 was held by r1/1, r5/50 at 15.000"]


@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        (replace(RESTORED, restores=[]), "i-2 was held by r2/9, r5/101"),
        # All promises hold for reservations that the restore lost, too.
        (replace(RESTORED, ended={"r1"}), "r4 was accepted and is unknown"),
        (replace(RESTORED, phases={**RESTORED.phases, "r3": "pending"}), "r3 was accepted and is pending"),
        (replace(RESTORED, uses=[*RESTORED.uses, a_use(26, "r5", 9, machine="i-4")]), "token 9 belongs to r2, r5"),
        # All promises hold for a lease that the restored database contains.
        (
            replace(RESTORED, uses=[*RESTORED.uses, a_use(24, "r5", 101), a_use(28, "r5", 101), a_use(29)]),
            "i-1 was held by r1/1, r5/101",
        ),
        (replace(RESTORED, calls=[a_call(4, "TerminateInstances")]), "machine i-1 was terminated while r1 held it"),
        (replace(RESTORED, calls=[a_call(25.8, "TerminateInstances")]), "machine i-1 was terminated while r1 held it"),
        # A renewal from before the mark holds for one lease time.
        (
            replace(RESTORED, uses=[*RESTORED.uses, a_use(27.5, "r2", 9, machine="i-2")]),
            "r2/9 was used after its expiry",
        ),
        # The promises of the restore itself.
        (replace(RESTORED, restores=[replace(RESTORE, fault="locked")]), "the restore failed: locked"),
        (replace(RESTORED, resubmitted={"r3"}), "r3 was lost by the restore"),
        (
            replace(RESTORED, restored={"r2": 6.0, "r3": 4.0}),
            "r3 was cancelled by the restore, and its backup contained it",
        ),
        (replace(RESTORED, terms=[1, 5, 7, 6]), "a leader of term 6 wrote after one of term 7"),
        (
            replace(RESTORED, ticks=[a_tick(7, 19.0, 19), a_tick(5, 4.0, 24), a_tick(6, 25.5, 26)]),
            "after the restore term 6 is used again",
        ),
        (replace(RESTORED, ticks=[a_tick(7, 19.0, 18), a_tick(5, 4.0, 19)]), "the last tick went back"),
        (replace(RESTORED, ticks=[a_tick(102, 26.0, 26), a_tick(101, 25.5, 27)]), "the last tick went back"),
    ],
)
def test_a_restore_permits_no_other_violation(broken: Evidence, violation: str) -> None:
    assert any(line.startswith(violation) for line in find_violations(broken)), find_violations(broken)


def test_a_reservation_that_ended_before_it_was_submitted_again_was_not_lost() -> None:
    assert find_violations(replace(RESTORED, resubmitted={"r4"})) == []


def test_a_run_that_kept_every_promise_has_no_violations() -> None:
    assert find_violations(GOOD) == []


@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        # Lost: still pending, or unknown.
        (replace(GOOD, phases={"r1": "pending", "r2": "expired"}), "r1 was accepted and is pending"),
        (replace(GOOD, phases={"r2": "expired"}), "r1 was accepted and is unknown"),
        # Two holders of one machine; too many cpus on a shared machine.
        (replace(GOOD, uses=[*GOOD.uses, a_use(11.5, "r1", 1)]), "i-1 was held by r1/1, r2/2"),
        (
            replace(
                GOOD,
                uses=[
                    a_use(at, name, token, slot="shared-1", cpus=cpus)
                    for at in (10, 11)
                    for name, token, cpus in (("r1", 1, 2), ("r2", 2, 3))
                ],
            ),
            "i-1 was held by r1/1, r2/2",
        ),
        (replace(GOOD, uses=[a_use(10), a_use(20, "r2", 1, machine="i-2")]), "token 1 belongs to r1, r2"),
        # More machines than tokens, decisions or launches.
        (
            replace(GOOD, calls=[a_call(1, "RunInstances", "t1"), a_call(1, "RunInstances", "t1")], launching=2),
            "2 launches were made under 1 tokens",
        ),
        (
            replace(GOOD, calls=[a_call(1, "RunInstances", "t1"), a_call(1, "RunInstances", "t2")]),
            "2 machines were launched for 1 decisions",
        ),
        (replace(GOOD, machines=[a_machine(), a_machine("i-2")]), "launch l1 got 2 machines"),
        (
            replace(
                GOOD,
                calls=[a_call(1, "RunInstances", "t1"), a_call(1, "RunInstances", "t2", instances=["i-2"])],
                machines=[a_machine(tags={"leasehold:batch": "b1"}), a_machine("i-2", tags={"leasehold:batch": "b1"})],
                launching=2,
            ),
            "batch b1 was launched by 2 requests",
        ),
        (replace(GOOD, machines=[a_machine(state="running")]), "machine i-1 of slot single-1 is running"),
        (replace(GOOD, slots={"single-1": "launching"}), "slot single-1 is launching"),
        (replace(GOOD, calls=[a_call(10.5, "TerminateInstances")]), "machine i-1 was terminated while r1 held it"),
        (replace(GOOD, uses=[*GOOD.uses, a_use(11, machine=None)]), "r1 used slot single-1 without its machine"),
        (replace(GOOD, terms=[1, 2, 1]), "a leader of term 1 wrote after one of term 2"),
        (replace(GOOD, ticks=[a_tick(2, 9.0), a_tick(2, 8.0)]), "the last tick went back"),
        (replace(GOOD, ticks=[a_tick(2, 9.0), a_tick(1, 9.0)]), "the last tick went back"),
    ],
)
def test_each_broken_promise_is_reported(broken: Evidence, violation: str) -> None:
    assert any(line.startswith(violation) for line in find_violations(broken))


def test_evidence_is_read_from_files_and_sql(tmp_path: Path) -> None:
    store = MemoryStore(lambda: 1000.0)
    with store.transaction() as transaction:
        submit(transaction, Rules(), [])
        transaction.append_events([])
    accepted = json.dumps({"event": "accepted", "reservation": "r1", "at": 1.0})
    (tmp_path / "holders-0.jsonl").write_text(f"{accepted}\n{json.dumps(a_use(10))}\n" + '{"event": "us')
    (tmp_path / "calls.jsonl").write_text(json.dumps(a_call(1, "RunInstances", "t1")) + "\n")
    found = gather(tmp_path, store, [a_machine()])
    assert found == Evidence(
        accepted={"r1"}, uses=[a_use(10)], calls=[a_call(1, "RunInstances", "t1")], machines=[a_machine()]
    )


def test_a_lease_whose_release_a_restore_undid_may_be_used_again() -> None:
    uses: list[Line] = [a_use(10), a_use(11), a_use(12, "r2", 2), a_use(13, "r2", 2), a_use(22), a_use(23)]
    restore = Restoration(backup=9.0, marked=20.0, ended=21.0, token=9, held=frozenset({("r1", 1)}))
    assert any("was held by" in each for each in find_violations(Evidence(uses=uses)))
    assert find_violations(Evidence(uses=uses, restores=[restore])) == []
    both = [*uses, a_use(22.5, "r3", 10), a_use(22.7, "r3", 10)]
    assert any("r1/1, r3/10" in each for each in find_violations(Evidence(uses=both, restores=[restore])))


def a_store(*names: str, restores: int = 0) -> MemoryStore:
    """Return a database with these events, each about `r1`, into which this number of backups was restored."""
    store = MemoryStore(lambda: 1000.0)
    events = [Event(at=float(at), name=name, cause="operator", reservation="r1") for at, name in enumerate(names)]
    for _ in range(restores):
        with store.transaction() as transaction:
            transaction.jump(10, 10)
    with store.transaction() as transaction:
        transaction.append_events(events)
    return store


class ReplacedStore:
    """A database whose contents a test replaces, as a restore does."""

    def __init__(self, contents: MemoryStore) -> None:
        self.contents = contents

    def __getattr__(self, name: str) -> Any:
        return getattr(self.contents, name)


def test_the_event_of_a_restore_is_recorded_before_the_changes_of_the_restore(tmp_path: Path) -> None:
    store = ReplacedStore(a_store(*["slot_launching"] * 2 * OVERLAP, "reservation_released"))
    with Witness(tmp_path, cast("Store", store)) as witness:
        wait_for(lambda: witness.ended == {"r1"}, "the witness to read the events")
        witness.ended.clear()
        names = [*["slot_launching"] * OVERLAP, "restored", *["reservation_restored"] * 5, "reservation_cancelled"]
        store.contents = a_store(*names, restores=1)
        wait_for(lambda: witness.ended == {"r1"}, "the witness to read the events of the restore")
    recorded = [json.loads(line)["name"] for line in (tmp_path / EVENTS).read_bytes().splitlines()]
    assert recorded[-len(names) + OVERLAP :] == names[OVERLAP:]


def test_events_that_a_restore_removes_from_sql_stay_in_the_evidence(tmp_path: Path) -> None:
    before = a_store("slot_launching", "slot_launching", "reservation_released")
    with Witness(tmp_path, before) as witness:
        wait_for(lambda: witness.ended == {"r1"}, "the witness to read the events")
    after = a_store("slot_launching", "restored", "reservation_submitted")
    (tmp_path / "restores.jsonl").write_text(
        json.dumps({"backup": 1.0, "marked": 2.0, "ended": 3.0, "remembered": ["r1"], "held": [["r1", 4]], "token": 9})
    )
    found = gather(tmp_path, after, [])
    assert found.launching == 2
    assert found.ended == {"r1"}
    assert found.resubmitted == set()
    assert found.restores == [
        Restoration(
            backup=1.0, marked=2.0, ended=3.0, token=9, remembered=frozenset({"r1"}), held=frozenset({("r1", 4)})
        )
    ]


def test_an_end_that_only_the_holder_has_seen_is_in_the_evidence(tmp_path: Path) -> None:
    """The witness may not see the last events before a restore."""
    lines = [{"event": "accepted", "reservation": "r1", "at": 1.0}, {"event": "ended", "reservation": "r1", "at": 2.0}]
    (tmp_path / "holders-0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert gather(tmp_path, a_store("restored"), []).ended == {"r1"}


def test_a_second_submission_of_a_reservation_that_had_not_ended_is_reported(tmp_path: Path) -> None:
    store = a_store("reservation_submitted", "restored", "reservation_submitted")
    assert gather(tmp_path, store, []).resubmitted == {"r1"}
