"""Read EC2's market for commands, and check requirements of a configuration file against the stored market."""

from contextlib import closing
from typing import Final

from leasehold.cli.output import CommandError, one_line, print_error
from scheduler.model.rules import Rules
from scheduler.model.validation import Fault, InvalidInputError
from scheduler.operations.market import (
    Refreshed,
    find_market_faults,
    has_requirements,
    refresh_market,
    refresh_on_demand,
)
from scheduler.ports import CloudError, Store, StoreUnavailableError
from scheduler.store.opening import open_store
from workers.configuration import Configuration
from workers.settings import Settings

UNCHECKED: Final = "a catalogue of instance types in the database, to check it"


def read_market(
    store: Store,
    settings: Settings,
    rules: Rules,
    *,
    catalogue_age: float = 0.0,
    on_demand_age: float = 0.0,
    all_pools: bool = False,
) -> Refreshed:
    """Read instance types and spot prices from EC2 into the database, and return how many were read and whether any of
    them changed. Raises CommandError if EC2 refuses a call or cannot be reached; then nothing was written.

    On-demand prices are read too if `market.on_demand_interval` is set. If AWS refuses to return them, that is printed
    and no error is raised. `catalogue_age`, `on_demand_age`: the stored instance types and on-demand prices are read
    again only if they are older than this number of seconds. `all_pools`: also read prices for pools that do not use
    the market.
    """
    # Only a look at EC2's market needs them, and they take a while to import.
    from leasehold.stack.preparation import QuietDispatcher
    from workers.services import Services

    try:
        source = Services(settings, QuietDispatcher).market
        found = refresh_market(store, source, rules, catalogue_age=catalogue_age, all_pools=all_pools)
    except CloudError as error:
        raise CommandError(one_line(str(error))) from None
    if not settings.market.on_demand_interval:
        return found
    try:
        listed = refresh_on_demand(store, source, rules, age=on_demand_age, all_pools=all_pools)
    except CloudError as error:
        print_error(f"on-demand prices were not read; imported and known ones remain: {one_line(str(error))}")
        return found
    return Refreshed(types=found.types, prices=found.prices + listed.prices, changed=found.changed or listed.changed)


def prepare_market(settings: Settings, rules: Rules) -> None:
    """Read instance types and prices from EC2 before rules with requirements are applied; do nothing for other rules.
    If EC2 cannot be read, print why; the rules are then applied with the types and prices in the database.
    """
    if not has_requirements(rules):
        return
    with closing(open_store(settings.database_url)) as store:
        try:
            ages = settings.market.catalogue_age, settings.market.on_demand_interval
            read_market(store, settings, rules, catalogue_age=ages[0], on_demand_age=ages[1])
        except CommandError as error:
            print_error(f"instance types and prices are those of the database: {error}")


def check_market(configuration: Configuration) -> tuple[list[Fault], list[Fault]]:
    """Compare the requirements of a configuration file with the catalogue that the database has. Return two lists:
    faults and warnings. Without a catalogue the requirements are not checked, and there is one warning.
    """
    rules, settings = configuration.rules, configuration.settings
    if not has_requirements(rules):
        return [], []
    try:
        with closing(open_store(settings.database_url)) as store:
            market = store.load_market()
    except (StoreUnavailableError, InvalidInputError):
        return [], [Fault("offerings.require", UNCHECKED, "no database")]
    if not market.types:
        return [], [Fault("offerings.require", UNCHECKED, "no catalogue (`leasehold apply` reads it)")]
    return [*find_market_faults(rules, market)], []
