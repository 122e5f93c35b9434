"""The commands `leasehold prices …`, which fill the table of prices: from a file, or from EC2."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from leasehold.cli.connecting import load_settings, open_store
from leasehold.cli.failures import NO_RULES, CommandError
from leasehold.cli.output import AsJson, print_result
from leasehold.cli.root import add_group, example

REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
group = add_group("prices", "Update the table of prices.", "leasehold prices import prices.csv")


@group.command(
    "import", epilog=example("leasehold prices import prices.csv", "leasehold prices import ec2.json --json")
)
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="AWS's price list of EC2, or a simple list of prices.")],
    region: Annotated[
        str | None,
        typer.Option(help="Region whose prices are added; default: the stack's region, else the only region in FILE."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add the prices of a file to the table of prices.

    The file is AWS's price list of EC2 in JSON or CSV, or a list with the columns type, zone or region, market and
    price (dollars per hour). If a row has a fault, nothing is added.
    """
    from scheduler.operations.market.refresh import save_market
    from workers.price_files import read_prices

    settings = load_settings()
    region = region or settings.aws.region or next(filter(None, map(os.environ.get, REGION_VARIABLES)), None)
    with open_store() as store:
        prices = read_prices(file, region=region, seen_at=store.now(), product=settings.market.product)
        changed = save_market(store, prices=prices)
    text = f"{len(prices)} prices" + ("" if changed else ", unchanged")
    print_result({"prices": len(prices), "changed": changed}, text, as_json=as_json)


@group.command(epilog=example("leasehold prices refresh", "leasehold prices refresh --json"))
def refresh(as_json: AsJson = False) -> None:
    """Update prices and instance types from EC2.

    The command reads the spot prices of the offerings of all pools, and the catalogue of instance types if an offering
    has requirements. The AWS credentials need the IAM policy `look` (docs/how-to/aws.md). If
    `market.on_demand_interval` is set, the command also reads on-demand prices, which needs the IAM policy `prices`.
    """
    settings = load_settings()
    from leasehold.cli.market import read_market

    with open_store() as store:
        stored = store.load_rules()
        if not stored.version:
            raise CommandError(NO_RULES)
        found = read_market(store, settings, stored.rules, all_pools=True)
    text = f"{found.prices} prices, {found.types} instance types" + ("" if found.changed else ", unchanged")
    print_result(found, text, as_json=as_json)
