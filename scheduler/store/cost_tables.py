"""The two tables of the cost ledger: `costs`, what was booked, and `booked_machines`, until when machines without a
slot are booked.
"""

from typing import Final

from sqlalchemy import Column, Double, PrimaryKeyConstraint, Table, Text

from scheduler.store.tables import metadata

_TEXT: Final = Text().with_variant(Text(collation="C"), "postgresql")

costs: Final = Table(
    "costs",
    metadata,
    Column("hour", Double, nullable=False),
    Column("pool", _TEXT, nullable=False),
    Column("offering", _TEXT, nullable=False),
    Column("account", _TEXT, nullable=False),
    Column("kind", _TEXT, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("dollars", Double, nullable=False),
    Column("unpriced", Double, nullable=False),
    PrimaryKeyConstraint("hour", "pool", "offering", "account", "kind"),
    sqlite_with_rowid=False,
)
"""The table of booked costs, with one row for each hour, pool, offering, account and kind."""

booked_machines: Final = Table(
    "booked_machines",
    metadata,
    # The id of the machine in EC2.
    Column("machine", _TEXT, primary_key=True),
    Column("since", Double, nullable=False),
    Column("until", Double, nullable=False),
    sqlite_with_rowid=False,
)
"""The table of machines that have no slot, with the last interval whose costs were booked."""
