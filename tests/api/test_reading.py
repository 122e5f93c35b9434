"""Reads over HTTP: rows, pages, filters, waits for a change, and a view that is lost."""

import threading
from typing import Any

import pytest
import redis

from scheduler.model.accounts import Account
from scheduler.model.forecasts import Forecast
from scheduler.model.run_times import RunTimes
from scheduler.model.waits import Waits
from tests.api.caller import Caller, Reply
from tests.builders import a_lease, a_slot
from tests.client.intake import FakeIntake, a_row


def a_leased_row(name: str, **changes: Any) -> Any:
    return a_row(name, **{"version": 2, "phase": "leased", "token": 1, "leases": (a_lease("linux-1"),), **changes})


def ids(reply: Reply) -> list[str]:
    return [each["id"] for each in reply.content["items"]]


def test_a_reservation_has_the_machine_of_its_lease_and_no_secret(api: Caller, intake: FakeIntake) -> None:
    intake.publish(a_slot("linux-1", version=1), a_leased_row("a/b", key_hash="0" * 64))
    reply = api.get("/reservations/a%2Fb")
    (lease,) = reply.content["leases"]
    assert (reply.content["id"], lease["address"], reply.content["mark"]) == ("a/b", "10.0.0.1", "2")
    assert "key_hash" not in str(reply.content)
    assert float(reply.headers["Leasehold-Time"]) > 1_700_000_000


def test_a_lease_whose_machine_is_unknown_lacks_its_fields(api: Caller, intake: FakeIntake) -> None:
    intake.publish(a_leased_row("r1"))
    reply = api.get("/reservations/r1")
    assert "instance_id" not in reply.content["leases"][0]
    assert reply.content["mark"] == "2-1"


def test_an_unknown_id_is_not_found(api: Caller) -> None:
    for path in (
        "/reservations/r1",
        "/slots/linux-1",
        "/accounts/ci",
        "/reservations/r1/explanation?source=view",
        "/reservations?slot=linux-1",
    ):
        reply = api.get(path)
        assert (reply.status, reply.content["type"]) == (404, "urn:problem-type:leasehold:unknown"), path


def test_pages_are_in_order_of_submission_and_complete(api: Caller, intake: FakeIntake) -> None:
    intake.publish(*(a_row(f"r{number}", sequence=number) for number in (3, 1, 5, 2, 4)))
    found: list[str] = []
    following: str | None = ""
    while following is not None:
        page = api.get(f"/reservations?limit=2{following and f'&cursor={following}'}")
        assert len(ids(page)) <= 2
        found += ids(page)
        following = page.content["next"]
    assert found == ["r1", "r2", "r3", "r4", "r5"]


def test_a_page_continues_where_it_ended_while_rows_change(api: Caller, intake: FakeIntake) -> None:
    intake.publish(*(a_row(f"r{number}", sequence=number) for number in (1, 2, 3)))
    first = api.get("/reservations?limit=1")
    intake.publish(a_row("r2", sequence=2, version=9, priority=7), a_row("r4", sequence=4))
    assert ids(api.get(f"/reservations?cursor={first.content['next']}")) == ["r2", "r3", "r4"]


FILTERS = [
    ("phase=pending", ["r1", "r2"]),
    ("phase=leased,ended", ["r3", "r4"]),
    ("phase=leased&phase=pending", ["r1", "r2", "r3"]),
    ("account=ci", ["r2"]),
    ("pool=linux", ["r1"]),
    ("slot=linux-1", ["r3"]),
    ("tag.run=7", ["r2"]),
    ("label.disk=ssd", ["r1"]),
    ("tag.run=7&phase=leased", []),
]


@pytest.mark.parametrize(("query", "found"), FILTERS)
def test_a_list_is_narrowed_by_all_filters(query: str, found: list[str], api: Caller, intake: FakeIntake) -> None:
    intake.publish(
        a_row("r1", sequence=1, system=None, pool="linux", labels={"disk": "ssd"}),
        a_row("r2", sequence=2, account="ci", tags={"run": "7"}),
        a_leased_row("r3", sequence=3),
        a_row("r4", sequence=4, phase="cancelled", version=3),
    )
    assert ids(api.get(f"/reservations?{query}")) == found


BROKEN = [
    ("/reservations?phase=leasd", "phase", 'did you mean "leased"?'),
    ("/reservations?acount=ci", "acount", 'did you mean "account"?'),
    ("/reservations?limit=0", "limit", "a whole number from 1 to 1000"),
    ("/reservations?limit=1&limit=2", "limit", "one value"),
    ("/reservations?cursor=%00", "cursor", "a cursor"),
    ("/slots?state=redy", "state", 'did you mean "ready"?'),
    ("/events?after=-1", "after", "a whole number from 0"),
    ("/events?newest=yes", "newest", "true or false"),
    ("/events?name=slot_reddy", "name", 'did you mean "slot_ready"?'),
    ("/slots?cordoned=yes", "cordoned", "one of true, false"),
    ("/slots?pool=lunix", "pool", 'one of arm, empty, linux (did you mean "linux"?)'),
    ("/reservations?pool=lunix&phase=pending", "pool", 'one of arm, empty, linux (did you mean "linux"?)'),
    ("/offers?pool=linux", "pool", "no name, because there is none yet"),
    ("/reservations/r1?after=1&wait=31", "wait", "a number from 0 to 30"),
]


@pytest.mark.parametrize(("path", "fault", "text"), BROKEN)
def test_a_broken_filter_is_a_fault_with_its_name(path: str, fault: str, text: str, api: Caller) -> None:
    reply = api.get(path)
    assert reply.status == 400
    ((found, expected),) = reply.faults
    assert found == fault
    assert text in expected


def test_a_cursor_of_another_list_is_refused(api: Caller, intake: FakeIntake) -> None:
    intake.publish(a_slot("linux-1", version=1), a_slot("linux-2", version=1))
    cursor = api.get("/slots?limit=1").content["next"]
    assert api.get(f"/reservations?cursor={cursor}").faults == [("cursor", "a cursor of this list")]


def test_slots_are_listed_by_pool_and_number_in_pages(api: Caller, intake: FakeIntake) -> None:
    intake.publish(*(a_slot(f"linux-{number}", version=1, labels={"n": str(number)}) for number in (10, 2, 1)))
    intake.publish(a_slot("arm-1", version=1, state="empty"))
    first = api.get("/slots?limit=3")
    assert ids(first) == ["arm-1", "linux-1", "linux-2"]
    assert ids(api.get(f"/slots?cursor={first.content['next']}")) == ["linux-10"]
    assert ids(api.get("/slots?state=ready&label.n=2")) == ["linux-2"]
    assert api.get("/slots/linux-2").content["labels"] == {"n": "2"}


def test_accounts_and_the_report_are_read(api: Caller, intake: FakeIntake) -> None:
    intake.publish(Account(id="ci", version=1, balance=(0.0, 2.5, 0.0, 0.0, 0.0)), a_row("r1"))
    intake.view_cache.write_report({"at": 5.0}, Waits(["r1"], [("booting", "soon")]))
    assert ids(api.get("/accounts")) == ["ci"]
    assert api.get("/accounts/ci").content["level"] == 1
    assert api.get("/report").content == {"at": 5.0, "waiting": {"r1": ["booting", "soon"]}}
    found = api.get("/reservations/r1/explanation?source=view").content
    assert (found["waiting"], found["position"], found["of"]) == ({"code": "booting", "detail": "soon"}, 1, 1)


def test_forecasts_are_read_with_their_quality(api: Caller, intake: FakeIntake) -> None:
    assert api.get("/forecasts").content == {"etas": {}}
    intake.foresee(r1=Forecast(as_of=100.0, low=1.0, median=2.0, high=3.0, late=4.0))
    found = api.get("/forecasts?id=r1&id=r2").content
    assert found["etas"] == {"r1": {"as_of": 100.0, "low": 1.0, "median": 2.0, "high": 3.0, "late": 4.0}}
    assert (found["plays"], found["qualities"][0]["name"]) == (32, "all")
    intake.publish(a_row("r1"))
    intake.view_cache.write_report({"at": 5.0}, Waits(["r1"], [("booting", "soon")]))
    assert api.get("/reservations/r1/explanation?source=view").content["eta"] == found["etas"]["r1"]
    assert api.get("/forecasts?ids=r1").status == 400


def test_run_times_are_read_in_pages_with_their_quantiles(api: Caller, intake: FakeIntake) -> None:
    classes = ['["ci","ann","build","x",1,3]', '["ci","ann","build","x"]', '["ci","ann"]', '["lab",null]', "[]"]
    intake.publish(*(RunTimes(id=name, version=1, seconds=(4.0, 2.0), released_at=9.0) for name in classes))
    first = api.get("/run-times?limit=3")
    assert ids(first) == classes[:3]
    assert ids(api.get(f"/run-times?cursor={first.content['next']}")) == classes[3:]
    assert ids(api.get("/run-times?account=ci&job=build")) == classes[:2]
    assert first.content["items"][0] == {
        "id": classes[0],
        "version": 1,
        "marked_at": 0.0,
        "seconds": [4.0, 2.0],
        "ratios": [],
        "released_at": 9.0,
        "account": "ci",
        "principal": "ann",
        "job": "build",
        "system": "x",
        "size": "1 x, 4-7 cpus",
        "instances": [1, 1],
        "cpus": [4, 7],
        "number": 2,
        "median": 2.0,
        "p80": 4.0,
        "p90": 4.0,
    }
    assert api.get("/run-times?acount=ci").status == 400


def test_the_status_names_the_caller_and_the_connections(api: Caller, intake: FakeIntake) -> None:
    intake.publish(a_row("r1"), a_row("r2"))
    found = api.get("/status").content
    assert (found["view"], found["redis"], found["database"]) == ("valid", "reached", "reached")
    assert (found["caller"]["role"], found["phases"]) == ("operator", {"pending": 2})


def test_a_wait_ends_when_the_row_differs_from_its_mark(api: Caller, intake: FakeIntake) -> None:
    intake.publish(a_row("r1"))
    mark = api.get("/reservations/r1").content["mark"]
    assert api.get("/reservations/r1?after=other&wait=30").content["mark"] == mark
    threading.Timer(0.2, intake.publish, [a_row("r1", version=2, priority=5)]).start()
    assert api.get(f"/reservations/r1?after={mark}&wait=30").content["mark"] != mark
    assert api.get("/reservations/r1?after=2&wait=0.1").content["mark"] == "2"


def test_a_wait_for_many_ends_with_the_first_change(api: Caller, intake: FakeIntake) -> None:
    intake.publish(a_row("r1"), a_row("r2"))
    marks = {"r1": "1", "r2": "1", "r3": "none"}
    assert api.post("/reservations/changes", {"marks": marks, "wait": 0.1}).content == {"marks": {}}
    threading.Timer(0.2, intake.publish, [a_row("r2", version=2)]).start()
    assert api.post("/reservations/changes", {"marks": marks, "wait": 30}).content == {"marks": {"r2": "2"}}


def test_a_lost_view_is_reported_and_comes_back(api: Caller, intake: FakeIntake, redis_client: redis.Redis) -> None:
    """It is neither an empty list nor an unknown id."""
    redis_client.flushall()
    for path in ("/reservations", "/slots", "/reservations/r1", "/accounts", "/run-times"):
        reply = api.get(path)
        assert (reply.status, reply.content["type"]) == (503, "urn:problem-type:leasehold:unavailable"), path
        assert int(reply.headers["Retry-After"]) > 0
    assert api.get("/status").content["view"] == "not valid"
    intake.view_cache.rebuild([a_row("r1")])
    assert ids(api.get("/reservations")) == ["r1"]
