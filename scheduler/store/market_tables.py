"""The tables of the market: the catalogue of instance types, prices in dollars per hour, and changes of prices."""

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Double, PrimaryKeyConstraint, Table, Text

from scheduler.store.tables import metadata

_TEXT: Final = Text().with_variant(Text(collation="C"), "postgresql")
_ALIKE: Final = {"json": True, "alike": True}
"""The `info` of a column of JSON text that many rows have in common, so that a text is decoded once."""

instance_types: Final = Table(
    "instance_types",
    metadata,
    Column("name", _TEXT, primary_key=True),
    Column("cpus", Double, nullable=False),
    Column("memory_mib", Double, nullable=False),
    Column("architectures", _TEXT, nullable=False, info=_ALIKE),
    Column("is_current", Boolean, nullable=False),
    Column("accelerators", BigInteger, nullable=False),
    Column("accelerator", _TEXT, nullable=True),
    Column("local_disk_gib", Double, nullable=False),
    Column("is_bare_metal", Boolean, nullable=False),
    Column("markets", _TEXT, nullable=False, info=_ALIKE),
    Column("zones", _TEXT, nullable=False, info=_ALIKE),
    Column("seen_at", Double, nullable=False),
    Column("gpus", BigInteger, nullable=False, server_default="0"),
    Column("neurons", BigInteger, nullable=False, server_default="0"),
    Column("fpgas", BigInteger, nullable=False, server_default="0"),
)

price_changes: Final = Table(
    "price_changes",
    metadata,
    Column("type", _TEXT, nullable=False),
    Column("zone", _TEXT, nullable=False),
    Column("market", _TEXT, nullable=False),
    # Begin of the hour. A price has one row for each hour in which it changed.
    Column("hour", Double, nullable=False),
    Column("price", Double, nullable=False),
    PrimaryKeyConstraint("type", "zone", "market", "hour"),
    sqlite_with_rowid=False,
)

prices: Final = Table(
    "prices",
    metadata,
    Column("type", _TEXT, nullable=False),
    # An availability zone, or a region.
    Column("zone", _TEXT, nullable=False),
    Column("market", _TEXT, nullable=False),
    Column("price", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("source", _TEXT, nullable=False),
    PrimaryKeyConstraint("type", "zone", "market"),
    sqlite_with_rowid=False,
)
