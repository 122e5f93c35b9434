"""Revision 0015: a table of the times until which the costs of machines without a slot are booked."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add an empty table. The costs of a machine without a slot are booked from its launch on when a sweep finds it."""
    op.create_table(
        "booked_machines",
        sa.Column("machine", _TEXT, nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("machine"),
        sqlite_with_rowid=False,
    )
