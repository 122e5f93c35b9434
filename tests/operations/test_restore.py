"""The database is restored to an older state: no token or term is used twice, and every holder gets an answer."""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from scheduler.model.runs import RunState
from scheduler.operations.commands.gathered import Message, accept_gathered
from scheduler.operations.machines.reconcile import Reconciled
from scheduler.operations.membership import (
    JUMP,
    MOST_NUMBER,
    MOST_TRUSTED,
    NUMBERS_A_SECOND,
    check_membership,
    find_jump,
)
from scheduler.operations.restore import Restored, restore
from scheduler.operations.rules.apply import apply_rules
from scheduler.ports import CloudError, DatabaseWentBackError, Remembered
from scheduler.store.opening import open_store
from tests.operations.harness import NOW, Harness
from tests.sqlite_file import sqlite_url

__all__ = ["sqlite_url"]


def test_the_jump_is_above_all_known_numbers_and_below_the_limit_of_floats() -> None:
    assert find_jump([5, 7], now=0.0) == 7 + JUMP
    assert find_jump([], now=0.0) == JUMP
    assert find_jump([5], now=1.8e9) == int(1.8e9) * NUMBERS_A_SECOND
    assert find_jump([MOST_TRUSTED, 5], now=0.0) == 5 + JUMP, "a number above all possible ones is ignored"
    assert find_jump([MOST_TRUSTED - 1], now=0.0) < MOST_NUMBER
    with pytest.raises(ValueError, match="2\\*\\*53"):
        find_jump([], now=1e15)


def test_two_restores_of_one_backup_use_different_numbers() -> None:
    """The jump grows by more per second than a cluster uses up in a second."""
    first = find_jump([100], now=1.8e9)
    assert find_jump([100], now=1.8e9 + 60) - first >= 60 * NUMBERS_A_SECOND


class RestoredCluster:
    """A harness whose database can be set back to an earlier state, as a restore does."""

    def __init__(self, url: str) -> None:
        self.now = NOW
        self.harness = Harness(store=open_store(url, lambda: self.now))
        self.path = url.removeprefix("sqlite:///")

    def remember(self) -> Callable[[], None]:
        """Copy the database; the returned function restores the copy."""
        import sqlite3

        copy = sqlite3.connect(":memory:")
        with sqlite3.connect(self.path) as source:
            source.backup(copy)
        source.close()

        def put_back() -> None:
            self.harness.store.close()
            with sqlite3.connect(self.path) as target:
                copy.backup(target)
            target.close()
            copy.close()
            # A new store as in another process: the one that saw the later state would refuse.
            self.harness.store = self.harness.ports.store = open_store(f"sqlite:///{self.path}", lambda: self.now)
            self.harness.ports.rules_cache = None

        return put_back

    def restore(self, *, resubmit: bool = False, remembered: Remembered | None = None) -> Restored:
        """Run the restore with the reservations that the view still contains."""
        kept = self.harness.ports.view_cache.read_kept()
        return restore(self.harness.ports, remembered or Remembered(), kept, resubmit=resubmit)


@pytest.fixture
def cluster(sqlite_url: str) -> Iterator[RestoredCluster]:
    restored = RestoredCluster(sqlite_url)
    yield restored
    restored.harness.store.close()


def test_a_lease_from_after_the_backup_is_cancelled_and_its_token_is_never_used_again(cluster: RestoredCluster) -> None:
    harness = cluster.harness
    harness.leased("before")
    put_back = cluster.remember()
    harness.submit("after")
    harness.tick()
    harness.play_tasks()
    harness.tick()
    lost_token, lost_term = harness.token("after"), harness.store.load_leader_term().term
    notices = harness.notifier.notices
    put_back()
    restored = cluster.restore()
    assert [(each.id, each.phase, each.token, each.outcome) for each in restored.lost] == [
        ("after", "leased", lost_token, "cancelled")
    ]
    assert (harness.phase("after"), harness.phase("before")) == ("cancelled", "leased")
    answer = harness.ask("renew", reservation="after", token=lost_token)
    assert not answer["ok"]
    assert [notice["event"] for name, notice in notices if name == "after"][-1] == "cancelled"
    harness.restart()
    harness.submit("next")
    harness.settle(20)
    assert harness.token("next") > lost_token
    assert harness.token("next") > JUMP
    assert harness.store.load_leader_term().term > max(lost_term, JUMP)
    assert harness.phase("before") == "leased"
    assert harness.ask("renew", reservation="before", token=harness.token("before"))["ok"]


def test_a_task_from_before_a_restore_writes_nothing_until_it_has_checked_the_membership(
    cluster: RestoredCluster, sqlite_url: str
) -> None:
    late = Harness(store=open_store(sqlite_url, lambda: cluster.now))
    check_membership(late.ports)
    put_back = cluster.remember()
    put_back()
    cluster.restore()
    message = Message("submit", {"request": "q1", "id": "late", "system": "x86_64-linux"})
    assert late.store.now() > 0
    for _ in range(2):
        assert [type(each) for each in accept_gathered(late.ports, [message])] == [DatabaseWentBackError]
    assert "late" not in {row.id for row in cluster.harness.store.find_reservations()}
    check_membership(late.ports)
    late.submit("late")
    assert late.phase("late") == "pending"
    late.store.close()


def test_with_resubmit_pending_reservations_are_submitted_again(cluster: RestoredCluster) -> None:
    put_back = cluster.remember()
    for name in ("waits", "held", "done"):
        cluster.harness.submit(name)
    cluster.harness.ask("cancel", reservation="done")
    cluster.harness.tick()
    put_back()
    restored = cluster.restore(resubmit=True)
    assert {each.id: each.outcome for each in restored.lost} == {"waits": "resubmitted", "held": "resubmitted"}
    assert cluster.harness.phase("waits") == "pending"
    assert not cluster.harness.store.find_reservations(ids=["done"])
    again = cluster.restore(resubmit=True)
    assert not again.lost, "a stored reservation is not listed again"


def test_a_reservation_whose_command_is_lost_is_not_submitted_again(cluster: RestoredCluster) -> None:
    apply_rules(cluster.harness.ports, {"pools": {"lab": {"system": "x86_64-linux", "provider": "static"}}})
    put_back = cluster.remember()
    cluster.harness.ports.is_own_stack = True
    assert cluster.harness.ask("submit", id="commanded", pool="lab", run={"argv": ["true"]})["ok"]
    cluster.harness.tick()
    put_back()
    restored = cluster.restore(resubmit=True)
    assert [(each.id, each.outcome) for each in restored.lost] == [("commanded", "cancelled")]
    assert cluster.harness.phase("commanded") == "cancelled"


def test_a_command_that_ended_after_the_backup_keeps_its_outcome(cluster: RestoredCluster) -> None:
    harness = cluster.harness
    apply_rules(harness.ports, {"pools": {"lab": {"system": "x86_64-linux", "provider": "static"}}})
    harness.ports.is_own_stack = True
    assert harness.ask("submit", id="commanded", pool="lab", run={"argv": ["true"]})["ok"]
    (waiting,) = harness.store.find_reservations(ids=["commanded"])
    outcome = RunState("ended", 0, None, "exited")
    ended = msgspec.structs.replace(waiting, phase="released", run=outcome)
    restore(harness.ports, Remembered(), {"commanded": ended})
    (row,) = harness.store.find_reservations(ids=["commanded"])
    assert (row.phase, row.run) == ("released", outcome)


def test_a_machine_launched_after_the_backup_is_adopted_and_an_unknown_one_terminated(cluster: RestoredCluster) -> None:
    harness = cluster.harness
    put_back = cluster.remember()
    harness.leased("after")
    (machine,) = harness.fleet.running
    harness.fleet.appear("i-elsewhere", "windows-1", pool="windows")
    put_back()
    restored = cluster.restore()
    assert restored.machines == Reconciled(adopted=1, ended=1, strangers=1)
    assert harness.slot().instance_id == machine
    assert harness.fleet.terminations == ["i-elsewhere"]


def test_the_numbers_of_tags_and_of_redis_count(cluster: RestoredCluster) -> None:
    harness = cluster.harness
    put_back = cluster.remember()
    harness.fleet.appear("i-1", "linux-1", highest_term=5 * JUMP, highest_token=1)
    put_back()
    restored = cluster.restore(remembered=Remembered(token=7 * JUMP))
    assert restored.term >= 6 * JUMP
    assert restored.token >= 8 * JUMP


def test_the_numbers_of_machines_of_another_cluster_do_not_count(cluster: RestoredCluster) -> None:
    cluster.harness.fleet.appear("i-1", "linux-1", cluster_id="another", highest_term=50 * JUMP)
    restored = cluster.restore()
    assert restored.term < 50 * JUMP
    assert restored.machines is None
    assert "another" in str(restored.cloud_fault)
    assert not cluster.harness.fleet.terminations


def test_reservations_that_ended_after_the_backup_end_again(cluster: RestoredCluster) -> None:
    harness = cluster.harness.leased("released")
    harness.submit("moved")
    harness.settle(10)
    put_back = cluster.remember()
    harness.ask("release", reservation="released", token=harness.token("released"))
    harness.ask("decline", reservation="moved", token=harness.token("moved"))
    harness.settle(10)
    token = harness.token("moved")
    put_back()
    assert (harness.phase("released"), harness.phase("moved")) == ("leased", "leased")
    assert harness.token("moved") < token
    restored = cluster.restore()
    assert restored.ended == ["released"]
    assert restored.requeued == ["moved"]
    assert restored.notified == ["moved"]
    assert (harness.phase("released"), harness.phase("moved")) == ("released", "pending")
    assert not harness.ask("renew", reservation="moved", token=token)["ok"]


def test_a_restore_without_ec2_does_everything_else(cluster: RestoredCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise CloudError("auth", "NoCredentials", "there are none")

    monkeypatch.setattr(cluster.harness.fleet, "sweep", refuse)
    restored = cluster.restore()
    assert restored.machines is None
    assert "NoCredentials" in str(restored.cloud_fault)
    assert cluster.harness.store.read_cluster().restores == 1


def test_a_restore_is_in_the_history_with_its_numbers(cluster: RestoredCluster) -> None:
    restored = cluster.restore()
    (event,) = [event for event in cluster.harness.events if event.name == "restored"]
    assert (event.detail["term"], event.detail["token"]) == (restored.term, restored.token)
    assert event.detail["from_token"] == 0


def test_an_empty_view_loses_nothing(cluster: RestoredCluster) -> None:
    cluster.harness.leased()
    restored = restore(cluster.harness.ports, Remembered(), {})
    assert (restored.lost, restored.ended, restored.requeued) == ([], [], [])
    assert cluster.harness.phase() == "leased"
