"""The command `leasehold forecasts`, which shows how well the forecasts of starts were kept."""

from typing import Any, Final

from leasehold.cli.connecting import connect
from leasehold.cli.output import AsJson, Watched, clock, print_json, print_table, print_thing, repeat
from leasehold.cli.root import app, example
from leasehold.cli.tables import Column
from leasehold.texts.values import show_seconds

NONE: Final = "no forecasts: the process foresight has published none in the last ten minutes"
_COLUMNS: Final = (
    Column("class", "cut"),
    Column("started"),
    Column("in the 80 %"),
    Column("median width", rank=1),
    Column("mean loss", rank=2),
)


@app.command(epilog=example("leasehold forecasts", "leasehold forecasts --json"))
def forecasts(as_json: AsJson = False, watch: Watched = None) -> None:
    """Show how good the forecasts of starts were, by class.

    "in the 80 %": the part of the reservations that started within their interval, which should be 80 %. Width: of the
    interval. Loss: the pinball loss at 10 % and at 90 %, smaller is better.
    """
    with connect() as client:

        def show() -> None:
            found = client.foresight()
            if as_json:
                print_json(found)
                return
            if found:
                age, spent = show_seconds(clock.now() - found["as_of"]), show_seconds(found.get("seconds", 0.0))
                print_thing(f"forecasts of {age} ago, from {found.get('plays', 0)} plays in {spent}")
            print_table(_COLUMNS, map(_row, found.get("qualities", ())), NONE)

        repeat(show, watch)


def _row(quality: dict[str, Any]) -> tuple[str, ...]:
    coverage = quality.get("coverage")
    times = (quality.get("width"), quality.get("loss"))
    spans = ("" if each is None else show_seconds(each) for each in times)
    return (quality["name"], str(quality["count"]), "" if coverage is None else f"{coverage:.0%}", *spans)
