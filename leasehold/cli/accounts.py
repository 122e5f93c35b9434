"""The commands `leasehold accounts …`, which show and change quota accounts: their settings, balances and work."""

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from leasehold.cli.completing import complete_accounts
from leasehold.cli.connecting import connect, open_store
from leasehold.cli.output import (
    AsJson,
    Column,
    CommandError,
    Output,
    Timeout,
    Watched,
    choose_format,
    explaining_refusals,
    parse_amounts,
    parse_number,
    parse_numbers,
    parse_seconds,
    print_json,
    print_result,
    print_rows,
    print_table,
    repeat,
    send_each,
    show_age,
    suggest,
)
from leasehold.cli.requesting import check, check_each
from leasehold.cli.root import add_group, example
from leasehold.texts.values import show_levels, show_seconds
from scheduler.protocol.faults import describe_unknown

if TYPE_CHECKING:
    from leasehold.client.models import Account, Answer, Reservation

_COLUMNS: Final = (
    Column("account"),
    Column("balance"),
    Column("best level", rank=2),
    Column("earns a second", rank=4),
    Column("for at most", rank=5),
    Column("running", rank=1),
    Column("waiting", rank=3),
    Column("description", "cut", 6),
)
_ALIVE = ("pending", "leased", "revoking")
Names = Annotated[
    list[str], typer.Argument(metavar="ACCOUNT...", help="Names of accounts.", autocompletion=complete_accounts)
]
Name = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Name of the account.", autocompletion=complete_accounts)]
_LIST_HELP = "Up to five numbers, best level first, like 2,1; missing numbers are 0."
group = add_group("accounts", "Show and manage quota accounts.", "leasehold accounts list")


@group.command("list", epilog=example("leasehold accounts list --watch 5", "leasehold accounts list -o csv"))
def list_(output: Output = None, as_json: AsJson = False, watch: Watched = None) -> None:
    """List quota accounts with balances, running and waiting work."""
    chosen = choose_format(output, as_json=as_json)
    with connect() as client:

        def show_all() -> None:
            rows = client.list(_ALIVE)
            found = [_describe(account, rows) for account in client.accounts()]
            header = [column.name.replace(" ", "_") for column in _COLUMNS]
            print_rows(
                chosen,
                found,
                header,
                map(_row, found),
                _COLUMNS,
                map(_row, found),
                "no accounts: `leasehold accounts set NAME` creates one",
            )

        repeat(show_all, watch)


def _describe(account: "Account", rows: Iterable["Reservation"]) -> dict[str, Any]:
    """Return the fields of `account` for output, with three more: the best level (class of service) that its balance
    pays for, the number of its running leases at each level (the free level last), and the number of its pending
    reservations.

    `rows`: the reservations that have not ended, of any account.
    """
    import msgspec

    from scheduler.model.accounts import FREE

    owned = [row for row in rows if account.owns(row)]
    found = Counter(lease.level for row in owned for lease in row.leases if lease.state != "claimed")
    document = msgspec.to_builtins(account).items()
    return {
        **{name: value for name, value in document if name not in {"forgotten", "forgotten_upto"}},
        "level": account.level,
        "running": [found[level] for level in range(FREE + 1)],
        "waiting": sum(row.phase == "pending" for row in owned),
    }


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    return (
        found["id"],
        show_levels(found["balance"]),
        _name_level(found["level"]),
        show_levels(found["charge_rate"]),
        show_seconds(found["max_charge_seconds"]),
        show_levels(found["running"]),
        str(found["waiting"]),
        found["description"],
    )


def _name_level(level: int) -> str:
    from scheduler.model.accounts import FREE

    return "none (free)" if level == FREE else str(level)


@group.command(epilog=example("leasehold accounts show ci", "leasehold accounts show ci --plot --span 6h"))
def show(
    account: Name,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the balances over time, from the database.")] = False,
    span: Annotated[str, typer.Option(help="How far --plot and --samples look back, like 30m or 6h.")] = "24h",
    samples: Annotated[bool, typer.Option("--samples", help="With --json: print the balances over time too.")] = False,
    as_json: AsJson = False,
    watch: Watched = None,
) -> None:
    """Show a quota account: balance, income, limits and work."""
    seconds = parse_seconds("--span", span)
    with connect() as client:

        def show_one() -> None:
            known = {each.id: each for each in client.accounts()}
            if account not in known:
                raise CommandError(describe_unknown("account", account) + suggest(account, known))
            row = known[account]
            found = _describe(row, client.list(_ALIVE, account=account))
            if as_json:
                print_json(found | ({"samples": _read_samples(row, seconds)} if samples else {}))
                return
            print_table(("", ""), _lines(found), "")
            if plot:
                # draw_balances() has fitted its lines to the terminal; print_thing() would wrap these lines.
                drawn = draw_balances(_read_samples(row, seconds), seconds, is_terminal=sys.stdout.isatty())
                sys.stdout.write(f"{drawn}\n")

        repeat(show_one, watch)


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    limits = " ".join(f"{name}={most}" for name, most in found["per_label_task_limits"].items())
    free = "wait" if found["disable_free_tasks"] else "run at the free level"
    running = " ".join(
        f"{level}: {count}" if level < len(found["balance"]) else f"free: {count}"
        for level, count in enumerate(found["running"])
        if count
    )
    lines = [
        ("account", found["id"]),
        ("description", found["description"]),
        ("balance", f"{show_levels(found['balance'])}, charged {show_age(found['charged_at'])}"),
        ("best level", _name_level(found["level"])),
        ("earns a second", f"{show_levels(found['charge_rate'])}, for {show_seconds(found['max_charge_seconds'])}"),
        ("without balance", free),
        ("max_fanout", f"{found['max_fanout']} alike" if found["max_fanout"] else ""),
        ("limits by label", limits),
        ("at max_runtime", "leases end" if found["enforce_max_runtime"] else ""),
        ("running, by level", running or "none"),
        ("waiting", str(found["waiting"])),
    ]
    return [(name, value) for name, value in lines if value]


def _read_samples(account: "Account", seconds: float) -> list[dict[str, Any]]:
    """Return the balances of `account` that the database stored in the last `seconds`, oldest first. The present
    balance is added at the end if it is newer.
    """
    import msgspec

    with open_store() as store:
        kept = store.read_balances(account.id, store.now() - seconds)
    found: list[dict[str, Any]] = [{"at": each.at, "balance": each.balance} for each in kept]
    if not found or account.charged_at > found[-1]["at"]:
        found.append({"at": account.charged_at, "balance": account.balance})
    return msgspec.to_builtins(found)  # type: ignore[no-any-return]


@group.command(
    "set",
    epilog=example(
        "leasehold accounts set ci --charge-rate 2,1 --max-charge-seconds 600",
        "leasehold accounts set ci --balance 100,50 --limit image=2",
    ),
)
def set_(  # noqa: PLR0913, PLR0917 - an option each
    account: Name,
    charge_rate: Annotated[str | None, typer.Option(metavar="NUMBERS", help=f"Income per second. {_LIST_HELP}")] = None,
    max_charge_seconds: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Upper limit of the balance: the income of this time, like 10m."),
    ] = None,
    balance: Annotated[str | None, typer.Option(metavar="NUMBERS", help=f"Set the balance. {_LIST_HELP}")] = None,
    max_fanout: Annotated[
        int | None,
        typer.Option(help="Most paid leases of equal reservations; further ones run at the free level; 0: no limit."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=N",
            help="Largest number of leases for each value of this label; replaces all limits. May be repeated.",
        ),
    ] = None,
    free_tasks: Annotated[
        bool | None,
        typer.Option(
            "--enable-free-tasks/--disable-free-tasks",
            help="Whether reservations run at the free level if the account has no balance, or wait.",
        ),
    ] = None,
    enforce_max_runtime: Annotated[
        bool | None,
        typer.Option(help="Whether leases end at the max_runtime of their reservation."),
    ] = None,
    description: Annotated[str | None, typer.Option(help="Description of the account.")] = None,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Create a quota account, or change settings of an existing one.

    The balance of an existing account stays unless --balance is given.
    """
    fields: dict[str, Any] = {
        "charge_rate": parse_numbers(charge_rate),
        "max_charge_seconds": None if max_charge_seconds is None else parse_number(max_charge_seconds),
        "balance": parse_numbers(balance),
        "max_fanout": max_fanout,
        "per_label_task_limits": parse_amounts("--limit", limit) if limit else None,
        "disable_free_tasks": None if free_tasks is None else not free_tasks,
        "enforce_max_runtime": enforce_max_runtime,
        "description": description,
    }
    given: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
    check("account", {"account": account, **given})
    with connect(timeout) as client, explaining_refusals():
        _show(client.account(account, **given), as_json)


@group.command(epilog=example("leasehold accounts reset ci"))
def reset(accounts: Names, timeout: Timeout = 30, as_json: AsJson = False) -> None:
    """Set the balances of quota accounts to 0 at every level.

    Running work of these accounts continues.
    """
    check_each("reset_account", "account", accounts)
    with connect(timeout) as client:
        send_each(client.reset_account, accounts, lambda answer: _show(answer, as_json))


@group.command(epilog=example("leasehold accounts delete ci", "leasehold accounts delete ci lab --yes"))
def delete(
    accounts: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Delete quota accounts.

    Running work of a deleted account continues unpaid; its waiting reservations then have no account.
    """
    check_each("forget_account", "account", accounts)
    question = f"delete {', '.join(accounts)} with their balances?"
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        raise CommandError("no account was deleted: the answer was not yes")
    with connect(timeout) as client:
        send_each(client.forget_account, accounts, lambda answer: _show(answer, as_json))


def _show(answer: "Answer", as_json: bool) -> None:
    print_result(answer, f"{answer.account} {show_levels(answer.balance or ())}", as_json=as_json)


_HEIGHT: Final = 20
_WIDTH: Final = 110
_TICKS: Final = 6
_SECONDS_OF_A_DAY: Final = 86400
_MINUTES: Final = 600
_COLOURS: Final = ("green", "cyan", "blue", "magenta", "orange")


def draw_balances(samples: Sequence[dict[str, Any]], seconds: float, *, is_terminal: bool) -> str:
    """Return a drawing of an account's balances as text. `samples` have the keys `at` and `balance`, oldest first. A
    level whose balance was always 0 has no line; if all were, return a sentence.

    `seconds`: how far the samples look back. `is_terminal`: whether the drawing has colours and fits the terminal.
    Times are shown in the time zone of this machine.
    """
    levels = [level for level in range(5) if any(each["balance"][level] for each in samples)]
    if not levels:
        return "the balance was 0 at every level"
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)
    plotext.plotsize(min(_WIDTH, shutil.get_terminal_size().columns) if is_terminal else _WIDTH, _HEIGHT)
    times = [each["at"] for each in samples]
    for level in levels:
        plotext.plot(times, [each["balance"][level] for each in samples], marker=str(level), color=_COLOURS[level])
    first, span = times[0], times[-1] - times[0]
    marks = [first + span * number / (_TICKS - 1) for number in range(_TICKS)] if span else [first]
    # Times have seconds if only minutes are drawn, and the date if more than a day is drawn.
    pattern = ("%m-%d " if seconds > _SECONDS_OF_A_DAY else "") + ("%H:%M:%S" if span < _MINUTES else "%H:%M")
    plotext.xticks(marks, [datetime.fromtimestamp(at).astimezone().strftime(pattern) for at in marks])
    plotext.title(f"time in {datetime.fromtimestamp(marks[-1]).astimezone():%Z}")
    drawn = plotext.build().rstrip("\n")
    legend = "balance by level: " + ", ".join(f"line of {level}s = level {level}" for level in levels)
    return f"{drawn if is_terminal else plotext.uncolorize(drawn)}\n{legend}".rstrip()
