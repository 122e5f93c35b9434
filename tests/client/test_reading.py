"""Reading the view: rows, a view that is not valid, and waiting for a change."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import redis

from leasehold import Client, Ended, NotAnswered, Refused, Unavailable, Unknown
from scheduler.model.accounts import Account
from scheduler.model.faults import show
from scheduler.model.run_times import RunTimes as StoredRunTimes
from scheduler.model.transitions import SlotState
from scheduler.model.validation import A_NAME
from scheduler.model.waits import Reason, Waits
from scheduler.operations.change_set import describe_row as describe_stored
from tests.builders import a_lease, a_slot
from tests.client.intake import Document, FakeIntake, a_row, accept


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.client.waiting.POLL_SECONDS", 0.1)


def a_leased_row(name: str = "r1", **changes: Any) -> Any:
    defaults: dict[str, Any] = {
        "version": 2,
        "phase": "leased",
        "token": 1,
        "leases": (a_lease("linux-1", resources={"cpus": 2.0}),),
    }
    return a_row(name, **(defaults | changes))


def test_a_row_contains_the_machines_of_its_leases(intake: FakeIntake, client: Client) -> None:
    slot = a_slot("linux-1", version=1, instance_type="m7g.large", zone="us-east-1a")
    intake.publish(slot, a_leased_row())
    row = client.get("r1")
    assert row is not None
    assert row.phase == "leased"
    (lease,) = row.leases
    assert (lease.slot, lease.token, lease.resources) == ("linux-1", 1, {"cpus": 2.0})
    assert (lease.instance_id, lease.address, lease.type, lease.zone) == (
        "i-linux-1",
        "10.0.0.1",
        "m7g.large",
        "us-east-1a",
    )


def test_a_holder_reads_what_it_wants_and_gave_back(intake: FakeIntake, client: Client) -> None:
    row = a_leased_row(declined=("helper=4", "tail.2"))
    intake.publish(a_slot("linux-1", version=1), row, a_row("r2", declined=("host=1",)))
    found, waiting = client.get("r1"), client.get("r2")
    assert found is not None
    assert waiting is not None
    assert (found.want, found.declined, waiting.want, waiting.declined) == ({"helper": 4}, ("tail.2",), {}, ("host=1",))
    intake.handler = lambda _verb, _document: {"ok": True, "reservations": [describe_stored(row, {})]}
    (recalled,) = client.recall("r1")
    assert (recalled.want, recalled.declined) == ({"helper": 4}, ("tail.2",))


def test_a_machine_of_a_later_epoch_does_not_belong_to_the_lease(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_slot("linux-1", version=1, epoch=2), a_leased_row())
    row = client.get("r1")
    assert row is not None
    assert row.leases[0].instance_id is None


def test_an_id_that_the_view_lacks_returns_none(client: Client) -> None:
    assert client.get("missing") is None


def test_a_flushed_redis_is_not_an_empty_view(client: Client, redis_client: redis.Redis) -> None:
    redis_client.flushall()
    for read in (lambda: client.get("r1"), client.list, client.slots, client.ping):
        with pytest.raises(Unavailable, match="no valid view"):
            read()


def test_a_view_of_another_server_is_not_valid(client: Client, redis_client: redis.Redis) -> None:
    redis_client.set("leasehold:view:generation", "abc:" + "0" * 40)
    with pytest.raises(Unavailable, match="no valid view"):
        client.get("r1")


def test_a_row_of_another_version_is_reported_as_such(client: Client, redis_client: redis.Redis) -> None:
    redis_client.hset("leasehold:view:reservations", "r1", '{"version":1}')
    with pytest.raises(Unavailable, match="another version"):
        client.get("r1")


def test_accounts_are_ordered_by_name_without_forgotten_accounts(intake: FakeIntake, client: Client) -> None:
    lab = Account(id="lab", version=1, balance=(0.0, 2.5, 0.0, 0.0, 0.0), per_label_task_limits={"image": 2})
    ci = Account(id="ci", version=3, charge_rate=(2.0, 1.0, 0.0, 0.0, 0.0), charged_at=5.0, description="nightly")
    intake.publish(lab, ci, Account(id="gone", version=2, forgotten=True))
    found = client.accounts()
    assert [account.id for account in found] == ["ci", "lab"]
    assert (found[0].charge_rate[0], found[0].charged_at, found[0].description) == (2.0, 5.0, "nightly")
    assert (found[1].balance[1], found[1].level, found[1].per_label_task_limits) == (2.5, 1, {"image": 2})


def test_run_times_are_listed_by_class_and_can_be_narrowed(intake: FakeIntake, client: Client) -> None:
    classes = ['["ci","ann","build","x",1,3]', '["ci","ann","build","x"]', '["ci","ann"]', '["lab",null]', "[]"]
    intake.publish(*(StoredRunTimes(id=name, version=1, seconds=(9.0, 1.0, 5.0, 2.0, 3.0)) for name in classes))
    found = client.run_times()
    assert [each.id for each in found] == classes
    assert (found[0].account, found[0].principal, found[0].job, found[0].system) == ("ci", "ann", "build", "x")
    assert (found[0].instances, found[0].cpus, found[0].size) == ((1, 1), (4, 7), "1 x, 4-7 cpus")
    assert (found[0].number, found[0].median, found[0].p80, found[0].p90) == (5, 3.0, 5.0, 9.0)
    assert (found[3].account, found[3].principal, found[3].job, found[3].size, found[3].parts) == (
        *("lab", None, None, "", 2),
    )
    assert [each.id for each in client.run_times(account="ci")] == classes[:3]
    assert [each.id for each in client.run_times(account="ci", job="build")] == classes[:2]
    assert client.run_times(job="other") == client.run_times(account="none") == ()


def test_a_class_without_run_times_has_no_quantiles(intake: FakeIntake, client: Client) -> None:
    intake.publish(StoredRunTimes(id="[]", version=1))
    (found,) = client.run_times()
    assert (found.number, found.median, found.p90) == (0, None, None)


def test_the_list_is_in_order_of_submission_and_can_be_narrowed(intake: FakeIntake, client: Client) -> None:
    intake.publish(
        a_row("r2", sequence=2, account="ci", tags={"run": "7"}),
        a_row("r1", sequence=1),
        a_leased_row("r3", sequence=3),
        a_row("r4", sequence=4, phase="cancelled", version=3),
    )
    assert [row.id for row in client.list()] == ["r1", "r2", "r3", "r4"]
    assert [row.id for row in client.list("pending")] == ["r1", "r2"]
    assert [row.id for row in client.list(["leased", "ended"])] == ["r3", "r4"]
    assert [row.id for row in client.list(account="ci")] == ["r2"]
    assert [row.id for row in client.list(tags={"run": "7"})] == ["r2"]
    assert client.list(pool="arm") == ()


def test_a_filter_by_a_name_that_does_not_exist_is_refused_with_those_that_do(
    intake: FakeIntake, client: Client
) -> None:
    intake.publish(Account(id="ci", version=1))
    intake.view_cache.write_report({"at": 5.0, "pools": {"empty": "empty-system", "old": "old-system"}}, Waits([], []))
    # The report of the last tick has these names, so that no worker is asked.
    assert (client.slots(pool="old"), client.list(pool="empty", system="old-system", account="ci")) == ((), ())
    assert intake.verbs() == []
    expected = 'pool: expected one of arm, empty, linux (did you mean "linux"?), got "lunix"'
    for refused in (lambda: client.slots(pool="lunix"), lambda: client.list("pending", pool="lunix")):
        with pytest.raises(Refused) as found:
            refused()
        assert str(found.value) == expected
    with pytest.raises(Refused, match=r"^account: expected one of ci, got \"cy\"$"):
        client.check_names(account="cy")
    with pytest.raises(Refused, match=r"^system: expected one of arm-system"):
        client.list(account="cy", system="sparc")
    # An account may be any name: a program that polls its reservations goes on when there are none.
    assert client.list(account="cy") == ()
    # The rules have a pool that the last tick did not know, and a reservation has an account that does not exist yet.
    intake.publish(a_row("r1", account="new"))
    assert (client.slots(pool="linux"), [each.id for each in client.list(account="new")]) == ((), ["r1"])


def test_slots_are_ordered_by_name_and_number(intake: FakeIntake, client: Client) -> None:
    intake.publish(*(a_slot(f"linux-{number}", version=1) for number in (10, 2, 1)))
    intake.publish(a_slot("arm-1", version=1, state="empty"))
    assert [slot.id for slot in client.slots()] == ["arm-1", "linux-1", "linux-2", "linux-10"]
    assert [slot.id for slot in client.slots(pool="linux", state="ready")] == ["linux-1", "linux-2", "linux-10"]


def test_a_wait_is_explained_by_the_last_tick(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1"), a_row("r2"), a_row("r3"))
    waits = Waits(["r1", "r2"], [("booting", "soon"), ("at_max_slots", "10 of 10")])
    intake.view_cache.write_report({"at": 5.0}, waits)
    found = client.explain("r2")
    assert (found.code, found.detail, found.position, found.waiting, found.as_of) == (
        "at_max_slots",
        "10 of 10",
        2,
        2,
        5.0,
    )
    assert str(found) == "r2 is pending, 2 of 2 in the queue: at_max_slots: 10 of 10"
    assert str(client.explain("r3")) == "r3 is pending: no tick has looked at it yet"
    with pytest.raises(Unknown, match="missing"):
        client.explain("missing")


def test_a_wait_ends_with_the_notice(intake: FakeIntake, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.client.waiting.POLL_SECONDS", 60.0)
    intake.publish(a_row("r1"), a_slot("linux-1", version=1))
    # Publish repeatedly: a notice that is published before the client subscribes is lost.
    versions = iter(range(2, 1000))
    done = threading.Event()

    def announce() -> None:
        while not done.wait(0.05):
            intake.publish(a_leased_row("r1", version=next(versions)))

    thread = threading.Thread(target=announce)
    thread.start()
    assert client.wait("r1", timeout=30).phase == "leased"
    done.set()
    thread.join()


def count_calls(client: redis.Redis, command: str) -> int:
    """How often Redis has carried out this command. Each read of the view is one `exec`, and one round trip."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.mark.timeout(30)
def test_a_client_that_watched_nothing_for_a_time_hears_notices_again(
    intake: FakeIntake, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.client.redis.notices.PING_SECONDS", 0.02)
    with closing(Client(intake.url)) as client:
        with client.watch("r1") as watch:
            watch.read()
        # Redis answers a PING in another form while the connection is subscribed to nothing.
        while intake.count_listeners("r1"):
            pass
        pings = count_calls(redis_client, "ping")
        while count_calls(redis_client, "ping") < pings + 3:
            pass
        with client.watch("r1") as watch:
            watch.read()
            assert intake.count_listeners("r1") == 1


@pytest.mark.parametrize(
    ("notice", "round_trips"),
    [
        ({"leases": [{"slot": "linux-1", "token": 1}]}, 1),
        ({"leases": [{"slot": "linux-2"}]}, 2),
        ({"leases": 7}, 2),
        ({}, 2),
    ],
)
def test_the_slots_that_a_notice_names_are_read_together_with_the_row(
    intake: FakeIntake, redis_url: str, redis_client: redis.Redis, notice: Document, round_trips: int
) -> None:
    with closing(Client(redis_url)) as client, client.watch("r1") as watch:
        intake.publish_silently(a_slot("linux-1", version=1, address="10.0.0.1"), a_leased_row("r1"))
        while not redis_client.publish("leasehold:notice:r1", json.dumps(notice)):
            pass
        watch.wait_for_hint(30)
        before = count_calls(redis_client, "exec")
        row, missing = watch.read_joined()
        after = count_calls(redis_client, "exec")
    assert row is not None
    assert (row.leases[0].address, missing) == ("10.0.0.1", frozenset())
    assert after - before == round_trips


def test_a_wait_also_ends_without_the_notice(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1"), a_slot("linux-1", version=1))
    threading.Timer(0.05, intake.publish_silently, [a_leased_row("r1")]).start()
    assert client.wait("r1", timeout=30).token == 1


def test_a_reservation_that_expired_ends_the_wait(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1", phase="expired", reason=None))
    with pytest.raises(Ended, match="r1 is expired"):
        client.wait("r1")
    assert client.wait("r1", "ended").phase == "expired"


def test_a_failed_reservation_that_restarts_has_not_ended(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1", phase="failed", restart_policy="on_failure"))
    with pytest.raises(NotAnswered, match="still failed"):
        client.wait("r1", timeout=0.2)


def test_a_timeout_of_a_wait_names_the_phase(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1"))
    with pytest.raises(NotAnswered, match="r1 is still pending after") as caught:
        client.wait("r1", timeout=0.2)
    assert (caught.value.code, caught.value.reason) == (None, "no tick has looked at it yet")


def test_a_timeout_of_a_wait_has_the_waiting_code_and_its_reason(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1"), a_row("r2"))
    why: tuple[Reason, ...] = ("never_fits", "no slot of linux could hold main"), ("at_quota", "10 of 10 cpus")
    intake.view_cache.write_report({"at": 5.0}, Waits(["r1", "r2"], why))
    for name, (code, reason) in zip(["r1", "r2"], why, strict=True):
        with pytest.raises(NotAnswered, match=rf"^{name} is still pending after 0\.\d s: {code}: {reason}$") as caught:
            client.wait(name, timeout=0.1)
        assert (caught.value.code, caught.value.reason) == (code, reason)


def test_a_wait_for_an_unknown_reservation_ends(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.client.waiting.UNKNOWN_SECONDS", 0.2)
    with pytest.raises(Unknown, match="missing"):
        client.wait("missing")


def test_a_wait_continues_after_a_flush(intake: FakeIntake, client: Client, redis_client: redis.Redis) -> None:
    intake.publish(a_row("r1"))

    def flush_and_rebuild() -> None:
        redis_client.flushall()
        intake.view_cache.rebuild([a_slot("linux-1", version=1), a_leased_row("r1")])

    threading.Timer(0.1, flush_and_rebuild).start()
    assert client.wait("r1", timeout=30).phase == "leased"


def test_a_wait_ends_when_the_view_contains_the_slot_of_the_lease(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_leased_row("r1"), a_slot("linux-1", version=1, epoch=0))
    threading.Timer(0.5, intake.publish_silently, [a_slot("linux-1", version=2)]).start()
    assert client.wait("r1", timeout=30).leases[0].address == "10.0.0.1"


@pytest.mark.parametrize("state", ["launching", "booting", "binding", "terminating", "empty", "error"])
def test_a_wait_goes_on_while_the_view_has_the_slot_in_a_state_without_leases(
    state: SlotState, intake: FakeIntake, client: Client
) -> None:
    """The row of the lease has reached the view, and the row with the machine's address, or with the end of the lease,
    has not.
    """
    intake.publish(
        a_leased_row("r1"), a_slot("linux-1", version=1, state=state, epoch=1, instance_id=None, address=None)
    )
    threading.Timer(0.5, intake.publish_silently, [a_slot("linux-1", version=2)]).start()
    (lease,) = client.wait("r1", timeout=30).leases
    assert (lease.instance_id, lease.address) == ("i-linux-1", "10.0.0.1")


def test_a_machine_that_the_view_lacks_is_queried_from_a_worker(intake: FakeIntake, client: Client) -> None:
    row = a_leased_row("r1")
    intake.publish(row)
    slots = {"linux-1": a_slot("linux-1", instance_type="m7g.large")}
    intake.handler = lambda _verb, _document: {"ok": True, "reservations": [describe_stored(row, slots)]}
    (lease,) = client.wait("r1", timeout=30).leases
    assert (lease.instance_id, lease.address, lease.type) == ("i-linux-1", "10.0.0.1", "m7g.large")
    assert set(intake.verbs()) == {"query"}


def test_a_wait_does_not_end_with_a_lease_whose_machine_is_gone(intake: FakeIntake, client: Client) -> None:
    """The machine ended after the lease began, and no tick has requeued the reservation yet."""
    row, gone = a_leased_row("r1"), a_slot("linux-1", state="empty", epoch=1)
    slots = iter([gone, gone])
    intake.publish(row, gone)
    intake.handler = lambda _verb, _document: {
        "ok": True,
        "reservations": [describe_stored(row, {"linux-1": next(slots, a_slot("linux-1"))})],
    }
    assert client.wait("r1", timeout=30).leases[0].instance_id == "i-linux-1"


def test_a_machine_that_neither_view_nor_worker_knows_is_an_error(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_leased_row("r1"))
    with pytest.raises(Unavailable, match=r"r1 is leased on linux-1, but .* neither in the view nor known to a worker"):
        client.wait("r1", timeout=1)


def test_a_wait_accepts_a_machine_without_an_address(intake: FakeIntake, client: Client) -> None:
    """A static host may register without an address: then the row of its slot has `address` None."""
    intake.publish(a_slot("linux-1", version=1, instance_id=None, address=None), a_leased_row("r1"))
    assert client.wait("r1", timeout=30).leases[0].address is None
    assert intake.verbs() == []


def test_a_pending_reservation_is_renewed_before_its_ttl_ends(intake: FakeIntake, client: Client) -> None:
    def expiry(version: int) -> Any:
        now = time.time()
        return a_row("r1", version=version, marked_at=now, expires_at=now + 0.6)

    renewed: list[Any] = []

    def renew(_verb: str, document: Document) -> Document:
        renewed.append(document.get("token"))
        intake.publish_silently(expiry(len(renewed) + 1))
        if len(renewed) == 4:
            intake.publish(a_slot("linux-1", version=1), a_leased_row("r1", version=9))
        return accept("renew", document) | {"ttl": 0.6}

    intake.handler = renew
    intake.publish(expiry(1))
    assert client.wait("r1", timeout=30, renew=True).phase == "leased"
    assert renewed == [None] * 4


def test_a_reservation_without_an_expiry_is_not_renewed(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1"))
    with pytest.raises(NotAnswered, match="still pending"):
        client.wait("r1", timeout=0.3, renew=True)
    assert intake.verbs() == []


NO_IDS = ["a\ud800", "", ".", "..", "a b", "a\nb", "x" * 70_000]
"""Texts that no reservation and no slot may have as its id. The first one has half a character."""


@pytest.mark.parametrize("name", NO_IDS)
def test_a_text_that_can_be_no_id_is_unknown(intake: FakeIntake, client: Client, name: str) -> None:
    intake.publish(a_row("r1"))
    assert (client.get(name), client.slot(name), client.etas([name, "r1"])) == (None, None, {})
    with pytest.raises(Unknown):
        client.explain(name)


@pytest.mark.parametrize("name", NO_IDS)
def test_a_request_about_a_text_that_can_be_no_id_is_refused(intake: FakeIntake, client: Client, name: str) -> None:
    intake.handler = lambda _verb, _document: {
        "ok": False,
        "errors": [{"index": 0, "path": "reservation", "expected": A_NAME, "got": show(name)}],
    }
    for request in (client.release, client.cancel, client.absent, client.suggest):
        with pytest.raises(Refused, match="reservation: expected a name"):
            request(name)
    assert client.ask("cancel", {"reservation": name})["errors"][0]["path"] == "reservation"


def test_a_filter_with_half_a_character_finds_nothing(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1"))
    assert (len(client.list(tags={"a\ud800": "b\ud800"})), len(client.run_times(job="a\ud800"))) == (0, 0)


def test_a_wait_for_a_text_that_can_be_no_id_disturbs_no_other(
    intake: FakeIntake, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.client.waiting.UNKNOWN_SECONDS", 0.5)
    intake.publish(a_row("r1"))
    with ThreadPoolExecutor() as pool:
        found = pool.submit(client.wait, "r1", "ended", 20)
        for name in NO_IDS:
            with pytest.raises(Unknown):
                client.wait(name, timeout=10)
        intake.publish(a_row("r1", phase="released", version=2))
        assert found.result().phase == "released"
