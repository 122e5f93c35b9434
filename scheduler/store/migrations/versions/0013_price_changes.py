"""Revision 0013: the history of prices. A price has a row for each hour in which it changed."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add an empty table: the history begins with the next change of a price."""
    op.create_table(
        "price_changes",
        sa.Column("type", _TEXT, nullable=False),
        sa.Column("zone", _TEXT, nullable=False),
        sa.Column("market", _TEXT, nullable=False),
        sa.Column("hour", sa.Double(), nullable=False),
        sa.Column("price", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("type", "zone", "market", "hour"),
        sqlite_with_rowid=False,
    )
