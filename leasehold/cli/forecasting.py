"""The commands `leasehold runtimes`, which lists how long work has run, by classes of similar work, and `leasehold
forecasts`, which shows how well the forecasts of starts were kept.
"""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.completing import complete_accounts
from leasehold.cli.connecting import connect
from leasehold.cli.output import (
    AsJson,
    Column,
    Output,
    Watched,
    choose_format,
    clock,
    print_json,
    print_rows,
    print_table,
    print_thing,
    repeat,
    show_age,
)
from leasehold.cli.root import app, example
from leasehold.texts.values import show_seconds

if TYPE_CHECKING:
    from leasehold.client.models import RunTimes

ANY: Final = "any"
"""What the table shows for a part that a class does not have."""
_NONE: Final = "no run times are known (a lease counts about a minute after its release)"
_COLUMNS: Final = (
    Column("account", "cut"),
    Column("principal", "cut", 4),
    Column("job", "cut"),
    Column("system", "cut", 5),
    Column("size", rank=3),
    Column("number", rank=1),
    Column("median"),
    Column("80 %", rank=2),
    Column("90 %"),
    Column("last release", rank=6),
)
_FIELDS: Final = (
    *("id", "account", "principal", "job", "system", "size", "instances", "cpus", "number", "median", "p80", "p90"),
    *("released_at", "seconds", "ratios"),
)
_HEADER: Final = [name for name in _FIELDS[:-2] if name not in {"instances", "cpus"}]


@app.command(epilog=example("leasehold runtimes", "leasehold runtimes --account ci --job build --json"))
def runtimes(
    account: Annotated[
        str | None,
        typer.Option(
            help="Show only classes of work of this account.", metavar="ACCOUNT", autocompletion=complete_accounts
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option(help="Show only classes of this job (tag `job`, else `name`).", metavar="JOB")
    ] = None,
    output: Output = None,
    as_json: AsJson = False,
    watch: Watched = None,
) -> None:
    """List how long work has run, by class."""
    chosen = choose_format(output, as_json=as_json)
    with connect() as client:

        def show_all() -> None:
            found = client.run_times(account=account, job=job)
            document = [{name: getattr(each, name) for name in _FIELDS} for each in found]
            records = [["" if row[name] is None else row[name] for name in _HEADER] for row in document]
            print_rows(chosen, document, _HEADER, records, _COLUMNS, map(_row, found), _NONE)

        repeat(show_all, watch)


def _row(found: "RunTimes") -> tuple[str, ...]:
    texts = [found.account, found.principal, found.job, found.system]
    shown = [text or "" if place < found.parts else ANY for place, text in enumerate(texts)]
    times = [show_seconds(each) if each is not None else "" for each in (found.median, found.p80, found.p90)]
    return (*shown, found.size or ANY, str(found.number), *times, show_age(found.released_at))


_QUALITIES: Final = (
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
            print_table(
                _QUALITIES,
                map(_describe_quality, found.get("qualities", ())),
                "no forecasts: the process foresight has published none in the last ten minutes",
            )

        repeat(show, watch)


def _describe_quality(quality: dict[str, Any]) -> tuple[str, ...]:
    coverage = quality.get("coverage")
    times = (quality.get("width"), quality.get("loss"))
    spans = ("" if each is None else show_seconds(each) for each in times)
    return (quality["name"], str(quality["count"]), "" if coverage is None else f"{coverage:.0%}", *spans)
