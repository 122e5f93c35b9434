"""The process `foresight` beside a whole stack: it is killed and started again."""

import msgspec

from scheduler.foresight.margins import LEAST, Margins, Outcome, Waits
from scheduler.model.forecasts import Forecast
from testbed.processes import wait_for
from testbed.stack import Stack


def test_a_process_that_was_killed_forecasts_again_at_once(stack: Stack) -> None:
    forecasts = stack.services.ports.forecasts
    every_lease = [{"name": "main", "count": 100}]
    assert stack.submit("foreseen-busy", pool="warm", ttl=600, components=every_lease)["ok"]
    stack.await_phase(["foreseen-busy"], "leased")
    assert stack.submit("foreseen", pool="warm", ttl=600)["ok"]

    def await_forecast(after: float) -> Forecast:
        def look() -> Forecast | None:
            found = forecasts.read(["foreseen"]).get("foreseen")
            return found if found is not None and found.as_of > after else None

        return wait_for(look, "a forecast")

    process = stack.start("foresight", "tasks.foresight")
    try:
        first = await_forecast(0.0)
        assert first.unknown == "few_outcomes"
        process.kill()
        # As many starts as an earlier process had seen under these rules.
        margins, predicted = Margins(), Waits(100.0, 200.0, 300.0, 400.0)
        for _ in range(LEAST):
            margins.note(Outcome(predicted, 250.0), None)
        record = msgspec.json.decode(forecasts.read_record() or b"")
        record["outcomes"] = msgspec.to_builtins(margins.dump())
        stack.redis.set("leasehold:forecasts:record", msgspec.json.encode(record))
        process.start()
        second = await_forecast(first.as_of)
        assert second.unknown == ""
        assert second.as_of < second.low <= second.median <= second.high <= second.late
    finally:
        process.kill()
        del stack.processes["foresight"]
        for name in ("foreseen", "foreseen-busy"):
            stack.ask("cancel", {"reservation": name})
