"""Forecasts of starts, as clients read them over Redis."""

import redis

from leasehold import Client
from scheduler.model.forecasts import Forecast
from scheduler.model.waits import Waits
from tests.client.intake import FakeIntake, a_row

ETA = Forecast(as_of=100.0, low=160.0, median=200.0, high=400.0, late=700.0)


def test_a_client_reads_forecasts_and_how_well_they_were_kept(intake: FakeIntake, client: Client) -> None:
    assert client.etas(["r1"]) == client.foresight() == {}
    intake.foresee(r1=ETA, r2=Forecast(as_of=100.0, unknown="beyond"))
    assert client.etas(["r1", "r2", "r3"]) == {"r1": ETA.list_fields(), "r2": {"as_of": 100.0, "unknown": "beyond"}}
    found = client.foresight()
    assert (found["plays"], found["qualities"][0]["coverage"]) == (32, 0.8)
    assert "forecasts" not in found


def test_an_explanation_has_the_forecast_of_a_pending_reservation(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1"), a_row("r2", version=2, phase="released"))
    intake.view_cache.write_report({"at": 100.0}, Waits(["r1"], [("no_capacity", "full")]))
    assert client.explain("r1").eta is None
    intake.foresee(r1=ETA, r2=ETA)
    found = client.explain("r1")
    assert found.eta == ETA.list_fields()
    assert "likely to start in 1 to 5 min (80 %); 1 in 20 later than 10 min" in str(found)
    assert client.explain("r2").eta is None


def test_a_user_of_redis_without_the_right_reads_no_forecasts(intake: FakeIntake, client: Client) -> None:
    intake.foresee(r1=ETA)
    intake.publish(a_row("r1"))
    spoiler = redis.Redis.from_url(intake.url)
    spoiler.delete("leasehold:forecasts")
    spoiler.set("leasehold:forecasts", "no hash")
    assert client.etas(["r1"]) == {}
    assert client.explain("r1").eta is None


def test_the_answer_to_a_submission_has_the_forecast_of_its_kind(intake: FakeIntake, client: Client) -> None:
    intake.handler = lambda _verb, document: {
        "ok": True,
        "reservation": document["id"],
        "phase": "pending",
        "eta": ETA.list_fields(),
    }
    assert client.reserve(id="r1", system="linux").eta == ETA.list_fields()
