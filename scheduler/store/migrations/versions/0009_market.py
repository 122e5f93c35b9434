"""Revision 0009: the catalogue of instance types, the table of prices, and a counter that each change of either
increases.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add two empty tables, and the counter `market` with the value 0."""
    op.create_table(
        "instance_types",
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory_mib", sa.Double(), nullable=False),
        sa.Column("architectures", _TEXT, nullable=False),
        sa.Column("is_current", sa.Boolean(), nullable=False),
        sa.Column("accelerators", sa.BigInteger(), nullable=False),
        sa.Column("accelerator", _TEXT, nullable=True),
        sa.Column("local_disk_gib", sa.Double(), nullable=False),
        sa.Column("is_bare_metal", sa.Boolean(), nullable=False),
        sa.Column("markets", _TEXT, nullable=False),
        sa.Column("zones", _TEXT, nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "prices",
        sa.Column("type", _TEXT, nullable=False),
        sa.Column("zone", _TEXT, nullable=False),
        sa.Column("market", _TEXT, nullable=False),
        sa.Column("price", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("source", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("type", "zone", "market"),
        sqlite_with_rowid=False,
    )
    op.bulk_insert(
        sa.table("counters", sa.column("name", sa.Text()), sa.column("value", sa.BigInteger())),
        [{"name": "market", "value": 0}],
    )
